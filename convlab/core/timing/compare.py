"""Several kernels, one problem, one table: right or wrong, at what cost, how far from the floor."""

import datetime
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .. import arguments
from ..correctness import reference
from ..correctness.report import Report
from ..cost import COUNTED, MEASURED, Cost
from ..errors import ConvlabError, LaunchError, UnsupportedError, named
from ..kernel.catalog import catalog
from ..kernel.kernel import ENGINES
from ..kernel.provenance import made_of
from ..kernel.runnable import Runnable, explained
from ..kernel.shrink_to_fit import fit
from ..machine.device import Ceilings, ceilings, describe, floor_seconds
from ..machine.progress import bar as progress_bar
from ..problem.named import members
from ..problem.problem import Problem
from .ab_result import BELOW, BELOW_WORDS
from .comparison import Comparison, Comparisons
from .measure import LIMIT_SECONDS, Timing, measure_all
from .sides import build_all, cudnn_of, identity, judge, reason, side_by_side

BASELINES = ("cudnn:fp32", "cudnn:tf32")  # what kernels on a GPU are compared with
_COLUMNS = ["kernel", "title", "class", "engine", "right", "error", "bound", "note"]


def compare(
    kernels: Iterable[Any] | Any | None = None,
    problem: Problem | str | Iterable[Problem | str] = "square",
    *,
    engine: str = "auto",
    scale: str | None = "auto",
    baselines: Sequence[str] | None = None,
    seed: int = 0,
    limit_seconds: float = LIMIT_SECONDS,
    progress: bool = True,
) -> Comparison | Comparisons:
    """Check several kernels on one problem and measure them side by side.

    Parameters
    ----------
    kernels : runnables, names, paths, baselines' names ("cudnn:tf32") or callables, as `ab` takes
        them; all of the catalog unless told.
    problem : a Problem, or the name or the spec of one; or a set: its name, or an iterable.
    engine : where kernels given by name or path run: "cuda", "sim" or "auto".
    scale : "auto" shrinks the problem to what the simulator does in seconds, or to what the GPU
        has memory for, and says so; None never does.
    baselines : their names; unless told, cuDNN in fp32 and in TF32 on a GPU, none elsewhere.
    seed : of the data.
    limit_seconds : time spent on measuring one kernel on a GPU, at most.
    progress : show a progress bar, or where it goes to a log a line now and then.

    Returns
    -------
    Comparison, or Comparisons of a set

    Raises
    ------
    CatalogError, ProblemError
        No such kernel or problem.
    ConvlabError
        Two different kernels of one name, or kernels of different engines.
    LaunchError
        `scale` is None and memory is short. A single kernel's failure is a row, not an exception.
    """
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(progress, "progress")
    seed = arguments.whole(seed, "seed")
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    loaded = _load(kernels, engine, baselines)
    (chosen, of_set) = members(problem)
    options = (scale, seed, limit_seconds, progress)
    found = [_compared(loaded, each, *options) for each in chosen]
    return Comparisons(tuple(found)) if of_set else found[0]


