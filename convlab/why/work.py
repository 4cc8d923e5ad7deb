"""What a warp of a kernel has to do, between barriers, and how fast an SM gets it done.

A warp keeps a resource of its scheduler for some cycles, and for others waits for nothing but its
own results: a closed queueing network, whose throughput mean value analysis tells (Reiser and
Lavenberg, JACM 27(2), 1980). Where blocks have barriers, their warps go through each phase
together, and only other blocks of the SM fill the time that they wait; so it is done twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..machine.device import Gpu
from .latency import stalls
from .sass import Function, Instruction

SCHEDULERS = 4  # of an SM
# Of an SM, for additions, shifts, logic and comparisons; compute capability below 10.
INTEGER_LANES = 64
FP32 = ("FFMA", "FADD FMUL")
L1_HIT, L2_HIT, DRAM_HIT = 40, 270, 600  # cycles of a load: see latency.py


def missed(counters: Mapping[str, float], dram_bytes: float) -> tuple[float, float]:
    """Return which share of warps' requests for global memory miss L1, and how long a load takes.

    By what a block, or a launch, of a simulated run touches for the first time; what is assumed
    where that was not counted.
    """
    requests = sum(counters.get(f"global_{kind}_requests", 0) for kind in ("load", "store"))
    first = counters.get("block_sectors", 0)
    misses, from_dram = 0.2, 0.5
    if requests and first:
        misses, from_dram = min(1.0, first / requests), min(1.0, dram_bytes / 32 / first)
    beyond_l1 = L2_HIT + from_dram * (DRAM_HIT - L2_HIT)
    return misses, L1_HIT + misses * (beyond_l1 - L1_HIT)


@dataclass
class Phase:
    """One warp's work between two barriers, in all rounds of the loop that holds them.

    `alone` is the cycles it takes a warp that has the SM to itself; `busy` the cycles for which it
    keeps each resource of its scheduler (a quarter of the SM's).
    """

    alone: float = 0.0
    busy: Counter[str] = field(default_factory=Counter)

    def rate(self, warps: float) -> float:
        """Return how often a cycle one of so many warps comes to its end."""
        demand = max(self.busy.values(), default=0.0)
        return throughput(warps, demand, max(0.0, self.alone - demand))


@dataclass(frozen=True)
class Work:
    """What a warp of one function does, phase by phase."""

    phases: tuple[Phase, ...]
    mix: dict[str, float]  # the instructions that it executes, by kind
    tensor_flops: float  # in operations that go at the datasheet's TF32 rate

    @classmethod
    def of(cls, function: Function, times: Mapping[int, float], lines: Sequence[Mapping[str, Any]],
           gpu: Gpu, of_load: float, warps: float) -> Work:  # fmt: skip
        """Divide what a function did among its warps: its instructions and its counted lines.

        `of_load` is the latency of a load from global memory.
        """
        waits = stalls(function, times, of_load)
        lanes = gpu.limits.fp32_lanes / SCHEDULERS
        phases, at = [Phase()], {}
        mix: Counter[str] = Counter()
        tensor = 0.0
        for i in function.instructions:
            phase = at[i.address] = phases[-1]
            if i.opcode.startswith("BAR"):
                phases.append(Phase())
            ran = times.get(i.address, 0.0) / warps
            if not ran or i.opcode == "NOP":
                continue
            mix[i.kind] += ran
            tensor += ran * i.tensor_flops / _tensor_rate(i, gpu)
            phase.alone += ran * (1 + waits.get(i.address, 0.0))
            phase.busy["issue"] += ran
            if i.is_integer:
                phase.busy["integer"] += ran * 32 / (INTEGER_LANES / SCHEDULERS)
            if i.kind in FP32:
                phase.busy["fp32"] += ran * 32 / lanes
        for row in lines:
            for address, share in _shares(function, times, row):
                units, requests = (row[key] / warps * share for key in ("units", "requests"))
                if row["space"] == "shared":
                    at[address].busy["shared"] += SCHEDULERS * units
                else:
                    at[address].busy["L1"] += SCHEDULERS * max(requests, units / 4)
        return cls(tuple(phases), dict(mix), tensor)

    @property
    def busy(self) -> dict[str, float]:
        """The cycles for which a warp keeps each resource of its scheduler."""
        names = dict.fromkeys(name for phase in self.phases for name in phase.busy)
        return {name: sum(phase.busy[name] for phase in self.phases) for name in names}

    def cycles(self, warps_of_a_block: float, blocks: float, at_once: float) -> float:
        """Return how long an SM takes for `blocks` of them, `at_once` at a time."""
        warps = warps_of_a_block / SCHEDULERS
        if len(self.phases) == 1:
            return blocks * warps / self.phases[0].rate(warps * at_once)
        alone = sum(warps / phase.rate(warps) for phase in self.phases if phase.alone)
        demand = warps * max(self.busy.values(), default=0.0)
        return blocks / throughput(at_once, demand, max(0.0, alone - demand))


def throughput(customers: float, demand: float, think: float) -> float:
    """Return how many rounds a cycle are done: mean value analysis with one queue and a delay.

    A round takes `demand` cycles of the queue's server and `think` elsewhere. A fraction of a
    customer lies between two whole numbers, and less than one is a part of one.
    """
    if demand <= 0:
        return customers / max(think, 1.0)
    queue, rate, before = 0.0, 0.0, 0.0
    for n in range(1, max(1, math.ceil(customers)) + 1):
        before = rate
        response = demand * (1 + queue)
        rate = n / (think + response)
        queue = rate * response
    part = customers - (math.ceil(customers) - 1) if customers > 0 else 0.0
    return before + (rate - before) * part


def _tensor_rate(i: Instruction, gpu: Gpu) -> float:
    """How fast a tensor core instruction goes, TF32 at the datasheet's rate being 1.

    16-bit types go twice as fast. From compute capability 9.0 on, warps' own HMMA reach some 65%
    of what groups of warps reach with HGMMA.
    """
    rate = 1.0 if "TF32" in i.opcode else 2.0
    return rate * (0.65 if gpu.sm >= 90 and i.kind == "HMMA" else 1.0)


def _shares(function: Function, times: Mapping[int, float], row: Mapping[str, Any]):
    """Of each load or store that came of a counted line, its share of what the line moved.

    Where nvcc made 128-bit reads of shared memory of the source's 32-bit ones, half as many
    wavefronts do: it merges neighbouring words, which the lanes that share them get in two.
    """
    copies = function.made_of(row)
    moved = {i: i.width * times.get(i.address, 0.0) for i in copies}
    whole = sum(moved.values())
    source = 8 * row["bytes"] / row["lanes"] if row["lanes"] else 32
    for i in copies:
        if whole:
            merged = row["space"] == "shared" and i.width > source
            yield i.address, moved[i] / whole * (0.5 if merged else 1.0)
