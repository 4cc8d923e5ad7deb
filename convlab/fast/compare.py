"""Several kernels, one problem, one table: right or wrong, at what cost, how far from the floor."""

from __future__ import annotations

import datetime
import html
import math
import os
import platform
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..machine.device import Ceilings, ceilings, describe, floor_seconds
from ..machine.progress import bar as progress_bar
from ..machine.progress import tqdm
from ..right import reference
from ..right.check import Report, check, explained, fit, plain, resolve
from ..show import plot
from ..words.errors import BuildError, ConvlabError, LaunchError, UnsupportedError
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from .measure import LIMIT_SECONDS, Timing, measure_all, simulated

BASELINES = ("cudnn:fp32", "cudnn:tf32")  # what kernels on a GPU are compared with


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison found.

    Attributes
    ----------
    problem
        The problem that was run, scaled down if need be.
    frame
        One row for each kernel: kernel, title, class, engine, right, error, bound; then on a GPU
        time_ms, spread_pct (interquartile range over median), samples, tflops, floor_ms, x_floor;
        on the simulator traffic_mb, floor_mb, x_floor, shared_wavefronts, host_seconds; then note.
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
        return plot.COST_LABELS[self.cost]

    @property
    def engine(self) -> str:
        """Where it ran: "cuda" or "sim"; "torch" if nothing but baselines ran, on a CPU."""
        engines = set(self.frame["engine"])
        return next((engine for engine in ("cuda", "sim") if engine in engines), "torch")

    @property
    def note(self) -> str:
        """The notes as one text."""
        return "\n".join(self.notes)

    def __str__(self) -> str:
        notes = [line for note in self.notes for line in textwrap.wrap(note, 100)]
        return "\n".join([self.problem.label, *_table(self.frame), *notes, *self.failures])

    __repr__ = __str__  # what a notebook keeps as text

    def _repr_html_(self) -> str:
        head = html.escape(self.problem.label)
        table = _shown(self.frame).to_html(index=False, border=0, escape=True)
        notes = "<br>".join(map(html.escape, self.notes))
        wrong = "".join(f"<pre>{html.escape(text)}</pre>" for text in self.failures)
        return f"<b>{head}</b>{table}<p><small>{notes}</small></p>{wrong}"

    def plot(self, path: str | Path | None = None) -> plot.Chart:
        """Draw errors beside costs; write the figure if a path is given, and return it."""
        chart = plot.error_and_cost(self.frame, self.problem.label, self.notes)
        if path is not None:
            chart.save(path)
        return chart

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold; a number that is not known is None."""
        return {
            "problem": {
                "name": self.problem.name,
                **self.problem.variables(),
                "bias": self.problem.bias,
            },
            "ok": self.ok,
            "rows": [
                {key: plain(value) for key, value in row.items()}
                for row in self.frame.to_dict("records")
            ],
            "notes": list(self.notes),
            "failures": list(self.failures),
        }


def compare(
    kernels: Iterable[Any] | Any | None = None,
    problem: Problem | str = "square",
    *,
    engine: str = "auto",
    scale: str | None = "auto",
    baselines: Sequence[str] | None = None,
    seed: int = 0,
    limit_seconds: float = LIMIT_SECONDS,
    progress: bool = True,
) -> Comparison:
    """Check several kernels on one problem and measure them side by side.

    Parameters
    ----------
    kernels
        Runnables, names, paths, or baselines' names ("cudnn:tf32"); all of the catalog unless told.
    problem
        A Problem, or the name or the spec of one.
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
        Show a progress bar.

    Returns
    -------
    Comparison

    Raises
    ------
    CatalogError, ProblemError
        No such kernel or problem.
    ConvlabError
        Two different kernels of one name, or kernels of different engines.
    LaunchError
        `scale` is None and memory is short. A single kernel's failure is a row, not an exception.
    """
    problem = named_problem(problem)
    entries = _load(kernels, engine, baselines)
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
    passed = [entry.right or (entry.right is None and kernels is None) for entry in entries]
    return Comparison(
        problem=problem,
        frame=pd.DataFrame(rows, columns=None if rows else _COLUMNS),
        ok=all(passed) and any(entry.right for entry in entries),
        notes=tuple(_notes(entries, scaled, peaks)),
        failures=tuple(entry.message for entry in entries if entry.message),
        reports=tuple(entry.report for entry in entries if entry.report is not None),
    )


@dataclass
class _Entry:
    """One row in the making."""

    name: str
    kernel: Any
    right: bool | None = None  # None: it declined the problem
    report: Report | None = None
    timing: Timing | None = None
    status: str = ""  # for the table's last column
    message: str = ""  # what is wrong, in full


_COLUMNS = ["kernel", "title", "class", "engine", "right", "error", "bound", "note"]


def _load(kernels: Any, engine: str, baselines: Sequence[str] | None) -> list[_Entry]:
    """Turn what was asked for into runnables, nothing built yet; baselines come last."""
    if kernels is None:
        from ..words.catalog import catalog

        kernels = catalog()
    elif isinstance(kernels, (str, Path)) or hasattr(kernels, "prepare"):
        kernels = [kernels]
    kernels = list(kernels)
    named = [asked for asked in kernels if isinstance(asked, str) and ":" in asked]
    entries: list[_Entry] = []
    for asked in kernels:
        if asked not in named:
            _add(entries, resolve(asked, engine))
    engines = {entry.kernel.engine for entry in entries}
    if {"cuda", "sim"} <= engines:
        raise ConvlabError(
            "a simulated kernel cannot be compared with one on a GPU: load all with one engine"
        )
    if baselines is None:
        baselines = BASELINES if "cuda" in engines else ()
    for name in (*named, *baselines):
        _add(entries, resolve(name, "sim" if "sim" in engines else engine))
    return entries


def _add(entries: list[_Entry], kernel: Any) -> None:
    """Append a runnable unless it is there; refuse another one of the same name."""
    twin = next((e.kernel for e in entries if e.name == kernel.name), None)
    if twin is None:
        entries.append(_Entry(kernel.name, kernel))
        return
    source = getattr(kernel, "source", None)
    same = twin is kernel or ":" in kernel.name
    if not same and (source is None or source != getattr(twin, "source", None)):
        paths = " and ".join(str(getattr(k, "path", None) or "(no file)") for k in (twin, kernel))
        raise ConvlabError(
            f"two different kernels are both named {kernel.name}: {paths}; rename one of them"
        )


def build_all(kernels: Sequence[Any]) -> Iterator[tuple[int, BuildError | None]]:
    """Build runnables ahead of their first run, as many at a time as there are cores.

    Yields each one's place in `kernels`, as it is done, and what went wrong with it. The compiler
    is a process of its own, so threads of this one do. What needs no building is passed over.
    """

    def build(kernel: Any) -> BuildError | None:
        try:
            kernel.build()
        except BuildError as error:
            return error
        return None

    pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))))
    try:
        futures = {
            pool.submit(build, kernel): i
            for i, kernel in enumerate(kernels)
            if hasattr(kernel, "build")
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt waits for no compiler


def _build(entries: Sequence[_Entry], bar: tqdm) -> None:
    """Build ahead of the checks; the bar tells which kernel was built last."""
    bar.set_description("building")
    done = 0
    for i, error in build_all([entry.kernel for entry in entries]):
        entry = entries[i]
        if error is not None:
            entry.right, entry.message = False, f"{entry.name}: {error}"
            entry.status = f"does not build: {_first_line(error)}"
        bar.set_description(f"built {entry.name}")
        bar.update()
        done += 1
    bar.update(len(entries) - done)  # those that need no building


def _check(entry: _Entry, problem: Problem, seed: int) -> None:
    if entry.right is False:
        return
    try:
        entry.report = check(entry.kernel, problem, seed=seed, scale=None)
    except UnsupportedError as error:
        entry.status = f"declines: {error}"
        return
    except LaunchError as error:
        entry.right, entry.message = False, f"{entry.name}: {error}"
        entry.status = f"failed: {_first_line(error)}"
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
            entry.right, entry.message = False, str(error)
            entry.status = f"failed while measured: {_first_line(error)}"
        return
    for entry, timing in zip(ran, timings, strict=True):
        entry.timing = timing
        if not timing.stable:
            entry.status = entry.status or f"unsteady: {timing.samples} samples until time was up"


def _row(entry: _Entry, problem: Problem, on_gpu: bool, peaks: Ceilings | None) -> dict[str, Any]:
    kernel, report, timing = entry.kernel, entry.report, entry.timing
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
        seconds = timing.seconds if timing else math.nan
        floor = floor_seconds(problem, kernel.precision, peaks) if peaks else math.nan
        row |= {
            "time_ms": seconds * 1e3,
            "spread_pct": timing.spread * 100 if timing else math.nan,
            "samples": timing.samples if timing else 0,
            "tflops": _ratio(problem.flops, seconds) / 1e12,
            "floor_ms": floor * 1e3,
            "x_floor": _ratio(seconds, floor),
        }
    else:
        counted = timing is not None and timing.traffic_bytes is not None
        traffic = timing.traffic_bytes if counted else math.nan
        row |= {
            "traffic_mb": traffic / 1e6,
            "floor_mb": problem.min_bytes / 1e6,
            "x_floor": _ratio(traffic, problem.min_bytes),
            "shared_wavefronts": timing.shared_wavefronts if counted else math.nan,
            "host_seconds": timing.host_seconds if timing else math.nan,
        }
    return row | {"note": entry.status}


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def _notes(entries: Sequence[_Entry], scaled: str | None, peaks: Ceilings | None) -> list[str]:
    notes, kernels = [], [entry.kernel for entry in entries]
    counted = {e.name: e.timing.counters for e in entries if e.timing and e.timing.counters}
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
    elif any(kernel.engine == "sim" for kernel in kernels):
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


# Column of the frame, heading, format.
_PRINTED = (
    ("kernel", "kernel", "{}"),
    ("class", "class", "{}"),
    ("right", "result", "{}"),
    ("error", "error", "{:.1e}"),
    ("time_ms", "time ms", "{:.4g}"),
    ("spread_pct", "± %", "{:.1f}"),
    ("tflops", "TFLOP/s", "{:.3g}"),
    ("floor_ms", "floor ms", "{:.4g}"),
    ("traffic_mb", "traffic MB", "{:.4g}"),
    ("floor_mb", "floor MB", "{:.4g}"),
    ("x_floor", "x floor", "{:.3g}"),
    ("shared_wavefronts", "shared wavefronts", "{:,.0f}"),
    ("host_seconds", "host s", "{:.2f}"),
)


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame as text, a column each with the heading that is printed."""
    result = {True: "right", False: "WRONG", None: "declined"}
    shown = {}
    for key, heading, form in _PRINTED:
        if key not in frame:
            continue
        values = [None if pd.isna(value) else value for value in frame[key]]
        if key == "right":
            failed = frame["note"].str.startswith(("failed", "does not build"))
            values = [
                "FAILED" if fail else result[None if value is None else bool(value)]
                for value, fail in zip(values, failed, strict=True)
            ]
        shown[heading] = ["-" if value is None else form.format(value) for value in values]
    return pd.DataFrame(shown)


def _table(frame: pd.DataFrame, most: int = 100) -> list[str]:
    """Lay the frame out as lines of text, none longer than `most`; notes follow the rows."""
    shown = _shown(frame)
    columns = [[heading, *shown[heading]] for heading in shown]
    widths = [max(map(len, column)) for column in columns]
    if widths:
        widths[0] = max(6, min(widths[0], most - sum(widths[1:]) - 2 * (len(widths) - 1)))
    lines = []
    for cells in zip(*columns, strict=True):
        name = cells[0] if len(cells[0]) <= widths[0] else cells[0][: widths[0] - 1] + "…"
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *rest]).rstrip())
    if lines:
        lines.insert(1, "-" * max(map(len, lines)))
    for row in frame.itertuples():
        if row.note:
            text = f"{row.kernel}: {row.note}"
            lines.append(text if len(text) <= most else text[: most - 1] + "…")
    return lines


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
