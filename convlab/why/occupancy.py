"""How many blocks of a kernel an SM holds at once, and what limits it; the GPUs that we know.

The limits are those of the CUDA C++ Programming Guide, "Compute Capabilities", table "Technical
Specifications per Compute Capability"; how registers and shared memory are handed out is the rule
of NVIDIA's occupancy calculator (``cuda_occupancy.h`` of the toolkit). Neither needs a GPU.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..machine.device import Datasheet, Device, datasheet, describe
from ..words.errors import ProblemError

_PARTITIONS = 4  # of an SM, each with a scheduler and a quarter of the registers


@dataclass(frozen=True)
class Limits:
    """What one SM of a compute capability has, and in which units it is handed out."""

    threads: int
    blocks: int
    shared_bytes: int  # of an SM
    shared_optin_bytes: int  # of a block, when it opts in
    fp32_lanes: int  # multiply-adds of an SM in a cycle
    reserved_bytes: int = 1024  # shared memory that the system takes of each block
    shared_unit: int = 128
    registers: int = 65536
    register_unit: int = 256  # of a warp
    registers_per_thread: int = 255
    threads_per_block: int = 1024

    @property
    def warps(self) -> int:
        """Warps of an SM."""
        return self.threads // 32


_KIB = 1024
LIMITS: dict[int, Limits] = {  # by compute capability: 9.0 is 90
    75: Limits(1024, 16, 64 * _KIB, 64 * _KIB, 64, reserved_bytes=0, shared_unit=256),
    80: Limits(2048, 32, 164 * _KIB, 163 * _KIB, 64),
    86: Limits(1536, 16, 100 * _KIB, 99 * _KIB, 128),
    87: Limits(1536, 16, 164 * _KIB, 163 * _KIB, 128),
    89: Limits(1536, 24, 100 * _KIB, 99 * _KIB, 128),
    90: Limits(2048, 32, 228 * _KIB, 227 * _KIB, 128),
    100: Limits(2048, 32, 228 * _KIB, 227 * _KIB, 128),
    120: Limits(1536, 24, 100 * _KIB, 99 * _KIB, 128),
}


@dataclass(frozen=True)
class Gpu:
    """A GPU as a kernel is judged on it: size, clock (GHz, boost), caches, bandwidth.

    `driver_name` is the name that the driver gives it, by which `device.datasheet` knows it.
    """

    name: str
    driver_name: str
    sm: int
    sms: int
    l2_bytes: int
    ghz: float

    @property
    def limits(self) -> Limits:
        """What its SMs have."""
        return LIMITS[self.sm]

    @property
    def arch(self) -> str:
        """What nvcc calls it, as in sm_90a, without the prefix."""
        return f"{self.sm}a" if self.sm >= 90 else str(self.sm)

    @property
    def datasheet(self) -> Datasheet | None:
        """What its vendor states."""
        return datasheet(self.driver_name)


_MIB = 1 << 20
# SMs, L2 and boost clocks: NVIDIA's architecture white papers (Turing, A100, Ada, H100); the clock
# is the one at which the datasheet's fp32 rate is 2 * lanes * SMs * clock.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", "Tesla T4", 75, 40, 4 * _MIB, 1.59),
        Gpu("A100", "NVIDIA A100-SXM4-80GB", 80, 108, 40 * _MIB, 1.41),
        Gpu("L4", "NVIDIA L4", 89, 58, 48 * _MIB, 2.04),
        Gpu("RTX 4090", "NVIDIA GeForce RTX 4090", 89, 128, 72 * _MIB, 2.52),
        Gpu("H100", "NVIDIA H100 80GB HBM3", 90, 132, 50 * _MIB, 1.98),
        Gpu("H200", "NVIDIA H200", 90, 132, 50 * _MIB, 1.98),
    )
}


def find_gpu(wanted: str | Gpu | None = None) -> Gpu:
    """Return a GPU by name; without one, the GPU that is there, else an H200.

    Raises
    ------
    ProblemError
        No such GPU is known here; the message names those that are.
    """
    if isinstance(wanted, Gpu):
        return wanted
    if wanted is None:
        here = describe()
        return GPUS["H200"] if here is None else _from_device(here)
    by_key = {_key(name): gpu for name, gpu in GPUS.items()}
    if _key(wanted) in by_key:
        return by_key[_key(wanted)]
    near = difflib.get_close_matches(_key(wanted), by_key, n=1)
    hint = f"did you mean {by_key[near[0]].name}? " if near else ""
    raise ProblemError(f"no GPU {wanted!r} is known; {hint}There are {', '.join(GPUS)}")


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce|rtx", "", name.lower())


def _from_device(device: Device) -> Gpu:
    """The GPU that is there: as the table has it, or with its capability's limits."""
    sm = max((known for known in LIMITS if known <= device.sm), default=75)
    known = next((gpu for gpu in GPUS.values() if gpu.driver_name == device.name), None)
    sheet, lanes = device.datasheet, LIMITS[sm].fp32_lanes
    stated = sheet.fp32_tflops * 1e3 / (2 * lanes * device.sm_count) if sheet else 1.7
    ghz = known.ghz if known else stated
    name = known.name if known else device.name.removeprefix("NVIDIA ")
    return Gpu(name, device.name, sm, device.sm_count, device.l2_bytes, ghz)


@dataclass(frozen=True)
class Occupancy:
    """How many blocks an SM holds at once.

    Attributes
    ----------
    blocks, warps
        Of one SM, at once.
    fraction
        warps over the most that an SM can hold.
    limits
        The blocks that each resource alone would allow: "warps", "blocks", and where the kernel
        uses them "registers" and "shared memory".
    limited_by
        The scarcest of them; several are joined by " and ".
    """

    blocks: int
    warps: int
    fraction: float
    limits: dict[str, int]
    limited_by: str


def occupancy(gpu: Gpu, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Return how many blocks of a kernel one SM holds.

    Parameters
    ----------
    gpu : the GPU.
    threads : of a block, 1 to 1024.
    registers : of a thread.
    shared_bytes : of a block, static and dynamic.

    Raises
    ------
    ProblemError
        No such block can exist: over 1024 threads, 255 registers, or none.
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
    return Occupancy(blocks, blocks * warps, blocks * warps / has.warps, limits, _join(scarcest))


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
