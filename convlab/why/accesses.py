"""Which addresses the lanes of a warp touch: recorded on the simulator, as data and drawn.

Only the block that is asked for runs, on tensors of zeros that take no memory until they are
touched: the addresses of a convolution do not depend on its data, so that the headline problems
can be looked into on a laptop.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from .. import sim
from ..run.kernel import Kernel, load
from ..run.launch import integers
from ..show.plot import Chart
from ..words.errors import ProblemError, UnsupportedError
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from . import figures

REQUESTS = 50_000  # of a warp that are kept
_BLOCK_REQUESTS = 400_000  # of a whole block
COLUMNS = (
    "launch", "kernel", "line", "space", "kind", "array", "execution", "lane", "index", "byte",
    "bytes",
)  # fmt: skip
Block = tuple[int, int, int]


def accesses(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    *,
    block: Block = (0, 0, 0),
    warp: int = 0,
) -> pd.DataFrame:
    """Record every memory request of one warp on the simulator, lane by lane.

    Parameters
    ----------
    kernel : a `Kernel` of either engine, or its name or path.
    problem : a Problem, or the name or the spec of one; not scaled down, and it need not be.
    block : blockIdx (x, y, z). Of a file with several ``__global__`` functions, that block of
        each one's first launch is recorded.
    warp : of the block: threads 32 * warp to 32 * warp + 31, counted with x first.

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
        No launch has that block or warp, or the warp makes more than `REQUESTS` requests.
    UnsupportedError
        The kernel cannot do the problem.
    LaunchError
        The block did something that a GPU would not forgive.
    """
    kernel, problem = _kernel(kernel), named_problem(problem)
    trace = _record(kernel, problem, block, warp, REQUESTS)
    if not trace.complete:
        raise ProblemError(_too_many(kernel, problem, block, warp))
    return _frame(kernel, trace)


def access_map(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    line: int | str,
    *,
    block: Block = (0, 0, 0),
    warp: int = 0,
    execution: int = 0,
    array: str | None = None,
) -> Chart:
    """Draw which addresses the 32 lanes of a warp touch at a line of the source.

    Parameters
    ----------
    kernel, problem, block, warp : as for `accesses`.
    line : its number, or a text that it holds: of the lines that hold it the first at which the
        warp accesses memory.
    execution : the how manieth time that the warp comes there, from 0.
    array : the array to draw, where the line accesses several; all of them unless told.

    Returns
    -------
    Chart
        For each array: of global memory its 128-byte lines with the sectors that move, of shared
        memory the 32 banks; lanes as numbered, coloured cells. The heading names the line, the
        block, the warp and, of a kernel of several launches, which of them.

    Raises
    ------
    ProblemError
        The warp accesses no memory at that line, or not so often; also as for `accesses`.
    UnsupportedError, LaunchError
        As for `accesses`.
    """
    kernel, problem = _kernel(kernel), named_problem(problem)
    trace = _record(kernel, problem, block, warp, REQUESTS)
    frame = _frame(kernel, trace)
    source = kernel.source.splitlines()
    number = _find_line(frame, line, source, f"warp {warp} of block {tuple(block)}")
    rows = frame[frame["line"] == number]
    rows = rows[rows["launch"] == rows["launch"].iloc[0]]
    if array is not None:
        if array not in set(rows["array"]):
            there = ", ".join(dict.fromkeys(rows["array"]))
            raise ProblemError(f"line {number} does not access {array}; it accesses: {there}")
        rows = rows[rows["array"] == array]
    times = int(rows["execution"].max()) + 1
    chosen = rows[rows["execution"] == execution]
    if chosen.empty:
        if not trace.complete:
            raise ProblemError(_too_many(kernel, problem, block, warp))
        raise ProblemError(
            f"warp {warp} of block {tuple(block)} comes to line {number} {times} times: give an "
            f"execution from 0 to {times - 1}, not {execution}"
        )
    requests = [
        figures.Request(
            lanes=dict(zip(part["lane"], part["byte"], strict=True)),
            width=int(part["bytes"].iloc[0]), space=space, kind=kind, array=name,
        )
        for (space, kind, name), part in chosen.groupby(["space", "kind", "array"], sort=False)
    ]  # fmt: skip
    text = " ".join(source[number - 1].split())
    text = text if len(text) <= 70 else text[:69] + "…"
    where = f"block {tuple(block)}, warp {warp}, execution {execution} of {times}"
    if len(trace.launches) > 1:
        launch = int(rows["launch"].iloc[0])
        where += f", launch {launch} ({rows['kernel'].iloc[0]})"
    return figures.requests(requests, f"{kernel.name}:{number}  {text}", where)


def footprint(
    kernel: Kernel | str | Path, problem: Problem | str, block: Block = (0, 0, 0)
) -> Chart:
    """Draw what a block reads of x and writes of y: its tile and halo, as they were accessed.

    Parameters
    ----------
    kernel, problem, block : as for `accesses`.

    Returns
    -------
    Chart
        Left the rows and columns of the input that the block loads, right the outputs that it
        stores, each around the block's part; shaded by how often, over all channels, of the first
        image that it touches. Of a file with several ``__global__`` functions, that block of each
        counts: the one that reads x need not be the one that writes y.

    Raises
    ------
    ProblemError
        No launch has that block, the block makes too many requests, or it touches neither x nor y.
    UnsupportedError, LaunchError
        As for `accesses`.
    """
    kernel, problem = _kernel(kernel), named_problem(problem)
    trace = _record(kernel, problem, block, -1, _BLOCK_REQUESTS)
    if not trace.complete:
        raise ProblemError(_too_many(kernel, problem, block, -1))
    x = _touched(trace, "x", "load", problem.x_shape)
    y = _touched(trace, "y", "store", problem.y_shape)
    if x is None and y is None:
        raise ProblemError(
            f"block {tuple(block)} of {kernel.name} loads nothing of x and stores nothing to y"
        )
    pad = (problem.padding[0], problem.padding[1])
    return figures.footprint(x, y, pad, f"{kernel.name}, block {tuple(block)}")


def _kernel(kernel: Kernel | str | Path) -> Kernel:
    return kernel.on("sim") if isinstance(kernel, Kernel) else load(kernel, engine="sim")


def _record(kernel: Kernel, problem: Problem, block: Block, warp: int, limit: int) -> sim.Trace:
    """Run one block of each launch and keep the requests of one warp (-1: of all)."""
    reason = kernel.unsupported(problem)
    if reason is not None:
        raise UnsupportedError(f"{kernel.name} cannot do {problem.label}: {reason}")
    if len(block) != 3 or min(*block, warp + 1) < 0:
        raise ProblemError(
            f"block {block}, warp {warp}: give the block as (x, y, z), and the warp from 0"
        )
    shapes = {"x": problem.x_shape, "w": problem.w_shape}
    shapes |= {"bias": (problem.K,)} if problem.bias else {}
    shapes |= {"y": problem.y_shape}
    trace = sim.simulate(
        kernel.build().library, sim.runtime(), integers(problem),
        sim.Arena(shapes, sparse=shapes), label=kernel.name,
        source=kernel.path or kernel.source, workspace_limit=kernel.workspace_limit,
        time_limit=kernel.time_limit, record=(*block, warp, limit),
    )  # fmt: skip
    if not any(all(b < g for b, g in zip(block, n["grid"], strict=True)) for n in trace.launches):
        grids = " and ".join(f"{n['grid']} ({n['kernel']})" for n in trace.launches)
        raise ProblemError(
            f"no launch has a block {tuple(block)}: their grids are {grids or 'none'}"
        )
    warps = max(math.ceil(math.prod(n["block"]) / 32) for n in trace.launches)
    if warp >= warps:
        raise ProblemError(
            f"a block of {kernel.name} has {warps} warps: give one below, not {warp}"
        )
    return trace


def _too_many(kernel: Kernel, problem: Problem, block: Block, warp: int) -> str:
    who = "the warps" if warp < 0 else f"warp {warp}"
    limit = _BLOCK_REQUESTS if warp < 0 else REQUESTS
    return (
        f"{who} of block {tuple(block)} make more than {limit:,} memory requests in {kernel.name} "
        f"on {problem.label}, more than are kept: take fewer channels or a smaller filter"
    )


def _frame(kernel: Kernel, trace: sim.Trace) -> pd.DataFrame:
    own, counts, rows = _own_file(kernel), {}, []
    for request in trace.accesses:
        line = request["line"] if Path(request["file"]).name == own else 0
        launch, size = request["launch"], request["bytes"]
        named = trace.launches[launch]["kernel"]
        key = (launch, line, request["space"], request["kind"], request["array"])
        execution = counts[key] = counts.get(key, -1) + 1
        element = request["element"] or 4  # all buffers of a convolution hold floats
        rows += [
            (launch, named, *key[1:], execution, lane, byte // element, byte, size)
            for lane, byte in request["lanes"].items()
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _own_file(kernel: Kernel) -> str:
    return kernel.path.name if kernel.path else kernel.name.partition("@")[0] + ".cu"


def _find_line(frame: pd.DataFrame, line: int | str, source: list[str], who: str) -> int:
    there = sorted(set(frame["line"]) - {0})
    for number in there:
        if number == line or (isinstance(line, str) and line in source[number - 1]):
            return number
    shown = "\n".join(f"  {number}: {source[number - 1].strip()}" for number in there)
    what = f"line {line}" if isinstance(line, int) else f"no line that holds {line!r}"
    says = f"{who} accesses no memory at {what}" if isinstance(line, int) else (
        f"{who} accesses memory at {what}"
    )  # fmt: skip
    if isinstance(line, int) and not 0 < line <= len(source):
        says = f"the source has {len(source)} lines, and none {line}"
    raise ProblemError(f"{says}; it does at:\n{shown}" if there else f"{says}, nor at any other")


def _touched(
    trace: sim.Trace, array: str, kind: str, shape: tuple[int, ...]
) -> figures.Touched | None:
    """How often each pixel of the first image that is touched was, over all channels."""
    counts: dict[int, int] = {}
    for request in trace.accesses:
        if (request["array"], request["kind"]) != (array, kind):
            continue
        width = request["bytes"] // 4
        for byte in request["lanes"].values():
            for element in range(byte // 4, byte // 4 + max(width, 1)):
                counts[element] = counts.get(element, 0) + 1
    if not counts:
        return None
    index = np.array(list(counts), dtype=np.int64)
    n, c, h, w = np.unravel_index(index, shape)
    times = np.array(list(counts.values()))
    first = n == n.min()
    grid = np.zeros((int(h[first].max()) - int(h[first].min()) + 1,
                     int(w[first].max()) - int(w[first].min()) + 1))  # fmt: skip
    corner = int(h[first].min()), int(w[first].min())
    np.add.at(grid, (h[first] - corner[0], w[first] - corner[1]), times[first])
    return figures.Touched(
        grid, corner, (shape[2], shape[3]), image=int(n.min()), images=len(set(n.tolist())),
        channels=len(set(c.tolist())), elements=len(index), accesses=int(times.sum()),
    )  # fmt: skip


__all__ = ["COLUMNS", "REQUESTS", "access_map", "accesses", "footprint"]
