"""Compute the two gradients of a convolution in float64, by their own sums.

No derivative of code that is checked is used. A whole data gradient comes from torch's transposed
convolution, and a whole weight gradient is a matrix product for each tap, over the pixels that the
tap reads. At single positions both are sums of gathered products: an independent way.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..problem.problem import Problem

# The most bytes of temporaries in one step.
CHUNK_BYTES = 256 << 20


def data_gradient(problem: Problem, dy: Tensor, w: Tensor) -> Tensor:
    """Return dx in float64, shape (N, C, H, W), from dy (N, K, P, Q) and w (K, C/groups, R, S)."""
    dx = torch.empty(problem.output_shape, dtype=torch.float64, device=dy.device)
    w = w.double()
    # torch needs the products of all taps of an image at once.
    columns = problem.C * problem.R * problem.S * problem.P * problem.Q
    images = max(1, CHUNK_BYTES // (8 * max(columns, 1)))
    for n in range(0, problem.N, images):
        dx[n : n + images] = F.conv_transpose2d(
            dy[n : n + images].double(),
            w,
            None,
            problem.stride,
            problem.padding,
            problem.output_padding,
            problem.groups,
            problem.dilation,
        )
    return dx


def weight_gradient(problem: Problem, x: Tensor, dy: Tensor) -> Tensor:
    """Return dw in float64, shape (K, C/groups, R, S), from x (N, C, H, W) and dy (N, K, P, Q).

    An element of dy that a tap multiplies with padding is left out: an inf there must not become NaN.
    """
    groups = problem.groups
    filters = problem.K // groups
    channels = problem.C // groups
    dw = torch.zeros(
        (groups, filters, channels, problem.R, problem.S), dtype=torch.float64, device=x.device
    )
    per_image = 8 * (problem.C + problem.K) * problem.P * problem.Q
    images = max(1, CHUNK_BYTES // max(per_image, 1))
    for n in range(0, problem.N, images):
        part_x = x[n : n + images].double().unflatten(1, (groups, channels))
        part_dy = dy[n : n + images].double().unflatten(1, (groups, filters))
        for r in range(problem.R):
            for s in range(problem.S):
                rows, x_rows = _reached(problem, 0, r)
                columns, x_columns = _reached(problem, 1, s)
                left = part_dy[..., rows, columns].flatten(3)
                right = part_x[..., x_rows, x_columns].flatten(3)
                dw[..., r, s] += torch.einsum("ngkp,ngcp->gkc", left, right)
    return dw.flatten(0, 1)


def _reached(problem: Problem, i: int, tap: int) -> tuple[slice, slice]:
    """Return the outputs along a dimension for which a tap reads x, and where it reads."""
    size = (problem.H, problem.W)[i]
    outputs = (problem.P, problem.Q)[i]
    stride = problem.stride[i]
    # Output p reads x at p * stride + shift.
    shift = tap * problem.dilation[i] - problem.padding[i]
    first = max(0, -(shift // stride))
    last = min(outputs - 1, (size - 1 - shift) // stride)
    count = max(last - first + 1, 0)
    start = first * stride + shift if count else 0
    end = start + (count - 1) * stride + 1 if count else 0
    return slice(first, first + count), slice(start, end, stride)


def data_gradient_at(problem: Problem, dy: Tensor, w: Tensor, where: Tensor) -> Tensor:
    """Return dx in float64 at positions (M, 4) of (n, c, h, w), with shape (M,)."""
    filters = problem.K // problem.groups
    channels = problem.C // problem.groups
    k, r, s = (torch.arange(size, device=dy.device) for size in (filters, problem.R, problem.S))
    k = k.view(-1, 1, 1)
    r = r.view(-1, 1)
    values = torch.empty(len(where), dtype=torch.float64, device=dy.device)
    # Each product needs about 60 bytes of temporaries.
    step = max(1, CHUNK_BYTES // (60 * filters * problem.R * problem.S))
    for start in range(0, len(where), step):
        n, c, h, column = where[start : start + step].long().view(-1, 4, 1, 1, 1).unbind(1)
        row = h + problem.padding[0] - r * problem.dilation[0]
        column = column + problem.padding[1] - s * problem.dilation[1]
        p, has_p = _divided(row, problem.stride[0], problem.P)
        q, has_q = _divided(column, problem.stride[1], problem.Q)
        own_k = c // channels * filters + k
        # No copies in another layout: a tensor may have billions of elements.
        products = dy[n, own_k, p, q].double() * w[own_k, c % channels, r, s].double()
        values[start : start + step] = products.masked_fill_(~(has_p & has_q), 0).flatten(1).sum(1)
    return values


def _divided(position: Tensor, stride: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Return the output that reads a padded position with its first tap, and whether there is one."""
    output = torch.div(position, stride, rounding_mode="floor")
    exists = (output * stride == position) & (output >= 0) & (output < outputs)
    return output.clamp(0, outputs - 1), exists


def weight_gradient_at(problem: Problem, x: Tensor, dy: Tensor, where: Tensor) -> Tensor:
    """Return dw in float64 at positions (M, 4) of (k, c, r, s), with shape (M,)."""
    filters = problem.K // problem.groups
    channels = problem.C // problem.groups
    values = torch.zeros(len(where), dtype=torch.float64, device=x.device)
    per_image = 32 * problem.P * problem.Q
    images = max(1, CHUNK_BYTES // max(per_image, 1))
    for i, (k, c, r, s) in enumerate(where.tolist()):
        rows, x_rows = _reached(problem, 0, r)
        columns, x_columns = _reached(problem, 1, s)
        channel = k // filters * channels + c
        for n in range(0, problem.N, images):
            left = dy[n : n + images, k, rows, columns].double()
            right = x[n : n + images, channel, x_rows, x_columns].double()
            values[i] += (left * right).sum()
    return values
