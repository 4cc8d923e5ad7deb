"""A rough prediction of a kernel's time on a GPU from its simulated traffic and its SASS: a model.

The functions of a call follow one another. Each keeps the SMs busy (`work.py`: issue slots, fp32
and integer units, shared memory, L1, and the waits between) and moves bytes:

======  ==========================================================================================
L2      the sectors that L1 does not hold, `L2_BYTES` a cycle and SM
DRAM    each array of a function once, or what it asks for where that is less, at copy bandwidth
tensor  HMMA and HGMMA at the datasheet's rate
======  ==========================================================================================

These go on at once, yet hinder each other: t = (t_SM^p + t_L2^p + t_DRAM^p + t_tensor^p)^(1/p).
Two constants are fitted (`FITTED`); README.md here has their error, also on what they were not
fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..machine.device import Ceilings
from ..words.problem import Problem
from .executed import by_function, executions
from .occupancy import Gpu, Occupancy, occupancy
from .sass import Function
from .work import SCHEDULERS, Hits, Work

DRAM_SHARE = 0.9  # of the datasheet's bandwidth that a copy reaches (H200: 4.26 of 4.8 TB/s)
LIBRARY_SHARE = 0.75  # of the datasheet's fp32 rate that cuBLAS reaches (H200: 51 of 67 TFLOP/s)
L2_BYTES = 24  # a cycle and SM, between L2 and the SMs; microbenchmarks find 20 to 40
LAUNCH_SECONDS = 3e-6  # of a kernel that has nothing to do
MACS = 50_000_000  # of the small problem that is simulated in place of a large one
_SIDE = 32  # outputs a side that stand for a large image: whole tiles, whole warps


@dataclass(frozen=True)
class Constants:
    """What is fitted to measured times, by ``tests/calibrate_model.py``.

    `sustained` is the share of their cycles at the boost clock that SMs use: clocks fall under
    load, and slots are lost to bank conflicts of registers and the like. `overlap` is the exponent
    p above: 1 would be one after the other, infinity the longest alone.
    """

    sustained: float
    overlap: float


# Resources in words: (what limits, in short).
_WORDS = {
    "issue": ("the schedulers, which issue one instruction a cycle", "issue slots"),
    "fp32": ("the fp32 units", "the fp32 units"),
    "integer": ("integer arithmetic: indices and borders", "integer arithmetic"),
    "shared": ("shared-memory wavefronts", "shared-memory wavefronts"),
    "L1": ("requests to L1", "requests to L1"),
    "L2": ("bytes between L2 and the SMs", "L2"),
    "DRAM": ("bytes of DRAM", "DRAM"),
    "tensor": ("the tensor cores", "the tensor cores"),
    "waiting": ("waits that too few warps hide: latencies and barriers", "waits"),
}
_LIMITS = {name: words[0] for name, words in _WORDS.items()}
_SHORT = {name: words[1] for name, words in _WORDS.items()}

FITTED = Constants(sustained=0.82, overlap=2.5)


@dataclass(frozen=True)
class Run:
    """What the simulator counted on one problem: `Launch.lines` and `Launch.launches`."""

    problem: Problem
    counters: Mapping[str, float]
    lines: Sequence[Mapping[str, Any]]
    launches: Sequence[Mapping[str, Any]]
    executed: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """The predicted time of one ``__global__`` function, or of the library.

    `terms` has the seconds for which each resource is busy, and those in which the SMs wait though
    none of theirs is; `sm_seconds` what the SMs take if they use every cycle of the boost clock.
    """

    name: str
    terms: dict[str, float]
    sm_seconds: float = 0.0
    occupancy: Occupancy | None = None
    instructions: float = 0.0  # of warps
    ffma: float = 0.0  # of warps
    library: bool = False
    issued: Mapping[int, float] = field(default_factory=dict)  # instructions of warps, by line

    @property
    def limited_by(self) -> str:
        """The longest of its terms; "waiting" where the SMs are mostly idle."""
        return max(self.terms, key=self.terms.__getitem__)

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.time(FITTED)

    def time(self, constants: Constants) -> float:
        """The predicted time with other constants."""
        sm = self.sm_seconds / (1 if self.library else constants.sustained)
        together = [sm, *(self.terms.get(name, 0.0) for name in ("L2", "DRAM", "tensor"))]
        p = constants.overlap
        longest = max(together)
        if not longest:
            return LAUNCH_SECONDS
        return longest * sum((t / longest) ** p for t in together) ** (1 / p) + LAUNCH_SECONDS


@dataclass(frozen=True)
class Prediction:
    """A predicted time: a model's, not a measurement."""

    problem: Problem
    gpu: str
    parts: tuple[Part, ...]
    dram_bytes: float
    notes: tuple[str, ...] = field(default=())

    @property
    def ms(self) -> float:
        """The whole call, in milliseconds."""
        return 1e3 * sum(part.seconds for part in self.parts)

    @property
    def verdict(self) -> str:
        """What limits the kernel, in a sentence."""
        if not self.parts:
            return "the model sees no work at all"
        slowest = max(self.parts, key=lambda part: part.seconds)
        terms = sorted(slowest.terms.items(), key=lambda term: -term[1])
        (first, most), *others = [(name, t / slowest.seconds) for name, t in terms]
        text = f"{_LIMITS[first]} ({most:.0%} of its time)"
        text += "".join(f", then {_SHORT[name]} ({share:.0%})" for name, share in others[:1]
                        if share > 0.2)  # fmt: skip
        share = 1e3 * slowest.seconds / self.ms
        return f"{slowest.name}, {share:.0%} of the predicted time, is limited by {text}"

    def __str__(self) -> str:
        lines = [f"about {self.ms:.3g} ms on {self.gpu} for {self.problem.label} (a model's)"]
        for part in self.parts:
            terms = sorted(part.terms.items(), key=lambda term: -term[1])
            shown = ", ".join(f"{name} {1e3 * t:.3g}" for name, t in terms[:4] if t)
            lines.append(f"  {part.name}: {1e3 * part.seconds:.3g} ms; busy with {shown}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold."""
        return {
            "model": True, "verdict": self.verdict, "ms": self.ms,
            "gpu": self.gpu, "problem": str(self.problem),
            "dram_bytes": self.dram_bytes, "notes": list(self.notes),
            "parts": [
                {"name": part.name, "ms": 1e3 * part.seconds, "limited_by": part.limited_by,
                 "terms_ms": {name: 1e3 * value for name, value in part.terms.items()}}
                for part in self.parts
            ],
        }  # fmt: skip


def stand_ins(problem: Problem, macs: int = MACS) -> list[Problem]:
    """Return the small problems whose counts, extrapolated, stand for a large one's.

    One image of whole tiles (32 outputs a side where there were more than 64), and so few channels
    of a group that it costs at most `macs`. If channels were cut, a second problem with half of
    them follows: counts are linear in the channels of a group, and two points make the line.
    """
    sides = [_SIDE if size > 2 * _SIDE else size for size in (problem.P, problem.Q)]

    def shrunk(depth: int, k: int, groups: int, at_most: int = _SIDE * 2) -> Problem:
        (h, w), taps = [min(size, at_most) for size in sides], (problem.R, problem.S)
        image = [
            max(1, (out - 1) * s + d * (tap - 1) + 1 - 2 * pad)
            for out, s, d, tap, pad in zip(
                (h, w), problem.stride, problem.dilation, taps, problem.padding, strict=True
            )
        ]
        return replace(
            problem, N=min(problem.N, 1), C=depth * groups, H=image[0], W=image[1], K=k * groups,
            groups=groups,
            name=f"{problem.label} (simulated as N=1, C={depth * groups}, {image[0]}x{image[1]})",
        )  # fmt: skip

    depth, k = problem.C // problem.groups, problem.K // problem.groups
    if problem.macs <= macs:
        return [problem]
    tries = [shrunk(depth, k, problem.groups)]
    depths = [d for d in (64, 32, 16, 8) if d < depth]
    tries += [shrunk(d, k, problem.groups) for d in depths]
    least = min(depths, default=depth)
    tries += [shrunk(least, k, g) for g in (64, 16, 4, 1) if g < problem.groups]
    few = min(problem.groups, 1)
    tries += [shrunk(least, fewer, few) for fewer in (256, 128, 64) if fewer < k]
    tries += [shrunk(least, min(k, 64), few, side) for side in (16, 8, 1)]
    chosen = next((small for small in tries if small.macs <= macs), tries[-1])
    small_depth = chosen.C // chosen.groups
    if small_depth == depth or small_depth < 2:
        return [chosen]
    half = replace(chosen, C=chosen.C // 2 if small_depth % 2 == 0 else chosen.groups)
    return [chosen, half]


def predict(
    problem: Problem,
    gpu: Gpu,
    functions: Sequence[Function],
    runs: Sequence[Run],
    ceilings: Ceilings | None = None,
    block: tuple[int, int, int] | None = None,
) -> Prediction:
    """Predict a kernel's time on a problem.

    Parameters
    ----------
    problem : of any size.
    gpu : on which.
    functions : with their instructions (`sass.disassemble`), compiled for that GPU.
    runs : on `stand_ins(problem)`, in its order.
    ceilings : measured ones, if that GPU is there; else shares of its datasheet are used.
    block : threads of a block, for functions of which no launch is known.
    """
    first, scale = runs[0], _pixels(problem) / max(_pixels(runs[0].problem), 1)
    lines, executed = [dict(row) for row in first.lines], dict(first.executed)
    if len(runs) > 1:
        lines, executed = _extrapolated(problem, runs)
    sheet = gpu.datasheet
    bandwidth = ceilings.copy_bytes_per_s if ceilings else DRAM_SHARE * sheet.memory_gb_per_s * 1e9
    rate = ceilings.fp32_flops if ceilings else LIBRARY_SHARE * sheet.fp32_tflops * 1e12
    arrays = array_bytes(problem)
    arrays["workspace"] = scale * _bytes(lines, "workspace", "store")
    arrays["several"] = sum(arrays[name] for name in ("x", "w", "bias", "workspace"))
    hits = Hits.of(first.counters)
    parts, dram_total = [], 0.0
    for function, owned, launches in by_function(functions, lines, first.launches):
        if not owned:
            continue
        shape = launches[0]["block"] if launches else block
        shared = function.static_shared + (launches[0]["shared_bytes"] if launches else 0)
        held = occupancy(gpu, math.prod(shape), function.registers, shared)
        warps_each = -(-math.prod(shape) // 32)
        blocks = scale * sum(math.prod(entry["grid"]) for entry in launches)
        if not launches:  # as many threads as y has elements
            blocks = math.ceil(_pixels(problem) / math.prod(shape))
        times = executions(function, owned, executed, blocks / scale * warps_each)
        dram = _dram(owned, scale, arrays)
        dram_total += dram
        missed = scale * _missed(owned, hits, dram / scale)
        work = Work.of(function, times, owned, gpu, hits, blocks / scale * warps_each)
        part = _part(gpu, function, work, held, blocks, warps_each,
                     {"L2": missed / (L2_BYTES * gpu.sms * gpu.ghz * 1e9),
                      "DRAM": dram / bandwidth})  # fmt: skip
        parts.append(replace(part, issued=_issued(function, times, scale)))
    notes = []
    if first.counters.get("library_bytes"):
        moved = scale * first.counters["library_bytes"] * _depth_ratio(problem, first.problem)
        dram_total += moved
        busy = problem.flops / rate
        parts.append(Part("cuBLAS", {"fp32": busy, "DRAM": moved / bandwidth}, busy, library=True))
        notes.append("cuBLAS: tiles of 128x128, at the rate of a large matrix product")
    if len(runs) > 1 or first.problem != problem:
        notes.append(f"extrapolated from {' and '.join(str(run.problem) for run in runs)}")
    return Prediction(problem, gpu.name, tuple(parts), dram_total, tuple(notes))


def array_bytes(problem: Problem) -> dict[str, float]:
    """The bytes of each tensor by its name."""
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    sizes = {name: 4.0 * math.prod(shape) for name, shape in shapes.items()}
    return sizes | {"bias": 4.0 * problem.K}


def _bytes(lines: Sequence[Mapping[str, Any]], array: str | None, kind: str) -> float:
    return 32.0 * sum(
        row["units"] for row in lines
        if row["space"] == "global" and row["kind"] == kind and array in (None, row["array"])
    )  # fmt: skip


def _dram(lines: Sequence[Mapping[str, Any]], scale: float, arrays: Mapping[str, float]) -> float:
    moved = 0.0
    for kind in ("load", "store", "atomic"):
        for array in {row["array"] for row in lines if row["space"] == "global"}:
            asked = scale * _bytes(lines, array, kind)
            moved += min(asked, arrays.get(array) or asked)
    return moved


def _issued(function: Function, times: Mapping[int, float], scale: float) -> dict[int, float]:
    """How many instructions warps issue of each source line."""
    found: dict[int, float] = {}
    for i in function.instructions:
        if i.line and i.opcode != "NOP":
            found[i.line] = found.get(i.line, 0.0) + scale * times.get(i.address, 0.0)
    return found


def _missed(lines: Sequence[Mapping[str, Any]], hits: Hits, dram: float) -> float:
    """Bytes between L2 and the SMs: what misses L1, and all stores."""
    asked = _bytes(lines, None, "load")
    requests = sum(row["requests"] for row in lines
                   if row["space"] == "global" and row["kind"] == "load")  # fmt: skip
    return min(asked, 32 * requests * hits.misses) + _bytes(lines, None, "store")


def _part(gpu: Gpu, function: Function, work: Work, held: Occupancy, blocks: float,
          warps_each: int, memory: Mapping[str, float]) -> Part:  # fmt: skip
    """One function's part; a few blocks of an SM are whole ones, many even out."""
    per_sm = max(1.0, math.ceil(blocks / gpu.sms) if blocks < 20 * gpu.sms else blocks / gpu.sms)
    hertz = gpu.ghz * 1e9
    seconds = work.cycles(warps_each, per_sm, min(held.blocks, per_sm) or 1) / hertz
    used = FITTED.sustained * hertz
    warps = per_sm * warps_each / SCHEDULERS  # of a scheduler
    terms = {name: warps * work.busy(name) / used for name in work.resources}
    waits = seconds / FITTED.sustained - max(terms.values(), default=0.0)
    sheet, whole = gpu.datasheet, blocks * warps_each
    rate = 1e12 * ((sheet.tf32_tflops if sheet else None) or math.inf)
    terms |= {"waiting": max(0.0, waits), "tensor": work.tensor_flops * whole / rate, **memory}
    return Part(function.name, terms, seconds, held, work.instructions * whole, work.ffma * whole)


def _pixels(problem: Problem) -> int:
    return problem.gemm_m * problem.K  # groups are in K


def _depth_ratio(problem: Problem, small: Problem) -> float:
    return problem.gemm_k / small.gemm_k


def _extrapolated(problem: Problem, runs: Sequence[Run]) -> tuple[list[dict], dict[int, float]]:
    """The counts of a run with all of the problem's channels, by the line through two runs."""
    full, near, far = (p.C / p.groups for p in (problem, runs[0].problem, runs[1].problem))
    step = (full - near) / (near - far)

    def key(row: Mapping[str, Any]) -> tuple:
        return row["line"], row["space"], row["kind"], row["array"]

    less = {key(row): row for row in runs[1].lines}
    lines = []
    for row in runs[0].lines:
        other = less.get(key(row), row)
        lines.append(
            {name: max(0, value + step * (value - other[name])) if isinstance(value, int | float)
             and name != "line" else value for name, value in row.items()}
        )  # fmt: skip
    fewer = runs[1].executed
    executed = {
        line: max(0.0, value + step * (value - fewer.get(line, value)))
        for line, value in runs[0].executed.items()
    }
    return lines, executed
