"""The addresses that a warp accesses: recorded, and drawn."""

import math

import pandas as pd
import pytest

import convlab
from convlab.core.correctness.reference import inputs
from convlab.core.errors import ProblemError
from convlab.core.problem.problem import Problem
from convlab.profile import access_figures, warp_accesses
from tests.suites import FOLDER, line_of

PROBLEM = Problem(N=2, C=3, H=20, W=40, K=5, R=3, S=3, padding=1)

PATTERNS = (FOLDER / "patterns.cu").read_text()


@pytest.fixture(scope="module")
def patterns() -> convlab.Kernel:
    return convlab.compile(PATTERNS.replace("s_tile[0][i]", "s_tile[i][0]"), engine="sim")


def test_each_lane_has_its_index(patterns: convlab.Kernel) -> None:
    frame = warp_accesses.accesses(patterns, PROBLEM, block=(0, 1, 0))
    for text, index in {
        "in a row": lambda lane: lane,
        "strided": lambda lane: 8 * lane,
        "one for all": lambda lane: 5,
        "scattered": lambda lane: lane * lane % 331,
        "wide": lambda lane: 4 * lane,
        "a column": lambda lane: 32 * lane,
    }.items():
        rows = frame[frame["line"] == line_of(patterns.source, text)]
        assert list(rows["lane"]) == list(range(32))
        assert list(rows["index"]) == [index(lane) for lane in range(32)], text
        assert list(rows["byte"]) == [4 * index(lane) for lane in range(32)], text
        assert set(rows["bytes"]) == {16 if text == "wide" else 4}
    odd = frame[frame["line"] == line_of(patterns.source, "odd lanes")]
    assert list(odd["lane"]) == list(range(1, 32, 2))
    again = frame[frame["line"] == line_of(patterns.source, "three times")]
    assert again.groupby("execution")["index"].first().to_dict() == {0: 0, 1: 32, 2: 64}
    assert set(again["space"]) == {"shared"} and set(again["array"]) == {"s_tile"}


@pytest.mark.parametrize(
    "line, says",
    [
        ("in a row", "load of x: 4 sectors, 128 bytes moved for 128 requested"),
        ("strided", "load of x: 32 sectors, 1024 bytes moved for 128 requested"),
        ("one for all", "load of x: 1 sector, 32 bytes moved for 128 requested"),
        ("odd lanes", "load of x: 5 sectors, 160 bytes moved for 64 requested"),
        ("wide", "load of x: 16 sectors, 512 bytes moved for 512 requested"),
        ("a column", "store of s_tile: 32 wavefronts, minimum 1"),
        ("three times", "load of s_tile: 1 wavefront, minimum 1"),
    ],
)
def test_a_map_shows_the_traffic(patterns: convlab.Kernel, line: str, says: str) -> None:
    chart = convlab.access_map(patterns, PROBLEM, line, block=(1, 2, 0))
    assert says in [axes.get_title() for axes in chart.axes]
    heading = chart.get_suptitle()
    assert f"inline:{line_of(patterns.source, line)}" in heading
    assert "block (1, 2, 0), warp 0, execution 0 of" in heading
    chart.canvas.draw()


