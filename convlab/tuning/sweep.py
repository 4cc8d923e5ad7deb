"""Measure a kernel for every combination of its tunables, and report the invalid ones."""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from typing import Any

import pandas as pd

from ..core import arguments, forecast
from ..core.cost import COUNTED, MEASURED, CostKind
from ..core.errors import ConvlabError, ProblemError
from ..core.kernel.kernel import ENGINES, Kernel, resolve
from ..core.kernel.provenance import made_of
from ..core.kernel.runnable import Runnable
from ..core.kernel.runner import runner
from ..core.kernel.shrink_to_fit import fit
from ..core.kernel.tunables import tunables as known_tunables
from ..core.machine.device import Gpu, describe, find_gpu
from ..core.machine.progress import bar as progress_bar
from ..core.problem.named import members
from ..core.problem.problem import Problem
from ..core.timing.compare import compare, counted_cost
from ..core.timing.comparison import SAMPLED
from ..core.timing.sides import build_all, reason
from .sweep_result import Sweep

# The cell of a row that holds its samples, until `_samples` collects them.
_SAMPLES = "samples_ms"
# The most seconds to measure one point, and to check it on a GPU.
LIMIT_SECONDS = 1.0
_CHECK_SECONDS = 60.0
# The problem in the rows of a runnable that is measured on a task of its own.
OWN_TASK = "its own task"
# Columns of a comparison that are the same for all valid points.
_SAME_FOR_ALL = ["title", "class", "engine", "correct", "bound", _SAMPLES]

# A row of the result, and the arguments of `measure_point`, which returns its other cells.
Task = tuple[dict[str, Any], tuple[Kernel, Problem, int, float, tuple[Problem, Gpu] | None]]


