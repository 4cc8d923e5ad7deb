"""Time two runnables side by side on a GPU until the ratio of their times is known.

Two modes. **cold**: twice the L2 is written before each launch, so that all of x, w and bias come
from memory, as when other layers ran in between. **hot**: launches back to back with no flush,
over as many sets of x, w, bias and y (four at most) as fit the L2 together: the data may be in the
L2, but no launch meets the lines that the one before has just written. For a problem larger than
the L2 the modes differ by what the launch before left of it.

Both sides work on the same x, w and bias, and kernels on the same y and workspace, since where a
buffer lies can be worth a percent by itself.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..machine.clock import Clock
from ..machine.device import describe
from ..right import reference
from ..run.runnable import Inputs, Launch, Runnable, explained, run
from ..words.errors import LaunchError
from ..words.problem import Problem
from .measure import shared_inputs
from .ratio import Ratio, estimate, settled
from .stopwatch import Batch, Single, Turn, flush_buffer, lone_seconds, rounds

MODES = ("cold", "hot")
_COLD_GRAPH_SECONDS = 100e-6  # shorter kernels are put in a graph with their flushes
_COLD_BATCH = 16  # launches of such a graph
_HOT_GRAPH_SECONDS = 1e-3
_HOT_BATCH_SECONDS = 3e-3
_MOST_LAUNCHES = 1000
_MOST_SETS = 4
_TURN_SECONDS = 0.005
_WARM_SECONDS = 0.2  # rounds not counted: the clock rises
_LEAST_SECONDS = 0.3  # rounds go on for at least so long: a clock's steps are to be met
_FEWEST_ROUNDS = 6  # taken beyond the time limit, up to four times it


@dataclass(frozen=True)
class Paired:
    """What rounds of two runnables A and B gave, in one mode.

    Attributes
    ----------
    mode
        "cold" or "hot".
    ratio
        B's time over A's.
    a_seconds, b_seconds
        Seconds a launch, one for each round that counts.
    discarded
        Rounds left out: the clock was held down, or noise hid the kernel.
    method
        In words, what was timed.
    overheads
        What events see of a single launch, less the time above; NaN where single launches are
        what was timed.
    mhz
        The SM clock: median, lowest, highest; None where NVML does not answer.
    notes
        Lines: time was up, the clock, what could not be done.
    """

    mode: str
    ratio: Ratio
    a_seconds: tuple[float, ...]
    b_seconds: tuple[float, ...]
    discarded: int
    method: str
    overheads: tuple[float, float] = (math.nan, math.nan)
    mhz: tuple[int, int, int] | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Plan:
    """What takes turns: A, B, and perhaps the flush alone, whose time is taken off theirs."""

    turns: Sequence[Turn]
    method: str
    lone: tuple[float, float] = (math.nan, math.nan)
    notes: tuple[str, ...] = ()


def measure_pair(
    a: Runnable,
    b: Runnable,
    problem: Problem,
    *,
    seed: int,
    modes: Sequence[str],
    target: float,
    limit_seconds: float,
) -> list[Paired]:
    """Time two runnables of one GPU on a problem, in each mode.

    Parameters
    ----------
    seed
        Of the data and of the order in the rounds.
    target
        Half width of the ratio's interval at which a mode ends.
    limit_seconds
        Time for the rounds of one mode; those for an interval at all may take four times it.

    Raises
    ------
    LaunchError
        One of them failed to run, or memory is short.
    """
    options = {"seed": seed, "target": target, "limit_seconds": limit_seconds}
    planned = {"cold": _cold, "hot": _hot}
    found = []
    reference.make_room(problem, a.device)
    with torch.cuda.device(a.device), explained(f"{a.name} or {b.name}"):
        clock = Clock(a.device)
        for mode in modes:
            plan = planned[mode]((a, b), problem, seed, limit_seconds, clock)
            found.append(in_rounds(mode, plan, clock=clock, **options))
            del plan
            torch.cuda.empty_cache()  # others want the memory too, on both sides of a worker
    return found


def in_rounds(
    mode: str,
    plan: Plan,
    *,
    seed: int,
    target: float,
    limit_seconds: float,
    clock: Clock | None = None,
    warm_seconds: float = _WARM_SECONDS,
    least_seconds: float = _LEAST_SECONDS,
) -> Paired:
    """Let the plan's turns take rounds until the ratio is settled or time is up."""
    everything: list[tuple[float, float]] = []
    clean: list[tuple[float, float]] = []
    logs: dict[bool, list[float]] = {True: [], False: []}  # of the clean ones, of all
    mhz: list[int] = []
    held: dict[str, int] = {}
    lost = 0
    begun = time.perf_counter()
    started = None
    for taken in rounds(plan.turns, random.Random(seed)):
        now = time.perf_counter()
        readings = clock.take() if clock else []
        if started is None:
            if now - begun < warm_seconds:
                continue
            started = begun if not warm_seconds else now
        a, b, *flush = map(centre, taken)
        if flush:
            a, b = a - flush[0], b - flush[0]
        mhz += [reading.mhz for reading in readings]
        reasons = {reason for reading in readings for reason in reading.throttles}
        held |= {reason: held.get(reason, 0) + 1 for reason in reasons}
        if min(a, b) <= 0:
            lost += 1
        else:
            everything.append((a, b))
            logs[False].append(math.log(b / a))
            if not reasons:
                clean.append((a, b))
                logs[True].append(logs[False][-1])
        mostly_clean = 2 * len(clean) >= len(everything)
        kept = logs[mostly_clean]
        elapsed = now - started
        if elapsed >= limit_seconds:
            if len(kept) >= _FEWEST_ROUNDS or elapsed >= 4 * limit_seconds:
                break
        elif elapsed >= least_seconds and settled(kept, target):
            break
    pairs = clean if mostly_clean else everything
    ratio = estimate(kept)
    notes = list(plan.notes)
    if ratio.half_width > target:
        notes.append(f"stopped after {elapsed:.1f} s, before the interval was narrow enough")
    if held:
        named = ", ".join(f"{reason} ({count} rounds)" for reason, count in held.items())
        what = "those rounds are left out" if mostly_clean else "in most rounds, so all are kept"
        notes.append(f"the clock was held down: {named}; {what}")
    if lost:
        notes.append(f"{lost} rounds left out: the flush's noise was larger than the kernel")
    if clock is not None and clock.missing:
        notes.append(f"whether the clock was held down is not known: {clock.missing}")
    columns = tuple(zip(*pairs, strict=True)) or ((), ())
    times = [statistics.median(column) if column else math.nan for column in columns]
    return Paired(
        mode, ratio, *columns, discarded=len(everything) - len(pairs) + lost, method=plan.method,
        overheads=(plan.lone[0] - times[0], plan.lone[1] - times[1]),
        mhz=(int(statistics.median(mhz)), min(mhz), max(mhz)) if mhz else None,
        notes=tuple(notes),
    )  # fmt: skip


