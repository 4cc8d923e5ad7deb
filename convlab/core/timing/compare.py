"""Compare kernels on one problem: is each correct, what does it cost, how far is the floor?"""

import datetime
import functools
import math
import platform
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .. import arguments, forecast
from ..correctness import reference
from ..correctness.examine import examine
from ..correctness.report import Report, traffic_bytes
from ..cost import COUNTED, MEASURED, Cost
from ..errors import ConvlabError, LaunchError, ProblemError, UnsupportedError, named
from ..forecast import Forecast
from ..kernel.catalog import catalog
from ..kernel.kernel import ENGINES
from ..kernel.provenance import made_of
from ..kernel.runnable import Runnable, asked_of_all, explained
from ..kernel.runner import runner
from ..kernel.shrink_to_fit import fit
from ..machine.device import (
    Ceilings,
    Gpu,
    ceilings,
    describe,
    find_gpu,
    floor_seconds,
)
from ..machine.progress import bar as progress_bar
from ..problem.named import members
from ..problem.problem import Problem
from .ab_result import BELOW, BELOW_WORDS
from .comparison import Comparison, Comparisons
from .measure import LIMIT_SECONDS, Timing, measure_all
from .selection import first_kernels
from .sides import Judged, build_all, cudnn_of, identity, judge, reason, side_by_side

# What stands for the whole catalog.
ALL = "all"
# What kernels on a GPU are compared with.
DEFAULT_BASELINES = ("cudnn:fp32", "cudnn:tf32")
# A process in which all are timed gets this many seconds more: for loading, and for checks of outputs.
_SPARE_SECONDS = 60.0
_COLUMNS = ["kernel", "title", "class", "engine", "correct", "error", "bound", "note"]


def compare(
    kernels: Iterable[Any] | Any | None = None,
    problem: Problem | str | Iterable[Problem | str] = "square",
    *,
    engine: str = "auto",
    scale: str | None = "auto",
    baselines: Sequence[str] | None = None,
    seed: int = 0,
    limit_seconds: float | None = None,
    progress: bool = True,
    each: Callable[[Comparison], object] | None = None,
    gpu: Gpu | str | None = None,
    computes: str | None = None,
) -> Comparison | Comparisons:
    """Check several kernels on one problem, and measure their costs in one table.

    On a GPU the cost of a kernel is its time, measured with a cold L2. On the simulator it is the
    traffic to global memory, which is not a time. The floor is the theoretical minimum of either.
    To learn which of two kernels is faster, and how surely, use `ab`.

    Without a GPU, a problem that is too large for the simulator is checked on a smaller one. Its costs
    are those of the whole problem: traffic is counted on a sample of its blocks, and with nvcc times
    are predicted.

    On the simulator, if you name no kernels, two checks are left out, which saves time: nvcc's
    messages are not read, and indices of local arrays are not checked. `check` does both, and so
    does `compare` for kernels that you name.

    Parameters
    ----------
    kernels
        Runnables, names, paths, baselines' names ("cudnn:tf32") or callables, as for `ab`. "all" is
        the whole catalog. The default is a selection: the first three rungs, the best kernel of
        each precision class, and your own kernels.
    problem
        A Problem, or the name or the spec of one; or a set: its name, or an iterable.
    engine
        Where kernels given by name or path run: "cuda", "sim" or "auto".
    scale
        "auto" shrinks the problem until the simulator computes it in seconds, or until it fits the
        GPU's memory, and adds a note. None never does.
    baselines
        Names of baselines. The default is cuDNN in fp32 and in TF32 on a GPU, and none elsewhere.
    seed
        The seed of the data.
    limit_seconds
        The most time to measure one kernel on a GPU, in seconds. Measuring ends earlier once the
        time is known to half a percent. Without this argument it also ends once the time is known
        to one percent or the kernel's place among the others is certain, and the limit is 3 seconds.
    progress
        Show a progress bar; in a log file, a line now and then.
    each
        Called with the comparison of each kernel, as soon as its row is complete.
    gpu
        The GPU that times are predicted for, by name: one of `machine.device.GPUS`. With it, times
        of small problems are predicted too. The default is the GPU of this machine, or the last of
        the list. It is an error if times are measured.
    computes
        "data gradient" or "weight gradient": compare the kernels that compute this gradient of the
        problem's convolution. The default is what the named kernels compute, and "forward".

    Returns
    -------
    Comparison
        For one problem: a row for each kernel in `frame`: times in ms, or the predicted time in ms
        and traffic in MB.
    Comparisons
        For a set of problems.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel or problem, or an argument is invalid.
    ConvlabError
        Two different kernels have one name, or kernels run on different engines.
    LaunchError
        `scale` is None and memory is short. A single kernel's failure is a row, not an exception.

    Examples
    --------
    >>> comparison = convlab.compare(["01_direct", "03_smem_tile"], "square")
    >>> comparison.frame[["kernel", "correct", "x_floor"]]
    >>> convlab.compare("03_smem_tile", "N=1,C=16,H=32,W=32,K=16,R=3,S=3", engine="sim").plot()
    >>> convlab.compare("all", "wide")
    """
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(progress, "progress")
    arguments.function(each, "each")
    seed = arguments.whole(seed, "seed")
    place_only = limit_seconds is None
    if place_only:
        limit_seconds = LIMIT_SECONDS
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    problems, is_set = members(problem)
    if computes is not None:
        problems = [each.computing(computes) for each in problems]
    briefly = kernels is None
    if gpu is not None:
        forecast.require()
    forecast_for = find_gpu(gpu)
    if kernels is None:
        kernels = first_kernels(problems, engine, scale)
    loaded = _load(kernels, engine, baselines, {each.computes for each in problems})
    problems = asked_of_all(loaded, problems)
    on_gpu = any(kernel.device.type == "cuda" for kernel in loaded)
    if gpu is not None and on_gpu:
        raise ProblemError(
            'times are measured on this machine\'s GPU: leave out gpu=, or use engine="sim"'
        )
    named_some = not briefly and not (isinstance(kernels, str) and kernels == ALL)
    predicts = not on_gpu and forecast.available()
    options = _Options(
        scale,
        seed,
        limit_seconds,
        place_only,
        progress=progress,
        briefly=briefly,
        each=each,
        forecast_for=forecast_for if predicts else None,
        small_too=gpu is not None,
        unpredicted="" if on_gpu else forecast.missing(),
    )
    results = []
    for one in problems:
        # Of a selection or all kernels, those for another gradient are left out.
        able = [k for k in loaded if named_some or k.computes in (None, one.computes)]
        results.append(_compared(able, one, options))
    return Comparisons(tuple(results)) if is_set else results[0]


