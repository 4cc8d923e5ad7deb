"""The rungs for 1x1 filters: blocks that go from tile to tile, both ways to hold the filter."""

from __future__ import annotations

import pandas as pd
import pytest

import convlab
from convlab.words.problem import problem

PARTS, TF32 = POINTWISE = ("09_pointwise_3xtf32", "09b_pointwise_tf32")
ENGINES = ["sim", pytest.param("cuda", marks=pytest.mark.gpu)]
TILES = {  # more than 264 of 128 pixels x 64 channels, which is what an H200 holds at a time
    "of one slice, whose filter stays": "N1 C9 H184 W184 K5 R1 S1 bias",
    "of other slices": "N2 C67 H14 W14 K67 R1 S1 g67",
}
SHAPES = {
    "several chunks, more than fit": "N2 C200 H6 W10 K70 R1 S1 bias",
    "images of an odd size, read with a stride": "N3 C40 H13 W15 K66 R1 S1 s2x1 p1x2 g2 bias",
}


def assert_right(rung: str, spec: str, engine: str) -> None:
    report = convlab.check(convlab.load(rung, engine=engine), problem(spec), scale=None)
    assert report.ok, str(report)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", TILES.values(), ids=TILES)
def test_a_block_goes_from_tile_to_tile(spec: str, engine: str) -> None:
    assert_right(f"{PARTS}@DEPTH=8", spec, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rung", POINTWISE)
def test_right(rung: str, spec: str, engine: str) -> None:
    assert_right(rung, spec, engine)


def inspected(rung: str, spec: str) -> pd.DataFrame:
    """What each line of a rung's own file moves."""
    lines = convlab.inspect(convlab.load(rung, engine="sim"), problem(spec)).lines
    return lines[lines["file"].str.endswith(f"{PARTS}.cu")]


@pytest.mark.parametrize("rung", POINTWISE)
def test_fragments_meet_each_bank_once(rung: str) -> None:
    lines = inspected(rung, "N1 C16 H8 W9 K64 R1 S1")
    mine = lines[lines["space"].eq("shared") & lines["kind"].eq("load")]
    assert len(mine) == 2 and (mine["units"] == mine["ideal_units"]).all(), mine


def test_y_is_written_in_whole_sectors() -> None:
    """64 bytes of 8 channels at a time: as many sectors as y has, where rows are aligned."""
    p = problem("N2 C8 H8 W16 K64 R1 S1")
    lines = inspected(PARTS, str(p))
    mine = lines[lines["array"].eq("y")]
    assert mine["units"].sum() == p.N * p.K * p.P * p.Q * 4 // 32, mine
