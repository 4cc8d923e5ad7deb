"""Call a function of an extension on the GPU, in this process: only in the confined child.

The extension is built with the small ``torch::Tensor`` (``include/``). It allocates through torch: a
callback returns the memory of a new tensor, so that torch's allocator and stream are used.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Mapping, Sequence
from ctypes import c_char, c_double, c_int, c_int64, c_longlong, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import transport
from .calls import Calls
from .extension import ENTRY, Extension

# The bytes of the result buffer: tensors on the GPU are not copied into it.
_RESULT = 16 << 20


class _Pointer(int):
    """An address in a call."""


class _Word(ctypes.Structure):
    """A word of a call, as adopt::Word in include/adopt/call.h."""

    _fields_ = (
        ("pointer", c_void_p),
        ("real", c_double),
        ("whole", c_longlong),
        ("is_real", c_int),
    )


_Allocate = ctypes.CFUNCTYPE(c_void_p, c_size_t, ctypes.POINTER(c_int64))


class OnGpu:
    """The functions of a built extension, on the current GPU.

    Parameters
    ----------
    extension, library : the extension and its build.
    calls : gets the errors.
    """

    def __init__(self, extension: Extension, library: Path, calls: Calls) -> None:
        self.extension = extension
        self.calls = calls
        self._entry = ctypes.CDLL(str(library))[ENTRY]
        self._entry.restype = ctypes.c_char_p
        self._numbers = itertools.count()
        self._owned: dict[int, Tensor] = {}
        self._failure: Exception | None = None
        self._allocate = _Allocate(self._new)
        self._result = (c_char * _RESULT)()

    def _new(self, size: int, owner: Any) -> int | None:
        """Allocate memory with torch; return its address, or None if there is not enough."""
        try:
            tensor = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            self._failure = error
            return None
        owner[0] = self._own(tensor)
        return tensor.data_ptr()

    def _own(self, tensor: Tensor) -> int:
        number = next(self._numbers)
        self._owned[number] = tensor
        return number

    def call(self, name: str, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a function.

        Raises
        ------
        RuntimeError, TypeError
            As torch's extension raises them: by TORCH_CHECK, and for unsuitable arguments.
        torch.OutOfMemoryError
            The function allocated more memory than there is.
        """
        self._owned = {}
        self._failure = None

        def memory(tensor: Tensor) -> tuple[_Pointer, int, bool]:
            bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            bytes_.set_(tensor.detach().untyped_storage())
            address = tensor.untyped_storage().data_ptr()
            return _Pointer(address), self._own(bytes_), tensor.is_cuda

        head = [
            _Pointer(ctypes.addressof(self._result)),
            _RESULT,
            torch.cuda.current_stream().cuda_stream,
            ctypes.cast(self._allocate, c_void_p).value,
        ]
        words = [*head, *transport.words(name, values, named, memory)]
        self._entry((_Word * len(words))(*map(_word, words)), None)
        status, needed = struct.unpack_from("<qq", self._result)
        if self._failure is not None:
            raise self._failure
        if needed > _RESULT:
            raise RuntimeError(f"{name} returns more than {_RESULT >> 20} MiB of CPU memory")
        reader = transport.Reader(memoryview(self._result)[16:], self._owned.__getitem__)
        if status:
            text = reader.text()
            self.calls.errors.append(text)
            raise TypeError(text) if status == 2 else RuntimeError(text)
        return reader.value()


def _word(value: Any) -> _Word:
    if isinstance(value, _Pointer):
        return _Word(pointer=int(value))
    if isinstance(value, float):
        return _Word(real=value, is_real=1)
    return _Word(whole=int(value or 0))
