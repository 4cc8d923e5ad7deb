"""The op ``convlab::conv2d``: a kernel as torch sees it, with derivatives, batches and shapes.

A kernel computes the forward pass only; what torch derives from it is torch's own convolution.
Importing this module registers the op, so that what uses it can be compiled and exported.
"""

import functools
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, make_dual, unpack_dual

from ..core import arguments
from ..core.errors import ProblemError
from ..core.kernel.data import given, require
from ..core.kernel.runnable import Runnable
from ..core.problem.problem import Pair, Problem, pair, same_padding

# An op's schema carries tensors, numbers and strings, so a kernel travels through it as a string:
# a name or path as itself, loaded at the first call; an object as "#<serial> <name>", looked up
# here. The serial is never used again, so two objects of one name stay apart, and a stale key finds
# nothing rather than another kernel. Weak: whoever uses the object (a Conv2d, the caller of conv2d)
# keeps it alive; this table does not.
_kernels: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()
_serials = itertools.count(1)
# What loads the kernel of a name; under None, of all others. Modules above this one put it there.
LOADERS: dict[str | None, Callable] = {}


def key_of(kernel: Any) -> str:
    """The string that stands for a kernel in the op's arguments."""
    if isinstance(kernel, (str, os.PathLike)):
        text = arguments.text(str(arguments.path(kernel, "kernel")), "kernel")
        is_path = text.endswith(".cu") or os.path.dirname(text) != ""
        return os.path.abspath(text) if is_path else text
    for key, held in _kernels.items():  # a handful
        if held is kernel:
            return key
    if not callable(kernel):
        raise ProblemError(
            f"kernel={arguments.shown(kernel)} is no kernel: give a name, the path of a .cu file, "
            "or what convlab.load or convlab.compile returns"
        )
    key = f"#{next(_serials)} {name_of(kernel)}"
    _kernels[key] = kernel
    return key


# Under torch.compile it is called while tracing, and its answer guarded by the object's identity.
# (torch.compiler.assume_constant_result does this, and imports the whole compiler: 0.6 s.)
key_of._dynamo_marked_constant = True


def name_of(kernel: Any) -> str:
    """What a kernel is called where a model is printed."""
    if isinstance(kernel, (str, os.PathLike)):
        return os.fspath(kernel)
    return getattr(kernel, "name", type(kernel).__name__)


@functools.lru_cache(maxsize=256)
def loaded(name: str, engine: str) -> Callable:
    """The kernel of a name or path, loaded once."""
    return LOADERS.get(name, LOADERS[None])(name, engine=engine)


def _find(key: str, device: torch.device) -> Callable:
    """The kernel behind a key; one given by name runs where the tensors are."""
    if not key.startswith("#"):
        return loaded(key, "cuda" if device.type == "cuda" else "sim")
    if (kernel := _kernels.get(key)) is not None:
        return kernel
    raise ProblemError(
        f"the kernel {key.split(' ', 1)[1]!r} that this graph was traced with no longer exists: "
        "keep the object alive, or give the kernel by name"
    )


def derives(*tensors: Tensor | None) -> bool:
    """Whether torch asks for more than y: a gradient, a tangent, a `torch.func` transform."""
    if torch._C._are_functorch_transforms_active():
        return True
    there = [t for t in tensors if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in there):
        return True
    if torch.is_inference_mode_enabled() or not torch._C._is_fwd_grad_enabled():
        return False
    return any(unpack_dual(t, level=0).tangent is not None for t in there if not t.is_inference())


# --- the op ---------------------------------------------------------------------------------

_library = torch.library.Library("convlab", "FRAGMENT")
_library.define(
    "conv2d(Tensor x, Tensor w, Tensor? bias, str kernel, int[] stride, int[] padding, "
    "int[] dilation, int groups, bool relu) -> Tensor"
)
_op = torch.ops.convlab.conv2d.default


