"""Choose the dtypes of a layer's call: those of its kernel, also under `torch.autocast`.

A kernel takes the dtypes of its header: most take float32, some bfloat16 or float16. Under autocast
torch casts the inputs of a convolution to autocast's dtype. So does a layer, if its kernel takes that
dtype. The gradient of a float32 parameter is then float32 again, because autograd casts it back.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import ProblemError
from ..core.kernel.call import ConvOptions
from ..core.kernel.data import named_tensors
from ..core.kernel.runnable import Runnable
from ..core.problem.format import FLOAT32
from .keys import kernel_of

# Under autocast, inputs of these dtypes are cast to the kernel's.
HALVES = (torch.float16, torch.bfloat16)
_ALL_FLOAT32 = dict.fromkeys(("x", "w", "y", "bias"), torch.float32)


def dtypes_of(kernel: Callable) -> dict[str, torch.dtype]:
    """Return the dtypes of a kernel's x, w, y and bias; float32 for any other callable."""
    if not isinstance(kernel, Runnable) or kernel.format is FLOAT32:
        return _ALL_FLOAT32
    return {name: storage.torch_dtype for name, storage in kernel.format}


def _dtypes_of_key(key: str, kind: str) -> dict[str, torch.dtype]:
    return dtypes_of(kernel_of(key, torch.device(kind)))


# torch.compile calls the function while it traces, as `key_of`.
_dtypes_of_key._dynamo_marked_constant = True


def require_dtypes(kernel: Callable, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    """Raise ProblemError if a tensor does not have the dtype that a kernel takes."""
    taken = dtypes_of(kernel)
    for name, tensor in named_tensors(x, w, bias):
        # The bias of a kernel of half precision is converted: a model has one dtype for all parameters.
        convertible = name == "bias" and taken["x"] in HALVES and tensor.dtype in HALVES
        if tensor.dtype == taken[name] or convertible:
            continue
        has = str(tensor.dtype).removeprefix("torch.")
        if taken[name] == torch.float32:
            raise ProblemError(
                f"{name} is {has}, but convlab's kernels compute in float32 in layers and conv2d: "
                "convert it with .float(), use torch.nn.Conv2d for this layer, or use a kernel of "
                "that dtype"
            )
        wanted = str(taken[name]).removeprefix("torch.")
        raise ProblemError(
            f"{name} is {has}, but the kernel takes {wanted}: convert it with .to({taken[name]}), or "
            f"call the layer under torch.autocast(dtype={taken[name]})"
        )


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype of the active autocast for a tensor's device; None if there is none."""
    kind = x.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def cast(key: str, *tensors: Tensor | None) -> list[Tensor | None]:
    """Return x, w and bias in the dtypes of a kernel, where autocast casts.

    Float32, float16 and bfloat16 are cast; other dtypes stay, and the call raises a ProblemError.
    This is not part of the op, because torch.compile may ignore an op's rules for autocast.
    """
    taken = _dtypes_of_key(key, tensors[0].device.type)
    found = []
    for name, tensor in zip(("x", "w", "bias"), tensors, strict=True):
        castable = tensor is not None and tensor.dtype in (torch.float32, *HALVES)
        found.append(tensor.to(taken[name]) if castable else tensor)
    return found


def by_torch(x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
    """Return y of torch's own convolution, for which autocast casts the inputs."""
    stride, padding, dilation, groups, relu = options
    y = F.conv2d(x, w, bias, stride, padding, dilation, groups)
    return F.relu(y) if relu else y
