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
from ..core.problem.problem import pair
from .gradients import own_gradients
from .keys import kernel_of, key_of

NAME = "convlab::conv2d"

# Under autocast, inputs of these dtypes are cast to float32.
_HALVES = (torch.float16, torch.bfloat16)
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
    _require_float32(x, w, bias)
    require_memory(x, w, bias)
    # torch would drop the tangent of an op with `register_autograd`, without an error.
    if has_tangent(x, w, bias):
        raise ProblemError(_NO_FORWARD_MODE)
    with torch.no_grad():
        y = kernel_of(kernel, x.device)(
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


@torch.library.register_fake(NAME)
def _empty_output(x, w, bias, kernel, *options) -> Tensor:
    """Return a y without numbers, with the correct shape, dtype and device."""
    _require_float32(x, w, bias)
    # torch's convolution checks the shapes. Its strides differ from a kernel's.
    stride, padding, dilation, groups, _ = options
    y = _torch_convolution(x, w, bias, stride, padding, dilation, groups)
    return torch.empty(y.shape, dtype=x.dtype, device=x.device)


def _save(ctx, inputs, output) -> None:
    """Save the tensors and options that the derivatives need."""
    x, w, bias, ctx.kernel, stride, padding, dilation, groups, relu = inputs
    ctx.options = (stride, padding, dilation, groups)
    ctx.bias_shape = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, w, output if relu else None)


def _backward(ctx, g_y: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs; like aten's, they are differentiable again."""
    x, w, y = ctx.saved_tensors
    if y is not None:
        # As in torch, the gradient is 0 where y is 0.
        g_y = torch.ops.aten.threshold_backward(g_y, y, 0)
    stride, padding, dilation, groups = ctx.options
    needs_dx, needs_dw, needs_bias = ctx.needs_input_grad[:3]
    dx = dw = bias_gradient = None
    if not torch.compiler.is_compiling():
        kernel = kernel_of(ctx.kernel, x.device)
        dx, dw = own_gradients(g_y, x, w, ctx.options, kernel, (needs_dx, needs_dw))
    left = [needs_dx and dx is None, needs_dw and dw is None, needs_bias]
    if any(left):
        torch_dx, torch_dw, bias_gradient = torch.ops.aten.convolution_backward(
            g_y, x, w, ctx.bias_shape, stride, padding, dilation, False, [0, 0], groups, left
        )
        dx = torch_dx if dx is None else dx
        dw = torch_dw if dw is None else dw
    return dx, dw, bias_gradient, *[None] * 6


torch.library.register_autograd(NAME, _backward, setup_context=_save)
_op = torch.ops.convlab.conv2d.default


def _torch_convolution(x, w, bias, stride, padding, dilation, groups) -> Tensor:
    """Return torch's own convolution, without ReLU."""
    return torch.ops.aten.convolution(x, w, bias, stride, padding, dilation, False, [0, 0], groups)


def _require_float32(*tensors: Tensor | None) -> None:
    for name, tensor in named_tensors(*tensors):
        if tensor.dtype != torch.float32:
            raise ProblemError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, but convlab's kernels "
                "compute in float32 in layers and conv2d: convert it with .float(), use "
                "torch.nn.Conv2d for this layer, or call a kernel of that dtype directly"
            )


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
    stride, padding, dilation, groups, relu = options
    arguments.flag(relu, "relu")
    named_tensors(x, w, bias)
    x, w, bias = _without_autocast(x, w, bias)
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
        problem_of_call(images, w, bias, (stride, padding, dilation, groups, relu))
        call = _eager
    y = call(images, w, bias, key, stride, padding, dilation, groups, relu)
    return y.squeeze(0) if x.dim() == 3 else y


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


def _without_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Return the tensors; under autocast, float16 and bfloat16 are cast to float32.

    This is not part of the op, because torch.compile may ignore an op's rules for autocast.
    """
    kind = tensors[0].device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return list(tensors)
    return [t.float() if t is not None and t.dtype in _HALVES else t for t in tensors]
