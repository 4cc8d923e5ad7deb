"""Draw the two figures of an inspection from plain data: the roofline and the cost of lines."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from ..core.show.plot import INK, PALETTE, colors

_BLUE = PALETTE[0]
_ORANGE = PALETTE[1]
_SMALL_TEXT = {"textcoords": "offset points", "fontsize": 8}
# The most characters of a label's source text.
_LABEL = 40


class Point(NamedTuple):
    """One kernel on a roofline.

    Attributes
    ----------
    label : the kernel's name.
    intensity : flops per byte of DRAM traffic.
    rate : flops per second.
    kind : "measured" (a dot), "predicted" (a hollow diamond), or "floor": a line at the problem's
        own intensity, without a rate.
    """

    label: str
    intensity: float
    rate: float
    kind: str = "measured"


def draw_roofline(
    axes: Axes, points: Sequence[Point], bandwidth: float, peaks: Mapping[str, float]
) -> None:
    """Draw a roofline with some kernels (Williams, Waterman, Patterson, CACM 2009).

    Parameters
    ----------
    axes : the axes to draw on.
    points : the kernels.
    bandwidth : bytes per second.
    peaks : flops per second of each unit, by name: {"fp32": 51e12}.
    """
    tb_per_s = bandwidth / 1e12
    tflops = {name: peak / 1e12 for name, peak in peaks.items()}
    intensities = [point.intensity for point in points if point.intensity > 0]
    intensities += [peak / tb_per_s for peak in tflops.values()]
    left = min(intensities) / 4
    right = max(intensities) * 8
    _draw_ceilings(axes, tb_per_s, tflops, left, right)
    shade = colors([point.label for point in points if point.kind != "floor"])
    for point in points:
        if point.kind == "floor":
            _draw_floor(axes, point)
        else:
            _draw_point(axes, point, shade[point.label])
    rates = [point.rate / 1e12 for point in points if point.kind != "floor"]
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(left, right),
        ylim=(min([*rates, tb_per_s * left]) / 3, max(tflops.values()) * 3),
        xlabel="operations per byte of DRAM traffic (flop/byte)",
        ylabel="rate (TFLOP/s)",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.grid()


def _draw_ceilings(
    axes: Axes, tb_per_s: float, tflops: Mapping[str, float], left: float, right: float
) -> None:
    """Draw the slope of the bandwidth, and the flat roof of each unit."""
    by_peak = sorted(tflops.items(), key=lambda item: item[1])
    for i, (name, peak) in enumerate(by_peak):
        x = np.array(sorted({left, max(left, peak / tb_per_s), right}))
        style = "--" if i else "-"
        axes.plot(x, np.minimum(peak, tb_per_s * x), color=INK, ls=style)
        label = f"{name} {peak:.3g} TFLOP/s"
        axes.annotate(label, (right, peak), (-3, 3), ha="right", **_SMALL_TEXT)
    axes.annotate(f"{tb_per_s:.3g} TB/s", (left, tb_per_s * left), (14, 0), **_SMALL_TEXT)


def _draw_floor(axes: Axes, point: Point) -> None:
    """Draw the problem's own intensity as a line."""
    axes.axvline(point.intensity, color=_BLUE, linewidth=1, linestyle=":")
    axes.annotate(
        point.label,
        (point.intensity, 0.98),
        (3, 0),
        color=_BLUE,
        va="top",
        xycoords=("data", "axes fraction"),
        **_SMALL_TEXT,
    )


def _draw_point(axes: Axes, point: Point, color: str) -> None:
    """Draw a kernel: a dot if it was measured, a hollow diamond if it was predicted."""
    place = (point.intensity, point.rate / 1e12)
    text = f"{point.label}\n({point.kind})"
    if point.kind == "predicted":
        axes.plot(
            *place, "D", markersize=8, color="white", markeredgecolor=color, markeredgewidth=1.5
        )
        axes.annotate(text, place, (8, 4), ha="left", va="bottom", **_SMALL_TEXT)
    else:
        axes.plot(*place, "o", markersize=8, color=color, markeredgecolor=INK, markeredgewidth=1.5)
        axes.annotate(text, place, (-8, -4), ha="right", va="top", **_SMALL_TEXT)


def draw_line_costs(axes: Axes, lines: pd.DataFrame, most: int = 8) -> None:
    """Draw the sectors or wavefronts of the costliest source lines, and their minimum.

    `lines` has the columns name, space, units, ideal_units and share.
    """
    if lines.empty:
        axes.text(0.5, 0.5, "no counts by line", ha="center")
        return
    lines = lines.sort_values("units", ascending=False, kind="stable", ignore_index=True)[:most]
    for space, label, color in (
        ("global", "sectors (global)", _BLUE),
        ("shared", "wavefronts (shared)", _ORANGE),
    ):
        rows = lines[lines["space"] == space]
        if len(rows):
            axes.barh(rows.index, rows["units"], color=color, edgecolor=INK, lw=0.6, label=label)
    axes.vlines(lines["ideal_units"], lines.index - 0.45, lines.index + 0.45, colors="black", lw=2)
    ends = lines[["units", "ideal_units"]].max(axis=1)
    for y, share in lines["share"].items():
        axes.annotate(f"{share:.0%}", (ends[y], y), (4, 0), va="center", **_SMALL_TEXT)
    axes.set_yticks(
        lines.index, [_label(name) for name in lines["name"]], fontsize=7.5, family="monospace"
    )
    axes.set(
        ylim=(len(lines) - 0.4, -0.6),
        xlabel="sectors or wavefronts; black: the minimum",
        xlim=(0, 1.15 * lines["units"].max()),
    )
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x")
    axes.legend(loc="lower right")


def _label(text: str) -> str:
    """Return a text cut to the length of a label, with its dollars escaped for matplotlib."""
    if len(text) > _LABEL:
        text = text[: _LABEL - 1] + "…"
    return text.replace("$", r"\$")
