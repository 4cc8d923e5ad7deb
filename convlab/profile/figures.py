"""Figures of plain data: the roofline, what lines cost, which addresses a warp touches."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator

from ..core.problem.problem import Problem
from ..core.show.plot import INK, PALETTE, Chart, colors, styled

_BLUE, _ORANGE, *_, _RED = PALETTE[:6]
_FRAMED = "the 32-byte sectors that move; number: lane, +: and others"
_BESIDE = {"textcoords": "offset points", "fontsize": 8}


class Point(NamedTuple):
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
    bandwidth = bandwidth / 1e12
    peaks = {name: peak / 1e12 for name, peak in peaks.items()}
    xs = [p.intensity for p in points if p.intensity > 0]
    xs += [peak / bandwidth for peak in peaks.values()]
    low = min(xs) / 4
    high = max(xs) * 8
    for i, (name, peak) in enumerate(sorted(peaks.items(), key=lambda item: item[1])):
        x = sorted({low, max(low, peak / bandwidth), high})
        axes.plot(x, np.minimum(peak, bandwidth * np.array(x)), color=INK, ls="--" if i else "-")
        axes.annotate(f"{name} {peak:.3g} TFLOP/s", (high, peak), (-3, 3), ha="right", **_BESIDE)
    axes.annotate(f"{bandwidth:.3g} TB/s", (low, bandwidth * low), (14, 0), **_BESIDE)
    shade = colors([point.label for point in points if point.kind != "floor"])
    for label, intensity, rate, kind in points:
        if kind == "floor":
            axes.axvline(intensity, color=_BLUE, linewidth=1, linestyle=":")
            axes.annotate(
                label,
                (intensity, 0.98),
                (3, 0),
                color=_BLUE,
                va="top",
                xycoords=("data", "axes fraction"),
                **_BESIDE,
            )
            continue
        at = (intensity, rate / 1e12)
        color = shade[label]
        hollow = kind == "predicted"
        axes.plot(
            *at,
            "D" if hollow else "o",
            markersize=8,
            color="white" if hollow else color,
            markeredgecolor=color if hollow else INK,
            markeredgewidth=1.5,
        )
        offset, ha, va = ((8, 4), "left", "bottom") if hollow else ((-8, -4), "right", "top")
        axes.annotate(f"{label}\n({kind})", at, offset, ha=ha, va=va, **_BESIDE)
    rates = [point.rate / 1e12 for point in points if point.kind != "floor"]
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(min([*rates, bandwidth * low]) / 3, max(peaks.values()) * 3),
        xlabel="operations per byte of DRAM traffic (flop/byte)",
        ylabel="rate (TFLOP/s)",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.grid()


def line_costs(axes: Axes, lines: pd.DataFrame, most: int = 8) -> None:
    """Draw the dearest source lines: what they take of all sectors or wavefronts, and the least.

    Of each line: name, space, units, ideal_units, share.
    """
    if lines.empty:
        axes.text(0.5, 0.5, "no counts by line", ha="center")
        return
    lines = lines.sort_values("units", ascending=False, kind="stable", ignore_index=True)[:most]
    for space, name, color in (
        ("global", "sectors (global)", _BLUE),
        ("shared", "wavefronts (shared)", _ORANGE),
    ):
        rows = lines[lines["space"] == space]
        if len(rows):
            axes.barh(rows.index, rows["units"], color=color, edgecolor=INK, lw=0.6, label=name)
    axes.vlines(lines["ideal_units"], lines.index - 0.45, lines.index + 0.45, colors="black", lw=2)
    past = lines[["units", "ideal_units"]].max(axis=1)
    for y, share in lines["share"].items():
        axes.annotate(f"{share:.0%}", (past[y], y), (4, 0), va="center", **_BESIDE)
    labels = [text if len(text) <= 40 else text[:39] + "…" for text in lines["name"]]
    labels = [text.replace("$", r"\$") for text in labels]
    axes.set_yticks(lines.index, labels, fontsize=7.5, family="monospace")
    axes.set(
        ylim=(len(lines) - 0.4, -0.6),
        xlabel="sectors or wavefronts; black: the least",
        xlim=(0, 1.15 * lines["units"].max()),
    )
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x")
    axes.legend(loc="lower right")


class Request(NamedTuple):
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

    A cell is a 4-byte word, shaded by lane ("+": several want it). Of global memory a row is a
    128-byte line, and the 32-byte sectors that must move are framed. Of shared memory a column is a
    bank and a row a wavefront; words of a bank that has more than need be are framed. Of 16 bytes,
    half a warp is served at a time.
    """
    drawn = [_lines(r) if r.space == "global" else _banks(r) for r in shown]
    heights = [1.0 + (0.28 if len(each.rows) <= 12 else 0.18) * len(each.rows) for each in drawn]
    chart = Chart(8, sum(heights) + 0.4 + 0.2 * title.count("\n"))
    panels = chart.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, each, request in zip(panels, drawn, shown, strict=True):
        _draw_cells(axes, each)
        text = f"{request.kind} of {request.array or request.space}: {each.summary}"
        axes.set_title(text.replace("$", r"\$"))
    if title:
        chart.suptitle(title.replace("$", r"\$"), fontsize=10, family="monospace")
    return chart


