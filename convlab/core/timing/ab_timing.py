"""Time two runnables in turns on a GPU until the ratio of their times is known.

There are two modes.

- **cold**: before each launch, zeros are written to twice the size of the L2. So x, w and bias come
  from memory, as if other layers had run in between.
- **hot**: launches run back to back without a flush. They cycle through up to four sets of x, w, bias
  and y, as many as fit the L2 together. So the data may be in the L2, but with several sets no launch
  reads lines that the launch before it has just written.

For a problem larger than the L2, a hot launch finds in the L2 only what the launch before it left.

Both sides read the same x, w and bias, because the address of a buffer alone can change a time by a
percent. Each side writes its own y, workspace and prepared filter. If memory cannot hold the buffers
of both sides, each side allocates its own for its turn only, and a note says so.

Addresses differ from run to run, which changes times by some tenths of a percent. So the buffers are
allocated anew several times ("places"), and the interval covers all these runs (`ratio.pooled`).
"""

from __future__ import annotations

import functools
import math
import random
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from ..correctness import reference
from ..errors import LaunchError
from ..kernel.runnable import Launch, Runnable, explained, is_out_of_memory, run
from ..machine.clock import Clock, Reading
from ..machine.device import describe
from ..problem.problem import Problem
from .measure import shared_inputs
from .observer import Caught, Observer, observe
from .ratio import Ratio, estimate, pooled, settled
from .stopwatch import Single, Turn, batch, flush_buffer, lone_seconds, nothing, rounds

# Shorter kernels are timed in a CUDA graph, together with their flushes.
_COLD_GRAPH_SECONDS = 100e-6
# The number of launches in such a graph.
_COLD_BATCH = 16
_HOT_GRAPH_SECONDS = 1e-3
_HOT_BATCH_SECONDS = 3e-3
_MOST_LAUNCHES = 1000
_MOST_SETS = 4
_TURN_SECONDS = 0.005
_STOPPED = "stopped after"
# At most this many bytes are allocated to change the addresses of later allocations.
_BALLAST = 64 << 20
# The distance between the seeds of two places.
_SEEDS = 1000
# An error that all runs of one process share, at any address: relative, and in seconds. It was
# measured on an H200 by tests.instruments.calibrate_ab: without it only 66 of 79 intervals contained
# the planted ratio.
_SHARED = 0.001
_SHARED_SECONDS = 30e-9
_NO_ROOM = ("memory is too small for both A and B: each allocates its buffers for its own turn",)
# An interval needs at least this many rounds. They may take up to four times the time limit.
_FEWEST_ROUNDS = 6


@dataclass(frozen=True)
class RoundOptions:
    """Hold the options of the rounds of one mode, and when they end.

    Attributes
    ----------
    target : the rounds end when half the width of the ratio's interval is at most this.
    limit_seconds : the time limit; with too few rounds for an interval it is four times as long.
    seed : seed of the data, and of the order within the rounds.
    warm_seconds : rounds during this time do not count, because the clock still rises.
    least_seconds : the rounds take at least this time, because the clock changes in steps.
    trusted : whether the outputs of timed launches are not checked.
    places : how often each mode is timed with newly allocated memory.
    """

    target: float
    limit_seconds: float
    seed: int
    warm_seconds: float = 0.2
    least_seconds: float = 0.3
    trusted: bool = False
    places: int = 1

    def part(self, place: int) -> RoundOptions:
        """Return the options of one place: a share of the time, a wider target, another seed."""
        share = 1 / self.places
        root = math.sqrt(self.places)
        return replace(
            self,
            target=self.target * root,
            limit_seconds=self.limit_seconds * share,
            least_seconds=self.least_seconds * share,
            seed=self.seed + _SEEDS * place,
        )


