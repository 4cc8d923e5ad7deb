"""A rough prediction of a kernel's time on a GPU from its simulated traffic and its SASS: a model.

The functions of a call follow one another. Each keeps the SMs busy (`work.py`), moves the sectors
that L1 does not hold, `L2_BYTES` a cycle and SM, and through DRAM what the L2 does not keep
(`dram.py`), and has tensor cores work at the datasheet's rate. These go on at once,
yet hinder each other: t = (t_SM^p + t_L2^p + t_DRAM^p + t_tensor^p)^(1/p). README.md here has its
error, also on what the two constants that are fitted were not fitted to.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..core.machine.device import Ceilings, Gpu
from ..core.problem.format import FLOAT32, Format
from ..core.problem.problem import Problem
from ..core.show.table import short
from ..sim.trace import Trace
from .dram import Traffic, traffic
from .flow import Call, asked, executions
from .sass import in_order
from .work import SCHEDULERS, Work, missed

DRAM_SHARE = 0.9  # of the datasheet's bandwidth that a copy reaches: 4.26 of 4.8 TB/s
LIBRARY_SHARE = 0.75  # of the datasheet's fp32 rate that cuBLAS reaches: 51 of 67 TFLOP/s
L2_BYTES = 24  # a cycle and SM, between L2 and the SMs; microbenchmarks find 20 to 40
LAUNCH_SECONDS = 3e-6  # of a kernel that has nothing to do


# Fitted to measured times, by tests/instruments/calibrate_model.py: the share of their cycles at the
# boost clock that SMs use (clocks fall under load, and slots are lost to bank conflicts of registers
# and the like); and the exponent p above: 1 would be one after the other, infinity the longest alone.
SUSTAINED = 0.82
OVERLAP = 2.5
# Resources in words.
WORDS = {
    "issue": "the schedulers, which issue one instruction a cycle",
    "fp32": "the fp32 units",
    "integer": "integer arithmetic: indices and borders",
    "shared": "shared-memory wavefronts",
    "L1": "requests to L1",
    "L2": "bytes between L2 and the SMs",
    "DRAM": "bytes of DRAM",
    "tensor": "the tensor cores",
    "waiting": "waits that too few warps hide: latencies and barriers",
}


@dataclass(frozen=True)
class Part:
    """The predicted time of one ``__global__`` function, or of the library.

    `terms` has the seconds for which each resource is busy, and those in which the SMs wait though
    none of theirs is; `sm_seconds` what the SMs take if they use every cycle of the boost clock.
    `mix` counts the instructions that warps execute by kind, `issued` by source line of `file`;
    `looped` is the share of the hot loop. A library's kernels have none of these.
    """

    name: str
    terms: dict[str, float]
    sm_seconds: float
    mix: Mapping[str, float] = field(default_factory=dict)
    issued: Mapping[int, float] = field(default_factory=dict)
    looped: float = 0.0
    file: str = ""

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {short(1e3 * t)}" for name, t in self.longest[:4] if t)
        return f"{self.name}, {short(1e3 * self.seconds)} ms; busy with {shown}"

    @property
    def limited_by(self) -> str:
        """The longest of its terms; "waiting" where the SMs are mostly idle."""
        return self.longest[0][0]

    @property
    def longest(self) -> list[tuple[str, float]]:
        """Its terms, the longest first."""
        return sorted(self.terms.items(), key=lambda term: -term[1])

    def time(self, sustained: float = SUSTAINED, overlap: float = OVERLAP) -> float:
        sm = self.sm_seconds / (sustained if self.mix else 1)
        together = [sm, *(self.terms.get(name, 0.0) for name in ("L2", "DRAM", "tensor"))]
        return float(np.linalg.norm(together, overlap)) + LAUNCH_SECONDS

    seconds = property(time)


@dataclass(frozen=True)
class Prediction:
    """A predicted time: a model's, not a measurement. It has at least one part."""

    parts: tuple[Part, ...]
    dram: Traffic

    ms = property(lambda self: 1e3 * sum(part.seconds for part in self.parts))

    @property
    def slowest(self) -> Part:
        return max(self.parts, key=lambda part: part.seconds)

    @property
    def issued(self) -> dict[tuple[str, int], float]:
        """The share of all instructions that warps issue, by file and line."""
        whole = sum(sum(part.mix.values()) for part in self.parts)
        shares: Counter[tuple[str, int]] = Counter()
        for part in self.parts:
            for line, count in part.issued.items():
                shares[part.file, line] += count / whole
        return shares

    @property
    def verdict(self) -> str:
        """What limits the kernel, in a sentence."""
        slowest = self.slowest
        (first, most), *others = [(name, t / slowest.seconds) for name, t in slowest.longest]
        text = f"{WORDS[first]} ({most:.0%} of its time)"
        text += "".join(
            f", then {WORDS[name]} ({share:.0%})" for name, share in others[:1] if share > 0.2
        )
        share = 1e3 * slowest.seconds / self.ms
        return f"{slowest.name}, {share:.0%} of the predicted time, is limited by {text}"


