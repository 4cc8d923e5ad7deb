"""Compare the buffers of a run: incorrect, unwritten and unrepeatable outputs, changed inputs.

`examine.py` calls these functions. They compare tensors in small pieces, so that a problem that
almost fills a GPU's memory can still be checked there.
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

# The limit of one output's error is this times the class bound times (rms + |reference|).
ELEMENTWISE = 6
# Patterns are searched in all outputs if there are at most this many; else in a sample.
LOOKED_AT = 1 << 20
# Quiet NaNs that no arithmetic produces: an output that still holds one was never written.
_POISON = {torch.float32: 0x7FC0BAD5, torch.float16: 0x7E5A, torch.bfloat16: 0x7FDA}
# If the largest value of x or w is not between 1 / _USUAL and _USUAL, inf and NaN may be correct.
_USUAL = 1e9
# At most this many incorrect outputs are listed.
_SHOWN = 4
# Larger x and filters are not part of the evidence: their elements, as float64, are 64 MiB.
_MOST_EVIDENCE = 8 << 20
# An error map has at most this many rows and columns.
_MAP = 256


def _bits(tensor: Tensor) -> Tensor:
    """Return a view of a tensor's bits as integers."""
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def poison(launch: Launch) -> bool:
    """Fill a launch's y and workspace with NaN, and return whether it has a y.

    y is filled with a NaN that no arithmetic produces, the workspace with 0xFF bytes.
    """
    if launch.workspace is not None and launch.workspace.numel():
        launch.workspace.view(torch.uint8).fill_(0xFF)
    if launch.y is not None:
        _bits(launch.y).fill_(_POISON[launch.y.dtype])
    return launch.y is not None


def changed_inputs(launch: Launch, pristine: Inputs) -> list[Finding]:
    """Return a finding for each input that changed, and restore it from its copy."""
    findings = []
    names = (*launch.problem.computation.inputs, "bias")
    for name, now, then in zip(names, launch.inputs, pristine, strict=True):
        if now is None:
            continue
        changed, first = _count([(_bits(now) != _bits(then)).flatten()])
        if changed:
            elements = "element" if changed == 1 else "elements"
            text = f"the kernel wrote to its input: {changed:,} {elements} of {name} changed"
            findings.append(error_finding("store to an input", text, name, first, now.shape))
            now.copy_(then)
    return findings


def error_finding(
    kind: str, text: str, array: str | None = None, at: int = 0, shape: Sequence[int] = ()
) -> Finding:
    """Return an error that was found after the run.

    `at` is the flat index of the element in `array`, which has this shape.
    """
    if not array:
        return Finding(kind, text)
    index = np.unravel_index(at, tuple(shape)) if shape else (at,)
    return Finding(kind, text, array=array, index=tuple(map(int, index)))


def copy_of_start(y: Tensor) -> Tensor:
    """Return a flat copy of y, or of its first part if memory is short."""
    room = (available_bytes(y.device) - (1 << 30)) // y.element_size()
    try:
        return y.flatten()[: max(room, 0)].clone()
    except torch.OutOfMemoryError:
        # The free memory is fragmented.
        return y.flatten()[:0].clone()


def changed_outputs(y: Tensor, first: Tensor) -> tuple[int, int]:
    """Return how many outputs have other bits than the copy, and the flat index of the first."""
    size = CHUNK[y.device.type]
    parts = zip(y.flatten()[: first.numel()].split(size), first.split(size), strict=True)
    return _count(_bits(now) != _bits(then) for now, then in parts)


