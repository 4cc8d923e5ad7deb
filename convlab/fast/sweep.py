"""A grid of tunables over some problems: built, checked, measured; the invalid ones named."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..machine.device import describe
from ..machine.progress import bar as progress_bar
from ..right.check import check
from ..run import worker
from ..run.fit import fit
from ..run.kernel import ENGINES, Kernel, resolve
from ..show import charts
from ..show.plot import Chart
from ..show.result import Table, wrapped
from ..words import arguments
from ..words.errors import BuildError, ConvlabError, ProblemError, UnsupportedError
from ..words.problem import Problem, members
from ..words.problem import problem as named_problem
from .compare import build_all
from .comparison import Costly
from .measure import measure

LIMIT_SECONDS = 1.0  # for measuring one point
_SPARE_SECONDS = 60.0
_MEASURED = {
    "time_ms": "time ms",
    "with_prepare_ms": "with prep. ms",
    "spread_pct": ("± %", "{:.1f}"),
    "samples": "samples",
    "traffic_mb": "traffic MB",
    "shared_wavefronts": ("shared wavefronts", "{:,.0f}"),
    "host_seconds": ("host s", "{:.2f}"),
}


@dataclass(frozen=True, repr=False)
class Sweep(Costly):
    """What a sweep found.

    Attributes
    ----------
    kernel, tunables
        What was swept.
    frame
        One row for each valid point, best first within a problem: problem, one column for each
        tunable, kernel, then time_ms, spread_pct, samples, stable (GPU), or traffic_mb,
        shared_wavefronts, host_seconds (simulator).
    dropped
        One row for each invalid point: problem, the tunables, kernel, kind ("does not build",
        "declined", "failed", "wrong"), reason.
    notes
        Lines: device, scaling.
    wrong
        Names of the points that gave a wrong result.
    engine
        Where it ran: "cuda" or "sim".
    """

    kernel: str
    tunables: dict[str, list[int]]
    frame: pd.DataFrame
    dropped: pd.DataFrame
    notes: tuple[str, ...] = ()
    wrong: tuple[str, ...] = field(default=(), repr=False)
    engine: str = "sim"

    @property
    def ok(self) -> bool:
        """Whether at least one point is valid and none gave a wrong result."""
        return len(self.frame) > 0 and not self.wrong

    @property
    def best(self) -> dict[str, str]:
        """The best point of each problem, as a name that `load` takes.

        The best of many is partly luck: confirm it with `ab`.
        """
        if not len(self.frame):
            return {}
        return self.frame.groupby("problem", sort=False)["kernel"].first().to_dict()

    @property
    def sentence(self) -> str:
        """How many points are valid."""
        points = len(self.frame) + len(self.dropped)
        return f"{self.kernel}: {len(self.frame)} of {points} points valid"

    @property
    def tables(self) -> Sequence[Table]:
        """A row for each valid point."""
        columns = {"problem": "problem"} | {name: name for name in self.tunables} | _MEASURED
        return (Table(self.frame.dropna(axis=1, how="all"), columns),)

    @property
    def details(self) -> Sequence[str]:
        """What was dropped and why; what is not steady; the best."""
        lines = []
        for row in self.dropped.itertuples():
            reason = row.reason if len(row.reason) <= 160 else row.reason[:159] + "…"
            lines += wrapped(f"dropped {row.kernel} on {row.problem}: {row.kind}: {reason}")
        if "stable" in self.frame:
            for row in self.frame[~self.frame["stable"].astype(bool)].itertuples():
                lines.append(f"  {row.kernel}: unsteady: {row.samples} samples until time was up")
        return lines + [f"  best on {problem}: {name}" for problem, name in self.best.items()]

    @property
    def about(self) -> dict[str, Any]:
        """What was swept, what was dropped, and the best."""
        names = ("kernel", "tunables", "dropped", "best")
        return {name: getattr(self, name) for name in names}

    def figure(self) -> Chart:
        """Draw the costs over the tunables."""
        return charts.sweep_chart(self.frame, self.kernel, self.notes)


def sweep(
    kernel: Any,
    tunables: Mapping[str, Iterable[int]],
    problems: Problem | str | Iterable[Problem | str] = "square",
    *,
    engine: str = "auto",
    executor: Executor | None = None,
    seed: int = 0,
    limit_seconds: float = LIMIT_SECONDS,
    progress: bool = True,
    isolate: bool = True,
) -> Sweep:
    """Measure a kernel for every combination of tunables, on every problem.

    All points are built first, several at a time. Each is then checked and measured (L2 cold); one
    that does not build, declines the problem, fails or is wrong is dropped, with the reason.

    >>> result = convlab.sweep("03_smem_tile", {"TILE": [8, 16], "K_TILE": [16, 32]}, ["wide"])
    >>> result.plot()

    Several GPUs: give an executor. Each task is a module-level function with arguments that
    pickle, so any executor does: Dask's ``client.get_executor()``, ``mpi4py.futures.
    MPIPoolExecutor``, ipyparallel's ``view.executor``. A process uses the first GPU that it sees;
    with one process for each of a host's eight GPUs, in a script (not a notebook: a spawned
    process imports the script to find `take_a_gpu`)::

        def take_a_gpu(free):
            os.environ["CUDA_VISIBLE_DEVICES"] = str(free.get())

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            free = spawn.Queue()
            for gpu in range(8):
                free.put(gpu)
            with ProcessPoolExecutor(8, spawn, take_a_gpu, (free,)) as executor:
                print(convlab.sweep("03_smem_tile", {"TILE": [8, 16]}, "wide", executor=executor))

    Do not let two tasks share one GPU at a time: their times would be each other's.

    Parameters
    ----------
    kernel
        A Kernel, or a name, a path, with tunables of its own perhaps: "03_smem_tile@C_TILE=4".
    tunables
        For each name the values to try.
    problems
        Problems, or names or specs of them, one or many, or the name of a set.
    engine
        Where it runs: "cuda", "sim" or "auto".
    executor
        Runs the tasks; None runs them here, one after the other.
    seed, limit_seconds
        Of the data; for measuring one point.
    progress
        Show a progress bar.
    isolate
        Run on a GPU in the worker process, so that a crash costs one point.

    Returns
    -------
    Sweep

    Raises
    ------
    CatalogError, ProblemError
        No such kernel, tunable or problem, or an empty grid.
    """
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(progress, "progress")
    arguments.flag(isolate, "isolate")
    seed = arguments.whole(seed, "seed")
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    if not (executor is None or isinstance(executor, Executor)):
        given = arguments.shown(executor)
        raise ProblemError(f"executor is a concurrent.futures.Executor, not {given}")
    kernel = resolve(kernel, engine)
    if not isinstance(kernel, Kernel):
        raise ProblemError(f"{kernel.name} has no tunables: sweep takes a kernel")
    if not isinstance(tunables, Mapping):
        given = arguments.shown(tunables)
        raise ProblemError(f"tunables are a dict such as {{'TILE': [8, 16]}}, not {given}")
    grid = {name: _values(name, values) for name, values in tunables.items()}
    if not grid:
        raise ProblemError("no tunables to sweep: give at least one, such as TILE=8,16")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    kernels = [kernel.tuned(_spelt(point)) for point in points]
    asked = members(problems)
    chosen = [named_problem(problems)] if asked is None else asked
    fitted = [fit(each, [kernel]) for each in chosen]
    notes = tuple(dict.fromkeys(note for _, note in fitted if note))
    quiet = {"leave": False, "disable": not progress}
    errors = list(progress_bar(build_all(kernels), "building", len(kernels), **quiet))

    rows: list[dict[str, Any]] = []
    tasks = []
    for (problem, _), (point, tuned, error) in itertools.product(
        fitted, zip(points, kernels, errors, strict=True)
    ):
        row = {"problem": problem.label, **point, "kernel": tuned.name}
        rows.append(row)
        if error is not None:
            row |= {"kind": "does not build", "reason": _reason(error)}
        else:
            tasks.append((row, (tuned, problem, seed, limit_seconds, isolate)))
    with progress_bar(total=len(tasks), desc="measuring", **quiet) as bar:
        if executor is None:
            for row, task in tasks:
                row |= measure_point(*task)
                bar.update()
        else:
            futures = {executor.submit(measure_point, *task): row for row, task in tasks}
            for future in as_completed(futures):
                futures[future].update(future.result())
                bar.update()
    where = f"on {describe(kernel.device)}" if kernel.device.type == "cuda" else (
        "simulated: counters, no time is a GPU's"
    )  # fmt: skip
    return _result(kernel, grid, rows, (*notes, where))


def measure_point(
    kernel: Kernel, problem: Problem, seed: int, limit_seconds: float, isolate: bool
) -> dict[str, Any]:
    """Check and measure one point: the task that an executor is given; returns part of a row."""
    try:
        report = check(kernel, problem, seed=seed, isolate=isolate)
        if not report.ok:
            return {"kind": "wrong", "reason": "; ".join(report.failures)}
        if kernel.simulated:  # the check's own run was counted
            counters = report.counters or {}
            return {
                "traffic_mb": (report.traffic_bytes or math.nan) / 1e6,
                "shared_wavefronts": counters.get("shared_wavefronts", math.nan),
                "host_seconds": counters.get("seconds", report.host_seconds),
            }
        options = {"seed": seed, "limit_seconds": limit_seconds}
        if isolate:
            limit = _SPARE_SECONDS + 3 * limit_seconds
            timing = worker.call(measure, kernel, problem, time_limit=limit, **options)
        else:
            timing = measure(kernel, problem, **options)
    except ConvlabError as error:
        kinds = {UnsupportedError: "declined", BuildError: "does not build"}
        return {"kind": kinds.get(type(error), "failed"), "reason": _reason(error)}
    return {
        "time_ms": 1e3 * timing.seconds, "spread_pct": 100 * timing.spread,
        "samples": timing.samples, "stable": timing.stable,
        "with_prepare_ms": 1e3 * (timing.seconds + timing.prepare_seconds),
    }  # fmt: skip


def _values(name: str, values: Iterable[int]) -> list[int]:
    given = [values] if isinstance(values, int) else arguments.several(values, f"{name}'s values")
    if not given or not all(isinstance(value, int) for value in given):
        shown = arguments.shown(given)
        raise ProblemError(f"the values of {name} are to be whole numbers, at least one: {shown}")
    return list(dict.fromkeys(given))


def _spelt(point: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in point.items())


def _reason(error: Exception) -> str:
    """What an error says, in a line: of a compiler's log the failed static_assert."""
    text = str(error)
    asserted = re.search(r"static assertion failed(?: with|:)? *\"?([^\"\n]+)", text)
    if asserted:
        return f"static_assert: {asserted[1].strip()}"
    lines = [line.strip() for line in text.strip().split("\n")]
    if isinstance(error, BuildError) and len(lines) > 1:
        return lines[1]  # the first one says no more than that it did not compile
    return lines[0]


def _result(
    kernel: Kernel, grid: dict[str, list[int]], rows: list[dict[str, Any]], notes: tuple[str, ...]
) -> Sweep:
    keys = ["problem", *grid, "kernel"]
    valid = pd.DataFrame([row for row in rows if "kind" not in row])
    dropped = pd.DataFrame(
        [row for row in rows if "kind" in row], columns=[*keys, "kind", "reason"]
    )
    if len(valid):
        cost = "time_ms" if "time_ms" in valid else "traffic_mb"
        groups = [group for _, group in valid.groupby("problem", sort=False)]
        best_first = [group.sort_values(cost, kind="stable") for group in groups]
        valid = pd.concat(best_first, ignore_index=True)
    else:
        valid = pd.DataFrame(columns=keys)
    valid.attrs["tunables"] = list(grid)
    wrong = tuple(row["kernel"] for row in rows if row.get("kind") == "wrong")
    return Sweep(kernel.name, grid, valid, dropped, notes, wrong, kernel.engine)