def _theirs(x, w, bias, stride, padding, dilation, groups) -> Tensor:
    """Torch's own convolution, without ReLU."""
    plain = False, [0, 0]  # not transposed
    return torch.ops.aten.convolution(x, w, bias, stride, padding, dilation, *plain, groups)


def _compute(x, w, bias, kernel, stride, padding, dilation, groups, relu) -> Tensor:
    _require_float32(x, w, bias)
    with torch.no_grad(), _set_fwd_grad_enabled(False):  # `derives` is to be asked once
        y = _find(kernel, x.device)(
            x.detach(),
            w.detach(),
            None if bias is None else bias.detach(),
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            groups,
            **asked(relu),
        )
    return y.contiguous()


def asked(relu: bool) -> dict[str, bool]:
    """What a kernel is called with for a ReLU: nothing without one, so that any callable will do."""
    return {"relu": True} if relu else {}


def _shape_alone(x, w, bias, kernel, *numbers) -> Tensor:
    _require_float32(x, w, bias)
    y = _theirs(x, w, bias, *numbers[:-1])  # torch's own check of the shapes; its strides differ
    return torch.empty(y.shape, dtype=x.dtype, device=x.device)


class _Graph(torch.autograd.function._SingleLevelFunction):
    """The op, recorded for the backward pass of one level of differentiation.

    The dispatcher has already chosen the level (`torch.func` stacks several), which is why this is
    not a ``torch.autograd.Function``: that one would choose again.
    """

    @staticmethod
    def forward(keyset, x, w, bias, *rest) -> Tensor:
        below = keyset & torch._C._after_autograd_keyset
        with (
            torch.enable_grad(),  # levels further out record for themselves
            _set_fwd_grad_enabled(True),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return _op.redispatch(below, x, w, bias, *rest)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, x, w, bias, _, *ctx.numbers, relu = inputs
        ctx.bias_shape = None if bias is None else list(bias.shape)
        ctx.save_for_backward(x, w, output if relu else None)

    @staticmethod
    def backward(ctx, g_y: Tensor):
        """Gradients of x, w and bias; differentiable again, since aten's backward is."""
        x, w, y = ctx.saved_tensors
        g_y = g_y if y is None else _where_positive(g_y, y)
        *pairs, groups = ctx.numbers
        wanted = list(ctx.needs_input_grad[1:4])
        gradients = torch.ops.aten.convolution_backward(
            g_y, x, w, ctx.bias_shape, *pairs, False, [0, 0], groups, wanted
        )
        return None, *gradients, *[None] * 6


def _where_positive(derivative: Tensor, y: Tensor) -> Tensor:
    """What ReLU lets through of a gradient or a tangent, as torch's does: none where y is 0."""
    return torch.ops.aten.threshold_backward(derivative, y, 0)


def _differentiable(keyset, x, w, bias, kernel, *numbers_and_relu) -> Tensor:
    """The op with derivatives: the tangent of x * w + b is x' * w + x * w' + b'."""
    *numbers, relu = numbers_and_relu
    # torch has one level of dual numbers; what stacks them (torch.func) does so by wrapping
    (x, t_x) = unpack_dual(x, level=0)
    (w, t_w) = unpack_dual(w, level=0)
    bias, t_bias = (None, None) if bias is None else unpack_dual(bias, level=0)
    arguments = (keyset, x, w, bias, kernel, *numbers_and_relu)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, w, bias)):
        with enable_single_level_autograd_function():
            y = _Graph.apply(*arguments)
    else:
        y = _Graph.forward(*arguments)
    tangents = [] if t_bias is None else [t_bias[:, None, None].expand_as(y)]
    tangents += [] if t_x is None else [_theirs(t_x, w, None, *numbers)]
    tangents += [] if t_w is None else [_theirs(x, t_w, None, *numbers)]
    if not tangents:
        return y
    tangent = sum(tangents)
    return make_dual(y, _where_positive(tangent, y) if relu else tangent, level=0)


