"""Write a call as numbers, and read its result: Python's side of ``include/adopt/call.h``."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

NONE, WHOLE, REAL, TRUTH, TENSOR, TEXT, LIST = range(7)
# The numbers of c10::ScalarType in adopt/tensor.h.
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.bool,
)
# A tensor's memory: the word for its pointer, its number, and whether it is on the GPU.
Memory = Callable[[Tensor], tuple[Any, int, bool]]


def words(
    name: str, values: Sequence[Any], named: Mapping[str, Any], memory: Memory
) -> list[int | float | str | None]:
    """Return a call as a list of numbers; `memory` gives the word for a tensor's memory.

    Raises TypeError for a value that no parameter takes.
    """
    out: list[Any] = [*_text(name), len(values)]
    for value in values:
        out += _value(value, memory)
    out.append(len(named))
    for key, value in named.items():
        out += _text(key)
        out += _value(value, memory)
    return out


def _text(text: str) -> list[int]:
    data = text.encode()
    return [len(data), *data]


def _value(value: Any, memory: Memory) -> list[Any]:
    if value is None:
        return [NONE]
    if isinstance(value, Tensor):
        return _tensor(value, memory)
    if isinstance(value, bool):
        return [TRUTH, int(value)]
    if isinstance(value, int):
        return [WHOLE, value]
    if isinstance(value, float):
        return [REAL, value]
    if isinstance(value, str):
        return [TEXT, *_text(value)]
    if isinstance(value, (list, tuple)):
        out = [LIST, len(value)]
        for each in value:
            out += _value(each, memory)
        return out
    if isinstance(value, torch.dtype) and value in DTYPES:
        return [WHOLE, DTYPES.index(value)]
    raise TypeError(f"incompatible function arguments: a {type(value).__name__}")


def _tensor(tensor: Tensor, memory: Memory) -> list[Any]:
    if tensor.dtype not in DTYPES:
        raise TypeError(f"convlab's small torch::Tensor has no {tensor.dtype}")
    pointer, owner, on_gpu = memory(tensor)
    size = tensor.untyped_storage().nbytes()
    return [
        TENSOR,
        DTYPES.index(tensor.dtype),
        int(on_gpu),
        owner,
        size,
        tensor.storage_offset(),
        tensor.dim(),
        *tensor.shape,
        *tensor.stride(),
        pointer,
    ]


class Reader:
    """Read a result from the bytes of the result buffer.

    Parameters
    ----------
    data : the bytes after the head.
    owned : returns the tensor of bytes that has a number.
    """

    def __init__(self, data: memoryview, owned: Callable[[int], Tensor]) -> None:
        self.data = data
        self.owned = owned
        self.at = 0

    def whole(self) -> int:
        """Read a whole number."""
        (value,) = struct.unpack_from("<q", self.data, self.at)
        self.at += 8
        return value

    def bytes(self, count: int) -> memoryview:
        """Read bytes, which are padded to 8."""
        taken = self.data[self.at : self.at + count]
        self.at += -(-count // 8) * 8
        return taken

    def text(self) -> str:
        """Read a text."""
        return bytes(self.bytes(self.whole())).decode(errors="replace")

    def value(self) -> Any:
        """Read a value."""
        tag = self.whole()
        if tag == WHOLE:
            return self.whole()
        if tag == TRUTH:
            return bool(self.whole())
        if tag == REAL:
            return struct.unpack("<d", self.bytes(8))[0]
        if tag == TEXT:
            return self.text()
        if tag == TENSOR:
            return self._tensor()
        if tag == LIST:
            is_tuple = self.whole()
            values = [self.value() for _ in range(self.whole())]
            return tuple(values) if is_tuple else values
        return None

    def _tensor(self) -> Tensor:
        dtype = DTYPES[self.whole()]
        self.whole()
        owner = self.whole()
        offset = self.whole()
        dims = self.whole()
        sizes = [self.whole() for _ in range(dims)]
        strides = [self.whole() for _ in range(dims)]
        copied = self.whole()
        if copied or owner < 0:
            storage = torch.empty(copied, dtype=torch.uint8)
            if copied:
                storage.copy_(torch.frombuffer(bytearray(self.bytes(copied)), dtype=torch.uint8))
        else:
            storage = self.owned(owner)
        whole = torch.empty(0, dtype=dtype, device=storage.device)
        return whole.set_(storage.untyped_storage(), offset, sizes, strides)
