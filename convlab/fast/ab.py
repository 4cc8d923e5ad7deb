"""Which of two is faster, and how surely: right first, then timed in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..machine.device import ceilings, describe, floor_seconds
from ..right.check import Report, fit, resolve
from ..right.check import check as check_right
from ..run.function import Function
from ..run.kernel import compile
from ..words.errors import ConvlabError, ProblemError
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from . import paired
from .measure import Timing, measure_all, simulated
from .paired import MODES, Paired
from .ratio import THRESHOLD
from .verdict import AB

LIMIT_SECONDS = 10.0  # for the rounds of one mode
_SPARE_SECONDS = 120.0  # what a worker gets beyond the rounds: buffers, warm-up, graphs


def ab(
    a: Any,
    b: Any,
    problem: Problem | str = "square",
    *,
    mode: str | Sequence[str] = MODES,
    engine: str = "auto",
    scale: str | None = "auto",
    check: bool = True,
    threshold: float = THRESHOLD,
    target: float | None = None,
    limit_seconds: float = LIMIT_SECONDS,
    seed: int = 0,
    isolate: bool = True,
) -> AB:
    """Say whether B is faster than A on a problem, or slower, or the same; first, whether right.

    On a GPU both are built, checked, and timed in interleaved rounds of random order until the
    ratio of their times is known (`convlab.fast.paired` says how a round is timed, `convlab.fast.ratio` how
    the verdict follows). On the simulator their counters are compared, and no time is given.

    >>> before = convlab.load("03_smem_tile").pinned()     # then edit the file
    >>> convlab.ab(before, "03_smem_tile", "wide")
    >>> convlab.ab("03_smem_tile@TILE=8", "cudnn:fp32", "N=8,C=64,H=56,W=56,K=64,R=3,S=3,padding=1")

    Parameters
    ----------
    a, b
        A runnable, a kernel's name or path with or without tunables ("03_smem_tile@TILE=8"), a
        baseline's name ("cudnn:tf32:channels_last"), CUDA C++ text, or a Python callable
        ``f(x, w, bias, stride, padding, dilation, groups)``, what it allocates being part of it.
        A callable may have an attribute `precision`; without one it is judged as fp32 and, if
        that fails, as tf32.
    problem
        A Problem, or the name or the spec of one.
    mode
        "cold", "hot", or both; the verdict is about the first one.
    engine
        Where kernels given by name, path or text run: "cuda", "sim" or "auto".
    scale
        "auto" shrinks the problem to what the engine can do, and says so; None never does.
    check
        Check both first; a wrong one ends it with the verdict "wrong". False trusts them.
    threshold
        A ratio whose whole interval is within 1 ± this is called the same.
    target
        Half width of the interval at which a mode ends; half the threshold unless told, so that
        only time can leave it undecided.
    limit_seconds
        Time for the rounds of one mode. Where six rounds take longer, up to four times it.
    seed
        Seed of the data and of the order.
    isolate
        Measure in the worker process, where that is possible: on a GPU, and not with a callable
        that cannot be sent there.

    Returns
    -------
    AB

    Raises
    ------
    CatalogError, ProblemError
        No such kernel or problem; arguments that make no sense.
    BuildError, UnsupportedError, LaunchError
        One of them does not build, declines the problem, or does not run.
    ConvlabError
        A simulated kernel against one on a GPU; or a file that was edited meanwhile.
    """
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    if not modes or not set(modes) <= set(MODES):
        raise ProblemError(f"mode is one or more of {', '.join(MODES)}, not {mode!r}")
    if not 0 < threshold < 1 or not (target is None or target > 0) or limit_seconds <= 0:
        raise ProblemError("threshold lies between 0 and 1; target and limit_seconds are above 0")
    kernels = _sides(a, b, engine)
    same = kernels[0] is kernels[1] or _identity(kernels[0]) == _identity(kernels[1])
    labels = _labels(kernels)
    problem, scaled = fit(named_problem(problem), kernels, scale)
    notes = [scaled] if scaled else []
    if same:
        notes.append("A and B are the same: this shows what the measurement can tell apart")
    elif len({kernel.name for kernel in kernels}) == 1:
        paths = [getattr(kernel, "path", None) or "(no file)" for kernel in kernels]
        notes.append(f"two of one name: A is {paths[0]}, B is {paths[1]}")
    stamps = [_source(kernel) for kernel in kernels]
    for kernel in kernels:
        if hasattr(kernel, "build"):
            kernel.build()
    reports: list[Report] = []
    if check:
        for i, kernel in enumerate(kernels[: 1 if same else 2]):
            report, judged = _checked(kernel, problem, seed, isolate)
            reports.append(report)
            kernels[i] = judged
            if report.problem != problem:
                notes.append(f"{kernel.name} was checked on {report.problem}, memory being short")
            if judged.precision != kernel.precision:
                notes.append(f"{kernel.name} is right to {judged.precision} only")
        if same:
            kernels[1] = kernels[0]
    else:
        notes.append("not checked: check=False")
    classes = (kernels[0].precision, kernels[1].precision)
    if classes[0] != classes[1]:
        notes.append(f"unlike precision classes: A {classes[0]}, B {classes[1]}")
    on_gpu = kernels[0].device.type == "cuda"
    found: dict[str, Any] = {}
    if all(report.ok for report in reports):
        if on_gpu:
            options = {
                "seed": seed, "modes": modes, "limit_seconds": limit_seconds,
                "target": threshold / 2 if target is None else target,
            }  # fmt: skip
            found["modes"] = tuple(_measured(kernels, problem, options, isolate, notes))
            peaks = ceilings(kernels[0].device)
            found["floors"] = tuple(floor_seconds(problem, name, peaks) for name in classes)
        else:
            found["counted"] = _counted(kernels, problem, seed, reports, notes)
    if [_source(kernel) for kernel in kernels] != stamps:
        raise ConvlabError(f"{labels[0]} or {labels[1]} was edited meanwhile: run it again")
    notes.append(f"on {describe(kernels[0].device)}" if on_gpu
                 else f"no GPU: torch {torch.__version__}, counters of the simulator")  # fmt: skip
    names = {kernel.engine for kernel in kernels}
    return AB(
        a=labels[0], b=labels[1], problem=problem, threshold=threshold, classes=classes,
        engine=next(name for name in ("cuda", "sim", "torch") if name in names),
        reports=tuple(reports), notes=tuple(notes), **found,
    )  # fmt: skip


def _sides(a: Any, b: Any, engine: str) -> list[Any]:
    """Turn what was asked for into two runnables of one device."""
    sides: list[Any] = [None, None]
    asked = (a, b)

    def late(side: Any) -> bool:  # goes where the other one is
        named = isinstance(side, str) and ":" in side and "\n" not in side
        return named or (callable(side) and not hasattr(side, "prepare"))

    for i in sorted(range(2), key=lambda i: late(asked[i])):
        side, name = asked[i], f"source_{'ab'[i]}"
        if isinstance(side, str) and ("\n" in side or "{" in side):
            sides[i] = compile(side, name=name, engine=engine)
        elif not late(side):
            sides[i] = resolve(side, engine)
        else:
            engines = {getattr(other, "engine", None) for other in sides} | {engine}
            off_gpu = "sim" in engines or not torch.cuda.is_available()
            if isinstance(side, str):
                sides[i] = resolve(side, "sim" if off_gpu else engine)
            else:
                where = "cpu" if off_gpu else f"cuda:{torch.cuda.current_device()}"
                precision = getattr(side, "precision", "fp32")
                sides[i] = Function(side, torch.device(where), precision)
    if sides[0].device != sides[1].device:
        raise ConvlabError(
            f"A runs on {sides[0].device} and B on {sides[1].device}: a simulated kernel or one "
            "on the CPU cannot be compared with one on a GPU; load both with the same engine"
        )
    return sides


def _identity(kernel: Any) -> tuple:
    """What makes two runnables the same: function, or source with tunables, or else name."""
    return (
        getattr(kernel, "function", None), kernel.name.split("#")[0], kernel.engine,
        _source(kernel), str(getattr(kernel, "defines", None)),
    )  # fmt: skip


def _source(kernel: Any) -> str | None:
    return getattr(kernel, "source", None)


def _labels(kernels: Sequence[Any]) -> list[str]:
    names = [kernel.name for kernel in kernels]
    if names[0] != names[1]:
        return names
    return [f"{name} ({side})" for name, side in zip(names, "AB", strict=True)]


def _checked(kernel: Any, problem: Problem, seed: int, isolate: bool) -> tuple[Report, Any]:
    """Check a side; a callable that names no class and is not fp32 may be tf32."""
    options: dict[str, Any] = {"seed": seed}
    if kernel.device.type == "cuda" and not isolate:
        options["isolate"] = False
    report = check_right(kernel, problem, **options)
    if report.ok or not isinstance(kernel, Function) or hasattr(kernel.function, "precision"):
        return report, kernel
    coarse = Function(kernel.function, kernel.device, "tf32")
    again = check_right(coarse, problem, **options)
    return (again, coarse) if again.ok else (report, kernel)


def _measured(
    kernels: Sequence[Any],
    problem: Problem,
    options: dict[str, Any],
    isolate: bool,
    notes: list[str],
) -> list[Paired]:
    """Time both, in the worker process if that can be."""
    if not isolate:
        return paired.measure_pair(*kernels, problem, **options)
    from ..run import worker

    if not worker.can_cross(*kernels):
        notes.append("measured in this process: a callable that pickle cannot send was given")
        return paired.measure_pair(*kernels, problem, **options)
    limit = _SPARE_SECONDS + 5 * options["limit_seconds"] * len(options["modes"])
    return _isolated(paired.measure_pair, *kernels, problem, time_limit=limit, **options)


def _isolated(function: Callable[..., Any], *args: Any, time_limit: float, **kwargs: Any) -> Any:
    from ..run import worker

    return worker.call(function, *args, time_limit=time_limit, **kwargs)


def _counted(
    kernels: Sequence[Any],
    problem: Problem,
    seed: int,
    reports: Sequence[Report],
    notes: list[str],
) -> tuple[Timing, Timing]:
    """Return the simulator's counters, from the checks if there were any."""
    timings = [
        simulated(kernel, report.counters, report.host_seconds)
        for kernel, report in zip(kernels, reports, strict=False)
    ]
    if not timings:
        timings = measure_all(kernels, problem, seed=seed)
    if len(timings) == 1:
        timings *= 2
    for timing in timings:
        if timing.traffic_bytes is None:
            notes.append(f"{timing.kernel} does not run on the simulator, so it has no counters")
    return timings[0], timings[1]
