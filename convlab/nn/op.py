"""Define the torch op ``convlab::conv2d``: a kernel with derivatives.

A kernel computes only the forward pass. torch's own convolutions compute the derivatives, or, where
they are faster, the rungs for gradients do (`gradients.py`). The import of this module registers the
op, so that torch can compile and export a graph that contains it.

There are two ways to call a kernel:

- The op. `torch.library.register_autograd` registers its gradients. torch.compile, torch.export and
  torch.jit record it as one node.
- `_Convolution`, a `torch.autograd.Function` around the op. The transforms of `torch.func` need
  it, because they do not support the gradients of `register_autograd`.

Forward mode (jvp, jacfwd) is not supported.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..core import arguments
from ..core.errors import ConvlabError, ProblemError
from ..core.kernel.call import (
    ConvOptions,
    has_tangent,
    images_and_padding,
    is_transformed,
    problem_of_call,
    relu_keyword,
)
from ..core.kernel.data import is_plain, named_tensors, require_memory, unreadable
from ..core.kernel.libraries import Baseline
from ..core.problem.problem import pair
from .choice import AUTOS
from .dtypes import autocast_dtype, by_torch, cast, dtypes_of, require_dtypes
from .gradients import (
    Rungs,
    gradient_kernel,
    gradients_of,
    own_gradients,
    precision_of_gradients,
)
from .keys import kernel_of, key_of
from .repeated import Call, keep, kept, signature

NAME = "convlab::conv2d"

# The classes of the rungs that compute in a dtype.
_CLASSES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_NO_FORWARD_MODE = (
    "convlab's kernels have no forward-mode derivatives (forward_ad, func.jvp, jacfwd, hessian): "
    "use func.vjp, func.jacrev or jacrev(jacrev(f)), or leave the layer to torch.nn.Conv2d"
)


# --- the op ---------------------------------------------------------------------------------

# `torch.library.custom_op` would add a check to every call. It would also import the whole compiler
# at the first call, which takes seconds.
torch.library.define(
    NAME,
    "(Tensor x, Tensor w, Tensor? bias, str kernel, int[] stride, int[] padding, "
    "int[] dilation, int groups, bool relu) -> Tensor",
)


@torch.library.impl(NAME, "default")
def _compute(x, w, bias, kernel, *options) -> Tensor:
    """Call the kernel for a key; the options are those of `convolve`."""
    stride, padding, dilation, groups, relu = options
    chosen = kernel_of(kernel, x.device)
    require_dtypes(chosen, x, w, bias)
    require_memory(x, w, bias)
    # torch would drop the tangent of an op with `register_autograd`, without an error.
    if has_tangent(x, w, bias):
        raise ProblemError(_NO_FORWARD_MODE)
    with torch.no_grad():
        y = chosen(
            x.detach(),
            w.detach(),
            None if bias is None else bias.detach().to(dtypes_of(chosen)["bias"]),
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            groups,
            **relu_keyword(relu),
        )
    return y.contiguous()


@torch.library.register_fake(NAME)
def _empty_output(x, w, bias, kernel, *options) -> Tensor:
    """Return a y without numbers, with the correct shape, dtype and device."""
    chosen = kernel_of(kernel, x.device)
    require_dtypes(chosen, x, w, bias)
    # torch's convolution checks the shapes, for one dtype. Its strides differ from a kernel's.
    stride, padding, dilation, groups, _ = options
    bias = None if bias is None else bias.to(x.dtype)
    y = _torch_convolution(x, w, bias, stride, padding, dilation, groups)
    return torch.empty(y.shape, dtype=dtypes_of(chosen)["y"], device=x.device)


def _save(ctx, inputs, output) -> None:
    """Save the tensors and options that the derivatives need."""
    x, w, bias, ctx.kernel, stride, padding, dilation, groups, relu = inputs
    # torch gives the pairs as lists.
    ctx.options = (tuple(stride), tuple(padding), tuple(dilation), groups)
    ctx.bias_shape = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, w, output if relu else None)


def _backward(ctx, g_y: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the op's inputs."""
    return *_gradients(ctx, g_y), *[None] * 6


