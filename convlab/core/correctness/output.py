"""Compare a run's buffers: outputs that are wrong, unwritten or not repeatable; changed inputs.

`examine.py` asks the questions in order. Here tensors are compared, in pieces so small that a
problem which fills a GPU can still be checked on it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import rooms
from ..finding import Finding
from ..kernel.runnable import Inputs, Launch
from ..machine.device import available_bytes
from .evidence import Evidence
from .reference import CHUNK, Reference, sample, tolerance

# The most error of one output: this many class bounds times (rms of the truth + its own size).
ELEMENTWISE = 6
# Patterns are looked for in at most so many outputs; of more, in a sample.
LOOKED_AT = 1 << 20
# Quiet NaNs that no arithmetic makes: an output that still holds one was never written.
_POISON = {torch.float32: 0x7FC0BAD5, torch.float16: 0x7E5A, torch.bfloat16: 0x7FDA}
# Larger numbers, inf, NaN, and 0 may make inf and NaN by themselves.
_USUAL = 1e9
# The most wrong outputs that are listed.
_SHOWN = 4
# The most rows and columns of a map of the error.
_MAP = 256


def _bits(tensor: Tensor) -> Tensor:
    """Return a tensor's bits as integers."""
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def poison(launch: Launch) -> bool:
    """Fill a launch's output, and its workspace if any, with NaN; return whether there was one.

    The output gets one NaN that arithmetic does not make, the workspace bytes of 0xFF.
    """
    if launch.workspace is not None and launch.workspace.numel():
        launch.workspace.view(torch.uint8).fill_(0xFF)
    if launch.y is not None:
        _bits(launch.y).fill_(_POISON[launch.y.dtype])
    return launch.y is not None


def changed_inputs(inputs: Inputs, pristine: Inputs) -> list[Finding]:
    """Return which of x, w and bias differ from their copies bit for bit; restore those."""
    findings = []
    for name, now, then in zip(("x", "w", "bias"), inputs, pristine, strict=True):
        if now is None:
            continue
        changed, first = _count([(_bits(now) != _bits(then)).flatten()])
        if changed:
            text = f"the kernel wrote to its input: {changed:,} elements of {name} changed"
            findings.append(wrong("store to an input", text, name, first, now.shape))
            now.copy_(then)
    return findings


def wrong(
    kind: str, text: str, array: str | None = None, at: int = 0, shape: Sequence[int] = ()
) -> Finding:
    """Return a mistake seen after the run; `at` is the element's number in an array of `shape`."""
    if not array:
        return Finding(kind, text)
    index = np.unravel_index(at, tuple(shape)) if shape else (at,)
    return Finding(kind, text, array=array, index=tuple(map(int, index)))


def keep(y: Tensor) -> Tensor:
    """Return a flat copy of an output's start, as long as memory easily allows."""
    room = (available_bytes(y.device) - (1 << 30)) // y.element_size()
    try:
        return y.flatten()[: max(room, 0)].clone()
    except torch.OutOfMemoryError:
        # The free memory is in pieces.
        return y.flatten()[:0].clone()


def moved(y: Tensor, first: Tensor) -> tuple[int, int]:
    """Return how many outputs differ from those kept, bit for bit, and the index of the first."""
    size = CHUNK[y.device.type]
    parts = zip(y.flatten()[: first.numel()].split(size), first.split(size), strict=True)
    return _count(_bits(now) != _bits(then) for now, then in parts)


def _count(masks: Iterable[Tensor]) -> tuple[int, int]:
    """Return how many elements are True in flat pieces of a tensor, and the index of the first.

    The index is -1 if there is none.
    """
    count = 0
    first = -1
    start = 0
    for mask in masks:
        in_piece = int(mask.sum())
        if in_piece and not count:
            first = start + int(mask.view(torch.uint8).argmax())
        count += in_piece
        start += mask.numel()
    return count, first


