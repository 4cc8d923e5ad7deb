"""A grid of tunables over some problems: built, checked, measured; the invalid ones named."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core import arguments
from ..core.cost import COUNTED, MEASURED, CostKind
from ..core.errors import ConvlabError, ProblemError
from ..core.kernel.kernel import ENGINES, Kernel, resolve
from ..core.kernel.runner import runner
from ..core.kernel.shrink_to_fit import fit
from ..core.machine.device import describe
from ..core.machine.progress import bar as progress_bar
from ..core.problem.named import members
from ..core.problem.problem import Problem
from ..core.show import charts
from ..core.show.plot import Chart
from ..core.show.result import Table
from ..core.timing.compare import compare
from ..core.timing.comparison import COSTS, Costly
from ..core.timing.sides import build_all, reason

LIMIT_SECONDS = 1.0  # for measuring one point
_SPARE_SECONDS = 60.0  # for checking it
_ALIKE = ["title", "class", "engine", "right", "bound"]  # of all valid points
_Task = tuple[dict[str, Any], tuple]  # a row, and `measure_point`'s arguments for it


@dataclass(frozen=True, repr=False)
class Sweep(Costly):
    """What a sweep found.

    Attributes
    ----------
    kernel, tunables : what was swept.
    frame : one row for each valid point, best first within a problem: problem, one column for each
        tunable, kernel, then those of a `Comparison` that differ: error, costs, floor, note.
    dropped : one row for each invalid point: problem, the tunables, kernel, kind ("does not
        build", "declines", "failed", "wrong", "caught"), reason.
    notes : lines: device, scaling.
    kind : what the cost is: measured time, or counted traffic.
    """

    kernel: str
    tunables: dict[str, list[int]]
    frame: pd.DataFrame
    dropped: pd.DataFrame
    notes: tuple[str, ...] = ()
    kind: CostKind = COUNTED

    @property
    def ok(self) -> bool:
        """Whether at least one point is valid and none gave a wrong result."""
        return len(self.frame) > 0 and not {"wrong", "caught"} & set(self.dropped["kind"])

    declined = property(lambda self: self.frame.empty and set(self.dropped["kind"]) == {"declines"})

    @property
    def best(self) -> dict[str, str]:
        """The best point of each problem, as a name that `load` takes.

        The best of many is partly luck: confirm it with `ab`.
        """
        return self.frame.groupby("problem", sort=False)["kernel"].first().to_dict()

    @property
    def sentence(self) -> str:
        points = len(self.frame) + len(self.dropped)
        return f"{self.kernel}: {len(self.frame)} of {points} points valid"

    @property
    def tables(self) -> Sequence[Table]:
        columns = {name: name for name in ("problem", *self.tunables)}
        columns |= COSTS | {"samples": "samples"}
        return (Table(self.frame.dropna(axis=1, how="all"), columns),)

    @property
    def details(self) -> Sequence[str]:
        """What was dropped and why; what was noted; the best."""
        lines = []
        for row in self.dropped.itertuples():
            why = row.reason if len(row.reason) <= 160 else row.reason[:159] + "…"
            lines.append(f"  dropped {row.kernel} on {row.problem}: {row.kind}: {why}")
        lines += [f"  {row.kernel}: {row.note}" for row in self.frame.itertuples() if row.note]
        return lines + [f"  best on {problem}: {name}" for problem, name in self.best.items()]

    @property
    def about(self) -> dict[str, Any]:
        names = ("kernel", "tunables", "dropped", "best")
        return {name: getattr(self, name) for name in names}

    def figure(self) -> Chart:
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
) -> Sweep:
    """Measure a kernel for every combination of tunables, on every problem.

    All points are built first, several at a time. Each is then checked and measured as `compare`
    does, on a GPU in the worker process, so that a crash costs one point; one that does not build,
    declines the problem, fails or is wrong is dropped, with the reason.

    >>> result = convlab.sweep("03_smem_tile", {"TILE": [8, 16], "K_TILE": [16, 32]}, ["wide"])
    >>> result.plot()

    Several GPUs: give an executor. Its tasks pickle, so any does: Dask's
    ``client.get_executor()``, ``mpi4py.futures.MPIPoolExecutor``, ipyparallel's ``view.executor``.
    A point that it loses, with a process that died, is dropped, and the others stay.
    A process uses the first GPU that it sees; with one for each of a host's eight GPUs, in a script
    (not a notebook: a spawned process imports the script to find `take_a_gpu`)::

        def take_a_gpu(free):
            os.environ["CUDA_VISIBLE_DEVICES"] = str(free.get())

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            free = spawn.Queue()
            for gpu in range(8):
                free.put(gpu)
            with ProcessPoolExecutor(8, spawn, take_a_gpu, (free,)) as executor:
                convlab.sweep("03_smem_tile", {"TILE": [8, 16]}, "wide", executor=executor)

    Do not let two tasks share one GPU at a time: their times would be each other's.

    Parameters
    ----------
    kernel : a Kernel, or a name, a path, perhaps with tunables: "03_smem_tile@C_TILE=4".
    tunables : for each name the values to try.
    problems : Problems, or names or specs of them, one or many, or the name of a set.
    engine : where it runs: "cuda", "sim" or "auto".
    executor : runs the tasks; None runs them here, one after the other.
    seed, limit_seconds : of the data; for measuring one point.
    progress : show a progress bar.

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
    seed = arguments.whole(seed, "seed")
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    if not (executor is None or isinstance(executor, Executor)):
        given = arguments.shown(executor)
        raise ProblemError(f"executor is a concurrent.futures.Executor, not {given}")
    kernel = resolve(kernel, engine)
    if not isinstance(kernel, Kernel):
        raise ProblemError(f"{kernel.name} has no tunables: sweep takes a kernel")
    grid = _grid(tunables)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    kernels = [kernel.tuned(point) for point in points]
    fitted = [fit(each, [kernel]) for each in members(problems)[0]]
    notes = dict.fromkeys(note for _, note in fitted if note)
    quiet = {"leave": False, "disable": not progress}
    with build_all(kernels) as building:
        errors = list(progress_bar(building, "building", len(kernels), **quiet))

    rows: list[dict[str, Any]] = []
    tasks: list[_Task] = []
    for problem, _ in fitted:
        for point, tuned, error in zip(points, kernels, errors, strict=True):
            rows.append({"problem": problem.label, **point, "kernel": tuned.name})
            if error is not None:
                why = f"does not build: {reason(error, tuned.name)}"
                rows[-1] |= {"right": False, "note": why}
            else:
                tasks.append((rows[-1], (tuned, problem, seed, limit_seconds)))
    done = _done(tasks, executor)
    for row, found in progress_bar(done, "measuring", len(tasks), **quiet):
        row |= found
    gpu = describe(kernel.device)
    where = f"on {gpu}" if gpu else "simulated: counters, no time is a GPU's"
    kind = COUNTED if kernel.counts else MEASURED
    frames = _frames(rows, list(grid), kind)
    return Sweep(kernel.name, grid, *frames, (*notes, where), kind)


def _done(tasks: list[_Task], executor: Executor | None) -> Iterator[tuple[dict, dict]]:
    """Yield each row and what was found for it, as soon as it is known."""
    if executor is None:
        yield from ((row, measure_point(*task)) for row, task in tasks)
        return
    futures = {executor.submit(measure_point, *task): row for row, task in tasks}
    for future in as_completed(futures):
        try:
            found = future.result()
        except Exception as error:  # the executor's own: a process that died, a task given up
            note = f"failed: {type(executor).__name__} lost it: {error!r}"
            found = {"right": False, "note": note}
        yield futures[future], found


def measure_point(
    kernel: Kernel, problem: Problem, seed: int, limit_seconds: float
) -> dict[str, Any]:
    """Compare one point with nothing: the task that an executor is given; returns its row."""
    options = {"scale": None, "baselines": (), "seed": seed, "limit_seconds": limit_seconds}
    options |= {"progress": False}
    try:
        if kernel.counts:
            found = compare(kernel, problem, **options)
        else:
            limit = _SPARE_SECONDS + 3 * limit_seconds
            found = runner().call(compare, kernel, problem, time_limit=limit, **options)
    except ConvlabError as error:
        return {"right": False, "note": f"failed: {reason(error, kernel.name)}"}
    return found.frame.to_dict("records")[0]


def _grid(tunables: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    if not isinstance(tunables, Mapping):
        given = arguments.shown(tunables)
        raise ProblemError(f"tunables are a dict such as {{'TILE': [8, 16]}}, not {given}")
    grid = {}
    for name, given in tunables.items():
        values = [given] if isinstance(given, int) else arguments.several(given, f"{name}'s values")
        whole = (arguments.whole(value, f"a value of {name}") for value in values)
        grid[name] = list(dict.fromkeys(whole))
    if not grid or not all(grid.values()):
        raise ProblemError("nothing to sweep: give at least one value to each tunable: TILE=8,16")
    return grid


def _frames(
    rows: list[dict[str, Any]], names: list[str], kind: CostKind
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The valid points, best first within a problem, and those dropped."""
    keys = ["problem", *names, "kernel"]
    labels = [row["problem"] for row in rows]
    valid = [row for row in rows if row["right"]]
    cost = kind.column
    valid.sort(key=lambda row: (labels.index(row["problem"]), row[cost]))
    frame = pd.DataFrame(valid, columns=None if valid else keys)
    frame = frame.drop(columns=_ALIKE, errors="ignore")
    frame.attrs["tunables"] = names
    dropped = [
        [*map(row.get, keys), *row["note"].split(": ", 1)] for row in rows if not row["right"]
    ]
    return frame, pd.DataFrame(dropped, columns=[*keys, "kind", "reason"])
