"""Compute the reference of a check: correct outputs in float64, sampled positions, tolerances.

`full_precision` can be imported from here, too: notebooks do.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ProblemError
from ..kernel.data import Device, Inputs, chunks, full_precision, inputs, match, padded  # noqa: F401
from ..kernel.libraries import baseline
from ..machine.device import available_bytes
from ..problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..problem.format import FLOAT32, Format
from ..problem.problem import Problem
from .gradient_truth import (
    data_gradient,
    data_gradient_at,
    weight_gradient,
    weight_gradient_at,
)

# Up to this many multiply-adds (about a second's work) and outputs, all outputs are computed in
# float64. For a larger problem a sample of them is.
TRUTH_MACS = {"cpu": 2_000_000_000, "cuda": 50_000_000_000}
TRUTH_OUTPUTS = {"cpu": 1 << 26, "cuda": 1 << 27}
# The size of such a sample.
SAMPLED = 100_000
# The smallest such sample, if each output is a long sum; a gathered product takes about so many times
# as long as one of a convolution.
_LEAST_SAMPLED = 64
_GATHERED = 4
# The number of outputs that are compared at once.
CHUNK = {"cpu": 1 << 22, "cuda": 1 << 25}
# An x with more elements is never read as a whole.
_MANY = 1 << 31
# The last reference is kept if it takes at most this many bytes.
_KEPT_BYTES = 2 << 30
# All of so few outputs may happen to be near 0. Then rms is what random signs would give.
FEW = 256
# All of so few outputs may have the largest error that a single rounding can have.
FEW_ROUNDINGS = 128
# The most bytes of temporaries in one step of the float64 computation.
CHUNK_BYTES = 256 << 20
# The largest relative error of one rounding. Operands are truncated in tf32; tensors are rounded
# to nearest in bf16 and fp16.
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-10, "bf16": 2.0**-8, "fp16": 2.0**-11}


def truth(
    problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None = None, where: Tensor | None = None
) -> Tensor:
    """Return the output in float64, computed on the inputs' device with a bounded amount of memory.

    Without `where` the result is the whole output with shape (N, K, P, Q), from torch's float64
    convolution. `where` is an integer tensor (M, 4) of positions (n, k, p, q). Then the result has
    shape (M,), and each output is a dot product of a gathered patch and a filter: an independent
    way to compute it. If the problem has a ReLU, it is applied last.

    For a gradient, `x` and `w` are its two inputs, and the result is dx or dw.
    """
    if not problem.computation.is_forward:
        match(problem, x, w, bias)
        return _gradient(problem, x.detach(), w.detach(), where)
    if problem.relu:
        return truth(dataclasses.replace(problem, relu=False), x, w, bias, where).relu_()
    match(problem, x, w, bias)
    if where is None and x.numel() > _MANY:
        # Problems with such an x have few outputs, which read few of its elements.
        where = sample(problem, math.prod(problem.output_shape), device=x.device)
        return truth(problem, x, w, bias, where).view(problem.output_shape)
    x = x.detach()
    w = w.detach()
    bias = None if bias is None else bias.detach().double()
    if where is not None:
        return _truth_at(problem, x, w, bias, where.to(x.device))
    w = w.double()
    y = torch.empty(problem.output_shape, dtype=torch.float64, device=x.device)
    options = (None, problem.stride, 0, problem.dilation, problem.groups)
    # torch uses im2col on a CPU: that is the memory of one output position.
    columns = problem.C * problem.R * problem.S + problem.K
    for images, rows in chunks(problem, CHUNK_BYTES // (8 * columns)):
        part = padded(problem, x, images, rows).double()
        y[images, :, rows] = F.conv2d(part, w, *options)
    return y if bias is None else y.add_(bias.view(1, -1, 1, 1))


def _gradient(problem: Problem, first: Tensor, second: Tensor, where: Tensor | None) -> Tensor:
    """Return a gradient in float64: all of it, or at some positions."""
    whole, at = _GRADIENTS[problem.computes]
    if where is None:
        return whole(problem, first, second)
    return at(problem, first, second, where.to(first.device))


_GRADIENTS = {
    DATA_GRADIENT.name: (data_gradient, data_gradient_at),
    WEIGHT_GRADIENT.name: (weight_gradient, weight_gradient_at),
}


def _truth_at(problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None, where: Tensor) -> Tensor:
    """Return the float64 outputs at some positions, as dot products of gathered patches."""
    per_group = problem.C // problem.groups
    c, r, s = (torch.arange(size, device=x.device) for size in (per_group, problem.R, problem.S))
    c = c.view(-1, 1, 1)
    r = r.view(-1, 1)
    values = torch.empty(len(where), dtype=torch.float64, device=x.device)
    # Each element of a patch needs 40 bytes of temporaries.
    step = max(1, CHUNK_BYTES // (40 * problem.terms))
    for start in range(0, len(where), step):
        n, k, p, q = where[start : start + step].long().view(-1, 4, 1, 1, 1).unbind(1)
        channel = k // (problem.K // problem.groups) * per_group + c
        h = p * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
        column = q * problem.stride[1] - problem.padding[1] + s * problem.dilation[1]
        inside = ((h >= 0) & (h < problem.H)) & ((column >= 0) & (column < problem.W))
        h = h.clamp(0, problem.H - 1)
        column = column.clamp(0, problem.W - 1)
        # No copy in another layout: x may have billions of elements.
        patch = x[n, channel, h, column].double().masked_fill_(~inside, 0)
        k = k.flatten()
        dots = patch.mul_(w[k].double()).flatten(1).sum(1)
        values[start : start + step] = dots if bias is None else dots + bias[k]
    return values


def places(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """Return for each element's number in a tensor its indices, such as (n, k, p, q), as a row.

    torch.unravel_index does the same, but imports sympy first, which takes half a second.
    """
    return torch.from_numpy(np.stack(np.unravel_index(numbers.numpy(), tuple(shape)), axis=1))


def sample(problem: Problem, count: int, seed: int = 0, device: Device = "cpu") -> Tensor:
    """Return at least `count` output positions to check, or all positions if there are few.

    About half of them are where mistakes are frequent: the first and last elements in memory,
    corners and borders of the images, both sides of the boundaries of tiles of 16, the first and
    the last n and k. The others are uniformly random. The result is an int64 tensor (M, 4) of
    (n, k, p, q) in memory order, without duplicates. It depends on the seed, not on the device.
    """
    shape = problem.output_shape
    total = math.prod(problem.output_shape)
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), generator=generator)

    def ends(high: int, size: int) -> Tensor:
        return draw(2, size) * (high - 1)

    def seams(high: int, size: int) -> Tensor:
        return (draw(high // 16 + 1, size) * 16 - draw(2, size)).clamp_(0, high - 1)

    # With few positions, random draws would repeat the same ones: take all.
    if total <= 2 * count:
        indices = torch.arange(total)
        return places(indices, shape).to(device)
    part = max(1, count // 16)
    edge = torch.arange(min(part, total))
    chosen = [edge, total - 1 - edge]
    # Corners; top and bottom; left and right; tile boundaries in p, and in q; first and last n, k.
    for axes, place in (
        ((2, 3), ends),
        ((2,), ends),
        ((3,), ends),
        ((2,), seams),
        ((3,), seams),
        ((0, 1), ends),
    ):
        index = torch.zeros(part, dtype=torch.int64)
        for axis, size in enumerate(shape):
            coordinate = place if axis in axes else draw
            index = index * size + coordinate(size, part)
        chosen.append(index)
    indices = torch.cat(chosen).unique()
    while len(indices) < count:
        indices = torch.cat([indices, draw(total, count - len(indices))]).unique()
    return places(indices, shape).to(device)


def tolerance(precision: str, gemm_k: int, outputs: float = math.inf) -> float:
    """Return the largest normwise relative error that a correct result may have.

    This error is ||y - reference|| / ||reference||, with the 2-norm. k is `gemm_k`, the number of
    terms of a sum: C / groups * R * S.

    fp32: u is 2^-24. The error of a sum of k terms in any order is at most k u. But roundings are
    nearly independent, so it grows like sqrt(k) u (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., sections 2.8 and 4.2). Add terms of random sign one after the other: the
    i-th partial sum is about sqrt(i) in size, and one rounding has a root mean square of 0.41 u.
    That gives 0.41 sqrt(k / 2) u = 0.29 sqrt(k) u. The bound is four times that, and at least 2e-6,
    which Winograd's F(4x4, 3x3) needs.

    tf32: operands keep 11 significant bits. Their rounding dominates and does not depend on k. The
    relative error of a product (root mean square) is 2.9e-4 if both operands are rounded to
    nearest. It is 7.7e-4 if both are truncated, as the hardware does with plain fp32 operands. The
    bound is twice the latter, plus the fp32 term for the accumulation. bf16 (2.3e-3) exceeds it.

    bf16: tensors have 8 significant bits, and products are exact in fp32. The reference uses x and
    w as they are stored. So only y's rounding remains: 0.41 u = 1.6e-3 (u = 2^-8). The bound is
    twice that, plus the fp32 term. Sums kept in bf16 exceed it from k = 16 on. fp16 is the same
    with 11 bits (u = 2^-11); an overflow beyond 65504 is an error.

    With few `outputs` the roundings do not average: all of them may be large. So below
    `FEW_ROUNDINGS` outputs the bound uses the largest error of a single rounding: u, or 2 u for
    tf32's two operands. For M = 128 outputs the mean of their squared roundings exceeds (0.82 u)^2
    with a probability below exp(-M / 6) = 5e-10, by Hoeffding's inequality: each square is in
    [0, u^2], their mean is (0.41 u)^2, and y's normally distributed sizes are the weights.

    Parameters
    ----------
    precision : the class: "fp32", "tf32", "bf16" or "fp16".
    gemm_k : the number of terms of a sum.
    outputs : the number of outputs.

    Raises
    ------
    ProblemError
        There is no such precision.

    Examples
    --------
    >>> tolerance("fp32", gemm_k=576)
    2e-06
    """
    accumulation = 4 * 0.29 * math.sqrt(max(gemm_k, 1)) * UNIT_ROUNDOFF["fp32"]
    few = outputs < FEW_ROUNDINGS
    if precision == "fp32":
        return max(2e-6, accumulation)
    if precision == "tf32":
        return 2 * (1 if few else 0.79) * UNIT_ROUNDOFF["tf32"] + accumulation
    if precision in ("bf16", "fp16"):
        return (1 if few else 2 * 0.41) * UNIT_ROUNDOFF[precision] + accumulation
    raise ProblemError(f"no precision {precision!r}: choose one of {', '.join(UNIT_ROUNDOFF)}")


class Reference:
    """Hold a problem's inputs and the correct outputs.

    Attributes
    ----------
    problem, inputs : the problem, and its x, w and bias.
    whole : whether all outputs are computed in float64, because that takes about a second at most.
        If not, there are at least `SAMPLED` outputs in float64 (`where`, `values`), and all
        outputs in fp32 (`approximate`).
    pieces : if `whole`, for each piece its first image and its outputs in float64.
    rms : the root mean square of the float64 outputs, before the ReLU.
    """

    def __init__(self, problem: Problem, inputs: Inputs, seed: int) -> None:
        self.problem = problem
        self.inputs = inputs
        self._seed = seed
        kind = inputs[0].device.type
        outputs = math.prod(problem.output_shape)
        self.whole = problem.macs <= TRUTH_MACS[kind] and outputs <= TRUTH_OUTPUTS[kind]
        self.pieces: list[tuple[int, Tensor]] = []
        self.rms = 0.0
        if not outputs:
            return
        # Rounding errors happen in the sum, so rms is that of the sums, without the ReLU. Outputs
        # are compared after the ReLU, which never makes an error larger.
        sums = dataclasses.replace(problem, relu=False)
        if self.whole:
            for first, part, tensors in self._parts(sums):
                self.pieces.append((first, truth(part, *tensors)))
            outputs_before_relu = [piece for _, piece in self.pieces]
        else:
            self.values = truth(sums, *inputs, where=self.where)
            outputs_before_relu = [self.values]
        self.rms = _root_mean_square(outputs_before_relu)
        if outputs <= FEW:
            squares = [None if part is None else part.double().square() for part in inputs]
            energy = truth(sums, *squares).double()
            self.rms = max(self.rms, math.sqrt(float(energy[torch.isfinite(energy)].mean())))
        if problem.relu:
            for piece in outputs_before_relu:
                piece.relu_()

    @functools.cached_property
    def where(self) -> Tensor:
        """The sampled positions, an int64 tensor (M, 4) of (n, k, p, q)."""
        device = self.inputs[0].device
        # An element of a weight gradient is a sum over all pixels, so fewer of them are computed.
        affordable = TRUTH_MACS[device.type] // (_GATHERED * self.problem.terms)
        count = min(SAMPLED, max(_LEAST_SAMPLED, affordable))
        return sample(self.problem, count, self._seed, device)

    @functools.cached_property
    def values(self) -> Tensor:
        """The correct outputs at `where`, float64, shape (M,)."""
        return self.at(self.where)

    def at(self, where: Tensor) -> Tensor:
        """Return the correct outputs in float64 at positions (M, 4), with shape (M,)."""
        return truth(self.problem, *self.inputs, where=where)

    @property
    def rival(self) -> str:
        """The name of the baseline behind `approximate`."""
        return "cudnn:fp32" if self.inputs[0].device.type == "cuda" else "torch:cpu"

    def approximate(self) -> Iterator[tuple[int, Tensor]]:
        """Yield for each piece its first image, and its outputs in fp32 by the baseline `rival`."""
        rival = baseline(self.rival, self.inputs[0].device)
        for first, part, tensors in self._parts(self.problem):
            floats = [None if tensor is None else tensor.float() for tensor in tensors]
            launch = rival.prepare(part, *floats)
            launch()
            yield first, launch.y

    def _parts(self, problem: Problem) -> Iterator[tuple[int, Problem, Inputs]]:
        """Yield for each piece, some images of the problem: first image, problem, tensors.

        A weight gradient is one piece.
        """
        x, w, bias = self.inputs
        if problem.computes == WEIGHT_GRADIENT.name:
            # Each of its elements is a sum over all images.
            yield 0, problem, self.inputs
            return
        images = max(1, CHUNK[x.device.type] // math.prod(problem.output_shape[1:]))
        for first in range(0, len(x), images):
            part = x[first : first + images]
            yield first, dataclasses.replace(problem, N=len(part)), (part, w, bias)


def _root_mean_square(pieces: list[Tensor]) -> float:
    """Return the root mean square of the finite elements."""
    finite = [piece[torch.isfinite(piece)] for piece in pieces]
    square = sum(float(piece.square().sum()) for piece in finite)
    return math.sqrt(square / max(sum(map(torch.numel, finite)), 1))


@functools.lru_cache(maxsize=1)
def known(problem: Problem, seed: int, device: torch.device, format: Format = FLOAT32) -> Reference:
    """Return the reference of a problem on normal data; the last one is kept for the next kernel."""
    return Reference(problem, inputs(problem, seed, device, format=format), seed)


forget = known.cache_clear


def forget_if_large(reference: Reference) -> None:
    """Forget a reference that takes more than 2 GiB."""
    tensors = [*reference.inputs, *(piece for _, piece in reference.pieces)]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > _KEPT_BYTES:
        forget()


def make_room(problem: Problem, device: torch.device) -> None:
    """Forget the last reference if less than twice a problem's memory is free."""
    if available_bytes(device) < 2 * problem.min_bytes:
        forget()