def _gradients(ctx, g_y: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, w and bias; like aten's, they are differentiable again."""
    x, w, y = ctx.saved_tensors
    if y is not None:
        # As in torch, the gradient is 0 where y is 0.
        g_y = torch.ops.aten.threshold_backward(g_y, y, 0)
    stride, padding, dilation, groups = ctx.options
    # A kernel may store y in another dtype than it reads x.
    if g_y.dtype != x.dtype:
        g_y = g_y.to(x.dtype)
    needs_dx, needs_dw, needs_bias = ctx.needs_input_grad[:3]
    dx = dw = bias_gradient = None
    if not torch.compiler.is_compiling():
        precision = precision_of_gradients(kernel_of(ctx.kernel, x.device))
        rungs = partial(_rungs, ctx, x, w, precision)
        dx, dw = own_gradients(g_y, x, w, rungs, precision)
    left = [needs_dx and dx is None, needs_dw and dw is None, needs_bias]
    if any(left):
        torch_dx, torch_dw, bias_gradient = torch.ops.aten.convolution_backward(
            g_y, x, w, ctx.bias_shape, stride, padding, dilation, False, [0, 0], groups, left
        )
        dx = torch_dx if dx is None else dx
        dw = torch_dw if dw is None else dw
    return dx, dw, bias_gradient


def _rungs(ctx, x: Tensor, w: Tensor, precision: str) -> Rungs:
    """Return the rungs for the gradients of x and w that are needed."""
    needed = tuple(ctx.needs_input_grad[:2])
    kept = getattr(ctx, "kept", None)
    if kept is not None:
        return kept.gradients(needed, precision)
    _, problem = problem_of_call(x, w, None, (*ctx.options, False))
    return gradients_of(problem, needed, precision)


torch.library.register_autograd(NAME, _backward, setup_context=_save)
_op = torch.ops.convlab.conv2d.default


def _torch_convolution(x, w, bias, stride, padding, dilation, groups) -> Tensor:
    """Return torch's own convolution, without ReLU."""
    return torch.ops.aten.convolution(x, w, bias, stride, padding, dilation, False, [0, 0], groups)


# --- the op under the transforms of torch.func -----------------------------------------------


class _Convolution(torch.autograd.Function):
    """The op with derivatives for the transforms of `torch.func`."""

    @staticmethod
    def forward(*inputs) -> Tensor:
        return _op(*inputs)

    setup_context = staticmethod(_save)
    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx, *tangents) -> None:
        """Raise ProblemError, because forward mode is not supported.

        torch disables forward mode inside this method. A tangent computed here would have no
        derivative, and the jvp of a jvp would be zero without an error.
        """
        raise ProblemError(_NO_FORWARD_MODE)

    @staticmethod
    def vmap(info, in_dims, *inputs) -> tuple[Tensor, int]:
        """Return y for each element of the batch, and the batch's dimension."""
        if not info.batch_size:
            return _no_outputs(in_dims, inputs), 0
        outputs = []
        for i in range(info.batch_size):
            element = [
                value.select(dim, i) if isinstance(dim, int) else value
                for value, dim in zip(inputs, in_dims, strict=True)
            ]
            outputs.append(_Convolution.apply(*element))
        return torch.stack(outputs), 0


def _no_outputs(in_dims, inputs) -> Tensor:
    """Return the outputs of an empty batch: (0, N, K, P, Q)."""
    element = list(inputs)
    for i, dim in enumerate(in_dims[:3]):
        if inputs[i] is not None:
            shape = list(inputs[i].shape)
            if dim is not None:
                del shape[dim]
            element[i] = torch.empty(shape, device="meta")
    return inputs[0].new_empty((0, *_op(*element).shape))


# --- the call -------------------------------------------------------------------------------


def call_with_derivatives(
    kernel: Callable, x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions
) -> Tensor:
    """Call a kernel with derivatives; the core's plain call uses this function."""
    return convolve(x, w, bias, options, key_of(kernel))


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions, key: str) -> Tensor:
    """Call the kernel for a key like ``torch.nn.functional.conv2d``, with derivatives."""
    repeatable = None
    if not torch.compiler.is_compiling():
        repeatable = signature(x, w, bias, options)
    if repeatable is not None:
        call = kept(kernel_of(key, x.device), repeatable)
        if call is not None:
            return _repeat(call, x, w, bias, key)
    stride, padding, dilation, groups, relu = options
    arguments.flag(relu, "relu")
    named_tensors(x, w, bias)
    half = autocast_dtype(x)
    if half is not None and key in AUTOS:
        found = _autocast_key(x, w, bias, options, half)
        if found is None:
            return by_torch(x, w, bias, options)
        key = found
    if half is not None:
        x, w, bias = cast(key, x, w, bias)
    images, padding = images_and_padding(x, w, stride, padding, dilation)
    stride = pair(stride, "stride")
    dilation = pair(dilation, "dilation")
    if torch.compiler.is_compiling():
        # The sizes may be symbols, so there is no check of the problem.
        if is_transformed():
            raise ProblemError(
                "torch.compile cannot trace a torch.func transform (grad, vmap, ...) of convlab's "
                "kernels: call it without torch.compile, or compile the function inside it"
            )
        call = _op
    else:
        _, problem = problem_of_call(images, w, bias, (stride, padding, dilation, groups, relu))
        call = _eager
    y = call(images, w, bias, key, stride, padding, dilation, groups, relu)
    if repeatable is not None and images is x:
        kernel = kernel_of(key, x.device)
        # A kept call converts nothing.
        if bias is None or bias.dtype == dtypes_of(kernel)["bias"]:
            keep(kernel, repeatable, problem)
    return y.squeeze(0) if x.dim() == 3 else y


