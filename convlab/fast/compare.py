"""Several kernels, one problem, one table: right or wrong, at what cost, how far from the floor."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..machine.device import Ceilings, ceilings, describe, floor_seconds
from ..machine.progress import bar as progress_bar
from ..machine.progress import tqdm
from ..right import reference
from ..right.check import check
from ..right.report import Report
from ..run.fit import fit
from ..run.kernel import resolve
from ..run.runnable import Runnable, explained
from ..show import charts
from ..show.plot import COST_LABELS, Chart
from ..show.result import Result, Several, Table, short
from ..words.catalog import catalog
from ..words.errors import BuildError, ConvlabError, LaunchError, UnsupportedError
from ..words.problem import Problem, members
from ..words.problem import problem as named_problem
from .measure import LIMIT_SECONDS, Timing, measure_all, simulated

BASELINES = ("cudnn:fp32", "cudnn:tf32")  # what kernels on a GPU are compared with
# Column of the frame, heading, format.
_SHOWN = {
    "kernel": "kernel",
    "class": "class",
    "shown": "result",
    "error": ("error", "{:.1e}"),
    "time_ms": "time ms",
    "with_prepare_ms": "with prep. ms",
    "spread_pct": ("± %", "{:.1f}"),
    "tflops": ("TFLOP/s", short),
    "floor_ms": "floor ms",
    "traffic_mb": "traffic MB",
    "floor_mb": "floor MB",
    "x_floor": ("x floor", short),
    "shared_wavefronts": ("shared wavefronts", "{:,.0f}"),
    "host_seconds": ("host s", "{:.2f}"),
}
_COLUMNS = ["kernel", "title", "class", "engine", "right", "error", "bound", "note"]


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """What a comparison found.

    Attributes
    ----------
    problem
        The problem that was run, scaled down if need be.
    frame
        One row for each kernel: kernel, title, class, engine, right, error, bound; then on a GPU
        time_ms, spread_pct (interquartile range over median), samples, tflops, floor_ms, x_floor,
        and with_prepare_ms where a kernel lays out its filter: the time with that; on the
        simulator traffic_mb, floor_mb, x_floor, shared_wavefronts, host_seconds; then note.
        `right` is None for a kernel that did not run.
    ok
        Whether all that was asked is right. A kernel that declines the problem spoils it only if
        it was asked for by name.
    notes
        Lines: engine, device, scaling, versions, date.
    failures
        What is wrong, in full: reports of wrong kernels, messages of those that failed.
    """

    problem: Problem
    frame: pd.DataFrame
    ok: bool
    notes: tuple[str, ...]
    failures: tuple[str, ...] = ()
    reports: tuple[Report, ...] = field(default=(), repr=False)

    @property
    def cost(self) -> str:
        """The column of `frame` that is the cost here: "time_ms", or "traffic_mb" off a GPU."""
        return "time_ms" if "time_ms" in self.frame else "traffic_mb"

    @property
    def cost_label(self) -> str:
        """What `cost` is, in words with its unit: an axis's label."""
        return COST_LABELS[self.cost]

    @property
    def engine(self) -> str:
        """Where it ran: "cuda" or "sim"; "torch" if nothing but baselines ran, on a CPU."""
        engines = set(self.frame["engine"])
        return next((engine for engine in ("cuda", "sim") if engine in engines), "torch")

    @property
    def note(self) -> str:
        """The notes as one text."""
        return "\n".join(self.notes)

    @property
    def sentence(self) -> str:
        """How many are right, and which of those costs least."""
        rights = list(self.frame["right"])
        said = f"{rights.count(True)} of {len(rights)} right"
        if None in rights:
            said += f", {rights.count(None)} declined"
        rows = self.frame[[right is True for right in rights]]
        if self.cost in rows and rows[self.cost].notna().any():
            least = rows.loc[rows[self.cost].idxmin()]
            what = "fastest of them" if self.cost == "time_ms" else "least traffic"
            said += f"; {what}: {least.kernel}, {short(least.x_floor)}x the floor"
        return f"{self.problem.label}: {said}"

    @property
    def tables(self) -> Sequence[Table]:
        """A row for each kernel."""
        results = {True: "right", False: "WRONG", None: "declined"}
        failed = self.frame["note"].str.startswith(("failed", "does not build"))
        shown = [
            "FAILED" if fail else results[right]
            for right, fail in zip(self.frame["right"], failed, strict=True)
        ]
        return (Table(self.frame.assign(shown=shown), _SHOWN),)

    @property
    def details(self) -> Sequence[str]:
        """What is to be said of a row; then what is wrong, in full."""
        said = [f"  {row.kernel}: {row.note}" for row in self.frame.itertuples() if row.note]
        return [*said, *self.failures]

    @property
    def about(self) -> dict[str, Any]:
        """The problem, and what is wrong."""
        return {"problem": self.problem, "failures": self.failures}

    def figure(self) -> Chart:
        """Draw errors beside costs."""
        return charts.error_and_cost(self.frame, self.problem.label, self.notes)


