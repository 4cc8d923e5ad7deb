"""Time two runnables side by side on a GPU until the ratio of their times is known.

Two modes. **cold**: twice the L2 is written before each launch, so that all of x, w and bias come
from memory, as when other layers ran in between. **hot**: launches back to back with no flush,
over as many sets of x, w, bias and y (four at most) as fit the L2 together: the data may be in the
L2, but no launch meets the lines that the one before has just written. For a problem larger than
the L2 the modes differ by what the launch before left of it.

Both sides work on the same x, w and bias, since where a buffer lies can be worth a percent by
itself. What they write is each one's own: y, the workspace, the filter laid out. Where memory does
not hold that of both, each allocates for its turn only, and a note says so.

Where everything lies in memory differs from run to run, and is worth some tenths of a percent: all
of it is allocated anew a few times, and the interval is that of those runs (`ratio.pooled`).
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
from dataclasses import dataclass, replace

import torch

from ..correctness import reference
from ..errors import LaunchError
from ..kernel.runnable import Launch, Runnable, explained, is_out_of_memory, run
from ..machine.clock import Clock
from ..machine.device import describe
from ..problem.problem import Problem
from .measure import shared_inputs
from .observer import Caught, Observer, observe
from .ratio import Ratio, estimate, pooled, settled
from .stopwatch import Single, Turn, batch, flush_buffer, lone_seconds, nothing, rounds

_COLD_GRAPH_SECONDS = 100e-6  # shorter kernels are put in a graph with their flushes
_COLD_BATCH = 16  # launches of such a graph
_HOT_GRAPH_SECONDS = 1e-3
_HOT_BATCH_SECONDS = 3e-3
_MOST_LAUNCHES = 1000
_MOST_SETS = 4
_TURN_SECONDS = 0.005
_STOPPED = "stopped after"
_BALLAST = 64 << 20  # bytes that are taken at most, to move what is allocated
_SEEDS = 1000  # between the seeds of two places
# What the ratios of one process are off alike, wherever its memory lies, as 79 intervals of
# tests.instruments.calibrate_ab showed on an H200: without it 66 of them held what was planted.
_SHARED = 0.001
_SHARED_SECONDS = 30e-9
_NO_ROOM = ("A and B had the memory in turns, as it does not hold both: each was prepared anew",)
_FEWEST_ROUNDS = 6  # taken beyond the time limit, up to four times it


@dataclass(frozen=True)
class Until:
    """How long the rounds of a mode go on."""

    target: float  # half width of the ratio's interval at which they end
    limit_seconds: float  # after which they end; for an interval at all, after up to four times
    seed: int  # of the data, and of the order in the rounds
    warm_seconds: float = 0.2  # rounds not counted: the clock rises
    least_seconds: float = 0.3  # they take at least so long: a clock's steps are to be met
    trusted: bool = False  # what was computed while it was timed is not looked at
    places: int = 1  # how often memory is placed anew, and each mode timed again

    def part(self, place: int) -> Until:
        """What one of the places gets of it."""
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
    """What rounds of two runnables A and B gave, in one mode."""

    mode: str  # "cold" or "hot"
    ratio: Ratio  # B's time over A's
    a_seconds: tuple[float, ...]  # a launch, one for each round that counts
    b_seconds: tuple[float, ...]
    discarded: int  # rounds left out: the clock was held down, or noise hid the kernel
    method: str  # in words, what was timed
    mhz: tuple[int, int, int] | None = None  # the SMs': median, lowest, highest; None: not known
    notes: tuple[str, ...] = ()  # lines: time was up, the clock, what could not be done
    runs: tuple[Ratio, ...] = ()  # of each place in memory, or each process, if several
    caught: tuple[str, str] = ("", "")  # what A or B did instead of the work; it ended the rounds

    @property
    def seconds(self) -> tuple[float, float]:
        """A's and B's medians."""
        a, b = (statistics.median(s or [math.nan]) for s in (self.a_seconds, self.b_seconds))
        return a, b


@dataclass
class Plan:
    """What takes turns: A, B, and perhaps the flushes of each, whose times are taken off theirs."""

    turns: Sequence[Turn]
    method: str
    notes: tuple[str, ...] = ()


def measure_pair(
    a: Runnable, b: Runnable, problem: Problem, modes: Sequence[str], until: Until
) -> list[Paired]:
    """Time two runnables of one GPU on a problem, in each mode."""
    found = []
    reference.make_room(problem, a.device)
    with torch.cuda.device(a.device), explained(f"{a.name} or {b.name}"):
        clock = Clock(a.device)
        for mode in modes:
            runs = []
            try:
                for place in range(2 * until.places):
                    if place >= until.places and _narrow(runs, until):
                        break
                    part = until.part(place)
                    plan = _moved(a.device, part.seed) if place else None  # stays while it is made
                    plan = {"cold": _cold, "hot": _hot}[mode]((a, b), problem, part, clock)
                    runs.append(in_rounds(mode, plan, part, clock))
                    del plan
                    torch.cuda.empty_cache()  # others want the memory too, and the next other pages
            except Caught as error:
                caught = tuple(str(error) if side is error.runnable else "" for side in (a, b))
                found.append(Paired(mode, estimate(()), (), (), 0, "", caught=caught))
                break
            found.append(merged(runs, until.target))
    return found


def _narrow(runs: Sequence[Paired], until: Until) -> bool:
    """Whether the places so far are enough; if runs differ much, twice as many tell more."""
    return until.places == 1 or merged(runs, until.target).ratio.half_width <= until.target


def merged(runs: Sequence[Paired], target: float, fresh: bool = False) -> Paired:
    """Several runs of one mode as one: of one process, or each of a fresh one."""
    first = runs[0]
    if len(runs) == 1:
        return first
    ratios = tuple(run.ratio for run in runs)
    anew = "memory placed anew"
    times = [min(run.seconds) for run in runs if run.a_seconds]
    unseen = _SHARED + _SHARED_SECONDS / min(times, default=math.inf)
    if fresh:
        unseen = 0.0
        anew = "each in a fresh process"
    ratio = pooled(ratios, unseen)
    mhz = [run.mhz for run in runs if run.mhz]
    notes = [note for run in runs for note in run.notes if not note.startswith(_STOPPED)]
    if ratio.half_width > target:
        spread = 100 * (max(r.value for r in ratios) / min(r.value for r in ratios) - 1)
        notes.append(f"the interval is wider than asked for: the runs differ by {spread:.2g}%")
    middle, low, high = zip(*mhz, strict=True) if mhz else ((), (), ())
    return replace(
        first,
        ratio=ratio,
        runs=ratios,
        a_seconds=tuple(s for run in runs for s in run.a_seconds),
        b_seconds=tuple(s for run in runs for s in run.b_seconds),
        discarded=sum(run.discarded for run in runs),
        method=f"{first.method}; {len(runs)} runs, {anew}",
        mhz=(int(statistics.median(middle)), min(low), max(high)) if mhz else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def _moved(device: torch.device, seed: int) -> torch.Tensor:
    """Take some memory, so that what is allocated next lies elsewhere."""
    return torch.empty(random.Random(seed).randrange(_BALLAST), dtype=torch.uint8, device=device)


def in_rounds(mode: str, plan: Plan, until: Until, clock: Clock | None = None) -> Paired:
    """Let the plan's turns take rounds until the ratio is settled or time is up."""
    everything: list[tuple[float, float, float]] = []  # A's time, B's, the log of their ratio
    clean: list[tuple[float, float, float]] = []  # of rounds in which nothing held the clock down
    mhz: list[int] = []
    held: Counter[str] = Counter()
    lost = 0
    started = 0.0
    begun = time.perf_counter()
    for taken in rounds(plan.turns, random.Random(until.seed)):
        now = time.perf_counter()
        readings = clock.take() if clock else []
        if now - begun < until.warm_seconds:
            continue
        started = started or now
        mhz += [reading.mhz for reading in readings]
        reasons = {reason for reading in readings for reason in reading.throttles}
        held.update(reasons)
        a, b, *flushes = map(centre, taken)
        a, b = (side - flush for side, flush in zip((a, b), flushes or (0, 0), strict=True))
        if min(a, b) <= 0:
            lost += 1
        else:
            everything.append((a, b, math.log(b / a)))
            if not reasons:
                clean.append(everything[-1])
        kept = clean if 2 * len(clean) >= len(everything) else everything
        logs = [log for _, _, log in kept]
        elapsed = now - started
        few = len(kept) < 2 or len(kept) * until.places < _FEWEST_ROUNDS
        if elapsed >= until.limit_seconds * (4 if few else 1):
            break
        if elapsed >= until.least_seconds and settled(logs, until.target):
            break
    ratio = estimate(logs)
    notes = list(plan.notes)
    if ratio.half_width > until.target:
        notes.append(f"{_STOPPED} {elapsed:.1f} s, before the interval was narrow enough")
    if held:
        named = ", ".join(f"{reason} ({count} rounds)" for reason, count in held.items())
        what = "those rounds are left out" if kept is clean else "in most rounds, so all are kept"
        notes.append(f"the clock was held down: {named}; {what}")
    if lost:
        notes.append(f"{lost} rounds left out: the flush's noise was larger than the kernel")
    if clock is not None and clock.missing:
        notes.append(f"whether the clock was held down is not known: {clock.missing}")
    return Paired(
        mode,
        ratio,
        *(tuple(each[side] for each in kept) for side in (0, 1)),
        discarded=len(everything) - len(kept) + lost,
        method=plan.method,
        mhz=(int(statistics.median(mhz)), min(mhz), max(mhz)) if mhz else None,
        notes=tuple(notes),
    )