class OutputComparison:
    """Compares one output with its truth, piece by piece.

    An output fails by itself beyond `ELEMENTWISE * bound * (rms of the truth + its own size)`,
    where `bound` is the normwise one of the kernel's class.
    """

    def __init__(self, reference: Reference, y: Tensor, bound: float, poisoned: bool) -> None:
        self.reference = reference
        self.y = y
        self.bound = bound
        self.problem = reference.problem
        self.wrong = 0
        self.unwritten = 0
        self.worst = 0.0
        self.limit = 0.0
        self.error = 0.0
        # The first unwritten output.
        self._first = -1
        # Of the first wrong outputs: position, value, truth.
        self._examples: list[tuple[tuple[int, ...], float, float]] = []
        # The largest quotient so far of error and limit.
        self._ratio = -1.0
        N, K, P, Q = self.problem.y_shape
        self._pixels = torch.zeros(P, Q, dtype=torch.float64, device=y.device)
        self._channels = torch.zeros(N, K, dtype=torch.float64, device=y.device)
        if poisoned:
            parts = _bits(y).flatten().split(CHUNK[y.device.type])
            self.unwritten, self._first = _count(part == _POISON[y.dtype] for part in parts)
        self.compared = self._compare()
        self.pixels = _pooled(self._pixels)
        self.channels = _pooled(self._channels)

    @property
    def correct(self) -> bool:
        """Whether all outputs were written, none is wrong, and the normwise error is in bounds."""
        return not self.wrong and not self.unwritten and self.error <= self.bound

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields of a `Report` that the comparison gives."""
        names = (
            "error",
            "bound",
            "worst",
            "limit",
            "wrong",
            "unwritten",
            "compared",
            "pixels",
            "channels",
        )
        return {name: getattr(self, name) for name in names} | {"outputs": self.y.numel()}

    @property
    def first_wrong(self) -> int:
        """The number of the first wrong output, or of the first unwritten one, in memory order."""
        if self._examples:
            return int(np.ravel_multi_index(self._examples[0][0], self.problem.y_shape))
        return max(self._first, 0)

    def _compare(self) -> str:
        """Compare the outputs with their truth; return in words what was compared with what."""
        total = self.y.numel()
        if not total:
            return "no outputs, none compared"
        if not self.reference.whole:
            return self._compare_sample()
        pieces = self.reference.pieces
        squares = [self._add(first, piece, self.bound) for first, piece in pieces]
        self.error = self._normwise(sum(squares), total)
        return f"all {total:,} outputs against float64"

    def _compare_sample(self) -> str:
        """Compare a sample with float64, then all outputs with fp32; return that in words."""
        reference = self.reference
        where = reference.where
        truth = reference.values
        sampled = self.y[tuple(where.unbind(1))].double()
        errors, limits = self._errors(sampled, truth, self.bound)
        self.error = self._normwise(float(errors.square().sum()), truth.numel())
        self._nearest(errors, limits)
        loose_bound = self.bound + tolerance("fp32", self.problem.gemm_k)
        for first, piece in reference.approximate():
            self._add(first, piece, loose_bound)
        bad = ~(errors <= limits)
        bad_in_sample = int(bad.sum())
        if bad_in_sample > self.wrong:
            # Only float64 with its sharper bound shows these.
            self.wrong = bad_in_sample
            self._examples = []
            for i in bad.nonzero().flatten()[:_SHOWN].tolist():
                place = tuple(where[i].tolist())
                self._examples.append((place, float(sampled[i]), float(truth[i])))
        return (
            f"{truth.numel():,} sampled outputs against float64 (all of them would take too "
            f"long), all {self.y.numel():,} against {reference.rival}"
        )

    def _normwise(self, square: float, count: int) -> float:
        """Return the normwise error, from the sum of squared errors over `count` outputs."""
        norm = self.reference.rms * math.sqrt(count)
        if square == 0 and not norm:
            return 0.0
        if not norm or not math.isfinite(square):
            return math.inf
        return math.sqrt(square) / norm

    def _errors(self, y: Tensor, truth: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        """Return the absolute errors (0 where both are the same inf or NaN) and their limits."""
        errors = (y - truth).abs_()
        strange = ~torch.isfinite(truth)
        if strange.any():
            same = (y == truth) | (torch.isnan(y) & torch.isnan(truth))
            errors = torch.where(strange, torch.where(same, 0.0, math.inf), errors)
            truth = torch.where(strange, 0.0, truth)
        return errors, truth.abs().add_(self.reference.rms).mul_(ELEMENTWISE * bound)

    def _add(self, first: int, truth: Tensor, bound: float) -> float:
        """Compare the images from `first` on; return the sum of their squared errors."""
        square = 0.0
        images = slice(first, first + len(truth))
        planes = max(1, CHUNK[truth.device.type] // (len(truth) * self.problem.P * self.problem.Q))
        for k in range(0, self.problem.K, planes):
            place = (images, slice(k, k + planes))
            part = truth[:, k : k + planes]
            y = self.y[place].to(part.dtype)
            errors, limits = self._errors(y, part, bound)
            ratios = self._nearest(errors, limits)
            self._pixels = torch.maximum(self._pixels, ratios.amax((0, 1)))
            self._channels[place] = ratios.amax((2, 3)).double()
            # An error of NaN is not within its limit.
            bad = ~(errors <= limits)
            self.wrong += int(bad.sum())
            self._list_examples(bad, y, part, (first, k))
            square += float(errors.square().sum(dtype=torch.float64))
        return square

    def _list_examples(
        self, bad: Tensor, y: Tensor, truth: Tensor, corner: tuple[int, int]
    ) -> None:
        """Keep the first bad outputs of a piece, until enough are listed.

        `corner` is the image and the channel at which the piece starts.
        """
        left = bad.flatten().view(torch.uint8)
        for _ in range(min(int(bad.sum()), _SHOWN - len(self._examples))):
            index = int(left.argmax())
            left[index] = 0
            at = tuple(map(int, np.unravel_index(index, bad.shape)))
            place = (at[0] + corner[0], at[1] + corner[1], *at[2:])
            self._examples.append((place, float(y[at]), float(truth[at])))

    def _nearest(self, errors: Tensor, limits: Tensor) -> Tensor:
        """Return errors over limits; keep the largest, NaN being larger than any number."""
        ratios = errors / limits.clamp(min=torch.finfo(limits.dtype).tiny)
        index = int(ratios.nan_to_num(nan=math.inf).argmax())
        ratio = float(ratios.flatten()[index])
        worst = float(errors.flatten()[index])
        if math.isnan(ratio):
            ratio = math.inf
        if ratio > self._ratio:
            self._ratio = ratio
            self.worst = math.inf if math.isnan(worst) else worst
            self.limit = float(limits.flatten()[index])
        return ratios

    def failures(self) -> list[Finding]:
        """Return what is wrong."""
        total = self.y.numel()
        findings = []
        if self.unwritten:
            text = f"{self.unwritten:,} of {total:,} outputs were never written"
            findings.append(wrong("never written", text, "y", self._first, self.problem.y_shape))
        if self.wrong:
            lines = [f"{self.wrong:,} of {total:,} outputs are wrong, the first of them:"]
            for place, got, expected in self._examples:
                at = ", ".join(map(str, place))
                lines.append(f"  (n, k, p, q) = ({at}): got {got:.7g}, expected {expected:.7g}")
            first = self._examples[0][0]
            findings.append(Finding("wrong result", "\n".join(lines), array="y", index=first))
        return findings

    def patterns(self, precision: str) -> list[str]:
        """Return lines on what the wrong outputs have in common; of many outputs, in a sample."""
        describe = rooms.provided("patterns", "of_outputs")
        if describe is None or not self.y.numel():
            return []
        return describe(self._evidence(precision))

    def _evidence(self, precision: str) -> Evidence:
        """Return the outputs and their truth: all of them, or a sample."""
        problem = self.problem
        reference = self.reference
        whole = reference.whole and self.y.numel() <= LOOKED_AT
        if whole:
            # As many as there are: all of them.
            where = sample(problem, self.y.numel(), device=self.y.device)
            truth = torch.cat([piece.flatten() for _, piece in reference.pieces])
        else:
            where = reference.where
            truth = reference.values
        y = self.y[tuple(where.unbind(1))]
        errors, limits = self._errors(y.double(), truth, self.bound)
        unwritten = _bits(y) == _POISON[y.dtype]
        bias = reference.inputs[2]
        values = truth.cpu().numpy()
        usual = [1 / _USUAL < float(t.abs().max()) < _USUAL for t in reference.inputs[:2]]

        def truth_at(places: np.ndarray) -> np.ndarray:
            if whole:
                return values[np.ravel_multi_index(tuple(places.T), problem.y_shape)]
            return reference.at(torch.from_numpy(places)).cpu().numpy()

        return Evidence(
            problem=problem,
            precision=precision,
            where=where.cpu().numpy(),
            got=y.double().cpu().numpy(),
            truth=values,
            wrong=(~(errors <= limits) | unwritten).cpu().numpy(),
            unwritten=unwritten.cpu().numpy(),
            whole=whole,
            truth_at=truth_at,
            bias=None if bias is None else bias.double().cpu().numpy(),
            allowed=ELEMENTWISE * self.bound,
            rms=reference.rms,
            usual=all(usual),
        )


def _pooled(errors: Tensor) -> np.ndarray:
    """Return a map that is shrunk to the largest value of each block, so that one pixel is seen."""
    pooled = errors.cpu().numpy()
    for axis in (0, 1):
        block = max(1, -(-pooled.shape[axis] // _MAP))
        starts = np.arange(0, pooled.shape[axis], block)
        # The maximum with a NaN is NaN, as it should be.
        pooled = np.maximum.reduceat(pooled, starts, axis=axis)
    return pooled
