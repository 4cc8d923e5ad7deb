"""Record the addresses that the lanes of a warp access on the simulator, and draw them.

Only one block runs, so that a laptop can record accesses of the headline problems.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.arguments import several, whole
from ..core.errors import ProblemError
from ..core.kernel.kernel import Kernel, load
from ..core.problem.format import Storage
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from ..core.show.plot import Chart
from . import access_figures
from .sampling import Counts, simulate

# The largest number of recorded requests.
LIMIT = 400_000
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
# The assumed bytes of an element if neither the format nor the simulator has them: a float.
_ELEMENT_BYTES = 4
# The most characters of a heading's source text.
_HEADING = 70
Block = tuple[int, int, int]


def accesses(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    *,
    block: Block = (0, 0, 0),
    warp: int | None = 0,
) -> pd.DataFrame:
    """Record every memory request of one warp on the simulator, lane by lane.

    Parameters
    ----------
    kernel, problem : a `Kernel`, or its name or path; a problem of any size. It is not scaled down.
    block : blockIdx (x, y, z), in the first launch of each ``__global__`` function.
    warp : the number of a warp in the block: threads 32 * `warp` to 32 * `warp` + 31, where x
        varies fastest. None records all warps.

    Returns
    -------
    DataFrame
        A row for each active lane of each request, in the order of the requests: ``launch`` (from
        0) and ``kernel`` (the ``__global__`` function), ``line`` of the source (0 in another
        file), ``space`` ("global", "shared"), ``kind`` ("load", "store", "atomic"), ``array``,
        ``execution`` (the number of the request with that launch, line, kind and array, from 0),
        ``lane``, ``index`` of the element in the flat array, ``byte`` in the array, and ``bytes``
        that the lane accesses.

    Raises
    ------
    ProblemError
        No launch has that block or warp, or there are more than `LIMIT` requests.
    UnsupportedError
        The kernel does not support the problem.
    LaunchError
        The kernel fails on the simulator, or the room ``sim`` is not installed.
    """
    kernel = on_simulator(kernel)
    problem = named_problem(problem)
    block = tuple(whole(n, "each of block's x, y, z", least=0) for n in several(block, "block"))
    if len(block) != 3:
        raise ProblemError(f"block is {block}: give it as (x, y, z)")
    if warp is not None:
        warp = whole(warp, "warp", least=0)
    problem = kernel.asked(problem)
    kernel.accept(problem)
    record = (*block, -1 if warp is None else warp, LIMIT)
    counts = simulate(kernel, problem, record=record)
    _require_block(counts.launches, block)
    require_warp(counts.launches, warp, kernel.name)
    if not counts.complete:
        raise ProblemError(
            f"{kernel.name} makes more than {LIMIT:,} memory requests on {problem.label}, the "
            "largest number that is recorded: give a problem with fewer channels or a smaller "
            "filter"
        )
    return _by_lane(counts, kernel)


def _require_block(launches: Sequence[dict[str, Any]], block: Block) -> None:
    """Raise ProblemError unless a launch has the block."""
    for launch in launches:
        if all(index < size for index, size in zip(block, launch["grid"], strict=True)):
            return
    grids = " and ".join(f"{launch['grid']} ({launch['kernel']})" for launch in launches)
    raise ProblemError(f"no launch has a block {block}: the grids are {grids or 'none'}")


def require_warp(launches: Sequence[dict[str, Any]], warp: int | None, kernel: str) -> None:
    """Raise ProblemError unless the blocks of a launch have the warp; None means all warps.

    `kernel` is what the message calls the kernel or the function.
    """
    warps = max(math.ceil(math.prod(launch["block"]) / 32) for launch in launches)
    if warp is not None and warp >= warps:
        plural = "s" if warps != 1 else ""
        raise ProblemError(
            f"a block of {kernel} has {warps} warp{plural}: give a number below {warps}, not {warp}"
        )


def _by_lane(counts: Counts, kernel: Kernel) -> pd.DataFrame:
    """Return the recorded requests with a row for each lane."""
    own_file = own_file_name(kernel)
    element_bytes = {name: stored.itemsize for name, stored in kernel.format}
    rows = []
    for request in counts.accesses:
        is_own = Path(request["file"]).name == own_file
        element = element_bytes.get(request["array"]) or request["element"] or _ELEMENT_BYTES
        row = {
            **request,
            "kernel": counts.launches[request["launch"]]["kernel"],
            "line": request["line"] if is_own else 0,
            "element": element,
            "lane": list(request["lanes"]),
            "byte": list(request["lanes"].values()),
        }
        rows.append(row)
    if not rows:
        return pd.DataFrame(columns=COLUMNS)
    frame = pd.DataFrame(rows)
    place = ["launch", "line", "space", "kind", "array"]
    frame["execution"] = frame.groupby(place).cumcount()
    frame = frame.explode(["lane", "byte"], ignore_index=True)
    frame = frame.astype({"lane": int, "byte": int, "element": int})
    return frame.assign(index=frame["byte"] // frame["element"])[COLUMNS]


def access_map(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    line: int | str,
    *,
    block: Block = (0, 0, 0),
    warp: int = 0,
    execution: int = 0,
) -> Chart:
    """Draw the addresses that the 32 lanes of a warp access at a source line.

    Parameters
    ----------
    kernel, problem : a `Kernel` of either engine, or its name or path; a problem of any size.
    line : the line's number, or a text in it. If several lines have the text, the first one with
        memory accesses of the warp is drawn.
    block, warp : blockIdx (x, y, z), and the number of a warp in that block. In a file with several
        ``__global__`` functions, it is that block of each function's first launch.
    execution : the n-th execution of the line by the warp, from 0.

    Returns
    -------
    Chart
        A map for each array. Global memory is shown as 128-byte lines with the sectors that move,
        and shared memory as 32 banks. Each lane is a numbered, coloured cell. The heading names the
        line, the block, the warp and the function.

    Raises
    ------
    ProblemError
        The warp accesses no memory at that line, or executes it less often; also as `accesses`.
    UnsupportedError, LaunchError
        As for `accesses`.

    Examples
    --------
    >>> convlab.access_map("03_smem_tile", "wide", "s_tap[k / 4]", warp=1)
    """
    kernel = on_simulator(kernel)
    execution = whole(execution, "execution")
    source = kernel.source.splitlines()
    rows = accesses(kernel, problem, block=block, warp=warp)
    warp_name = f"warp {warp} of block {tuple(block)}"
    lines = sorted(set(rows["line"]) - {0})
    number = _line_number(line, source, lines, warp_name)
    rows = rows[rows["line"] == number]
    rows = rows[rows["launch"] == rows["launch"].iloc[0]]
    executions = int(rows["execution"].max()) + 1
    chosen = rows[rows["execution"] == execution]
    if chosen.empty:
        raise ProblemError(
            f"{warp_name} executes line {number} {executions} times: give an execution from 0 to "
            f"{executions - 1}, not {execution}"
        )
    text = " ".join(source[number - 1].split())
    if len(text) > _HEADING:
        text = text[: _HEADING - 1] + "…"
    place = f"{rows['kernel'].iloc[0]}, block {tuple(block)}, warp {warp}"
    title = f"{kernel.name}:{number}  {text}\n{place}, execution {execution} of {executions}"
    return access_figures.draw_requests(_requests(chosen), title)


def footprint(
    kernel: Kernel | str | Path, problem: Problem | str, block: Block = (0, 0, 0)
) -> Chart:
    """Draw the part of x that a block reads, with its halo, and the part of y that it writes.

    The left side shows the rows and columns of the input that the block loads. The right side shows
    the outputs that it stores. The shade is the number of accesses, over all channels of the first
    image that the block accesses. In a file with several ``__global__`` functions, the drawing
    combines that block of each function.

    Raises
    ------
    ProblemError
        The block accesses neither x nor y; also as `accesses`.
    UnsupportedError, LaunchError
        As for `accesses`.
    """
    kernel = on_simulator(kernel)
    problem = named_problem(problem)
    rows = accesses(kernel, problem, block=block, warp=None)
    loads_of_x = rows[(rows["array"] == "x") & (rows["kind"] == "load")]
    stores_of_y = rows[(rows["array"] == "y") & (rows["kind"] == "store")]
    x = _touched(loads_of_x, problem.x_shape, kernel.format.x)
    y = _touched(stores_of_y, problem.y_shape, kernel.format.y)
    block_name = f"block {tuple(block)}"
    if x.empty and y.empty:
        raise ProblemError(
            f"{block_name} of {kernel.name} loads nothing of x and stores nothing to y"
        )
    return access_figures.draw_footprint(problem, x, y, f"{kernel.name}, {block_name}")


def own_file_name(kernel: Kernel) -> str:
    """Return the name of the file in which the simulator reports the kernel's own source lines."""
    return kernel.path.name if kernel.path else kernel.name.partition("@")[0] + ".cu"