def predict(
    problem: Problem,
    gpu: Gpu,
    called: Sequence[Call],
    counted: Trace,
    ceilings: Ceilings | None = None,
    format: Format = FLOAT32,
) -> Prediction | None:
    """Predict a kernel's time, from what was compiled for a GPU, launched and counted.

    Without measured ceilings shares of the datasheet's are used. None if nothing of what was
    compiled is what was launched.
    """
    sheet = gpu.datasheet
    bandwidth = ceilings.copy_bytes_per_s if ceilings else DRAM_SHARE * sheet.memory_gb_per_s * 1e9
    rate = ceilings.fp32_flops if ceilings else LIBRARY_SHARE * sheet.fp32_tflops * 1e12
    arrays: dict[str, float] = format.bytes(problem)
    arrays["workspace"] = asked(counted.lines, "store", "workspace")
    # filters laid out by the kernel, of which some blocks tell how far they reach
    planned = [row["high"] for row in counted.reaches if row["array"] == "plan"]
    arrays["plan"] = max(planned, default=arrays["w"])
    arrays["several"] = sum(arrays[name] for name in ("x", "w", "bias", "workspace"))
    called = [call for call in called if call.lines]
    # of a header's lines that are inlined, as asynchronous copies are, one function's are known
    strays = [row for row in counted.lines if not any(c.function.holds(row) for c in called)]
    moving = called
    if len(called) == 1:
        moving = [replace(called[0], lines=[*called[0].lines, *strays])]
    moved = [traffic(problem, format, gpu, counted, call, _once(call, arrays)) for call in moving]
    if len(called) > 1 and (shared := asked(strays, "load") + asked(strays, "store")):
        moved.append(Traffic(0.0, shared, "", "several functions share the lines of a header"))
    misses, of_load = missed(counted.counters, sum(each.assumed for each in moved))
    parts = [
        _part(
            gpu,
            call,
            counted.executed.get(call.function.file, {}),
            misses,
            of_load,
            dram.assumed / bandwidth,
        )
        for call, dram in zip(called, moved, strict=False)
    ]
    if library := counted.counters.get("library_bytes"):
        busy = problem.flops / rate  # tiles of 128x128, at a large product's rate
        parts.append(Part("cuBLAS", {"fp32": busy, "DRAM": library / bandwidth}, busy))
        least = counted.counters["library_once"]
        why = "cuBLAS's tiles may find strips in the L2"
        moved.append(Traffic(least, library, unknown=why, once=library))
    return Prediction(tuple(parts), Traffic.of(moved)) if parts else None


def _once(call: Call, arrays: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """The bytes of each kind and array, and of the code, that a function accesses once, or asks."""
    sectors: Counter[tuple[str, str]] = Counter()
    for row in call.lines:
        if row["space"] == "global":
            sectors[row["kind"], row["array"]] += 32.0 * row["units"]
    found = {key: min(size, arrays.get(key[1]) or size) for key, size in sectors.items()}
    return found | {("load", "code"): call.function.bytes * len(call.launches)}


def _part(
    gpu: Gpu,
    call: Call,
    executed: Mapping[int, float],
    misses: float,
    of_load: float,
    dram_seconds: float,
) -> Part:
    """One function's part; a few blocks of an SM are whole ones, many even out."""
    function = call.function
    lines = call.lines
    blocks = call.blocks
    warps = blocks * call.warps
    times = executions(function, lines, executed, warps)
    work = Work.of(function, times, lines, gpu, of_load, warps)
    per_sm = max(1.0, math.ceil(blocks / gpu.sms) if blocks < 20 * gpu.sms else blocks / gpu.sms)
    hertz = gpu.ghz * 1e9
    held = call.occupancy(gpu).blocks
    seconds = work.cycles(call.warps, per_sm, min(held, per_sm) or 1) / hertz
    of_a_scheduler = per_sm * call.warps / SCHEDULERS / (SUSTAINED * hertz)
    terms = {name: of_a_scheduler * cycles for name, cycles in work.busy.items()}
    waits = seconds / SUSTAINED - max(terms.values(), default=0.0)
    tensor_rate = 1e12 * ((gpu.datasheet and gpu.datasheet.tf32_tflops) or math.inf)
    # what misses L1, and all stores
    requests = sum(
        row["requests"] for row in lines if row["space"] == "global" and row["kind"] == "load"
    )
    through_l2 = min(asked(lines, "load"), 32 * requests * misses) + asked(lines, "store")
    terms |= {
        "waiting": max(0.0, waits),
        "tensor": work.tensor_flops * warps / tensor_rate,
        "L2": through_l2 / (L2_BYTES * gpu.sms * hertz),
        "DRAM": dram_seconds,
    }
    issued: Counter[int] = Counter()
    for i in function.instructions:
        if i.line and i.opcode != "NOP":
            issued[i.line] += times.get(i.address, 0.0)
    mix = in_order({kind: n * warps for kind, n in work.mix.items()})
    hot = sum(times.get(i.address, 0.0) for i in function.body(function.hot_loop))
    looped = hot / (sum(mix.values()) or 1) if function.hot_loop else 0.0
    return Part(function.name, terms, seconds, mix, issued, looped, function.file)
