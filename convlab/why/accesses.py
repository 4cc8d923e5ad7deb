"""Which addresses the lanes of a warp touch: recorded on the simulator, as data and drawn.

Only the block that is asked for runs, so that the headline problems can be looked into on a laptop.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from ..run.kernel import Kernel, load
from ..show.plot import Chart
from ..sim import Trace
from ..words.arguments import several, whole
from ..words.errors import ProblemError, UnsupportedError
from ..words.format import Storage
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from . import figures
from .counting import simulate

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
    record = _Record(kernel, problem, block, warp)
    record.must_be_complete()
    return record.frame


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
    execution = whole(execution, "execution")
    record = _Record(kernel, problem, block, warp)
    number = record.line(line)
    rows = record.frame[record.frame["line"] == number]
    rows = rows[rows["launch"] == rows["launch"].iloc[0]]
    if array is not None:
        if array not in set(rows["array"]):
            there = ", ".join(dict.fromkeys(rows["array"]))
            raise ProblemError(f"line {number} does not access {array}; it accesses: {there}")
        rows = rows[rows["array"] == array]
    times = int(rows["execution"].max()) + 1
    chosen = rows[rows["execution"] == execution]
    if chosen.empty:
        record.must_be_complete()
        raise ProblemError(
            f"{record.who} comes to line {number} {times} times: give an execution from 0 to "
            f"{times - 1}, not {execution}"
        )
    requests = [
        figures.Request(
            lanes=dict(zip(part["lane"], part["byte"], strict=True)),
            width=int(part["bytes"].iloc[0]), space=space, kind=kind, array=name,
        )
        for (space, kind, name), part in chosen.groupby(["space", "kind", "array"], sort=False)
    ]  # fmt: skip
    text = " ".join(record.source[number - 1].split())
    text = text if len(text) <= 70 else text[:69] + "…"
    where = f"block {tuple(block)}, warp {warp}, execution {execution} of {times}"
    if len(record.trace.launches) > 1:
        where += f", launch {rows['launch'].iloc[0]} ({rows['kernel'].iloc[0]})"
    return figures.requests(requests, f"{record.kernel.name}:{number}  {text}\n{where}")


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
    record = _Record(kernel, problem, block, None)
    record.must_be_complete()
    name, problem = record.kernel.name, record.problem
    stored = record.kernel.format
    x = _touched(record.trace, "x", "load", stored.x, problem.x_shape)
    y = _touched(record.trace, "y", "store", stored.y, problem.y_shape)
    if x is None and y is None:
        raise ProblemError(
            f"block {tuple(block)} of {name} loads nothing of x and stores nothing to y"
        )
    return figures.footprint(x, y, problem.padding, f"{name}, block {tuple(block)}")


class _Record:
    """The requests of one warp, or for None of all warps, of one block of each launch."""

    def __init__(self, kernel: Kernel | str | Path, problem: Problem | str, block: Block,
                 warp: int | None) -> None:  # fmt: skip
        block = tuple(whole(n, "each of block's x, y, z", least=0) for n in several(block, "block"))
        if len(block) != 3:
            raise ProblemError(f"block is {block}: give it as (x, y, z)")
        warp = None if warp is None else whole(warp, "warp", least=0)
        kernel = kernel.on("sim") if isinstance(kernel, Kernel) else load(kernel, engine="sim")
        self.kernel, self.problem = kernel, named_problem(problem)
        self.source = kernel.source.splitlines()
        self.who = f"{'the warps' if warp is None else f'warp {warp}'} of block {tuple(block)}"
        self.limit = REQUESTS if warp is not None else _BLOCK_REQUESTS
        reason = kernel.unsupported(self.problem)
        if reason is not None:
            raise UnsupportedError(f"{kernel.name} cannot do {self.problem.label}: {reason}")
        self.trace = simulate(
            kernel, self.problem, record=(*block, -1 if warp is None else warp, self.limit)
        )
        launches = self.trace.launches
        if not any(all(b < g for b, g in zip(block, n["grid"], strict=True)) for n in launches):
            grids = " and ".join(f"{n['grid']} ({n['kernel']})" for n in launches)
            raise ProblemError(
                f"no launch has a block {tuple(block)}: their grids are {grids or 'none'}"
            )
        warps = max(math.ceil(math.prod(n["block"]) / 32) for n in launches)
        if warp is not None and warp >= warps:
            raise ProblemError(
                f"a block of {kernel.name} has {warps} warps: give one below, not {warp}"
            )
        self.frame = self._frame()

    def must_be_complete(self) -> None:
        """Raise if there were more requests than are kept."""
        if not self.trace.complete:
            raise ProblemError(
                f"{self.who}: more than {self.limit:,} memory requests in {self.kernel.name} on "
                f"{self.problem.label}, more than are kept: take fewer channels or a smaller filter"
            )

    def _frame(self) -> pd.DataFrame:
        path, counts, rows = self.kernel.path, {}, []
        sizes = {name: stored.itemsize for name, stored in self.kernel.format}
        own = path.name if path else self.kernel.name.partition("@")[0] + ".cu"
        for request in self.trace.accesses:
            line = request["line"] if Path(request["file"]).name == own else 0
            launch, size = request["launch"], request["bytes"]
            named = self.trace.launches[launch]["kernel"]
            key = (launch, line, request["space"], request["kind"], request["array"])
            execution = counts[key] = counts.get(key, -1) + 1
            element = sizes.get(request["array"]) or request["element"] or 4  # most hold floats
            rows += [
                (launch, named, *key[1:], execution, lane, byte // element, byte, size)
                for lane, byte in request["lanes"].items()
            ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def line(self, wanted: int | str) -> int:
        """The number of the line that is meant, at which the warp accesses memory."""
        wanted = wanted if isinstance(wanted, str) else whole(wanted, "line")
        there = sorted(set(self.frame["line"]) - {0})
        for number in there:
            if number == wanted or (isinstance(wanted, str) and wanted in self.source[number - 1]):
                return number
        says = f"{self.who} accesses memory at no line that holds {wanted!r}"
        if isinstance(wanted, int):
            says = f"{self.who} accesses no memory at line {wanted}"
            if not 0 < wanted <= len(self.source):
                says = f"the source has {len(self.source)} lines, and none {wanted}"
        shown = "".join(f"\n  {number}: {self.source[number - 1].strip()}" for number in there)
        raise ProblemError(f"{says}; it does at:{shown}" if there else f"{says}, nor at any other")


def _touched(
    trace: Trace, array: str, kind: str, stored: Storage, shape: tuple[int, ...]
) -> figures.Touched | None:
    """How often each pixel of the first image that is touched was, over all channels."""
    counts: dict[int, int] = {}
    for request in trace.accesses:
        if (request["array"], request["kind"]) != (array, kind):
            continue
        size = stored.itemsize
        for byte in request["lanes"].values():
            for element in range(byte // size, byte // size + max(request["bytes"] // size, 1)):
                counts[element] = counts.get(element, 0) + 1
    if not counts:
        return None
    index = np.array(list(counts), dtype=np.int64)
    places = dict(zip(stored.order, np.unravel_index(index, stored.in_memory(shape)), strict=True))
    n, c, h, w = (places[i] for i in range(4))
    times = np.array(list(counts.values()))
    first = n == n.min()
    top, left = int(h[first].min()), int(w[first].min())
    grid = np.zeros((int(h[first].max()) - top + 1, int(w[first].max()) - left + 1))
    np.add.at(grid, (h[first] - top, w[first] - left), times[first])
    return figures.Touched(
        grid, (top, left), (shape[2], shape[3]), image=int(n.min()), images=len(set(n.tolist())),
        channels=len(set(c.tolist())), elements=len(index), accesses=int(times.sum()),
    )  # fmt: skip


__all__ = ["COLUMNS", "REQUESTS", "access_map", "accesses", "footprint"]