@dataclass(frozen=True)
class Paired:
    """Hold the result of the rounds of A and B in one mode.

    Attributes
    ----------
    mode : "cold" or "hot".
    ratio : B's time over A's.
    a_seconds, b_seconds : the time of one launch in seconds, for each round that was kept.
    discarded : the number of rounds left out: the GPU lowered its clock, or noise hid the kernel.
    method : how the launches were timed, as text.
    mhz : median, lowest and highest SM clock in MHz; None if not known.
    notes : lines of text: the time limit, the clock, what could not be done.
    runs : the ratio of each place in memory, or of each process, if there are several.
    caught : why A's or B's times are invalid, which ended the rounds; or empty texts.
    """

    mode: str
    ratio: Ratio
    a_seconds: tuple[float, ...]
    b_seconds: tuple[float, ...]
    discarded: int
    method: str
    mhz: tuple[int, int, int] | None = None
    notes: tuple[str, ...] = ()
    runs: tuple[Ratio, ...] = ()
    caught: tuple[str, str] = ("", "")

    @property
    def seconds(self) -> tuple[float, float]:
        """A's and B's median times of a launch; NaN without a round."""
        a = statistics.median(self.a_seconds or [math.nan])
        b = statistics.median(self.b_seconds or [math.nan])
        return a, b


@dataclass
class Plan:
    """Hold the turns of a round: A, B, and perhaps the flushes of each, which are subtracted."""

    turns: Sequence[Turn]
    method: str
    notes: tuple[str, ...] = ()


# ---- all modes, all places ---------------------------------------------------------------------


def measure_pair(
    a: Runnable, b: Runnable, problem: Problem, modes: Sequence[str], options: RoundOptions
) -> list[Paired]:
    """Time two runnables of one GPU on a problem, and return the result of each mode.

    If one is caught, the result of that mode is the last.
    """
    results = []
    reference.make_room(problem, a.device)
    with torch.cuda.device(a.device), explained(f"{a.name} or {b.name}"):
        clock = Clock(a.device)
        for mode in modes:
            try:
                runs = _run_in_places(mode, (a, b), problem, options, clock)
            except Caught as error:
                caught = tuple(str(error) if side is error.runnable else "" for side in (a, b))
                results.append(Paired(mode, estimate(()), (), (), 0, "", caught=caught))
                break
            results.append(merged(runs, options.target))
    return results


def _run_in_places(
    mode: str,
    kernels: Sequence[Runnable],
    problem: Problem,
    options: RoundOptions,
    clock: Clock,
) -> list[Paired]:
    """Time one mode in each place in memory; in up to twice as many if the places differ by much."""
    prepare = {"cold": _cold, "hot": _hot}[mode]
    runs: list[Paired] = []
    for place in range(2 * options.places):
        if place >= options.places and _is_narrow(runs, options):
            break
        part = options.part(place)
        # The ballast occupies memory during the next allocations, so that they get other addresses.
        ballast = _ballast(kernels[0].device, part.seed) if place else None
        plan = prepare(kernels, problem, part, clock)
        del ballast
        runs.append(in_rounds(mode, plan, part, clock))
        # Free the memory for other processes, and for other pages in the next place.
        del plan
        torch.cuda.empty_cache()
    return runs


def _is_narrow(runs: Sequence[Paired], options: RoundOptions) -> bool:
    """Return whether the interval of the places so far is narrow enough."""
    return options.places == 1 or merged(runs, options.target).ratio.half_width <= options.target


def _ballast(device: torch.device, seed: int) -> torch.Tensor:
    """Allocate a random amount of memory, so that later allocations get other addresses."""
    return torch.empty(random.Random(seed).randrange(_BALLAST), dtype=torch.uint8, device=device)


def merged(runs: Sequence[Paired], target: float, fresh: bool = False) -> Paired:
    """Combine several runs of one mode; `fresh` if each ran in its own process."""
    first = runs[0]
    if len(runs) == 1:
        return first
    ratios = tuple(run.ratio for run in runs)
    if fresh:
        difference = "each in a fresh process"
        shared_error = 0.0
    else:
        difference = "each with newly allocated memory"
        times = [min(run.seconds) for run in runs if run.a_seconds]
        shared_error = _SHARED + _SHARED_SECONDS / min(times, default=math.inf)
    ratio = pooled(ratios, shared_error)
    notes = [note for run in runs for note in run.notes if not note.startswith(_STOPPED)]
    if ratio.half_width > target:
        values = [each.value for each in ratios]
        spread = 100 * (max(values) / min(values) - 1)
        notes.append(f"the interval is wider than the target: the runs differ by {spread:.2g}%")
    return replace(
        first,
        ratio=ratio,
        runs=ratios,
        a_seconds=tuple(seconds for run in runs for seconds in run.a_seconds),
        b_seconds=tuple(seconds for run in runs for seconds in run.b_seconds),
        discarded=sum(run.discarded for run in runs),
        method=f"{first.method}; {len(runs)} runs, {difference}",
        mhz=_merged_clock(runs),
        notes=tuple(dict.fromkeys(notes)),
    )


