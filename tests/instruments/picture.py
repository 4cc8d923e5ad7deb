"""Draw README's pictures from real results.

    python -m tests.instruments.picture session .github/session.gif
    python -m tests.instruments.picture headline .github/headline.png notebooks/h200.json
    python -m tests.instruments.picture share .github/share.png notebooks/h200.json
    python -m tests.instruments.picture ratios .github/kernelbench.png KERNELBENCH.json

``session`` runs convlab on this machine. It deletes a barrier from a kernel, checks the kernel, draws bank
conflicts with and without padding, and compares two variants. All text is convlab's own output. With a
folder instead of a .gif file it also writes each frame as a PNG, for a close look.

``headline`` and ``share`` draw what ``tests.instruments.tables`` printed: the best rung of each precision
class next to cuDNN, and all rungs. ``ratios`` draws the gain of `convlab.best` on each problem of a set,
from what ``tables --set kernelbench`` printed.
"""

from __future__ import annotations

import difflib
import io
import itertools
import json
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from PIL import Image, ImageDraw, ImageFont

import convlab
from convlab.core.errors import LaunchError
from convlab.core.kernel.catalog import find
from convlab.core.kernel.kernel import Kernel
from convlab.core.show import plot
from convlab.core.show.plot import Chart
from convlab.core.timing.sides import cudnn_of
from convlab.profile import access_figures, warp_accesses

# inches of a chart, and dots per inch
WIDTH = 9.6
DPI = 100
# in the order of the charts
CLASSES = ("fp32", "tf32", "bf16", "fp16")
_PROBLEM = "N=1,C=4,H=34,W=50,K=32,R=3,S=3"
_BARRIER = "        __syncthreads();\n"
# An input tile is 32 columns wide here, so that rows without padding begin in the same bank.
_WIDE_TILE = "N=1,C=4,H=34,W=50,K=32,R=3,S=3,dilation=12"
_PITCH = "int pitch = extent_w + (32 + kTile - extent_w % 32) % 32;"
_NO_PITCH = "int pitch = extent_w;"
_LOAD = "= s_row[w - w0];"
_VARIANTS = ("03_smem_tile", "03_smem_tile@TILE=8")

# The animated picture's frames: pixels, colours, and seconds that each is shown.
_SIZE = (900, 500)
_HEAD = 46
_MARGIN = 16
_INK = "#E8E8E8"
_PAPER = "#16181D"
_BAR = "#2A2E37"
_DIM = "#8A8F98"
_BAD = "#FF8C5A"
_GOOD = "#5FD3A5"
_SECONDS = {"diff": 2.1, "race": 3.5, "conflict": 1.9, "pitch": 1.9, "verdict": 2.6}
# Font sizes in pixels, tried from the largest; a size that needs no line broken goes first.
_FONTS = range(19, 13, -1)
_TYPEFACE = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf")

Line = tuple[str, str]


def frame(title: str, lines: Sequence[Line] = (), charts: Sequence[Chart] = ()) -> Image.Image:
    """Return one frame: a title, lines of text with their colours, then charts, one below another."""
    page = Image.new("RGB", _SIZE, _PAPER)
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, _SIZE[0], _HEAD), fill=_BAR)
    font = ImageFont.truetype(_TYPEFACE, 19)
    draw.text((_MARGIN, _HEAD / 2), title, fill=_GOOD, font=font, anchor="lm")
    top = float(_HEAD)
    if lines:
        top = write(draw, lines)
    if charts:
        paste(page, charts, round(top))
    return page


def write(draw: ImageDraw.ImageDraw, lines: Sequence[Line]) -> float:
    """Write lines below the title, as large as fits; return where the next thing may begin.

    Raises ValueError if they do not fit in the smallest font: nothing is cut off.
    """
    room = _SIZE[1] - _HEAD - 2 * _MARGIN
    longest = max(len(text) for text, _ in lines)
    sizes = [(size, columns_of(size)) for size in _FONTS]
    for size, columns in [*(pair for pair in sizes if pair[1] >= longest), *sizes]:
        wrapped = [(part, color) for text, color in lines for part in parts(text, columns)]
        step = 1.32 * size
        if len(wrapped) * step <= room:
            break
    else:
        raise ValueError(f"{len(lines)} lines do not fit into a frame: show a shorter text")
    font = ImageFont.truetype(_TYPEFACE, size)
    for i, (text, color) in enumerate(wrapped):
        draw.text((_MARGIN, _HEAD + _MARGIN + i * step), text, fill=color, font=font)
    return _HEAD + 2 * _MARGIN + len(wrapped) * step


