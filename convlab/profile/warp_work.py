"""What a warp of a kernel has to do, and how fast the warps of an SM get it done.

Each warp keeps the issue slots, arithmetic units, shared memory and L1 busy for some cycles, and
waits for others. How warps share an SM is mean value analysis of a closed queueing network (Reiser
and Lavenberg, JACM 27(2), 1980). MODEL.md explains the idea.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.machine.device import Gpu
from .launched_functions import SECTOR_BYTES
from .occupancy import SCHEDULERS
from .sass import Function, Instruction
from .warp_stalls import stalls

# Lanes of an SM for additions, shifts, logic and comparisons; of compute capability below 10.
INTEGER_LANES = 64
FP32_KINDS = ("FFMA", "FADD FMUL")
# Cycles of a load of global memory that hits L1, or L2, or neither.
L1_CYCLES = 40
L2_CYCLES = 270
DRAM_CYCLES = 600
# Where it was not counted: the share of requests that miss L1, and of those the share of DRAM.
_ASSUMED_L1_MISSES = 0.2
_ASSUMED_FROM_DRAM = 0.5
# L1 serves four sectors a cycle.
_L1_SECTORS = 4
# The share of the datasheet's rate that HMMA reaches from compute capability 9.0 on, where only
# HGMMA reaches all of it.
_HMMA_SHARE = 0.65


def load_cost(counters: Mapping[str, float], dram_bytes: float) -> tuple[float, float]:
    """Return the share of warps' requests for global memory that miss L1, and a load's cycles.

    A sector misses L1 if its block requests it for the first time. The share of these that come
    from DRAM follows from the bytes that the launch moves through DRAM.
    """
    requests = 0
    for kind in ("load", "store"):
        requests += counters.get(f"global_{kind}_requests", 0)
    first_touches = counters.get("block_sectors", 0)
    misses = _ASSUMED_L1_MISSES
    from_dram = _ASSUMED_FROM_DRAM
    if requests and first_touches:
        misses = min(1.0, first_touches / requests)
        from_dram = min(1.0, dram_bytes / SECTOR_BYTES / first_touches)
    beyond_l1 = L2_CYCLES + from_dram * (DRAM_CYCLES - L2_CYCLES)
    return misses, L1_CYCLES + misses * (beyond_l1 - L1_CYCLES)


@dataclass
class Phase:
    """One warp's work between two barriers, over all iterations of the loop around them.

    Attributes
    ----------
    alone : the cycles that it takes a warp that has the SM to itself.
    busy : the cycles for which it keeps each resource of its scheduler (a quarter of the SM's).
    """

    alone: float = 0.0
    busy: Counter[str] = field(default_factory=Counter)

    def rate(self, warps: float) -> float:
        """Return how many of so many warps finish it per cycle."""
        demand = max(self.busy.values(), default=0.0)
        return throughput(warps, demand, max(0.0, self.alone - demand))


@dataclass(frozen=True)
class WarpWork:
    """What a warp of one function does, phase by phase.

    Attributes
    ----------
    phases : in their order.
    mix : the instructions that it executes, by kind.
    tensor_flops : its operations on tensor cores, as many as take the same time at the datasheet's
        TF32 rate.
    """

    phases: tuple[Phase, ...]
    mix: dict[str, float]
    tensor_flops: float

    @classmethod
    def of(
        cls,
        function: Function,
        counts: Mapping[int, float],
        lines: Sequence[Mapping[str, Any]],
        gpu: Gpu,
        load_cycles: float,
        warps: float,
    ) -> WarpWork:
        """Divide a function's instructions and counted lines evenly among its warps.

        `counts` is how often each instruction runs, by address, over all `warps`.
        """
        waits = stalls(function, counts, load_cycles)
        fp32_lanes = gpu.limits.fp32_lanes / SCHEDULERS
        phases = [Phase()]
        phase_at = {}
        mix: Counter[str] = Counter()
        tensor_flops = 0.0
        for instruction in function.instructions:
            address = instruction.address
            phase = phases[-1]
            phase_at[address] = phase
            if instruction.opcode.startswith("BAR"):
                phases.append(Phase())
            count = counts.get(address, 0.0) / warps
            if not count or instruction.opcode == "NOP":
                continue
            mix[instruction.kind] += count
            tensor_flops += count * instruction.tensor_flops / _tensor_rate(instruction, gpu)
            phase.alone += count * (1 + waits.get(address, 0.0))
            phase.busy["issue"] += count
            if instruction.is_integer:
                phase.busy["integer"] += count * 32 / (INTEGER_LANES / SCHEDULERS)
            if instruction.kind in FP32_KINDS:
                phase.busy["fp32"] += count * 32 / fp32_lanes
        for row in lines:
            for address, share in _shares(function, counts, row):
                busy = phase_at[address].busy
                units = row["units"] / warps * share
                requests = row["requests"] / warps * share
                if row["space"] == "shared":
                    busy["shared"] += SCHEDULERS * units
                else:
                    busy["L1"] += SCHEDULERS * max(requests, units / _L1_SECTORS)
        return cls(tuple(phases), dict(mix), tensor_flops)

    @property
    def busy(self) -> dict[str, float]:
        """The cycles for which a warp keeps each resource of its scheduler."""
        return sum((phase.busy for phase in self.phases), Counter())

    def cycles(self, warps_per_block: float, blocks: float, resident_blocks: float) -> float:
        """Return the cycles that an SM takes for some blocks, so many of them resident at a time."""
        warps = warps_per_block / SCHEDULERS
        if len(self.phases) == 1:
            return blocks * warps / self.phases[0].rate(warps * resident_blocks)
        # The warps of a block go through a phase together, and only other blocks fill their waits.
        alone = sum(warps / phase.rate(warps) for phase in self.phases if phase.alone)
        demand = warps * max(self.busy.values(), default=0.0)
        return blocks / throughput(resident_blocks, demand, max(0.0, alone - demand))


def throughput(customers: float, demand: float, think: float) -> float:
    """Return the rounds per cycle: mean value analysis with one queue and a delay.

    A round takes `demand` cycles of the queue's server and `think` cycles elsewhere. The rate of a
    fraction of a customer is interpolated between whole numbers.
    """
    if demand <= 0:
        return customers / max(think, 1.0)
    queue_length = 0.0
    rates = [0.0]
    for n in range(1, math.ceil(customers) + 1):
        response = demand * (1 + queue_length)
        rates.append(n / (think + response))
        queue_length = rates[-1] * response
    return float(np.interp(customers, range(len(rates)), rates))


def _tensor_rate(instruction: Instruction, gpu: Gpu) -> float:
    """Return a tensor core instruction's rate; 1 is the datasheet's TF32 rate."""
    rate = 1.0 if "TF32" in instruction.opcode else 2.0
    return rate * (_HMMA_SHARE if gpu.sm >= 90 and instruction.kind == "HMMA" else 1.0)


def _shares(
    function: Function, counts: Mapping[int, float], row: Mapping[str, Any]
) -> Iterator[tuple[int, float]]:
    """Yield the address of each access compiled from a line, and its share of the line's units.

    Where nvcc generated one 128-bit read of shared memory from 32-bit ones, the hardware takes
    half of the wavefronts that were counted: lanes that share the words get them in two turns.
    """
    copies = function.compiled_from(row)
    moved = {i: i.width * counts.get(i.address, 0.0) for i in copies}
    total = sum(moved.values())
    if not total:
        return
    source_width = 8 * row["bytes"] / row["lanes"] if row["lanes"] else 32
    for instruction in copies:
        merged = row["space"] == "shared" and instruction.width > source_width
        yield instruction.address, moved[instruction] / total * (0.5 if merged else 1.0)
