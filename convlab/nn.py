"""Kernels inside a model: a custom op with gradients, ``Conv2d``, ``replace``, ``problems``.

A kernel computes the forward pass only. The gradients are torch's own
(``aten.convolution_backward``), on a GPU in the arithmetic that torch chooses for them: cuDNN with
TF32, unless ``torch.backends.cudnn.allow_tf32 = False``.

Importing this module registers the op ``convlab::conv2d``, so that models which use it can be
compiled, exported and differentiated (``torch.func.grad`` excepted: no op of torch.library has it).
"""

import copy
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad as fwAD
from torch.nn.utils import parametrize

from .words.errors import ProblemError
from .words.problem import Problem, same_padding

DEFAULT_KERNEL = "03_smem_tile"

# An op's schema carries tensors, numbers and strings, so a kernel travels through it as a string:
# a name or path as itself, loaded at the first call; an object as "#<serial> <name>", looked up
# here. The serial is never used again, so two objects of one name stay apart, and a stale key finds
# nothing rather than another kernel. Weak: whoever uses the object (a Conv2d, the caller of conv2d)
# keeps it alive; this table does not.
_kernels: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()
_serials = itertools.count(1)


def _key_of(kernel) -> str:
    """The string that stands for a kernel in the op's arguments."""
    if isinstance(kernel, (str, os.PathLike)):
        text = os.fspath(kernel)
        is_path = text.endswith(".cu") or os.path.dirname(text) != ""
        return os.path.abspath(text) if is_path else text
    for key, held in _kernels.items():  # a handful
        if held is kernel:
            return key
    if not callable(kernel):
        raise ProblemError(
            f"kernel={kernel!r} is no kernel: give a name, the path of a .cu file, "
            "or what convlab.load or convlab.compile returns"
        )
    key = f"#{next(_serials)} {_name_of(kernel)}"
    _kernels[key] = kernel
    return key


# Under torch.compile it is called while tracing, and its answer guarded by the object's identity.
# (torch.compiler.assume_constant_result does this, and imports the whole compiler: 0.6 s.)
_key_of._dynamo_marked_constant = True


def _name_of(kernel) -> str:
    if isinstance(kernel, (str, os.PathLike)):
        return os.fspath(kernel)
    return getattr(kernel, "name", type(kernel).__name__)


def _find(key: str, device: torch.device) -> Callable:
    """The kernel behind a key; one given by name runs where the tensors are."""
    if not key.startswith("#"):
        return _load(key, "cuda" if device.type == "cuda" else "sim")
    kernel = _kernels.get(key)
    if kernel is None:
        raise ProblemError(
            f"the kernel {key.split(' ', 1)[1]!r} that this graph was traced with no longer "
            "exists: keep the object alive, or give the kernel by name"
        )
    return kernel


@functools.lru_cache(maxsize=256)
def _load(name: str, engine: str) -> Callable:
    from .run.kernel import load  # here, so that a model can be built where nothing can be compiled

    return load(name, engine=engine)


# --- the op ---------------------------------------------------------------------------------


if "_library" in globals():  # the module is reloaded
    _library._destroy()
_library = torch.library.Library("convlab", "FRAGMENT")
_library.define(
    "conv2d(Tensor x, Tensor w, Tensor? bias, str kernel, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation, SymInt groups) -> Tensor"
)
_op = torch.ops.convlab.conv2d.default


def _compute(x, w, bias, kernel, stride, padding, dilation, groups) -> Tensor:
    _require_float32(x, w, bias)
    with torch.no_grad():
        y = _find(kernel, x.device)(
            x.detach(), w.detach(), None if bias is None else bias.detach(),
            tuple(stride), tuple(padding), tuple(dilation), groups,
        )  # fmt: skip
    return y.contiguous()


def _shape_only(x, w, bias, kernel, stride, padding, dilation, groups) -> Tensor:
    _require_float32(x, w, bias)
    y = torch.ops.aten.convolution(
        x, w, bias, stride, padding, dilation, False, [0, 0], groups
    )  # torch's own check of the shapes; its strides are another matter
    return torch.empty(y.shape, dtype=x.dtype, device=x.device)


