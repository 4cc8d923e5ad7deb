"""What a run did to its buffers: outputs wrong, unwritten or moving, inputs changed.

`examine.py` asks the questions in order. Here tensors are compared, in pieces so small that a problem
which fills a GPU can still be checked on it.
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

# No output may be further off than this many class bounds times (rms of the truth + its own size).
ELEMENTWISE = 6
LOOKED_AT = 1 << 20  # outputs that patterns are looked for in; of more, a sample
# Quiet NaNs that no arithmetic makes: what still holds one was never written (or only added to).
_POISON = {torch.float32: 0x7FC0BAD5, torch.float16: 0x7E5A, torch.bfloat16: 0x7FDA}
_USUAL = 1e9  # larger numbers, inf, NaN, and 0 may make inf and NaN by themselves
_SHOWN = 4  # wrong outputs listed
_MAP = 256  # rows and columns of a map of the error, at most


def _bits(tensor: Tensor) -> Tensor:
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
    """Compare x, w and bias with their copies bit for bit; say what changed, and put it right."""
    found = []
    for name, now, then in zip(("x", "w", "bias"), inputs, pristine, strict=True):
        differs = [] if now is None else [(_bits(now) != _bits(then)).flatten()]
        changed, first = _count(differs)
        if changed:
            text = f"the kernel wrote to its input: {changed:,} elements of {name} changed"
            found.append(wrong("store to an input", text, name, first, now.shape))
            now.copy_(then)
    return found


def wrong(
    kind: str, text: str, array: str | None = None, at: int = 0, shape: Sequence[int] = ()
) -> Finding:
    """A mistake that was seen after the run; `at` counts the elements of an array of that shape."""
    index = np.unravel_index(at, tuple(shape)) if shape else (at,)
    return Finding(kind, text, array=array, index=tuple(map(int, index)) if array else None)


def keep(y: Tensor) -> Tensor:
    """Copy as much of an output as memory easily allows, from its start, flat."""
    room = (available_bytes(y.device) - (1 << 30)) // y.element_size()
    try:
        return y.flatten()[: max(room, 0)].clone()
    except torch.OutOfMemoryError:  # there is room, but in pieces
        return y.flatten()[:0].clone()


def moved(y: Tensor, first: Tensor) -> tuple[int, int]:
    """Count the outputs whose bits differ from those kept; return that and the first's index."""
    size = CHUNK[y.device.type]
    parts = zip(y.flatten()[: first.numel()].split(size), first.split(size), strict=True)
    return _count(_bits(now) != _bits(then) for now, then in parts)


def _count(masks: Iterable[Tensor]) -> tuple[int, int]:
    """How many elements are True in flat pieces of a tensor, and which is the first; -1: none."""
    count = 0
    first = -1
    passed = 0
    for mask in masks:
        if found := int(mask.sum()):
            if not count:
                first = passed + int(mask.view(torch.uint8).argmax())
            count += found
        passed += mask.numel()
    return count, first


