"""Compute the gradients of a layer by convlab's rungs, where these are known to be faster than cuDNN.

`Conv2d` and `conv2d` ask this module in the backward pass, unless torch.compile traces it. It answers
on a GPU, when torch needs no derivative of the gradient itself; torch computes everything else. A
rung is taken by the rule of `convlab.best`: the line ``best:`` in its header.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.kernel.cuda import CUDA
from ..core.kernel.data import is_plain
from ..core.kernel.kernel import Kernel
from ..core.kernel.runnable import Runnable
from ..core.machine import toolchain
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.problem import Problem
from .choice import Auto, candidates, ruled


def own_gradients(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    options: Sequence[Any],
    kernel: Callable,
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return dx and dw; each is None if torch should compute it, or if it is not needed.

    Parameters
    ----------
    dy, x, w : the gradient of y, and the forward pass's inputs.
    options : stride, padding, dilation and groups.
    kernel : the layer's kernel: a gradient is of its precision class or a more accurate one.
    needed : whether x and w need a gradient.
    """
    if not _may_compute(dy, x, w):
        return None, None
    stride, padding, dilation, groups = options
    problem = Problem.from_shapes(x.shape, w.shape, None, stride, padding, dilation, groups)
    precision = kernel.precision if isinstance(kernel, (Runnable, Auto)) else "fp32"
    wanted = ((DATA_GRADIENT, needed[0], (dy, w)), (WEIGHT_GRADIENT, needed[1], (x, dy)))
    found = []
    for computation, is_needed, tensors in wanted:
        kernel = None
        if is_needed:
            kernel = gradient_kernel(problem.computing(computation.name), precision)
        found.append(None if kernel is None else _computed(kernel, problem, tensors))
    return found[0], found[1]


def _may_compute(*tensors: Tensor) -> bool:
    """Return whether a kernel can compute here: on a GPU, and not to be differentiated."""
    if torch.is_grad_enabled():
        return False
    return all(tensor.is_cuda and is_plain(tensor) for tensor in tensors)


def _computed(kernel: Kernel, problem: Problem, tensors: tuple[Tensor, Tensor]) -> Tensor:
    """Return a gradient in torch's memory order."""
    launch = kernel.prepare(kernel.asked(problem), *tensors)
    launch()
    return launch.y.contiguous()


@functools.lru_cache(512)
def gradient_kernel(problem: Problem, precision: str) -> Kernel | None:
    """Return the rung for a gradient on this GPU, or None if torch's is to be taken.

    Examples
    --------
    >>> problem = convlab.problem("wide").computing("data gradient")
    >>> gradient_kernel(problem, "tf32").name  # doctest: +SKIP
    '20_data_gradient_wgmma'
    """
    if toolchain.cuda() is None:
        return None
    return ruled(candidates(precision, "cuda"), problem, precision, CUDA.target)
