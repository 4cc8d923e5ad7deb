"""Buffers with a canary before and after them: a write beyond a tensor's ends is seen, and where.

The canary is a NaN, so that a result made from what lies outside a buffer is wrong too; reading it
and throwing it away is harmless.
"""

from __future__ import annotations

import functools
import math

import torch

# Bytes on each side: multiples of 512, so that a tensor starts as torch's allocator starts it.
ZONE = {"cuda": 1 << 20, "cpu": 1 << 12}
_CANARY = (0x9A, 0xCA, 0xC0, 0x7F)  # the float32 0x7FC0CA9A, a quiet NaN that no arithmetic makes


class Guards:
    """The guarded buffers of one run; `violations` says which of them were written around."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # all of it, the middle

    def place(self, name: str, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Return a contiguous copy of a tensor (of None: None) between two zones."""
        if tensor is None:
            return None
        return self._make(name, tuple(tensor.shape), tensor.dtype, tensor.device).copy_(tensor)

    def allocate(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return an unwritten tensor between two zones: `Kernel.prepare`'s `allocate`.

        Bytes are the workspace, all else is y. Raises torch.OutOfMemoryError.
        """
        return self._make("workspace" if dtype == torch.uint8 else "y", shape, dtype, device)

    def violations(self) -> list[str]:
        """Say in a line each which buffer was written around: on which side, how far away."""
        lines = []
        for name, (whole, middle) in self._kept.items():
            zone = ZONE[whole.device.type]
            size = middle.numel() * middle.element_size()
            pattern = _pattern(whole.device)
            before = whole[:zone] != pattern[:zone]
            after = whole[zone + size :] != pattern[size % 4 : size % 4 + zone]
            sides = ((before.flip(0), "before its start", "ahead of the first"),
                     (after, "after its end", "past the last"))  # fmt: skip
            for changed, side, beyond in sides:
                if not changed.any():
                    continue
                away = (changed.nonzero().flatten() // middle.element_size() + 1).unique()
                near, far, unit = int(away[0]), int(away[-1]), "element"
                if middle.dtype == torch.uint8:
                    unit = "byte"
                span = f"{near:,}" if near == far else f"{near:,} to {far:,}"
                lines.append(
                    f"the kernel wrote outside of {name}: {len(away):,} {unit}"
                    f"{'s' * (len(away) > 1)} changed {side}, {span} {beyond}"
                )
        return lines

    def _make(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        zone = ZONE[device.type]
        size = math.prod(shape) * dtype.itemsize
        whole = torch.empty(zone + size + zone, dtype=torch.uint8, device=device)
        pattern = _pattern(device)
        whole[:zone] = pattern[:zone]
        whole[zone + size :] = pattern[size % 4 : size % 4 + zone]
        middle = whole[zone : zone + size].view(dtype).view(shape)
        self._kept[name] = (whole, middle)
        return middle


@functools.cache
def _pattern(device: torch.device) -> torch.Tensor:
    """The canary's bytes, over and over: a zone, and what a tensor's odd end cuts off."""
    once = torch.tensor(_CANARY, dtype=torch.uint8, device=device)
    return once.repeat(ZONE[device.type] // 4 + 1)