@dataclass(frozen=True, repr=False)
class Comparisons(Several):
    """Comparisons on the problems of a set: a row for each kernel, a column for each problem."""

    results: tuple[Comparison, ...]

    @property
    def tables(self) -> Sequence[Table]:
        """The costs, each with its multiple of the floor."""
        return (self.matrix("kernel"),)

    def matrix(self, name: str) -> Table:
        """The costs; the rows go by a kernel's `name`: "kernel" or "title"."""
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for result in self.results:
            unit = result.cost.rpartition("_")[2].replace("mb", "MB")
            for row in result.frame.to_dict("records"):
                cells = rows.setdefault((row[name], row["class"]), {})
                text = f"{short(row[result.cost])} {unit} ({row['x_floor']:.2g}x)"
                if not row["right"]:
                    text = "does not do it" if row["right"] is None else "wrong"
                cells[result.problem.label] = text
        labelled = [{"kernel": k, "class": c} | cells for (k, c), cells in rows.items()]
        return Table(pd.DataFrame(labelled).fillna(""))

    @property
    def details(self) -> Sequence[str]:
        """What is to be said of each problem, and what is wrong."""
        return [line for r in self.results for line in (r.sentence, *r.details)]

    def figure(self) -> Chart:
        """Draw each kernel's multiple of the floor, on every problem."""
        return charts.floors_chart(self.frame, self.sentence, self.notes)


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
    kernels
        Runnables, names, paths, or baselines' names ("cudnn:tf32"); all of the catalog unless told.
    problem
        A Problem, or the name or the spec of one; or a set of problems: its name, or an iterable.
    engine
        Where kernels given by name or path run: "cuda", "sim" or "auto".
    scale
        "auto" shrinks the problem to what the simulator does in seconds, or to what the
        GPU has memory for, and says so; None never does.
    baselines
        Names of baselines to add; by default cuDNN in fp32 and in TF32 on a GPU, none elsewhere.
    seed
        Seed of the data.
    limit_seconds
        Time spent on measuring one kernel on a GPU, at most.
    progress
        Show a progress bar, where there is a terminal or a notebook.

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
    asked = members(problem)
    options = (scale, seed, limit_seconds, progress)
    if asked is None:
        entries = _load(kernels, engine, baselines)
        return _compared(entries, named_problem(problem), kernels is None, *options)
    results = []
    for each in asked:
        entries = _load(kernels, engine, baselines)
        results.append(_compared(entries, each, kernels is None, *options))
    return Comparisons(tuple(results))


@dataclass
class _Entry:
    """One row in the making."""

    kernel: Runnable
    right: bool | None = None  # None: it declined the problem
    report: Report | None = None
    timing: Timing | None = None
    status: str = ""  # for the lines under the table
    message: str = ""  # what is wrong, in full

    @property
    def name(self) -> str:
        return self.kernel.name

    def failed(self, how: str, error: Exception) -> None:
        """Take down that it did not get through."""
        self.right, self.message = False, f"{self.name}: {error}"
        self.status = f"{how}: {str(error).strip().splitlines()[0]}"


