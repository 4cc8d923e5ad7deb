"""Compute the gradients of a layer by convlab's rungs, where these are known to be faster than cuDNN.

`Conv2d` and `conv2d` ask this module in the backward pass, unless torch.compile traces it. It answers
on a GPU, when torch needs no derivative of the gradient itself; torch computes everything else. A
rung is taken where `convlab.best` takes it for the gradient: by a measured choice
(``convlab.best(problem.computing("data gradient"), measured=True)``), else by its header's ``best:``.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.kernel.cuda import CUDA
from ..core.kernel.data import is_plain, require_storage
from ..core.kernel.kernel import Kernel
from ..core.kernel.runnable import Runnable
from ..core.machine import toolchain
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.problem import Problem
from .choice import CLASSES, Auto, candidates, ruled


# The rungs for the gradients of x and w, each with the gradient's problem; None where torch computes it.
Rungs = tuple[tuple[Kernel, Problem] | None, tuple[Kernel, Problem] | None]


def own_gradients(
    dy: Tensor, x: Tensor, w: Tensor, rungs: Callable[[], Rungs], precision: str
) -> tuple[Tensor | None, Tensor | None]:
    """Return dx and dw; each is None if torch should compute it, or if it is not needed.

    Parameters
    ----------
    dy, x, w : the gradient of y, and the forward pass's inputs.
    rungs : returns what `gradients_of` returns for the forward pass.
    precision : the class of the gradients, for which `rungs` chooses.
    """
    if not _may_compute(dy, x, w):
        return None, None
    for_x, for_w = rungs()
    if for_x is None and for_w is None:
        return None, None
    for name, tensor in (("dy", dy), ("x", x), ("w", w)):
        require_storage(name, tensor)
    # A choice in these classes has just looked for edits of the kernel's files.
    looks = precision not in CLASSES
    dx = dw = None
    if for_x is not None:
        rung, problem = for_x
        dx = rung.again(problem, dy, w, None, looks=looks).contiguous()
    if for_w is not None:
        rung, problem = for_w
        dw = rung.again(problem, x, dy, None, looks=looks).contiguous()
    return dx, dw


def precision_of_gradients(kernel: Callable) -> str:
    """Return the class of the gradients of a layer: a rung is of this class or a more accurate one."""
    return kernel.precision if isinstance(kernel, (Runnable, Auto)) else "fp32"


def gradients_of(problem: Problem, needed: Sequence[bool], precision: str) -> Rungs:
    """Return the rungs for the two gradients of a forward problem, where these are needed."""
    found = []
    for computation, is_needed in zip((DATA_GRADIENT, WEIGHT_GRADIENT), needed, strict=True):
        rung = None
        if is_needed:
            gradient = _computing(problem, computation.name)
            rung = gradient_kernel(gradient, precision)
        found.append(None if rung is None else (rung, gradient))
    return found[0], found[1]


def state_of_gradients(precision: str) -> object:
    """Return what `gradients_of` depends on besides its arguments and the GPU."""
    return _auto(precision).state() if precision in CLASSES else None


# A layer asks in every step of training.
_computing = functools.lru_cache(1024)(Problem.computing)


def _may_compute(*tensors: Tensor) -> bool:
    """Return whether a kernel can compute here: on a GPU, and not to be differentiated."""
    if torch.is_grad_enabled():
        return False
    for tensor in tensors:
        if not (tensor.is_cuda and is_plain(tensor)):
            return False
    return True


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