def sweep(
    kernel: Any,
    tunables: Mapping[str, Iterable[int]],
    problems: Problem | str | Iterable[Problem | str] | None = None,
    *,
    engine: str = "auto",
    executor: Executor | None = None,
    seed: int = 0,
    limit_seconds: float = LIMIT_SECONDS,
    progress: bool = True,
    gpu: Gpu | str | None = None,
) -> Sweep:
    """Measure a kernel for every combination of tunables, on every problem.

    All points are built first, several at a time. Each point is then checked and measured as in
    `compare`. On a GPU this happens in a separate process, so that a crash loses one point only. A
    point is dropped, with the reason, if it does not build, does not support the problem, fails or
    is incorrect.

    Without a GPU, a problem that is too large for the simulator is checked on a smaller one. Costs are
    those of the whole problem: traffic is counted on a sample of its blocks, and with nvcc the time of
    each valid point is predicted. Points are ordered by time, or without times by traffic.

    >>> result = convlab.sweep("03_smem_tile", {"TILE": [8, 16], "K_TILE": [16, 32]}, ["wide"])
    >>> result.plot()

    To use several GPUs, pass an executor. The tasks can be pickled, so any executor works: Dask's
    ``client.get_executor()``, ``mpi4py.futures.MPIPoolExecutor``, ipyparallel's ``view.executor``.
    If one of its processes dies, only that process's point is dropped. A process uses the first GPU
    that it sees. The example below runs one process on each of eight GPUs. It must be a script, not
    a notebook, because a spawned process imports the script to find `take_a_gpu`::

        def take_a_gpu(free):
            os.environ["CUDA_VISIBLE_DEVICES"] = str(free.get())

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            free = spawn.Queue()
            for gpu in range(8):
                free.put(gpu)
            with ProcessPoolExecutor(8, spawn, take_a_gpu, (free,)) as executor:
                convlab.sweep("03_smem_tile", {"TILE": [8, 16]}, "wide", executor=executor)

    Two tasks must never share a GPU at the same time, because each slows the other down.

    Parameters
    ----------
    kernel : a Kernel, or a name, a path, perhaps with tunables: "03_smem_tile@C_TILE=4".
    tunables : for each name the values to try.
    problems : Problems, or names or specs of them, one or many, or the name of a set. The default is
        "square", and for a kernel in a Python file the task of that file.
    engine : where the kernel runs: "cuda", "sim" or "auto".
    executor : runs the tasks; None runs them in this process, one after the other.
    seed : the seed of the data.
    limit_seconds : the most time to measure one point, in seconds.
    progress : show a progress bar.
    gpu : the GPU that times are predicted for, by name: one of `machine.device.GPUS`, also for a
        small problem; the default is that of this machine, or the last of the list. It is an error
        if times are measured.

    Returns
    -------
    Sweep

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel, tunable or problem, or the grid is empty.
    """
    arguments.choice(engine, "engine", ENGINES)
    arguments.flag(progress, "progress")
    seed = arguments.whole(seed, "seed")
    limit_seconds = arguments.real(limit_seconds, "limit_seconds", above=0)
    if not (executor is None or isinstance(executor, Executor)):
        shown = arguments.shown(executor)
        raise ProblemError(f"executor is a concurrent.futures.Executor, not {shown}")
    kernel = resolve(kernel, engine)
    is_kernel = isinstance(kernel, Kernel)
    # Whatever has no tunables raises.
    kernel.tuned({})
    if gpu is not None:
        forecast.require()
        if not kernel.counts or not is_kernel:
            raise ProblemError('gpu= predicts times of simulated kernels: use engine="sim"')
    predicts_for = find_gpu(gpu)
    predicts = is_kernel and kernel.counts and forecast.available()
    grid = _grid(tunables, kernel)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    kernels = [kernel.tuned(point) for point in points]
    if problems is None and not is_kernel:
        return _of_own_task(kernel, grid, points, kernels, progress)
    wholes = [kernel.asked(each) for each in members(problems or "square")[0]]
    fitted = [fit(problem, [kernel]) for problem in wholes]
    notes = list(dict.fromkeys(note for _, note in fitted if note))
    quiet = {"leave": False, "disable": not progress}
    beside = []
    if predicts:
        beside = [
            functools.partial(forecast.prepare, problem=whole, gpu=predicts_for)
            for whole, (_, scaled) in zip(wholes, fitted, strict=True)
            if scaled
        ]
    with build_all(kernels, beside) as building:
        builds = list(progress_bar(building, "building", len(kernels), **quiet))

    rows: list[dict[str, Any]] = []
    tasks: list[Task] = []
    for whole, (problem, scaled) in zip(wholes, fitted, strict=True):
        predicted = None
        if predicts and (scaled or gpu is not None):
            predicted = (whole, predicts_for)
            if not forecast.missing():
                notes.append(f"predicted for {predicts_for.name} at full size: {whole.label}")
            if scaled:
                notes.append(f"{SAMPLED}: {whole.label}")
        elif predicts:
            notes.append(forecast.OF_A_SMALL_PROBLEM)
        for point, tuned, built in zip(points, kernels, builds, strict=True):
            label = (whole if predicted else problem).label
            row = {"problem": label, **point, "kernel": tuned.name}
            rows.append(row)
            if built.error is None:
                tasks.append((row, (tuned, problem, seed, limit_seconds, predicted)))
            else:
                note = f"does not build: {reason(built.error, tuned.name)}"
                row.update(correct=False, note=note)
    measured = _measure(tasks, executor)
    for row, cells in progress_bar(measured, "measuring", len(tasks), **quiet):
        row.update(cells)
    if kernel.counts and (cause := forecast.missing()):
        notes.append(cause)
    here = describe(kernel.device)
    notes.append(f"on {here}" if here else "on the simulator: no GPU time is measured")
    kind = COUNTED if kernel.counts else MEASURED
    built_kernels = [each for each, built in zip(kernels, builds, strict=True) if not built.error]
    return Sweep(
        kernel.name,
        grid,
        _valid(rows, list(grid), kind),
        _dropped(rows, list(grid)),
        tuple(notes),
        kind,
        problems=tuple(wholes if predicts else (problem for problem, _ in fitted)),
        samples=_samples(rows),
        made=made_of(built_kernels),
    )


def _of_own_task(
    kernel: Runnable,
    grid: dict[str, list[int]],
    points: Sequence[dict[str, int]],
    kernels: Sequence[Runnable],
    progress: bool,
) -> Sweep:
    """Return the sweep of a runnable on a task of its own, such as a kernel in a Python file."""
    kind = COUNTED if kernel.counts else MEASURED
    rows = []
    each = progress_bar(
        zip(points, kernels, strict=True),
        "measuring",
        len(points),
        leave=False,
        disable=not progress,
    )
    for point, tuned in each:
        row = {"problem": OWN_TASK, **point, "kernel": tuned.name, "note": ""}
        try:
            kind, value = tuned.own_task.cost()
            row |= {"correct": True, kind.column: value}
        except ConvlabError as error:
            row |= {"correct": False, "note": f"failed: {reason(error, tuned.name)}"}
        rows.append(row)
    here = describe(kernel.device)
    where = f"on {here}" if here else "on the simulator: no GPU time is measured"
    names = list(grid)
    return Sweep(
        kernel.name, grid, _valid(rows, names, kind), _dropped(rows, names), (where,), kind
    )


