"""Predict a kernel's time on a GPU from its simulated traffic and its machine code.

The functions of a call run one after another. For each function the model computes four times: of
the SMs (`warp_work`); of the sectors that miss L1, at `L2_BYTES` per cycle and SM; of the bytes
through DRAM (`dram_traffic`); and of the tensor cores, at the datasheet's rate. They overlap, but
not perfectly: t = (t_SM^p + t_L2^p + t_DRAM^p + t_tensor^p)^(1/p). MODEL.md has the model's error,
also for kernels and problems that the fit of its constants did not use.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..core.machine.device import Ceilings, Gpu
from ..core.problem.format import FLOAT32, Format
from ..core.problem.problem import Problem
from ..core.show.table import short
from .dram_traffic import DramTraffic, dram_traffic
from .instruction_counts import instruction_counts
from .launched_functions import SECTOR_BYTES, LaunchedFunction, requested_bytes
from .occupancy import SCHEDULERS
from .sampling import Counts
from .sass import in_order
from .warp_work import WarpWork, load_cost

# The share of the datasheet's bandwidth that a copy reaches: 4.26 of 4.8 TB/s.
DRAM_SHARE = 0.9
# The share of the datasheet's fp32 rate that cuBLAS reaches: 51 of 67 TFLOP/s.
LIBRARY_SHARE = 0.75
# Bytes per cycle and SM between the L2 and the SMs; microbenchmarks measure 20 to 40.
L2_BYTES = 24
# The time of an empty kernel.
LAUNCH_SECONDS = 3e-6
# The least time of a call of cuBLAS, in a series of calls with little work. 02c_im2col_batched measures
# it on an H200: with a call for each of 128 or 144 groups, a call takes 8.1 or 8.4 us.
LIBRARY_CALL_SECONDS = 8e-6
# The group of kernels on wgmma, and the milliseconds below which a predicted time is in a group of its own.
WGMMA = "wgmma"
SHORT_MS = 0.1

# The constants that tests/instruments/calibrate_model.py fits to measured times. The first is
# the share of the boost clock's cycles that the SMs use: the clock falls under load, and register
# bank conflicts cost issue slots. The second is the exponent p above. With p = 1 the resources
# would work one after another; with infinite p only the longest time would count.
SUSTAINED = 0.82
OVERLAP = 2.5
# The exponent p of functions whose warps have roles and meet at mbarriers, fitted to the rungs on wgmma.
PIPELINE_OVERLAP = 1.8

# A store that a condition guards may run less often than its line, but not by this factor.
_CLEARLY_MORE = 4
# With this many blocks per SM or more, an SM runs the average number, not a whole number.
_MANY_BLOCKS = 20
# The verdict names no function if one takes more than this share of the time.
_ALMOST_ALL = 0.95
# The verdict also names the second busiest resource, if it takes more than this share of the time.
_WORTH_NAMING = 0.2

# The meaning of each resource's name.
WORDS = {
    "issue": "the schedulers, which each issue one instruction per cycle",
    "fp32": "the fp32 units",
    "integer": "integer arithmetic and comparisons: indices and borders",
    "multiply": "integer multiplications: indices",
    "mma": "mma.sync on the tensor cores",
    "shared": "shared-memory wavefronts",
    "L1": "requests to L1",
    "L2": "traffic between L2 and the SMs",
    "DRAM": "DRAM traffic",
    "tensor": "the tensor cores",
    "waiting": "stalls: too few warps hide latencies and barriers",
}


@dataclass(frozen=True)
class Part:
    """The predicted time of one ``__global__`` function, or of a library.

    Attributes
    ----------
    name : the function's name.
    terms : the seconds for which each resource is busy. "waiting" is the time in which the SMs wait
        and none of their resources is busy.
    sm_seconds : the time of the SMs if they use every cycle of the boost clock.
    mix : the instructions that warps execute, by kind. This and the rest are empty for a library.
    issued : the instructions that warps issue, by source line of `file`.
    looped : the hot loop's share of all instructions.
    file : the name of the file that defines the function.
    tensor_flops : the operations of its wgmma instructions.
    pipelined : whether its warps meet at mbarriers.
    calls : the calls of a library; 0 for a function.
    """

    name: str
    terms: dict[str, float]
    sm_seconds: float
    mix: Mapping[str, float] = field(default_factory=dict)
    issued: Mapping[int, float] = field(default_factory=dict)
    looped: float = 0.0
    file: str = ""
    tensor_flops: float = 0.0
    pipelined: bool = False
    calls: int = 0

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {short(1e3 * t)} ms" for name, t in self.longest[:4] if t)
        return f"{self.name}, {short(1e3 * self.seconds)} ms; overlapping parts: {terms}"

    @property
    def limited_by(self) -> str:
        """The resource with the longest time; "waiting" if the SMs are mostly idle."""
        return self.longest[0][0]

    @property
    def longest(self) -> list[tuple[str, float]]:
        """The times of all resources, the longest first."""
        return sorted(self.terms.items(), key=lambda term: -term[1])

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.time()

    def time(
        self,
        sustained: float = SUSTAINED,
        overlap: float = OVERLAP,
        pipeline_overlap: float = PIPELINE_OVERLAP,
    ) -> float:
        """Return the predicted seconds with other values of the fitted constants."""
        sm_seconds = self.sm_seconds / (sustained if self.mix else 1)
        overlapping = [sm_seconds]
        for name in ("L2", "DRAM", "tensor"):
            overlapping.append(self.terms.get(name, 0.0))
        exponent = pipeline_overlap if self.pipelined else overlap
        seconds = float(np.linalg.norm(overlapping, exponent)) + LAUNCH_SECONDS
        return max(seconds, self.calls * LIBRARY_CALL_SECONDS)


@dataclass(frozen=True)
class Prediction:
    """A time that the model predicts, as a sum of at least one part."""

    parts: tuple[Part, ...]
    dram: DramTraffic

    @property
    def ms(self) -> float:
        """The predicted time of all parts, in milliseconds."""
        return 1e3 * sum(part.seconds for part in self.parts)

    @property
    def group(self) -> str:
        """The units that do most of the work: the model's error is known for each of these groups.

        Short times on wgmma are a group of their own. There a block has few tiles, and what it costs to
        hand over stages is not known.
        """
        slowest = self.slowest
        if not slowest.mix:
            return "cuBLAS"
        if slowest.tensor_flops:
            return WGMMA if self.ms >= SHORT_MS else f"{WGMMA}, below {SHORT_MS} ms"
        return "mma.sync" if slowest.mix.get("HMMA") else "fp32 units"

    @property
    def slowest(self) -> Part:
        """The part with the longest time."""
        return max(self.parts, key=lambda part: part.seconds)

    @property
    def issued(self) -> dict[tuple[str, int], float]:
        """The share of all instructions that warps issue, by file and line."""
        total = sum(sum(part.mix.values()) for part in self.parts)
        shares: Counter[tuple[str, int]] = Counter()
        for part in self.parts:
            for line, count in part.issued.items():
                shares[part.file, line] += count / total
        return shares

    @property
    def verdict(self) -> str:
        """What limits the kernel, in part of a sentence."""
        slowest = self.slowest
        (first, first_seconds), *others = slowest.longest
        limits = f"limited by {WORDS[first]} ({first_seconds / slowest.seconds:.0%} of its time)"
        if others:
            second, second_seconds = others[0]
            share = second_seconds / slowest.seconds
            if share > _WORTH_NAMING:
                limits += f", then {WORDS[second]} ({share:.0%})"
        share = 1e3 * slowest.seconds / self.ms
        if share > _ALMOST_ALL:
            return limits
        return f"{share:.0%} of them in {slowest.name}, which is {limits}"


def predict(
    problem: Problem,
    gpu: Gpu,
    launched: Sequence[LaunchedFunction],
    counts: Counts,
    ceilings: Ceilings | None = None,
    format: Format = FLOAT32,
) -> Prediction | None:
    """Predict a kernel's time.

    Parameters
    ----------
    problem, format : the problem, and the format of its tensors.
    gpu : the GPU.
    launched : the functions that the kernel launched, compiled for the GPU.
    counts : the counts of a simulated run.
    ceilings : the GPU's measured rates. Without them, shares of the datasheet's rates are assumed.

    Returns
    -------
    Prediction, or None if no launched function was both compiled and counted.
    """
    sheet = gpu.datasheet
    bandwidth = ceilings.copy_bytes_per_s if ceilings else DRAM_SHARE * sheet.memory_gb_per_s * 1e9
    fp32_rate = ceilings.fp32_flops if ceilings else LIBRARY_SHARE * sheet.fp32_tflops * 1e12
    launched = [entry for entry in launched if entry.lines]
    moved = _dram_of_each(problem, format, gpu, counts, launched)
    misses, load_cycles = load_cost(counts.counters, sum(dram.assumed for dram in moved))
    parts = []
    # The last entry of `moved` may be the bytes of lines that functions share. It is in no part.
    for entry, dram in zip(launched, moved, strict=False):
        dram_seconds = dram.assumed / bandwidth
        parts.append(_part(gpu, entry, counts, misses, load_cycles, dram_seconds))
    parts = _with_counted_tensor_work(parts, counts.counters.get("tensor_flops", 0))
    if library_bytes := counts.counters.get("library_bytes"):
        # cuBLAS is assumed to compute tiles of 128 x 128, at the rate of a large product.
        busy = problem.flops / fp32_rate
        terms = {"fp32": busy, "DRAM": library_bytes / bandwidth}
        # The simulator lists the launches of functions, and counts a library's calls with them.
        calls = int(counts.counters["launches"]) - len(counts.launches)
        parts.append(Part("cuBLAS", terms, busy, calls=calls))
        least = counts.counters["library_once"]
        unknown = "cuBLAS's tiles may find their panels in the L2"
        moved.append(DramTraffic(least, library_bytes, unknown=unknown, once=library_bytes))
    return Prediction(tuple(parts), DramTraffic.of(moved)) if parts else None


def _with_counted_tensor_work(parts: list[Part], counted: float) -> list[Part]:
    """Return parts whose tensor cores do the counted work.

    Without a count, as for a kernel's own PTX, the work that the machine code suggests remains.
    """
    suggested = sum(part.tensor_flops for part in parts)
    if not counted or not suggested:
        return parts
    factor = counted / suggested
    scaled = []
    for part in parts:
        terms = part.terms | {"tensor": factor * part.terms["tensor"]}
        scaled.append(replace(part, terms=terms, tensor_flops=factor * part.tensor_flops))
    return scaled


def _dram_of_each(
    problem: Problem,
    format: Format,
    gpu: Gpu,
    counts: Counts,
    launched: Sequence[LaunchedFunction],
) -> list[DramTraffic]:
    """Return the DRAM traffic of each function, and last that of lines that functions share."""
    array_bytes = _array_bytes(problem, format, counts)
    # Inlined lines of a header, such as asynchronous copies, belong to no single function.
    inlined = [
        row
        for row in counts.lines
        if not any(entry.function.shares_file(row) for entry in launched)
    ]
    if len(launched) == 1:
        # Its own lines have a row for each inlined call.
        own = {(row.get("file"), row["line"]) for row in launched[0].lines}
        others = [row for row in inlined if (row.get("file"), row["line"]) not in own]
        launched = [replace(launched[0], lines=[*launched[0].lines, *others])]
    moved = []
    for entry in launched:
        once = _bytes_once(entry, array_bytes)
        moved.append(dram_traffic(problem, format, gpu, counts, entry, once))
    if len(launched) > 1:
        shared = requested_bytes(inlined, "load") + requested_bytes(inlined, "store")
        if shared:
            unknown = "several functions share the lines of a header"
            moved.append(DramTraffic(0.0, shared, unknown=unknown))
    return moved


def _array_bytes(problem: Problem, format: Format, counts: Counts) -> dict[str, float]:
    """Return the bytes of each array, under the names in the counts."""
    sizes: dict[str, float] = format.bytes(problem)
    sizes["workspace"] = requested_bytes(counts.lines, "store", "workspace")
    # The kernel defines the memory order of a plan. The accesses of sampled blocks give its size.
    plan_ends = [row["high"] for row in counts.reaches if row["array"] == "plan"]
    sizes["plan"] = max(plan_ends, default=sizes["w"])
    sizes["several"] = sum(sizes[name] for name in ("x", "w", "bias", "workspace"))
    return sizes


def _bytes_once(
    launched: LaunchedFunction, array_bytes: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """Return the bytes that a function accesses if each byte counts once, by kind and array.

    That is the size of the array, or the requested bytes if they are fewer. The machine code counts
    as an array.
    """
    requested: Counter[tuple[str, str]] = Counter()
    for row in launched.lines:
        if row["space"] == "global":
            requested[row["kind"], row["array"]] += float(SECTOR_BYTES) * row["units"]
    once = {}
    for (kind, array), size in requested.items():
        once[kind, array] = min(size, array_bytes.get(array) or size)
    once["load", "code"] = launched.function.bytes * len(launched.launches)
    return once


def _part(
    gpu: Gpu,
    launched: LaunchedFunction,
    counted: Counts,
    l1_misses: float,
    load_cycles: float,
    dram_seconds: float,
) -> Part:
    """Return the predicted time of one function."""
    function = launched.function
    lines = launched.lines
    warps = launched.blocks * launched.warps
    executed = _executions(launched, counted.executed)
    counts = instruction_counts(function, lines, executed, warps)
    work = WarpWork.of(function, counts, lines, gpu, load_cycles, warps)
    # An SM runs a whole number of blocks. With many blocks, the average is accurate enough.
    per_sm = launched.blocks / gpu.sms
    if launched.blocks < _MANY_BLOCKS * gpu.sms:
        per_sm = math.ceil(per_sm)
    per_sm = max(1.0, per_sm)
    hertz = gpu.ghz * 1e9
    resident = min(launched.occupancy(gpu).blocks, per_sm) or 1
    unevenness = _unevenness(gpu, launched, counted)
    sm_seconds = unevenness * work.cycles(launched.warps, per_sm, resident) / hertz
    warps_per_scheduler = unevenness * per_sm * launched.warps / SCHEDULERS / (SUSTAINED * hertz)
    terms = {name: warps_per_scheduler * cycles for name, cycles in work.busy.items()}
    waiting = sm_seconds / SUSTAINED - max(terms.values(), default=0.0)
    terms["waiting"] = max(0.0, waiting)
    tensor_rate = 1e12 * ((gpu.datasheet and gpu.datasheet.tf32_tflops) or math.inf)
    # The last wave of blocks takes as long as the others.
    share_in_use = launched.blocks / (unevenness * per_sm * gpu.sms)
    terms["tensor"] = work.tensor_flops * warps / (tensor_rate * share_in_use)
    terms["L2"] = _l2_bytes(lines, l1_misses) / (L2_BYTES * gpu.sms * hertz)
    terms["DRAM"] = dram_seconds
    issued: Counter[int] = Counter()
    for instruction in function.instructions:
        if instruction.line and instruction.opcode != "NOP":
            issued[instruction.line] += counts.get(instruction.address, 0.0)
    mix = in_order({kind: count * warps for kind, count in work.mix.items()})
    looped = 0.0
    if function.hot_loop:
        hot = sum(counts.get(i.address, 0.0) for i in function.body(function.hot_loop))
        looped = hot / (sum(mix.values()) or 1)
    tensor_flops = sum(
        i.tensor_flops * counts.get(i.address, 0.0)
        for i in function.instructions
        if i.kind == "HGMMA"
    )
    return Part(
        function.name,
        terms,
        sm_seconds,
        mix,
        issued,
        looped,
        function.file,
        tensor_flops,
        any(i.opcode.startswith("SYNCS") for i in function.instructions),
    )


def _executions(
    launched: LaunchedFunction, executed: Mapping[str, Mapping[int, float]]
) -> Mapping[str, Mapping[int, float]]:
    """Return how often threads executed each line, in a function.

    A function that only fills arrays before the convolution does so once, however large the problem is.
    If the counts of a smaller problem were multiplied (`Multiplied`), its accesses were not. Then its
    executions are divided by how much they exceed its stores.
    """
    stores = [row for row in launched.lines if (row["space"], row["kind"]) == ("global", "store")]
    if not all(row["array"] in ("workspace", "plan") for row in stores):
        return executed
    excess = math.inf
    for row in stores:
        times = executed.get(Path(row["file"]).name, {}).get(row["line"])
        if times and row["lanes"]:
            excess = min(excess, times / row["lanes"])
    if not _CLEARLY_MORE < excess < math.inf:
        return executed
    return {
        file: {line: number / excess for line, number in by_line.items()}
        for file, by_line in executed.items()
    }


def _unevenness(gpu: Gpu, launched: LaunchedFunction, counted: Counts) -> float:
    """Return how much more a block computes than the average, if all blocks run at the same time.

    Persistent blocks compute whole tiles: for example, one or two. The launch takes the time of two.
    The sampled blocks' parts of y say how much each computes.
    """
    numbers = {n for n, launch in enumerate(counted.launches) if launch in launched.launches}
    stored: Counter[tuple[int, int]] = Counter()
    for row in counted.reaches:
        if row["launch"] in numbers and row["array"] == "y":
            stored[row["launch"], row["block"]] += row["sectors"]
    blocks = launched.blocks / len(launched.launches)
    if not stored or blocks > launched.occupancy(gpu).blocks * gpu.sms:
        return 1.0
    return max(stored.values()) * len(stored) / sum(stored.values())


def _l2_bytes(lines: Sequence[Mapping], l1_misses: float) -> float:
    """Return the bytes between L1 and L2: loads that miss L1, and all stores."""
    load_requests = 0
    for row in lines:
        if row["space"] == "global" and row["kind"] == "load":
            load_requests += row["requests"]
    loads = min(requested_bytes(lines, "load"), SECTOR_BYTES * load_requests * l1_misses)
    return loads + requested_bytes(lines, "store")
