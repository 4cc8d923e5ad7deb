"""What a kernel is compared with: the float64 truth, positions worth checking, tolerances."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..run.baselines import BASELINES, Baseline, baseline
from ..run.data import Device, Inputs, chunks, full_precision, inputs, match, padded
from ..words.errors import ProblemError
from ..words.problem import Problem

__all__ = [
    "BASELINES", "Baseline", "Inputs", "baseline", "elementwise_bound", "full_precision", "inputs",
    "sample", "tolerance", "truth",
]  # fmt: skip

CHUNK_BYTES = 256 << 20  # temporaries of one step of the truth
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-10}  # tf32: the operands', truncated


def truth(
    problem: Problem,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    where: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the output computed in float64, on x's device, in bounded memory.

    Parameters
    ----------
    where
        Positions (n, k, p, q), an integer tensor (M, 4). None means all of them.

    Returns
    -------
    torch.Tensor
        float64: (N, K, P, Q), or (M,) if `where` is given. The whole output is torch's own
        float64 convolution; single positions are dot products of gathered patches, a second,
        independent way to compute them.
    """
    match(problem, x, w, bias)
    x, w = x.detach(), w.detach()
    if where is not None:
        return _truth_at(problem, x, w, bias, where.to(x.device))
    y = torch.empty(problem.y_shape, dtype=torch.float64, device=x.device)
    w = w.double()
    columns = problem.C * problem.R * problem.S + problem.K  # torch on a CPU goes through im2col
    for images, rows in chunks(problem, CHUNK_BYTES // (8 * columns)):
        y[images, :, rows] = F.conv2d(
            padded(problem, x, images, rows).double(),
            w,
            stride=problem.stride,
            dilation=problem.dilation,
            groups=problem.groups,
        )
    return y if bias is None else y.add_(bias.detach().double().view(1, -1, 1, 1))


def sample(
    problem: Problem, count: int, seed: int = 0, device: Device = "cpu", tile: int = 16
) -> torch.Tensor:
    """Return output positions worth checking, at least `count` of them or all that there are.

    Half of them are drawn where mistakes gather: the first and last elements in memory, the
    image's corners and borders, both sides of tile seams, the first and last n and k. The rest
    are uniform.

    Parameters
    ----------
    tile
        Seams are drawn at multiples of it, in p and q.

    Returns
    -------
    torch.Tensor
        int64 (M, 4) of (n, k, p, q), in memory order, without duplicates; the same for the same
        seed on any device.
    """
    N, K, P, Q = problem.y_shape
    total = N * K * P * Q
    if count >= total:
        return _unravel(torch.arange(total), problem).to(device)
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> torch.Tensor:
        return torch.randint(high, (size,), generator=generator)

    def ends(high: int, size: int) -> torch.Tensor:
        return draw(2, size) * (high - 1)

    def seams(high: int, size: int) -> torch.Tensor:
        return (draw(high // tile + 1, size) * tile - draw(2, size)).clamp_(0, high - 1)

    def flat(n: torch.Tensor, k: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return ((n * K + k) * P + p) * Q + q

    part = max(1, count // 16)

    def anywhere() -> list[torch.Tensor]:
        return [draw(high, part) for high in (N, K, P, Q)]

    edge = torch.arange(min(part, total))
    chosen = [edge, total - 1 - edge]
    for axes, place in (
        ((2, 3), ends),  # corners of the image
        ((2,), ends),  # top and bottom rows
        ((3,), ends),  # left and right columns
        ((2,), seams),
        ((3,), seams),
        ((0, 1), ends),  # first and last image and filter
    ):
        position = anywhere()
        for axis in axes:
            position[axis] = place((N, K, P, Q)[axis], part)
        chosen.append(flat(*position))
    indices = torch.cat(chosen).unique()
    if total <= 4 * count:  # dense: drawing blindly would meet the same ones over and over
        free = torch.ones(total, dtype=torch.bool)
        free[indices] = False
        rest = free.nonzero().flatten()
        order = torch.randperm(len(rest), generator=generator)
        indices = torch.cat([indices, rest[order[: max(0, count - len(indices))]]])
    while len(indices) < count:
        indices = torch.cat([indices, draw(total, count - len(indices))]).unique()
    return _unravel(indices.sort().values, problem).to(device)


def tolerance(precision: str, gemm_k: int) -> float:
    """Return the largest normwise relative error, ||y - truth|| / ||truth||, of a right result.

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

    Parameters
    ----------
    precision
        "fp32" or "tf32".
    gemm_k
        The number of terms of one output.

    Raises
    ------
    ProblemError
        There is no such precision.
    """
    accumulation = 4 * 0.29 * math.sqrt(max(gemm_k, 1)) * UNIT_ROUNDOFF["fp32"]
    if precision == "fp32":
        return max(2e-6, accumulation)
    if precision == "tf32":
        return 2 * 0.79 * UNIT_ROUNDOFF["tf32"] + accumulation
    raise ProblemError(f"no precision {precision!r}; there are {', '.join(UNIT_ROUNDOFF)}")


def elementwise_bound(
    problem: Problem,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    precision: str = "fp32",
    where: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the most that each output of a right kernel can be off, whatever the data.

    |y - truth| <= gamma (|x| * |w| + |bias|), gamma = m u / (1 - m u) with m = gemm_k + 2
    roundings (Higham, section 3.1), plus 2 u + u^2 for the operands in tf32. It holds for direct
    and matrix-product algorithms in any order of summation, not for Winograd's or an FFT's.
    Costs as much as `truth`; arguments and shape are as there.
    """
    if precision not in UNIT_ROUNDOFF:
        tolerance(precision, 1)  # raises
    roundings = (problem.gemm_k + 2) * UNIT_ROUNDOFF["fp32"]
    gamma = roundings / (1 - roundings)
    if precision == "tf32":
        gamma += (1 + gamma) * (2 * UNIT_ROUNDOFF["tf32"] + UNIT_ROUNDOFF["tf32"] ** 2)
    return gamma * truth(problem, x.abs(), w.abs(), None if bias is None else bias.abs(), where)


def _truth_at(
    problem: Problem,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    where: torch.Tensor,
) -> torch.Tensor:
    """Return the float64 outputs at positions (M, 4): gathered patches times their filters."""
    device, per_group = x.device, problem.C // problem.groups
    x, w = x.contiguous().view(-1), w.reshape(problem.K, -1).double()
    c, r, s = (torch.arange(size, device=device) for size in (per_group, problem.R, problem.S))
    c, r, s = c.view(1, -1, 1, 1), r.view(1, 1, -1, 1), s.view(1, 1, 1, -1)
    values = torch.empty(len(where), dtype=torch.float64, device=device)
    step = max(1, CHUNK_BYTES // (40 * problem.gemm_k))  # 40 bytes of temporaries an element
    for start in range(0, len(where), step):
        n, k, p, q = where[start : start + step].long().view(-1, 4, 1, 1, 1).unbind(1)
        channel = k // (problem.K // problem.groups) * per_group + c
        h = p * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
        column = q * problem.stride[1] - problem.padding[1] + s * problem.dilation[1]
        inside = ((h >= 0) & (h < problem.H)) & ((column >= 0) & (column < problem.W))
        h, column = h.clamp(0, problem.H - 1), column.clamp(0, problem.W - 1)
        index = ((n * problem.C + channel) * problem.H + h) * problem.W + column
        patch = x[index].double().masked_fill_(~inside, 0)
        filters = w[k.flatten()]
        dots = patch.view(len(filters), -1).mul_(filters).sum(1)
        values[start : start + step] = dots if bias is None else dots + bias[k.flatten()].double()
    return values


def _unravel(index: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Return (M, 4) positions (n, k, p, q) of offsets into the contiguous output."""
    _, K, P, Q = problem.y_shape
    row = index // Q
    image = row // P
    return torch.stack((image // K, image % K, row % P, index % Q), dim=1)