class _Differentiable(torch.autograd.Function):
    """The op, with the gradients and the tangents of torch's convolution."""

    @staticmethod
    def forward(keyset, x, w, bias, *options) -> Tensor:
        with torch.enable_grad(), fwAD._set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
            return _op.redispatch(keyset & torch._C._after_autograd_keyset, x, w, bias, *options)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, x, w, bias, _, *ctx.options = inputs
        ctx.bias_shape = None if bias is None else list(bias.shape)
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx, g_y: Tensor):
        x, w = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.options
        g_x, g_w, g_bias = torch.ops.aten.convolution_backward(
            g_y, x, w, ctx.bias_shape, stride, padding, dilation,
            False, [0, 0], groups, list(ctx.needs_input_grad[1:4]),
        )  # fmt: skip
        return None, g_x, g_w, g_bias, None, None, None, None, None


def _autograd(keyset, x, w, bias, *options):
    (x, t_x), (w, t_w) = fwAD.unpack_dual(x, level=0), fwAD.unpack_dual(w, level=0)
    bias, t_bias = (None, None) if bias is None else fwAD.unpack_dual(bias, level=0)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, w, bias)):
        with torch._functorch.autograd_function.enable_single_level_autograd_function():
            y= super(torch.autograd.Function, _Differentiable).apply(keyset, x, w, bias, *options)
    else:
        y= _Differentiable.forward(keyset, x, w, bias, *options)
    parts = [torch.ops.aten.convolution(a, b, None, *options[1:4], False, [0, 0], options[4]) for a,b in ((t_x, w), (x, t_w)) if a is not None and b is not None]
    if t_bias is not None: parts.append(t_bias[:, None, None].expand_as(y))
    return fwAD.make_dual(y, sum(parts), level=0) if parts else y


_library.impl("conv2d", _compute, "CompositeExplicitAutograd")
_library.impl("conv2d", _autograd, "Autograd", with_keyset=True)
torch.library.register_fake("convlab::conv2d", _shape_only, lib=_library)
for _device_type in ("cuda", "cpu"):
    torch.library.register_autocast("convlab::conv2d", _device_type, torch.float32, lib=_library)


def _require_float32(x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    for what, tensor in (("x", x), ("w", w), ("bias", bias)):
        if tensor is not None and tensor.dtype != torch.float32:
            raise ProblemError(
                f"{what} is {str(tensor.dtype).removeprefix('torch.')}; convlab's kernels compute "
                "in float32: convert it with .float(), or leave this layer to torch.nn.Conv2d"
            )


# --- the function ---------------------------------------------------------------------------


def conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    kernel=DEFAULT_KERNEL,
) -> Tensor:
    """``torch.nn.functional.conv2d`` on a kernel of convlab's, with gradients.

    Parameters
    ----------
    x
        (N, C, H, W) or unbatched (C, H, W), float32, any strides.
    w
        (K, C/groups, R, S), float32.
    bias
        (K,) or None.
    stride, dilation
        An int or a (height, width) pair.
    padding
        An int, a pair, ``"valid"`` (none) or ``"same"`` (P = H, Q = W; stride 1 only).
    groups
        Divides C and K.
    kernel
        A name (``"03_smem_tile"``), the path of a .cu file, or a Kernel object. A name or path is
        loaded at its first call, for the engine that fits x: ``cuda`` for a tensor on a GPU, else
        the simulator. An object follows the edits of its file, and is not kept alive from here.
        Inside ``torch.compile``, give an object on torch 2.13 or later only; names always work.

    Returns
    -------
    Tensor
        y, (N, K, P, Q) or (K, P, Q), float32, contiguous. Under ``torch.autocast`` the inputs are
        cast to float32 (but float64 is not), and y stays float32.

    Raises
    ------
    ProblemError
        Wrong dtype, rank, shapes or arguments.
    UnsupportedError
        The kernel's header says that it cannot do this problem.
    """
    return _run(x, w, bias, stride, padding, dilation, groups, _key_of(kernel))