def _merged_clock(runs: Sequence[Paired]) -> tuple[int, int, int] | None:
    """Return the median, lowest and highest clock of several runs in MHz, or None."""
    clocks = [run.mhz for run in runs if run.mhz]
    if not clocks:
        return None
    medians, lows, highs = zip(*clocks, strict=True)
    return int(statistics.median(medians)), min(lows), max(highs)


# ---- rounds ------------------------------------------------------------------------------------


class _Round(NamedTuple):
    """Hold one round: the seconds of a launch of A and of B, and the log of their ratio."""

    a: float
    b: float
    log: float


@dataclass
class _Tally:
    """Collect the rounds of one mode.

    Attributes
    ----------
    everything : all rounds.
    clean : the rounds in which the GPU did not lower its clock.
    mhz : the SM clock, as it was read.
    throttles : the reasons for a lowered clock, with the number of rounds of each.
    lost : the number of rounds in which a flush alone took longer than flush and kernel.
    """

    everything: list[_Round] = field(default_factory=list)
    clean: list[_Round] = field(default_factory=list)
    mhz: list[int] = field(default_factory=list)
    throttles: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    def add(self, samples: Sequence[Sequence[float]], readings: Sequence[Reading]) -> None:
        """Add the samples of one round: those of A, of B, and perhaps of the flushes of each."""
        self.mhz += [reading.mhz for reading in readings]
        reasons = {reason for reading in readings for reason in reading.throttles}
        self.throttles.update(reasons)
        a, b, *flushes = map(centre, samples)
        if flushes:
            a -= flushes[0]
            b -= flushes[1]
        if min(a, b) <= 0:
            self.lost += 1
            return
        this = _Round(a, b, math.log(b / a))
        self.everything.append(this)
        if not reasons:
            self.clean.append(this)

    @property
    def mostly_clean(self) -> bool:
        """Whether at least half of the rounds are clean; then only these are kept."""
        return 2 * len(self.clean) >= len(self.everything)

    @property
    def kept(self) -> list[_Round]:
        """The rounds that are kept."""
        return self.clean if self.mostly_clean else self.everything

    def is_over(self, elapsed: float, options: RoundOptions) -> bool:
        """Return whether the ratio is known precisely enough, or the time limit has passed."""
        logs = [each.log for each in self.kept]
        few = len(logs) < 2 or len(logs) * options.places < _FEWEST_ROUNDS
        limit = options.limit_seconds * (4 if few else 1)
        if elapsed >= limit:
            return True
        return elapsed >= options.least_seconds and settled(logs, options.target)

    def notes(self) -> list[str]:
        """Return notes on the rounds that were left out."""
        lines = []
        if self.throttles:
            counts = [f"{reason} ({count} rounds)" for reason, count in self.throttles.items()]
            consequence = "in most rounds, so all are kept"
            if self.mostly_clean:
                consequence = "those rounds are left out"
            lines.append(f"the GPU lowered its clock: {', '.join(counts)}; {consequence}")
        if self.lost:
            lines.append(
                f"{self.lost} rounds left out: the noise of the flush is larger than the kernel's time"
            )
        return lines


def in_rounds(mode: str, plan: Plan, options: RoundOptions, clock: Clock | None = None) -> Paired:
    """Run rounds of the plan's turns until the ratio is known, or until the time limit."""
    tally = _Tally()
    begun = time.perf_counter()
    started = 0.0
    elapsed = 0.0
    for samples in rounds(plan.turns, random.Random(options.seed)):
        now = time.perf_counter()
        readings = clock.take() if clock else []
        if now - begun < options.warm_seconds:
            continue
        started = started or now
        elapsed = now - started
        tally.add(samples, readings)
        if tally.is_over(elapsed, options):
            break
    kept = tally.kept
    mhz = tally.mhz
    ratio = estimate([each.log for each in kept])
    notes = list(plan.notes)
    if ratio.half_width > options.target:
        notes.append(f"{_STOPPED} {elapsed:.1f} s: the interval is wider than the target")
    notes += tally.notes()
    if clock is not None and clock.missing:
        notes.append(f"it is not known whether the GPU lowered its clock: {clock.missing}")
    return Paired(
        mode,
        ratio,
        a_seconds=tuple(each.a for each in kept),
        b_seconds=tuple(each.b for each in kept),
        discarded=len(tally.everything) - len(kept) + tally.lost,
        method=plan.method,
        mhz=(int(statistics.median(mhz)), min(mhz), max(mhz)) if mhz else None,
        notes=tuple(notes),
    )