@dataclass(frozen=True)
class _Options:
    """The arguments of `compare` that say how to compare.

    Attributes
    ----------
    place_only : whether a kernel's measurement ends once its place is certain.
    briefly : whether simulated kernels are checked without nvcc and without a second build.
    forecast_for : the GPU that times are predicted for; None if none is predicted.
    small_too : whether times are also predicted for a problem that the simulator runs whole.
    unpredicted : why no times are predicted on this machine; empty if they are, or are measured.
    """

    scale: str | None
    seed: int
    limit_seconds: float
    place_only: bool
    progress: bool
    briefly: bool
    each: Callable[[Comparison], object] | None
    forecast_for: Gpu | None
    small_too: bool
    unpredicted: str


@dataclass
class Contestant:
    """One kernel in a comparison: a row that is not complete yet.

    Attributes
    ----------
    kernel : the kernel.
    correct : whether it is correct; None if it does not support the problem.
    report, timing : the results of the check and of the measurement.
    note : one line about anything unusual.
    failure : all that is incorrect; or empty.
    phases : the seconds of its build, its check, its timing and its prediction.
    predicted : the predicted time and the counts of the whole problem; None if none were asked for.
    """

    kernel: Runnable
    correct: bool | None = None
    report: Report | None = None
    timing: Timing | None = None
    note: str = ""
    failure: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    predicted: Forecast | None = None

    def failed(self, how: str, error: Exception) -> None:
        """Note the error that ended its build, check or measurement."""
        self.correct = False
        self.failure = named(self.kernel.name, error)
        self.note = f"{how}: {reason(error, self.kernel.name)}"

    def caught(self, how: str) -> None:
        """Note that it did not do the work that was timed."""
        self.correct = False
        self.note = f"caught: {how}"
        self.failure = f"{self.kernel.name}: {self.note}"

    def check(self, problem: Problem, seed: int, *, briefly: bool) -> None:
        """Check whether it is correct; see `compare` for what `briefly` leaves out."""
        started = time.perf_counter()
        try:
            if briefly and self.kernel.counts:
                judged = _judge_briefly(self.kernel, problem, seed)
            else:
                judged = judge(self.kernel, problem, seed=seed, scale=None)
        except UnsupportedError as error:
            self.note = f"unsupported: {error}"
            return
        except LaunchError as error:
            self.failed("failed", error)
            return
        finally:
            self.phases["check"] = time.perf_counter() - started
        self.kernel = judged.runnable
        self.report = judged.report
        self.correct = judged.report.ok
        self.note = "; ".join(judged.notes)
        if judged.caught:
            self.caught(judged.caught)
        elif not self.correct:
            self.note = f"incorrect: {self.report.first_failure}"
            self.failure = str(self.report)

    def predict(self, problem: Problem, gpu: Gpu) -> None:
        """Predict its time on a problem of any size, or note why there is no prediction."""
        started = time.perf_counter()
        self.predicted = forecast.forecast(self.kernel, problem, gpu)
        self.phases["prediction"] = time.perf_counter() - started
        self.note = "; ".join(part for part in (self.note, self.predicted.warning) if part)

    def timed(self, timing: Timing) -> None:
        """Keep its timing, and note anything unusual about it."""
        self.timing = timing
        self.phases["timing"] = timing.spent_seconds
        if timing.caught:
            self.caught(timing.caught)
        elif not timing.stable and not self.note:
            samples = f"{timing.samples} sample{'s' * (timing.samples != 1)}"
            self.note = f"timing not stable: only {samples} within the time limit"

    def cost(self, problem: Problem, peaks: Ceilings | None, whole: Problem | None) -> Cost:
        """Return its time on a GPU, or its counted traffic; `peaks` is None without a GPU.

        The traffic is that of `whole`, unless that is None.
        """
        kernel = self.kernel
        if peaks is None:
            floor = kernel.format.min_bytes(whole or problem) / 1e6
            counters = self.report.counters if self.report else None
            host_seconds = self.report.host_seconds if self.report else math.nan
            if whole is not None:
                host_seconds = (counters or {}).get("seconds", host_seconds)
                counters = {**(self.predicted.counters if self.predicted else {})}
                counters["seconds"] = host_seconds
            return counted_cost(counters, floor, host_seconds)
        timing = self.timing or Timing()
        floor = 1e3 * floor_seconds(problem, kernel.precision, peaks, kernel.format)
        return timing.cost(floor, problem.flops)

    def row(
        self, problem: Problem, peaks: Ceilings | None, whole: Problem | None
    ) -> dict[str, Any]:
        """Return its row of the frame; `peaks` and `whole` are those of `cost`."""
        kernel = self.kernel
        outputs = math.prod(problem.output_shape)
        row = {
            "kernel": kernel.name,
            "title": kernel.title,
            "class": kernel.precision,
            "engine": kernel.engine,
            "correct": self.correct,
            "error": math.nan if self.report is None else self.report.error,
            "bound": reference.tolerance(kernel.precision, problem.terms, outputs),
        }
        cost = self.cost(problem, peaks, whole)
        note = self.note
        if peaks and cost.value < BELOW * cost.floor:
            note = f"{note}; {BELOW_WORDS}".removeprefix("; ")
        sample = {}
        if self.predicted is not None:
            if not forecast.missing():
                row["predicted_ms"] = self.predicted.ms
            if self.predicted.is_timed:
                row["predicted_within"] = self.predicted.error or forecast.ERROR
            if whole is not None:
                sample = {"sampled": self.predicted.sampled}
        return row | cost.cells | sample | {"note": note}


