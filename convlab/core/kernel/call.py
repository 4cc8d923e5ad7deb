"""Call a kernel or a baseline like ``torch.nn.functional.conv2d``.

This module computes y of plain tensors. A call that needs more goes to torch's op in the room that
provides "derivatives" (`convlab.nn`): for a gradient, for a graph that torch records, and for
tensors that stand for other numbers.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from .. import rooms
from ..arguments import flag, shown
from ..errors import ProblemError
from ..problem.computation import FORWARD
from ..problem.format import FLOAT32
from ..problem.problem import Pair, Problem, pair, same_padding
from .data import is_plain, require
from .gradient_call import GradientOptions, gradient_problem
from .runnable import Runnable

# The arguments of ``conv2d`` after its tensors: stride, padding, dilation, groups, relu.
ConvOptions = tuple[Any, Any, Any, int, bool]


class CallableRunnable(Runnable):
    """A runnable with the call of ``torch.nn.functional.conv2d``."""

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
        *,
        output_padding: int | Pair = 0,
        filter_size: int | Pair | None = None,
    ) -> Tensor:
        """Compute the convolution, with gradients if an input requires them.

        A kernel for data gradients is called like ``torch.nn.functional.conv_transpose2d``, with dy
        (N, K, P, Q) and w: ``kernel(dy, w, stride=2, output_padding=1)``. One for weight gradients is
        called with x and dy: ``kernel(x, dy, filter_size=3)``. Torch does not differentiate them.

        Parameters
        ----------
        x : Tensor
            The input, (N, C, H, W), or (C, H, W) for one image.
        w : Tensor
            The filter, (K, C/groups, R, S).
        bias : Tensor, optional
            Shape (K,). All tensors have the dtypes of `format` (by default float32), are on `device`, and
            may have any strides.
        stride, padding, dilation, groups
            As in `torch.nn.functional.conv2d`.
        relu : bool
            Whether the kernel computes max(y, 0). Its header must list ``relu`` in ``epilogue:``.
        output_padding : int or pair
            Of a data gradient, as in `torch.nn.functional.conv_transpose2d`.
        filter_size : int or pair
            (R, S) of a weight gradient.

        Returns
        -------
        torch.Tensor
            y, (N, K, P, Q) or (K, P, Q), with the dtype and layout of `format`. Of a data gradient dx,
            (N, C, H, W); of a weight gradient dw, (K, C/groups, R, S).

        Raises
        ------
        ProblemError
            The arguments do not describe a convolution on this kernel's device. Or an input
            requires a gradient, and the room `convlab.nn` was removed.
        UnsupportedError
            The kernel's header excludes the problem. The message names kernels that support it.
        BuildError
            The file does not compile.
        LaunchError
            The kernel returned an error, crashed or hung, or memory ran out.

        Examples
        --------
        >>> kernel = convlab.load("01_direct", engine="sim")
        >>> kernel(torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), padding=1).shape
        torch.Size([1, 3, 5, 5])
        """
        require(self, x, w, bias)
        if self.computes not in (None, FORWARD.name):
            if bias is not None or flag(relu, "relu"):
                raise ProblemError(
                    f"{self.name} computes a gradient, which has no bias and no ReLU"
                )
            gradient = GradientOptions(
                stride, padding, dilation, groups, output_padding, filter_size
            )
            return self._gradient(x, w, gradient)
        is_padded = pair(output_padding, "output_padding") != (0, 0)
        if is_padded or filter_size is not None:
            raise ProblemError(
                "output_padding and filter_size are for kernels that compute a gradient; "
                f"{self.name} computes the forward convolution"
            )
        options = (stride, padding, dilation, groups, relu)
        images, problem = problem_of_call(x, w, bias, options)
        _require_deterministic(self)
        if needs_derivatives(x, w, bias):
            return _with_op(self, "gradients", "; call under torch.no_grad()")(
                self, x, w, bias, options
            )
        if is_recorded() or not all(is_plain(t) for t in (x, w, bias) if t is not None):
            if self.format != FLOAT32:
                raise ProblemError(
                    f"{self.name} takes {self.format}; under tracing, dispatch modes and for tensor "
                    "subclasses convlab computes only in float32 and NCHW: call the kernel outside, "
                    "on plain tensors"
                )
            return _with_op(self, "tracing and tensor subclasses")(self, x, w, bias, options)
        bias = None if bias is None else bias.detach()
        y = self.compute(problem, images.detach(), w.detach(), bias)
        return y.squeeze(0) if x.dim() == 3 else y

    def _gradient(self, first: Tensor, second: Tensor, options: GradientOptions) -> Tensor:
        """Return a gradient from its two inputs."""
        problem = gradient_problem(self.computes, first, second, options)
        _require_deterministic(self)
        if needs_derivatives(first, second) or is_recorded():
            raise ProblemError(
                f"torch cannot differentiate or trace {self.name}, which computes a gradient itself: "
                "call it under torch.no_grad(), on plain tensors"
            )
        return self.compute(problem, first.detach(), second.detach(), None)

    def compute(self, problem: Problem, *tensors: Tensor | None) -> Tensor:
        """Return y for tensors that fit the problem and the format, and require no gradients."""
        launch = self.prepare(problem, *tensors)
        launch()
        return launch.y

    def again(self, problem: Problem, *tensors: Tensor | None, looks: bool = True) -> Tensor:
        """Return y as `compute` does, for tensors that need no validation.

        An earlier call had tensors of the same shapes, dtypes, device and storage sizes. `looks`:
        whether to look for edits of a kernel's files; a choice of "auto" has just done so.
        """
        return self.compute(problem, *tensors)


def _with_op(runnable: Runnable, what: str, advice: str = "") -> Callable[..., Tensor]:
    """Return the function that calls a runnable through torch's op; `what` is what needs it."""
    call = rooms.provided("derivatives", "torch")
    if call is None:
        raise ProblemError(f"{what} need convlab/nn, which was removed{advice}")
    return call


