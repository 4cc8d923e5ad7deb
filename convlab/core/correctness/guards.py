"""Guard zones: every buffer of a run lies between two zones whose bytes are known.

A write beyond a tensor's ends changes a zone, and where it did says how far. The pattern is a NaN,
so that a result computed from what lies outside a buffer is wrong too. A read that is thrown away is
harmless, and not seen.
"""

import functools
import math

import torch
from torch import Tensor

from ..finding import Finding
from ..kernel.runnable import Launch
from . import output

# Bytes on each side: multiples of 512, so that a tensor starts as torch's allocator starts it.
ZONE = {"cuda": 1 << 20, "cpu": 1 << 12}
_CANARY = (0x9A, 0xCA, 0xC0, 0x7F)  # the float32 0x7FC0CA9A, a quiet NaN that no arithmetic makes


class Guards:
    """The guarded buffers of one run; `violations` says which of them were written around."""

    def __init__(self, offset: int = 0) -> None:
        """Numbers that are not `place`d, y's, begin `offset` bytes past an aligned address."""
        self._offset = offset
        self._kept: list[tuple[Tensor, Tensor]] = []  # all of it, the tensor
        self._names: dict[int, str] = {}  # by the tensor's address

    def place(self, name: str, tensor: Tensor | None, offset: int = 0) -> Tensor | None:
        """Return a copy of a tensor without gaps (of None: None) between two zones.

        It begins `offset` bytes behind the first of them.
        """
        if tensor is None:
            return None
        flat = self._between(tensor.numel(), tensor.dtype, tensor.device, offset)
        self._names[flat.data_ptr()] = name
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def name(self, launch: Launch) -> None:
        """Learn which of what was allocated is the launch's y, its workspace, its filter."""
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
        whole[zone : zone + offset] = 0xFF  # NaN
        flat = whole[zone + offset : zone + end].view(dtype)
        self._kept.append((whole, flat))
        return flat

    def violations(self) -> list[Finding]:
        """Say of each buffer that was written around: on which side, how far away."""
        found = []
        for whole, tensor in self._kept:
            name = self._names.get(tensor.data_ptr(), "memory that it was given")
            unit = "byte" if tensor.dtype == torch.uint8 else "element"
            before, after = (whole[place] != canary for place, canary in _zones(whole))
            for changed, side, beyond in (
                (before.flip(0), "before its start", "ahead of the first"),
                (after, "after its end", "past the last"),
            ):
                away = (changed.nonzero().flatten() // tensor.element_size() + 1).unique().tolist()
                if away:
                    span = f"{away[0]:,} to {away[-1]:,}" if len(away) > 1 else f"{away[0]:,}"
                    text = (
                        f"the kernel wrote outside of {name}: {len(away):,} {unit}"
                        f"{'s' * (len(away) > 1)} changed {side}, {span} {beyond}"
                    )
                    at = -away[0] if changed is not after else tensor.numel() - 1 + away[0]
                    found.append(output.wrong("global out of bounds", text, name, at))
        return found


def _zones(whole: Tensor) -> tuple[tuple[slice, Tensor], tuple[slice, Tensor]]:
    """Where the two zones of a buffer are, and what stands there: a tensor's odd end cuts it."""
    zone = ZONE[whole.device.type]
    size = whole.numel()
    pattern = _pattern(whole.device)
    end = (size - zone) % 4
    return (slice(zone), pattern[:zone]), (slice(size - zone, size), pattern[end : end + zone])


@functools.cache
def _pattern(device: torch.device) -> Tensor:
    """The canary's bytes, over and over: a zone's, and four more."""
    once = torch.tensor(_CANARY, dtype=torch.uint8, device=device)
    return once.repeat(ZONE[device.type] // 4 + 1)