class _Map(NamedTuple):
    """A request as rows of 32 cells."""

    summary: str
    cells: dict[tuple[int, int], list[int]]  # (row, column): the lanes that want it
    frames: list[tuple[int, int, int, int]]  # column, row, columns, rows
    breaks: list[int]  # rows above which something is left out
    rows: list[str]
    columns: dict[int, str]
    labels: tuple[str, str]


def _lines(request: Request) -> _Map:
    """128-byte lines of global memory, one below the other, with what a request touches of them."""
    words = _words(request.lanes, request.width)
    lines = sorted({word // 32 for word in words})
    at = {line: y for y, line in enumerate(lines)}
    sectors = sorted({word // 8 for word in words})
    count = len(sectors)
    asked = request.width * len(request.lanes)
    return _Map(
        f"{count} sector{'s' * (count != 1)}, {32 * count} bytes moved for {asked} asked",
        {(at[word // 32], word % 32): lanes for word, lanes in words.items()},
        [(sector % 4 * 8, at[sector // 4], 8, 1) for sector in sectors],
        [y for line, y in at.items() if y and line - 1 not in at],
        [f"{128 * line:,}" for line in lines],
        {x: f"+{4 * x}" for x in range(0, 32, 8)},
        (f"byte of the 128-byte line of {request.array or 'memory'}; framed: {_FRAMED}", "byte"),
    )


def _banks(request: Request) -> _Map:
    """The 32 banks of shared memory, and the wavefronts in which they serve a request."""
    cells: dict[tuple[int, int], list[int]] = {}
    conflicts = []
    halves = []
    order = sorted(request.lanes.items())
    group = 16 if request.width > 8 else 32
    rows = least = 0
    for part in (order[i : i + group] for i in range(0, len(order), group)):
        halves.append(rows)
        words = _words(dict(part), request.width)
        held = [sorted(word for word in words if word % 32 == bank) for bank in range(32)]
        need = math.ceil(len(words) / 32)
        cells |= {
            (rows + y, word % 32): words[word] for bank in held for y, word in enumerate(bank)
        }
        conflicts += [
            (bank, rows, 1, len(held[bank])) for bank in range(32) if len(held[bank]) > need
        ]
        least += need
        rows += max(map(len, held))
    framed = "; framed: a conflict" if conflicts else ""
    return _Map(
        f"{rows} wavefront{'s' * (rows != 1)}, {least} would do",
        cells,
        conflicts,
        halves[1:],
        [str(y + 1) for y in range(rows)],
        {x: str(x) for x in range(0, 32, 4)},
        (
            f"bank of {request.array or 'shared memory'}; number: lane, +: a broadcast{framed}",
            "wavefront",
        ),
    )


def _words(lanes: Mapping[int, int], width: int) -> dict[int, list[int]]:
    """The 4-byte words that lanes touch, each with its lanes."""
    words: dict[int, list[int]] = {}
    for lane, address in lanes.items():
        for word in range(address // 4, (address + width - 1) // 4 + 1):
            words.setdefault(word, []).append(lane)
    return words


def _draw_cells(axes: Axes, drawn: _Map) -> None:
    """Cells, coloured and numbered by the first of their lanes."""
    rows = max(len(drawn.rows), 1)
    grid = np.full((rows, 32), np.nan)
    for at, lanes in drawn.cells.items():
        grid[at] = lanes[0]
    shades = colormaps["cividis"].with_extremes(bad="white")
    axes.imshow(grid, cmap=shades, vmin=0, vmax=31, aspect="auto", interpolation="nearest")
    axes.set_xticks(np.arange(33) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for (y, x), lanes in drawn.cells.items():
        axes.text(
            x,
            y,
            f"{lanes[0]}{'+' if len(lanes) > 1 else ''}",
            ha="center",
            va="center",
            fontsize=6.5,
            color="white" if lanes[0] < 18 else "black",
        )
    for x, y, columns, high in drawn.frames:
        _frame(axes, x - 0.5, y - 0.5, columns, high, _RED)
    for y in drawn.breaks:
        axes.axhline(y - 0.5, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
    axes.set_yticks(range(len(drawn.rows)), drawn.rows)
    axes.set_xticks(list(drawn.columns), list(drawn.columns.values()))
    axes.set(xlabel=drawn.labels[0], ylabel=drawn.labels[1])


def _frame(axes: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=color, linewidth=1.8))


@styled
def footprint(problem: Problem, x: pd.DataFrame, y: pd.DataFrame, title: str = "") -> Chart:
    """Draw the input that a block read beside the output that it wrote.

    From rows of n, c, h, w, times: how often each element that was touched at all was.
    """
    chart = Chart(8, 4.2)
    words = []
    for axes, part, name, what, shape, labels in zip(
        chart.subplots(1, 2),
        (x, y),
        "xy",
        ("read", "written"),
        (problem.x_shape, problem.y_shape),
        (("h", "w"), ("p", "q")),
        strict=True,
    ):
        axes.set(xlabel=f"{labels[1]} (column)", ylabel=f"{labels[0]} (row)")
        if part.empty:
            axes.set(title=f"nothing of {name} is {what}", xticks=[], yticks=[])
            continue
        channels = part["c"].nunique()
        first = part[part["n"] == part["n"].min()]
        (top, start), (low, end) = (first[["h", "w"]].agg(of) for of in ("min", "max"))
        grid = np.zeros((low - top + 1, end - start + 1))
        np.add.at(grid, (first["h"] - top, first["w"] - start), first["times"])
        drawn = axes.imshow(
            grid,
            cmap=colormaps["cividis"].with_extremes(under="white"),
            vmin=0.5,
            vmax=max(grid.max(), 1.5),
            aspect="auto",
            interpolation="nearest",
            extent=(start, end + 1, low + 1, top),
        )
        _frame(axes, 0, 0, shape[3], shape[2], INK)
        margin = max(2, max(grid.shape) // 8)
        axes.set(xlim=(start - margin, end + 1 + margin), ylim=(low + 1 + margin, top - margin))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        label = f"times {what}, all channels"
        chart.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02, label=label)
        where = f"{name}: rows {top} to {low}, columns {start} to {end}"
        what_of = f"image {first['n'].iloc[0]}, {channels} channel{'s' * (channels != 1)}"
        axes.set_title(f"{where}\nof {what_of}")
        times = part["times"].mean()
        often = f", each {'once' if times == 1 else f'{times:.3g} times'}" if name == "x" else ""
        words.append(f"{len(part):,} elements of {name} {what}{often}")
    chart.suptitle("\n".join(filter(None, (title, "; ".join(words)))), fontsize=10)
    return chart
