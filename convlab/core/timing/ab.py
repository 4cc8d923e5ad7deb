"""Say which of two kernels is faster, and how surely: check both, then time them in rounds."""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import arguments
from ..correctness.report import traffic_bytes
from ..defaults import ENGINES, MODES, SECONDS, THRESHOLD
from ..errors import ConvlabError
from ..kernel.catalog import uncommented
from ..kernel.provenance import made_of
from ..kernel.runnable import Runnable
from ..kernel.runner import runner
from ..kernel.shrink_to_fit import fit
from ..machine.device import ceilings, describe, floor_seconds
from ..problem.named import members
from ..problem.problem import Problem
from . import ab_timing
from .ab_result import AB, ABs
from .ab_timing import Paired, RoundOptions
from .observer import tools_put_back
from .sides import Judged, identity, judge, side_by_side

# A plain A/B allocates memory anew for so many runs; a careful one starts so many processes.
PLACES = 4
PROCESSES = 6
# The time that a worker gets beyond the rounds: for buffers, warm-up and graphs.
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
) -> AB | ABs:
    """Measure whether B is faster than A on a problem, slower, or the same.

    Both are checked first. On a GPU they are then timed in interleaved rounds of random order,
    until the ratio of their times is known (`timing.ab_timing` says how a round is timed,
    `timing.ratio` how the verdict follows). This happens in the worker process, unless pickle
    cannot send a callable there. On the simulator their counters are compared, and there is no
    time.

    Parameters
    ----------
    a, b
        A runnable; a kernel's name or path, with or without tunables ("03_smem_tile@TILE=8"); a
        baseline's name ("cudnn:tf32:channels_last"); or a Python callable ``f(x, w, bias, stride,
        padding, dilation, groups)``. What a callable allocates is part of its time. It may have an
        attribute `precision`; without one it is judged as fp32 and, if that fails, as tf32.
    problem
        A Problem, or the name or the spec of one; or a set: its name, or an iterable.
    mode
        "cold", "hot", or both; the verdict is about the first one.
    engine
        Where kernels given by name or path run: "cuda", "sim" or "auto".
    scale
        "auto" shrinks the problem to what the engine can do, and notes it; None never does.
    check
        Whether both are checked, and their outputs judged while they are timed. A wrong kernel, or
        one that is caught at something else than the work, ends the comparison with the verdict
        "incorrect". On a GPU, False trusts both.
    careful
        Time in six fresh processes, which takes about a minute. The default is one process, in
        which memory is allocated anew four times (eight times, where the runs differ by much).
    threshold
        A ratio is called the same if its whole interval is within 1 ± this.
    limit_seconds
        The time in seconds for the rounds of one mode. They end sooner once the interval is no
        wider than the threshold; if six rounds take longer, they may take up to four times as long.
    seed
        The seed of the data and of the order in the rounds.

    Returns
    -------
    AB
        For one problem: verdict, ratio of B's time to A's, its 95% interval, times in ms.
    ABs
        For a set of problems.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel or problem, or an argument is invalid.
    BuildError, UnsupportedError, LaunchError
        One of them does not build, does not support the problem, or does not run.
    ConvlabError
        One kernel is simulated and the other runs on a GPU, or a file was edited meanwhile.

    Examples
    --------
    >>> before = convlab.load("03_smem_tile").pinned()     # then edit the file
    >>> convlab.ab(before, "03_smem_tile", "wide")
    >>> convlab.ab("03_smem_tile@TILE=8", "cudnn:fp32", "N=8,C=64,H=56,W=56,K=64,R=3,S=3,padding=1")
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
    sides = side_by_side((a, b), engine)
    problems, is_set = members(problem)
    results = []
    for one in problems:
        smaller, scaled = fit(one, sides, scale)
        notes = [scaled] if scaled else []
        results.append(_compared(sides, smaller, settings, notes))
    return ABs(tuple(results)) if is_set else results[0]


@dataclass(frozen=True)
class _Settings:
    """How two runnables are compared."""

    threshold: float
    modes: Sequence[str]
    rounds: RoundOptions
    careful: bool


def _compared(
    sides: Sequence[Runnable], problem: Problem, settings: _Settings, notes: list[str]
) -> AB:
    """Compare two runnables on one problem that fits."""
    if tools := tools_put_back():
        notes.append(f"restored before timing, because they had been replaced: {', '.join(tools)}")
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
        # On the simulator the check is the run whose counters are compared.
        for kernel in sides[: 1 if same else 2]:
            judged.append(judge(kernel, problem, seed=settings.rounds.seed))
    for one, source in zip(judged, sources, strict=False):
        notes += _notes_on(one, problem, source, counted=not gpu)
    reports = [one.report for one in judged]
    kernels = [one.runnable for one in judged] or list(sides)
    caught = [one.caught for one in judged]
    # Of two that are the same only A was judged.
    caught += [""] * (2 - len(caught))
    if same:
        kernels = [kernels[0], kernels[0]]
    classes = (kernels[0].precision, kernels[1].precision)
    if classes[0] != classes[1]:
        notes.append(f"different precision classes: A {classes[0]}, B {classes[1]}")
    measured: dict[str, Any] = {}
    if gpu and all(report.ok for report in reports) and not any(caught):
        paired = _measured(
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
    where = f"on {gpu}" if gpu else f"no GPU: counters of the simulator, torch {torch.__version__}"
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
    """Return the names of A and B, which differ; note where the runnables' own names do not."""
    names = [kernel.name for kernel in sides]
    if same:
        notes.append("A and B are the same: this shows the smallest difference that can be seen")
    elif names[0] == names[1]:
        paths = [kernel.path or "(no file)" for kernel in sides]
        notes.append(f"A and B have the same name: A is {paths[0]}, B is {paths[1]}")
    if names[0] == names[1]:
        return [f"{names[0]} (A)", f"{names[1]} (B)"]
    return names


def _notes_on(judged: Judged, problem: Problem, source: str | None, counted: bool) -> list[str]:
    """Return what a reader should know of a side that was checked, whose counters may be needed."""
    name = judged.runnable.name
    report = judged.report
    notes = [*judged.notes]
    if report.problem != problem:
        notes.append(f"{name} was checked on {report.problem}, because memory is short")
    libraries = re.findall(_LIBRARIES, uncommented(source or ""), re.IGNORECASE)
    if libraries:
        called = sorted({library.lower() for library in libraries})
        notes.append(f"{name} calls a library: {', '.join(called)}")
    if counted and report.ok and traffic_bytes(report.counters) is None:
        notes.append(f"{name} has no counters: it ran without the simulator, or without tracing")
    return notes


def _measured(
    kernels: Sequence[Runnable],
    problem: Problem,
    modes: Sequence[str],
    options: RoundOptions,
    careful: bool,
    notes: list[str],
) -> list[Paired]:
    """Time both, in the worker process if they can be sent there; or in one after the other."""
    where = runner()
    if not where.accepts(*kernels):
        notes.append("measured in this process: pickle cannot send the callable to another one")
        return ab_timing.measure_pair(*kernels, problem, modes, options)
    # There may be eight places instead of four, and each may take four times its time.
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
