"""The style of figures: each kernel has its own, distinguishable colour; the background is white."""

import io
import itertools

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from PIL import Image

from convlab.core.kernel.catalog import catalog as kernel_files
from convlab.core.show import charts, plot

pytestmark = pytest.mark.pure

# A figure compares kernels that compute the same, so these are the convolutions.
RUNGS = [path.stem for path in kernel_files() if "// computes:" not in path.read_text()]

# How dichromats see linear RGB (Machado, Oliveira and Fernandes, A Physiologically-based Model for
# Simulation of Color Vision Deficiency, 2009, severity 1).
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array(
    [[0.41246, 0.35758, 0.18044], [0.21267, 0.71515, 0.07218], [0.01933, 0.1192, 0.9503]]
)


def linear(color: str) -> np.ndarray:
    """Return a hex colour as linear RGB (IEC 61966-2-1)."""
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return linear RGB as CIE L*a*b*, with D65 as white."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, sight: str) -> float:
    """Return the colour difference (CIE76); 2.3 is just noticeable."""
    seen = [lab(np.array(SIGHT[sight]) @ linear(color)) for color in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    high, low = sorted((float(TO_XYZ[1] @ linear(c)) for c in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    ("shades", "least"), [(plot.PALETTE, 12), (RUNGS, 10)], ids=["all", "rungs"]
)
def test_colours_are_distinguishable(shades, least, sight):
    shades = [shade if shade[0] == "#" else plot.color_of(shade) for shade in shades]
    for one, other in itertools.combinations(shades, 2):
        assert distance(one, other, sight) > least, (one, other)


def test_colours_of_future_rungs_differ():
    numbers = [f"{n:02}{letter}_any" for n in range(1, 11) for letter in ("", "b", "c", "d", "e")]
    assert len({plot.color_of(name) for name in numbers}) == len(numbers)


def test_a_colour_depends_on_the_name_alone():
    names = [*RUNGS, "cudnn:fp32", "cudnn:tf32", "mine", "yours", "03_smem_tile@TILE=8"]
    for some in (names, names[::2], names[::-1]):
        shades = plot.colors(some)
        stay = [name for name in some if name not in ("yours", "mine")]
        assert {name: shades[name] for name in stay} == {n: plot.color_of(n) for n in stay}
    rungs = {plot.color_of(name) for name in RUNGS}
    assert plot.color_of("mine") not in rungs
    assert plot.color_of("03_smem_tile@TILE=8") != plot.color_of("03_smem_tile")
    assert plot.color_of("03_smem_tile#1a2b") == plot.color_of("03_smem_tile")


def test_kernels_of_one_figure_that_are_not_rungs_differ():
    own = ["mine", "yours", "theirs", "ours"]
    tuned = [f"03_smem_tile@TILE={tile}" for tile in (4, 8, 12, 16)]
    for names in (own, tuned):
        shades = plot.colors([*names, "01_direct", "03_smem_tile"])
        assert len(set(shades.values())) == 6
        assert shades["01_direct"] == plot.color_of("01_direct")


def test_every_colour_is_a_hex():
    for name in ("01_direct", "02e_x", "14_x", "mine@A=1", "torch:cpu", "cudnn:fp32@x", ""):
        assert to_hex(plot.color_of(name)).upper() == plot.color_of(name)


def compared(*kernels, title):
    """Return the labels and the colours of the kernels in a comparison's figure."""
    frame = pd.DataFrame(
        {
            "kernel": kernels,
            "title": title,
            "class": "fp32",
            "correct": True,
            "error": 1e-7,
            "bound": 1e-6,
            "traffic_mb": 9.0,
            "floor_mb": 1.0,
            "x_floor": 9.0,
        }
    )
    left, right = charts.error_and_cost(frame).axes
    labels = [text.get_text() for text in left.get_yticklabels()]
    return labels, [to_hex(bar.get_facecolor()).upper() for bar in right.patches]


def test_charts_use_the_kernels_own_colours():
    kernels = "01_direct", "03_smem_tile"
    labels, shades = compared(*kernels, title=["Direct", "Tile"])
    assert labels == ["Direct", "Tile"] and shades == [*map(plot.color_of, kernels)]
    swept = pd.DataFrame(
        {
            "problem": "square",
            "TILE": [8, 16],
            "traffic_mb": [2.0, 1.0],
            "kernel": ["03_smem_tile@TILE=8", "03_smem_tile@TILE=16"],
        }
    )
    swept.attrs["tunables"] = ["TILE"]
    bars = charts.sweep_chart(swept).axes[0].patches
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars} == {plot.color_of("03_smem_tile")}


def test_names_replace_titles_that_are_equal_after_cutting():
    long = "Direct, several channels a thread"
    labels, _ = compared("mine", "mine@KT=16", "01_direct", title=[long, f"{long} KT=16", "Direct"])
    assert labels == ["mine", "mine@KT=16", "Direct"]


def test_style_is_white_whatever_was_set_before():
    with matplotlib.rc_context():
        plt.style.use("dark_background")
        plot.style()
        figure, axes = plt.subplots()
        axes.set(title="title", xlabel="x", ylabel="y")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        plt.close(figure)
        inks = [axes.title.get_color(), axes.xaxis.label.get_color(), plt.rcParams["text.color"]]
        inks += [plt.rcParams["xtick.color"], plt.rcParams["axes.edgecolor"]]
        assert all(contrast(to_hex(ink), "#FFFFFF") > 7 for ink in inks)
        assert figure.get_layout_engine() is not None
        assert tuple(plt.rcParams["axes.prop_cycle"].by_key()["color"]) == plot.PALETTE
    pixels = np.asarray(Image.open(buffer).convert("RGBA"))
    assert (pixels[..., 3] == 255).all() and (pixels[0, 0, :3] == 255).all()
    assert (pixels[..., :3] == 255).all(-1).mean() > 0.8
