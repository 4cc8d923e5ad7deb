"""Figures that explain: the roofline, what lines cost, which addresses a warp touches.

All of them draw plain data (numbers, lists of addresses), so that a notebook can call them with
what it worked out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator

from ..show.plot import INK, PALETTE, Chart, colors, styled

_BLUE, _ORANGE, *_, _RED = PALETTE[:6]
_BROKEN = (0, (2, 2))  # a line where something is left out
_BESIDE = {"textcoords": "offset points", "fontsize": 8}


@dataclass(frozen=True)
class Point:
    """One kernel on a roofline.

    `intensity` in flops per byte of DRAM traffic, `rate` in flops a second; `kind` is "measured",
    "predicted" (a model's, drawn hollow) or "floor" (the problem's own intensity: rate unused).
    """

    label: str
    intensity: float
    rate: float
    kind: str = "measured"


def roofline(
    axes: Axes, points: Sequence[Point], bandwidth: float, peaks: Mapping[str, float]
) -> None:
    """Draw a roofline (Williams, Waterman, Patterson, CACM 2009) with some kernels on it.

    From bytes a second and the flops a second of each unit, by a name: {"fp32": 51e12}.
    """
    bandwidth, peaks = bandwidth / 1e12, {name: peak / 1e12 for name, peak in peaks.items()}
    xs = [p.intensity for p in points if p.intensity > 0]
    xs += [peak / bandwidth for peak in peaks.values()]
    low, high = min(xs) / 4, max(xs) * 8
    for i, (name, peak) in enumerate(sorted(peaks.items(), key=lambda item: item[1])):
        x = sorted({low, max(low, peak / bandwidth), high})
        y = [min(peak, bandwidth * at) for at in x]
        axes.plot(x, y, color=INK, linestyle="--" if i else "-")
        axes.annotate(f"{name} {peak:.3g} TFLOP/s", (high, peak), (-3, 3), ha="right", **_BESIDE)
    axes.annotate(f"{bandwidth:.3g} TB/s", (low, bandwidth * low), (14, 0), **_BESIDE)
    shade = colors([point.label for point in points if point.kind != "floor"])
    rates = []
    for point in points:
        if point.kind == "floor":
            axes.axvline(point.intensity, color=_BLUE, linewidth=1, linestyle=":")
            axes.annotate(point.label, (point.intensity, 0.98), (3, 0), color=_BLUE, va="top",
                          xycoords=("data", "axes fraction"), **_BESIDE)  # fmt: skip
            continue
        at, color = (point.intensity, point.rate / 1e12), shade[point.label]
        hollow = point.kind == "predicted"
        rates.append(at[1])
        axes.plot(
            *at, "D" if hollow else "o", markersize=8, color="white" if hollow else color,
            markeredgecolor=color if hollow else INK, markeredgewidth=1.5,
        )  # fmt: skip
        beside = ((8, 4), "left", "bottom") if hollow else ((-8, -4), "right", "top")
        axes.annotate(f"{point.label}\n({point.kind})", at, beside[0], ha=beside[1], va=beside[2],
                      **_BESIDE)  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlim=(low, high),
        ylim=(min([*rates, bandwidth * low]) / 3, max(peaks.values()) * 3),
        xlabel="operations per byte of DRAM traffic (flop/byte)", ylabel="rate (TFLOP/s)",
    )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.grid()


def line_costs(
    axes: Axes, lines: Sequence[Mapping[str, object]], names: Sequence[str], most: int = 8
) -> None:
    """Draw the dearest source lines: what they take of all sectors or wavefronts, and the least."""
    rows = sorted(zip(lines, names, strict=True), key=lambda row: -row[0]["units"])[:most]
    units = {"global": ("sectors (global)", _BLUE), "shared": ("wavefronts (shared)", _ORANGE)}
    labels, seen = [], set()
    for y, (row, text) in enumerate(rows):
        name, color = units[row["space"]]
        axes.barh(y, row["units"], color=color, edgecolor=INK, linewidth=0.6,
                  label=None if name in seen else name)  # fmt: skip
        seen.add(name)
        axes.plot([row["ideal_units"]] * 2, [y - 0.45, y + 0.45], color="black", linewidth=2)
        past = max(row["units"], row["ideal_units"])
        axes.annotate(f"{row['share']:.0%}", (past, y), (4, 0), va="center", **_BESIDE)
        labels.append((text if len(text) <= 40 else text[:39] + "…").replace("$", r"\$"))
    axes.set_yticks(range(len(rows)), labels, fontsize=7.5, family="monospace")
    axes.set(ylim=(max(len(rows), 1) - 0.4, -0.6), xlabel="sectors or wavefronts; black: the least",
             xlim=(0, 1.15 * max([row["units"] for row, _ in rows], default=1)))  # fmt: skip
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x")
    if seen:
        axes.legend(loc="lower right")


@dataclass(frozen=True)
class Request:
    """One memory request of a warp: the byte in an array of each active lane.

    `width` is the bytes that a lane moves (4, 8 or 16), `space` "global" or "shared".
    """

    lanes: Mapping[int, int]
    width: int = 4
    space: str = "global"
    kind: str = "load"
    array: str = ""


@styled
def requests(shown: Sequence[Request], title: str = "") -> Chart:
    """Draw some requests below each other: lines of global memory, banks of shared memory.

    Of global memory each 128-byte line that is touched is a row, with a cell for each 4-byte word,
    shaded by lane ("+": several lanes want it); the 32-byte sectors that must move are framed. Of
    shared memory each of the 32 banks is a column, and each wavefront a row: words of one bank lie
    one below the other, framed where there are more than need be; lanes that share a word are one
    cell (a broadcast). Of 16 bytes, half a warp is served at a time.
    """
    drawn = [_Lines(r) if r.space == "global" else _Banks(r) for r in shown]
    heights = [1.0 + (0.28 if each.rows <= 12 else 0.18) * each.rows for each in drawn]
    chart = Chart(8, sum(heights) + 0.4 + 0.2 * title.count("\n"))
    panels = chart.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, each, request in zip(panels, drawn, shown, strict=True):
        each.draw(axes)
        text = f"{request.kind} of {request.array or request.space}: {each.summary}"
        axes.set_title(text.replace("$", r"\$"))
    if title:
        chart.suptitle(title.replace("$", r"\$"), fontsize=10, family="monospace")
    return chart


class _Lines:
    """128-byte lines of global memory, one below the other, with what a request touches of them."""

    def __init__(self, request: Request) -> None:
        self.name, self.words = request.array or "memory", _words(request.lanes, request.width)
        self.lines = sorted({word // 32 for word in self.words})
        self.rows = max(len(self.lines), 1)
        self.sectors = sorted({word // 8 for word in self.words})
        count, asked = len(self.sectors), request.width * len(request.lanes)
        self.summary = (
            f"{count} sector{'s' * (count != 1)}, {32 * count} bytes moved for {asked} asked"
        )

    def draw(self, axes: Axes) -> None:
        at = {line: y for y, line in enumerate(self.lines)}
        cells = {(at[word // 32], word % 32): lanes for word, lanes in self.words.items()}
        _draw_cells(axes, cells, self.rows)
        for sector in self.sectors:
            _frame(axes, sector % 4 * 8 - 0.5, at[sector // 4] - 0.5, 8, 1, _RED)
        for y, (before, line) in enumerate(zip(self.lines, self.lines[1:], strict=False)):
            if line != before + 1:
                axes.axhline(y + 0.5, color=INK, linewidth=1.2, linestyle=_BROKEN)
        labels = [f"{128 * line:,}" for line in self.lines]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xticks(range(0, 32, 8), [f"+{4 * x}" for x in range(0, 32, 8)])
        axes.set(ylabel="byte", xlabel=f"byte of the 128-byte line of {self.name}; framed: the "
                 "32-byte sectors that move; number: lane, +: and others")  # fmt: skip


class _Banks:
    """The 32 banks of shared memory, and the wavefronts in which they serve a request."""

    def __init__(self, request: Request) -> None:
        self.name = request.array or "shared memory"
        self.cells: dict[tuple[int, int], list[int]] = {}
        self.conflicts: list[tuple[int, int, int]] = []  # bank, first row, rows
        self.halves: list[int] = []  # rows at which another half warp begins
        order = sorted(request.lanes.items())
        group = 16 if request.width > 8 else 32
        row = least = 0
        for part in (order[i : i + group] for i in range(0, len(order), group)):
            words = _words(dict(part), request.width)
            banks: list[list[int]] = [[] for _ in range(32)]
            for word in sorted(words):
                banks[word % 32].append(word)
            need = math.ceil(len(words) / 32)
            for bank, held in enumerate(banks):
                for y, word in enumerate(held):
                    self.cells[row + y, bank] = words[word]
                if len(held) > need:
                    self.conflicts.append((bank, row, len(held)))
            least += need
            row += max(map(len, banks))
            self.halves.append(row)
        self.rows = max(row, 1)
        self.summary = f"{row} wavefront{'s' * (row != 1)}, {least} would do"

    def draw(self, axes: Axes) -> None:
        _draw_cells(axes, self.cells, self.rows)
        for bank, y, count in self.conflicts:
            _frame(axes, bank - 0.5, y - 0.5, 1, count, _RED)
        for y in self.halves[:-1]:
            axes.axhline(y - 0.5, color=INK, linewidth=1.2, linestyle=_BROKEN)
        axes.set_yticks(range(self.rows), [str(y + 1) for y in range(self.rows)])
        axes.set_xticks(range(0, 32, 4))
        framed = "; framed: a conflict" if self.conflicts else ""
        axes.set(ylabel="wavefront",
                 xlabel=f"bank of {self.name}; number: lane, +: a broadcast{framed}")  # fmt: skip


def _words(lanes: Mapping[int, int], width: int) -> dict[int, list[int]]:
    """The 4-byte words that lanes touch, each with its lanes."""
    words: dict[int, list[int]] = {}
    for lane, address in lanes.items():
        for word in range(address // 4, (address + width - 1) // 4 + 1):
            words.setdefault(word, []).append(lane)
    return words


def _draw_cells(axes: Axes, cells: Mapping[tuple[int, int], list[int]], rows: int) -> None:
    """Cells (row, column), coloured and numbered by the first of their lanes."""
    grid = np.full((rows, 32), np.nan)
    for at, lanes in cells.items():
        grid[at] = lanes[0]
    shades = colormaps["cividis"].with_extremes(bad="white")
    axes.imshow(grid, cmap=shades, vmin=0, vmax=31, aspect="auto", interpolation="nearest")
    axes.set_xticks(np.arange(33) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for (y, x), lanes in cells.items():
        axes.text(x, y, f"{lanes[0]}{'+' if len(lanes) > 1 else ''}", ha="center", va="center",
                  fontsize=6.5, color="white" if lanes[0] < 18 else "black")  # fmt: skip


def _frame(axes: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=color, linewidth=1.8))


@dataclass(frozen=True)
class Touched:
    """The pixels of one image that a block touched, and how often.

    `grid` (rows, columns) counts accesses over all channels from `corner` (row, column) on, of an
    image of `size` (height, width); the image's number, how many images and channels were touched,
    how many elements in all, and how often.
    """

    grid: np.ndarray
    corner: tuple[int, int]
    size: tuple[int, int]
    image: int = 0
    images: int = 1
    channels: int = 1
    elements: int = 0
    accesses: int = 0


@styled
def footprint(
    x: Touched | None, y: Touched | None, pad: tuple[int, int] = (0, 0), title: str = ""
) -> Chart:
    """Draw the input that a block read beside the output that it wrote; None: nothing of it."""
    chart = Chart(8, 4.2)
    left, right = chart.subplots(1, 2)
    left.set(xlabel="w (column)", ylabel="h (row)")
    right.set(xlabel="q (column)", ylabel="p (row)")
    words = []
    for axes, part, name, what in ((left, x, "x", "read"), (right, y, "y", "written")):
        if part is None:
            axes.set(title=f"nothing of {name} is {what}", xticks=[], yticks=[])
            continue
        _draw_touched(chart, axes, part, what, pad if name == "x" else (0, 0))
        (rows, columns), (top, first) = part.grid.shape, part.corner
        axes.set_title(f"{name}: rows {top} to {top + rows - 1}, columns {first} to "
                       f"{first + columns - 1}\nof image {part.image}, {part.channels} channel"
                       f"{'s' * (part.channels != 1)}")  # fmt: skip
        times = part.accesses / part.elements
        often = f", each {'once' if times == 1 else f'{times:.3g} times'}" if name == "x" else ""
        images = f", of {part.images} images" if part.images > 1 else ""
        words.append(f"{part.elements:,} elements of {name} {what}{often}{images}")
    chart.suptitle("\n".join(filter(None, (title, "; ".join(words)))), fontsize=10)
    return chart


def _draw_touched(chart: Chart, axes: Axes, part: Touched, what: str, pad: tuple[int, int]) -> None:
    """One image, around what was touched of it."""
    (rows, columns), (top, first) = part.grid.shape, part.corner
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    shades = colormaps["cividis"].with_extremes(under="white")
    drawn = axes.imshow(part.grid, cmap=shades, vmin=0.5, vmax=max(part.grid.max(), 1.5),
                        aspect="auto", interpolation="nearest", origin="upper",
                        extent=(first, first + columns, top + rows, top))  # fmt: skip
    chart.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02, label=f"times {what}, all channels")
    _frame(axes, 0, 0, part.size[1], part.size[0], INK)
    margin = max(2, max(rows, columns) // 8)
    axes.set_xlim(
        max(first - margin, -pad[1] - 1), min(first + columns + margin, part.size[1] + pad[1] + 1)
    )
    axes.set_ylim(
        min(top + rows + margin, part.size[0] + pad[0] + 1), max(top - margin, -pad[0] - 1)
    )
