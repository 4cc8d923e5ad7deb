"""Several kernels, one problem, one table: right or wrong, at what cost, how far from the floor."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from ..run.kernel import ENGINES, resolve
from ..run.runnable import Runnable, explained
from ..words import arguments
from ..words.catalog import catalog
from ..words.errors import BuildError, ConvlabError, LaunchError, UnsupportedError
from ..words.problem import Problem, members
from ..words.problem import problem as named_problem
from .comparison import Comparison, Comparisons
from .measure import LIMIT_SECONDS, Timing, measure_all

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
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(progress, "progress")
    seed = arguments.whole(seed, "seed")
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    asked = members(problem)
    loaded = _load(kernels, engine, baselines)
    options = (kernels is None, scale, seed, limit_seconds, progress)
    if asked is None:
        return _compared(loaded, named_problem(problem), *options)
    return Comparisons(tuple(_compared(loaded, each, *options) for each in asked))


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
    loaded: Sequence[Runnable],
    problem: Problem,
    whole_catalog: bool,
    scale: str | None,
    seed: int,
    limit_seconds: float,
    progress: bool,
) -> Comparison:
    """Compare what was loaded on one problem."""
    entries = [_Entry(kernel) for kernel in loaded]
    problem, scaled = fit(problem, loaded, scale) if loaded else (problem, None)
    on_gpu = any(kernel.device.type == "cuda" for kernel in loaded)
    peaks = ceilings(loaded[0].device) if on_gpu else None
    with progress_bar(total=(2 + on_gpu) * len(loaded), leave=False, disable=not progress) as bar:
        _build(entries, bar)
        for entry in entries:
            bar.set_description(f"checking {entry.name}")
            _check(entry, problem, seed)
            bar.update()
        if on_gpu:  # elsewhere the check's own run was counted
            _measure(entries, problem, seed, limit_seconds, bar)
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


def _load(kernels: Any, engine: str, baselines: Sequence[str] | None) -> list[Runnable]:
    """Turn what was asked for into runnables, nothing built yet; baselines come last."""
    if kernels is None:
        kernels = catalog()
    elif isinstance(kernels, (str, Path, Runnable)):
        kernels = [kernels]
    kernels = arguments.several(kernels, "kernels")
    named = [asked for asked in kernels if isinstance(asked, str) and ":" in asked]
    loaded: list[Runnable] = []
    for asked in kernels:
        if asked not in named:
            _add(loaded, resolve(asked, engine))
    simulated = any(kernel.simulated for kernel in loaded)
    on_gpu = any(kernel.device.type == "cuda" for kernel in loaded)
    if simulated and (on_gpu or not all(each.simulated or each.library for each in loaded)):
        raise ConvlabError(
            "a simulated kernel cannot be compared with one on a GPU: load all with one engine"
        )
    if baselines is None:
        baselines = BASELINES if on_gpu else []
    for name in (*named, *arguments.several(baselines, "baselines")):
        _add(loaded, resolve(name, "sim" if simulated else engine))
    return loaded


def _add(loaded: list[Runnable], kernel: Runnable) -> None:
    """Append a runnable unless it is there; refuse another one of the same name."""
    twin = next((other for other in loaded if other.name == kernel.name), None)
    if twin is None:
        loaded.append(kernel)
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
    entries: list[_Entry], problem: Problem, seed: int, limit: float, bar: tqdm
) -> None:
    """Time what ran, right or wrong."""
    ran = [entry for entry in entries if entry.report is not None]

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
    kernel, report, timing = entry.kernel, entry.report, entry.timing
    row = {
        "kernel": kernel.name, "title": kernel.title, "class": kernel.precision,
        "engine": kernel.engine, "right": entry.right,
        "error": report.error if report else math.nan,
        "bound": reference.tolerance(kernel.precision, problem.gemm_k),
    }  # fmt: skip
    if on_gpu:
        floor = floor_seconds(problem, kernel.precision, peaks)
        seconds = timing.seconds if timing else math.nan
        row |= {
            "time_ms": seconds * 1e3,
            "with_prepare_ms": (seconds + timing.prepare_seconds) * 1e3 if timing else math.nan,
            "spread_pct": timing.spread * 100 if timing else math.nan,
            "samples": timing.samples if timing else 0,
            "tflops": _ratio(problem.flops, seconds) / 1e12,
            "floor_ms": floor * 1e3, "x_floor": _ratio(seconds, floor),
        }  # fmt: skip
    else:
        counters = (report and report.counters) or {}
        known = report.traffic_bytes if report else None
        traffic = math.nan if known is None else known
        least = kernel.format.min_bytes(problem)
        row |= {
            "traffic_mb": traffic / 1e6, "floor_mb": least / 1e6,
            "x_floor": _ratio(traffic, least),
            "shared_wavefronts": counters.get("shared_wavefronts", math.nan),
            "host_seconds": counters.get("seconds", report.host_seconds if report else math.nan),
        }  # fmt: skip
    return row | {"note": entry.status}


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def _notes(entries: Sequence[_Entry], scaled: str | None, peaks: Ceilings | None) -> list[str]:
    notes, kernels = [], [entry.kernel for entry in entries]
    if peaks is not None:
        notes += [f"on {describe(kernels[0].device)}", f"floors from measured ceilings: {peaks}"]
    elif any(kernel.simulated for kernel in kernels):
        notes.append(
            "on the simulator: traffic is counted, no time is a GPU's; floor: x, w, y moved once"
        )
    elif kernels:
        notes.append("on the CPU: no time is a GPU's")
    reports = [entry.report for entry in entries if entry.report]
    modelled = [r.kernel for r in reports if (r.counters or {}).get("library_bytes")]
    if modelled:
        notes.append(f"cuBLAS's traffic is a model's, 128x128 tiles: {', '.join(modelled)}")
    if scaled:
        notes.append(scaled)
    today = datetime.date.today().isoformat()
    return [*notes, f"{today}, torch {torch.__version__}, Python {platform.python_version()}"]
