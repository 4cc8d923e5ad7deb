"""The tensors of a problem: normal input data, pieces of the output, and checks of tensors."""

import functools
import math
import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin

from ..errors import ProblemError
from ..machine import interrupt
from ..problem.computation import FORWARD, computation
from ..problem.format import FLOAT32, Format
from ..problem.problem import Problem
from .runnable import Inputs, Runnable

Device = str | torch.device
# The method of a tensor that converts it to a dtype.
_CASTS = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}


def inputs(
    problem: Problem, seed: int = 0, device: Device = "cpu", format: Format = FLOAT32
) -> Inputs:
    """Return the first and the second input, and bias or None, with normally distributed numbers.

    The second input is divided by the root of `Problem.terms`, so that the output is of order 1.
    The others are standard normal. The same seed and kind of device give the same numbers. For
    another format than `FLOAT32` they are rounded to its dtypes and stored in its layouts.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)

    w = normal(*problem.second_shape) / math.sqrt(problem.terms)
    bias = normal(problem.K) if problem.bias else None
    x = normal(*problem.first_shape)
    return placed((x, w, bias), format)


def placed(inputs: Inputs, format: Format) -> Inputs:
    """Return the inputs rounded to a format's dtypes and stored in its layouts."""
    x, w, bias = inputs
    if format != FLOAT32:
        x = format.x.place(x.to(format.x.torch_dtype))
        w = format.w.place(w.to(format.w.torch_dtype))
        bias = None if bias is None else bias.to(format.bias.torch_dtype)
    return x, w, bias


def placed_as(format: Format, x: Tensor, w: Tensor, bias: Tensor | None) -> Inputs:
    """Return plain tensors of a format's dtypes in its layouts; copy them only if necessary."""
    bias = None if bias is None else format.bias.place(resolved(bias))
    return format.x.place(resolved(x)), format.w.place(resolved(w)), bias


_lock = threading.Lock()
# The original settings, once for each active `full_precision` block.
_before: list[list[str]] = []


@contextmanager
def full_precision() -> Iterator[None]:
    """Make torch compute float32 products and convolutions in plain fp32 inside the block.

    Several threads may use it at the same time. The last one to leave restores the settings that
    the first one changed.
    """
    # Do not use the older `allow_tf32`: after these settings were used, torch raises an error if
    # `torch.backends.cudnn.flags` reads or sets it.
    gpu = torch.backends
    cpu = torch.backends.mkldnn
    settings = (gpu.cuda.matmul, gpu.cudnn.conv, cpu.matmul, cpu.conv)
    entered = False
    try:
        with interrupt.held(), _lock:
            if _before:
                _before.append(_before[0])
            else:
                _before.append([setting.fp32_precision for setting in settings])
            entered = True
            for setting in settings:
                setting.fp32_precision = "ieee"
        yield
    finally:
        with interrupt.held(), _lock:
            values = _before.pop() if entered else []
            if not _before:
                for setting, value in zip(settings, values):
                    setting.fp32_precision = value


