"""Define the look of all figures: their class, the style sheet, and a colour for each kernel."""

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
# The colours of kernels that are not rungs.
_OWN = ("#882255", "#332288", "#666633", "#663333")
# The shade of a rung's variant, and those of kernels with tunables: darker if negative, else lighter.
_VARIANTS = {"": 0, "a": 0, "b": -0.5, "c": 0.8, "d": -0.75, "e": 0.6}
_TUNED = (0.3, -0.3, 0.55, -0.55, 0.15)
_BASELINES = {"cudnn:fp32": "#4D4D4D", "cudnn:tf32": "#A6A6A6"}
_OTHER_BASELINE = "#7F7F7F"
# The axis label of each column of costs in the frame of a comparison or a sweep.
COST_LABELS = {
    "time_ms": "time on the GPU (ms)",
    "traffic_mb": "simulated global memory traffic (MB)",
}
INK = "#222222"
QUIET = "#555555"


class Chart(Figure):
    """Extend matplotlib's Figure: it does not need pyplot, and a notebook shows it once.

    Examples
    --------
    >>> chart = convlab.check("01_direct", "wide").plot()
    >>> path = chart.save("errors.png")
    """

    def __init__(self, width: float, height: float, dpi: int = 100) -> None:
        super().__init__(figsize=(width, height), dpi=dpi, facecolor="white", layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write the figure to a file and return its path; the ending selects the format.

        Endings are .png, .svg, .pdf and .jpg. Raises ProblemError for another ending, or if the file
        cannot be written.
        """
        path = arguments.writable(path, "the figure", ENDINGS)
        self.savefig(path)
        return path

    def headed(self, title: str, notes: Sequence[str]) -> Chart:
        """Add a title above the figure and notes in small print below it; return the figure."""
        if title:
            self.suptitle(title)
        if notes:
            self.supxlabel("\n".join(notes), color=QUIET, x=0.01, ha="left")
        return self


def styled(draw: Callable[..., Chart]) -> Callable[..., Chart]:
    """Return the function, changed to draw in convlab's style instead of the notebook's."""

    @functools.wraps(draw)
    def drawn(*arguments: object, **options: object) -> Chart:
        with rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


def style() -> None:
    """Set matplotlib's defaults to the style of convlab's figures.

    Call it at the top of a notebook, so that your own figures look the same.

    Examples
    --------
    >>> from convlab.core.show.plot import style
    >>> style()
    """
    rcParams.update(STYLE)


def color_of(name: str) -> str:
    """Return a kernel's colour, "#RRGGBB"; it depends only on the name.

    The number of a rung ("03_smem_tile") selects its colour. Variants ("02b_", "02c_") have darker or
    lighter shades of it, and so does a kernel with tunables ("03_smem_tile@TILE=8"). Baselines (names
    with ":") are grey. Any other kernel has one of four colours that no rung has.

    Examples
    --------
    >>> color_of("01_direct")
    '#0072B2'
    """
    return _wheel(name)[0]


def colors(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each kernel: that of `color_of`, unless another kernel has it.

    Then a kernel that is not a rung, or has tunables, gets another of its colours. Rungs and
    baselines always keep theirs.
    """
    chosen: dict[str, str] = {}
    for name in sorted(set(names), key=lambda name: (len(_wheel(name)), name)):
        wheel = _wheel(name)
        chosen[name] = next((c for c in wheel if c not in chosen.values()), wheel[0])
    return chosen


def _wheel(name: str) -> list[str]:
    """Return a kernel's colour, followed by the colours that may replace it."""
    # Remove the mark of a pinned version.
    name = re.sub(r"#[^@]*", "", name)
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
    """Return the choices, rotated so that the name determines the first one."""
    begin = zlib.crc32(name.encode()) % len(choices)
    return [*choices[begin:], *choices[:begin]]


def _shade(color: str, by: float) -> str:
    """Mix a colour with black (`by` < 0) or white (`by` > 0); 1 and -1 mean only white and black."""
    end = 255 if by > 0 else 0
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (end - part) * abs(by)):02X}" for part in parts)
