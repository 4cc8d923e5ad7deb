"""Compare several kernels on one problem: is each correct, at what cost, how far from the floor?"""

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

# What kernels on a GPU are compared with.
DEFAULT_BASELINES = ("cudnn:fp32", "cudnn:tf32")
_COLUMNS = ["kernel", "title", "class", "engine", "correct", "error", "bound", "note"]


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
    """Check several kernels on one problem, and measure them in one table.

    On a GPU the cost of a kernel is its time, measured with a cold L2. On the simulator it is the
    traffic to global memory. The floor is the theoretical minimum of either. To know which of two
    kernels is faster, and how surely, use `ab`.

    Parameters
    ----------
    kernels
        Runnables, names, paths, baselines' names ("cudnn:tf32") or callables, as for `ab`. The
        default is the whole catalog.
    problem
        A Problem, or the name or the spec of one; or a set: its name, or an iterable.
    engine
        Where kernels given by name or path run: "cuda", "sim" or "auto".
    scale
        "auto" shrinks the problem to what the simulator computes in seconds, or to what fits the
        GPU's memory, and notes it; None never does.
    baselines
        Names of baselines. The default is cuDNN in fp32 and in TF32 on a GPU, and none elsewhere.
    seed
        The seed of the data.
    limit_seconds
        The most time in seconds to measure one kernel on a GPU.
    progress
        Show a progress bar; in a log file, a line now and then.

    Returns
    -------
    Comparison
        For one problem: a row for each kernel in `frame`, times in ms or traffic in MB.
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
    """
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(progress, "progress")
    seed = arguments.whole(seed, "seed")
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    loaded = _load(kernels, engine, baselines)
    problems, is_set = members(problem)
    results = [_compared(loaded, one, scale, seed, limit_seconds, progress) for one in problems]
    return Comparisons(tuple(results)) if is_set else results[0]


@dataclass
class Contestant:
    """One kernel on its way through a comparison: a row that is not complete yet.

    Attributes
    ----------
    kernel : the kernel.
    correct : whether it is correct; None if it does not support the problem.
    report, timing : what the check and the measurement gave.
    note : what a reader should know of it, in a line.
    failure : what is wrong, in full; or empty.
    """

    kernel: Runnable
    correct: bool | None = None
    report: Report | None = None
    timing: Timing | None = None
    note: str = ""
    failure: str = ""

    def failed(self, how: str, error: Exception) -> None:
        """Note that an error ended its way."""
        self.correct = False
        self.failure = named(self.kernel.name, error)
        self.note = f"{how}: {reason(error, self.kernel.name)}"

    def caught(self, how: str) -> None:
        """Note that it did something else than the work."""
        self.correct = False
        self.note = f"caught: {how}"
        self.failure = f"{self.kernel.name}: {self.note}"

    def check(self, problem: Problem, seed: int) -> None:
        """Check whether it is correct."""
        try:
            judged = judge(self.kernel, problem, seed=seed, scale=None)
        except UnsupportedError as error:
            self.note = f"unsupported: {self.kernel.unsupported(problem) or error}"
            return
        except LaunchError as error:
            self.failed("failed", error)
            return
        self.kernel = judged.runnable
        self.report = judged.report
        self.correct = judged.report.ok
        self.note = "; ".join(judged.notes)
        if judged.caught:
            self.caught(judged.caught)
        elif not self.correct:
            self.note = f"incorrect: {self.report.first_failure}"
            self.failure = str(self.report)

    def timed(self, timing: Timing) -> None:
        """Take its timing, and note what was strange about it."""
        self.timing = timing
        if timing.caught:
            self.caught(timing.caught)
        elif not timing.stable and not self.note:
            samples = f"{timing.samples} sample{'s' * (timing.samples != 1)}"
            self.note = f"timing not stable: only {samples} within the time limit"

    def cost(self, problem: Problem, peaks: Ceilings | None) -> Cost:
        """Return its time on a GPU, which has ceilings, or elsewhere its counted traffic."""
        kernel = self.kernel
        if peaks is None:
            floor = kernel.format.min_bytes(problem) / 1e6
            return counted_cost(self.report, floor)
        timing = self.timing or Timing()
        floor = 1e3 * floor_seconds(problem, kernel.precision, peaks, kernel.format)
        return timing.cost(floor, problem.flops)

    def row(self, problem: Problem, peaks: Ceilings | None) -> dict[str, Any]:
        """Return its row of the frame; only a GPU has ceilings."""
        kernel = self.kernel
        outputs = math.prod(problem.y_shape)
        row = {
            "kernel": kernel.name,
            "title": kernel.title,
            "class": kernel.precision,
            "engine": kernel.engine,
            "correct": self.correct,
            "error": math.nan if self.report is None else self.report.error,
            "bound": reference.tolerance(kernel.precision, problem.gemm_k, outputs),
        }
        cost = self.cost(problem, peaks)
        if peaks and cost.value < BELOW * cost.floor:
            self.note = f"{self.note}; {BELOW_WORDS}".removeprefix("; ")
        return row | cost.cells | {"note": self.note}


