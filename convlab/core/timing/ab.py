"""Which of two is faster, and how surely: right first, then timed in interleaved rounds."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
from .ab_timing import Paired, Until
from .observer import tools_put_back
from .sides import identity, judge, side_by_side

# runs with memory placed anew; fresh processes, of a careful A/B
PLACES = 4
PROCESSES = 6
_SPARE_SECONDS = 120.0  # what a worker gets beyond the rounds: buffers, warm-up, graphs
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
    """Say whether B is faster than A on a problem, or slower, or the same; first, whether right.

    On a GPU both are built, checked, and timed in interleaved rounds of random order until the
    ratio of their times is known (`fast.paired` says how a round is timed, `fast.ratio` how the
    verdict follows): in the worker process, unless a callable cannot be sent there. On the
    simulator their counters are compared, and no time is given.

    >>> before = convlab.load("03_smem_tile").pinned()     # then edit the file
    >>> convlab.ab(before, "03_smem_tile", "wide")
    >>> convlab.ab("03_smem_tile@TILE=8", "cudnn:fp32", "N=8,C=64,H=56,W=56,K=64,R=3,S=3,padding=1")

    Parameters
    ----------
    a, b : a runnable, a kernel's name or path with or without tunables, a baseline's name
        ("cudnn:tf32:channels_last"), or a Python callable ``f(x, w, bias, stride, padding,
        dilation, groups)``, what it allocates being part of it. A callable may have an attribute
        `precision`; without one it is judged as fp32 and, if that fails, as tf32.
    problem : a Problem, or the name or the spec of one; or a set: its name, or an iterable.
    mode : "cold", "hot", or both; the verdict is about the first one.
    engine : where kernels given by name or path run: "cuda", "sim" or "auto".
    scale : "auto" shrinks the problem to what the engine can do, and says so; None never does.
    check : check both first; a wrong one ends it with the verdict "wrong", as one does that is
        caught at something else than the work while it is timed. On a GPU, False trusts them.
    careful : time in six fresh processes instead of in four places of one's memory (eight, where
        those differ by too much): about a minute.
    threshold : a ratio whose whole interval is within 1 ± this is called the same.
    limit_seconds : for the rounds of a mode in four places, which end sooner once the interval is
        no wider than the threshold. Where six rounds take longer, up to four times it.
    seed : of the data and of the order.

    Returns
    -------
    AB, or ABs of a set

    Raises
    ------
    CatalogError, ProblemError
        No such kernel or problem; arguments that make no sense.
    BuildError, UnsupportedError, LaunchError
        One of them does not build, declines the problem, or does not run.
    ConvlabError
        A simulated kernel against one on a GPU; or a file that was edited meanwhile.
    """
    modes = [mode] if isinstance(mode, str) else arguments.several(mode, "mode")
    for each in modes or [None]:
        arguments.choice(each, "mode", MODES)
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(check, "check")
    arguments.flag(careful, "careful")
    threshold = arguments.real(threshold, "threshold", above=0, most=0.99)
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    seed = arguments.whole(seed, "seed")
    runs = PROCESSES if careful else PLACES
    until = ab_timing.Until(threshold / 2, limit_seconds, seed, trusted=not check, places=runs)
    sides = side_by_side((a, b), engine)
    found = []
    (chosen, of_set) = members(problem)
    for each in chosen:
        smaller, scaled = fit(each, sides, scale)
        notes = [scaled] if scaled else []
        found.append(_compared(sides, smaller, threshold, modes, until, careful, notes))
    return ABs(tuple(found)) if of_set else found[0]


def _compared(
    sides: Sequence[Runnable],
    problem: Problem,
    threshold: float,
    modes: Sequence[str],
    until: Until,
    careful: bool,
    notes: list[str],
) -> AB:
    """Compare two runnables on one problem that fits."""
    if tools := tools_put_back():
        notes.append(f"put back before it began, as it had been replaced: {', '.join(tools)}")
    kernels = list(sides)
    labels = [kernel.name for kernel in sides]
    same = identity(sides[0]) == identity(sides[1])
    if same:
        notes.append("A and B are the same: this shows what the measurement can tell apart")
    elif labels[0] == labels[1]:
        paths = [kernel.path or "(no file)" for kernel in sides]
        notes.append(f"two of one name: A is {paths[0]}, B is {paths[1]}")
    if labels[0] == labels[1]:
        labels = [f"{labels[0]} (A)", f"{labels[1]} (B)"]
    sources = [kernel.source for kernel in sides]
    for kernel in sides:
        kernel.build()
    gpu = describe(sides[0].device)
    found = []
    caught = ["", ""]
    if gpu and until.trusted:
        notes.append("not checked: check=False")
    else:  # on the simulator the check is the run whose counters are compared
        found = [judge(each, problem, seed=until.seed) for each in sides[: 1 if same else 2]]
    reports = [each.report for each in found]
    for i, each in enumerate(found):
        kernels[i] = each.runnable
        caught[i] = each.caught
        notes += each.notes
        name = each.runnable.name
        report = each.report
        if report.problem != problem:
            notes.append(f"{name} was checked on {report.problem}, memory being short")
        named = re.findall(_LIBRARIES, uncommented(sources[i] or ""), re.IGNORECASE)
        if called := ", ".join(sorted({library.lower() for library in named})):
            notes.append(f"{name} calls a library: {called}")
        if not gpu and report.ok and traffic_bytes(report.counters) is None:
            notes.append(f"{name} has no counters: it ran without the simulator, or untraced")
    if same:
        kernels[1] = kernels[0]
    classes = (kernels[0].precision, kernels[1].precision)
    if classes[0] != classes[1]:
        notes.append(f"unlike precision classes: A {classes[0]}, B {classes[1]}")
    measured: dict[str, Any] = {}
    if gpu and all(report.ok for report in reports) and not any(caught):
        modes = _measured(kernels, problem, modes, until, careful, notes)
        caught = ["".join(mode.caught[i] for mode in modes) for i in (0, 1)]
        peaks = ceilings(kernels[0].device)
        floors = (floor_seconds(problem, k.precision, peaks, k.format) for k in kernels)
        measured = {"modes": () if any(caught) else tuple(modes), "floors": tuple(floors)}
    if [kernel.source for kernel in kernels] != sources:
        raise ConvlabError(f"{labels[0]} or {labels[1]} was edited meanwhile: run it again")
    notes.append(
        f"on {gpu}" if gpu else f"no GPU: torch {torch.__version__}, counters of the simulator"
    )
    engines = {kernel.engine for kernel in kernels}
    return AB(
        *labels,
        problem,
        next(name for name in ("cuda", "sim", "torch") if name in engines),
        threshold,
        classes,
        reports=tuple(reports),
        caught=tuple(caught),
        notes=tuple(notes),
        made=made_of(kernels),
        **measured,
    )


def _measured(
    kernels: Sequence[Runnable],
    problem: Problem,
    modes: Sequence[str],
    until: Until,
    careful: bool,
    notes: list[str],
) -> list[Paired]:
    """Time both, in the worker process if that can be; with care, in one after the other."""
    task = (*kernels, problem, modes, until)
    where = runner()
    if not where.accepts(*kernels):
        notes.append("measured in this process: a callable that pickle cannot send was given")
        return ab_timing.measure_pair(*task)
    limit = _SPARE_SECONDS + 9 * until.limit_seconds * len(modes)  # 8 places, 4 times their time
    if not careful:
        return where.call(ab_timing.measure_pair, *task, time_limit=limit)
    runs: list[list[Paired]] = []
    for place in range(until.places):
        where.restart()
        part = replace(until.part(place), places=1)
        task = (*kernels, problem, modes, part)
        runs.append(where.call(ab_timing.measure_pair, *task, time_limit=limit))
        if any(any(mode.caught) for mode in runs[-1]):
            return runs[-1]
    return [ab_timing.merged(each, until.target, fresh=True) for each in zip(*runs, strict=True)]
