"""What rungs do beyond a small problem: many items a block, several stages, wide copies."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.core.correctness import reference
from convlab.core.kernel.catalog import catalog, find
from convlab.core.problem.named import problem
from tests.suites import on_engines

# rows of an odd length; 16-byte stores, and rows past the image's last; several tiles a block; fewer
# channels in the last stage; a stage smaller than what y passes through
STEM = [
    "N1 C3 H11 W130 K90 R11 S11 s4 p2 bias",
    "N1 C3 H17 W128 K64 R7 S7 s2 p3 bias",
    "N3 C66 H9 W20 K66 R2 S3 p1 g66",
    "N1 C14 H20 W33 K20 R7 S7 s3 p3",
    "N1 C1 H8 W16 K8 R1 S1",
]
STEMS = ("14_stem_tf32", "14b_stem_3xtf32")
# several chunks, more than fit; images of an odd size, read with a stride
ONE = ["N2 C200 H6 W10 K70 R1 S1 bias", "N3 C40 H13 W15 K66 R1 S1 s2x1 p1x2 g2 bias"]
PARTS, ROUNDED = POINTWISE = ("09_pointwise_3xtf32", "09b_pointwise_tf32")

CASES = (
    {
        # more items than blocks that stay; one stage, an even and an odd number of them
        "08_winograd": [
            "N1 C3 H98 W98 K150 R3 S3",
            "N1 C16 H66 W66 K260 R3 S3 p1",
            "N1 C20 H70 W69 K200 R3 S3 p0x2",
        ],
        # the same, the filter kept, and not; rows of x and y by 4, 8 and 16 bytes; images less than a tile
        "08b_winograd_4x4": [
            "N1 C9 H118 W118 K130 R3 S3",
            "N1 C20 H34 W36 K40 R3 S3 p1 bias",
            "N1 C140 H6 W7 K140 R3 S3 g140",
            "N2 C9 H22 W40 K36 R3 S3",
            "N3 C18 H30 W39 K40 R3 S3 p2x0 g2",
            "N3 C5 H2 W3 K33 R3 S3 p1 bias",
        ],
        # each tile's shape; rows of x four pixels at a time; padding past the filter
        "05_async_gemm": [
            "N1 C5 H50 W64 K130 R1 S1",
            "N1 C8 H60 W64 K70 R1 S1",
            "N1 C3 H64 W64 K40 R3 S3 p5 d2",
            "N1 C4 H24 W24 K200 R3 S3 s2 p1",
            "N1 C8 H24 W24 K12 R5 S3 p2 g4",
        ],
        # 16 bytes at a time from columns before the image, and each filter that is unrolled
        "06_depthwise": [
            "N1 C2 H40 W44 K2 R3 S3 p1 g2",
            "N1 C2 H19 W20 K4 R3 S7 p2x3 g2",
            "N1 C1 H70 W300 K1 R5 S5 p2",
            "N1 C2 H33 W32 K2 R3 S1 g2",
            "N1 C2 H30 W36 K2 R7 S7 p3 g2",
            "N1 C2 H41 W40 K2 R3 S3 s2 p1 g2",
        ],
        "07_small_groups": [
            "N2 C8 H28 W28 K8 R3 S3 p1 g2",
            "N1 C20 H12 W12 K10 R3 S3 p1 g2",
            "N1 C6 H40 W40 K12 R5 S5 p2 s2",
        ],
        # more than 264 tiles of 128 pixels x 64 channels, which is what an H200 holds at a time: of one
        # slice, whose filter stays; and of other slices
        f"{PARTS}@DEPTH=8": ["N1 C9 H184 W184 K5 R1 S1 bias", "N2 C67 H14 W14 K67 R1 S1 g67"],
        # tiles that overlap, since planes are no multiple of 32 bytes: in several images, a group's last
        # channels, and the last tile's sectors; with a stride
        f"{PARTS}@OVERLAP_FROM=1": [
            "N3 C9 H14 W14 K70 R1 S1 bias",
            "N5 C6 H6 W22 K10 R1 S1 g2",
            "N2 C8 H11 W43 K7 R1 S1 s2",
        ],
        f"{ROUNDED}@OVERLAP_FROM=1,WARPS=8": ["N2 C40 H22 W22 K64 R1 S1"],
    }
    | dict.fromkeys(STEMS, STEM)
    | dict.fromkeys(POINTWISE, ONE)
)


EACH = {f"{rung}-{spec}": (rung, spec) for rung, specs in CASES.items() for spec in specs}


@pytest.mark.parametrize(("case", "engine"), on_engines(EACH, 2))
def test_right(case: tuple[str, str], engine: str) -> None:
    assert_right(*case, engine)


def assert_right(name: str, spec: str, engine: str = "sim") -> None:
    """What takes long on the simulator is compared, and not traced."""
    large = problem(spec).macs > 10_000_000
    kernel = convlab.load(name, engine=engine)
    report = convlab.check(kernel.untraced() if large else kernel, problem(spec), scale=None)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "name",
    ["08_winograd@BC=4", "08b_winograd_4x4@BC=4", "06_depthwise@TILE_W=64", "05_async_gemm@BK=8"],
)
def test_tuned(name: str) -> None:
    """What a device with little shared memory gets, and others by choice."""
    rung = name.partition("@")[0]
    assert rung in {path.stem for path in catalog()}
    for spec in CASES[rung]["winograd" in rung : 2]:  # whose first takes longest
        assert_right(name, spec)


def test_points_near_one_halve_the_error() -> None:
    chosen = convlab.load("08b_winograd_4x4", engine="sim")
    usual = chosen.source.replace("kA = 0.625f, kB = 1.5f", "kA = 1.0f, kB = 2.0f")
    usual = convlab.compile(usual, name="usual_points", engine="sim")
    reports = [convlab.check(k, "N1 C64 H18 W18 K32 R3 S3", scale=None) for k in (chosen, usual)]
    assert reports[0].ok and reports[0].error < 0.6 * reports[1].error


@pytest.mark.parametrize("rung", STEMS)
def test_an_infinity_reaches_those_that_see_it(rung: str) -> None:
    """The list of 27 taps ends within a step: what stands in for the other 5 must be nothing."""
    p = problem("N1 C3 H9 W20 K5 R3 S3")
    x, w, _ = reference.inputs(p, 1)
    for place, value in (((0, 0, 4, 7), torch.inf), ((0, 2, 2, 15), torch.nan)):
        x[place] = value
    y = convlab.load(rung, engine="sim")(x, w)
    truth = F.conv2d(x.double(), w.double())
    assert torch.equal(y.isnan(), truth.isnan())
    assert torch.equal(y.isinf() * y.sign(), (truth.isinf() * truth.sign()).float())


def inspected(rung: str, spec: str, file: str) -> pd.DataFrame:
    """What each line of a file moves."""
    lines = convlab.inspect(convlab.load(rung, engine="sim"), problem(spec)).lines
    return lines[lines["file"].str.endswith(f"{file}.cu")]


@pytest.mark.parametrize(
    "spec", ["N1 C1 H16 W131 K16 R8 S11 s4 p2", "N1 C1 H13 W70 K16 R8 S7 s2 p3"]
)
def test_fragments_of_stems_meet_each_bank_once(spec: str) -> None:
    """Of taps that make whole steps; in the last, two may share a bank with what is not there."""
    rung, _ = STEMS
    source = find(rung).read_text().splitlines()
    reads = [i for i, text in enumerate(source, 1) if "s_low[8 * j" in text or "= s_w[(" in text]
    lines = inspected(rung, spec, rung)
    mine = lines[lines["line"].isin(reads)]
    assert len(mine) == 2 and (mine["units"] == mine["ideal_units"]).all(), mine


@pytest.mark.parametrize("rung", POINTWISE)
def test_fragments_of_1x1_filters_meet_each_bank_once(rung: str) -> None:
    lines = inspected(rung, "N1 C16 H8 W9 K64 R1 S1", PARTS)
    mine = lines[lines["space"].eq("shared") & lines["kind"].eq("load")]
    assert len(mine) == 2 and (mine["units"] == mine["ideal_units"]).all(), mine


def test_y_is_written_in_whole_sectors() -> None:
    """64 bytes of 8 channels at a time: as many sectors as y has, where rows are aligned."""
    p = problem("N2 C8 H8 W16 K64 R1 S1")
    lines = inspected(PARTS, str(p), PARTS)
    mine = lines[lines["array"].eq("y")]
    assert mine["units"].sum() == p.N * p.K * p.P * p.Q * 4 // 32, mine
