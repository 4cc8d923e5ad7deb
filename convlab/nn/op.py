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
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, make_dual, unpack_dual

from ..core import arguments
from ..core.errors import ProblemError
from ..core.kernel.call import images_and_padding, problem_of_call, relu_keyword
from ..core.kernel.data import given
from ..core.kernel.kernel import load
from ..core.problem.problem import pair
from .choice import AUTOS, Auto

# An op's schema carries tensors, numbers and strings, so a kernel travels through it as a string:
# a name or path as itself, loaded at the first call; an object as "#<serial> <name>", looked up
# here. The serial is never used again, so two objects of one name stay apart, and a stale key finds
# nothing rather than another kernel. Weak: whoever uses the object (a Conv2d, the caller of conv2d)
# keeps it alive; this table does not.
_kernels: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()
_serials = itertools.count(1)


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
    """Return the kernel of a name or path, loaded once; "auto" is the choice for each shape."""
    if name in AUTOS:
        return Auto(engine, name.partition(":")[2])
    return load(name, engine=engine)


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
            **relu_keyword(relu),
        )
    return y.contiguous()


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


def call_with_derivatives(
    kernel: Callable,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    relu: bool,
) -> Tensor:
    """Call a kernel through the op, so that torch can derive it; the core asks for this function."""
    return convolve(x, w, bias, stride, padding, dilation, groups, key_of(kernel), relu)


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
    images, padding = images_and_padding(x, w, stride, padding, dilation)
    stride = pair(stride, "stride")
    dilation = pair(dilation, "dilation")
    if not torch.compiler.is_compiling():  # there, sizes may be symbols
        problem_of_call(images, w, bias, stride, padding, dilation, groups, relu)
    y = _op(images, w, bias, key, stride, padding, dilation, groups, relu)
    return y.squeeze(0) if x.dim() == 3 else y