class OutputComparison:
    """Compares one output with its truth, piece by piece, and keeps count.

    An output fails by itself beyond `ELEMENTWISE * bound * (rms of the truth + its own size)`,
    `bound` being the normwise one of the kernel's class.
    """

    def __init__(self, reference: Reference, y: Tensor, bound: float, poisoned: bool) -> None:
        self.reference = reference
        self.y = y
        self.bound = bound
        self.problem = reference.problem
        self.wrong = 0
        self.unwritten = 0
        self._first = -1
        self.worst = 0.0
        self.limit = 0.0
        self.error = 0.0
        self._examples: list[tuple[tuple[int, ...], float, float]] = []
        self._ratio = -1.0  # the largest so far of error over limit
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
    def right(self) -> bool:
        """Whether every output was written and none is wrong, nor all of them as a whole."""
        return not self.wrong and not self.unwritten and self.error <= self.bound

    @property
    def numbers(self) -> dict[str, Any]:
        """What a `Report` has of it, by the same names."""
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
        """The first wrong output, or else the first unwritten one, in memory order."""
        if self._examples:
            return int(np.ravel_multi_index(self._examples[0][0], self.problem.y_shape))
        return max(self._first, 0)

    def _compare(self) -> str:
        """Compare with float64, all outputs or a sample and then all with fp32; say which."""
        reference = self.reference
        total = self.y.numel()
        if not total:
            return "no outputs, none compared"
        if reference.whole:
            squares = [self._add(first, piece, self.bound) for first, piece in reference.pieces]
            self.error = self._normwise(sum(squares), total)
            return f"all {total:,} outputs against float64"
        where = reference.where
        truth = reference.values
        picked = self.y[tuple(where.unbind(1))].double()
        errors, limits = self._errors(picked, truth, self.bound)
        bad = ~(errors <= limits)
        self.error = self._normwise(float(errors.square().sum()), truth.numel())
        self._nearest(errors, limits)
        loose = self.bound + tolerance("fp32", self.problem.gemm_k)
        for first, piece in reference.approximate():
            self._add(first, piece, loose)
        if (among := int(bad.sum())) > self.wrong:  # seen by the sharper eye only
            self.wrong = among
            self._examples = []
            for i in bad.nonzero().flatten()[:_SHOWN].tolist():
                self._examples.append((tuple(where[i].tolist()), float(picked[i]), float(truth[i])))
        return (
            f"{truth.numel():,} sampled outputs against float64 (all of them would take too "
            f"long), all {total:,} against {reference.rival}"
        )

    def _normwise(self, square: float, count: int) -> float:
        """The normwise error, from the sum of squared errors over `count` outputs."""
        norm = self.reference.rms * math.sqrt(count)
        if not norm:
            return 0.0 if square == 0 else math.inf
        return math.sqrt(square) / norm if math.isfinite(square) else math.inf

    def _errors(self, y: Tensor, truth: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        """Return the absolute errors, 0 where both are the same inf or NaN, and their limits."""
        errors = (y - truth).abs_()
        strange = ~torch.isfinite(truth)
        if strange.any():
            same = (y == truth) | (torch.isnan(y) & torch.isnan(truth))
            errors = torch.where(strange, torch.where(same, 0.0, math.inf), errors)
            truth = torch.where(strange, 0.0, truth)
        return errors, truth.abs().add_(self.reference.rms).mul_(ELEMENTWISE * bound)

    def _add(self, first: int, truth: Tensor, bound: float) -> float:
        """Compare the images from `first` on, some channels at once; sum their squared errors."""
        square = 0.0
        images = slice(first, first + len(truth))
        planes = max(1, CHUNK[truth.device.type] // (len(truth) * self.problem.P * self.problem.Q))
        for k in range(0, self.problem.K, planes):
            there = (images, slice(k, k + planes))
            part = truth[:, k : k + planes]
            y = self.y[there].to(part.dtype)
            errors, limits = self._errors(y, part, bound)
            ratios = self._nearest(errors, limits)
            self._pixels = torch.maximum(self._pixels, ratios.amax((0, 1)))
            self._channels[there] = ratios.amax((2, 3)).double()
            bad = ~(errors <= limits)
            count = int(bad.sum())
            self.wrong += count
            left = bad.flatten().view(torch.uint8)
            for _ in range(min(count, _SHOWN - len(self._examples))):
                index = int(left.argmax())
                left[index] = 0
                at = tuple(map(int, np.unravel_index(index, bad.shape)))
                place = (at[0] + first, at[1] + k, *at[2:])
                self._examples.append((place, float(y[at]), float(part[at])))
            square += float(errors.square().sum(dtype=torch.float64))
        return square

    def _nearest(self, errors: Tensor, limits: Tensor) -> Tensor:
        """Keep the error that is largest against its limit, NaN being larger; return the ratios."""
        ratios = errors / limits.clamp(min=torch.finfo(limits.dtype).tiny)
        index = int(ratios.nan_to_num(nan=math.inf).argmax())
        ratio = float(ratios.flatten()[index])
        worst = float(errors.flatten()[index])
        ratio, worst = (math.inf if math.isnan(number) else number for number in (ratio, worst))
        if ratio > self._ratio:
            self._ratio = ratio
            self.worst = worst
            self.limit = float(limits.flatten()[index])
        return ratios

    def failures(self) -> list[Finding]:
        """Say what is wrong."""
        total = self.y.numel()
        found = []
        if self.unwritten:
            text = f"{self.unwritten:,} of {total:,} outputs were never written"
            found.append(wrong("never written", text, "y", self._first, self.problem.y_shape))
        if self.wrong:
            lines = [f"{self.wrong:,} of {total:,} outputs are wrong, the first of them:"]
            for place, got, expected in self._examples:
                at = ", ".join(map(str, place))
                lines.append(f"  (n, k, p, q) = ({at}): got {got:.7g}, expected {expected:.7g}")
            first = self._examples[0][0]
            found.append(Finding("wrong result", "\n".join(lines), array="y", index=first))
        return found

    def patterns(self, precision: str) -> list[str]:
        """Describe what the wrong outputs have in common; of many outputs, in a sample."""
        describe = rooms.provided("patterns", "of_outputs")
        if describe is None or not self.y.numel():
            return []
        return describe(self._evidence(precision))

    def _evidence(self, precision: str) -> Evidence:
        """Return the outputs beside their truth: all of them, or a sample."""
        problem = self.problem
        reference = self.reference
        whole = reference.whole and self.y.numel() <= LOOKED_AT
        if whole:
            where = sample(problem, self.y.numel(), device=self.y.device)  # all of them
            truth = torch.cat([piece.flatten() for _, piece in reference.pieces])
        else:
            where = reference.where
            truth = reference.values
        y = self.y[tuple(where.unbind(1))]
        errors, limits = self._errors(y.double(), truth, self.bound)
        unwritten = _bits(y) == _POISON[y.dtype]
        bias = reference.inputs[2]
        known = truth.cpu().numpy()

        def truth_at(places: np.ndarray) -> np.ndarray:
            if whole:
                return known[np.ravel_multi_index(tuple(places.T), problem.y_shape)]
            return reference.at(torch.from_numpy(places)).cpu().numpy()

        return Evidence(
            problem=problem,
            precision=precision,
            where=where.cpu().numpy(),
            got=y.double().cpu().numpy(),
            truth=known,
            wrong=(~(errors <= limits) | unwritten).cpu().numpy(),
            unwritten=unwritten.cpu().numpy(),
            whole=whole,
            truth_at=truth_at,
            bias=None if bias is None else bias.double().cpu().numpy(),
            allowed=ELEMENTWISE * self.bound,
            rms=reference.rms,
            usual=all(1 / _USUAL < float(t.abs().max()) < _USUAL for t in reference.inputs[:2]),
        )


def _pooled(errors: Tensor) -> np.ndarray:
    """Shrink by the largest value of each block, so that one wrong pixel stays to be seen."""
    pooled = errors.cpu().numpy()
    for axis in (0, 1):
        block = max(1, -(-pooled.shape[axis] // _MAP))
        starts = np.arange(0, pooled.shape[axis], block)
        pooled = np.maximum.reduceat(pooled, starts, axis=axis)  # NaN wins, as it should
    return pooled
