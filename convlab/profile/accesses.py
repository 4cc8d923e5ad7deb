"""Which addresses the lanes of a warp touch: recorded on the simulator, as data and drawn.

Only the block that is asked for runs, so that the headline problems can be looked into on a laptop.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ..core.arguments import several, whole
from ..core.errors import ProblemError
from ..core.kernel.kernel import Kernel, load
from ..core.problem.format import Storage
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from ..core.show.plot import Chart
from . import figures
from .counting import simulate

LIMIT = 400_000  # requests that are kept
COLUMNS = [
    "launch",
    "kernel",
    "line",
    "space",
    "kind",
    "array",
    "execution",
    "lane",
    "index",
    "byte",
    "bytes",
]
Block = tuple[int, int, int]


def accesses(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    *,
    block: Block = (0, 0, 0),
    warp: int | None = 0,
) -> pd.DataFrame:
    """Record every memory request of one warp on the simulator, lane by lane.

    Of `block`, blockIdx (x, y, z), of each ``__global__`` function's first launch: of its threads
    32 * `warp` to 32 * `warp` + 31, counted with x first, or for None of all. The problem is not
    scaled down.

    Returns
    -------
    DataFrame
        A row for each lane that took part in a request, in the order of the requests: ``launch``
        (from 0) and ``kernel`` (the ``__global__`` function), ``line`` of the source (0: of
        another file), ``space`` ("global", "shared"), ``kind`` ("load", "store", "atomic"),
        ``array``, ``execution`` (the how manieth request of that launch, line, kind and array, from
        0), ``lane``, ``index`` of the element in the flat array, ``byte`` in the array, and
        ``bytes`` that the lane moves.

    Raises
    ------
    ProblemError
        No launch has that block or warp, or there are more than `LIMIT` requests.
    UnsupportedError, LaunchError
        The kernel cannot do the problem, or does something that a GPU would not forgive.
    """
    kernel = _simulated(kernel)
    problem = named_problem(problem)
    block = tuple(whole(n, "each of block's x, y, z", least=0) for n in several(block, "block"))
    if len(block) != 3:
        raise ProblemError(f"block is {block}: give it as (x, y, z)")
    kernel.accept(problem)
    which = -1 if warp is None else whole(warp, "warp", least=0)
    trace = simulate(kernel, problem, record=(*block, which, LIMIT))
    launches = trace.launches
    if not any(all(b < g for b, g in zip(block, n["grid"], strict=True)) for n in launches):
        grids = " and ".join(f"{n['grid']} ({n['kernel']})" for n in launches)
        raise ProblemError(f"no launch has a block {block}: their grids are {grids or 'none'}")
    warps = max(math.ceil(math.prod(n["block"]) / 32) for n in launches)
    if which >= warps:
        raise ProblemError(
            f"a block of {kernel.name} has {warps} warps: give one below, not {warp}"
        )
    if not trace.complete:
        raise ProblemError(
            f"more than {LIMIT:,} memory requests in {kernel.name} on {problem.label}, more than "
            "are kept: take fewer channels or a smaller filter"
        )
    own = kernel.path.name if kernel.path else kernel.name.partition("@")[0] + ".cu"
    rows = pd.DataFrame(
        {
            **request,
            "kernel": launches[request["launch"]]["kernel"],
            "line": request["line"] if Path(request["file"]).name == own else 0,
            "lane": list(request["lanes"]),
            "byte": list(request["lanes"].values()),
        }
        for request in trace.accesses
    )
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    rows["execution"] = rows.groupby(["launch", "line", "space", "kind", "array"]).cumcount()
    sizes = {name: stored.itemsize for name, stored in kernel.format}
    # an array of another's is mostly of floats
    rows["element"] = rows["array"].map(sizes).fillna(rows["element"]).fillna(4)
    rows = rows.explode(["lane", "byte"], ignore_index=True)
    rows = rows.astype({"lane": int, "byte": int, "element": int})
    return rows.assign(index=rows["byte"] // rows["element"])[COLUMNS]


def access_map(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    line: int | str,
    *,
    block: Block = (0, 0, 0),
    warp: int = 0,
    execution: int = 0,
) -> Chart:
    """Draw which addresses the 32 lanes of a warp touch at a line of the source.

    Parameters
    ----------
    kernel, problem : a `Kernel` of either engine, or its name or path; a problem of any size.
    block, warp : blockIdx (x, y, z), and which 32 of its threads. Of a file with several
        ``__global__`` functions, that block of each one's first launch is looked into.
    line : its number, or a text that it holds: of the lines that hold it the first at which the
        warp accesses memory.
    execution : the how manieth time that the warp comes there, from 0.

    Returns
    -------
    Chart
        For each array: of global memory its 128-byte lines with the sectors that move, of shared
        memory the 32 banks; lanes as numbered, coloured cells. The heading names the line, the
        block, the warp and the function.

    Raises
    ------
    ProblemError
        The warp accesses no memory at that line, or not so often; also as for `accesses`.
    UnsupportedError, LaunchError
        As for `accesses`.
    """
    kernel = _simulated(kernel)
    execution = whole(execution, "execution")
    source = kernel.source.splitlines()
    rows = accesses(kernel, problem, block=block, warp=warp)
    who = f"warp {warp} of block {tuple(block)}"
    number = _line(line, source, sorted(set(rows["line"]) - {0}), who)
    rows = rows[rows["line"] == number]
    rows = rows[rows["launch"] == rows["launch"].iloc[0]]
    times = int(rows["execution"].max()) + 1
    chosen = rows[rows["execution"] == execution]
    if chosen.empty:
        raise ProblemError(
            f"{who} comes to line {number} {times} times: give an execution from 0 to "
            f"{times - 1}, not {execution}"
        )
    requests = [
        figures.Request(
            lanes=dict(zip(part["lane"], part["byte"], strict=True)),
            width=int(part["bytes"].iloc[0]),
            space=space,
            kind=kind,
            array=name,
        )
        for (space, kind, name), part in chosen.groupby(["space", "kind", "array"], sort=False)
    ]
    text = " ".join(source[number - 1].split())
    text = text if len(text) <= 70 else text[:69] + "…"
    where = f"{rows['kernel'].iloc[0]}, block {tuple(block)}, warp {warp}"
    title = f"{kernel.name}:{number}  {text}\n{where}, execution {execution} of {times}"
    return figures.requests(requests, title)


def footprint(
    kernel: Kernel | str | Path, problem: Problem | str, block: Block = (0, 0, 0)
) -> Chart:
    """Draw what a block reads of x and writes of y: its tile and halo, as they were accessed.

    Left the rows and columns of the input that the block loads, right the outputs that it stores,
    each around the block's part; shaded by how often, over all channels, of the first image that
    it touches. Of a file with several ``__global__`` functions, that block of each counts: the one
    that reads x need not be the one that writes y. Raises as `accesses` does, and ProblemError if
    the block touches neither x nor y.
    """
    kernel = _simulated(kernel)
    problem = named_problem(problem)
    rows = accesses(kernel, problem, block=block, warp=None)
    of_x, of_y = (rows["array"] == name for name in "xy")
    x = _touched(rows[of_x & (rows["kind"] == "load")], problem.x_shape, kernel.format.x)
    y = _touched(rows[of_y & (rows["kind"] == "store")], problem.y_shape, kernel.format.y)
    where = f"block {tuple(block)}"
    if x.empty and y.empty:
        raise ProblemError(f"{where} of {kernel.name} loads nothing of x and stores nothing to y")
    return figures.footprint(problem, x, y, f"{kernel.name}, {where}")


def _simulated(kernel: Kernel | str | Path) -> Kernel:
    return kernel.on("sim") if isinstance(kernel, Kernel) else load(kernel, engine="sim")


def _line(wanted: int | str, source: Sequence[str], there: Sequence[int], who: str) -> int:
    """The number of the line that is meant, of those at which there are accesses."""
    wanted = wanted if isinstance(wanted, str) else whole(wanted, "line")
    for number in there:
        if number == wanted or (isinstance(wanted, str) and wanted in source[number - 1]):
            return number
    which = f"holds {wanted!r}" if isinstance(wanted, str) else f"is line {wanted}"
    shown = "".join(f"\n  {number}: {source[number - 1].strip()}" for number in there)
    raise ProblemError(
        f"{who} accesses memory at no line that {which}; it does at:{shown or ' none'}"
    )


def _touched(rows: pd.DataFrame, shape: tuple[int, ...], stored: Storage) -> pd.DataFrame:
    """How often each element of x or y was that was touched at all: n, c, h, w, times."""
    wide = (rows["bytes"] // stored.itemsize).clip(lower=1)
    elements = [rows["index"][wide > i] + i for i in range(wide.max())] if len(rows) else [[]]
    index, times = np.unique(np.concatenate(elements).astype(int), return_counts=True)
    places = np.unravel_index(index, stored.in_memory(shape))
    named = {"nchw"[axis]: place for axis, place in zip(stored.order, places, strict=True)}
    return pd.DataFrame({**named, "times": times})