def centre(samples: Sequence[float]) -> float:
    """Return the mean of the samples within 10% and 1 µs of their median.

    An outlier does not move it; and a timer of coarse steps does not hold it, as it does a median
    or a mean of the middle samples: how many fall on which side of a step still counts.
    """
    middle = statistics.median(samples)
    room = 0.1 * middle + 1e-6
    near = [sample for sample in samples if abs(sample - middle) <= room]
    return statistics.fmean(near) if near else middle  # none: half of them far above the others


class _Shared:
    """Gives the same memory to all that ask for the same size: the sides run one at a time."""

    def __init__(self) -> None:
        self._kept: dict[tuple, torch.Tensor] = {}

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        key = (tuple(shape), dtype, device)
        if key not in self._kept:
            self._kept[key] = torch.empty(shape, dtype=dtype, device=device)
        return self._kept[key]

    def launch(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Launch:
        """Prepare a runnable on the shared memory, and run it once."""
        launch = kernel.prepare(problem, *inputs, allocate=self)
        run(launch)
        return launch


def _cold(
    kernels: Sequence[Runnable], problem: Problem, seed: int, limit_seconds: float, clock: Clock
) -> Plan:
    device = kernels[0].device
    inputs, flush = shared_inputs(kernels, problem, seed), flush_buffer(device)
    singles = [
        Single(
            kernel, problem, given, flush, clock=clock,
            turn_seconds=_TURN_SECONDS, warm_up_seconds=limit_seconds / 5,
        )
        for kernel, given in zip(kernels, inputs, strict=True)
    ]  # fmt: skip
    lone = tuple(centre(single()) for single in singles)
    plan = Plan(singles, "single launches between events, the L2 flushed before each")
    if max(lone) >= _COLD_GRAPH_SECONDS:
        return plan
    memory = _Shared()
    launches = [
        [memory.launch(kernel, problem, given)]
        for kernel, given in zip(kernels, inputs, strict=True)
    ]
    batch = functools.partial(Batch, count=_COLD_BATCH, before=flush.zero_, clock=clock)
    try:
        turns = [batch(k, launch) for k, launch in zip(kernels, launches, strict=True)]
        turns.append(batch(kernels[0], []))
    except (RuntimeError, LaunchError) as error:
        torch.cuda.synchronize(device)
        plan.notes = (_not_captured(error),)
        return plan
    method = f"CUDA graphs of {_COLD_BATCH} flushes and launches, less the time of the flushes"
    return Plan(turns, method, lone)


def _hot(
    kernels: Sequence[Runnable], problem: Problem, seed: int, limit_seconds: float, clock: Clock
) -> Plan:
    device = kernels[0].device
    known = describe(device)
    l2 = known.l2_bytes if known else 0
    sets = max(1, min(_MOST_SETS, l2 // max(problem.min_bytes, 1)))
    memory = [_Shared() for _ in range(sets)]
    inputs = zip(*(shared_inputs(kernels, problem, seed + i) for i in range(sets)), strict=True)
    launches = [
        [each.launch(kernel, problem, tensors) for each, tensors in zip(memory, given, strict=True)]
        for kernel, given in zip(kernels, inputs, strict=True)
    ]
    lone = tuple(
        lone_seconds(each[0], kernel) for each, kernel in zip(launches, kernels, strict=True)
    )
    counts = [_launches(seconds, sets) for seconds in lone]
    place = f"{sets} set{'s' * (sets > 1)} of buffers, {_bytes(sets * problem.min_bytes)}"
    place += f" {'in' if problem.min_bytes <= l2 else 'and'} an L2 of {_bytes(l2)}"

    def batches(graph: bool) -> list[Batch]:
        return [
            Batch(kernel, each, count, graph=graph, clock=clock)
            for kernel, each, count in zip(kernels, launches, counts, strict=True)
        ]

    if max(lone) >= _HOT_GRAPH_SECONDS:
        return Plan(batches(False), f"launches back to back, no flush; {place}")
    several = " and ".join(map(str, sorted(set(counts))))
    try:
        return Plan(batches(True), f"CUDA graphs of {several} launches; {place}", lone)
    except (RuntimeError, LaunchError) as error:
        torch.cuda.synchronize(device)
        method = f"{several} launches in a row, each from the host; {place}"
        return Plan(batches(False), method, notes=(_not_captured(error),))


def _launches(seconds: float, sets: int) -> int:
    """Return how many launches are timed together: a multiple of the sets."""
    wanted = min(_MOST_LAUNCHES, _HOT_BATCH_SECONDS / max(seconds, 1e-6))
    return sets * max(1, round(wanted / sets))


def _not_captured(error: Exception) -> str:
    first = str(error).strip().split("\n")[0]
    return f"no CUDA graph could be made, so that launch overhead is part of the times: {first}"


def _bytes(count: float) -> str:
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
                      if count >= u or u == 1)  # fmt: skip
    return f"{count / unit:.3g} {name}"
