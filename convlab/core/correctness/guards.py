"""Guard zones: every buffer of a run lies between two zones whose bytes are known.

A write beyond a tensor's ends changes a zone, and the place of the change says how far. The pattern
is a NaN, so that a result computed from outside a buffer is wrong too. A read whose value is not
used is harmless, and not seen.
"""

import functools
import math

import torch
from torch import Tensor

from ..finding import Finding
from ..kernel.runnable import Launch
from . import output

# Bytes on each side: multiples of 512, so that a tensor is aligned as torch's allocator aligns it.
ZONE = {"cuda": 1 << 20, "cpu": 1 << 12}
# The float32 0x7FC0CA9A, a quiet NaN that no arithmetic makes.
_CANARY = (0x9A, 0xCA, 0xC0, 0x7F)


class Guards:
    """The guarded buffers of one run; `violations` says which zones were written."""

    def __init__(self, offset: int = 0) -> None:
        """Let allocated tensors of numbers (y) begin `offset` bytes after an aligned address."""
        self._offset = offset
        # Each whole buffer, and the tensor inside.
        self._kept: list[tuple[Tensor, Tensor]] = []
        # The tensors' names, by address.
        self._names: dict[int, str] = {}

    def place(self, name: str, tensor: Tensor | None, offset: int = 0) -> Tensor | None:
        """Return a copy of a dense tensor between two zones; None for None.

        It begins `offset` bytes after the first zone.
        """
        if tensor is None:
            return None
        flat = self._between(tensor.numel(), tensor.dtype, tensor.device, offset)
        self._names[flat.data_ptr()] = name
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def name(self, launch: Launch) -> None:
        """Name the allocated tensors: which is the launch's y, its workspace, its filter."""
        parts = {"y": launch.y, "workspace": launch.workspace, "the filter's plan": launch.plan}
        for name, tensor in parts.items():
            if tensor is not None:
                self._names.setdefault(tensor.data_ptr(), name)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an unwritten tensor between two zones: `Runnable.prepare`'s `allocate`."""
        offset = 0 if dtype == torch.uint8 else self._offset
        return self._between(math.prod(shape), dtype, device, offset).view(shape)

    def _between(self, size: int, dtype: torch.dtype, device: torch.device, offset: int) -> Tensor:
        zone = ZONE[device.type]
        end = offset + size * dtype.itemsize
        whole = torch.empty(zone + end + zone, dtype=torch.uint8, device=device)
        for place, canary in _zones(whole):
            whole[place] = canary
        # All ones are a NaN.
        whole[zone : zone + offset] = 0xFF
        flat = whole[zone + offset : zone + end].view(dtype)
        self._kept.append((whole, flat))
        return flat

    def violations(self) -> list[Finding]:
        """Return a finding for each zone that was written: of which buffer, how far away."""
        findings = []
        for whole, tensor in self._kept:
            before, after = (whole[place] != canary for place, canary in _zones(whole))
            findings += self._violation(tensor, before.flip(0), True)
            findings += self._violation(tensor, after, False)
        return findings

    def _violation(self, tensor: Tensor, changed: Tensor, before: bool) -> list[Finding]:
        """Return the finding of one zone; `changed` marks its bytes, the nearest first."""
        away = (changed.nonzero().flatten() // tensor.element_size() + 1).unique().tolist()
        if not away:
            return []
        name = self._names.get(tensor.data_ptr(), "memory that it was given")
        unit = "byte" if tensor.dtype == torch.uint8 else "element"
        span = f"{away[0]:,}"
        if len(away) > 1:
            unit += "s"
            span = f"{away[0]:,} to {away[-1]:,}"
        if before:
            side = "before its start"
            beyond = "ahead of the first"
            at = -away[0]
        else:
            side = "after its end"
            beyond = "past the last"
            at = tensor.numel() - 1 + away[0]
        text = (
            f"the kernel wrote outside of {name}: {len(away):,} {unit} changed {side}, "
            f"{span} {beyond}"
        )
        return [output.wrong("global out of bounds", text, name, at)]


def _zones(whole: Tensor) -> tuple[tuple[slice, Tensor], tuple[slice, Tensor]]:
    """Return the slices of a buffer's two zones, each with the bytes that it holds."""
    zone = ZONE[whole.device.type]
    size = whole.numel()
    pattern = _pattern(whole.device)
    # The second zone may begin within a word of four bytes.
    end = (size - zone) % 4
    return (slice(zone), pattern[:zone]), (slice(size - zone, size), pattern[end : end + zone])


@functools.cache
def _pattern(device: torch.device) -> Tensor:
    """Return the canary's bytes, repeated: those of a zone, and four more."""
    once = torch.tensor(_CANARY, dtype=torch.uint8, device=device)
    return once.repeat(ZONE[device.type] // 4 + 1)
