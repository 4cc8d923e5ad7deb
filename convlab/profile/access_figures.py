"""Draw memory accesses from plain data: the addresses of a warp, the footprint of a block."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..core.problem.problem import Problem
from ..core.show.plot import INK, PALETTE, Chart, styled

_RED = PALETTE[5]
# Global memory: bytes of an L1 line and of a sector, and how many 4-byte words each has.
_LINE_BYTES = 128
_LINE_WORDS = 32
_SECTOR_BYTES = 32
_SECTOR_WORDS = 8
# Shared memory has 32 banks of 4-byte words.
_BANKS = 32
# A map with at most this many rows gets higher rows.
_FEW_ROWS = 12


class Request(NamedTuple):
    """One memory request of a warp.

    Attributes
    ----------
    lanes : for each active lane, the byte in the array that it accesses.
    width : bytes that a lane accesses: 4, 8 or 16.
    space : "global" or "shared".
    kind : "load" or "store".
    array : the array's name.
    """

    lanes: Mapping[int, int]
    width: int = 4
    space: str = "global"
    kind: str = "load"
    array: str = ""


@styled
def draw_requests(requests: Sequence[Request], title: str = "") -> Chart:
    """Draw requests below each other: lines of global memory, banks of shared memory.

    A cell is a 4-byte word, shaded by lane; "+" marks a word that several lanes access. In global
    memory a row is a 128-byte line, with frames around the 32-byte sectors that must move. In
    shared memory a column is a bank and a row is a wavefront, with frames around the words of a
    bank conflict. A request of 16 bytes per lane is served half a warp at a time.
    """
    maps = [_line_map(r) if r.space == "global" else _bank_map(r) for r in requests]
    heights = []
    for cell_map in maps:
        rows = len(cell_map.row_labels)
        heights.append(1.0 + (0.28 if rows <= _FEW_ROWS else 0.18) * rows)
    chart = Chart(8, sum(heights) + 0.4 + 0.2 * title.count("\n"))
    panels = chart.subplots(len(maps), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, cell_map, request in zip(panels, maps, requests, strict=True):
        _draw_cells(axes, cell_map)
        heading = f"{request.kind} of {request.array or request.space}: {cell_map.summary}"
        axes.set_title(_plain(heading))
    if title:
        chart.suptitle(_plain(title), fontsize=10, family="monospace")
    return chart


def _plain(text: str) -> str:
    """Return a text with escaped dollars, which matplotlib does not typeset as mathematics."""
    return text.replace("$", r"\$")


class _CellMap(NamedTuple):
    """A request as rows of 32 cells.

    Attributes
    ----------
    summary : the request in words.
    lanes : for each cell (row, column), the lanes that access it.
    frames : rectangles: column, row, columns, rows.
    breaks : rows with a gap above them.
    row_labels, column_labels : a label for each row, and for some columns.
    axis_labels : a label for the axis of the columns, and one for the axis of the rows.
    """

    summary: str
    lanes: dict[tuple[int, int], list[int]]
    frames: list[tuple[int, int, int, int]]
    breaks: list[int]
    row_labels: list[str]
    column_labels: dict[int, str]
    axis_labels: tuple[str, str]


def _line_map(request: Request) -> _CellMap:
    """Return the map of the 128-byte lines of global memory that a request accesses."""
    words = _words(request.lanes, request.width)
    lines = sorted({word // _LINE_WORDS for word in words})
    row_of = {line: row for row, line in enumerate(lines)}
    sectors = sorted({word // _SECTOR_WORDS for word in words})
    count = len(sectors)
    requested = request.width * len(request.lanes)
    cells = {}
    for word, lanes in words.items():
        cells[row_of[word // _LINE_WORDS], word % _LINE_WORDS] = lanes
    sectors_per_line = _LINE_WORDS // _SECTOR_WORDS
    frames = []
    for sector in sectors:
        column = sector % sectors_per_line * _SECTOR_WORDS
        frames.append((column, row_of[sector // sectors_per_line], _SECTOR_WORDS, 1))
    x_label = (
        f"byte in a 128-byte line of {request.array or 'memory'}; frame: a 32-byte sector that "
        "moves; number: lane, +: several lanes"
    )
    moved = f"{_SECTOR_BYTES * count} bytes moved for {requested} requested"
    return _CellMap(
        summary=f"{count} sector{'s' * (count != 1)}, {moved}",
        lanes=cells,
        frames=frames,
        breaks=[row for line, row in row_of.items() if row and line - 1 not in row_of],
        row_labels=[f"{_LINE_BYTES * line:,}" for line in lines],
        column_labels={x: f"+{4 * x}" for x in range(0, _LINE_WORDS, _SECTOR_WORDS)},
        axis_labels=(x_label, "byte"),
    )


def _bank_map(request: Request) -> _CellMap:
    """Return the map of the banks of shared memory, and of the wavefronts that serve a request."""
    cells: dict[tuple[int, int], list[int]] = {}
    conflicts = []
    group_starts = []
    by_lane = sorted(request.lanes.items())
    group_size = 16 if request.width > 8 else 32
    rows = 0
    least = 0
    for start in range(0, len(by_lane), group_size):
        group_starts.append(rows)
        words = _words(dict(by_lane[start : start + group_size]), request.width)
        least_of_group = math.ceil(len(words) / _BANKS)
        most_of_group = 0
        for bank in range(_BANKS):
            in_bank = sorted(word for word in words if word % _BANKS == bank)
            for turn, word in enumerate(in_bank):
                cells[rows + turn, bank] = words[word]
            if len(in_bank) > least_of_group:
                conflicts.append((bank, rows, 1, len(in_bank)))
            most_of_group = max(most_of_group, len(in_bank))
        least += least_of_group
        rows += most_of_group
    framed = "; frame: a bank conflict" if conflicts else ""
    x_label = f"bank of {request.array or 'shared memory'}; number: lane, +: a broadcast{framed}"
    return _CellMap(
        summary=f"{rows} wavefront{'s' * (rows != 1)}, minimum {least}",
        lanes=cells,
        frames=conflicts,
        breaks=group_starts[1:],
        row_labels=[str(row + 1) for row in range(rows)],
        column_labels={x: str(x) for x in range(0, _BANKS, 4)},
        axis_labels=(x_label, "wavefront"),
    )


def _words(lanes: Mapping[int, int], width: int) -> dict[int, list[int]]:
    """Return the 4-byte words that lanes access, each with its lanes."""
    words: dict[int, list[int]] = {}
    for lane, address in lanes.items():
        first = address // 4
        last = (address + width - 1) // 4
        for word in range(first, last + 1):
            words.setdefault(word, []).append(lane)
    return words


def _draw_cells(axes: Axes, cell_map: _CellMap) -> None:
    """Draw cells, coloured and numbered by their first lane."""
    rows = max(len(cell_map.row_labels), 1)
    grid = np.full((rows, 32), np.nan)
    for cell, lanes in cell_map.lanes.items():
        grid[cell] = lanes[0]
    shades = colormaps["cividis"].with_extremes(bad="white")
    axes.imshow(grid, cmap=shades, vmin=0, vmax=31, aspect="auto", interpolation="nearest")
    axes.set_xticks(np.arange(33) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for (row, column), lanes in cell_map.lanes.items():
        text = f"{lanes[0]}+" if len(lanes) > 1 else f"{lanes[0]}"
        color = "white" if lanes[0] < 18 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=color)
    for column, row, columns, high in cell_map.frames:
        _draw_frame(axes, column - 0.5, row - 0.5, columns, high, _RED)
    for row in cell_map.breaks:
        axes.axhline(row - 0.5, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
    axes.set_yticks(range(len(cell_map.row_labels)), cell_map.row_labels)
    axes.set_xticks(list(cell_map.column_labels), list(cell_map.column_labels.values()))
    x_label, y_label = cell_map.axis_labels
    axes.set(xlabel=x_label, ylabel=y_label)


def _draw_frame(axes: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=color, linewidth=1.8))


class _Side(NamedTuple):
    """One half of a footprint: the array, the verb ("read" or "written"), its shape, its axes."""

    array: str
    verb: str
    shape: tuple[int, ...]
    row_axis: str
    column_axis: str


@styled
def draw_footprint(problem: Problem, x: pd.DataFrame, y: pd.DataFrame, title: str = "") -> Chart:
    """Draw the input that a block read next to the output that it wrote.

    `x` and `y` have a row for each accessed element: n, c, h, w, and times (the accesses).
    """
    chart = Chart(8, 4.2)
    left, right = chart.subplots(1, 2)
    sentences = [
        _draw_side(chart, left, x, _Side("x", "read", problem.x_shape, "h", "w")),
        _draw_side(chart, right, y, _Side("y", "written", problem.y_shape, "p", "q")),
    ]
    summary = "; ".join(sentence for sentence in sentences if sentence)
    chart.suptitle("\n".join(line for line in (title, summary) if line), fontsize=10)
    return chart


def _draw_side(chart: Chart, axes: Axes, touched: pd.DataFrame, side: _Side) -> str:
    """Draw the accessed elements of x or y; return a sentence with their number."""
    axes.set(xlabel=f"{side.column_axis} (column)", ylabel=f"{side.row_axis} (row)")
    if touched.empty:
        axes.set(title=f"nothing of {side.array} is {side.verb}", xticks=[], yticks=[])
        return ""
    channels = touched["c"].nunique()
    image = touched["n"].min()
    of_image = touched[touched["n"] == image]
    top, start = of_image[["h", "w"]].min()
    low, end = of_image[["h", "w"]].max()
    grid = np.zeros((low - top + 1, end - start + 1))
    np.add.at(grid, (of_image["h"] - top, of_image["w"] - start), of_image["times"])
    cells = axes.imshow(
        grid,
        cmap=colormaps["cividis"].with_extremes(under="white"),
        vmin=0.5,
        vmax=max(grid.max(), 1.5),
        aspect="auto",
        interpolation="nearest",
        extent=(start, end + 1, low + 1, top),
    )
    _draw_frame(axes, 0, 0, side.shape[3], side.shape[2], INK)
    margin = max(2, max(grid.shape) // 8)
    axes.set(xlim=(start - margin, end + 1 + margin), ylim=(low + 1 + margin, top - margin))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    label = f"times {side.verb}, all channels"
    chart.colorbar(cells, ax=axes, fraction=0.05, pad=0.02, label=label)
    place = f"{side.array}: rows {top} to {low}, columns {start} to {end}"
    plural = "s" if channels != 1 else ""
    axes.set_title(f"{place}\nof image {image}, {channels} channel{plural}")
    sentence = f"{len(touched):,} elements of {side.array} {side.verb}"
    if side.array == "x":
        times = touched["times"].mean()
        sentence += ", each once" if times == 1 else f", each {times:.3g} times"
    return sentence
