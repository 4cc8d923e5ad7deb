"""Call a function of an extension on the simulator: one simulated run for each call."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import LaunchError
from ..sim.arrays import Array
from ..sim.simulation import Arena, simulate
from . import transport
from .calls import Calls
from .extension import Extension

# The bytes of the result buffer: of the first attempt.
_RESULT = 4 << 20


class Simulated:
    """The functions of a built extension, on the simulator.

    Parameters
    ----------
    extension, library : the extension and its build.
    calls : gets what each call did.
    """

    def __init__(self, extension: Extension, library: Path, calls: Calls) -> None:
        self.extension = extension
        self.library = library
        self.calls = calls
        self.runs = 0

    def call(self, name: str, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a function; tensors on the CPU stand for tensors on the GPU.

        Raises
        ------
        LaunchError
            The simulator found an error, or the run exceeded its time limit.
        RuntimeError, TypeError
            As torch's extension raises them: by TORCH_CHECK, and for unsuitable arguments.
        """
        room = _RESULT
        while True:
            needed, value = self._attempt(name, values, named, room)
            if needed <= room:
                return value
            room = needed

    def _attempt(
        self, name: str, values: Sequence[Any], named: Mapping[str, Any], room: int
    ) -> tuple[int, Any]:
        storages: dict[int, Tensor] = {}
        labels: dict[int, str] = {}
        arrays: dict[str, Array] = {}
        parameters = iter([*self.extension.parameters(name)])

        def memory(tensor: Tensor) -> tuple[str | None, int, bool]:
            storage = tensor.untyped_storage()
            key = storage.data_ptr() or id(storage)
            if key not in labels:
                number = len(labels)
                label = next(parameters, "") or f"argument{number}"
                labels[key] = label if label not in labels.values() else f"{label}{number}"
                storages[key] = _bytes_of(tensor)
                shape = tuple(tensor.shape) if tensor.is_contiguous() else (tensor.numel(),)
                arrays[labels[key]] = Array(shape, tensor.element_size())
            size = storages[key].numel()
            return (labels[key] if size else None), [*labels].index(key), True

        call = transport.words(name, values, named, memory)
        shapes = {labels[key]: storage.numel() for key, storage in storages.items()}
        arena = Arena({**shapes, "(result)": room}, sparse=["(result)"])
        arena.arrays.update(arrays)
        for key, storage in storages.items():
            arena.tensors[labels[key]].copy_(storage)
        schedule = self.runs
        self.runs += 1
        try:
            trace = simulate(
                self.library,
                None,
                arena,
                label=name,
                source=self.extension.path,
                arguments=["(result)", room, 0, 0, *call],
                shape=[1] * 7,
                schedule=schedule,
            )
        except LaunchError as error:
            self.calls.findings += getattr(error, "findings", None) or []
            self.calls.errors.append(str(error))
            raise
        self._record(trace)
        result = arena.tensors["(result)"]
        status, needed = struct.unpack("<qq", bytes(result[:16].numpy()))
        if needed > room:
            return needed, None
        keys = list(labels)
        for key, storage in storages.items():
            if not torch.equal(arena.tensors[labels[key]], storage):
                storage.copy_(arena.tensors[labels[key]])
        view = memoryview(result.numpy())[16:]
        reader = transport.Reader(view, lambda owner: storages[keys[owner]])
        if status:
            text = reader.text()
            self.calls.errors.append(text)
            raise TypeError(text) if status == 2 else RuntimeError(text)
        return needed, reader.value()

    def _record(self, trace: Any) -> None:
        self.calls.launches += len(trace.launches)
        self.calls.findings += trace.findings
        self.calls.by_kernel += trace.launches
        self.calls.lines += trace.lines
        for key, value in trace.counters.items():
            self.calls.counters[key] = self.calls.counters.get(key, 0) + value


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the whole memory of a tensor, as bytes that share it."""
    bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return bytes_.set_(tensor.detach().untyped_storage())
