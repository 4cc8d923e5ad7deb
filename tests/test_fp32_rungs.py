"""What the fp32 rungs do beyond a small problem: many items a block, wide copies, smaller tiles."""

from __future__ import annotations

import pytest

import convlab
from convlab.words.catalog import catalog
from convlab.words.problem import problem

CASES = {
    # more items than blocks that stay; one stage, an even and an odd number of them
    "08_winograd": [
        "N1 C3 H98 W98 K150 R3 S3",
        "N1 C16 H66 W66 K260 R3 S3 p1",
        "N1 C20 H70 W69 K200 R3 S3 p0x2",
    ],
    # the same, the filter kept, and not; rows of x and y by 4, 8 and 16 bytes; images less than a tile
    "08b_winograd_4x4": [
        "N1 C9 H118 W118 K130 R3 S3", "N1 C20 H34 W36 K40 R3 S3 p1 bias",
        "N1 C140 H6 W7 K140 R3 S3 g140", "N2 C9 H22 W40 K36 R3 S3",
        "N3 C18 H30 W39 K40 R3 S3 p2x0 g2", "N3 C5 H2 W3 K33 R3 S3 p1 bias",
    ],
    # each tile's shape; rows of x four pixels at a time; padding past the filter
    "05_async_gemm": [
        "N1 C5 H50 W64 K130 R1 S1", "N1 C8 H60 W64 K70 R1 S1", "N1 C3 H64 W64 K40 R3 S3 p5 d2",
        "N1 C4 H24 W24 K200 R3 S3 s2 p1", "N1 C8 H24 W24 K12 R5 S3 p2 g4",
    ],
    # 16 bytes at a time from columns before the image, and each filter that is unrolled
    "06_depthwise": [
        "N1 C2 H40 W44 K2 R3 S3 p1 g2", "N1 C2 H19 W20 K4 R3 S7 p2x3 g2",
        "N1 C1 H70 W300 K1 R5 S5 p2",
        "N1 C2 H33 W32 K2 R3 S1 g2", "N1 C2 H30 W36 K2 R7 S7 p3 g2",
        "N1 C2 H41 W40 K2 R3 S3 s2 p1 g2",
    ],
    "07_small_groups": [
        "N2 C8 H28 W28 K8 R3 S3 p1 g2", "N1 C20 H12 W12 K10 R3 S3 p1 g2",
        "N1 C6 H40 W40 K12 R5 S5 p2 s2",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("rung", "spec"), [(rung, spec) for rung, specs in CASES.items() for spec in specs]
)
def test_right(rung: str, spec: str) -> None:
    report = convlab.check(convlab.load(rung, engine="sim"), problem(spec), scale=None)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "name",
    ["08_winograd@BC=4", "08b_winograd_4x4@BC=4", "06_depthwise@TILE_W=64", "05_async_gemm@BK=8"],
)
def test_tuned(name: str) -> None:
    """What a device with little shared memory gets, and others by choice."""
    rung = name.partition("@")[0]
    assert rung in {path.stem for path in catalog()}
    for spec in CASES[rung][:2]:
        report = convlab.check(convlab.load(name, engine="sim"), problem(spec), scale=None)
        assert report.ok, str(report)


def test_points_near_one_halve_the_error() -> None:
    chosen = convlab.load("08b_winograd_4x4", engine="sim")
    usual = chosen.source.replace("kA = 0.625f, kB = 1.5f", "kA = 1.0f, kB = 2.0f")
    usual = convlab.compile(usual, name="usual_points", engine="sim")
    reports = [convlab.check(k, "N1 C64 H18 W18 K32 R3 S3", scale=None) for k in (chosen, usual)]
    assert reports[0].ok and reports[0].error < 0.6 * reports[1].error
