"""Rows to figures: errors beside costs, and where a wrong result is wrong.

Takes data frames and small numpy arrays, never a tensor, and needs no display. The first colours
are Okabe and Ito's (https://jfly.uni-koeln.de/color/), told apart in colour blindness; every mark
is also labelled or shaped, so that grey print does. The background is white whatever the
notebook's theme.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import cycler, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442",  # Okabe and Ito
    "#101040", "#661100", "#B2DF8A",
)  # fmt: skip
_OWN = ("#882255", "#332288", "#666633", "#663333")  # kernels that are no rung
_VARIANTS = (-0.5, 0.4, -0.75, 0.7)  # of a rung, "b" to "e": darker (below 0) or lighter
_TUNED = (0.3, -0.3, 0.55, -0.55, 0.15)
_BASELINES = {"cudnn:fp32": "#4D4D4D", "cudnn:tf32": "#A6A6A6"}
_OTHER_BASELINE = "#7F7F7F"
_WRONG = "#D55E00"
_INK = "#222222"
# The cost's column in a comparison's or a sweep's frame, and what it is.
COST_LABELS = {
    "time_ms": "time on the GPU (ms)",
    "traffic_mb": "simulated global memory traffic (MB)",
}
_BELOW, _ABOVE = 3, 5  # decades that the map of the error shows below and above what is allowed


class Chart(Figure):
    """A matplotlib Figure that stands outside pyplot: it shows in a notebook, once, by itself."""

    def __init__(self, width: float, height: float, dpi: int = 100) -> None:
        super().__init__(figsize=(width, height), dpi=dpi, facecolor="white", layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write the figure, as the kind of file that the path's ending names; return the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.savefig(path)
        return path


def style() -> None:
    """Set matplotlib's defaults to the look of convlab's figures; for the top of a notebook.

    A white card with dark ink, so that a figure reads the same in a light and in a dark theme;
    sizes that are legible at the width of a page; `PALETTE` for lines without a colour of their own.
    """
    rcParams.update({
        "figure.facecolor": "white", "savefig.facecolor": "white", "axes.facecolor": "white",
        "text.color": _INK, "axes.labelcolor": _INK, "axes.titlecolor": _INK,
        "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
        "figure.constrained_layout.use": True, "figure.figsize": (8, 3.2), "figure.dpi": 100,
        "font.size": 9, "figure.titlesize": 11, "axes.titlesize": 10, "axes.labelsize": 9,
        "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
        "axes.prop_cycle": cycler(color=PALETTE), "axes.axisbelow": True, "grid.color": "#DDDDDD",
        "grid.linewidth": 0.7, "lines.linewidth": 1.6, "image.cmap": "cividis",
    })  # fmt: skip


def color_of(name: str) -> str:
    """Return a kernel's colour, which follows from its name alone: the same in every figure.

    A rung ("03_smem_tile") has the colour of its number, its variants ("02b_", "02c_") darker and
    lighter shades of it, one with tunables ("03_smem_tile@TILE=8") a shade between. Baselines (a
    name with ":") are greys. Any other kernel has one of four colours that no rung has.

    Returns
    -------
    str
        "#RRGGBB".
    """
    return _wheel(name)[0]


def colors(names: Iterable[str]) -> dict[str, str]:
    """Return each kernel's colour: `color_of`, but where two that are no rungs meet, one moves on.

    Rungs and baselines keep theirs, whatever else is in the figure.
    """
    chosen: dict[str, str] = {}
    for name in sorted(set(names), key=lambda name: (len(_wheel(name)), name)):
        taken = set(chosen.values())
        wheel = _wheel(name)
        chosen[name] = next((color for color in wheel if color not in taken), wheel[0])
    return chosen


def _wheel(name: str) -> list[str]:
    """Return a kernel's own colour, then those that it may take where that one is taken."""
    name = re.sub(r"#[^@]*", "", name)  # the mark of a pinned version
    if ":" in name.partition("@")[0]:
        return [_BASELINES.get(name, _OTHER_BASELINE)]
    stem, _, tunables = name.partition("@")
    rung = re.match(r"(\d+)([a-e]?)_", stem)
    first = zlib.crc32(name.encode())
    if rung:
        color = PALETTE[(int(rung[1]) - 1) % len(PALETTE)]
        color = _shade(color, _VARIANTS["bcde".index(rung[2])] if rung[2] > "a" else 0)
    else:
        begin = zlib.crc32(stem.encode())
        own = [_OWN[(begin + i) % len(_OWN)] for i in range(len(_OWN))]
        if not tunables:
            return own
        color = own[0]
    if not tunables:
        return [color]
    return [_shade(color, _TUNED[(first + i) % len(_TUNED)]) for i in range(len(_TUNED))]


