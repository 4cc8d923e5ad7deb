"""How many blocks of a kernel an SM holds at once, and what limits it.

How registers and shared memory are handed out is the rule of NVIDIA's occupancy calculator
(``cuda_occupancy.h`` of the toolkit). No GPU is needed.
"""

from __future__ import annotations

from typing import NamedTuple

from ..machine.device import Gpu
from ..words.errors import ProblemError

_PARTITIONS = 4  # of an SM, each with a scheduler and a quarter of the registers


class Occupancy(NamedTuple):
    """How many blocks an SM holds at once, and the resources that allow no more."""

    blocks: int
    fraction: float  # of the most warps that an SM can hold
    limited_by: str  # the scarcest of warps, blocks, registers and shared memory


def occupancy(gpu: Gpu, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Return how many blocks of so many threads, registers each and shared memory one SM holds.

    Raises ProblemError if no such block can exist: over 1024 threads, 255 registers, or none.
    """
    has = gpu.limits
    if not 1 <= threads <= has.threads_per_block:
        raise ProblemError(f"a block has 1 to {has.threads_per_block} threads, not {threads}")
    if not 0 <= registers <= has.registers_per_thread:
        raise ProblemError(f"a thread has at most {has.registers_per_thread} registers")
    warps = -(-threads // 32)
    limits = {"warps": has.warps // warps, "blocks": has.blocks}
    if registers:
        # to warps in units of 256; a block must fit as if its warps were spread evenly
        of_a_warp = _up(registers * 32, has.register_unit)
        held = has.registers // _PARTITIONS // of_a_warp * _PARTITIONS // warps
        fits = _up(warps, _PARTITIONS) * of_a_warp <= has.registers
        limits["registers"] = held if fits else 0
    if shared_bytes:
        held = has.shared_bytes // _up(shared_bytes + has.reserved_bytes, has.shared_unit)
        limits["shared memory"] = held if shared_bytes <= has.shared_optin_bytes else 0
    blocks = min(limits.values())
    *others, last = [name for name, value in limits.items() if value == blocks]
    scarcest = f"{', '.join(others)} and {last}" if others else last
    return Occupancy(blocks, blocks * warps / has.warps, scarcest)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