def columns_of(size: int) -> int:
    """Return how many characters of a font size a frame is wide."""
    return int((_SIZE[0] - 2 * _MARGIN) / ImageFont.truetype(_TYPEFACE, size).getlength("x"))


def parts(text: str, columns: int) -> list[str]:
    """Return a line in parts of at most that many columns; later parts are indented."""
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return textwrap.wrap(text, columns, subsequent_indent=indent) or [""]


def paste(page: Image.Image, charts: Sequence[Chart], top: int) -> None:
    """Draw charts into the rest of a page: each as wide as the page, its height in proportion."""
    dpi = _SIZE[0] / 8.0
    heights = [chart.get_size_inches()[1] for chart in charts]
    scale = (_SIZE[1] - top) / dpi / sum(heights)
    for chart, height in zip(charts, heights, strict=True):
        chart.set_size_inches(8.0, height * scale)
        buffer = io.BytesIO()
        chart.savefig(buffer, format="png", dpi=dpi)
        drawn = Image.open(buffer).convert("RGB")
        page.paste(drawn, (0, top))
        top += drawn.height


def diff_lines(before: str, after: str, around: int) -> list[Line]:
    """Return the unified diff of two versions of a file, with the colours of its lines."""
    colors = {"-": _BAD, "+": _GOOD, "@": _DIM}
    diff = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "mine.cu", "mine.cu", lineterm="", n=around
    )
    # The first two lines name the files.
    return [(line, colors.get(line[:1], _INK)) for line in list(diff)[2:]]