def _run(x, w, bias, stride, padding, dilation, groups, key: str) -> Tensor:
    if x.dim() not in (3, 4) or w.dim() != 4:
        raise ProblemError(
            f"x has shape {tuple(x.shape)} and w {tuple(w.shape)}: "
            "x must be (N, C, H, W) or (C, H, W), w must be (K, C/groups, R, S)"
        )
    stride, dilation = _pair("stride", stride), _pair("dilation", dilation)
    if padding == "same":
        if stride != (1, 1):
            raise ProblemError("padding='same' needs stride 1: give the padding as numbers")
        before_h, after_h = same_padding(w.shape[2], dilation[0])
        before_w, after_w = same_padding(w.shape[3], dilation[1])
        if (before_h, before_w) != (after_h, after_w):  # an even extent: one more at the end
            x = F.pad(x, (0, after_w - before_w, 0, after_h - before_h))
        padding = (before_h, before_w)
    else:
        padding = (0, 0) if padding == "valid" else _pair("padding", padding)
    batch = x.unsqueeze(0) if x.dim() == 3 else x
    y = _op(batch, w, bias, key, stride, padding, dilation, groups)
    return y.squeeze(0) if x.dim() == 3 else y


def _pair(what: str, value) -> tuple[int, int]:
    if isinstance(value, (tuple, list)):
        if len(value) == 2:
            return tuple(value)
    elif not isinstance(value, str):
        return (value, value)
    also = ", 'same' or 'valid'" if what == "padding" else ""
    raise ProblemError(f"{what}={value!r}: give an int or a (height, width) pair{also}")