def _compared(
    entries: list[_Entry],
    problem: Problem,
    whole_catalog: bool,
    scale: str | None,
    seed: int,
    limit_seconds: float,
    progress: bool,
) -> Comparison:
    """Compare what was loaded on one problem."""
    loaded = [entry.kernel for entry in entries]
    problem, scaled = fit(problem, loaded, scale) if loaded else (problem, None)
    on_gpu = any(kernel.device.type == "cuda" for kernel in loaded)
    peaks = ceilings(loaded[0].device) if on_gpu else None
    with progress_bar(total=(2 + on_gpu) * len(loaded), leave=False, disable=not progress) as bar:
        _build(entries, bar)
        for entry in entries:
            bar.set_description(f"checking {entry.name}")
            _check(entry, problem, seed)
            bar.update()
        _measure(entries, problem, on_gpu, seed, limit_seconds, bar)
    rows = [_row(entry, problem, on_gpu, peaks) for entry in entries]
    frame = pd.DataFrame(rows, columns=None if rows else _COLUMNS)
    if "with_prepare_ms" in frame and frame["with_prepare_ms"].isna().all():
        frame = frame.drop(columns="with_prepare_ms")
    frame["right"] = frame["right"].astype(object)  # None, True and False stay what they are
    passed = [entry.right or (entry.right is None and whole_catalog) for entry in entries]
    return Comparison(
        problem=problem,
        frame=frame,
        ok=all(passed) and any(entry.right for entry in entries),
        notes=tuple(_notes(entries, scaled, peaks)),
        failures=tuple(entry.message for entry in entries if entry.message),
        reports=tuple(entry.report for entry in entries if entry.report is not None),
    )


def _load(kernels: Any, engine: str, baselines: Sequence[str] | None) -> list[_Entry]:
    """Turn what was asked for into runnables, nothing built yet; baselines come last."""
    if kernels is None:
        kernels = catalog()
    elif isinstance(kernels, (str, Path, Runnable)):
        kernels = [kernels]
    kernels = list(kernels)
    named = [asked for asked in kernels if isinstance(asked, str) and ":" in asked]
    entries: list[_Entry] = []
    for asked in kernels:
        if asked not in named:
            _add(entries, resolve(asked, engine))
    engines = {entry.kernel.engine for entry in entries}
    simulated = any(entry.kernel.simulated for entry in entries)
    on_gpu = any(entry.kernel.device.type == "cuda" for entry in entries)
    if simulated and (on_gpu or "cuda" in engines):
        raise ConvlabError(
            "a simulated kernel cannot be compared with one on a GPU: load all with one engine"
        )
    if baselines is None:
        baselines = BASELINES if on_gpu else ()
    for name in (*named, *baselines):
        _add(entries, resolve(name, "sim" if simulated else engine))
    return entries


def _add(entries: list[_Entry], kernel: Runnable) -> None:
    """Append a runnable unless it is there; refuse another one of the same name."""
    twin = next((entry.kernel for entry in entries if entry.name == kernel.name), None)
    if twin is None:
        entries.append(_Entry(kernel))
    elif twin is not kernel and not kernel.library and kernel.source != twin.source:
        paths = " and ".join(str(each.path or "(no file)") for each in (twin, kernel))
        raise ConvlabError(
            f"two different kernels are both named {kernel.name}: {paths}; rename one of them"
        )


def build_all(kernels: Sequence[Runnable]) -> Iterator[BuildError | None]:
    """Build runnables ahead of their first run, as many at a time as there are cores.

    Yields, in order, what went wrong with each. The compiler is a process of its own, so threads
    of this one do.
    """

    def build(kernel: Runnable) -> BuildError | None:
        try:
            kernel.build()
        except BuildError as error:
            return error
        return None

    pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))))
    try:
        yield from pool.map(build, kernels)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt waits for no compiler


def _build(entries: Sequence[_Entry], bar: tqdm) -> None:
    """Build ahead of the checks."""
    bar.set_description("building")
    errors = build_all([entry.kernel for entry in entries])
    for entry, error in zip(entries, errors, strict=True):
        if error is not None:
            entry.failed("does not build", error)
        bar.update()


def _check(entry: _Entry, problem: Problem, seed: int) -> None:
    if entry.right is False:
        return
    try:
        entry.report = check(entry.kernel, problem, seed=seed, scale=None)
    except UnsupportedError as error:
        entry.status = f"declines: {error}"
        return
    except LaunchError as error:
        entry.failed("failed", error)
        return
    entry.right = entry.report.ok
    if not entry.right:
        reason = entry.report.failures[0].removesuffix(", the first of them:")
        entry.status, entry.message = f"wrong: {reason}", str(entry.report)