def _count(masks: Iterable[Tensor]) -> tuple[int, int]:
    """Return how many elements of a tensor's flat pieces are True, and the index of the first.

    The index is -1 if none is True.
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
    """Compare y with its reference, piece by piece.

    An element of y is incorrect if its absolute error exceeds `ELEMENTWISE * bound *
    (rms + |reference|)`. `bound` is the limit of the normwise relative error.

    Attributes
    ----------
    error, bound : the normwise relative error and its limit.
    worst, limit : the absolute error and the limit of the worst output.
    wrong, unwritten : the numbers of incorrect and of unwritten outputs.
    pixels, channels : error over limit: the largest by (p, q), and by (n, k).
    compared : how many outputs were compared, and with what.
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
        # The flat index of the first unwritten output.
        self._first = -1
        # The first incorrect outputs: position, value, reference.
        self._examples: list[tuple[tuple[int, ...], float, float]] = []
        # The largest error over its limit so far.
        self._ratio = -1.0
        N, K, P, Q = self.problem.output_shape
        self._name = self.problem.computation.output
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
        """Whether all outputs were written, none is incorrect, and `error` is within `bound`."""
        return not self.wrong and not self.unwritten and self.error <= self.bound

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields of a `Report` that come from the comparison."""
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
        """The flat index of the first incorrect output, or of the first unwritten one."""
        if self._examples:
            return int(np.ravel_multi_index(self._examples[0][0], self.problem.output_shape))
        return max(self._first, 0)

    def _compare(self) -> str:
        """Compare y with its reference; return as text what was compared with what."""
        total = self.y.numel()
        if not total:
            return f"nothing, because {self._name} has no elements"
        if not self.reference.whole:
            return self._compare_sample()
        pieces = self.reference.pieces
        squares = [self._add(first, piece, self.bound) for first, piece in pieces]
        self.error = self._normwise(sum(squares), total)
        return f"all {total:,} outputs against float64" if total > 1 else "1 output against float64"

    def _compare_sample(self) -> str:
        """Compare a sample with float64, then all outputs with fp32; return that as text."""
        reference = self.reference
        where = reference.where
        expected = reference.values
        sampled = self.y[tuple(where.unbind(1))].double()
        errors, limits = self._errors(sampled, expected, self.bound)
        self.error = self._normwise(float(errors.square().sum()), expected.numel())
        self._nearest(errors, limits)
        loose_bound = self.bound + tolerance("fp32", self.problem.terms)
        for first, piece in reference.approximate():
            self._add(first, piece, loose_bound)
        bad = ~(errors <= limits)
        bad_in_sample = int(bad.sum())
        if bad_in_sample > self.wrong:
            # The bound of the float64 sample is tighter than that of the fp32 comparison.
            self.wrong = bad_in_sample
            self._examples = []
            for i in bad.nonzero().flatten()[:_SHOWN].tolist():
                place = tuple(where[i].tolist())
                self._examples.append((place, float(sampled[i]), float(expected[i])))
        return (
            f"{expected.numel():,} sampled outputs against float64 (all would take too long), "
            f"all {self.y.numel():,} against {reference.rival}"
        )

    def _normwise(self, square: float, count: int) -> float:
        """Return the normwise relative error of `count` outputs from their sum of squared errors."""
        norm = self.reference.rms * math.sqrt(count)
        if square == 0 and not norm:
            return 0.0
        if not norm or not math.isfinite(square):
            return math.inf
        return math.sqrt(square) / norm

    def _errors(self, y: Tensor, expected: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        """Return the absolute errors and their limits.

        Where `expected` is inf or NaN, the error is 0 if y is the same, and inf if it is not.
        """
        errors = (y - expected).abs_()
        not_finite = ~torch.isfinite(expected)
        if not_finite.any():
            same = (y == expected) | (torch.isnan(y) & torch.isnan(expected))
            errors = torch.where(not_finite, torch.where(same, 0.0, math.inf), errors)
            expected = torch.where(not_finite, 0.0, expected)
        return errors, expected.abs().add_(self.reference.rms).mul_(ELEMENTWISE * bound)

    def _add(self, first: int, expected: Tensor, bound: float) -> float:
        """Compare the images from `first` on; return the sum of their squared errors."""
        square = 0.0
        count = len(expected)
        images = slice(first, first + count)
        _, channels, height, width = self.problem.output_shape
        planes = max(1, CHUNK[expected.device.type] // max(count * height * width, 1))
        for k in range(0, channels, planes):
            place = (images, slice(k, k + planes))
            part = expected[:, k : k + planes]
            y = self.y[place].to(part.dtype)
            errors, limits = self._errors(y, part, bound)
            ratios = self._nearest(errors, limits)
            self._pixels = torch.maximum(self._pixels, ratios.amax((0, 1)))
            self._channels[place] = ratios.amax((2, 3)).double()
            # A comparison with NaN is false: an error of NaN exceeds its limit.
            bad = ~(errors <= limits)
            self.wrong += int(bad.sum())
            self._list_examples(bad, y, part, (first, k))
            square += float(errors.square().sum(dtype=torch.float64))
        return square

    def _list_examples(
        self, bad: Tensor, y: Tensor, expected: Tensor, corner: tuple[int, int]
    ) -> None:
        """Add the first incorrect outputs of a piece to the examples, until there are enough.

        `corner` is the image and the channel at which the piece starts.
        """
        left = bad.flatten().view(torch.uint8)
        for _ in range(min(int(bad.sum()), _SHOWN - len(self._examples))):
            index = int(left.argmax())
            left[index] = 0
            at = tuple(map(int, np.unravel_index(index, bad.shape)))
            place = (at[0] + corner[0], at[1] + corner[1], *at[2:])
            self._examples.append((place, float(y[at]), float(expected[at])))

    def _nearest(self, errors: Tensor, limits: Tensor) -> Tensor:
        """Return the errors over their limits, and update `worst` and `limit`.

        NaN counts as larger than any number.
        """
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
        """Return the errors: outputs that were never written, and incorrect outputs."""
        total = self.y.numel()
        findings = []
        if self.unwritten:
            text = f"{counted_outputs(self.unwritten, total, 'was', 'were')} never written"
            findings.append(
                error_finding(
                    "never written", text, self._name, self._first, self.problem.output_shape
                )
            )
        if self.wrong:
            first = (
                "" if self.wrong == len(self._examples) else f"; the first {len(self._examples)}"
            )
            lines = [f"{counted_outputs(self.wrong, total, 'is', 'are')} incorrect{first}:"]
            for place, got, expected in self._examples:
                at = ", ".join(map(str, place))
                symbol = self.problem.computation.symbol
                lines.append(f"  {symbol} = ({at}): got {got:.7g}, expected {expected:.7g}")
            first = self._examples[0][0]
            findings.append(
                Finding("wrong result", "\n".join(lines), array=self._name, index=first)
            )
        return findings

    def patterns(self, precision: str) -> list[str]:
        """Return lines on what the incorrect outputs have in common, or those of a sample."""
        describe = rooms.provided("patterns", "of_outputs")
        if describe is None or not self.y.numel():
            return []
        return describe(self._evidence(precision))

    def _evidence(self, precision: str) -> Evidence:
        """Return the outputs with their correct values: all of them, or a sample."""
        problem = self.problem
        reference = self.reference
        whole = reference.whole and self.y.numel() <= LOOKED_AT
        if whole:
            # A sample of this size has all positions.
            where = sample(problem, self.y.numel(), device=self.y.device)
            expected = torch.cat([piece.flatten() for _, piece in reference.pieces])
        else:
            where = reference.where
            expected = reference.values
        y = self.y[tuple(where.unbind(1))]
        errors, limits = self._errors(y.double(), expected, self.bound)
        unwritten = _bits(y) == _POISON[y.dtype]
        bias = reference.inputs[2]
        values = expected.cpu().numpy()
        usual = [_is_usual(tensor) for tensor in reference.inputs[:2]]

        def expected_at(places: np.ndarray) -> np.ndarray:
            if whole:
                return values[np.ravel_multi_index(tuple(places.T), problem.output_shape)]
            return reference.at(torch.from_numpy(places)).cpu().numpy()

        x, w, _ = reference.inputs
        small = x.numel() + w.numel() <= _MOST_EVIDENCE
        return Evidence(
            problem=problem,
            precision=precision,
            where=where.cpu().numpy(),
            got=y.double().cpu().numpy(),
            expected=values,
            wrong=(~(errors <= limits) | unwritten).cpu().numpy(),
            unwritten=unwritten.cpu().numpy(),
            whole=whole,
            expected_at=expected_at,
            bias=None if bias is None else bias.double().cpu().numpy(),
            x=x.double().cpu().numpy() if small else None,
            w=w.double().cpu().numpy() if small else None,
            x_order=_memory_order(x),
            w_order=_memory_order(w),
            allowed=ELEMENTWISE * self.bound,
            rms=reference.rms,
            usual=all(usual),
        )


def _is_usual(tensor: Tensor) -> bool:
    """Return whether the largest absolute value is ordinary: not inf, NaN, huge, tiny or 0."""
    return tensor.numel() > 0 and 1 / _USUAL < float(tensor.abs().max()) < _USUAL


def _memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor, from the largest stride to the smallest."""
    return tuple(sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis)))


def counted_outputs(count: int, total: int, singular: str, plural: str) -> str:
    """Return "3 of 18 outputs are" or "1 of 18 outputs is"."""
    outputs = "output" if total == 1 else "outputs"
    return f"{count:,} of {total:,} {outputs} {singular if count == 1 else plural}"


def _pooled(errors: Tensor) -> np.ndarray:
    """Return a smaller map with the largest value of each block, so that no large error is lost."""
    pooled = errors.cpu().numpy()
    for axis in (0, 1):
        block = max(1, -(-pooled.shape[axis] // _MAP))
        starts = np.arange(0, pooled.shape[axis], block)
        # The maximum of NaN and a number is NaN: NaN stays visible.
        pooled = np.maximum.reduceat(pooled, starts, axis=axis)
    return pooled