def test_maps_agree_with_the_simulators_counts(patterns: convlab.Kernel) -> None:
    launch = patterns.prepare(PROBLEM, *inputs(PROBLEM, 0))
    launch()
    blocks = 6
    for row in launch.lines:
        chart = convlab.access_map(patterns, PROBLEM, row["line"])
        units = int(chart.axes[0].get_title().split(": ")[1].split()[0])
        assert units * blocks * (row["requests"] // blocks) == row["units"], row


def test_a_line_of_two_arrays_has_two_panels() -> None:
    chart = convlab.access_map("03_smem_tile", "wide", "s_tap[k / 4]", warp=1)
    assert len(chart.axes) == 1  # the filter is in registers
    kernel = convlab.load("01", engine="sim")
    merged = kernel.source.replace(" *\n", " * ")  # x and w on one line
    merged = convlab.compile(merged, engine="sim")
    number = line_of(merged.source, "r_acc += x_n")
    chart = convlab.access_map(merged, PROBLEM, number, execution=2)
    assert [axes.get_title().split(":")[0] for axes in chart.axes] == ["load of x", "load of w"]


def test_the_headline_problems_need_no_memory() -> None:
    frame = warp_accesses.accesses("01_direct", "square", block=(7, 0, 0), warp=3)
    assert set(frame["array"]) == {"x", "w", "y"}
    assert len(frame[frame["array"] == "x"]) == 32 * 16 * 9


def test_the_line_selects_one_of_several_launches() -> None:
    frame = warp_accesses.accesses("02_im2col_gemm", PROBLEM)
    assert list(dict.fromkeys(frame["kernel"])) == ["im2col", "gemm_nchw"]
    stores = frame[(frame["array"] == "y") & (frame["kind"] == "store")]
    chart = convlab.access_map("02_im2col_gemm", PROBLEM, int(stores["line"].iloc[0]))
    assert "gemm_nchw, block" in chart.get_suptitle()


@pytest.mark.parametrize(
    "options, says",
    [
        ({"line": 1}, "no memory at a line that is line 1; it accesses memory at:\n  6: float sum"),
        ({"line": "no such text"}, "no memory at a line that has 'no such text' in it"),
        ({"line": 6, "execution": 4}, "from 0 to 0, not 4"),
        ({"line": 6, "block": (2, 0, 0)}, r"the grids are \(2, 3, 1\)"),
        ({"line": 6, "block": (0, 0)}, r"as \(x, y, z\)"),
        ({"line": 6, "warp": 1}, "has 1 warp: give a number below 1"),
    ],
    ids=["no access", "no text", "execution", "block", "shape", "warp"],
)
def test_missing_lines_blocks_and_warps(patterns: convlab.Kernel, options: dict, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        convlab.access_map(patterns, PROBLEM, **options)


def test_the_number_of_recorded_requests_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_accesses, "LIMIT", 50)
    with pytest.raises(ProblemError, match="more than 50 memory requests"):
        warp_accesses.accesses("01", "N=1,C=4,H=8,W=34,K=1,R=3,S=3")


def test_the_footprint_is_the_tile_and_its_halo() -> None:
    problem = Problem(N=1, C=4, H=40, W=40, K=8, R=3, S=5, padding=0)
    chart = warp_accesses.footprint("03_smem_tile", problem)
    text = chart.get_suptitle()
    tile = 16
    assert f"{4 * (tile + 2) * (tile + 4):,} elements of x read, each once" in text
    assert f"{8 * tile * tile:,} elements of y written" in text
    left = chart.axes[0].get_title()
    assert "rows 0 to 17, columns 0 to 19\nof image 0, 4 channels" in left
    assert "direct" in warp_accesses.footprint("01_direct", problem).get_suptitle()


def test_half_precision_in_nhwc() -> None:
    """A warp copies the first 32 elements of NHWC: ten pixels of 3 channels, and 2 of the next."""
    kernel = convlab.compile((FOLDER / "copy.cu").read_text(), name="halves", engine="sim")
    problem = Problem(N=2, C=3, H=5, W=7, K=3, R=1, S=1)
    frame = warp_accesses.accesses(kernel, problem)
    assert set(frame["bytes"]) == {2}
    assert list(frame[frame["array"] == "x"]["index"]) == list(range(32))
    chart = warp_accesses.footprint(kernel, problem)
    assert "32 elements of x read, each once; 32 elements of y written" in chart.get_suptitle()
    assert "rows 0 to 1, columns 0 to 6\nof image 0, 3 channels" in chart.axes[0].get_title()
    found = convlab.inspect(kernel, problem, engine="sim").frame.set_index("quantity")
    least = 2 * (2 * 2 * 3 * 5 * 7 + 9)
    assert found.loc["DRAM traffic", "least"] == pytest.approx(least / 1e6)


def test_figures_of_plain_data() -> None:
    lanes = {lane: 4096 * lane for lane in range(32)}
    scattered = access_figures.draw_requests([access_figures.Request(lanes)])
    assert len(scattered.axes[0].get_yticks()) == 32
    block = {"n": 0, "c": 0, "h": [4, 4, 4, 5, 5, 5], "w": 2 * [5, 6, 7], "times": 1}
    chart = access_figures.draw_footprint(PROBLEM, pd.DataFrame(block), pd.DataFrame(), "mine")
    assert "x: rows 4 to 5, columns 5 to 7\nof image 0, 1 channel" in chart.axes[0].get_title()
    assert "nothing of y is written" in chart.axes[1].get_title()
    assert math.isclose(chart.get_size_inches()[0], 8)