_library.impl("conv2d", _compute, "CompositeExplicitAutograd")
_library.impl("conv2d", _differentiable, "Autograd", with_keyset=True)
torch.library.register_fake("convlab::conv2d", _shape_alone, lib=_library)

_HALVES = (torch.float16, torch.bfloat16)  # what autocast makes float32


def _require_float32(*tensors: Tensor | None) -> None:
    for name, tensor in given(*tensors):
        if tensor.dtype != torch.float32:
            raise ProblemError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}; convlab's kernels compute "
                "in float32 in layers and conv2d: convert it with .float(), leave this layer to "
                "torch.nn.Conv2d, or call a kernel of that type itself"
            )


# --- the call -------------------------------------------------------------------------------


def convolve(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    key: str,
    relu: bool = False,
) -> Tensor:
    """Call the op as ``torch.nn.functional.conv2d`` is called; the kernel is behind the key."""
    arguments.flag(relu, "relu")
    given(x, w, bias)
    kind = x.device.type  # here, as torch.compile may miss what an op says of autocast
    if kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        x, w, bias = (
            t.float() if t is not None and t.dtype in _HALVES else t for t in (x, w, bias)
        )
    images, padding = padded(x, w, stride, padding, dilation)
    stride = pair(stride, "stride")
    dilation = pair(dilation, "dilation")
    if not torch.compiler.is_compiling():  # there, sizes may be symbols
        posed(images, w, bias, stride, padding, dilation, groups, relu)
    y = _op(images, w, bias, key, stride, padding, dilation, groups, relu)
    return y.squeeze(0) if x.dim() == 3 else y


class Called(Runnable):
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
        stride, padding, dilation, groups : as `torch.nn.functional.conv2d` takes them.
        relu : whether negative outputs become 0, by a kernel whose header says that it fuses that.

        Returns
        -------
        tensor (N, K, P, Q) or (K, P, Q), laid out as `format` says.

        Raises
        ------
        ProblemError
            The arguments do not describe a convolution on this kernel's device.
        UnsupportedError
            The header says that the kernel cannot do it; names kernels that can.
        BuildError, LaunchError
            The file does not compile; the kernel refuses, crashes or hangs, or memory is short.
        """
        require(self, x, w, bias)
        images, problem = posed(x, w, bias, stride, padding, dilation, groups, relu)
        if derives(x, w, bias):
            return convolve(x, w, bias, stride, padding, dilation, groups, key_of(self), relu)
        y = self._compute(problem, *(None if t is None else t.detach() for t in (images, w, bias)))
        return y.squeeze(0) if x.dim() == 3 else y

    def _compute(self, problem: Problem, *tensors: Tensor | None) -> Tensor:
        """Return y of tensors that fit and ask for no gradients."""
        launch = self.prepare(problem, *tensors)
        launch()
        return launch.y


def posed(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    relu: bool = False,
    name: str = "",
) -> tuple[Tensor, Problem]:
    """The images (4-D), and the problem that the arguments of ``conv2d`` pose on them."""
    images, around = padded(x, w, stride, padding, dilation)
    shapes = images.shape, w.shape, None if bias is None else bias.shape
    return images, Problem.from_shapes(*shapes, stride, around, dilation, groups, relu, name)


def padded(
    x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, tuple[int, int]]:
    """The images (4-D) and the padding in numbers; what is odd of "same" becomes the images'."""
    x = x.unsqueeze(0) if x.dim() == 3 else x
    if x.dim() != 4 or w.dim() != 4:
        Problem.from_shapes(x.shape, w.shape)  # which says so
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
    dilation = Problem(1, 1, 1, 1, 1, 1, 1, dilation=dilation).dilation  # which checks it
    (top, bottom), (left, right) = map(same_padding, w.shape[2:], dilation)
    if (top, left) != (bottom, right):  # an even extent: one more at the end
        x = F.pad(x, (0, right - left, 0, bottom - top))
    return x, (top, left)
