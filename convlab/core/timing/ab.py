"""Compare the speed of two kernels: check both, time them in rounds, and return a verdict."""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import arguments, forecast
from ..correctness.report import traffic_bytes
from ..defaults import ENGINES, MODES, SECONDS, THRESHOLD
from ..errors import ConvlabError, ProblemError
from ..kernel.catalog import uncommented
from ..kernel.provenance import made_of
from ..kernel.runnable import Runnable, asked_of_all
from ..kernel.runner import runner
from ..kernel.shrink_to_fit import fit
from ..machine.device import Gpu, ceilings, describe, find_gpu, floor_seconds
from ..problem.named import members
from ..problem.problem import Problem
from . import ab_timing
from .ab_result import AB, ABs
from .ab_timing import Paired, RoundOptions
from .observer import tools_put_back
from .sides import Judged, identity, judge, side_by_side

# A plain A/B allocates new memory for each of this many runs. A careful one starts a process for each.
PLACES = 4
PROCESSES = 6
# A worker gets this many seconds more than the rounds need: for buffers, warm-up and CUDA graphs.
_SPARE_SECONDS = 120.0
_LIBRARIES = r"\b(cublas|cudnn|cufft|cutlass|nvrtc|dlopen)"


def ab(
    a: Any,
    b: Any,
    problem: Problem | str | Iterable[Problem | str] = "square",
    *,
    mode: str | Sequence[str] = MODES,
    engine: str = "auto",
    scale: str | None = "auto",
    check: bool = True,
    careful: bool = False,
    threshold: float = THRESHOLD,
    limit_seconds: float = SECONDS,
    seed: int = 0,
    gpu: Gpu | str | None = None,
) -> AB | ABs:
    """Measure whether kernel B is faster than kernel A, slower, or the same.

    Both kernels are checked first. On a GPU they are then timed in rounds: each round times both, in
    random order. The rounds end when the ratio of the two times is known precisely enough. This runs
    in the worker process, or in your process if pickle cannot send a callable.

    Without a GPU the simulator counts the memory traffic of both, which says nothing about speed. If
    the problem is too large for the simulator, counts come from a sample of its blocks, and the times
    of both are predicted. The verdict is about them: B is "predicted faster" or "predicted slower"
    only beyond the model's known error, and else "too close to predict".

    Parameters
    ----------
    a, b
        A runnable; a kernel's name or path, with or without tunables ("03_smem_tile@TILE=8"); a
        baseline's name ("cudnn:tf32:channels_last"); or a Python callable ``f(x, w, bias, stride,
        padding, dilation, groups)``. The time of a callable includes its allocations. It may have
        an attribute `precision`; without one it is checked as fp32 and, if that fails, as tf32.
    problem
        One problem: a Problem, its name, or its dimensions as text. Or a set of problems: its name,
        or an iterable.
    mode
        "cold" (the L2 cache is flushed before each launch), "hot" (no flush), or both. `verdict`
        and `ratio` belong to the first one.
    engine
        The engine of kernels given by name or path: "cuda", "sim" or "auto".
    scale
        "auto" shrinks a problem to what the engine can compute, and adds a note. None never does.
    check
        Whether to check both kernels, and their outputs during the timing. An incorrect kernel, or
        one that is caught not doing the timed work, ends the comparison: the verdict is
        "incorrect". On a GPU, False skips these checks.
    careful
        Time in six fresh processes, which takes about a minute. The default is one process that
        allocates new memory for each of four runs, or of eight if the runs differ by much.
    threshold
        The verdict is "same" if the whole interval of the ratio is within 1 ± threshold.
    limit_seconds
        The time limit in seconds for the rounds of one mode. The rounds end earlier if the interval
        is narrow enough: no wider than the threshold. With too few rounds for an interval they may
        take up to four times as long.
    seed
        Seed of the data and of the order within the rounds.
    gpu
        The GPU that times are predicted for, by name: one of `machine.device.GPUS`, also for a small
        problem. The default is that of this machine, or the last of the list. It is an error if
        times are measured.

    Returns
    -------
    AB
        For one problem: the verdict, the ratio of B's time to A's, its 95% interval, times in ms.
    ABs
        For a set of problems.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel or problem, or an argument is invalid.
    BuildError, UnsupportedError, LaunchError
        A kernel does not build, does not support the problem, or crashed or hung.
    ConvlabError
        One kernel is simulated and the other runs on a GPU; or a file was edited during the
        comparison.

    Examples
    --------
    >>> result = convlab.ab("01_direct", "03_smem_tile", "wide")
    >>> result.ok, result.verdict in ("faster", "predicted faster")
    (True, True)

    Edit a kernel, then compare it with its old version:

    >>> before = convlab.load("03_smem_tile").pinned()
    >>> convlab.ab(before, "03_smem_tile", "wide").verdict      # doctest: +SKIP
    """
    modes = [mode] if isinstance(mode, str) else arguments.several(mode, "mode")
    for name in modes or [None]:
        arguments.choice(name, "mode", MODES)
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(check, "check")
    arguments.flag(careful, "careful")
    threshold = arguments.real(threshold, "threshold", above=0, most=0.99)
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    seed = arguments.whole(seed, "seed")
    options = RoundOptions(
        target=threshold / 2,
        limit_seconds=limit_seconds,
        seed=seed,
        trusted=not check,
        places=PROCESSES if careful else PLACES,
    )
    settings = _Settings(threshold, modes, options, careful)
    if gpu is not None:
        forecast.require()
    predicts_for = find_gpu(gpu)
    sides = side_by_side((a, b), engine)
    counted = all(kernel.counts for kernel in sides)
    if gpu is not None and not counted:
        raise ProblemError('gpu= predicts times of two simulated kernels: use engine="sim"')
    predicts = all(map(forecast.applies, sides)) and counted and forecast.available()
    problems, is_set = members(problem)
    problems = asked_of_all(sides, problems)
    results = []
    for one in problems:
        smaller, scaled = fit(one, sides, scale)
        notes = [scaled] if scaled else []
        result = _compare(sides, smaller, settings, notes)
        if predicts and result.ok and (scaled or gpu is not None):
            result = _with_predictions(result, sides, one, predicts_for)
        if counted and (cause := forecast.missing()):
            result = replace(result, notes=(cause, *result.notes))
        elif predicts and result.ok and not result.forecast_for and not scaled:
            result = replace(result, notes=(forecast.OF_A_SMALL_PROBLEM, *result.notes))
        results.append(result)
    return ABs(tuple(results)) if is_set else results[0]


