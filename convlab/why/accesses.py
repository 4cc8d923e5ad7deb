"""Which addresses the lanes of a warp touch: recorded on the simulator, as data and drawn.

Only the block that is asked for runs, so that the headline problems can be looked into on a laptop.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from ..run.kernel import Kernel, load
from ..show.plot import Chart
from ..words.arguments import several, whole
from ..words.errors import ProblemError, UnsupportedError
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from . import figures
from .counting import simulate

REQUESTS = 50_000  # of a warp that are kept
_BLOCK_REQUESTS = 400_000  # of a whole block
COLUMNS = ["launch", "kernel", "line", "space", "kind", "array", "execution", "lane", "index",
           "byte", "bytes"]  # fmt: skip
Block = tuple[int, int, int]


def accesses(
    kernel: Kernel | str | Path, problem: Problem | str, *, block: Block = (0, 0, 0), warp: int = 0
) -> pd.DataFrame:
    """Record every memory request of one warp on the simulator, lane by lane.

    Of `block`, blockIdx (x, y, z), of each ``__global__`` function's first launch: of its threads
    32 * `warp` to 32 * `warp` + 31, counted with x first. The problem is not scaled down.

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
    UnsupportedError, LaunchError
        The kernel cannot do the problem, or does something that a GPU would not forgive.
    """
    return _Record(kernel, problem, block, warp).complete().frame


def access_map(
    kernel: Kernel | str | Path, problem: Problem | str, line: int | str, *,
    block: Block = (0, 0, 0), warp: int = 0, execution: int = 0, array: str | None = None,
) -> Chart:  # fmt: skip
    """Draw which addresses the 32 lanes of a warp touch at a line of the source.

    Parameters
    ----------
    kernel, problem : a `Kernel` of either engine, or its name or path; a problem of any size.
    block, warp : blockIdx (x, y, z), and which 32 of its threads. Of a file with several
        ``__global__`` functions, that block of each one's first launch is looked into.
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
        record.complete()
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

    Left the rows and columns of the input that the block loads, right the outputs that it stores,
    each around the block's part; shaded by how often, over all channels, of the first image that
    it touches. Of a file with several ``__global__`` functions, that block of each counts: the one
    that reads x need not be the one that writes y. Raises as `accesses` does, and ProblemError if
    the block touches neither x nor y.
    """
    record = _Record(kernel, problem, block, None).complete()
    name, where = record.kernel.name, f"block {tuple(block)}"
    x, y = record.touched("x", "load"), record.touched("y", "store")
    if x.empty and y.empty:
        raise ProblemError(f"{where} of {name} loads nothing of x and stores nothing to y")
    return figures.footprint(record.problem, x, y, f"{name}, {where}")


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
        self.who = f"{'the warps' if warp is None else f'warp {warp}'} of block {block}"
        self.limit = REQUESTS if warp is not None else _BLOCK_REQUESTS
        reason = kernel.unsupported(self.problem)
        if reason is not None:
            raise UnsupportedError(f"{kernel.name} cannot do {self.problem.label}: {reason}")
        recorded = (*block, -1 if warp is None else warp, self.limit)
        self.trace = simulate(kernel, self.problem, record=recorded)
        launches = self.trace.launches
        if not any(all(b < g for b, g in zip(block, n["grid"], strict=True)) for n in launches):
            grids = " and ".join(f"{n['grid']} ({n['kernel']})" for n in launches)
            raise ProblemError(f"no launch has a block {block}: their grids are {grids or 'none'}")
        warps = max(math.ceil(math.prod(n["block"]) / 32) for n in launches)
        if warp is not None and warp >= warps:
            raise ProblemError(
                f"a block of {kernel.name} has {warps} warps: give one below, not {warp}"
            )

    def complete(self) -> _Record:
        """Return it; raise if there were more requests than are kept."""
        if self.trace.complete:
            return self
        raise ProblemError(
            f"{self.who}: more than {self.limit:,} memory requests in {self.kernel.name} on "
            f"{self.problem.label}, more than are kept: take fewer channels or a smaller filter"
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """As `accesses` returns it."""
        path = self.kernel.path
        own = path.name if path else self.kernel.name.partition("@")[0] + ".cu"
        kernels = [launch["kernel"] for launch in self.trace.launches]
        rows = pd.DataFrame(
            {
                **request, "kernel": kernels[request["launch"]],
                "line": request["line"] if Path(request["file"]).name == own else 0,
                "lane": list(request["lanes"]), "byte": list(request["lanes"].values()),
            }
            for request in self.trace.accesses
        )  # fmt: skip
        if rows.empty:
            return pd.DataFrame(columns=COLUMNS)
        rows["execution"] = rows.groupby(["launch", "line", "space", "kind", "array"]).cumcount()
        sizes = {name: stored.itemsize for name, stored in self.kernel.format}
        # an array of another's is mostly of floats
        rows["element"] = rows["array"].map(sizes).fillna(rows["element"]).fillna(4)
        rows = rows.explode(["lane", "byte"], ignore_index=True)
        rows = rows.astype({"lane": int, "byte": int, "element": int})
        return rows.assign(index=rows["byte"] // rows["element"])[COLUMNS]

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

    def touched(self, array: str, kind: str) -> pd.DataFrame:
        """How often each element of x or y was that was touched at all: n, c, h, w, times."""
        rows = self.frame[(self.frame["array"] == array) & (self.frame["kind"] == kind)]
        stored = dict(self.kernel.format)[array]
        wide = (rows["bytes"] // stored.itemsize).clip(lower=1)
        elements = [rows["index"][wide > i] + i for i in range(wide.max())] if len(rows) else [[]]
        index, times = np.unique(np.concatenate(elements).astype(int), return_counts=True)
        shape = self.problem.x_shape if array == "x" else self.problem.y_shape
        places = np.unravel_index(index, stored.in_memory(shape))
        named = {"nchw"[axis]: place for axis, place in zip(stored.order, places, strict=True)}
        return pd.DataFrame({**named, "times": times})
