"""Draw figures: errors and costs, maps of the error, A/B, sweeps, history.

The functions take data frames and small numpy arrays, never a tensor. Every mark has a label or a
shape besides its colour, so that a figure is readable in grey print.
"""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from .plot import COST_LABELS, INK, PALETTE, QUIET, Chart, color_of, colors, styled
from .table import short

_WRONG = "#D55E00"
# The decades below and above 1 on the colour scale of an error map.
_BELOW = 3
_ABOVE = 5
# The most bars in a panel of a sweep.
_MOST_BARS = 24
# The most ticks of an axis of a heat map; a larger map shows no numbers.
_MOST_TICKS = 12
# The most notes below a history.
_MOST_NOTES = 8


@styled
def error_and_cost(frame: pd.DataFrame, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Draw each kernel's relative error, and next to it its time (GPU) or its simulated traffic.

    The left panel has the error and the bound of its class. The right panel has the cost, the floor
    (the theoretical minimum) as a line, and the ratio of both as a number. `frame` has the rows of
    a `Comparison`.
    """
    rows = frame.reset_index(drop=True)
    count = max(len(rows), 1)
    chart = Chart(8, 1.9 + 0.46 * count + 0.16 * len(notes))
    left, right = chart.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    shade = colors(rows["kernel"])
    rows["shade"] = [shade[name] for name in rows["kernel"]]
    left.set_yticks(range(len(rows)), _labels(rows))
    left.set_ylim(count - 0.4, -0.6)
    _draw_errors(left, rows)
    _draw_costs(right, rows)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
    return chart.headed(title, notes)


@styled
def error_map(
    pixels: np.ndarray,
    channels: np.ndarray,
    shape: tuple[int, int, int, int],
    title: str = "",
    notes: Sequence[str] = (),
) -> Chart:
    """Draw two maps of the error divided by its limit: over (p, q) and over (n, k).

    `pixels` and `channels` are fields of a `Report`. `shape` is (N, K, P, Q); the axes show it even
    if the maps are pooled. Both maps have one logarithmic colour scale. Up to 1, the largest correct
    value, colours are pale blue; above it yellow to dark red; NaN and inf are black. Darker is
    worse, also in grey print.
    """
    N, K, P, Q = shape
    lines = [line for note in notes for line in textwrap.wrap(note, 110)]
    chart = Chart(8, 4.1 + 0.16 * len(lines))
    left, right = chart.subplots(1, 2)
    _draw_error_map(left, pixels, (P, Q), ("p (row)", "q (column)"), "largest over n, k")
    image = _draw_error_map(
        right, channels, (N, K), ("n (image)", "k (output channel)"), "largest over p, q"
    )
    scale = chart.colorbar(image, ax=[left, right], shrink=0.9, extend="both")
    scale.set_label("error / limit (above 1: incorrect; black: NaN or inf)")
    scale.set_ticks([10.0**i for i in range(-_BELOW, _ABOVE + 1)])
    scale.ax.axhline(1, color="black", linewidth=1.2)
    return chart.headed(title, lines)


def _draw_error_map(
    axes: Axes, ratios: np.ndarray, shape: tuple[int, int], labels: tuple[str, str], what: str
) -> AxesImage:
    """Draw a map over two dimensions (rows, columns) of y; the map may be pooled."""
    rows, columns = shape
    norm = LogNorm(10**-_BELOW, 10**_ABOVE)
    shown = np.where(np.isfinite(ratios), np.clip(ratios, norm.vmin, norm.vmax), np.nan)
    # The number of rows and columns of y in a cell of the map.
    cell_rows = -(-rows // shown.shape[0])
    cell_columns = -(-columns // shown.shape[1])
    bottom = cell_rows * shown.shape[0] - 0.5
    end = cell_columns * shown.shape[1] - 0.5
    image = axes.imshow(
        shown,
        norm=norm,
        cmap=_error_colors(),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, end, bottom, -0.5),
    )
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set(xlabel=labels[1], ylabel=labels[0])
    for axis, size in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 8, 10], integer=True))
        if size == 1:
            axis.set_ticks([0])
    incorrect = int((~(ratios <= 1)).sum())
    is_pooled = max(cell_rows, cell_columns) > 1
    pooled = f" ({cell_rows} x {cell_columns} outputs each)" if is_pooled else ""
    axes.set_title(f"{what}: {incorrect:,} of {ratios.size:,} cells{pooled} above 1", fontsize=9)
    return image


def _labels(rows: pd.DataFrame) -> list[str]:
    """Return the kernels' titles, cut to fit the margin; their names where two would be equal."""

    def cut(label: str) -> str:
        return label if len(label) <= 30 else label[:29] + "…"

    titles = rows["title"].map(cut)
    is_unique = ~titles.duplicated(keep=False) & (titles != "")
    return list(titles.where(is_unique, rows["kernel"].map(cut)))


def _draw_errors(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw each kernel's relative error and the bound of its class."""
    axes.set_xlabel("relative error against float64")
    values = [v for v in (*rows["error"], *rows["bound"]) if math.isfinite(v) and v > 0]
    low = 10 ** math.floor(math.log10(min(values, default=1e-8)) - 0.5)
    high = 10 ** math.ceil(math.log10(max(values, default=1e-2)) + 0.7)
    _logarithmic(axes, low, high, 5)
    for y, row in enumerate(rows.itertuples()):
        if math.isfinite(row.bound):
            axes.plot([row.bound] * 2, [y - 0.33, y + 0.33], color=INK)
        if math.isnan(row.error):
            # The kernel has no result.
            text, ink = ("unsupported", QUIET) if pd.isna(row.correct) else ("failed", _WRONG)
            _note(axes, text, (low, y), 4, color=ink)
            continue
        x = min(max(row.error, low * 1.3), high / 1.3)
        if row.correct:
            axes.plot(x, y, "o", markersize=8, color=row.shade, markeredgecolor=INK)
            continue
        axes.plot(x, y, "X", markersize=10, color=_WRONG, markeredgecolor=INK)
        away, side = (-9, "right") if x > math.sqrt(low * high) else (9, "left")
        text = "incorrect >" if row.error > high else "incorrect"
        _note(axes, text, (x, y), away, color=_WRONG, ha=side)
    _legend(axes, "bound of its class", color=INK, markeredgewidth=1.6)


def _draw_costs(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw each kernel's time or traffic, and its floor."""
    timed = "time_ms" in rows
    cost, floor, unit = ("time_ms", "floor_ms", "ms") if timed else ("traffic_mb", "floor_mb", "MB")
    axes.set_xlabel(COST_LABELS[cost])
    if cost not in rows or not rows[cost].notna().any():
        _nothing(axes)
        return
    largest = rows[cost].max()
    least = rows[floor].min()
    # The space to the right of the bars, for their labels. `correct` is None if it is unsupported.
    room = 1.0 if rows["correct"].isin([False]).any() else 0.65
    # On a linear scale a floor that is far smaller would be invisible at the left edge.
    if least > 0 and largest > 30 * least:
        left = min(least, rows[cost].min()) / 2
        _logarithmic(axes, left, largest * (largest / left) ** room, 6)
        axes.set_xlabel(f"{COST_LABELS[cost]}, log scale")
    else:
        axes.set_xlim(0, max(largest, rows[floor].max()) * (1 + room) or 1)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    for y, row in enumerate(rows.to_dict("records")):
        x = row[cost]
        if math.isnan(x):
            continue
        look = {"color": row["shade"]} if row["correct"] else {"color": "white", "hatch": "////"}
        axes.barh(y, x, height=0.62, edgecolor=INK, linewidth=0.8, **look)
        for color, width in (("black", 2.2), ("white", 0.7)):
            axes.plot([row[floor]] * 2, [y - 0.45, y + 0.45], color=color, linewidth=width)
        if timed:
            half = x * row.get("spread_pct", 0) / 200
            axes.plot([x - half, x + half], [y, y], color=INK, linewidth=1.2)
        text = f"{short(x)} {unit}, {short(row['x_floor'])}x floor"
        # The label is at the end of its bar. A white box keeps it readable over the floor's line.
        _note(
            axes,
            text + " (incorrect)" * (not row["correct"]),
            (x, y),
            5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    _legend(axes, "floor (theoretical minimum)", color="black", markeredgewidth=2)


def _logarithmic(axes: Axes, low: float, high: float, ticks: int) -> None:
    """Set a logarithmic x axis with these limits and at most this many ticks."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(numticks=ticks))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _note(axes: Axes, text: str, at: tuple[float, float], right: float, **options: object) -> None:
    """Write a text next to a mark, `right` points to the right of it."""
    options = {"va": "center", "fontsize": 8, "color": INK} | options
    axes.annotate(text, at, xytext=(right, 0), textcoords="offset points", **options)


def _nothing(axes: Axes) -> None:
    """Write that there is nothing to draw."""
    axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center")
    axes.set_axis_off()


def _legend(axes: Axes, label: str, **options: object) -> None:
    """Add a legend for vertical lines."""
    mark = Line2D([], [], marker="|", linestyle="", markersize=9, **options)
    axes.legend(
        [mark], [label], loc="lower right", bbox_to_anchor=(1, 1), borderpad=0, handletextpad=0.2
    )


def _error_colors() -> Colormap:
    """Return the colours of an error map: white to pale blue up to 1, above it yellow to dark red.

    NaN and inf are black.
    """
    turn = _BELOW / (_BELOW + _ABOVE)
    shades = [(0, "#FFFFFF"), (turn, "#9CC9E8")]
    shades += [(turn, "#F6C445"), (0.6, "#E07B1F"), (1, "#7A1403")]
    return LinearSegmentedColormap.from_list("error", shades).with_extremes(bad="black")


@styled
def ab_chart(
    modes: pd.DataFrame,
    rounds: pd.DataFrame,
    threshold: float,
    title: str = "",
    notes: Sequence[str] = (),
) -> Chart:
    """Draw B's time over A's: the estimate with its interval, and the ratio of each round.

    `modes` and `rounds` are the `frame` and `samples` of an `AB`. For counters the figure has one
    bar for each ratio. The grey band is "the same": within `threshold` of 1.
    """
    chart = Chart(8, 2.2 + 0.34 * max(len(modes), 1) + 0.16 * len(notes))
    if "mode" in modes:
        left, right = chart.subplots(1, 2, width_ratios=(3, 2))
        _draw_intervals(left, modes, threshold)
        _draw_rounds(right, rounds, threshold)
        return chart.headed(title, notes)
    axes = chart.subplots()
    if "counter" in modes and len(modes):
        # A counter that is 0 for A has no ratio.
        modes = modes[np.isfinite(modes["ratio"])]
        axes.barh(modes["counter"], modes["ratio"], height=0.6)
        for y, value in enumerate(modes["ratio"]):
            _note(axes, short(value), (value, y), 4)
        axes.axvline(1, color=INK, linewidth=1)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("count of B / count of A (simulated; says nothing about speed)")
    else:
        _nothing(axes)
    return chart.headed(title, notes)


def _draw_intervals(axes: Axes, modes: pd.DataFrame, threshold: float) -> None:
    """Draw the ratio of each mode with its interval."""
    axes.axvspan(1 - threshold, 1 + threshold, color="#DDDDDD", label="the same")
    axes.axvline(1, color=INK, linewidth=1)
    for y, row in enumerate(modes.itertuples()):
        color = PALETTE[y % 2]
        marker = "os"[y % 2]
        if math.isfinite(row.low) and math.isfinite(row.high):
            axes.plot([row.low, row.high], [y, y], "|-", color=color, linewidth=2.5, markersize=9)
        axes.plot(row.ratio, y, marker, color=color, markersize=7)
        text = f"{row.verdict}, {row.ratio:.4f}, {row.rounds} rounds"
        axes.annotate(
            text, (row.ratio, y), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_yticks(range(len(modes)), list(modes["mode"]))
    axes.set_ylim(len(modes) - 0.4, -0.7)
    axes.margins(x=0.35)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("time of B / time of A, 95% interval (grey: the same)")


def _draw_rounds(axes: Axes, rounds: pd.DataFrame, threshold: float) -> None:
    """Draw the ratio of each round."""
    axes.axhspan(1 - threshold, 1 + threshold, color="#DDDDDD")
    axes.axhline(1, color=INK, linewidth=1)
    for i, (mode, group) in enumerate(rounds.groupby("mode", sort=False)):
        axes.plot(
            group["round"],
            group["ratio"],
            "os"[i % 2],
            color=PALETTE[i % 2],
            markersize=3,
            label=mode,
        )
    if len(rounds):
        axes.legend()
        low, high = rounds["ratio"].quantile([0.02, 0.98])
        low = min(low, 1 - 1.5 * threshold)
        high = max(high, 1 + 1.5 * threshold)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.set(xlabel="round", ylabel="time of B / time of A")


@styled
def sweep_chart(frame: pd.DataFrame, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Draw the cost of each combination of tunables, with a panel for each problem.

    `frame` has the rows of a `Sweep`, and the names of the tunables in ``attrs["tunables"]``. Two
    tunables give a heat map; any other number gives bars of the best 24 combinations.
    """
    names = list(frame.attrs.get("tunables", ()))
    timed = "time_ms" in frame and frame["time_ms"].notna().any()
    cost = "time_ms" if timed else "traffic_mb"
    unit = COST_LABELS[cost]
    rows = frame.dropna(subset=cost) if cost in frame else frame
    groups = list(rows.groupby("problem", sort=False)) if len(rows) else []
    bars = min(_MOST_BARS, max((len(group) for _, group in groups), default=1))
    height = 3.4 if len(names) == 2 else 1.4 + 0.24 * bars
    chart = Chart(max(5.0, 4.4 * len(groups)), height + 0.16 * len(notes))
    panels = chart.subplots(1, max(len(groups), 1), squeeze=False)[0]
    for axes, (problem, group) in zip(panels, groups, strict=False):
        axes.set_title(problem, fontsize=9)
        if len(names) == 2:
            table = group.pivot_table(index=names[0], columns=names[1], values=cost)
            chart.colorbar(_draw_map(axes, table), ax=axes, label=unit)
            continue
        best = group.nsmallest(_MOST_BARS, cost)
        labels = [name.partition("@")[2] or name for name in best["kernel"]]
        shades = [color_of(name.partition("@")[0]) for name in best["kernel"]]
        axes.barh(labels, best[cost], color=shades, edgecolor=INK, linewidth=0.6, height=0.62)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
    if not groups:
        _nothing(panels[0])
    return chart.headed(title, notes)


def _draw_map(axes: Axes, table: pd.DataFrame) -> AxesImage:
    """Draw a table as a heat map, with a star at the lowest value.

    A map with few cells shows all values as numbers.
    """
    values = table.to_numpy()
    image = axes.imshow(values, cmap="cividis_r", aspect="auto")
    for axis, labels in ((axes.xaxis, table.columns), (axes.yaxis, table.index)):
        step = -(-len(labels) // _MOST_TICKS)
        axis.set_ticks(range(0, len(labels), step), labels[::step])
    axes.set(xlabel=table.columns.name, ylabel=table.index.name)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for (i, j), value in np.ndenumerate(values):
        least = value == np.nanmin(values)
        if math.isfinite(value) and (least or max(values.shape) <= _MOST_TICKS):
            text = f"{short(value)} *" if least else short(value)
            axes.text(j, i, text, ha="center", va="center", fontsize=8, bbox=box)
    return image


@styled
def history_chart(frame: pd.DataFrame, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Draw the cost of kernels in each receipt, the newest at the bottom, a panel for each problem.

    `frame` has the rows of a `History`. A mark shows the median, a bar the range between the
    quartiles, and the label the median and the first digits of the source's digest.
    """
    groups = list(frame.groupby(["problem", "mode", "unit"], sort=False))
    places = list(dict.fromkeys(zip(frame["when"], frame["gpu"], strict=True)))
    shown = list(notes[:_MOST_NOTES])
    chart = Chart(max(7.0, 4.6 * len(groups)), 1.8 + 0.55 * len(places) + 0.16 * len(shown))
    panels = chart.subplots(1, max(len(groups), 1), squeeze=False, sharey=True)[0]
    shade = colors(frame["kernel"])
    for axes, ((problem, mode, unit), rows) in zip(panels, groups, strict=False):
        axes.set_title(f"{problem}, {mode}" if mode else problem, fontsize=9)
        axes.set_xlabel(COST_LABELS["time_ms" if unit == "ms" else "traffic_mb"])
        for i, (kernel, own) in enumerate(rows.groupby("kernel", sort=False)):
            ys = [places.index(place) for place in zip(own["when"], own["gpu"], strict=True)]
            look = {"color": shade[kernel], "marker": "osD^v"[i % 5], "markeredgecolor": INK}
            axes.plot(own["cost"], ys, linestyle=":", label=kernel, **look)
            axes.hlines(ys, own["low"], own["high"], color=shade[kernel], linewidth=2.5)
            for y, row in zip(ys, own.itertuples(), strict=True):
                # The labels of two kernels are on different sides, so that they do not overlap.
                away = -13 if i % 2 else 7
                axes.annotate(
                    f"{short(row.cost)} {row.source or ''}",
                    (row.cost, y),
                    fontsize=7,
                    xytext=(0, away),
                    textcoords="offset points",
                    ha="center",
                )
        axes.set_yticks(range(len(places)), [f"{when}\n{gpu}" for when, gpu in places], fontsize=8)
        axes.set_ylim(len(places) - 0.4, -0.8)
        axes.margins(x=0.2)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.grid(axis="x")
        axes.legend(fontsize=7)
    if not groups:
        _nothing(panels[0])
    return chart.headed(title, shown)