def chunks(problem: Problem, pixels: int) -> Iterator[tuple[slice, slice]]:
    """Yield (images, output rows) that cover the output, each of at most `pixels` or of one row."""
    rows = max(1, min(problem.P, pixels // problem.Q))
    images = 1
    if rows == problem.P:
        images = max(1, pixels // (problem.P * problem.Q))
    for n in range(0, problem.N, images):
        for p in range(0, problem.P, rows):
            yield slice(n, min(n + images, problem.N)), slice(p, min(p + rows, problem.P))


def padded(problem: Problem, x: Tensor, images: slice, rows: slice) -> Tensor:
    """Return the rows of the padded x that these output rows read: (n, C, rows, W + 2 * pad_w)."""
    pad_h, pad_w = problem.padding
    # The first and the last row, counted in x; both may be outside of x.
    first = rows.start * problem.stride[0] - pad_h
    last = (rows.stop - 1) * problem.stride[0] - pad_h + problem.dilation[0] * (problem.R - 1)
    top = min(max(first, 0), problem.H)
    bottom = min(max(last + 1, 0), problem.H)
    # The number of zero rows above and below.
    above = min(max(-first, 0), last - first + 1)
    below = last - first + 1 - above - (bottom - top)
    return F.pad(x[images, :, top:bottom], (pad_w, pad_w, above, below))


# ---- checks of tensors --------------------------------------------------------------------------


def named_tensors(
    x: object, w: object, bias: object, names: Sequence[str] = ("x", "w")
) -> list[tuple[str, Tensor]]:
    """Return the tensors that are not None, with their names; `names` are those of the inputs.

    Raises ProblemError if one is not a tensor, or is not dense.
    """
    named = [*zip(names, (x, w), strict=True)]
    if bias is not None:
        named.append(("bias", bias))
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise ProblemError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
        if isinstance(tensor, UninitializedTensorMixin):
            raise ProblemError(
                f"{name} is an uninitialized parameter: run its lazy module once, which creates it"
            )
        if tensor.is_nested:
            raise ProblemError(
                f"{name} is a nested tensor, not dense: pass {name}.to_padded_tensor(0.0), or call "
                "once for each part"
            )
        if tensor.is_quantized:
            raise ProblemError(f"{name} is quantized: pass {name}.dequantize()")
        if tensor.layout != torch.strided:
            raise ProblemError(f"{name} is {tensor.layout}, not dense: pass {name}.to_dense()")
    return named


# The dispatch keys of tensors that have their own numbers in their own memory. A tensor with
# another key (a subclass with __torch_dispatch__, a FakeTensor, a tensor under vmap) stands for
# other numbers. Each attribute is a key, and a key set is the union of keys.
_PLAIN = functools.reduce(
    operator.or_,
    (
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        for key in (
            *("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"),
            *("ADInplaceOrView", "Negative", "Conjugate", "ZeroTensor"),
        )
    ),
).raw_repr()


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has its own numbers in its own memory, which a kernel can read."""
    if isinstance(tensor, UninitializedTensorMixin):
        return False
    return not torch._C._dispatch_keys(tensor).raw_repr() & ~_PLAIN


def require_memory(x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    """Raise ProblemError unless the memory of each tensor has all of its numbers.

    A kernel reads this memory. So these tensors must be plain, and no storage may be too small.
    """
    for name, tensor in named_tensors(x, w, bias):
        if not is_plain(tensor):
            raise ProblemError(unreadable(name, tensor))
        require_storage(name, tensor)


def require_storage(name: str, tensor: Tensor) -> None:
    """Raise ProblemError if the storage of a plain tensor is smaller than the tensor."""
    if tensor.is_contiguous():
        last = tensor.numel() - 1
    else:
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() and stored < needed:
        raise ProblemError(
            f"{name} needs {needed:,} bytes, but its storage has {stored:,}: something resized "
            "the storage (as FSDP does between uses); restore it, or pass a copy made before"
        )


def alignments(tensors: Sequence[Tensor | None]) -> tuple[int, ...]:
    """Return how many bytes each tensor starts past a multiple of 32, as a kernel will see it.

    Accesses of up to 32 bytes depend on it. A tensor that is not contiguous is copied first.
    """
    # A layer asks at each call, and a generator takes longer.
    found = []
    for tensor in tensors:
        is_read_itself = tensor is not None and tensor.is_contiguous()
        found.append(tensor.data_ptr() % 32 if is_read_itself else 0)
    return tuple(found)


def resolved(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if its memory lacks a pending negation or is only said to be 0."""
    return tensor.clone() if tensor._is_zerotensor() else tensor.resolve_neg()


def unreadable(name: str, tensor: Tensor) -> str:
    """Return a message about a tensor of a class that no kernel can read."""
    return (
        f"{name} is a {type(tensor).__name__}, whose numbers a kernel cannot read: pass a plain "
        "torch.Tensor (of a DTensor, to_local(); of a MaskedTensor, get_data())"
    )


def match(problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    """Raise ProblemError unless the tensors have the problem's shapes and are on one device."""
    shapes = (problem.first_shape, problem.second_shape, (problem.K,) if problem.bias else None)
    names = (*problem.computation.inputs, "bias")
    for name, tensor, expected in zip(names, (x, w, bias), shapes, strict=True):
        shape = None if tensor is None else tuple(tensor.shape)
        if shape != expected:
            raise ProblemError(f"{name} has shape {shape}, but {problem.label} needs {expected}")
        if tensor is not None and tensor.device != x.device:
            raise ProblemError(
                f"{name} is on {tensor.device} and {names[0]} on {x.device}; move one of them"
            )


def require(runnable: Runnable, x: object, w: object, bias: object) -> None:
    """Raise ProblemError unless a runnable accepts the tensors' dtypes and kind of device."""
    computed = computation(runnable.computes) if runnable.computes else FORWARD
    dtypes = {computed.names[place]: stored.torch_dtype for place, stored in runnable.format}
    for name, tensor in named_tensors(x, w, bias, computed.inputs):
        dtype = dtypes[name]
        if tensor.dtype != dtype:
            raise ProblemError(
                f"{name} is {tensor.dtype}, but {runnable.name} takes {dtype}: "
                f"pass {name}.{_CASTS[dtype]}()"
            )
        kind = tensor.device.type
        if kind != runnable.device.type:
            other = "cuda" if kind == "cuda" else "sim"
            runs = kind in ("cpu", "cuda") and not runnable.library
            load = f', or load it with engine="{other}"' if runs else ""
            raise ProblemError(
                f"{name} is on {tensor.device}, but {runnable.name} runs on the engine "
                f'"{runnable.engine}": pass {name}.to("{runnable.device.type}"){load}'
            )