def counted_cost(report: Report | None, floor: float) -> Cost:
    """Return the cost of a simulated run, which the check counted; the floor is in MB."""
    if report is None:
        unknown = dict.fromkeys(("shared_wavefronts", "host_seconds"), math.nan)
        return Cost(COUNTED, floor=floor, more=unknown)
    counters = report.counters or {}
    more = {
        "shared_wavefronts": counters.get("shared_wavefronts", math.nan),
        "host_seconds": counters.get("seconds", report.host_seconds),
    }
    traffic = (report.traffic_bytes or math.nan) / 1e6
    return Cost(COUNTED, traffic, floor, more=more)


def _load(kernels: Any, engine: str, baselines: Sequence[str] | None) -> list[Runnable]:
    """Return kernels and baselines as runnables, each once, not built; baselines come last."""
    if kernels is None:
        kernels = catalog()
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


def _compared(
    kernels: Sequence[Runnable],
    problem: Problem,
    scale: str | None,
    seed: int,
    limit_seconds: float,
    progress: bool,
) -> Comparison:
    """Compare loaded kernels on one problem."""
    if scale is None and kernels:
        # The reference of an earlier problem must not take the memory of this one.
        reference.make_room(problem, kernels[0].device)
    scaled = None
    if kernels:
        problem, scaled = fit(problem, kernels, scale)
    entries = [Contestant(kernel) for kernel in kernels]
    on_gpu = any(kernel.device.type == "cuda" for kernel in kernels)
    peaks = ceilings(kernels[0].device) if on_gpu else None
    steps = (2 + on_gpu) * len(entries)
    with progress_bar(None, "building", steps, leave=False, disable=not progress) as bar:

        def tell(step: str) -> None:
            bar.set_description(step)
            bar.update()

        _build(entries, tell)
        for entry in entries:
            tell(f"checking {entry.kernel.name}")
            if not entry.failure:
                entry.check(problem, seed)
        ran = [entry for entry in entries if entry.report is not None]
        # Elsewhere the run of the check was counted.
        if on_gpu and ran:
            _measure(ran, problem, tell, seed=seed, limit_seconds=limit_seconds)
    verdicts = [entry.correct for entry in entries]
    return Comparison(
        problem=problem,
        frame=_frame(entries, problem, peaks),
        ok=True in verdicts and False not in verdicts,
        notes=tuple(_notes(entries, scaled, peaks)),
        failures=tuple(entry.failure for entry in entries if entry.failure),
        reports=tuple(entry.report for entry in ran),
        samples=_samples(ran),
        made=made_of([entry.kernel for entry in ran]),
        kind=MEASURED if on_gpu else COUNTED,
    )


def _build(entries: Sequence[Contestant], tell: Callable[[str], None]) -> None:
    """Build all, several at a time; note which do not build."""
    with build_all([entry.kernel for entry in entries]) as errors:
        for entry, error in zip(entries, errors, strict=True):
            tell("building")
            if error is not None:
                entry.failed("does not build", error)


def _measure(
    entries: Sequence[Contestant], problem: Problem, tell: Callable[[str], None], **options: Any
) -> None:
    """Time all that ran, correct or wrong; the options are `measure_all`'s."""
    kernels = [entry.kernel for entry in entries]
    try:
        with explained(", ".join(kernel.name for kernel in kernels)):
            timings = measure_all(
                kernels,
                problem,
                judged=[entry.correct is True for entry in entries],
                progress=lambda name: tell(f"measuring {name}"),
                **options,
            )
    except LaunchError as error:
        for entry in entries:
            entry.failed("failed while measured", error)
        return
    for entry, timing in zip(entries, timings, strict=True):
        entry.timed(timing)


def _frame(entries: Sequence[Contestant], problem: Problem, peaks: Ceilings | None) -> pd.DataFrame:
    """Return a row for each kernel."""
    rows = [entry.row(problem, peaks) for entry in entries]
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
        notes = [f"on the simulator: {counted}; floor: x, w and y moved once"]
    else:
        notes = ["on the CPU: no GPU time is measured"]
    reports = [entry.report for entry in entries if entry.report is not None]
    modelled = [r.kernel for r in reports if (r.counters or {}).get("library_bytes")]
    if modelled:
        notes.append(f"cuBLAS's traffic is a model with 128x128 tiles: {', '.join(modelled)}")
    if scaled:
        notes.append(scaled)
    today = datetime.date.today().isoformat()
    notes.append(f"{today}, torch {torch.__version__}, Python {platform.python_version()}")
    return notes