def _shade(color: str, by: float) -> str:
    """Mix a colour with black (`by` below 0) or white (above), 1 being all of it."""
    end = 255 if by > 0 else 0
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (end - part) * abs(by)):02X}" for part in parts)


def error_and_cost(frame: pd.DataFrame, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Draw each kernel's error beside its time (GPU) or its simulated memory traffic.

    Parameters
    ----------
    frame
        The rows of a `Comparison`: kernel, title, class, right, error, bound, and either time_ms
        and floor_ms or traffic_mb and floor_mb.
    title, notes
        The heading, and small lines under the panels.

    Returns
    -------
    Chart
        Left, the error of each kernel with the bound of its class (logarithmic); right, the cost
        with the floor drawn as a line and the distance from it as a number.
    """
    rows = frame.reset_index(drop=True)
    count = max(len(rows), 1)
    chart = Chart(8, 1.9 + 0.46 * count + 0.16 * len(notes))
    left, right = chart.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    names = list(rows["kernel"])
    shade = colors(names)
    left.set_yticks(range(len(rows)), _labels(rows), fontsize=9)
    left.set_ylim(count - 0.4, -0.6)
    _draw_errors(left, rows, [shade[name] for name in names])
    _draw_costs(right, rows, [shade[name] for name in names])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=9)
    if title:
        chart.suptitle(title, fontsize=11, color=_INK)
    if notes:
        chart.supxlabel("\n".join(notes), fontsize=8, color="#555555", x=0.01, ha="left")
    return chart


def error_map(
    pixels: np.ndarray,
    channels: np.ndarray,
    shape: tuple[int, int, int, int],
    title: str = "",
    notes: Sequence[str] = (),
) -> Chart:
    """Draw where the error is: over the pixels of the output, and over its images and channels.

    Parameters
    ----------
    pixels
        Errors over what is allowed, the largest of a pixel over n and k: (P, Q), or pooled.
    channels
        The same, the largest of a plane over p and q: (N, K), or pooled.
    shape
        (N, K, P, Q), which the axes show also where the maps were pooled.
    title, notes
        The heading, and small lines under the panels.

    Returns
    -------
    Chart
        Two heat maps on one logarithmic scale that turns at 1, the most that is right: cool
        and pale below, warm and dark above it, black where there is no number. The darker, the
        more wrong, so that grey print tells too.
    """
    N, K, P, Q = shape
    lines = [line for note in notes for line in textwrap.wrap(note, 110)]
    chart = Chart(8, 4.1 + 0.16 * len(lines))
    left, right = chart.subplots(1, 2)
    norm = LogNorm(10**-_BELOW, 10**_ABOVE)
    for axes, ratios, (rows, columns), labels in (
        (left, pixels, (P, Q), ("q (column)", "p (row)")),
        (right, channels, (N, K), ("k (output channel)", "n (image)")),
    ):
        shown = np.where(np.isfinite(ratios), np.clip(ratios, norm.vmin, norm.vmax), np.nan)
        sizes = zip((rows, columns), shown.shape, strict=True)
        steps = [-(-size // cells) for size, cells in sizes]
        bottom, end = (s * n - 0.5 for s, n in zip(steps, shown.shape, strict=True))
        image = axes.imshow(
            shown, norm=norm, cmap=_error_colors(), aspect="auto", interpolation="nearest",
            extent=(-0.5, end, bottom, -0.5),
        )  # fmt: skip
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_xlabel(labels[0], fontsize=9)
        axes.set_ylabel(labels[1], fontsize=9)
        axes.tick_params(labelsize=8)
        for axis, size in ((axes.xaxis, columns), (axes.yaxis, rows)):
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 8, 10], integer=True))
            if size == 1:
                axis.set_ticks([0])
        wrong = int((~(ratios <= 1)).sum())
        what = "worst over n, k" if axes is left else "worst over p, q"
        pooled = f", {steps[0]} x {steps[1]} in a cell" if max(steps) > 1 else ""
        axes.set_title(f"{what}: {wrong:,} of {ratios.size:,} wrong{pooled}", fontsize=9)
    scale = chart.colorbar(image, ax=[left, right], shrink=0.9, extend="both")
    scale.set_label("error over what is allowed (black: NaN or inf)", fontsize=8)
    scale.set_ticks([10.0**i for i in range(-_BELOW, _ABOVE + 1)])
    scale.ax.tick_params(labelsize=8)
    scale.ax.axhline(1, color="black", linewidth=1.2)
    if title:
        chart.suptitle(title, fontsize=11, color=_INK)
    if lines:
        chart.supxlabel("\n".join(lines), fontsize=8, color="#555555", x=0.01, ha="left")
    return chart


def _labels(rows: pd.DataFrame) -> list[str]:
    """Return the titles, cut to what fits the margin, and names where two would then be alike."""
    titles = rows["title"].map(_cut)
    return list(
        titles.where(~titles.duplicated(keep=False) & (titles != ""), rows["kernel"].map(_cut))
    )


def _cut(label: str) -> str:
    return label if len(label) <= 30 else label[:29] + "…"


def _draw_errors(axes: Axes, rows: pd.DataFrame, shades: list[str]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("error (normwise, against float64)", fontsize=9)
    values = [v for v in (*rows["error"], *rows["bound"]) if math.isfinite(v) and v > 0]
    low = 10 ** math.floor(math.log10(min(values, default=1e-8)) - 0.5)
    high = 10 ** math.ceil(math.log10(max(values, default=1e-2)) + 0.7)
    axes.set_xlim(low, high)
    for y, row in enumerate(rows.itertuples()):
        if math.isfinite(row.bound):
            axes.plot([row.bound] * 2, [y - 0.33, y + 0.33], color=_INK, linewidth=1.6)
        if math.isnan(row.error):  # it did not run
            text, ink = ("declined", "#555555") if pd.isna(row.right) else ("failed", _WRONG)
            axes.annotate(
                text, (low, y), xytext=(4, 0), textcoords="offset points", fontsize=8,
                va="center", color=ink,
            )  # fmt: skip
            continue
        x = min(max(row.error, low * 1.3), high / 1.3)
        if row.right:
            axes.plot(x, y, "o", markersize=8, color=shades[y], markeredgecolor=_INK)
            continue
        axes.plot(x, y, "X", markersize=10, color=_WRONG, markeredgecolor=_INK)
        beyond = ">" if row.error > high else ""
        side = -1 if x > math.sqrt(low * high) else 1
        axes.annotate(
            f"wrong{beyond}", (x, y), xytext=(9 * side, 0), textcoords="offset points",
            ha="right" if side < 0 else "left", va="center", fontsize=8, color=_WRONG,
        )  # fmt: skip
    mark = Line2D([], [], color=_INK, marker="|", linestyle="", markersize=9, markeredgewidth=1.6)
    _legend(axes, mark, "bound of its class")


def _draw_costs(axes: Axes, rows: pd.DataFrame, shades: list[str]) -> None:
    timed = "time_ms" in rows
    cost, floor = ("time_ms", "floor_ms") if timed else ("traffic_mb", "floor_mb")
    unit = "ms" if timed else "MB"
    what = COST_LABELS[cost]
    axes.set_xlabel(what, fontsize=9)
    if cost not in rows or not rows[cost].notna().any():
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", fontsize=9)
        return
    largest, least = rows[cost].max(), rows[floor].min()
    room = 1.0 if rows["right"].isin([False]).any() else 0.65  # None: it declined
    if least > 0 and largest > 30 * least:  # the floor would vanish in the left edge
        axes.set_xscale("log")
        axes.set_xlim(least / 2, largest * (2 * largest / least) ** room)
        axes.set_xlabel(f"{what}, log scale", fontsize=9)
    else:
        axes.set_xlim(0, max(largest, rows[floor].max()) * (1 + room) or 1)
    for y, row in enumerate(rows.to_dict("records")):
        if math.isnan(row[cost]):
            continue
        wrong = not row["right"]
        axes.barh(
            y, row[cost], height=0.62, color="white" if wrong else shades[y], edgecolor=_INK,
            linewidth=0.8, hatch="////" if wrong else None,
        )  # fmt: skip
        axes.plot([row[floor]] * 2, [y - 0.45, y + 0.45], color="black", linewidth=2.2)
        axes.plot([row[floor]] * 2, [y - 0.45, y + 0.45], color="white", linewidth=0.7)
        if timed:
            half = row[cost] * row.get("spread_pct", 0) / 200
            axes.plot([row[cost] - half, row[cost] + half], [y, y], color=_INK, linewidth=1.2)
        text = f"{_short(row[cost])} {unit}, {_short(row['x_floor'])}x floor"
        axes.annotate(
            text + (" (wrong)" if wrong else ""), (max(row[cost], row[floor]), y),
            xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color=_INK,
        )  # fmt: skip
    mark = Line2D([], [], color="black", marker="|", linestyle="", markersize=9, markeredgewidth=2)
    _legend(axes, mark, "floor")


def _legend(axes: Axes, mark: Line2D, label: str) -> None:
    axes.legend(
        [mark], [label], loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, frameon=False,
        borderpad=0, handletextpad=0.2,
    )  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _error_colors() -> Colormap:
    """White over pale blue up to 1; from 1 on yellow, orange, dark red; black for what is bad."""
    turn = _BELOW / (_BELOW + _ABOVE)
    shades = [(0, "#FFFFFF"), (turn, "#9CC9E8")]
    shades += [(turn, "#F6C445"), (0.6, "#E07B1F"), (1, "#7A1403")]
    return LinearSegmentedColormap.from_list("error", shades).with_extremes(bad="black")


def ab_chart(
    modes: pd.DataFrame,
    rounds: pd.DataFrame,
    threshold: float,
    title: str = "",
    notes: Sequence[str] = (),
) -> Chart:
    """Draw B's time over A's: the estimate with its interval, and each round.

    Parameters
    ----------
    modes
        The rows of an `AB`: mode, verdict, ratio, low, high, rounds; on the simulator counter, a,
        b, ratio, and then bars of the counters' ratios are all that is drawn.
    rounds
        mode, round, ratio.
    threshold
        Half the width of the zone that is called the same.
    title, notes
        The heading, and small lines under the panels.

    Returns
    -------
    Chart
    """
    count = max(len(modes), 1)
    chart = Chart(8, 2.2 + 0.34 * count + 0.16 * len(notes))
    if "mode" in modes:
        left, right = chart.subplots(1, 2, width_ratios=(3, 2))
        _draw_intervals(left, modes, threshold)
        _draw_rounds(right, rounds, threshold)
    elif "counter" in modes and len(modes):
        axes = chart.subplots()
        modes = modes[np.isfinite(modes["ratio"])]  # what A has none of has no ratio
        axes.barh(modes["counter"], modes["ratio"], color=PALETTE[0], height=0.6)
        for y, value in enumerate(modes["ratio"]):
            axes.annotate(f"{value:.3g}", (value, y), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize=8)  # fmt: skip
        axes.axvline(1, color=_INK, linewidth=1)
        axes.invert_yaxis()
        axes.set_xlabel("B's count over A's (simulated; says nothing about speed)", fontsize=9)
    else:
        axes = chart.subplots()
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", fontsize=9)
        axes.set_axis_off()
    _finish(chart, title, notes)
    return chart


def _draw_intervals(axes: Axes, modes: pd.DataFrame, threshold: float) -> None:
    axes.axvspan(1 - threshold, 1 + threshold, color="#DDDDDD", label="the same")
    axes.axvline(1, color=_INK, linewidth=1)
    for y, row in enumerate(modes.to_dict("records")):
        color, marker = PALETTE[y % 2], "os"[y % 2]
        edges = [row["low"], row["high"]]
        if all(map(math.isfinite, edges)):
            axes.plot(edges, [y, y], color=color, linewidth=2.5, marker="|", markersize=9)
        axes.plot([row["ratio"]], [y], color=color, marker=marker, markersize=7)
        text = f"{row['verdict']}, {row['ratio']:.4f}, {row['rounds']} rounds"
        axes.annotate(text, (row["ratio"], y), xytext=(0, 9), textcoords="offset points",
                      ha="center", fontsize=8, color=_INK)  # fmt: skip
    axes.set_yticks(range(len(modes)), list(modes["mode"]), fontsize=9)
    axes.set_ylim(len(modes) - 0.4, -0.7)
    axes.margins(x=0.35)
    axes.set_xlabel("time of B over time of A, 95% interval (grey: the same)", fontsize=9)


def _draw_rounds(axes: Axes, rounds: pd.DataFrame, threshold: float) -> None:
    axes.axhspan(1 - threshold, 1 + threshold, color="#DDDDDD")
    axes.axhline(1, color=_INK, linewidth=1)
    for i, (mode, group) in enumerate(rounds.groupby("mode", sort=False)):
        axes.plot(group["round"], group["ratio"], "os"[i % 2], color=PALETTE[i % 2],
                  markersize=3, label=mode)  # fmt: skip
    if len(rounds):
        axes.legend(fontsize=8, frameon=False)
        low, high = rounds["ratio"].quantile([0.02, 0.98])
        low, high = min(low, 1 - 1.5 * threshold), max(high, 1 + 1.5 * threshold)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel("B over A", fontsize=9)


def sweep_chart(frame: pd.DataFrame, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Draw what a grid of tunables costs: a panel for each problem.

    Parameters
    ----------
    frame
        The rows of a `Sweep`: problem, the tunables as columns named in ``frame.attrs
        ["tunables"]``, kernel, and time_ms or traffic_mb. Two tunables make a heat map, any other
        number bars of the best twenty-four.
    title, notes
        The heading, and small lines under the panels.

    Returns
    -------
    Chart
    """
    names = list(frame.attrs.get("tunables", ()))
    timed = "time_ms" in frame and frame["time_ms"].notna().any()
    cost, unit = ("time_ms", "ms on the GPU") if timed else ("traffic_mb", "MB moved, simulated")
    rows = frame[frame[cost].notna()] if cost in frame else frame
    groups = list(rows.groupby("problem", sort=False)) if len(rows) else []
    as_map = len(names) == 2
    height = 3.4 if as_map else 1.4 + 0.24 * min(24, max((len(g) for _, g in groups), default=1))
    chart = Chart(max(5.0, 4.4 * len(groups)), height + 0.16 * len(notes))
    panels = chart.subplots(1, max(len(groups), 1), squeeze=False)[0]
    for axes, (problem, group) in zip(panels, groups, strict=False):
        if as_map:
            table = group.pivot_table(index=names[0], columns=names[1], values=cost)
            image = axes.imshow(table.to_numpy(), cmap="cividis_r", aspect="auto")
            chart.colorbar(image, ax=axes, label=unit)
            axes.set_xticks(range(table.shape[1]), table.columns)
            axes.set_yticks(range(table.shape[0]), table.index)
            axes.set_xlabel(names[1], fontsize=9)
            axes.set_ylabel(names[0], fontsize=9)
            best = table.min().min()
            for (i, j), value in np.ndenumerate(table.to_numpy()):
                if math.isfinite(value):
                    text = f"{_short(value)}{' *' if value == best else ''}"
                    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                    axes.text(j, i, text, ha="center", va="center", fontsize=8, bbox=box)
        else:
            best = group.nsmallest(24, cost)
            labels = [name.partition("@")[2] or name for name in best["kernel"]]
            shades = [color_of(name.partition("@")[0]) for name in best["kernel"]]
            axes.barh(labels, best[cost], color=shades, edgecolor=_INK, linewidth=0.6, height=0.62)
            axes.invert_yaxis()
            axes.set_xlabel(unit, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(problem, fontsize=9)
        axes.tick_params(labelsize=8)
    if not groups:
        panels[0].text(0.5, 0.5, "nothing measured", transform=panels[0].transAxes, ha="center")
        panels[0].set_axis_off()
    _finish(chart, title, notes)
    return chart


def _finish(chart: Chart, title: str, notes: Sequence[str]) -> None:
    for axes in chart.axes:
        axes.tick_params(labelsize=8)
    if title:
        chart.suptitle(title, fontsize=10, color=_INK)
    if notes:
        chart.supxlabel("\n".join(notes), fontsize=8, color="#555555", x=0.01, ha="left")