def _judge_briefly(kernel: Runnable, problem: Problem, seed: int) -> Judged:
    """Check a simulated kernel without nvcc and without a second build for array indices."""
    kernel.accept(problem)
    with explained(kernel.name):
        return Judged(kernel, examine(kernel, problem, seed))


def counted_cost(
    counters: Mapping[str, Any] | None, floor: float, host_seconds: float = math.nan
) -> Cost:
    """Return the traffic that the simulator counted; the floor is in MB."""
    counters = counters or {}
    more = {
        "shared_wavefronts": counters.get("shared_wavefronts", math.nan),
        "host_seconds": counters.get("seconds", host_seconds),
    }
    return Cost(COUNTED, (traffic_bytes(counters) or math.nan) / 1e6, floor, more=more)


def _load(
    kernels: Any, engine: str, baselines: Sequence[str] | None, computed: Collection[str]
) -> list[Runnable]:
    """Return kernels and baselines as runnables, each once, not built; baselines come last.

    Of all kernels, those that compute one of `computed` are taken.
    """
    if isinstance(kernels, str) and kernels == ALL:
        kernels = [each for each in side_by_side(catalog(), engine) if each.computes in computed]
    elif isinstance(kernels, (str, Path, Runnable)):
        kernels = [kernels]
    loaded = side_by_side(arguments.several(kernels, "kernels"), engine)
    if baselines is None:
        baselines = _default_baselines(loaded)
    loaded = side_by_side([*loaded, *arguments.several(baselines, "baselines")], engine)
    by_name: dict[str, Runnable] = {}
    for kernel in sorted(loaded, key=lambda kernel: kernel.library):
        first = by_name.setdefault(kernel.name, kernel)
        if identity(first) != identity(kernel):
            paths = " and ".join(str(each.path or "(no file)") for each in (first, kernel))
            raise ConvlabError(
                f"two different kernels are both named {kernel.name}: {paths}; rename one of them"
            )
    return list(by_name.values())