@dataclass
class Contestant:
    """One kernel on its way through a comparison: a row in the making."""

    kernel: Runnable
    right: bool | None = None  # None: it declined the problem
    report: Report | None = None
    timing: Timing | None = None
    note: str = ""
    failure: str = ""  # what is wrong, in full

    def failed(self, how: str, error: Exception) -> None:
        """Take down that it did not get through."""
        self.right = False
        self.failure = named(self.kernel.name, error)
        self.note = f"{how}: {reason(error, self.kernel.name)}"

    def check(self, problem: Problem, seed: int) -> None:
        """Take down whether it is right."""
        try:
            found = judge(self.kernel, problem, seed=seed, scale=None)
        except UnsupportedError as error:
            self.note = f"declines: {self.kernel.unsupported(problem) or error}"
            return
        except LaunchError as error:
            self.failed("failed", error)
            return
        self.kernel = found.runnable
        self.report = found.report
        self.right = found.report.ok
        self.note = "; ".join(found.notes)
        if found.caught:
            self.caught(found.caught)
        elif not self.right:
            first = self.report.failures[0].removesuffix(", the first of them:")
            self.note = f"wrong: {first}"
            self.failure = str(self.report)

    def caught(self, how: str) -> None:
        """Take down that it did something else than the work while it was looked at."""
        self.right = False
        self.note = f"caught: {how}"
        self.failure = f"{self.kernel.name}: {self.note}"

    def cost(self, problem: Problem, peaks: Ceilings | None) -> Cost:
        """Return its time on a GPU, which has ceilings; elsewhere the traffic that was counted."""
        kernel = self.kernel
        if peaks is None:
            floor = kernel.format.min_bytes(problem) / 1e6
            return counted_cost(self.report, floor)
        timing = self.timing or Timing()
        floor = 1e3 * floor_seconds(problem, kernel.precision, peaks, kernel.format)
        return timing.cost(floor, problem.flops)

    def row(self, problem: Problem, peaks: Ceilings | None) -> dict[str, Any]:
        """Its row in the frame; on a GPU there are ceilings."""
        kernel = self.kernel
        report = self.report
        row = {
            "kernel": kernel.name,
            "title": kernel.title,
            "class": kernel.precision,
            "engine": kernel.engine,
            "right": self.right,
            "error": math.nan if report is None else report.error,
            "bound": reference.tolerance(
                kernel.precision, problem.gemm_k, math.prod(problem.y_shape)
            ),
        }
        cost = self.cost(problem, peaks)
        if peaks and cost.value < BELOW * cost.floor:
            self.note = f"{self.note}; {BELOW_WORDS}".removeprefix("; ")
        return row | cost.cells | {"note": self.note}


def counted_cost(report: Report | None, floor: float) -> Cost:
    """Return the cost of a simulated run: the check's own run was counted. The floor is in MB."""
    if report is None:
        more = dict.fromkeys(("shared_wavefronts", "host_seconds"), math.nan)
        return Cost(COUNTED, floor=floor, more=more)
    counters = report.counters or {}
    more = {
        "shared_wavefronts": counters.get("shared_wavefronts", math.nan),
        "host_seconds": counters.get("seconds", report.host_seconds),
    }
    return Cost(COUNTED, (report.traffic_bytes or math.nan) / 1e6, floor, more=more)


def _load(kernels: Any, engine: str, baselines: Sequence[str] | None) -> list[Runnable]:
    """Turn what was asked for into runnables, each once, nothing built yet; baselines come last."""
    if kernels is None:
        kernels = catalog()
    elif isinstance(kernels, (str, Path, Runnable)):
        kernels = [kernels]
    loaded = side_by_side(arguments.several(kernels, "kernels"), engine)
    if baselines is None:
        own = (cudnn_of(kernel) for kernel in loaded if not kernel.library)
        on_gpu = any(k.device.type == "cuda" for k in loaded)
        baselines = list(dict.fromkeys([*BASELINES, *own])) if on_gpu else ()
    loaded = side_by_side([*loaded, *arguments.several(baselines, "baselines")], engine)
    once: dict[str, Runnable] = {}
    for kernel in sorted(loaded, key=lambda kernel: kernel.library):
        twin = once.setdefault(kernel.name, kernel)
        if identity(twin) != identity(kernel):
            paths = " and ".join(str(each.path or "(no file)") for each in (twin, kernel))
            raise ConvlabError(
                f"two different kernels are both named {kernel.name}: {paths}; rename one of them"
            )
    return list(once.values())


