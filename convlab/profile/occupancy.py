"""Compute how many blocks an SM holds at once, as NVIDIA's occupancy calculator does.

The rule is the one in the CUDA toolkit's ``cuda_occupancy.h``.
"""

from typing import NamedTuple

from ..core.errors import ProblemError
from ..core.machine.device import Gpu

# An SM has four schedulers; each has a quarter of its registers and its fp32 units.
SCHEDULERS = 4


class Occupancy(NamedTuple):
    """How many blocks an SM holds at once.

    Attributes
    ----------
    blocks : the blocks of one SM.
    fraction : their warps, divided by the most warps that an SM can hold.
    limited_by : the resource that allows no more blocks: warps, blocks, registers, shared memory.
    """

    blocks: int
    fraction: float
    limited_by: str


def occupancy(gpu: Gpu, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Return how many blocks one SM holds.

    Parameters
    ----------
    gpu : the GPU.
    threads : the threads of a block.
    registers : the registers of a thread.
    shared_bytes : the shared memory of a block, static and dynamic, in bytes.

    Raises
    ------
    ProblemError
        A block has 1 to 1024 threads, and a thread at most 255 registers.
    """
    limits = gpu.limits
    if not 1 <= threads <= limits.threads_per_block:
        raise ProblemError(f"a block has 1 to {limits.threads_per_block} threads, not {threads}")
    if not 0 <= registers <= limits.registers_per_thread:
        most = limits.registers_per_thread
        raise ProblemError(f"a thread has at most {most} registers, not {registers}")
    warps = -(-threads // 32)
    most_blocks = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers:
        # A warp gets registers in whole units. A block must fit with its warps spread evenly.
        per_warp = _round_up(registers * 32, limits.register_unit)
        warps_per_scheduler = limits.registers // SCHEDULERS // per_warp
        fits = _round_up(warps, SCHEDULERS) * per_warp <= limits.registers
        most_blocks["registers"] = warps_per_scheduler * SCHEDULERS // warps if fits else 0
    if shared_bytes:
        per_block = _round_up(shared_bytes + limits.reserved_bytes, limits.shared_unit)
        fits = shared_bytes <= limits.shared_optin_bytes
        most_blocks["shared memory"] = limits.shared_bytes // per_block if fits else 0
    blocks = min(most_blocks.values())
    *others, last = [name for name, most in most_blocks.items() if most == blocks]
    scarcest = f"{', '.join(others)} and {last}" if others else last
    return Occupancy(blocks, blocks * warps / limits.warps, scarcest)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
