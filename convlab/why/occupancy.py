"""How many blocks of a kernel an SM holds at once, and what limits it.

How registers and shared memory are handed out is the rule of NVIDIA's occupancy calculator
(``cuda_occupancy.h`` of the toolkit). No GPU is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..machine.device import Gpu, Limits
from ..words.errors import ProblemError

_PARTITIONS = 4  # of an SM, each with a scheduler and a quarter of the registers


@dataclass(frozen=True)
class Occupancy:
    """How many blocks an SM holds at once, and the resources that allow no more."""

    blocks: int
    warps: int
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
        limits["registers"] = _blocks_by_registers(has, warps, registers)
    if shared_bytes:
        limits["shared memory"] = _blocks_by_shared(has, shared_bytes)
    blocks = min(limits.values())
    scarcest = [name for name, value in limits.items() if value == blocks]
    return Occupancy(blocks, blocks * warps, blocks * warps / has.warps, _join(scarcest))


def _blocks_by_registers(has: Limits, warps: int, registers: int) -> int:
    """Registers go to warps in units of 256; each of the four partitions has a quarter of them.

    A block must fit as if its warps were spread evenly over the partitions, rounded up.
    """
    of_a_warp = _up(registers * 32, has.register_unit)
    if _up(warps, _PARTITIONS) * of_a_warp > has.registers:
        return 0
    return has.registers // _PARTITIONS // of_a_warp * _PARTITIONS // warps


def _blocks_by_shared(has: Limits, shared_bytes: int) -> int:
    if shared_bytes > has.shared_optin_bytes:
        return 0
    return has.shared_bytes // _up(shared_bytes + has.reserved_bytes, has.shared_unit)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