def _compared(
    kernels: Sequence[Runnable],
    problem: Problem,
    scale: str | None,
    seed: int,
    limit_seconds: float,
    progress: bool,
) -> Comparison:
    """Compare what was loaded on one problem."""
    if scale is None and kernels:  # what is known of an earlier one shall not stand in its way
        reference.make_room(problem, kernels[0].device)
    problem, scaled = fit(problem, kernels, scale) if kernels else (problem, None)
    entries = [Contestant(kernel) for kernel in kernels]
    on_gpu = any(kernel.device.type == "cuda" for kernel in kernels)
    peaks = ceilings(kernels[0].device) if on_gpu else None
    steps = (2 + on_gpu) * len(entries)
    with progress_bar(None, "building", steps, leave=False, disable=not progress) as bar:

        def tell(what: str) -> None:
            bar.set_description(what)
            bar.update()

        with build_all(kernels) as errors:
            for entry, error in zip(entries, errors, strict=True):
                tell("building")
                if error is not None:
                    entry.failed("does not build", error)
        for entry in entries:
            tell(f"checking {entry.kernel.name}")
            if not entry.failure:
                entry.check(problem, seed)
        ran = [entry for entry in entries if entry.report is not None]  # right or wrong
        if on_gpu and ran:  # elsewhere the check's own run was counted
            _measure(ran, problem, tell, seed=seed, limit_seconds=limit_seconds)
    rows = [entry.row(problem, peaks) for entry in entries]
    frame = pd.DataFrame(rows, columns=None if rows else _COLUMNS)
    if "with_prepare_ms" in frame and frame["with_prepare_ms"].isna().all():
        frame = frame.drop(columns="with_prepare_ms")
    frame["right"] = frame["right"].astype(object)  # None, True and False stay what they are
    rights = [entry.right for entry in entries]
    taken = [(e.kernel.name, 1e3 * s) for e in ran if e.timing for s in e.timing.taken]
    return Comparison(
        problem=problem,
        frame=frame,
        ok=True in rights and False not in rights,
        notes=tuple(_notes(entries, scaled, peaks)),
        failures=tuple(entry.failure for entry in entries if entry.failure),
        reports=tuple(entry.report for entry in ran),
        samples=pd.DataFrame(taken, columns=["kernel", "ms"]),
        made=made_of([entry.kernel for entry in ran]),
        kind=MEASURED if on_gpu else COUNTED,
    )


def _measure(
    entries: Sequence[Contestant], problem: Problem, tell: Callable[[str], None], **options: Any
) -> None:
    kernels = [entry.kernel for entry in entries]
    options["progress"] = lambda name: tell(f"measuring {name}")
    try:
        with explained(", ".join(kernel.name for kernel in kernels)):
            rights = [entry.right is True for entry in entries]
            timings = measure_all(kernels, problem, judged=rights, **options)
    except LaunchError as error:
        for entry in entries:
            entry.failed("failed while measured", error)
        return
    for entry, timing in zip(entries, timings, strict=True):
        entry.timing = timing
        if timing.caught:
            entry.caught(timing.caught)
        elif not (timing.stable or entry.note):
            entry.note = f"unsteady: {timing.samples} samples until time was up"


def _notes(entries: Sequence[Contestant], scaled: str | None, peaks: Ceilings | None) -> list[str]:
    notes = ["on the CPU: no time is a GPU's"]
    if peaks is not None:
        here = describe(entries[0].kernel.device)
        notes = [f"on {here}", f"floors from ceilings: {peaks}"]
    elif any(entry.kernel.counts for entry in entries):
        what = "traffic is counted, no time is a GPU's; floor: x, w, y moved once"
        notes = [f"on the simulator: {what}"]
    reports = [entry.report for entry in entries if entry.report is not None]
    modelled = [r.kernel for r in reports if (r.counters or {}).get("library_bytes")]
    if modelled:
        notes.append(f"cuBLAS's traffic is a model's, 128x128 tiles: {', '.join(modelled)}")
    today = datetime.date.today().isoformat()
    versions = f"{today}, torch {torch.__version__}, Python {platform.python_version()}"
    return [*notes, *filter(None, [scaled]), versions]