def centre(samples: Sequence[float]) -> float:
    """Return the mean of the samples within 10% and 1 µs of their median.

    An outlier does not move it; and a timer of coarse steps does not hold it, as it does a median
    or a mean of the middle samples: how many fall on which side of a step still counts.
    """
    middle = statistics.median(samples)
    room = 0.1 * middle + 1e-6
    near = [sample for sample in samples if abs(sample - middle) <= room]
    return statistics.fmean(near) if near else middle  # none: half of them far above the others


def _cold(kernels: Sequence[Runnable], problem: Problem, until: Until, clock: Clock) -> Plan:
    flush = flush_buffer(kernels[0].device)
    launches = _launches(kernels, problem, until.seed)
    plan = _one_by_one(kernels, problem, until, clock, flush, launches)
    if max(centre(turn()) for turn in plan.turns) >= _COLD_GRAPH_SECONDS or launches is None:
        return plan
    observers = [observe(launch, _COLD_BATCH, until.trusted) for (launch,) in launches]

    def turn(observer: Observer, work: Sequence[Callable[[], object]]) -> Turn:
        steps = []
        for row in range(_COLD_BATCH):
            change, keep = (
                functools.partial(each, row) for each in (observer.before, observer.after)
            )
            steps += [change, flush.zero_, *work, keep]
        judge = functools.partial(observer.finish_any, _COLD_BATCH) if work else nothing
        kernel = observer.launch.runnable
        return batch(kernel, steps, _COLD_BATCH, clock, True, observer.renew, judge)

    try:
        turns = [turn(observer, [observer.launch]) for observer in observers]
        # The flushes alone, with what the observer does: their time is taken off.
        turns += [turn(observer, []) for observer in observers]
    except (RuntimeError, LaunchError) as error:
        plan.notes = (_not_captured(error, kernels[0].device),)
        return plan
    method = f"CUDA graphs of {_COLD_BATCH} flushes and launches, less the time of the flushes"
    return Plan(turns, method)


