"""Figures that explain: the roofline, what lines cost, which addresses a warp touches.

All of them draw plain data (numbers, lists of addresses), so that a notebook can call them with
what it worked out by hand. Style and colours are those of `plot.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..show.plot import Chart, colors

_INK, _PALE = "#222222", "#DDDDDD"
_BLUE, _ORANGE, _RED = "#0072B2", "#E69F00", "#D55E00"


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
    points: Sequence[Point],
    bandwidth: float,
    peaks: Mapping[str, float],
    title: str = "",
    axes: Axes | None = None,
) -> Chart | None:
    """Draw a roofline (Williams, Waterman, Patterson, CACM 2009) with some kernels on it.

    Parameters
    ----------
    points : kernels, and the intensity that the problem itself has ("floor").
    bandwidth : bytes a second.
    peaks : flops a second of each unit, by a name: {"fp32": 51e12}.
    title : the heading.
    axes : to draw into; a new chart, which is returned, without.
    """
    chart = None
    if axes is None:
        chart = Chart(6.4, 4.2)
        axes = chart.subplots()
    top = max(peaks.values())
    xs = [p.intensity for p in points if p.intensity > 0]
    xs += [peak / bandwidth for peak in peaks.values()]
    low, high = min(xs) / 4, max(xs) * 8
    for i, (name, peak) in enumerate(sorted(peaks.items(), key=lambda item: item[1])):
        ridge = peak / bandwidth
        x = [low, ridge, high] if ridge > low else [low, high]
        y = [min(peak, bandwidth * at) for at in x]
        axes.plot(x, y, color=_INK, linewidth=1.6, linestyle="-" if i == 0 else "--")
        axes.annotate(f"{name} {peak / 1e12:.3g} TFLOP/s", (high, peak), xytext=(-3, 3),
                      textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    axes.annotate(f"{bandwidth / 1e12:.3g} TB/s", (low, bandwidth * low), xytext=(14, 0),
                  textcoords="offset points", fontsize=8)  # fmt: skip
    shade = colors([point.label for point in points if point.kind != "floor"])
    for point in points:
        if point.kind == "floor":
            axes.axvline(point.intensity, color=_BLUE, linewidth=1, linestyle=":")
            axes.annotate(point.label, (point.intensity, 0.84), xytext=(3, 0), fontsize=8,
                          xycoords=("data", "axes fraction"), textcoords="offset points",
                          color=_BLUE, rotation=90, va="top")  # fmt: skip
            continue
        hollow = point.kind == "predicted"
        axes.plot(
            point.intensity,
            point.rate,
            "D" if hollow else "o",
            markersize=8,
            color="white" if hollow else shade[point.label],
            markeredgecolor=shade[point.label] if hollow else _INK,
            markeredgewidth=1.5,
        )
        axes.annotate(f"{point.label}\n({point.kind})", (point.intensity, point.rate),
                      xytext=(8, -4), textcoords="offset points", fontsize=8, va="top")  # fmt: skip
    rates = [p.rate for p in points if p.kind != "floor" and p.rate > 0]
    axes.set(xscale="log", yscale="log", xlim=(low, high),
             ylim=(min([*rates, bandwidth * low]) / 3, top * 3))  # fmt: skip
    axes.set_xlabel("operations per byte of DRAM traffic (flop/byte)", fontsize=9)
    axes.set_ylabel("rate (flop/s)", fontsize=9)
    axes.set_title(title, fontsize=10)
    _plain(axes)
    return chart


def line_costs(
    lines: Sequence[Mapping[str, object]],
    source: Sequence[str] = (),
    axes: Axes | None = None,
    most: int = 8,
) -> Chart | None:
    """Draw the dearest source lines: what they take of all sectors or wavefronts, and the least.

    Parameters
    ----------
    lines : rows with line, space, kind, units, ideal_units, share (0 to 1 of its space).
    source : the file's lines, quoted beside the bars.
    axes : to draw into; a new chart, which is returned, without.
    most : lines shown.
    """
    chart = None
    rows = sorted(lines, key=lambda row: -row["units"])[:most]
    if axes is None:
        chart = Chart(6.4, 1.2 + 0.45 * max(len(rows), 1))
        axes = chart.subplots()
    names = {"global": ("sectors (global)", _BLUE), "shared": ("wavefronts (shared)", _ORANGE)}
    labels, seen = [], set()
    for y, row in enumerate(rows):
        name, color = names[row["space"]]
        axes.barh(y, row["units"], color=color, edgecolor=_INK, linewidth=0.6,
                  label=None if name in seen else name)  # fmt: skip
        seen.add(name)
        axes.plot([row["ideal_units"]] * 2, [y - 0.45, y + 0.45], color="black", linewidth=2)
        axes.annotate(f"{row['share']:.0%}", (row["units"], y), xytext=(4, 0), fontsize=8,
                      textcoords="offset points", va="center")  # fmt: skip
        text = source[row["line"] - 1].strip() if 0 < row["line"] <= len(source) else ""
        text = (text if len(text) <= 30 else text[:29] + "…").replace("$", r"\$")
        labels.append(f"{row['line']} {row['kind']}  {text}")
    axes.set_yticks(range(len(rows)), labels, fontsize=7.5, family="monospace")
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max([row["units"] for row in rows], default=1))
    axes.set_xlabel("sectors or wavefronts; black: the least", fontsize=9)
    if seen:
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    _plain(axes)
    return chart


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


def requests(shown: Sequence[Request], title: str = "", where: str = "") -> Chart:
    """Draw some requests below each other: lines of global memory, banks of shared memory.

    Of global memory each 128-byte line that is touched is a row, with a cell for each 4-byte word,
    shaded by lane ("+": several lanes want it); the 32-byte sectors that must move are framed. Of
    shared memory each of the 32 banks is a column, and each wavefront a row: words of one bank lie
    one below the other, framed where there are more than need be; lanes that share a word are one
    cell (a broadcast). Of 16 bytes, half a warp is served at a time.

    Parameters
    ----------
    shown : what each of them touches.
    title, where : two lines of heading.
    """
    drawn = [_Lines(r) if r.space == "global" else _Banks(r) for r in shown]
    heights = [1.0 + (0.28 if each.rows <= 12 else 0.18) * each.rows for each in drawn]
    heading = "\n".join(part for part in (title, where) if part)
    chart = Chart(8, sum(heights) + 0.4 + 0.2 * heading.count("\n"))
    panels = chart.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, each, request in zip(panels, drawn, shown, strict=True):
        each.draw(axes)
        text = f"{request.kind} of {request.array or request.space}: {each.summary}"
        axes.set_title(text.replace("$", r"\$"), fontsize=10)
    if heading:
        chart.suptitle(heading.replace("$", r"\$"), fontsize=10, family="monospace")
    return chart


class _Lines:
    """128-byte lines of global memory, one below the other, with what a request touches of them."""

    def __init__(self, request: Request) -> None:
        self.name, self.words = request.array, _words(request.lanes, request.width)
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
            axes.add_patch(Rectangle((sector % 4 * 8 - 0.5, at[sector // 4] - 0.5), 8, 1,
                                     fill=False, edgecolor=_RED, linewidth=1.8))  # fmt: skip
        for y, (before, line) in enumerate(zip(self.lines, self.lines[1:], strict=False)):
            if line != before + 1:  # what lies between is not drawn
                axes.axhline(y + 0.5, color=_INK, linewidth=1.2, linestyle=(0, (2, 2)))
        labels = [f"{128 * line:,}" for line in self.lines]
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_ylabel("byte", fontsize=9)
        axes.set_xticks(range(0, 32, 8), [f"+{4 * x}" for x in range(0, 32, 8)], fontsize=8)
        axes.set_xlabel(
            f"byte of the 128-byte line of {self.name or 'memory'}; framed: the 32-byte sectors "
            "that move; number: lane, +: and others", fontsize=9,
        )  # fmt: skip


class _Banks:
    """The 32 banks of shared memory, and the wavefronts in which they serve a request."""

    def __init__(self, request: Request) -> None:
        self.name = request.array
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
            axes.add_patch(Rectangle((bank - 0.5, y - 0.5), 1, count, fill=False, edgecolor=_RED,
                                     linewidth=1.8))  # fmt: skip
        for y in self.halves[:-1]:
            axes.axhline(y - 0.5, color=_INK, linewidth=1.2, linestyle=(0, (2, 2)))
        axes.set_yticks(range(self.rows), [str(y + 1) for y in range(self.rows)], fontsize=8)
        axes.set_ylabel("wavefront", fontsize=9)
        axes.set_xticks(range(0, 32, 4), [str(x) for x in range(0, 32, 4)], fontsize=8)
        framed = "; framed: a conflict" if self.conflicts else ""
        axes.set_xlabel(f"bank of {self.name or 'shared memory'}; number: lane, +: a broadcast"
                        f"{framed}", fontsize=9)  # fmt: skip


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
    _lane_image(axes, grid)
    for (y, x), lanes in cells.items():
        _number_lane(axes, x, y, lanes[0], "+" if len(lanes) > 1 else "")


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


def footprint(
    x: Touched | None, y: Touched | None, pad: tuple[int, int] = (0, 0), title: str = ""
) -> Chart:
    """Draw the input that a block read beside the output that it wrote; None: nothing of it."""
    chart = Chart(8, 4.2)
    left, right = chart.subplots(1, 2)
    words = []
    for axes, part, name, what in ((left, x, "x", "read"), (right, y, "y", "written")):
        axes.set_xlabel("w (column)" if name == "x" else "q (column)", fontsize=9)
        axes.set_ylabel("h (row)" if name == "x" else "p (row)", fontsize=9)
        axes.tick_params(labelsize=8)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        if part is None:
            axes.set_title(f"nothing of {name} is {what}", fontsize=9)
            axes.set(xticks=[], yticks=[])
            continue
        (rows, columns), (top, first) = part.grid.shape, part.corner
        shades = colormaps["cividis"].with_extremes(under="white")
        high = max(part.grid.max(), 1)
        drawn = axes.imshow(part.grid, cmap=shades, vmin=0.5, vmax=max(high, 1.5), aspect="auto",
                            interpolation="nearest", origin="upper",
                            extent=(first, first + columns, top + rows, top))  # fmt: skip
        bar = chart.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02)
        bar.set_label(f"times {what}, all channels", fontsize=8)
        bar.ax.tick_params(labelsize=8)
        axes.add_patch(Rectangle((0, 0), part.size[1], part.size[0], fill=False, edgecolor=_INK,
                                 linewidth=1.5))  # fmt: skip
        margin = max(2, max(rows, columns) // 8)
        border = pad if name == "x" else (0, 0)
        axes.set_xlim(
            max(first - margin, -border[1] - 1),
            min(first + columns + margin, part.size[1] + border[1] + 1),
        )
        axes.set_ylim(
            min(top + rows + margin, part.size[0] + border[0] + 1),
            max(top - margin, -border[0] - 1),
        )
        axes.set_title(f"{name}: rows {top} to {top + rows - 1}, columns {first} to "
                       f"{first + columns - 1}\nof image {part.image}, {part.channels} channel"
                       f"{'s' * (part.channels != 1)}", fontsize=9)  # fmt: skip
        words.append(f"{part.elements:,} elements of {name} {what}"
                     + (f", each {_times(part.accesses / part.elements)}" if name == "x" else "")
                     + (f", of {part.images} images" if part.images > 1 else ""))  # fmt: skip
    text = "; ".join(words)
    chart.suptitle(f"{title}\n{text}" if title else text, fontsize=10)
    return chart


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.3g} times"


def _lane_image(axes: Axes, grid: np.ndarray) -> None:
    shades = colormaps["cividis"].with_extremes(bad="white")
    axes.imshow(grid, cmap=shades, vmin=0, vmax=31, aspect="auto", interpolation="nearest")
    axes.set_xticks(np.arange(33) - 0.5, minor=True)
    axes.set_yticks(np.arange(grid.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=_PALE, linewidth=0.5)
    axes.tick_params(which="minor", length=0)


def _number_lane(axes: Axes, x: int, y: int, lane: int, mark: str = "") -> None:
    axes.text(x, y, f"{lane}{mark}", ha="center", va="center", fontsize=6.5,
              color="white" if lane < 18 else "black")  # fmt: skip


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=_PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=9)
