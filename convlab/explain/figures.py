"""Figures that explain: the roofline, what lines cost, which addresses a warp touches.

All of them draw plain data (numbers, lists of addresses), so that a notebook can call them with
what it worked out by hand. Style and colours are those of `plot.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..plot import Chart, colors

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
            axes.annotate(point.label, (point.intensity, 0.02), xytext=(3, 0), fontsize=8,
                          xycoords=("data", "axes fraction"), textcoords="offset points",
                          color=_BLUE, rotation=90, va="bottom")  # fmt: skip
            continue
        hollow = point.kind == "predicted"
        axes.plot(point.intensity, point.rate, "D" if hollow else "o", markersize=8,
                  color="white" if hollow else shade[point.label],
                  markeredgecolor=shade[point.label] if hollow else _INK, markeredgewidth=1.5)
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


def access_map(
    addresses: Mapping[int, int] | Sequence[int], width: int = 4, name: str = "", title: str = ""
) -> Chart:
    """Draw which bytes of memory the lanes of a warp touch in one request.

    Parameters
    ----------
    addresses : the byte address (or offset in the array) of each lane; lanes that are idle are
        left out of the mapping.
    width : bytes that a lane moves: 4, 8 or 16.
    name : of the array.
    title : the heading.

    Returns
    -------
    Chart
        A row for each 128-byte line that is touched, a cell for each 4-byte word, shaded by lane;
        32-byte sectors that must move are framed.
    """
    lanes = _lanes(addresses)
    words: dict[int, int] = {}
    for lane, address in lanes.items():
        for word in range(address // 4, (address + width - 1) // 4 + 1):
            words.setdefault(word, lane)
    rows = sorted({word // 32 for word in words})
    shown = rows[:24]
    sectors = {word // 8 for word in words}
    chart = Chart(8, 1.4 + 0.28 * max(len(shown), 1))
    axes = chart.subplots()
    grid = np.full((max(len(shown), 1), 32), np.nan)
    for word, lane in words.items():
        if word // 32 in shown:
            grid[shown.index(word // 32), word % 32] = lane
    _lane_image(axes, grid)
    for sector in sectors:
        if sector // 4 in shown:
            y = shown.index(sector // 4)
            axes.add_patch(Rectangle((sector % 4 * 8 - 0.5, y - 0.5), 8, 1, fill=False,
                                     edgecolor=_RED, linewidth=1.8))  # fmt: skip
    for y, x in zip(*np.nonzero(~np.isnan(grid)), strict=True):
        _number_lane(axes, x, y, int(grid[y, x]))
    axes.set_yticks(range(len(shown)), [f"{128 * row:#x}" for row in shown], fontsize=8)
    axes.set_xticks(range(0, 32, 8), [f"+{4 * x}" for x in range(0, 32, 8)], fontsize=8)
    axes.set_xlabel(f"byte of the 128-byte line of {name or 'memory'}; number: lane", fontsize=9)
    asked, moved = width * len(lanes), 32 * len(sectors)
    more = f"; {len(rows) - len(shown)} lines more" if len(rows) > len(shown) else ""
    summary = f"{len(sectors)} sectors, {moved} bytes moved for {asked} asked{more}"
    axes.set_title(f"{title}: {summary}" if title else summary, fontsize=10)
    return chart


def bank_grid(
    addresses: Mapping[int, int] | Sequence[int], width: int = 4, name: str = "", title: str = ""
) -> Chart:
    """Draw which banks of shared memory the lanes of a warp meet in one request.

    Parameters
    ----------
    addresses : the byte offset of each lane in shared memory; idle lanes are left out.
    width : bytes that a lane moves.
    name, title : of the array; the heading.

    Returns
    -------
    Chart
        A column for each of the 32 banks, a row for each wavefront: words of one bank lie one
        below the other; lanes that share a word are one cell (a broadcast), marked with "+".
    """
    wanted: dict[int, list[int]] = {}
    for lane, address in _lanes(addresses).items():
        for word in range(address // 4, (address + width - 1) // 4 + 1):
            wanted.setdefault(word, []).append(lane)
    banks: list[list[int]] = [[] for _ in range(32)]
    for word in sorted(wanted):
        banks[word % 32].append(word)
    depth = max(map(len, banks))
    chart = Chart(8, 1.4 + 0.28 * max(depth, 1))
    axes = chart.subplots()
    grid = np.full((max(depth, 1), 32), np.nan)
    for bank, held in enumerate(banks):
        for y, word in enumerate(held):
            grid[y, bank] = wanted[word][0]
    _lane_image(axes, grid)
    for bank, held in enumerate(banks):
        for y, word in enumerate(held):
            _number_lane(axes, bank, y, wanted[word][0], "+" if len(wanted[word]) > 1 else "")
    axes.set_yticks(range(depth), [str(y + 1) for y in range(depth)], fontsize=8)
    axes.set_ylabel("wavefront", fontsize=9)
    axes.set_xticks(range(0, 32, 4), [str(x) for x in range(0, 32, 4)], fontsize=8)
    axes.set_xlabel(f"bank of {name or 'shared memory'}; number: lane, +: a broadcast", fontsize=9)
    least = math.ceil(len(wanted) / 32)
    summary = f"{depth} wavefront{'s' * (depth != 1)}, {least} would do"
    axes.set_title(f"{title}: {summary}" if title else summary, fontsize=10)
    return chart


def tile_and_halo(
    image: tuple[int, int],
    outputs: tuple[int, int],
    corner: tuple[int, int],
    tile: tuple[int, int],
    filter_size: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    title: str = "",
) -> Chart:
    """Draw the output tile of a block beside the input, halo included, that it reads.

    Parameters
    ----------
    image, outputs : (H, W) and (P, Q).
    corner, tile : (p, q) of the tile's first output, and its size.
    filter_size, stride, padding, dilation : pairs (height, width).
    title : the heading.

    Returns
    -------
    Chart
        Left the input (zeros of the padding outside its frame) with what the tile reads, right
        the output with the tile; the title tells how much is read more than once.
    """
    chart = Chart(8, 3.9)
    left, right = chart.subplots(1, 2)
    first = [c * s - p for c, s, p in zip(corner, stride, padding, strict=True)]
    extent = [
        (t - 1) * s + (f - 1) * d + 1
        for t, s, f, d in zip(tile, stride, filter_size, dilation, strict=True)
    ]
    core = [t * s for t, s in zip(tile, stride, strict=True)]
    half = [(f - 1) * d // 2 for f, d in zip(filter_size, dilation, strict=True)]
    _frame(left, image, padding, "w (column)", "h (row)", "input")
    _frame(right, outputs, (0, 0), "q (column)", "p (row)", "output")
    left.add_patch(Rectangle((first[1], first[0]), extent[1], extent[0], facecolor=_ORANGE,
                             alpha=0.45, edgecolor=_INK, label="tile and halo"))  # fmt: skip
    left.add_patch(Rectangle((first[1] + half[1], first[0] + half[0]), min(core[1], extent[1]),
                             min(core[0], extent[0]), fill=False, edgecolor=_INK, linestyle="--",
                             label="without halo"))  # fmt: skip
    right.add_patch(Rectangle((corner[1], corner[0]), tile[1], tile[0], facecolor=_BLUE,
                              alpha=0.6, edgecolor=_INK, label="tile"))  # fmt: skip
    for axes in (left, right):
        axes.legend(fontsize=8, loc="upper right")
    more = extent[0] * extent[1] / max(core[0] * core[1], 1)
    text = f"{extent[0]} x {extent[1]} inputs for {tile[0]} x {tile[1]} outputs, {more:.2f} times"
    chart.suptitle(f"{title}: {text}" if title else text, fontsize=10)
    return chart


def _frame(axes: Axes, size: tuple[int, int], pad: tuple[int, int], x: str, y: str, title: str):
    axes.add_patch(Rectangle((0, 0), size[1], size[0], fill=False, edgecolor=_INK, linewidth=1.5))
    axes.set_xlim(-pad[1] - 1, size[1] + pad[1] + 1)
    axes.set_ylim(size[0] + pad[0] + 1, -pad[0] - 1)
    axes.set_aspect("equal")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8)


def _lanes(addresses: Mapping[int, int] | Iterable[int]) -> dict[int, int]:
    return dict(addresses if isinstance(addresses, Mapping) else enumerate(addresses))


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