def _one_by_one(
    kernels: Sequence[Runnable],
    problem: Problem,
    until: Until,
    clock: Clock,
    flush: torch.Tensor,
    launches: list[list[Launch]] | None,
) -> Plan:
    """Single launches; where memory does not hold both sides', each is prepared for its turn."""
    if launches:
        kept = [launch for (launch,) in launches]
        data = [launch.inputs for launch in kept]
    else:
        kept = [None, None]
        data = shared_inputs(kernels, problem, until.seed)
    seconds = _TURN_SECONDS, until.limit_seconds / 5
    singles = [
        Single(kernel, problem, given, flush, *seconds, clock, launch, until.trusted)
        for kernel, given, launch in zip(kernels, data, kept, strict=True)
    ]
    method = "single launches between events, the L2 flushed before each"
    return Plan(singles, method, notes=() if launches else _NO_ROOM)


def _hot(kernels: Sequence[Runnable], problem: Problem, until: Until, clock: Clock) -> Plan:
    known = describe(kernels[0].device)
    l2 = known.l2_bytes if known else 0
    sets = max(1, min(_MOST_SETS, l2 // max(problem.min_bytes, 1)))
    launches = _launches(kernels, problem, until.seed, sets)
    if launches is None:
        flush = torch.empty(0, device=kernels[0].device)
        plan = _one_by_one(kernels, problem, until, clock, flush, None)
        return replace(plan, method="single launches, no flush, each side prepared for its turn")
    observers = [[observe(launch, 2, until.trusted) for launch in each] for each in launches]
    lone = tuple(_on_known_and_on_new_data(each[0]) for each in observers)
    counts = []  # launches timed together: a multiple of the sets
    for seconds in lone:
        wanted = min(_MOST_LAUNCHES, _HOT_BATCH_SECONDS / max(seconds, 1e-6))
        counts.append(sets * max(1, round(wanted / sets)))

    def turns(graph: bool) -> list[Turn]:
        return [
            _batch_of_hot(each, count, clock, graph)
            for each, count in zip(observers, counts, strict=True)
        ]

    place = f"{sets} set{'s' * (sets > 1)} of buffers, {sets * problem.min_bytes / 1e6:,.1f} MB"
    place += f" {'in' if problem.min_bytes <= l2 else 'and'} an L2 of {l2 / 1e6:,.1f} MB"
    if max(lone) >= _HOT_GRAPH_SECONDS:
        return Plan(turns(False), f"launches back to back, no flush; {place}")
    several = " and ".join(map(str, sorted(set(counts))))
    try:
        return Plan(turns(True), f"CUDA graphs of {several} launches; {place}")
    except (RuntimeError, LaunchError) as error:
        note = _not_captured(error, kernels[0].device)
        method = f"{several} launches in a row, each from the host; {place}"
        return Plan(turns(False), method, notes=(note,))


def _batch_of_hot(observers: list[Observer], count: int, clock: Clock, graph: bool) -> Turn:
    """Launches that go round the buffers: new data before them, and once at a place in between."""
    work: list[Callable[[], object]] = [w.launch for w in observers] * (count // len(observers))
    at = secrets.randbelow(count)
    surprised = at % len(observers)
    work.insert(at, functools.partial(observers[surprised].before, 1))

    def fresh(again: int) -> None:
        for each in observers:
            each.renew(again)
            each.before(0)

    def judge() -> None:
        rows = [int(i == surprised) for i in range(len(observers))]
        for each, row in zip(observers, rows, strict=True):
            each.after(row)
        for i in {surprised, secrets.randbelow(len(observers))}:
            observers[i].finish(rows[i])

    return batch(observers[0].launch.runnable, work, count, clock, graph, fresh, judge)


def _on_known_and_on_new_data(observer: Observer) -> float:
    """Time lone launches on the same data; Caught where they take far longer on changing data."""
    launch = observer.launch
    kernel = observer.launch.runnable
    lone = lone_seconds(launch, kernel)
    new = lone_seconds(launch, kernel, lambda row: observer.before(row % 2))
    observer.after(0)
    if not observer.trusted and lone < 0.5 * new - 20e-6:
        raise Caught(
            kernel,
            f"a launch takes {1e6 * new:.0f} µs on data that changed and {1e6 * lone:.0f} µs on "
            "what it was given before: it remembers",
        )
    return lone


def _launches(
    kernels: Sequence[Runnable], problem: Problem, seed: int, sets: int = 1
) -> list[list[Launch]] | None:
    """Return launches of each kernel on so many sets of buffers, each run once; None: no room."""
    launches: list[list[Launch]] = [[] for _ in kernels]
    try:
        for i in range(sets):
            inputs = shared_inputs(kernels, problem, seed + i)
            for each, kernel, given in zip(launches, kernels, inputs, strict=True):
                each.append(kernel.prepare(problem, *given))
                run(each[-1])
    except (LaunchError, torch.OutOfMemoryError) as error:
        if not is_out_of_memory(error):
            raise
        launches.clear()  # the traceback holds on to the list
        torch.cuda.empty_cache()
        return None
    return launches


def _not_captured(error: Exception, device: torch.device) -> str:
    torch.cuda.synchronize(device)
    first = str(error).strip().split("\n")[0]
    return f"no CUDA graph could be made, so that launch overhead is part of the times: {first}"