@dataclass(frozen=True)
class _Settings:
    """Hold the options of a comparison."""

    threshold: float
    modes: Sequence[str]
    rounds: RoundOptions
    careful: bool


def _with_predictions(result: AB, sides: Sequence[Runnable], whole: Problem, gpu: Gpu) -> AB:
    """Return a result with the predicted times and the counts of both on the whole problem."""
    found = [forecast.forecast(kernel, whole, gpu) for kernel in sides]
    reasons = [each.warning for each in found if each.is_empty]
    if reasons:
        return replace(result, notes=(*reasons, *result.notes))
    if result.problem != whole:
        notes = [f"counted on sampled blocks of {whole.label}"]
        for side, each in zip("AB", found, strict=True):
            notes.append(f"{side}: {each.sampled}")
        notes = ["; ".join(notes), *result.notes]
        counters = tuple(each.counters for each in found)
        result = replace(result, whole=whole, sampled=counters, notes=tuple(notes))
    if not all(each.is_timed for each in found):
        warnings = dict.fromkeys(each.warning for each in found if each.warning)
        return replace(result, notes=(*warnings, *result.notes))
    text = forecast.comparison(*found, gpu.name)
    return replace(result, predicted=text, predictions=tuple(found), forecast_for=gpu.name)


def _compare(
    sides: Sequence[Runnable], problem: Problem, settings: _Settings, notes: list[str]
) -> AB:
    """Compare two runnables on one problem that the engine can run."""
    if tools := tools_put_back():
        notes.append(f"replaced functions were restored before the timing: {', '.join(tools)}")
    same = identity(sides[0]) == identity(sides[1])
    labels = _labels(sides, same, notes)
    sources = [kernel.source for kernel in sides]
    for kernel in sides:
        kernel.build()
    gpu = describe(sides[0].device)
    judged: list[Judged] = []
    if gpu and settings.rounds.trusted:
        notes.append("not checked: check=False")
    else:
        # On the simulator the counters come from the check's run.
        for kernel in sides[: 1 if same else 2]:
            judged.append(judge(kernel, problem, seed=settings.rounds.seed))
    for one, source in zip(judged, sources, strict=False):
        notes += _notes_on(one, problem, source, counted=not gpu)
    reports = [one.report for one in judged]
    kernels = [one.runnable for one in judged] or list(sides)
    caught = [one.caught for one in judged]
    # If A and B are the same, only A was judged.
    caught += [""] * (2 - len(caught))
    if same:
        kernels = [kernels[0], kernels[0]]
    classes = (kernels[0].precision, kernels[1].precision)
    if classes[0] != classes[1]:
        notes.append(f"different precision classes: A {classes[0]}, B {classes[1]}")
    measured: dict[str, Any] = {}
    if gpu and all(report.ok for report in reports) and not any(caught):
        paired = _measure(
            kernels, problem, settings.modes, settings.rounds, settings.careful, notes
        )
        caught = ["".join(mode.caught[i] for mode in paired) for i in (0, 1)]
        peaks = ceilings(kernels[0].device)
        floors = [floor_seconds(problem, k.precision, peaks, k.format) for k in kernels]
        measured = {"modes": () if any(caught) else tuple(paired), "floors": tuple(floors)}
    if [kernel.source for kernel in kernels] != sources:
        raise ConvlabError(
            f"{labels[0]} or {labels[1]} was edited during the comparison: run it again"
        )
    where = f"on {gpu}" if gpu else f"no GPU: the simulator's counters, torch {torch.__version__}"
    notes.append(where)
    engines = {kernel.engine for kernel in kernels}
    return AB(
        *labels,
        problem,
        next(name for name in ("cuda", "sim", "torch") if name in engines),
        settings.threshold,
        classes,
        reports=tuple(reports),
        caught=tuple(caught),
        notes=tuple(notes),
        made=made_of(kernels),
        **measured,
    )


