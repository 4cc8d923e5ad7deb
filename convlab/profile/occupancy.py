"""How many blocks an SM holds at once: the rule of NVIDIA's occupancy calculator.

The rule is that of the CUDA toolkit's ``cuda_occupancy.h``.
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
    blocks : of one SM.
    fraction : its warps, over the most warps that an SM can hold.
    limited_by : the scarcest of warps, blocks, registers and shared memory.
    """

    blocks: int
    fraction: float
    limited_by: str


def occupancy(gpu: Gpu, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Return how many blocks one SM holds.

    Parameters
    ----------
    gpu : the GPU.
    threads : per block.
    registers : per thread.
    shared_bytes : static and dynamic shared memory of a block.

    Raises
    ------
    ProblemError
        No such block can exist: it has no threads or over 1024, or over 255 registers a thread.
    """
    limits = gpu.limits
    if not 1 <= threads <= limits.threads_per_block:
        raise ProblemError(f"a block has 1 to {limits.threads_per_block} threads, not {threads}")
    if not 0 <= registers <= limits.registers_per_thread:
        raise ProblemError(f"a thread has at most {limits.registers_per_thread} registers")
    warps = -(-threads // 32)
    most_blocks = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers:
        # A warp gets registers in whole units. A block must fit as if its warps were spread evenly.
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