def _default_baselines(kernels: Sequence[Runnable]) -> list[str]:
    """Return cuDNN in fp32, in TF32, and in each kernel's class and layout; none off a GPU."""
    if not any(kernel.device.type == "cuda" for kernel in kernels):
        return []
    own = [cudnn_of(kernel) for kernel in kernels if not kernel.library]
    return list(dict.fromkeys([*DEFAULT_BASELINES, *own]))


def _compared(kernels: Sequence[Runnable], problem: Problem, options: _Options) -> Comparison:
    """Compare loaded kernels on one problem."""
    whole = problem
    if options.scale is None and kernels:
        # The reference of an earlier problem must not take the memory of this one.
        reference.make_room(problem, kernels[0].device)
    scaled = None
    if kernels:
        problem, scaled = fit(problem, kernels, options.scale)
    predicted_on = options.forecast_for if scaled or options.small_too else None
    # Counts of a problem that ran whole are exact. The others come from a sample of its blocks.
    sampled = whole if predicted_on is not None and scaled else None
    entries = [Contestant(kernel) for kernel in kernels]
    on_gpu = any(kernel.device.type == "cuda" for kernel in kernels)
    peaks = ceilings(kernels[0].device) if on_gpu else None

    def shown(some: Sequence[Contestant]) -> Comparison:
        found = _comparison(some, problem, scaled, peaks, sampled)
        if predicted_on is None:
            return replace(found, unpredicted=_why_not(kernels, options))
        if options.unpredicted:
            return replace(found, whole=whole, unpredicted=options.unpredicted)
        return replace(found, forecast_for=predicted_on.name, whole=whole)

    def done(entry: Contestant) -> None:
        if options.each is not None:
            options.each(shown([entry]))

    steps = (1 + on_gpu) * len(entries)
    with progress_bar(None, "building", steps, leave=False, disable=not options.progress) as bar:

        def tell(step: str) -> None:
            bar.set_description(step)
            bar.update()

        # nvcc may reject a kernel that needs a newer GPU: ask for support before the build.
        supported = []
        for entry in entries:
            if cause := entry.kernel.unsupported(problem):
                entry.note = f"unsupported: {cause}"
                bar.update()
                done(entry)
            else:
                supported.append(entry)
        foretold: list[Contestant] = []
        beside = []
        if predicted_on is not None:
            foretold = [entry for entry in supported if forecast.applies(entry.kernel)]
            # What a prediction needs is compiled while kernels are built and checked.
            beside = [functools.partial(forecast.prepare, problem=whole, gpu=predicted_on)]
        building = build_all([entry.kernel for entry in supported], beside, trusted=options.briefly)
        # A kernel is checked while the next ones are built.
        with building as errors:
            for entry in supported:
                bar.set_description(f"building {entry.kernel.name}")
                built = next(errors)
                entry.phases["build"] = built.seconds
                tell(f"checking {entry.kernel.name}")
                if built.error is not None:
                    entry.failed("does not build", built.error)
                else:
                    entry.check(problem, options.seed, briefly=options.briefly)
                # On the simulator the run of the check was counted, and only a prediction is missing.
                if not on_gpu or entry.report is None:
                    done(entry)
            for entry in foretold:
                if entry.correct:
                    bar.set_description(f"predicting the time of {entry.kernel.name}")
                    entry.predict(whole, predicted_on)
        ran = [entry for entry in entries if entry.report is not None]
        if on_gpu and ran:
            _measure(ran, problem, tell, done, options)
    return shown(entries)


def _why_not(kernels: Sequence[Runnable], options: _Options) -> str:
    """Return why no times are predicted; empty if they are measured, or if there is no kernel."""
    counted = any(kernel.counts and forecast.applies(kernel) for kernel in kernels)
    if not counted or options.unpredicted:
        return options.unpredicted if counted else ""
    return forecast.OF_A_SMALL_PROBLEM


