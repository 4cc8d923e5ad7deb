"""The plain call of a kernel or a baseline, like ``torch.nn.functional.conv2d``.

Nothing here computes a derivative. Where the inputs ask for one, the call goes to the room that
provides "derivatives" (`convlab.nn`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from .. import rooms
from ..errors import ProblemError
from ..problem.problem import Pair, Problem, pair, same_padding
from .data import require
from .runnable import Runnable


# The arguments of ``conv2d`` after its tensors: stride, padding, dilation, groups, relu.
ConvOptions = tuple[Any, Any, Any, int, bool]


class CallableRunnable(Runnable):
    """A runnable that is called like ``torch.nn.functional.conv2d``."""

    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        relu: bool = False,
    ) -> Tensor:
        """Compute the convolution, with gradients where the inputs ask for them.

        Parameters
        ----------
        x, w, bias : (N, C, H, W) or (C, H, W), (K, C/groups, R, S), and (K,) or None: of the
            dtypes of `format`, on `device`, with any strides.
        stride, padding, dilation, groups : as in `torch.nn.functional.conv2d`.
        relu : whether negative outputs become 0. The kernel's header must say that it fuses this.

        Returns
        -------
        tensor (N, K, P, Q) or (K, P, Q), laid out as `format` says.

        Raises
        ------
        ProblemError
            The arguments do not describe a convolution on this kernel's device; or the inputs ask
            for gradients, and the room `convlab.nn` was removed.
        UnsupportedError
            The header says that the kernel does not support the problem; names kernels that do.
        BuildError, LaunchError
            The file does not compile; the kernel refuses, crashes or hangs, or memory is short.
        """
        require(self, x, w, bias)
        options = (stride, padding, dilation, groups, relu)
        images, problem = problem_of_call(x, w, bias, options)
        if asks_for_derivatives(x, w, bias):
            call = rooms.provided("derivatives", "torch")
            if call is None:
                raise ProblemError(
                    "gradients need convlab/nn, which was removed; call under torch.no_grad()"
                )
            return call(self, x, w, bias, options)
        bias = None if bias is None else bias.detach()
        y = self._compute(problem, images.detach(), w.detach(), bias)
        return y.squeeze(0) if x.dim() == 3 else y

    def _compute(self, problem: Problem, *tensors: Tensor | None) -> Tensor:
        """Return y of tensors that fit the problem and ask for no gradients."""
        launch = self.prepare(problem, *tensors)
        launch()
        return launch.y


def asks_for_derivatives(*tensors: Tensor | None) -> bool:
    """Return whether torch asks for more than y: a gradient, a tangent, a `torch.func` transform."""
    if is_transformed():
        return True
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    return has_tangent(*tensors)


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` is active, such as grad or vmap."""
    return torch._C._are_functorch_transforms_active()  # torch has no public name for this question


def has_tangent(*tensors: Tensor | None) -> bool:
    """Return whether a tensor carries a tangent of forward mode (`torch.autograd.forward_ad`)."""
    if torch.is_inference_mode_enabled():
        return False
    for tensor in tensors:
        if tensor is None or tensor.is_inference():
            continue
        if unpack_dual(tensor).tangent is not None:
            return True
    return False


def problem_of_call(
    x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions, name: str = ""
) -> tuple[Tensor, Problem]:
    """Return the images (4-D), and the problem that ``conv2d`` computes with these arguments."""
    stride, padding, dilation, groups, relu = options
    images, padding = images_and_padding(x, w, stride, padding, dilation)
    bias_shape = None if bias is None else bias.shape
    problem = Problem.from_shapes(
        images.shape, w.shape, bias_shape, stride, padding, dilation, groups, relu, name
    )
    return images, problem


def images_and_padding(
    x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, tuple[int, int]]:
    """Return the images (4-D) and the padding as two numbers.

    An even filter makes "same" padding asymmetric: the images then hold the additional zeros.
    """
    if x.dim() == 3:
        x = x.unsqueeze(0)
    if x.dim() != 4 or w.dim() != 4:
        Problem.from_shapes(x.shape, w.shape)  # It raises, and names the wrong rank.
    if not isinstance(padding, str):
        return x, pair(padding, "padding")
    if padding == "valid":
        return x, (0, 0)
    if padding != "same":
        raise ProblemError(
            f"padding is {padding!r}: give an int, a (height, width) pair, 'valid' or 'same'"
        )
    if pair(stride, "stride") != (1, 1):
        raise ProblemError(
            f'padding="same" needs stride 1, not {stride}: give the padding as numbers'
        )
    # The constructor of a problem checks the dilation.
    dilation = Problem(1, 1, 1, 1, 1, 1, 1, dilation=dilation).dilation
    top, bottom = same_padding(w.shape[2], dilation[0])
    left, right = same_padding(w.shape[3], dilation[1])
    if (top, left) != (bottom, right):
        x = F.pad(x, (0, right - left, 0, bottom - top))
    return x, (top, left)


def relu_keyword(relu: bool) -> dict[str, bool]:
    """Return the keyword for a ReLU: none without one, so that any callable can be called."""
    return {"relu": True} if relu else {}
