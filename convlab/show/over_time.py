"""Receipts to one figure: what each kernel cost in each of them."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.ticker import MaxNLocator

from .plot import COST_LABELS, INK, Chart, colors, styled
from .result import short

_MOST_NOTES = 8


@styled
def history_chart(frame: pd.DataFrame, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Draw a kernel's cost in each receipt, the newest at the bottom: a panel for each problem.

    `frame` has the rows of a `History`: a mark for the median, a bar from quartile to quartile, and
    beside it the beginning of the source's digest.
    """
    groups = [] if frame.empty else list(frame.groupby(["problem", "mode", "unit"], sort=False))
    places = (
        [] if frame.empty else list(dict.fromkeys(zip(frame["when"], frame["gpu"], strict=True)))
    )
    shown = list(notes[:_MOST_NOTES])
    chart = Chart(max(7.0, 4.6 * len(groups)), 1.8 + 0.55 * len(places) + 0.16 * len(shown))
    panels = chart.subplots(1, max(len(groups), 1), squeeze=False, sharey=True)[0]
    shade = colors([] if frame.empty else frame["kernel"])
    for axes, ((problem, mode, unit), rows) in zip(panels, groups, strict=False):
        axes.set_title(f"{problem}, {mode}" if mode else problem, fontsize=9)
        axes.set_xlabel(COST_LABELS["time_ms" if unit == "ms" else "traffic_mb"])
        for i, (kernel, own) in enumerate(rows.groupby("kernel", sort=False)):
            ys = [places.index(place) for place in zip(own["when"], own["gpu"], strict=True)]
            look = {"color": shade[kernel], "marker": "osD^v"[i % 5], "markeredgecolor": INK}
            axes.plot(own["cost"], ys, linestyle=":", label=kernel, **look)
            axes.hlines(ys, own["low"], own["high"], color=shade[kernel], linewidth=2.5)
            for y, row in zip(ys, own.itertuples(), strict=True):
                away = -13 if i % 2 else 7  # two kernels' labels do not meet
                axes.annotate(f"{short(row.cost)} {row.source or ''}", (row.cost, y), fontsize=7,
                              xytext=(0, away), textcoords="offset points", ha="center")  # fmt: skip
        axes.set_yticks(range(len(places)), [f"{when}\n{gpu}" for when, gpu in places], fontsize=8)
        axes.set_ylim(len(places) - 0.4, -0.8)
        axes.margins(x=0.2)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.grid(axis="x")
        axes.legend(fontsize=7)
    if not groups:
        panels[0].text(0.5, 0.5, "nothing with a cost", ha="center")
        panels[0].set_axis_off()
    return chart.headed(title, shown)
