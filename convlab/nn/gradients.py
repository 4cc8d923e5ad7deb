"""Compute the gradients of a layer by convlab's rungs, where these are known to be faster than cuDNN.

`Conv2d` and `conv2d` ask this module in the backward pass, unless torch.compile traces it. It answers
on a GPU, when torch needs no derivative of the gradient itself; torch computes everything else. A
rung is taken where `convlab.best` takes it for the gradient: by a measured choice
(``convlab.best(problem.computing("data gradient"), measured=True)``), else by its header's ``best:``.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.kernel.call import problem_of_call
from ..core.kernel.cuda import CUDA
from ..core.kernel.data import is_plain, require_storage
from ..core.kernel.kernel import Kernel
from ..core.kernel.runnable import Runnable
from ..core.machine import toolchain
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.problem import Problem
from .choice import CLASSES, Auto, candidates, ruled


def own_gradients(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    options: Sequence[Any],
    kernel: Callable,
    needed: Sequence[bool],
    problem: Problem | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return dx and dw; each is None if torch should compute it, or if it is not needed.

    Parameters
    ----------
    dy, x, w : the gradient of y, and the forward pass's inputs.
    options : stride, padding, dilation (pairs) and groups.
    kernel : the layer's kernel: a gradient is of its precision class or a more accurate one.
    needed : whether x and w need a gradient.
    problem : that of the forward pass, if it is known.
    """
    if not _may_compute(dy, x, w):
        return None, None
    if problem is None:
        _, problem = problem_of_call(x, w, None, (*options, False))
    precision = kernel.precision if isinstance(kernel, (Runnable, Auto)) else "fp32"
    # A choice in these classes has just looked for edits of the kernel's files.
    looks = precision not in CLASSES
    found = []
    for rung, computation, tensors in zip(
        gradients_of(problem, needed, precision),
        (DATA_GRADIENT, WEIGHT_GRADIENT),
        ((dy, w), (x, dy)),
        strict=True,
    ):
        if rung is None:
            found.append(None)
            continue
        for name, tensor in zip(computation.inputs, tensors, strict=True):
            require_storage(name, tensor)
        gradient = _computing(problem, computation.name)
        found.append(rung.again(gradient, *tensors, None, looks=looks).contiguous())
    return found[0], found[1]


def gradients_of(
    problem: Problem, needed: Sequence[bool], precision: str
) -> tuple[Kernel | None, Kernel | None]:
    """Return the rungs for the two gradients of a forward problem; None where torch computes it."""
    dx, dw = (
        gradient_kernel(_computing(problem, computation.name), precision) if is_needed else None
        for computation, is_needed in zip((DATA_GRADIENT, WEIGHT_GRADIENT), needed, strict=True)
    )
    return dx, dw


# A layer asks in every step of training.
_computing = functools.lru_cache(1024)(Problem.computing)


def _may_compute(*tensors: Tensor) -> bool:
    """Return whether a kernel can compute here: on a GPU, and not to be differentiated."""
    if torch.is_grad_enabled():
        return False
    return all(tensor.is_cuda and is_plain(tensor) for tensor in tensors)


def gradient_kernel(problem: Problem, precision: str) -> Kernel | None:
    """Return the rung for a gradient on this GPU, or None if torch's is to be taken.

    In fp32 and TF32 it is the choice of `convlab.best`: what was measured here, else the rule. In bf16
    and fp16 it is the rule.

    Examples
    --------
    >>> problem = convlab.problem("wide").computing("data gradient")
    >>> gradient_kernel(problem, "tf32").name  # doctest: +SKIP
    '20_data_gradient_wgmma'
    """
    if toolchain.cuda() is None:
        return None
    if precision not in CLASSES:
        return _ruled(problem, precision)
    chosen = _auto(precision).choice(problem)
    return chosen if isinstance(chosen, Kernel) else None


@functools.cache
def _auto(precision: str) -> Auto:
    """Return the choices of a class on the GPU, which are kept."""
    return Auto("cuda", precision)


@functools.lru_cache(512)
def _ruled(problem: Problem, precision: str) -> Kernel | None:
    return ruled(candidates(precision, "cuda"), problem, precision, CUDA.target)
