"""Count a kernel's work on the simulator. Only this module needs the room ``sim``.

For a large problem only some blocks of each launch run, and their counts are scaled. Sampled blocks
run on zeros, because zero pages take no memory until they are accessed. That does not change the
counts: the addresses of a convolution do not depend on its data.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..core import rooms
from ..core.errors import LaunchError
from ..core.kernel import data
from ..core.kernel.kernel import Kernel
from ..core.machine.device import Gpu
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.problem import Problem

# A problem with more multiply-adds than this is sampled. It takes the simulator about a second.
MACS = 25_000_000
NOT_INSTALLED = "the simulator room is not installed"
# The least number of blocks of a sample, over all launches.
_LEAST = 8
# A block of a fixed grid (persistent blocks) may compute a share of everything. Above this many
# multiply-adds of a block, a smaller problem is counted instead.
_MOST_OF_A_BLOCK = 100_000_000
# The multiply-adds of such a smaller problem in two blocks.
_SMALLER_MACS = 40_000_000
# A smaller problem has at least this many rows of y, and as many modulo 8 as the whole one, so that
# the planes of y begin at the same places in sectors.
_LEAST_ROWS = 4
_ROWS_MODULO = 8
# The arrays that a kernel fills before the convolution, whatever the number of pixels.
_PREPARED = ("workspace", "plan")


class Counts(Protocol):
    """The results of a simulated run that this room uses (a `Trace` of the room ``sim``).

    Attributes
    ----------
    counters : totals by name: "global_load_requests", "global_load_sectors", "block_sectors", ...
    launches : for each launch: kernel, grid, block, dynamic_bytes (shared memory that the launch
        requests, without the kernel's static arrays).
    lines : for each source line, space and kind: file, line, space, kind, array, requests, units
        (sectors of global memory, wavefronts of shared memory), ideal_units, lanes, bytes, partial
        (sectors of which a block stored only a part).
    lines_by_call : the same, with a row for each inlined copy of a line, and ``calls``: a tuple of (file,
        line), of the line and of the inlined calls around it, the innermost first.
    executed : by file, how often threads executed each line.
    reached : the lines at which executed basic blocks begin, each a tuple of (file, line) with those of
        the inlined calls around it, the innermost first.
    reaches : for each sampled block and array: launch, block, array, low, high (the range of bytes
        that the block accessed), sectors.
    accesses : for each request of a recorded warp: launch, file, line, space, kind, array, element,
        bytes, lanes. `complete` is False if there were more than the limit.
    sampling : None if all blocks ran; otherwise blocks, sampled, and the counters' errors.
    findings : errors and warnings of the simulator.
    flops : floating-point operations; None if they were not counted.
    """

    counters: Mapping[str, float]
    launches: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    lines_by_call: Sequence[Mapping[str, Any]]
    executed: Mapping[str, Mapping[int, int]]
    reached: Collection[tuple[tuple[str, int], ...]]
    reaches: Sequence[Mapping[str, Any]]
    accesses: Sequence[Mapping[str, Any]]
    complete: bool
    sampling: Mapping[str, Any] | None
    findings: Sequence[Any]
    flops: float | None


def installed() -> bool:
    """Return whether the room ``sim`` is installed."""
    return "sim" in rooms.rooms()


@dataclass(frozen=True)
class Multiplied:
    """The counts of a smaller problem, multiplied to the size of the whole one; see `Counts`.

    `launches` are those of the whole problem, and `smaller` is the one that was simulated. Counts of
    filters that are packed first are not multiplied.
    """

    counters: Mapping[str, float]
    launches: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    lines_by_call: Sequence[Mapping[str, Any]]
    executed: Mapping[str, Mapping[int, float]]
    sampling: Mapping[str, Any] | None
    findings: Sequence[Any]
    flops: float | None
    smaller: Problem
    reached: Collection[tuple[tuple[str, int], ...]] = ()
    reaches: Sequence[Mapping[str, Any]] = ()
    accesses: Sequence[Mapping[str, Any]] = ()
    complete: bool = True

    @classmethod
    def of(
        cls, counts: Counts, launches: Sequence[Mapping[str, Any]], smaller: Problem, times: float
    ) -> Multiplied:
        """Return counts of a smaller problem `times` over."""
        # A weight gradient's "w" is dy, which every pixel reads.
        packs = smaller.computation is not WEIGHT_GRADIENT
        packs = packs and any(_is_packing(row) for row in counts.lines)

        def multiplied(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
            result = []
            for row in rows:
                once = packs and (_is_packing(row) or row["array"] == "w")
                factor = 1.0 if once else times
                result.append({**row, **{name: factor * row[name] for name in _NUMBERS}})
            return result

        counters = {name: times * value for name, value in counts.counters.items()}
        lines = multiplied(counts.lines)
        if packs:
            counters |= _counters_of(lines)
        executed = {
            file: {line: times * number for line, number in by_line.items()}
            for file, by_line in counts.executed.items()
        }
        return cls(
            counters=counters,
            launches=launches,
            lines=lines,
            lines_by_call=multiplied(counts.lines_by_call),
            executed=executed,
            sampling=counts.sampling,
            findings=counts.findings,
            flops=None if counts.flops is None else times * counts.flops,
            smaller=smaller,
            reached=counts.reached,
        )

    @classmethod
    def extrapolated(
        cls,
        counts: Counts,
        more: Counts,
        launches: Sequence[Mapping[str, Any]],
        smaller: Problem,
        factors: tuple[float, float],
    ) -> Multiplied:
        """Return counts that grow linearly, from those of a smaller problem and of one with more pixels.

        `factors` are how often the counts of the smaller problem and the difference are taken.
        """
        often, growth = factors

        def grown(first: float, second: float) -> float:
            value = often * first + growth * (second - first)
            # An unknown count (NaN) stays unknown.
            return 0.0 if value < 0 else value

        def place(row: Mapping[str, Any]) -> tuple:
            return tuple(row.get(name) for name in ("file", "line", "space", "kind", "calls"))

        def extended(
            rows: Sequence[Mapping[str, Any]], later_rows: Sequence[Mapping[str, Any]]
        ) -> list[Mapping[str, Any]]:
            later = {place(row): row for row in later_rows}
            result = []
            for row in rows:
                second = later.get(place(row), row)
                result.append({**row, **{n: grown(row[n], second[n]) for n in _NUMBERS}})
            return result

        executed = {}
        for file, by_line in counts.executed.items():
            after = more.executed.get(file, {})
            executed[file] = {n: grown(count, after.get(n, count)) for n, count in by_line.items()}
        return cls(
            counters={n: grown(value, more.counters[n]) for n, value in counts.counters.items()},
            launches=launches,
            lines=extended(counts.lines, more.lines),
            lines_by_call=extended(counts.lines_by_call, more.lines_by_call),
            executed=executed,
            sampling=counts.sampling,
            findings=counts.findings,
            flops=None if counts.flops is None else grown(counts.flops, more.flops or 0.0),
            smaller=smaller,
            reached=set(counts.reached) | set(more.reached),
        )


_NUMBERS = ("requests", "units", "ideal_units", "lanes", "bytes", "partial")


def _is_packing(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `Counts.lines` fills an array before the convolution."""
    return row["kind"] == "store" and row["array"] in _PREPARED


def _counters_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the counters of global memory that rows of `Counts.lines` add up to."""
    counters: dict[str, float] = {}
    for kind in ("load", "store"):
        rows = [row for row in lines if row["space"] == "global" and row["kind"] == kind]
        sectors = sum(row["units"] for row in rows)
        counters[f"global_{kind}_requests"] = sum(row["requests"] for row in rows)
        counters[f"global_{kind}_sectors"] = sectors
        counters[f"global_{kind}_bytes"] = 32 * sectors
    return counters


def count(
    kernel: Kernel, problem: Problem, macs: int | None = None, least: int = _LEAST
) -> Counts | Multiplied:
    """Count a kernel's work on a problem, with as many blocks as simulate in about a second.

    A problem of at most `macs` multiply-adds (`MACS`) runs completely, on random data. Of a larger one, at
    least `least` blocks run. If each block of a fixed grid computes much (persistent blocks), a
    smaller problem is counted, and its counts are multiplied.

    Raises
    ------
    LaunchError
        The kernel fails, a single block takes too long, or the room ``sim`` is not installed.
    """
    macs = macs or MACS
    if problem.macs <= macs:
        return simulate(kernel, problem, seed=0)
    launches = planned_launches(kernel, problem)
    grids = [math.prod(launch["grid"]) for launch in launches]
    if not grids:
        return simulate(kernel, problem, sample=least)
    main = _main_launch(launches)
    if problem.macs > _MOST_OF_A_BLOCK * math.prod(main["grid"]):
        return _count_smaller(kernel, problem, launches)
    # This share of the smallest grid computes about `macs` multiply-adds.
    blocks = max(2, least // len(grids), macs * min(grids) // problem.macs)
    return simulate(kernel, problem, sample=blocks)


def planned_launches(
    kernel: Kernel, problem: Problem, gpu: Gpu | None = None
) -> Sequence[Mapping[str, Any]]:
    """Return the launches of a kernel for a problem, without running any block."""
    options = {} if gpu is None else {"gpu": gpu}
    # No grid has this block.
    return simulate(kernel, problem, record=(2**31 - 1, 0, 0, 0, 1), **options).launches


def _main_launch(launches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the launch that computes the products: the one with the most shared memory."""
    return max(launches, key=lambda launch: launch["shared_bytes"])


def _count_smaller(
    kernel: Kernel, problem: Problem, launches: Sequence[Mapping[str, Any]]
) -> Multiplied:
    """Count fewer images and rows on a GPU of few SMs, whose blocks compute several tiles each."""
    gpu = kernel.runs_on.gpu
    blocks_of_one = math.prod(
        _main_launch(planned_launches(kernel, problem, replace(gpu, sms=1)))["grid"]
    )
    images = problem.N * _SMALLER_MACS * blocks_of_one / problem.macs
    smaller = _with_images(problem, images)
    few = replace(gpu, sms=2 * blocks_of_one)
    counts = simulate(kernel, smaller, sample=2, gpu=few)
    times = problem.macs / smaller.macs
    if problem.computation is DATA_GRADIENT:
        # The blocks compute rows of dx, of which a smaller problem has more for each row of dy.
        times = math.prod(problem.output_shape) / math.prod(smaller.output_shape)
    if problem.computation is not WEIGHT_GRADIENT:
        return Multiplied.of(counts, launches, smaller, times)
    # A block adds its sums to dw once, however many pixels it has summed. A second count, of a
    # larger problem, says what grows with the pixels.
    larger = _with_images(problem, max(2 * images, (smaller.P + 1) / problem.P))
    if larger.macs == smaller.macs:
        return Multiplied.of(counts, launches, smaller, times)
    more = simulate(kernel, larger, sample=2, gpu=few)
    blocks = math.prod(_main_launch(launches)["grid"]) / math.prod(
        _main_launch(counts.launches)["grid"]
    )
    growth = (problem.macs - blocks * smaller.macs) / (larger.macs - smaller.macs)
    return Multiplied.extrapolated(counts, more, launches, smaller, (blocks, growth))


def _with_images(problem: Problem, images: float) -> Problem:
    """Return a problem of fewer images, or of one image of fewer rows if `images` is below 1."""
    if images >= 1:
        return replace(problem, N=min(problem.N, round(images)), name="")
    rows = max(_LEAST_ROWS, math.ceil(images * problem.P))
    rows = min(problem.P, rows + (problem.P - rows) % _ROWS_MODULO)
    extent = problem.dilation[0] * (problem.R - 1) + 1
    height = (rows - 1) * problem.stride[0] + extent - 2 * problem.padding[0]
    return replace(problem, N=1, H=max(1, height), name="")


def simulate(
    kernel: Kernel,
    problem: Problem,
    *,
    seed: int | None = None,
    sample: int | None = None,
    **options: Any,
) -> Counts:
    """Run a kernel once on the simulator.

    Parameters
    ----------
    kernel, problem : a kernel of the engine "sim", and the problem.
    seed : for random inputs; None for inputs of zeros.
    sample : how many blocks of each launch run; None for all.
    options : `record` and `time_limit` of `convlab.sim.simulation.simulate`. The default time limit
        is the kernel's.

    Raises
    ------
    LaunchError
        The kernel fails, a single block takes too long, or the room ``sim`` is not installed.
    """
    if not installed():
        raise LaunchError(NOT_INSTALLED)
    from ..sim.launch import simulated
    from ..sim.simulation import Arena

    shapes = {"x": problem.first_shape, "w": problem.second_shape}
    if problem.bias:
        shapes["bias"] = (problem.K,)
    inputs = list(shapes)
    shapes["y"] = problem.output_shape
    arena = Arena(shapes, list(shapes), kernel.format)
    if seed is not None:
        for name, tensor in zip(inputs, data.inputs(problem, seed, format=kernel.format)):
            arena.tensors[name].copy_(tensor)
    try:
        return simulated(kernel, problem, arena, sample=sample and (sample, 0), **options)
    except LaunchError as error:
        if sample is None or error.kind not in ("endless loop", "out of time"):
            raise
        raise LaunchError(
            f"a sample of {sample} blocks of each launch of {kernel.name} takes the simulator too "
            "long. Either a fixed grid shares all of the work (persistent blocks), or there are "
            f"many launches. Inspect a smaller problem: '{problem.scaled(MACS)}'"
        ) from error