def _repeat(call: Call, x: Tensor, w: Tensor, bias: Tensor | None, key: str) -> Tensor:
    """Compute a call that was validated before, with derivatives."""
    if call.is_chosen and isinstance(call.runnable, Baseline):
        y = _by_torch(call, x, w, bias)
        if y is not None:
            return y
    requires = x.requires_grad or w.requires_grad or (bias is not None and bias.requires_grad)
    if requires and torch.is_grad_enabled():
        return _Repeated.apply(x, w, bias, call, key)
    return call.runnable.again(call.problem, x, w, bias, looks=not call.is_chosen).contiguous()


def _by_torch(call: Call, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor | None:
    """Return y of a kept call of cuDNN, if no rung computes a gradient of it; else None."""
    if torch.is_grad_enabled():
        needed = (x.requires_grad, w.requires_grad)
        if any(call.kept.gradients(needed, call.runnable.precision)):
            return None
    return call.runnable.differentiable(call.problem, x, w, bias)


class _Repeated(torch.autograd.Function):
    """A kept call with derivatives: the op without torch's dispatcher, which takes longer."""

    @staticmethod
    def forward(ctx, x, w, bias, call: Call, key: str) -> Tensor:
        problem = call.problem
        y = call.runnable.again(problem, x, w, bias, looks=not call.is_chosen).contiguous()
        ctx.kernel = key
        ctx.kept = call.kept
        ctx.options = (problem.stride, problem.padding, problem.dilation, problem.groups)
        ctx.bias_shape = None if bias is None else list(bias.shape)
        ctx.save_for_backward(x, w, y if problem.relu else None)
        return y

    @staticmethod
    def backward(ctx, g_y: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(ctx, g_y), None, None


def _eager(*inputs) -> Tensor:
    """Call the op, also under transforms of `torch.func`.

    Raises ProblemError if the class of a tensor, or `functionalize`, does not support the op.
    """
    tensors = named_tensors(*inputs[:3])
    for name, tensor in tensors:
        if tensor.device != tensors[0][1].device:
            raise ProblemError(
                f"{name} is on {tensor.device} and x on {inputs[0].device}; move one of them"
            )
    try:
        if not is_transformed() or _is_functionalized():
            if not is_transformed() and has_tangent(*inputs[:3]):
                raise ProblemError(_NO_FORWARD_MODE)
            return _op(*inputs)
        return _Convolution.apply(*inputs)
    except ConvlabError:
        raise
    # Of a tensor's class these are: no handler, no rule for the op.
    except (TypeError, RuntimeError) as error:
        if "custom_function_call" in str(error):
            raise ProblemError(
                "torch.func.functionalize of another transform (grad, vmap, ...) does not support "
                "convlab's kernels: call the transform without functionalize"
            ) from None
        for name, tensor in tensors:
            if not is_plain(tensor) and type(tensor) not in (Tensor, FakeTensor):
                raise ProblemError(unreadable(name, tensor)) from error
        raise


def _is_functionalized() -> bool:
    """Return whether the innermost transform of `torch.func` is `functionalize`."""
    functorch = torch._C._functorch
    innermost = functorch.peek_interpreter_stack()
    return innermost.key() == functorch.TransformType.Functionalize


def _autocast_key(
    x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions, half: torch.dtype
) -> str | None:
    """Return the key of the rung that "auto" takes under autocast, or None for torch's convolution."""
    if torch.compiler.is_compiling() or not (x.is_cuda and is_plain(x)):
        return None
    _, problem = problem_of_call(x, w, bias, options)
    rung = gradient_kernel(problem, _CLASSES[half])
    return None if rung is None else key_of(rung)