def on_simulator(kernel: Kernel | str | Path) -> Kernel:
    """Return a kernel, of either engine or by its name or path, for the simulator."""
    return kernel.on("sim") if isinstance(kernel, Kernel) else load(kernel, engine="sim")


def _line_number(
    wanted: int | str, source: Sequence[str], lines: Sequence[int], warp_name: str
) -> int:
    """Return the number of the wanted line, which must be one of the `lines` with accesses."""
    if isinstance(wanted, str):
        matches = [number for number in lines if wanted in source[number - 1]]
        condition = f"has {wanted!r} in it"
    else:
        wanted = whole(wanted, "line")
        matches = [number for number in lines if number == wanted]
        condition = f"is line {wanted}"
    if matches:
        return matches[0]
    with_accesses = "".join(f"\n  {number}: {source[number - 1].strip()}" for number in lines)
    raise ProblemError(
        f"{warp_name} accesses no memory at a line that {condition}; it accesses memory at:"
        f"{with_accesses or ' none'}"
    )


def _requests(rows: pd.DataFrame) -> list[access_figures.Request]:
    """Return the requests of one execution of a line, one for each array."""
    requests = []
    for (space, kind, array), part in rows.groupby(["space", "kind", "array"], sort=False):
        lanes = dict(zip(part["lane"], part["byte"], strict=True))
        width = int(part["bytes"].iloc[0])
        requests.append(access_figures.Request(lanes, width, space, kind, array))
    return requests


def _touched(rows: pd.DataFrame, shape: tuple[int, ...], stored: Storage) -> pd.DataFrame:
    """Return a row for each accessed element of x or y: n, c, h, w, and times (the accesses)."""
    elements: list[Any] = [[]]
    if len(rows):
        # A wide access covers several elements.
        widths = (rows["bytes"] // stored.itemsize).clip(lower=1)
        elements = [rows["index"][widths > i] + i for i in range(widths.max())]
    index, times = np.unique(np.concatenate(elements).astype(int), return_counts=True)
    indices = np.unravel_index(index, stored.in_memory(shape))
    columns = {"nchw"[axis]: places for axis, places in zip(stored.order, indices, strict=True)}
    return pd.DataFrame({**columns, "times": times})