def centre(samples: Sequence[float]) -> float:
    """Return the mean of the samples within 10% and 1 µs of their median.

    An outlier does not change it. A timer with coarse steps changes it less than a median: the mean
    depends on how many samples are on each side of a step.
    """
    middle = statistics.median(samples)
    room = 0.1 * middle + 1e-6
    near = [sample for sample in samples if abs(sample - middle) <= room]
    # No sample is near the median if half of the samples are far above the others.
    return statistics.fmean(near) if near else middle


# ---- cold --------------------------------------------------------------------------------------


def _cold(
    kernels: Sequence[Runnable], problem: Problem, options: RoundOptions, clock: Clock
) -> Plan:
    """Return turns that flush the L2 before each launch; short launches run in CUDA graphs."""
    flush = flush_buffer(kernels[0].device)
    launches = _launches(kernels, problem, options.seed)
    plan = _one_by_one(kernels, problem, options, clock, flush, launches)
    longest = max(centre(turn()) for turn in plan.turns)
    if longest >= _COLD_GRAPH_SECONDS or launches is None:
        return plan
    observers = [observe(launch, _COLD_BATCH, options.trusted) for (launch,) in launches]
    try:
        turns = [_cold_graph(observer, flush, clock, True) for observer in observers]
        # The flushes and the observer's work without the launches: their time is subtracted.
        turns += [_cold_graph(observer, flush, clock, False) for observer in observers]
    except (RuntimeError, LaunchError) as error:
        plan.notes = (_not_captured(error, kernels[0].device),)
        return plan
    method = f"CUDA graphs of {_COLD_BATCH} flushes and launches, minus the time of the flushes"
    return Plan(turns, method)


def _cold_graph(observer: Observer, flush: torch.Tensor, clock: Clock, with_launches: bool) -> Turn:
    """Return turns of one graph: flushes, each followed by a launch if `with_launches`."""
    launch = observer.launch
    steps: list[Callable[[], object]] = []
    for row in range(_COLD_BATCH):
        steps.append(functools.partial(observer.before, row))
        steps.append(flush.zero_)
        if with_launches:
            steps.append(launch)
        steps.append(functools.partial(observer.after, row))
    judge = nothing
    if with_launches:
        judge = functools.partial(observer.finish_any, _COLD_BATCH)
    return batch(launch.runnable, steps, _COLD_BATCH, clock, True, observer.renew, judge)


def _one_by_one(
    kernels: Sequence[Runnable],
    problem: Problem,
    options: RoundOptions,
    clock: Clock,
    flush: torch.Tensor,
    launches: list[list[Launch]] | None,
) -> Plan:
    """Return turns of single launches; without `launches` each side allocates for its turn."""
    if launches:
        kept = [launch for (launch,) in launches]
        data = [launch.inputs for launch in kept]
    else:
        kept = [None, None]
        data = shared_inputs(kernels, problem, options.seed)
    singles = [
        Single(
            kernel,
            problem,
            tensors,
            flush,
            turn_seconds=_TURN_SECONDS,
            warm_up_seconds=options.limit_seconds / 5,
            clock=clock,
            kept=launch,
            trusted=options.trusted,
        )
        for kernel, tensors, launch in zip(kernels, data, kept, strict=True)
    ]
    method = "single launches between CUDA events, the L2 flushed before each"
    return Plan(singles, method, notes=() if launches else _NO_ROOM)


# ---- hot ---------------------------------------------------------------------------------------


