"""Detect out-of-bounds writes with guard zones: known bytes before and after every buffer.

A write just outside a tensor changes a zone, and the position of the change shows how far outside.
The bytes of a zone are a NaN, so that an output computed from them is incorrect. A read that does
not change the result is not detected.
"""

import functools
import math

import torch
from torch import Tensor

from ..finding import Finding
from ..kernel.runnable import Launch
from . import output

# Bytes of a zone: a multiple of 512, so that a tensor has the alignment of torch's allocator.
ZONE = {"cuda": 1 << 20, "cpu": 1 << 12}
# Zones begin at a multiple of this many bytes, also on a CPU.
_ALIGNED = 512
# The float32 0x7FC0CA9A in memory order: a quiet NaN that no arithmetic produces.
_CANARY = (0x9A, 0xCA, 0xC0, 0x7F)


class Guards:
    """Hold the guarded buffers of one run; `violations` returns the zones that were written."""

    def __init__(self, offset: int = 0, workspace_offset: int = 0) -> None:
        """Start y, an allocated tensor of numbers, `offset` bytes after an aligned address.

        `workspace_offset` is that of tensors of bytes: the workspace and the prepared filter.
        """
        self._offset = offset
        self._workspace_offset = workspace_offset
        # Each buffer with its zones, and the tensor between them.
        self._kept: list[tuple[Tensor, Tensor]] = []
        # The name of each tensor, by its address.
        self._names: dict[int, str] = {}

    def place(self, name: str, tensor: Tensor | None, offset: int = 0) -> Tensor | None:
        """Return a copy of a dense tensor between two zones; return None for None.

        The copy begins `offset` bytes after the first zone.
        """
        if tensor is None:
            return None
        flat = self._between(tensor.numel(), tensor.dtype, tensor.device, offset)
        self._names[flat.data_ptr()] = name
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def name(self, launch: Launch) -> None:
        """Set the names of the tensors that `allocate` returned: y, workspace, prepared filter."""
        output_name = launch.problem.computation.output
        parts = {
            output_name: launch.y,
            "workspace": launch.workspace,
            "the filter's plan": launch.plan,
        }
        for name, tensor in parts.items():
            if tensor is not None:
                self._names.setdefault(tensor.data_ptr(), name)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialised tensor between two zones: the `allocate` of `Runnable.prepare`."""
        offset = self._workspace_offset if dtype == torch.uint8 else self._offset
        return self._between(math.prod(shape), dtype, device, offset).view(shape)

    def _between(self, size: int, dtype: torch.dtype, device: torch.device, offset: int) -> Tensor:
        zone = ZONE[device.type]
        end = offset + size * dtype.itemsize
        total = zone + end + zone
        memory = torch.empty(total + _ALIGNED, dtype=torch.uint8, device=device)
        start = -memory.data_ptr() % _ALIGNED
        whole = memory[start : start + total]
        for place, canary in _zones(whole):
            whole[place] = canary
        # All ones are a NaN.
        whole[zone : zone + offset] = 0xFF
        flat = whole[zone + offset : zone + end].view(dtype)
        self._kept.append((whole, flat))
        return flat

    def violations(self) -> list[Finding]:
        """Return a finding for each zone that was written, with the buffer and the distance."""
        findings = []
        for whole, tensor in self._kept:
            before, after = (whole[place] != canary for place, canary in _zones(whole))
            findings += self._violation(tensor, before.flip(0), True)
            findings += self._violation(tensor, after, False)
        return findings

    def _violation(self, tensor: Tensor, changed: Tensor, before: bool) -> list[Finding]:
        """Return the finding of one zone; `changed` marks its bytes, the nearest first."""
        distances = (changed.nonzero().flatten() // tensor.element_size() + 1).unique().tolist()
        if not distances:
            return []
        name = self._names.get(tensor.data_ptr(), "an allocated buffer")
        nearest = distances[0]
        unit = "byte" if tensor.dtype == torch.uint8 else "element"
        changed_units = f"{len(distances):,} {unit}" + "s" * (len(distances) > 1)
        span = f"{nearest:,}" if len(distances) == 1 else f"{nearest:,} to {distances[-1]:,}"
        span_units = f"{span} {unit}" + "s" * (span != "1")
        side = "before its start" if before else "past its end"
        at = -nearest if before else tensor.numel() - 1 + nearest
        text = f"the kernel wrote outside of {name}: {changed_units} changed, {span_units} {side}"
        return [output.error_finding("global out of bounds", text, name, at)]


def _zones(whole: Tensor) -> tuple[tuple[slice, Tensor], tuple[slice, Tensor]]:
    """Return the slices of a buffer's two zones, each with the bytes it must hold."""
    zone = ZONE[whole.device.type]
    size = whole.numel()
    pattern = _pattern(whole.device)
    # The second zone may begin in the middle of a 4-byte word.
    end = (size - zone) % 4
    return (slice(zone), pattern[:zone]), (slice(size - zone, size), pattern[end : end + zone])


@functools.cache
def _pattern(device: torch.device) -> Tensor:
    """Return the NaN's bytes, repeated over a zone and four bytes more."""
    once = torch.tensor(_CANARY, dtype=torch.uint8, device=device)
    return once.repeat(ZONE[device.type] // 4 + 1)
