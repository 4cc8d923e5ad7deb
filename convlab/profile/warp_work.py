"""Compute the work of a warp, and how fast the warps of an SM complete it.

Each warp keeps the issue slots, arithmetic units, shared memory and L1 busy for some cycles, and
waits in other cycles. The warps of an SM are a closed queueing network, solved by mean value
analysis (Reiser and Lavenberg, JACM 27(2), 1980). MODEL.md explains the idea.
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
from .sass import Function
from .warp_stalls import pipe_cycles, stalls

# The pipes of a scheduler that may limit all of its warps together.
_PIPES = ("mma", "integer", "multiply")
FP32_KINDS = ("FFMA", "FADD FMUL")
# The latency in cycles of a load of global memory that hits L1, hits L2, or misses both.
L1_CYCLES = 40
L2_CYCLES = 270
DRAM_CYCLES = 600
# Assumed if they were not counted: the share of requests that miss L1, and of these, L2.
_ASSUMED_L1_MISSES = 0.2
_ASSUMED_FROM_DRAM = 0.5
# L1 serves four sectors per cycle.
_L1_SECTORS = 4
# The share of the datasheet's rate that HMMA reaches on compute capability 9.0 and later. There
# only HGMMA reaches the whole rate. ncu reports 6 cycles for an m16n8k8 in TF32, and HGMMA needs 4.
_HMMA_SHARE = 0.7


def load_cost(counters: Mapping[str, float], dram_bytes: float) -> tuple[float, float]:
    """Return the share of global memory requests that miss L1, and the cycles of a load.

    A sector misses L1 if its block requests it for the first time. The DRAM traffic of the launch
    gives the share of these sectors that come from DRAM.
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
    alone : the cycles that a warp takes if no other warp runs on the SM.
    busy : the cycles for which the warp keeps each resource of its scheduler busy. A scheduler has
        a quarter of the SM's resources.
    """

    alone: float = 0.0
    busy: Counter[str] = field(default_factory=Counter)

    def rate(self, warps: float) -> float:
        """Return how many of `warps` resident warps complete the phase per cycle."""
        demand = max(self.busy.values(), default=0.0)
        return throughput(warps, demand, max(0.0, self.alone - demand))


@dataclass(frozen=True)
class WarpWork:
    """The work of one warp of a function, phase by phase.

    Attributes
    ----------
    phases : the phases, in their order.
    mix : the instructions that the warp executes, by kind.
    tensor_flops : its operations by wgmma, scaled so that they take their time at the datasheet's
        TF32 rate. Those of mma.sync keep a resource of the scheduler busy instead, because the warp
        waits for them in order.
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
        """Return the work of the average warp of a function.

        `counts` says how often all `warps` together execute each instruction, by address.
        """
        mma_flops = _mma_flops(gpu)
        waits = stalls(function, counts, load_cycles, mma_flops)
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
            if instruction.kind != "HMMA":
                rate = 1.0 if "TF32" in instruction.opcode else 2.0
                tensor_flops += count * instruction.tensor_flops / rate
            phase.alone += count * (1 + waits.get(address, 0.0))
            phase.busy["issue"] += count
            pipe, cycles = pipe_cycles(instruction, mma_flops)
            if pipe in _PIPES:
                phase.busy[pipe] += count * cycles
            if instruction.kind in FP32_KINDS:
                phase.busy["fp32"] += count * 32 / fp32_lanes
        through_l1 = {i.address for i in function.instructions if i.copies_through_l1}
        for row in lines:
            for address, share in _shares(function, counts, row):
                busy = phase_at[address].busy
                units = row["units"] / warps * share
                requests = row["requests"] / warps * share
                if address in through_l1:
                    # ncu counts a wavefront for the request, and one for each sector that arrives.
                    busy["shared"] += SCHEDULERS * (requests + units)
                elif row["space"] == "shared":
                    busy["shared"] += SCHEDULERS * units
                else:
                    busy["L1"] += SCHEDULERS * max(requests, units / _L1_SECTORS)
        return cls(tuple(phases), dict(mix), tensor_flops)

    @property
    def busy(self) -> dict[str, float]:
        """The cycles for which a warp keeps each resource of its scheduler busy."""
        return sum((phase.busy for phase in self.phases), Counter())

    def cycles(self, warps_per_block: float, blocks: float, resident_blocks: float) -> float:
        """Return the cycles of an SM for `blocks` blocks, with `resident_blocks` at a time."""
        warps = warps_per_block / SCHEDULERS
        if len(self.phases) == 1:
            return blocks * warps / self.phases[0].rate(warps * resident_blocks)
        # The warps of a block execute a phase together. Only other blocks can hide their stalls.
        alone = sum(warps / phase.rate(warps) for phase in self.phases if phase.alone)
        demand = warps * max(self.busy.values(), default=0.0)
        return blocks / throughput(resident_blocks, demand, max(0.0, alone - demand))


def throughput(customers: float, demand: float, think: float) -> float:
    """Return the completed rounds per cycle, by mean value analysis of one queue and a delay.

    A round takes `demand` cycles of the queue's server, and `think` cycles elsewhere. Between whole
    numbers of customers the rate is interpolated.
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


def _mma_flops(gpu: Gpu) -> float:
    """Return the operations per cycle of mma.sync in TF32, on the tensor core of one scheduler."""
    sheet = gpu.datasheet
    if sheet is None or not sheet.tf32_tflops:
        return math.inf
    rate = 1e12 * sheet.tf32_tflops / (gpu.sms * SCHEDULERS * gpu.ghz * 1e9)
    return rate * (_HMMA_SHARE if gpu.sm >= 90 else 1.0)


def _shares(
    function: Function, counts: Mapping[int, float], row: Mapping[str, Any]
) -> Iterator[tuple[int, float]]:
    """Yield the address of each access compiled from a line, and its share of the line's units.

    If nvcc merged 32-bit reads of shared memory into one of 128 bits, the hardware needs half of
    the counted wavefronts: two for a broadcast, where four were counted.
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