def _measure(
    entries: list[_Entry], problem: Problem, on_gpu: bool, seed: int, limit: float, bar: tqdm
) -> None:
    """Time what ran, right or wrong, on a GPU; elsewhere the check's own run was counted."""
    ran = [entry for entry in entries if entry.report is not None]
    if not on_gpu:
        for entry in ran:
            report = entry.report
            entry.timing = simulated(entry.kernel, report.counters, report.host_seconds)
        return

    def tell(name: str) -> None:
        bar.set_description(f"measuring {name}")
        bar.update()

    kernels = [entry.kernel for entry in ran]
    try:
        with explained(", ".join(kernel.name for kernel in kernels)):
            timings = measure_all(kernels, problem, seed=seed, limit_seconds=limit, progress=tell)
    except LaunchError as error:
        for entry in ran:
            entry.failed("failed while measured", error)
        return
    for entry, timing in zip(ran, timings, strict=True):
        entry.timing = timing
        if not timing.stable:
            entry.status = entry.status or f"unsteady: {timing.samples} samples until time was up"


def _row(entry: _Entry, problem: Problem, on_gpu: bool, peaks: Ceilings | None) -> dict[str, Any]:
    kernel, report = entry.kernel, entry.report
    timing = entry.timing or Timing(kernel.name, kernel.engine)
    row = {
        "kernel": entry.name,
        "title": kernel.title,
        "class": kernel.precision,
        "engine": kernel.engine,
        "right": entry.right,
        "error": report.error if report else math.nan,
        "bound": reference.tolerance(kernel.precision, problem.gemm_k),
    }
    if on_gpu:
        floor = floor_seconds(problem, kernel.precision, peaks) if peaks else math.nan
        row |= {
            "time_ms": timing.seconds * 1e3,
            "with_prepare_ms": (timing.seconds + timing.prepare_seconds) * 1e3,
            "spread_pct": timing.spread * 100,
            "samples": timing.samples,
            "tflops": _ratio(problem.flops, timing.seconds) / 1e12,
            "floor_ms": floor * 1e3,
            "x_floor": _ratio(timing.seconds, floor),
        }
    else:
        traffic = math.nan if timing.traffic_bytes is None else timing.traffic_bytes
        shared = math.nan if timing.shared_wavefronts is None else timing.shared_wavefronts
        least = kernel.format.min_bytes(problem)
        row |= {
            "traffic_mb": traffic / 1e6,
            "floor_mb": least / 1e6,
            "x_floor": _ratio(traffic, least),
            "shared_wavefronts": shared,
            "host_seconds": timing.host_seconds,
        }
    return row | {"note": entry.status}


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def _notes(entries: Sequence[_Entry], scaled: str | None, peaks: Ceilings | None) -> list[str]:
    notes, kernels = [], [entry.kernel for entry in entries]
    counted: dict[str, Mapping[str, Any]] = {
        entry.name: entry.timing.counters or {} for entry in entries if entry.timing
    }
    modelled = [name for name, counters in counted.items() if counters.get("library_bytes")]
    if peaks is not None:
        notes += [
            f"on {describe(kernels[0].device)}",
            (
                f"floors from measured ceilings: copy {peaks.copy_bytes_per_s / 1e12:.2f} TB/s, "
                f"GEMM fp32 {peaks.fp32_flops / 1e12:.0f} and TF32 "
                f"{peaks.tf32_flops / 1e12:.0f} TFLOP/s"
            ),
        ]
    elif any(kernel.simulated for kernel in kernels):
        notes.append(
            "on the simulator: traffic is counted, no time is a GPU's; floor: x, w, y moved once"
        )
    elif kernels:
        notes.append("on the CPU: no time is a GPU's")
    if modelled:
        notes.append(f"cuBLAS's traffic is a model's, 128x128 tiles: {', '.join(modelled)}")
    if scaled:
        notes.append(scaled)
    today = datetime.date.today().isoformat()
    return [*notes, f"{today}, torch {torch.__version__}, Python {platform.python_version()}"]
