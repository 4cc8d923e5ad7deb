"""Turn a call of a kernel that computes a gradient into a problem.

A data gradient is called like ``torch.nn.functional.conv_transpose2d``. A weight gradient is called
with x and dy, and with the size of the filter, which they do not determine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..arguments import shown
from ..errors import ProblemError
from ..problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..problem.problem import Problem, pair


@dataclass(frozen=True)
class GradientOptions:
    """The arguments of a call after its tensors.

    Attributes
    ----------
    stride, padding, dilation, groups : those of the forward convolution.
    output_padding : of a data gradient.
    filter_size : (R, S) of a weight gradient; None if it was not given.
    """

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    output_padding: Any = 0
    filter_size: Any = None


def gradient_problem(
    computes: str, first: Tensor, second: Tensor, options: GradientOptions
) -> Problem:
    """Return the problem of a gradient for its two inputs, (N, K, P, Q) and w, or x and dy.

    Raises
    ------
    ProblemError
        The arguments do not describe a gradient.
    """
    return _PROBLEMS[computes](first, second, options)


def _data(dy: Tensor, w: Tensor, options: GradientOptions) -> Problem:
    if options.filter_size is not None:
        raise ProblemError("filter_size is for weight gradients; a data gradient has the filter")
    return Problem.transposed(
        dy.shape,
        w.shape,
        options.stride,
        options.padding,
        options.output_padding,
        options.groups,
        options.dilation,
    )


def _weight(x: Tensor, dy: Tensor, options: GradientOptions) -> Problem:
    if pair(options.output_padding, "output_padding") != (0, 0):
        raise ProblemError("output_padding is for data gradients (transposed convolutions)")
    if options.filter_size is None:
        raise ProblemError(
            "a weight gradient needs the size of the filter: pass filter_size=(R, S)"
        )
    if x.dim() != 4 or dy.dim() != 4:
        raise ProblemError(
            "a weight gradient needs 4 dimensions, x (N, C, H, W) and dy (N, K, P, Q), not "
            f"{shown(tuple(x.shape))} and {shown(tuple(dy.shape))}"
        )
    N, C, H, W = x.shape
    R, S = pair(options.filter_size, "filter_size")
    forward = Problem(
        N,
        C,
        H,
        W,
        dy.shape[1],
        R,
        S,
        options.stride,
        options.padding,
        options.dilation,
        options.groups,
    )
    if tuple(dy.shape) != forward.y_shape:
        raise ProblemError(
            f"dy has shape {tuple(dy.shape)}, but the output of this convolution has "
            f"{forward.y_shape}: check filter_size, stride, padding and dilation"
        )
    return forward.computing(WEIGHT_GRADIENT.name)


_PROBLEMS: dict[str, Callable[[Tensor, Tensor, GradientOptions], Problem]] = {
    DATA_GRADIENT.name: _data,
    WEIGHT_GRADIENT.name: _weight,
}
