"""README's pictures, from a real session on this machine.

    python -m tests.instruments.picture session .github/session.gif
    python -m tests.instruments.picture share .github/share.png ROWS.json
    python -m tests.instruments.picture ratios .github/kernelbench.png ROWS.json

``session`` edits a kernel, shows what convlab says of the mistake, where a warp reads, and the A/B
verdict of another edit, each as convlab printed or drew it just now. ``share`` draws speed as a share of
cuDNN's in the same precision class from what ``tests.instruments.tables`` printed; ``ratios`` what
`convlab.best` gains on each problem, from what it printed with ``--set kernelbench``.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from PIL import Image

import convlab
from convlab.core.errors import LaunchError
from convlab.core.kernel.catalog import find
from convlab.core.show import plot
from convlab.core.show.plot import Chart
from convlab.core.timing.sides import cudnn_of
from convlab.profile import warp_accesses

# inches, at 100 dots each
WIDTH = 9.6
HEIGHT = 5.0
DPI = 100
# in the order of the charts
CLASSES = ("fp32", "tf32", "bf16", "fp16")
_SMALL = "N=1,C=4,H=34,W=50,K=32,R=3,S=3"
_INK = "#E8E8E8"
_PAPER = "#16181D"
_DIM = "#8A8F98"
_BAD = "#FF8C5A"
_GOOD = "#5FD3A5"
_SECONDS = {"short": 2.0, "long": 4.5}
# of text that a frame has room for
_COLUMNS = 96
_ROWS = 24
_BARRIER = "__syncthreads();"


def frame(title: str, lines: list[tuple[str, str]]) -> Image.Image:
    """Draw lines of text, each with its colour, as a terminal would show them."""
    chart = Chart(WIDTH, HEIGHT)
    chart.set_facecolor(_PAPER)
    chart.text(0.02, 0.955, title, color=_GOOD, family="monospace", size=11, va="top")
    for i, (text, color) in enumerate(lines[:_ROWS]):
        shown = text if len(text) <= _COLUMNS else text[: _COLUMNS - 1] + "…"
        chart.text(
            0.02,
            0.88 - 0.036 * i,
            shown,
            color=color,
            family="monospace",
            size=9,
            va="top",
            parse_math=False,
        )
    return image(chart)


def image(chart: Chart) -> Image.Image:
    """Return a chart as a picture of the session's size, on white where it is smaller."""
    buffer = io.BytesIO()
    chart.savefig(buffer, format="png", facecolor=chart.get_facecolor())
    drawn = Image.open(buffer).convert("RGB")
    size = (round(100 * WIDTH), round(100 * HEIGHT))
    drawn.thumbnail(size, Image.Resampling.LANCZOS)
    page = Image.new("RGB", size, drawn.getpixel((1, 1)))
    page.paste(
        drawn, tuple((have - need) // 2 for have, need in zip(size, drawn.size, strict=True))
    )
    return page


def source(text: str, around: int, marked: str) -> list[tuple[str, str]]:
    """Return the lines about one, with their numbers; that one in another colour."""
    lines = text.splitlines()
    first = max(0, around - 9)
    return [
        (f"{i + 1:4} {lines[i]}", marked if i == around else _INK)
        for i in range(first, min(len(lines), first + 18))
    ]


def told(text: str, color: str = _INK) -> list[tuple[str, str]]:
    """Return a text's lines; those that name a line of a kernel in the colour of a mistake."""
    return [
        (line, _BAD if ".cu:" in line or "WRONG" in line else color) for line in text.splitlines()
    ]


def session(path: Path) -> None:
    """Edit, look, compare; write what was shown as an animated picture."""
    right = find("03_smem_tile").read_text()
    at = right.splitlines().index(next(line for line in right.splitlines() if _BARRIER in line))
    wrong = right.replace(_BARRIER, "// " + _BARRIER, 1)
    frames: list[tuple[Image.Image, str]] = []
    engine = "cuda" if torch.cuda.is_available() else "sim"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.cu"
        file.write_text(right)
        mine = convlab.load(file, engine="sim")
        frames.append((frame("mine.cu, as it is", source(right, at, _GOOD)), "short"))
        file.write_text(wrong)
        frames.append((frame("an edit: one barrier too few", source(wrong, at, _BAD)), "short"))
        try:
            answer = str(convlab.check(mine, _SMALL))
        except LaunchError as error:
            answer = str(error)
        frames.append(
            (frame('>>> convlab.check(mine, "…")      no GPU needed', told(answer)), "long")
        )
        file.write_text(right)
        answer = str(convlab.check(mine, _SMALL))
        frames.append((frame("mended >>> convlab.check(mine, …)", told(answer, _GOOD)), "short"))
        seen = warp_accesses.accesses(mine, _SMALL)
        line = int(seen[(seen.space == "shared") & (seen.kind == "load")].line.mode()[0])
        frames.append((image(warp_accesses.access_map(mine, _SMALL, line)), "long"))
        rival = "03_smem_tile@TILE=8" if engine == "cuda" else "01_direct"
        verdict = convlab.ab(
            convlab.load("03_smem_tile", engine=engine), convlab.load(rival, engine=engine), "wide"
        )
        text = told(str(verdict))
        frames.append((frame(f'>>> convlab.ab("03_smem_tile", "{rival}", "wide")', text), "long"))
        frames.append((image(verdict.plot()), "long"))
    pictures = [drawn.quantize(128, dither=Image.Dither.NONE) for drawn, _ in frames]
    pictures[0].save(
        path,
        save_all=True,
        append_images=pictures[1:],
        loop=0,
        optimize=True,
        duration=[round(1000 * _SECONDS[how]) for _, how in frames],
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
    axes.set_title(conditions(results[0]), size=8)
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
    found = json.loads(rows.read_text())
    frame = pd.DataFrame(found["rows"])
    frame["problem"] = frame["problem"].str.partition(".")[2]
    beside_cudnn(frame, found["notes"][:1]).save(path)


@plot.styled
def beside_cudnn(frame: pd.DataFrame, notes: list[str]) -> Chart:
    """Draw the rows of a `Versus`, a panel a class, and the geometric mean of the ratios as a line."""
    classes = [name for name in ("tf32", "fp32") if (frame["class"] == name).any()]
    most = max((sum(frame["class"] == name) for name in classes), default=0)
    chart = Chart(9.6, 1.6 + 0.26 * most + 0.16 * len(notes))
    for axes, name in zip(chart.subplots(1, len(classes), sharey=True, squeeze=False)[0], classes):
        rows = frame[frame["class"] == name]
        axes.barh(range(len(rows)), rows["ratio"], color=[*map(plot.color_of, rows["choice"])])
        for y, (choice, ratio) in enumerate(zip(rows["choice"], rows["ratio"])):
            text = f" {ratio:.2f}  {choice.partition('_')[0]}" if ratio > 0 else " wrong"
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


def main(arguments: list[str]) -> int:
    """Draw what is asked for."""
    matplotlib.rcParams["font.size"] = 9
    what, path, *rest = arguments
    {"session": session, "share": share, "headline": headline, "ratios": ratios}[what](
        Path(path), *map(Path, rest)
    )
    print(f"{what}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