def _hot(
    kernels: Sequence[Runnable], problem: Problem, options: RoundOptions, clock: Clock
) -> Plan:
    """Return turns of launches back to back, without flushes; short launches run in CUDA graphs."""
    device = kernels[0].device
    gpu = describe(device)
    l2 = gpu.l2_bytes if gpu else 0
    sets = max(1, min(_MOST_SETS, l2 // max(problem.min_bytes, 1)))
    launches = _launches(kernels, problem, options.seed, sets)
    if launches is None:
        no_flush = torch.empty(0, device=device)
        plan = _one_by_one(kernels, problem, options, clock, no_flush, None)
        return replace(plan, method="single launches, no flush, each side allocates for its turn")
    observers = [[observe(launch, 2, options.trusted) for launch in side] for side in launches]
    alone = [_on_known_and_on_new_data(side[0]) for side in observers]
    # The number of launches that are timed together is a multiple of the number of sets.
    counts = []
    for seconds in alone:
        wanted = min(_MOST_LAUNCHES, _HOT_BATCH_SECONDS / max(seconds, 1e-6))
        counts.append(sets * max(1, round(wanted / sets)))
    sides = list(zip(observers, counts, strict=True))
    buffers = f"{sets} set{'s' * (sets > 1)} of buffers, {sets * problem.min_bytes / 1e6:,.1f} MB"
    relation = "in" if problem.min_bytes <= l2 else "larger than"
    place = f"{buffers}, {relation} the L2 of {l2 / 1e6:,.1f} MB"
    if max(alone) >= _HOT_GRAPH_SECONDS:
        turns = [_hot_batch(side, count, clock, False) for side, count in sides]
        return Plan(turns, f"launches back to back, no flush; {place}")
    launched = " and ".join(map(str, sorted(set(counts))))
    try:
        turns = [_hot_batch(side, count, clock, True) for side, count in sides]
        return Plan(turns, f"CUDA graphs of {launched} launches; {place}")
    except (RuntimeError, LaunchError) as error:
        note = _not_captured(error, device)
        turns = [_hot_batch(side, count, clock, False) for side, count in sides]
        method = f"{launched} launches back to back, each from the host; {place}"
        return Plan(turns, method, notes=(note,))


def _hot_batch(observers: list[Observer], count: int, clock: Clock, graph: bool) -> Turn:
    """Return turns of launches that cycle through the sets of buffers.

    All sets get new data before a turn. One set gets new data again at a random time within it.
    """
    work: list[Callable[[], object]] = [observer.launch for observer in observers]
    work *= count // len(observers)
    place = secrets.randbelow(count)
    changed = place % len(observers)
    work.insert(place, functools.partial(observers[changed].before, 1))

    def fresh(again: int) -> None:
        for observer in observers:
            observer.renew(again)
            observer.before(0)

    def judge() -> None:
        rows = [int(i == changed) for i in range(len(observers))]
        for observer, row in zip(observers, rows, strict=True):
            observer.after(row)
        for i in {changed, secrets.randbelow(len(observers))}:
            observers[i].finish(rows[i])

    return batch(observers[0].launch.runnable, work, count, clock, graph, fresh, judge)


def _on_known_and_on_new_data(observer: Observer) -> float:
    """Return the seconds of a single launch on unchanged data.

    Raises Caught if a launch takes far longer on new data.
    """
    launch = observer.launch
    kernel = launch.runnable
    same_data = lone_seconds(launch, kernel)
    new_data = lone_seconds(launch, kernel, lambda row: observer.before(row % 2))
    observer.after(0)
    if not observer.trusted and same_data < 0.5 * new_data - 20e-6:
        raise Caught(
            kernel,
            f"a launch takes {1e6 * new_data:.0f} µs on new data, but {1e6 * same_data:.0f} µs on "
            "data that it had before: it remembers results",
        )
    return same_data


# ---- launches ----------------------------------------------------------------------------------


def _launches(
    kernels: Sequence[Runnable], problem: Problem, seed: int, sets: int = 1
) -> list[list[Launch]] | None:
    """Return the launches of each kernel, one for each set of buffers; None if memory is too small.

    Each launch has run once.
    """
    launches: list[list[Launch]] = [[] for _ in kernels]
    try:
        for i in range(sets):
            data = shared_inputs(kernels, problem, seed + i)
            for own, kernel, tensors in zip(launches, kernels, data, strict=True):
                own.append(kernel.prepare(problem, *tensors))
                run(own[-1])
    except (LaunchError, torch.OutOfMemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # The traceback refers to this list, so empty it to free the memory.
        launches.clear()
        torch.cuda.empty_cache()
        return None
    return launches


def _not_captured(error: Exception, device: torch.device) -> str:
    """Return a note that launches could not be captured in a CUDA graph, with the reason."""
    torch.cuda.synchronize(device)
    first = str(error).strip().split("\n")[0]
    return f"no CUDA graph could be captured, so times include the launch overhead: {first}"