def report_lines(text: str) -> list[Line]:
    """Return the lines of a report: the first finding is bright, its places are coloured."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if "race:" in line), 0)
    # The lines of a finding after its first are indented.
    inside = itertools.takewhile(lambda line: line.startswith(" "), lines[first + 1 :])
    end = first + 1 + len(list(inside))
    colored = []
    for i, line in enumerate(lines):
        color = _INK if first <= i < end else _DIM
        if first <= i < end and ("race:" in line or ".cu:" in line):
            color = _BAD
        if "try:" in line:
            color = _GOOD
        colored.append((line, color))
    return colored


def bank_chart(kernel: Kernel) -> Chart:
    """Draw the banks that a warp reads of the input tile, at the line that reads them."""
    source = kernel.source.splitlines()
    line = next(i for i, text in enumerate(source, 1) if _LOAD in text)
    rows = warp_accesses.accesses(kernel, _WIDE_TILE)
    rows = rows[(rows["line"] == line) & (rows["execution"] == 0)]
    requests = warp_accesses._requests(rows)
    return access_figures.draw_requests(requests, f"mine.cu:{line}  {source[line - 1].strip()}")


def session(path: Path) -> None:
    """Edit a kernel, check it, look at its banks, compare variants; write it as a moving picture."""
    correct = find("03_smem_tile").read_text()
    racy = correct.replace(_BARRIER, "", 1)
    flat = correct.replace(_PITCH, _NO_PITCH)
    if racy == correct or flat == correct:
        raise ValueError(
            "03_smem_tile has other lines now: adapt _BARRIER and _PITCH in picture.py"
        )
    engine = "cuda" if torch.cuda.is_available() else "sim"
    frames = {"diff": frame("1  Delete a barrier", diff_lines(correct, racy, 7))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.cu"
        file.write_text(racy)
        mine = convlab.load(file, engine="sim")
        try:
            report = str(convlab.check(mine, _PROBLEM))
        except LaunchError as error:
            report = str(error)
        frames["race"] = frame('2  convlab.check("mine.cu")  without a GPU', report_lines(report))
        mine = convlab.load(file, engine="sim", defines={"TILE": 8})
        file.write_text(flat)
        edit = diff_lines(correct, flat, 0)[-2:]
        frames["conflict"] = frame("3  Rows of the tile end to end", edit, [bank_chart(mine)])
        before = bank_chart(mine)
        file.write_text(correct)
        frames["pitch"] = frame("4  With a padded pitch again", (), [before, bank_chart(mine)])
    a, b = _VARIANTS
    verdict = convlab.ab(convlab.load(a, engine=engine), convlab.load(b, engine=engine), "wide")
    lines = str(verdict).splitlines()
    # The verdict may take several lines; the names of A and B come after it.
    sides = [i for i, line in enumerate(lines) if line.startswith(("  A  ", "  B  "))]
    text = [(line, _GOOD) for line in lines[: sides[0]]]
    text += [(lines[i], _INK) for i in sides]
    frames["verdict"] = frame(f'5  convlab.ab("{a}", "{b}", "wide")', text, [verdict.plot()])
    save_animation(path, frames)


def save_animation(path: Path, frames: dict[str, Image.Image]) -> None:
    """Write frames as a GIF; next to a file of another ending, write each frame as a PNG."""
    if path.suffix != ".gif":
        path.mkdir(parents=True, exist_ok=True)
        for name, drawn in frames.items():
            drawn.save(path / f"{name}.png")
        path = path / "session.gif"
    pictures = [drawn.quantize(64, dither=Image.Dither.NONE) for drawn in frames.values()]
    pictures[0].save(
        path,
        save_all=True,
        append_images=pictures[1:],
        loop=0,
        optimize=True,
        duration=[round(1000 * _SECONDS[name]) for name in frames],
    )


def beside(result: dict) -> list[dict]:
    """Return the rungs that one problem's rows time, each with cuDNN's row of its class and layout.

    Each entry has the rung's `row`, cuDNN's row `base`, and `ratio`, how many times as fast as cuDNN
    the rung is. A rung without such a baseline is left out.
    """
    times = {row["kernel"]: row for row in result["rows"] if row.get("time_ms")}
    pairs = []
    for name, row in times.items():
        # A name with a colon is a baseline's.
        if ":" in name:
            continue
        cudnn = cudnn_of(convlab.load(name, engine="sim"))
        if cudnn in times:
            base = times[cudnn]
            pairs.append({"row": row, "base": base, "ratio": base["time_ms"] / row["time_ms"]})
    return pairs


def conditions(result: dict) -> str:
    """Return the GPU and the day of some rows, in two lines."""
    return "\n".join(note for note in result["notes"][-3:] if "floor" not in note)


def share(path: Path, rows: Path) -> None:
    """Draw how many times as fast as cuDNN each rung is, from the rows of `tables`."""
    results = json.loads(rows.read_text())["results"]
    labels = [result["problem"]["name"] for result in results]
    speeds: dict[str, list[float]] = {}
    for i, result in enumerate(results):
        for pair in beside(result):
            label = f"{pair['row']['title']} ({pair['row']['class']})"
            speeds.setdefault(label, [float("nan")] * len(results))
            speeds[label][i] = pair["ratio"]
    chart = Chart(WIDTH, 0.8 + 0.16 * len(speeds) * len(labels))
    axes = chart.add_subplot()
    axes.axvline(1, color=plot.INK, lw=1.2)
    height = 0.8 / len(labels)
    for i, label in enumerate(labels):
        places = [j + height * (i - (len(labels) - 1) / 2) for j in range(len(speeds))]
        ratios = [values[i] for values in speeds.values()]
        bars = axes.barh(places, ratios, height, label=label, color=plot.PALETTE[i])
        texts = axes.bar_label(bars, [f"{value:.2f}" for value in ratios], padding=3, size=7)
        for text in texts:
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    axes.set_yticks(range(len(speeds)), list(speeds))
    axes.set_ylim(len(speeds) - 0.4, -0.6)
    axes.set_xlabel("times as fast as cuDNN in the same precision class and layout")
    axes.legend(title="problem", loc="upper right")
    axes.set_xlim(
        0, 1.08 * max(value for values in speeds.values() for value in values if value == value)
    )
    chart.supxlabel(conditions(results[0]), size=8, color=plot.QUIET)
    chart.save(path)


def headline(path: Path, rows: Path) -> None:
    """Draw the best rung of each class next to cuDNN, on each problem, from the rows of `tables`."""
    results = json.loads(rows.read_text())["results"]
    chart = Chart(9.0, 1.1 + 0.42 * len(CLASSES) * len(results), dpi=2 * DPI)
    panels = chart.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    longest = 0.0
    for axes, result in zip(panels, results, strict=True):
        best = best_of_each_class(result)
        longest = max([longest, *(pair["ratio"] for pair in best.values())])
        draw_pairs(axes, best)
        axes.set_title(problem_line(result["problem"]), loc="left", size=11, weight="bold")
    panels[0].set_xlim(0, 1.45 * longest)
    panels[-1].set_xlabel("times as fast as cuDNN in the same precision class, NCHW", size=11)
    chart.supxlabel(conditions(results[0]), size=8, color=plot.QUIET)
    chart.save(path)


def best_of_each_class(result: dict) -> dict[str, dict]:
    """Return the pair of `beside` with the fastest rung of each class, NCHW only, by class."""
    best: dict[str, dict] = {}
    for name in CLASSES:
        pairs = [
            pair
            for pair in beside(result)
            if pair["row"]["class"] == name and pair["base"]["kernel"] == f"cudnn:{name}"
        ]
        if pairs:
            best[name] = max(pairs, key=lambda pair: pair["ratio"])
    return best


def draw_pairs(axes: Axes, best: dict[str, dict]) -> None:
    """Draw two bars for each class: the rung's, dark, and cuDNN's, light with stripes."""
    thick = 0.42
    axes.axvline(1, color=plot.INK, lw=1, ls=":", zorder=0)
    for y, pair in enumerate(best.values()):
        row = pair["row"]
        base = pair["base"]
        axes.barh(y - thick / 2, pair["ratio"], thick, color="#0B4F8A")
        axes.barh(
            y + thick / 2, 1, thick, color="#DDDDDD", edgecolor="#777777", hatch="////", lw=0.6
        )
        for place, end, text, weight in (
            (y - thick / 2, pair["ratio"], f"{pair['ratio']:.1f}x", "bold"),
            (y + thick / 2, 1, "", "normal"),
        ):
            shown = axes.annotate(
                text,
                (end, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                size=10.5,
                weight=weight,
            )
            ms = row["time_ms"] if weight == "bold" else base["time_ms"]
            name = row["kernel"] if weight == "bold" else "cuDNN"
            axes.annotate(
                f"{ms:.3g} ms   {name}",
                (1, 0.5) if text else (0, 0.5),
                xycoords=shown,
                xytext=(8 if text else 0, 0),
                textcoords="offset points",
                va="center",
                size=9.5,
            )
    axes.set_yticks(range(len(best)), best, size=11)
    axes.set_ylim(len(best) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def problem_line(problem: dict) -> str:
    """Return a problem's name and its dimensions: square: x 16x16x1024x1024, filter 128x16x3x3."""
    x = "x".join(str(problem[key]) for key in "NCHW")
    filter_ = "x".join(map(str, (problem["K"], problem["C"] // problem["groups"])))
    return f"{problem['name']}: x {x}, filter {filter_}x{problem['R']}x{problem['S']}"


def ratios(path: Path, rows: Path) -> None:
    """Draw how many times as fast as cuDNN `convlab.best` is, from the rows of a set."""
    result = json.loads(rows.read_text())
    table = pd.DataFrame(result["rows"])
    table["problem"] = table["problem"].str.partition(".")[2]
    beside_cudnn(table, result["notes"][:1]).save(path)


@plot.styled
def beside_cudnn(frame: pd.DataFrame, notes: list[str]) -> Chart:
    """Draw the rows of a `Versus`: a panel for each class, the geometric mean as a dashed line."""
    classes = [name for name in ("tf32", "fp32") if (frame["class"] == name).any()]
    most = max((sum(frame["class"] == name) for name in classes), default=0)
    chart = Chart(9.6, 1.6 + 0.26 * most + 0.16 * len(notes))
    for axes, name in zip(chart.subplots(1, len(classes), sharey=True, squeeze=False)[0], classes):
        rows = frame[frame["class"] == name]
        axes.barh(range(len(rows)), rows["ratio"], color=[*map(plot.color_of, rows["choice"])])
        for y, (choice, ratio) in enumerate(zip(rows["choice"], rows["ratio"])):
            text = f" {ratio:.2f}  {choice.partition('_')[0]}" if ratio > 0 else " incorrect"
            axes.text(
                np.nan_to_num(ratio),
                y,
                text,
                va="center",
                fontsize=8,
                color=plot.INK,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )
        mean = float(np.exp(np.log(rows["ratio"]).mean(skipna=False)))
        axes.axvline(1, color=plot.INK)
        if mean > 0:
            axes.axvline(mean, color="#D55E00", ls="--", label=f"geometric mean {mean:.2f}")
            axes.legend(loc="lower right")
        axes.set_xlim(0, 1.25 * max(1, rows["ratio"].max()))
        axes.set_title(f"results in {name}")
        axes.set_yticks(range(len(rows)), rows["problem"])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.spines[["top", "right"]].set_visible(False)
    chart.supxlabel("\n".join(["times as fast as cuDNN in the same class, NCHW", *notes]))
    return chart


COMMANDS = {"session": session, "headline": headline, "share": share, "ratios": ratios}


def main(arguments: list[str]) -> int:
    """Draw the picture that the command line names; return the exit status."""
    if len(arguments) < 2 or arguments[0] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    matplotlib.rcParams["font.size"] = 9
    name, path, *rows = arguments
    COMMANDS[name](Path(path), *map(Path, rows))
    print(f"{name}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