def _comparison(
    entries: Sequence[Contestant],
    problem: Problem,
    scaled: str | None,
    peaks: Ceilings | None,
    sampled: Problem | None,
) -> Comparison:
    """Return the comparison of kernels that were checked, and timed on a GPU.

    `sampled` is the whole problem, if its costs come from a sample of its blocks.
    """
    ran = [entry for entry in entries if entry.report is not None]
    verdicts = [entry.correct for entry in entries]
    phases = [{"kernel": entry.kernel.name, **entry.phases} for entry in entries]
    return Comparison(
        problem=problem,
        frame=_frame(entries, problem, peaks, sampled),
        ok=True in verdicts and False not in verdicts,
        notes=tuple(_notes(entries, scaled, peaks)),
        failures=tuple(entry.failure for entry in entries if entry.failure),
        reports=tuple(entry.report for entry in ran),
        samples=_samples(ran),
        made=made_of([entry.kernel for entry in ran]),
        kind=COUNTED if peaks is None else MEASURED,
        # Its label already says to what it was scaled.
        scaled=scaled.replace(f" to {problem}", "") if scaled else "",
        phases=pd.DataFrame(phases),
    )


def _measure(
    entries: Sequence[Contestant],
    problem: Problem,
    tell: Callable[[str], None],
    done: Callable[[Contestant], None],
    options: _Options,
) -> None:
    """Time all kernels that ran, correct or incorrect."""
    kernels = [entry.kernel for entry in entries]
    how = {
        "seed": options.seed,
        "limit_seconds": options.limit_seconds,
        "judged": [entry.correct is True for entry in entries],
        "place_only": options.place_only,
    }

    def finished(index: int, timing: Timing) -> None:
        entries[index].timed(timing)
        done(entries[index])

    try:
        with explained(", ".join(kernel.name for kernel in kernels)):
            if any(kernel.own_runner is not None for kernel in kernels):
                # All are timed in turns, so they run where the one must run.
                tell("measuring all in another process")
                call = runner(*kernels).call
                limit = _SPARE_SECONDS + 2 * options.limit_seconds * len(kernels)
                timings = call(measure_all, kernels, problem, time_limit=limit, **how)
                for index, timing in enumerate(timings):
                    finished(index, timing)
                return
            measure_all(
                kernels,
                problem,
                progress=lambda name: tell(f"measuring {name}"),
                finished=finished,
                **how,
            )
    except LaunchError as error:
        for entry in entries:
            if entry.timing is None:
                entry.failed("failed while measured", error)


def _frame(
    entries: Sequence[Contestant],
    problem: Problem,
    peaks: Ceilings | None,
    sampled: Problem | None,
) -> pd.DataFrame:
    """Return a row for each kernel."""
    rows = [entry.row(problem, peaks, sampled) for entry in entries]
    frame = pd.DataFrame(rows, columns=None if rows else _COLUMNS)
    if "with_prepare_ms" in frame and frame["with_prepare_ms"].isna().all():
        frame = frame.drop(columns="with_prepare_ms")
    # As objects None, True and False stay what they are.
    frame["correct"] = frame["correct"].astype(object)
    return frame


def _samples(entries: Sequence[Contestant]) -> pd.DataFrame:
    """Return a row for each measured sample, in ms."""
    rows = []
    for entry in entries:
        timing = entry.timing or Timing()
        rows += [(entry.kernel.name, 1e3 * seconds) for seconds in timing.sample_seconds]
    return pd.DataFrame(rows, columns=["kernel", "ms"])


def _notes(entries: Sequence[Contestant], scaled: str | None, peaks: Ceilings | None) -> list[str]:
    """Return lines: where it ran, scaling, models, versions and date."""
    if peaks is not None:
        gpu = describe(entries[0].kernel.device)
        notes = [f"on {gpu}", f"floors from ceilings: {peaks}"]
    elif any(entry.kernel.counts for entry in entries):
        counted = "traffic is counted, no GPU time is measured"
        notes = [f"on the simulator: {counted}; floor: x, w and y are moved once"]
    else:
        notes = ["on the CPU: no GPU time is measured"]
    reports = [entry.report for entry in entries if entry.report is not None]
    modelled = [r.kernel for r in reports if (r.counters or {}).get("library_bytes")]
    if modelled:
        notes.append(f"the traffic of cuBLAS is modelled with 128x128 tiles: {', '.join(modelled)}")
    if scaled:
        notes.append(scaled)
    today = datetime.date.today().isoformat()
    notes.append(f"{today}, torch {torch.__version__}, Python {platform.python_version()}")
    return notes