# --- the module -----------------------------------------------------------------------------


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` that runs its forward pass on a kernel of convlab's.

    The constructor, the initial numbers under a seed, and the ``state_dict`` are those of
    ``torch.nn.Conv2d``: either loads the other's. All ``padding_mode``s, ``"same"``, ``"valid"``
    and unbatched inputs work. The backward pass is torch's, see this module's docstring.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, \
device, dtype
        As ``torch.nn.Conv2d``. A dtype other than float32 raises at the forward pass.
    kernel
        A name, a path or a Kernel object, as in `conv2d`. It can be assigned later too:
        ``layer.kernel = "02_im2col_gemm"``. A copy of the layer shares the object; a pickle holds
        what was given here.

    Raises
    ------
    ProblemError
        At once, if ``kernel`` is no kernel; at the forward pass, on a wrong dtype or shape.
    CatalogError, BuildError, UnsupportedError, LaunchError
        At the forward pass: no such kernel; it does not compile, cannot do this problem, fails.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device=None,
        dtype=None,
        *,
        kernel=DEFAULT_KERNEL,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.kernel = kernel

    @property
    def kernel(self):
        """The kernel as it was given: a name, a path or an object."""
        return self._kernel

    @kernel.setter
    def kernel(self, kernel) -> None:
        # Past Module.__setattr__, which would take a callable that is a Module for a child.
        self.__dict__.update(_kernel=kernel, _kernel_key=_key_of(kernel))

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return _run(
            input, weight, bias, self.stride, padding, self.dilation, self.groups, self._kernel_key
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={_name_of(self._kernel)}"

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self.kernel = self._kernel  # the key is of this process

    def __deepcopy__(self, memo):
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        memo[id(self._kernel)] = self._kernel  # shared: it holds code, not state
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


# --- whole models ---------------------------------------------------------------------------


def replace(
    model: nn.Module, kernel, *, where: Callable[[str, nn.Module], bool] | None = None
) -> nn.Module:
    """Make every ``torch.nn.Conv2d`` of a model run on a kernel, in place.

    Each layer stays the same object and becomes a `Conv2d` of this module: its parameters, buffers,
    hooks, parametrisations and training flag, and every reference to it, stay as they are, so a
    shared layer stays shared and an optimizer made before goes on working. Subclasses of
    ``torch.nn.Conv2d`` (lazy ones not yet run, quantised ones, ...) are left alone. A layer that is
    a `Conv2d` of this module already gets the new kernel.

    Whether the kernel can do each layer is not known before its input is: a layer it cannot do
    raises UnsupportedError at its forward pass. Leave such layers out with ``where``.

    Parameters
    ----------
    model
        Any module, itself a ``torch.nn.Conv2d`` perhaps.
    kernel
        A name, a path or a Kernel object, as in `conv2d`.
    where
        Called with a layer's name (as in ``named_modules``; of a shared layer, its first) and the
        layer; only those it says True to are replaced.

    Returns
    -------
    nn.Module
        The same ``model``.

    Raises
    ------
    ProblemError
        ``kernel`` is no kernel, or a layer has a forward of its own, which would go on running.
        Nothing is replaced then.
    """
    _key_of(kernel)  # raises before anything is changed
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if parametrize.type_before_parametrizations(module) in (nn.Conv2d, Conv2d)
        and (where is None or where(name, module))
    ]
    for name, layer in layers:
        patched = sorted({"forward", "_conv_forward"} & vars(layer).keys())
        if patched:
            raise ProblemError(
                f"layer {name!r} has a {patched[0]} of its own (a library wrapped it?), which "
                "would hide the kernel: replace before wrapping, or leave it out with where="
            )
    for _, layer in layers:
        layer.__class__ = _class_for(layer)
        layer.kernel = kernel
    return model


def problems(model: nn.Module, *inputs, **keywords) -> list[tuple[str, Problem]]:
    """Run a model once and tell which problem each of its convolutions is.

    Parameters
    ----------
    model
        Any module. It runs without gradients, in the mode it is in: in training mode its
        statistics move, so call ``eval()`` before.
    inputs, keywords
        What the model is called with.

    Returns
    -------
    list of (name, Problem)
        One entry for each call of a ``torch.nn.Conv2d``, replaced or not, or of a subclass, in the
        order of the calls: a shared layer comes several times, one never called does not come.
        What a ``padding_mode`` other than "zeros" adds belongs to the problem's image, as does
        what is odd of the padding "same".

    Raises
    ------
    ProblemError
        A layer is called with what is no problem of convlab's.
    """
    found: list[tuple[str, Problem]] = []

    def hook(name: str) -> Callable:
        return lambda layer, arguments, given: found.append(
            (name, _problem_of(layer, arguments[0] if arguments else given["input"], name))
        )

    handles = [
        layer.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    try:
        with torch.no_grad():
            model(*inputs, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _problem_of(layer: nn.Conv2d, x: Tensor, name: str) -> Problem:
    """The problem that a layer computes for an input, named after the layer."""
    N, C, H, W = x.shape if x.dim() == 4 else (1, *x.shape)
    padding = layer.padding
    if layer.padding_mode != "zeros":
        left, right, top, bottom = layer._reversed_padding_repeated_twice
        H, W, padding = H + top + bottom, W + left + right, 0
    elif padding == "same":
        sizes = zip(layer.kernel_size, layer.dilation, strict=True)
        (top, bottom), (left, right) = (same_padding(size, step) for size, step in sizes)
        H, W, padding = H + bottom - top, W + right - left, (top, left)
    return Problem.from_shapes(
        (N, C, H, W), layer.weight.shape, None if layer.bias is None else layer.bias.shape,
        layer.stride, padding, layer.dilation, layer.groups, name,
    )  # fmt: skip


def _class_for(layer: nn.Module) -> type:
    """Conv2d, with the parametrised tensors of the layer's present class if it has some.

    ``torch.nn.utils.parametrize`` makes a subclass of each layer's class, with a property for
    every tensor that it took over.
    """
    old = type(layer)
    if issubclass(old, Conv2d):
        return old
    if old is nn.Conv2d:
        return Conv2d
    own = {
        name: value
        for name, value in vars(old).items()
        if name not in ("__dict__", "__weakref__", "__deepcopy__")
    }
    return type(old.__name__, (Conv2d,), own)