def _require_deterministic(runnable: Runnable) -> None:
    """Raise ProblemError, or warn, if torch must be deterministic and the kernel is not.

    torch's own operations do so too (``torch.use_deterministic_algorithms``).
    """
    if not runnable.atomics or not torch.are_deterministic_algorithms_enabled():
        return
    text = (
        f"{runnable.name} adds in no fixed order (`atomics: yes` in its header), but "
        "torch.use_deterministic_algorithms(True) is set: use another kernel, or unset it"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise ProblemError(text)
    warnings.warn(text, stacklevel=3)


def is_recorded() -> bool:
    """Return whether torch records or redirects operations: a dispatch mode, make_fx, jit.trace."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch)
        or torch.jit.is_tracing()
    )


def needs_derivatives(*tensors: Tensor | None) -> bool:
    """Return whether torch needs more than y: a gradient, a tangent or a `torch.func` transform."""
    if is_transformed():
        return True
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    return has_tangent(*tensors)


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` is active, such as grad or vmap."""
    # torch has no public function for this.
    return torch._C._are_functorch_transforms_active()


def has_tangent(*tensors: Tensor | None) -> bool:
    """Return whether a tensor has a forward-mode tangent (`torch.autograd.forward_ad`)."""
    if torch.is_inference_mode_enabled():
        return False
    for tensor in tensors:
        if tensor is None or tensor.is_inference():
            continue
        try:
            tangent = unpack_dual(tensor).tangent
        except RuntimeError:
            # Inside func.linearize torch cannot say, so assume that there is one.
            return True
        if tangent is not None:
            return True
    return False


def problem_of_call(
    x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions, name: str = ""
) -> tuple[Tensor, Problem]:
    """Return the images (4-D), and the problem that ``conv2d`` computes for these arguments."""
    stride, padding, dilation, groups, relu = options
    images, padding = images_and_padding(x, w, stride, padding, dilation)
    bias_shape = None if bias is None else bias.shape
    arguments = (images.shape, w.shape, bias_shape, stride, padding, dilation, groups, relu, name)
    if all(map(_is_exact, arguments[:-2])):
        return images, _problem(*arguments)
    return images, Problem.from_shapes(*arguments)


# A layer describes the same problem at each call. The cache tells True from 1 only at the top level,
# so it must not see other types inside tuples.
_problem = functools.lru_cache(1024, typed=True)(Problem.from_shapes)


def _is_exact(argument: object) -> bool:
    """Return whether an argument is None, an int, or a tuple of ints, of exactly these types."""
    if isinstance(argument, tuple):
        return all(type(number) is int for number in argument)
    return argument is None or type(argument) is int


def images_and_padding(
    x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, tuple[int, int]]:
    """Return the images (4-D) and the padding (height, width).

    With an even filter, "same" padding is asymmetric. The images then contain the additional zeros.
    """
    if x.dim() == 3:
        x = x.unsqueeze(0)
    if x.dim() != 4 or w.dim() != 4:
        # Raises ProblemError with the number of dimensions.
        Problem.from_shapes(x.shape, w.shape)
    if not isinstance(padding, str):
        return x, pair(padding, "padding")
    if padding == "valid":
        return x, (0, 0)
    if padding != "same":
        raise ProblemError(
            f"padding is {shown(padding)}: give an int, a (height, width) pair, 'valid' or 'same'"
        )
    if pair(stride, "stride") != (1, 1):
        raise ProblemError(
            f'padding="same" needs stride 1, not {shown(stride)}: give the padding as numbers'
        )
    # The constructor of Problem validates the dilation.
    dilation = Problem(1, 1, 1, 1, 1, 1, 1, dilation=dilation).dilation
    top, bottom = same_padding(w.shape[2], dilation[0])
    left, right = same_padding(w.shape[3], dilation[1])
    if (top, left) != (bottom, right):
        x = F.pad(x, (0, right - left, 0, bottom - top))
    return x, (top, left)


def relu_keyword(relu: bool) -> dict[str, bool]:
    """Return the keyword argument for a ReLU; none without one, for callables without `relu`."""
    return {"relu": True} if relu else {}
