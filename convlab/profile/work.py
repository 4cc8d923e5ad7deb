"""What a warp of a kernel has to do, how many an SM holds, and how fast it gets them done.

README.md here has the idea. Latencies are microbenchmarks' from Volta to Hopper, rounded (Jia et
al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018; Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024). How
warps share an SM is mean value analysis of a closed queueing network (Reiser and Lavenberg, JACM
27(2), 1980); how many it holds, the rule of NVIDIA's occupancy calculator (``cuda_occupancy.h``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import ProblemError
from ..core.machine.device import Gpu
from .sass import Function, Instruction

SCHEDULERS = 4  # of an SM, each with a quarter of its registers
# Of an SM, for additions, shifts, logic and comparisons; compute capability below 10.
INTEGER_LANES = 64
FP32 = ("FFMA", "FADD FMUL")
# cycles of a load
L1_HIT = 40
L2_HIT = 270
DRAM_HIT = 600
# Cycles from issue to a result that can be read, the first pattern that fits an opcode.
_LATENCIES: tuple[tuple[str, int], ...] = (
    (r"LDS|LDSM|SHFL|ATOMS", 30),
    (r"LDL", 40),
    (r"LDC", 30),
    (r"S2R|S2UR|CS2R|R2UR|VOTE", 20),
    (r"MUFU|I2F|F2I|F2F|I2I|POPC|FLO", 24),
    (r"HGMMA", 64),
    (r"HMMA|IMMA|DMMA", 33),
    (r"IMAD|UIMAD", 5),
    (r"U[A-Z]", 8),  # the uniform datapath
    (r"", 4),
)
BRANCH = 12  # cycles that a taken or a not taken branch costs the warp beyond its issue
BARRIER = 20
_REGISTER = re.compile(r"\b(U?[RP])(\d+)\b(\.64)?")
_NO_RESULT = ("RED", "BAR", "BRA", "EXIT", "BSSY", "BSYNC")
_CARRIES = re.compile(r"U?LOP3\S* U?PT?\d?$")  # a predicate stands before the result


def latency(opcode: str, of_load: float) -> float:
    """Return the cycles from an instruction's issue to its result."""
    if re.match(r"LDG|LD\b|ATOM\b|ATOMG", opcode):
        return of_load
    return next(cycles for pattern, cycles in _LATENCIES if re.match(pattern, opcode))


def stalls(function: Function, times: Mapping[int, float], of_load: float) -> dict[int, float]:
    """Return the cycles that a warp waits before each instruction that ever runs, by address."""
    found: dict[int, float] = {}
    for loop, own in function.own.items():
        body = [i for i in own if times.get(i.address)]
        most = max((times[i.address] for i in body), default=0)
        found |= _pass(body, of_load, 1 if loop is None else 2)
        for i in body:
            # what a branch nearly always leaves out must not lend its latency to the rest
            if times[i.address] < 0.1 * most:
                found[i.address] = min(found[i.address], of_load)
    return found


def _pass(body: Sequence[Instruction], of_load: float, rounds: int) -> dict[int, float]:
    """Waits in the last of some rounds of a loop."""
    ready: dict[str, float] = {}
    now = 0.0
    waited = {}
    for i, (reads, writes), cycles in rounds * [
        (i, registers(i), latency(i.opcode, of_load)) for i in body
    ]:
        at = max([now, *(ready[name] for name in reads if name in ready)])
        extra = {"branch": BRANCH, "barrier": BARRIER}.get(i.kind, 0)
        waited[i.address] = at - now + extra
        now = at + 1 + extra
        ready |= dict.fromkeys(writes, at + cycles)
    return waited


def registers(i: Instruction) -> tuple[set[str], set[str]]:
    """Return the registers and predicates that an instruction reads, and those that it writes.

    Results stand first; how many follow from its opcode and width. Guards count as read.
    """
    operands = [part.strip() for part in i.operands.split(",")]
    stores = i.opcode.startswith("ST")
    results = 0
    if operands[0] and not stores and not i.opcode.startswith(_NO_RESULT):
        second = len(operands) > 1 and re.fullmatch(r"U?P\d", operands[1])
        both = second or re.match(r"U?(ISETP|FSETP|PLOP3)", i.opcode)
        results = 2 if both or _CARRIES.match(f"{i.opcode} {operands[0]}") else 1
    wide = 1
    if i.access in (("shared", "load"), ("global", "load")) or "LDC" in i.opcode:
        wide = max(1, i.width // 32)
    elif ".WIDE" in i.opcode or ".64" in i.opcode:
        wide = 2
    elif i.opcode.startswith("HMMA"):
        wide = 4
    reads = set(re.findall(r"U?P\d", i.guard))
    writes = set()
    for n, operand in enumerate(operands):
        for kind, number, pair in _REGISTER.findall(operand):
            if n < results and "[" not in operand:
                side = writes
                span = wide if kind.endswith("R") else 1
            elif stores and n == len(operands) - 1:
                side = reads
                span = max(1, i.width // 32)
            else:
                side = reads
                span = 2 if pair else 1
            side.update(f"{kind}{int(number) + k}" for k in range(span))
    return reads, writes


def missed(counters: Mapping[str, float], dram_bytes: float) -> tuple[float, float]:
    """Return which share of warps' requests for global memory miss L1, and how long a load takes.

    By what a block, or a launch, of a simulated run touches for the first time; what is assumed
    where that was not counted.
    """
    requests = sum(counters.get(f"global_{kind}_requests", 0) for kind in ("load", "store"))
    first = counters.get("block_sectors", 0)
    misses = 0.2
    from_dram = 0.5
    if requests and first:
        misses = min(1.0, first / requests)
        from_dram = min(1.0, dram_bytes / 32 / first)
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
    def of(
        cls,
        function: Function,
        times: Mapping[int, float],
        lines: Sequence[Mapping[str, Any]],
        gpu: Gpu,
        of_load: float,
        warps: float,
    ) -> Work:
        """Divide a function's instructions and counted lines among warps; loads take `of_load`."""
        waits = stalls(function, times, of_load)
        lanes = gpu.limits.fp32_lanes / SCHEDULERS
        phases = [Phase()]
        at = {}
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
        return sum((phase.busy for phase in self.phases), Counter())

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
    queue = 0.0
    rates = [0.0]
    for n in range(1, math.ceil(customers) + 1):
        response = demand * (1 + queue)
        rates.append(n / (think + response))
        queue = rates[-1] * response
    return float(np.interp(customers, range(len(rates)), rates))


def _tensor_rate(i: Instruction, gpu: Gpu) -> float:
    """How fast a tensor core instruction goes, TF32 at the datasheet's rate being 1."""
    rate = 1.0 if "TF32" in i.opcode else 2.0
    # from compute capability 9.0 on, of what groups of warps reach with HGMMA
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
        held = has.registers // SCHEDULERS // of_a_warp * SCHEDULERS // warps
        fits = _up(warps, SCHEDULERS) * of_a_warp <= has.registers
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