def _measure(tasks: list[Task], executor: Executor | None) -> Iterator[tuple[dict, dict]]:
    """Yield each task's row and its other cells, as soon as they are known."""
    if executor is None:
        for row, point in tasks:
            yield row, measure_point(*point)
        return
    futures = {executor.submit(measure_point, *point): row for row, point in tasks}
    for future in as_completed(futures):
        try:
            cells = future.result()
        except Exception as error:
            # The executor's own error: a process died, or the task was cancelled.
            note = f"failed: {type(executor).__name__} lost it: {error!r}"
            cells = {"correct": False, "note": note}
        yield futures[future], cells


def measure_point(
    kernel: Kernel,
    problem: Problem,
    seed: int,
    limit_seconds: float,
    predicted: tuple[Problem, Gpu] | None = None,
) -> dict[str, Any]:
    """Return the cells of one point. An executor runs this function.

    `predicted` is the problem at full size and the GPU that a time is predicted for, or None. With it,
    costs are of that problem.
    """
    options = {
        "scale": None,
        "baselines": (),
        "seed": seed,
        "limit_seconds": limit_seconds,
        "progress": False,
    }
    try:
        if kernel.counts or kernel.own_runner is not None:
            comparison = compare(kernel, problem, **options)
        else:
            time_limit = _CHECK_SECONDS + 3 * limit_seconds
            comparison = runner().call(compare, kernel, problem, time_limit=time_limit, **options)
    except ConvlabError as error:
        return {"correct": False, "note": f"failed: {reason(error, kernel.name)}"}
    cells = comparison.frame.to_dict("records")[0]
    if predicted is not None and cells["correct"]:
        time = forecast.forecast(kernel, *predicted)
        cells["note"] = "; ".join(filter(None, (cells["note"], time.warning)))
        if not forecast.missing():
            cells["predicted_ms"] = time.ms
        if time.is_timed:
            cells["predicted_within"] = time.error or forecast.ERROR
        if predicted[0] != problem:
            floor = kernel.format.min_bytes(predicted[0]) / 1e6
            cost = counted_cost(time.counters, floor, cells["host_seconds"])
            cells |= cost.cells | {"sampled": time.sampled}
    return cells | {_SAMPLES: list(comparison.samples["ms"]) if len(comparison.samples) else []}


def _samples(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return a row for each measured sample of the points, in ms."""
    samples = []
    for row in rows:
        samples += [(row["problem"], row["kernel"], ms) for ms in row.get(_SAMPLES, ())]
    return pd.DataFrame(samples, columns=["problem", "kernel", "ms"])


def _grid(tunables: Mapping[str, Iterable[int]], kernel: Runnable) -> dict[str, list[int]]:
    """Return the tunables with their values as lists, without repetitions."""
    if not isinstance(tunables, Mapping):
        shown = arguments.shown(tunables)
        raise ProblemError(f"tunables are a dict such as {{'TILE': [8, 16]}}, not {shown}")
    grid = {}
    for name, values in tunables.items():
        if isinstance(values, int):
            values = [values]
        whole = []
        for value in arguments.several(values, f"{name}'s values"):
            whole.append(arguments.whole(value, f"a value of {name}"))
        grid[name] = list(dict.fromkeys(whole))
    if not grid or not all(grid.values()):
        text = "nothing to sweep: give at least one value to each tunable: TILE=8,16"
        if isinstance(kernel, Kernel):
            names = ", ".join(known_tunables(kernel.file.whole)) or "no tunable"
            text += f"; {kernel.name} has: {names}"
        raise ProblemError(text)
    return grid


def _valid(rows: list[dict[str, Any]], names: list[str], kind: CostKind) -> pd.DataFrame:
    """Return the valid points, best first within a problem; `names` are the tunables'."""
    valid = [row for row in rows if row["correct"]]
    if valid:
        order = [row["problem"] for row in rows]
        valid.sort(key=lambda row: (order.index(row["problem"]), *_rank(row, kind)))
        frame = pd.DataFrame(valid).drop(columns=_SAME_FOR_ALL, errors="ignore")
    else:
        frame = pd.DataFrame(columns=["problem", *names, "kernel"])
    frame.attrs["tunables"] = names
    return frame


def _rank(row: dict[str, Any], kind: CostKind) -> tuple[float, float]:
    """Return what points are ordered by: the predicted time if there is one, then the cost."""
    ms = row.get("predicted_ms", math.nan)
    return (math.inf if math.isnan(ms) else ms), row[kind.column]


def _dropped(rows: list[dict[str, Any]], names: list[str]) -> pd.DataFrame:
    """Return the dropped points, with the kind of fault and the reason."""
    columns = ["problem", *names, "kernel"]
    dropped = []
    for row in rows:
        if not row["correct"]:
            kind, why = row["note"].split(": ", 1)
            dropped.append([*(row.get(column) for column in columns), kind, why])
    return pd.DataFrame(dropped, columns=[*columns, "kind", "reason"])