def _labels(sides: Sequence[Runnable], same: bool, notes: list[str]) -> list[str]:
    """Return different names for A and B; add a note if the runnables have the same name."""
    names = [kernel.name for kernel in sides]
    if same:
        notes.append("A and B are the same kernel: this shows the smallest measurable difference")
    elif names[0] == names[1]:
        paths = [kernel.path or "(no file)" for kernel in sides]
        notes.append(f"A and B have the same name: A is {paths[0]}, B is {paths[1]}")
    if names[0] == names[1]:
        return [f"{names[0]} (A)", f"{names[1]} (B)"]
    return names


def _notes_on(judged: Judged, problem: Problem, source: str | None, counted: bool) -> list[str]:
    """Return notes about a side that was checked; `counted` if its counters are compared."""
    name = judged.runnable.name
    report = judged.report
    notes = [*judged.notes]
    if report.problem != problem:
        notes.append(f"{name} was checked on {report.problem}, as memory is short")
    libraries = re.findall(_LIBRARIES, uncommented(source or ""), re.IGNORECASE)
    if libraries:
        called = sorted({library.lower() for library in libraries})
        notes.append(f"{name} calls a library: {', '.join(called)}")
    if counted and report.ok and traffic_bytes(report.counters) is None:
        notes.append(f"{name} has no counters: it did not run on the simulator with tracing")
    return notes


def _measure(
    kernels: Sequence[Runnable],
    problem: Problem,
    modes: Sequence[str],
    options: RoundOptions,
    careful: bool,
    notes: list[str],
) -> list[Paired]:
    """Time both kernels in the worker process, or in fresh ones; here if they cannot be sent."""
    where = runner(*kernels)
    if not where.accepts(*kernels):
        notes.append("timed in this process: pickle cannot send the callable to the worker")
        return ab_timing.measure_pair(*kernels, problem, modes, options)
    # There may be eight runs instead of four, and each may take four times its share of the time.
    time_limit = _SPARE_SECONDS + 9 * options.limit_seconds * len(modes)
    call = functools.partial(where.call, ab_timing.measure_pair, *kernels, problem, modes)
    if not careful:
        return call(options, time_limit=time_limit)
    runs: list[list[Paired]] = []
    for process in range(options.places):
        where.restart()
        run = call(replace(options.part(process), places=1), time_limit=time_limit)
        if any(any(mode.caught) for mode in run):
            return run
        runs.append(run)
    by_mode = zip(*runs, strict=True)
    return [ab_timing.merged(of_mode, options.target, fresh=True) for of_mode in by_mode]
