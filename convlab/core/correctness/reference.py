"""The reference of a check: the float64 truth, positions worth checking, tolerances.

Notebooks import `full_precision` from here, too.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ProblemError
from ..kernel.data import Device, Inputs, chunks, full_precision, inputs, match, padded  # noqa: F401
from ..kernel.libraries import baseline
from ..machine.device import available_bytes
from ..problem.format import FLOAT32, Format
from ..problem.problem import Problem

# The most multiply-adds (about a second's) and outputs of a whole float64 truth.
TRUTH_MACS = {"cpu": 2_000_000_000, "cuda": 50_000_000_000}
TRUTH_OUTPUTS = {"cpu": 1 << 26, "cuda": 1 << 27}
# Of more outputs a sample of at least so many is compared with float64.
SAMPLED = 100_000
# Outputs that are compared at once.
CHUNK = {"cpu": 1 << 22, "cuda": 1 << 25}
# An x of more elements is not read as a whole.
_MANY = 1 << 31
# The last reference is kept if it takes at most so many bytes.
_KEPT_BYTES = 2 << 30
# So few outputs may cancel to nearly nothing. Then rms is the value that random signs would give.
FEW = 256
# So few outputs may all have an error as large as the largest of a single rounding.
FEW_ROUNDINGS = 128
# The temporaries of one step of the truth.
CHUNK_BYTES = 256 << 20
# In tf32 the operands are truncated; in bf16 and fp16 the tensors are rounded.
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-10, "bf16": 2.0**-8, "fp16": 2.0**-11}


def truth(
    problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None = None, where: Tensor | None = None
) -> Tensor:
    """Compute the output in float64, on x's device, in bounded memory.

    The whole output, (N, K, P, Q), is torch's own float64 convolution. At positions `where`, an
    integer tensor (M, 4) of (n, k, p, q), it is (M,) dot products of gathered patches, which is a
    second, independent way to compute it. The ReLU comes last.
    """
    if problem.relu:
        return truth(dataclasses.replace(problem, relu=False), x, w, bias, where).relu_()
    match(problem, x, w, bias)
    if where is None and x.numel() > _MANY:
        # The outputs of such a problem read few elements of x.
        where = sample(problem, math.prod(problem.y_shape), device=x.device)
        return truth(problem, x, w, bias, where).view(problem.y_shape)
    x = x.detach()
    w = w.detach().double()
    bias = None if bias is None else bias.detach().double()
    if where is not None:
        return _truth_at(problem, x, w, bias, where.to(x.device))
    y = torch.empty(problem.y_shape, dtype=torch.float64, device=x.device)
    options = (None, problem.stride, 0, problem.dilation, problem.groups)
    # On a CPU torch goes through im2col.
    columns = problem.C * problem.R * problem.S + problem.K
    for images, rows in chunks(problem, CHUNK_BYTES // (8 * columns)):
        part = padded(problem, x, images, rows).double()
        y[images, :, rows] = F.conv2d(part, w, *options)
    return y if bias is None else y.add_(bias.view(1, -1, 1, 1))


def _truth_at(problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None, where: Tensor) -> Tensor:
    """Return the truth at some positions, as dot products of gathered patches."""
    per_group = problem.C // problem.groups
    x = x.contiguous().view(-1)
    w = w.reshape(problem.K, -1)
    c, r, s = (torch.arange(size, device=x.device) for size in (per_group, problem.R, problem.S))
    c = c.view(-1, 1, 1)
    r = r.view(-1, 1)
    values = torch.empty(len(where), dtype=torch.float64, device=x.device)
    # There are 40 bytes of temporaries for each element of a patch.
    step = max(1, CHUNK_BYTES // (40 * problem.gemm_k))
    for start in range(0, len(where), step):
        n, k, p, q = where[start : start + step].long().view(-1, 4, 1, 1, 1).unbind(1)
        channel = k // (problem.K // problem.groups) * per_group + c
        h = p * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
        column = q * problem.stride[1] - problem.padding[1] + s * problem.dilation[1]
        inside = ((h >= 0) & (h < problem.H)) & ((column >= 0) & (column < problem.W))
        h = h.clamp(0, problem.H - 1)
        column = column.clamp(0, problem.W - 1)
        index = ((n * problem.C + channel) * problem.H + h) * problem.W + column
        patch = x[index].double().masked_fill_(~inside, 0)
        k = k.flatten()
        dots = patch.flatten(1).mul_(w[k]).sum(1)
        values[start : start + step] = dots if bias is None else dots + bias[k]
    return values


def sample(problem: Problem, count: int, seed: int = 0, device: Device = "cpu") -> Tensor:
    """Return output positions worth checking: at least `count` of them, or all.

    Half of them are drawn where mistakes are frequent: the first and last elements in memory, the
    image's corners and borders, both sides of the seams of tiles of 16, the first and last n and
    k. The rest are uniform. The result is an int64 tensor (M, 4) of (n, k, p, q), in memory order,
    without duplicates. It is the same for the same seed on any device.
    """
    shape = problem.y_shape
    total = math.prod(problem.y_shape)
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), generator=generator)

    def ends(high: int, size: int) -> Tensor:
        return draw(2, size) * (high - 1)

    def seams(high: int, size: int) -> Tensor:
        return (draw(high // 16 + 1, size) * 16 - draw(2, size)).clamp_(0, high - 1)

    # Random draws from few positions would repeat the same ones.
    if total <= 2 * count:
        indices = torch.arange(total)
        return torch.stack(torch.unravel_index(indices, shape), dim=1).to(device)
    part = max(1, count // 16)
    edge = torch.arange(min(part, total))
    chosen = [edge, total - 1 - edge]
    # The image's corners, top and bottom, left and right; seams of rows and columns; n and k.
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
    return torch.stack(torch.unravel_index(indices, shape), dim=1).to(device)


def tolerance(precision: str, gemm_k: int, outputs: float = math.inf) -> float:
    """Return the largest normwise relative error, ||y - truth|| / ||truth||, of a correct result.

    fp32: the error of a sum of k terms in any order is bounded by k u (u = 2^-24), but roundings
    are nearly independent and it grows like sqrt(k) u (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., sections 2.8 and 4.2). For terms of random sign, summed one
    after the other, partial sums grow like sqrt(i), which gives 0.41 sqrt(k / 2) u = 0.29 sqrt(k)
    u, 0.41 u being the root mean square of one rounding. The bound is four times that, and at
    least 2e-6, which leaves room for Winograd's F(4x4, 3x3).

    tf32: operands keep 11 significant bits. Their rounding dominates and does not depend on k:
    a product's relative error is 2.9e-4 (root mean square) if both are rounded to nearest and
    7.7e-4 if both are truncated, as the hardware does with plain fp32 operands; the bound is
    twice the latter, plus the fp32 term for the accumulation. bf16 (2.3e-3) fails it.

    bf16: tensors have 8 significant bits, and their products are exact in fp32. The truth is
    computed from x and w as they are stored, so that only y's rounding remains, 0.41 u = 1.6e-3
    (u = 2^-8). The bound is twice that, plus the fp32 term. Sums kept in bf16 fail it from k = 16
    on. fp16 is the same with 11 bits (u = 2^-11); an overflow beyond 65504 is an error.

    Few `outputs` do not average: their roundings may all be among the larger ones. So below
    `FEW_ROUNDINGS` outputs the bound is the largest error of a single rounding, u, and 2 u for
    tf32's two operands. (Take M squares of roundings, in [0, u^2] and of mean (0.41 u)^2. By
    Hoeffding's inequality, with y's normal sizes as weights, their mean exceeds (0.82 u)^2 with a
    probability below exp(-M / 6), which is 5e-10 for M = 128.)

    Raises ProblemError if there is no such precision.
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
    """A problem's data, and the correct outputs for it.

    `whole` is true where all outputs in float64 take about a second. Otherwise there is a
    stratified sample of at least `SAMPLED` outputs in float64, and all outputs in fp32, by cuDNN on
    a GPU and by torch on the CPU (`approximate`).

    Attributes
    ----------
    pieces : if `whole`, the first image of each piece, and all its outputs.
    rms : the root mean square of the float64 outputs, before the ReLU.
    """

    def __init__(self, problem: Problem, inputs: Inputs, seed: int) -> None:
        self.problem = problem
        self.inputs = inputs
        self._seed = seed
        kind = inputs[0].device.type
        outputs = math.prod(problem.y_shape)
        self.whole = problem.macs <= TRUTH_MACS[kind] and outputs <= TRUTH_OUTPUTS[kind]
        self.pieces: list[tuple[int, Tensor]] = []
        self.rms = 0.0
        if not outputs:
            return
        # An error is one of the sum before the ReLU, so it is judged by the size of the sum. An
        # output is judged after the ReLU: an error cannot lift it above 0 by more than itself.
        sums = dataclasses.replace(problem, relu=False)
        if self.whole:
            for first, part, tensors in self._parts(sums):
                self.pieces.append((first, truth(part, *tensors)))
            known = [piece for _, piece in self.pieces]
        else:
            self.values = truth(sums, *inputs, where=self.where)
            known = [self.values]
        self.rms = _root_mean_square(known)
        if outputs <= FEW:
            squares = [None if part is None else part.double().square() for part in inputs]
            energy = truth(sums, *squares).double()
            self.rms = max(self.rms, math.sqrt(float(energy[torch.isfinite(energy)].mean())))
        if problem.relu:
            for piece in known:
                piece.relu_()

    @functools.cached_property
    def where(self) -> Tensor:
        """Positions of a sample of the outputs."""
        return sample(self.problem, SAMPLED, self._seed, self.inputs[0].device)

    @functools.cached_property
    def values(self) -> Tensor:
        """The correct outputs at `where`."""
        return self.at(self.where)

    def at(self, where: Tensor) -> Tensor:
        """Return the correct outputs at some positions (M, 4)."""
        return truth(self.problem, *self.inputs, where=where)

    @property
    def rival(self) -> str:
        """The name of the baseline that `approximate` uses."""
        return "cudnn:fp32" if self.inputs[0].device.type == "cuda" else "torch:cpu"

    def approximate(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (first image, outputs in fp32), piece by piece."""
        rival = baseline(self.rival, self.inputs[0].device)
        for first, part, tensors in self._parts(self.problem):
            floats = [None if tensor is None else tensor.float() for tensor in tensors]
            launch = rival.prepare(part, *floats)
            launch()
            yield first, launch.y

    def _parts(self, problem: Problem) -> Iterator[tuple[int, Problem, Inputs]]:
        """Yield pieces of some images: the first image, the piece as a problem, its tensors."""
        x, w, bias = self.inputs
        images = max(1, CHUNK[x.device.type] // math.prod(problem.y_shape[1:]))
        for first in range(0, len(x), images):
            part = x[first : first + images]
            yield first, dataclasses.replace(problem, N=len(part)), (part, w, bias)


def _root_mean_square(pieces: list[Tensor]) -> float:
    """Return the root mean square of the finite numbers."""
    finite = [piece[torch.isfinite(piece)] for piece in pieces]
    square = sum(float(piece.square().sum()) for piece in finite)
    return math.sqrt(square / max(sum(map(torch.numel, finite)), 1))


@functools.lru_cache(maxsize=1)
def known(problem: Problem, seed: int, device: torch.device, format: Format = FLOAT32) -> Reference:
    """Return the reference of a problem on fresh data; the last one is kept for the next kernel."""
    return Reference(problem, inputs(problem, seed, device, format=format), seed)


forget = known.cache_clear


def forget_if_large(reference: Reference) -> None:
    """Do not keep a reference that takes much memory."""
    tensors = [*reference.inputs, *(piece for _, piece in reference.pieces)]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > _KEPT_BYTES:
        forget()


def make_room(problem: Problem, device: torch.device) -> None:
    """Forget the last reference unless twice a problem's memory is free."""
    if available_bytes(device) < 2 * problem.min_bytes:
        forget()
