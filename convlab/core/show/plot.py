"""The look of every figure: a card of its own, a style sheet, and a colour for each kernel."""

from __future__ import annotations

import functools
import io
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context, rc_params_from_file, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import arguments
from ..defaults import ENDINGS

STYLE = rc_params_from_file(Path(__file__).with_name("convlab.mplstyle"), False, False)
PALETTE = tuple(STYLE["axes.prop_cycle"].by_key()["color"])
_OWN = ("#882255", "#332288", "#666633", "#663333")  # kernels that are no rung
_VARIANTS = {"": 0, "a": 0, "b": -0.5, "c": 0.8, "d": -0.75, "e": 0.6}  # darker (< 0), lighter
_TUNED = (0.3, -0.3, 0.55, -0.55, 0.15)
_BASELINES = {"cudnn:fp32": "#4D4D4D", "cudnn:tf32": "#A6A6A6"}
_OTHER_BASELINE = "#7F7F7F"
# The cost's column in a comparison's or a sweep's frame, and what it is.
COST_LABELS = {
    "time_ms": "time on the GPU (ms)",
    "traffic_mb": "simulated global memory traffic (MB)",
}
INK = "#222222"
QUIET = "#555555"


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
        path = arguments.writable(path, "the figure", ENDINGS)
        self.savefig(path)
        return path

    def headed(self, title: str, notes: Sequence[str]) -> Chart:
        """Put a heading over all of it, and small lines under it; return it."""
        if title:
            self.suptitle(title)
        if notes:
            self.supxlabel("\n".join(notes), color=QUIET, x=0.01, ha="left")
        return self


def styled(draw: Callable[..., Chart]) -> Callable[..., Chart]:
    """Let a function draw in convlab's style, whatever the notebook's is."""

    @functools.wraps(draw)
    def drawn(*arguments: object, **options: object) -> Chart:
        with rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


def style() -> None:
    """Set matplotlib's defaults to the look of convlab's figures; for the top of a notebook."""
    rcParams.update(STYLE)


def color_of(name: str) -> str:
    """Return a kernel's colour, "#RRGGBB", which follows from its name alone.

    A rung ("03_smem_tile") has the colour of its number, its variants ("02b_", "02c_") darker and
    lighter shades of it, one with tunables ("03_smem_tile@TILE=8") a shade between. Baselines (a
    name with ":") are greys. Any other kernel has one of four colours that no rung has.
    """
    return _wheel(name)[0]


def colors(names: Iterable[str]) -> dict[str, str]:
    """Return each kernel's colour: `color_of`, but where two that are no rungs meet, one moves on.

    Rungs and baselines keep theirs, whatever else is in the figure.
    """
    chosen: dict[str, str] = {}
    for name in sorted(set(names), key=lambda name: (len(_wheel(name)), name)):
        wheel = _wheel(name)
        chosen[name] = next((c for c in wheel if c not in chosen.values()), wheel[0])
    return chosen


def _wheel(name: str) -> list[str]:
    """Return a kernel's own colour, then those that it may take where that one is taken."""
    name = re.sub(r"#[^@]*", "", name)  # the mark of a pinned version
    if ":" in name.partition("@")[0]:
        return [_BASELINES.get(name, _OTHER_BASELINE)]
    stem, _, tunables = name.partition("@")
    if rung := re.match(r"(\d+)([a-e]?)_", stem):
        color = PALETTE[(int(rung[1]) - 1) % len(PALETTE)]
        wheel = [_shade(color, _VARIANTS[rung[2]])]
    else:
        wheel = _turned(_OWN, stem)
    return [_shade(wheel[0], by) for by in _turned(_TUNED, name)] if tunables else wheel


def _turned(choices: Sequence, name: str) -> list:
    """The choices, beginning with one that follows from the name."""
    begin = zlib.crc32(name.encode()) % len(choices)
    return [*choices[begin:], *choices[:begin]]


def _shade(color: str, by: float) -> str:
    """Mix a colour with black (`by` below 0) or white (above), 1 being all of it."""
    end = 255 if by > 0 else 0
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (end - part) * abs(by)):02X}" for part in parts)
