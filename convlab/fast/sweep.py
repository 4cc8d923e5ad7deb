"""A grid of tunables over some problems: built, checked, measured; the invalid ones named."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..machine.device import describe
from ..machine.progress import bar as progress_bar
from ..right.check import check, fit, plain, resolve
from ..run.kernel import Kernel
from ..show import plot
from ..words.errors import BuildError, ConvlabError, ProblemError, UnsupportedError
from ..words.problem import PROBLEM_SETS, Problem
from ..words.problem import problem as named_problem
from ..words.problem import problems as named_problems
from .compare import build_all
from .measure import measure

LIMIT_SECONDS = 1.0  # for measuring one point
_SPARE_SECONDS = 60.0


@dataclass(frozen=True, repr=False)
class Sweep:
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
    engine
        Where it ran: "cuda" or "sim".
    """

    kernel: str
    tunables: dict[str, list[int]]
    frame: pd.DataFrame
    dropped: pd.DataFrame
    notes: tuple[str, ...] = ()
    _wrong: tuple[str, ...] = field(default=(), repr=False)
    engine: str = "sim"

    @property
    def cost(self) -> str:
        """The column of `frame` that is the cost here: "time_ms", or "traffic_mb" off a GPU."""
        return "time_ms" if self.engine == "cuda" else "traffic_mb"

    @property
    def cost_label(self) -> str:
        """What `cost` is, in words with its unit: an axis's label."""
        return plot.COST_LABELS[self.cost]

    @property
    def ok(self) -> bool:
        """Whether at least one point is valid and none gave a wrong result."""
        return len(self.frame) > 0 and not self._wrong

    @property
    def best(self) -> dict[str, str]:
        """The best point of each problem, as a name that `load` takes.

        The best of many is partly luck: confirm it with `ab`.
        """
        if not len(self.frame):
            return {}
        return self.frame.groupby("problem", sort=False)["kernel"].first().to_dict()

    def __str__(self) -> str:
        points = len(self.frame) + len(self.dropped)
        lines = [f"{self.kernel}: {len(self.frame)} of {points} points valid"]
        if len(self.frame):
            shown = self.frame.drop(columns="kernel").dropna(axis=1, how="all")
            lines.append(shown.to_string(index=False, float_format="{:.4g}".format))
        for row in self.dropped.itertuples():
            reason = row.reason if len(row.reason) <= 160 else row.reason[:159] + "…"
            lines.append(f"dropped {row.kernel} on {row.problem}: {row.kind}: {reason}")
        lines += [f"best on {problem}: {name}" for problem, name in self.best.items()]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<b>{html.escape(str(self).partition(chr(10))[0])}</b>"]
        for frame in (self.frame, self.dropped):
            if len(frame):
                parts.append(frame.to_html(index=False, border=0, escape=True))
        return "".join(parts) + "<br>".join(map(html.escape, self.notes))

    def plot(self, path: str | Path | None = None) -> plot.Chart:
        """Draw the costs over the tunables; write the figure if a path is given."""
        chart = plot.sweep_chart(self.frame, self.kernel, self.notes)
        if path is not None:
            chart.save(path)
        return chart

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold."""
        rows, dropped = (
            [{key: plain(value) for key, value in row.items()} for row in frame.to_dict("records")]
            for frame in (self.frame, self.dropped)
        )
        return {
            "kernel": self.kernel, "tunables": self.tunables, "ok": self.ok, "rows": rows,
            "dropped": dropped, "best": self.best, "notes": list(self.notes),
        }  # fmt: skip


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
    kernel = resolve(kernel, engine)
    if not isinstance(kernel, Kernel):
        raise ProblemError(f"{kernel.name} has no tunables: sweep takes a kernel")
    grid = {name: _values(name, values) for name, values in tunables.items()}
    if not grid:
        raise ProblemError("no tunables to sweep: give at least one, such as TILE=8,16")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    kernels = [_tuned(kernel, point) for point in points]
    fitted = [fit(each, [kernel]) for each in _problems(problems)]
    notes = tuple(dict.fromkeys(note for _, note in fitted if note))
    errors = _build_all(kernels, progress)

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
    with progress_bar(total=len(tasks), desc="measuring", leave=False, disable=not progress) as bar:
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
        report = check(kernel, problem, seed=seed, **({} if isolate else {"isolate": False}))
        if not report.ok:
            return {"kind": "wrong", "reason": "; ".join(report.failures)}
        if kernel.device.type == "cuda" and isolate:
            from ..run import worker

            timing = worker.call(
                measure, kernel, problem, seed=seed, limit_seconds=limit_seconds,
                time_limit=_SPARE_SECONDS + 3 * limit_seconds,
            )  # fmt: skip
        else:
            timing = measure(kernel, problem, seed=seed, limit_seconds=limit_seconds)
    except UnsupportedError as error:
        return {"kind": "declined", "reason": _reason(error)}
    except BuildError as error:
        return {"kind": "does not build", "reason": _reason(error)}
    except ConvlabError as error:
        return {"kind": "failed", "reason": _reason(error)}
    if timing.traffic_bytes is None:
        return {
            "time_ms": 1e3 * timing.seconds, "spread_pct": 100 * timing.spread,
            "samples": timing.samples, "stable": timing.stable,
        }  # fmt: skip
    return {
        "traffic_mb": timing.traffic_bytes / 1e6, "shared_wavefronts": timing.shared_wavefronts,
        "host_seconds": timing.host_seconds,
    }  # fmt: skip


def _values(name: str, values: Iterable[int]) -> list[int]:
    chosen = list(dict.fromkeys([values] if isinstance(values, int) else values))
    if not chosen or not all(isinstance(value, int) for value in chosen):
        raise ProblemError(f"the values of {name} are to be whole numbers, at least one: {chosen}")
    return chosen


def _problems(asked: Problem | str | Iterable[Problem | str]) -> list[Problem]:
    if isinstance(asked, str):
        return named_problems(asked) if asked in PROBLEM_SETS else [named_problem(asked)]
    return [asked] if isinstance(asked, Problem) else [named_problem(each) for each in asked]


def _tuned(kernel: Kernel, point: Mapping[str, int]) -> Kernel:
    """The kernel, as its source is now, with more tunables set."""
    return Kernel(
        kernel.name.partition("@")[0],
        path=kernel.path,
        text=kernel.source,
        engine=kernel.engine,
        defines=kernel.defines | point,
        workspace_limit=kernel.workspace_limit,
        time_limit=kernel.time_limit,
    )


def _build_all(kernels: Sequence[Kernel], progress: bool) -> list[BuildError | None]:
    """Build all; return what went wrong with each."""
    errors: list[BuildError | None] = [None] * len(kernels)
    bar = progress_bar(
        build_all(kernels), "building", len(kernels), leave=False, disable=not progress
    )
    for i, error in bar:
        errors[i] = error
    return errors


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
        order = {problem: i for i, problem in enumerate(dict.fromkeys(valid["problem"]))}
        ranks = valid["problem"].map(order)
        valid = valid.assign(_rank=ranks).sort_values(["_rank", cost], kind="stable")
        valid = valid.drop(columns="_rank").reset_index(drop=True)
    else:
        valid = pd.DataFrame(columns=keys)
    valid.attrs["tunables"] = list(grid)
    wrong = tuple(row["kernel"] for row in rows if row.get("kind") == "wrong")
    return Sweep(kernel.name, grid, valid, dropped, notes, wrong, kernel.engine)
