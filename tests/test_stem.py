"""The rungs for stems: many stages and tiles a block, infinities, and reads free of conflicts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.right import reference
from convlab.words.catalog import find
from convlab.words.problem import problem

STEMS = ("14_stem_tf32", "14b_stem_3xtf32")
ENGINES = ["sim", pytest.param("cuda", marks=pytest.mark.gpu)]
CASES = {
    "rows of an odd length": "N1 C3 H11 W130 K90 R11 S11 s4 p2 bias",
    "16-byte stores, and rows past the image's last": "N1 C3 H17 W128 K64 R7 S7 s2 p3 bias",
    "several tiles a block": "N3 C66 H9 W20 K66 R2 S3 p1 g66",
    "fewer channels in the last stage": "N1 C14 H20 W33 K20 R7 S7 s3 p3",
    "a stage smaller than what y passes through": "N1 C1 H8 W16 K8 R1 S1",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rung", STEMS)
def test_right(rung: str, spec: str, engine: str) -> None:
    report = convlab.check(convlab.load(rung, engine=engine), problem(spec), scale=None)
    assert report.ok, str(report)


@pytest.mark.parametrize("rung", STEMS)
def test_an_infinity_reaches_those_that_see_it(rung: str) -> None:
    """The list of 27 taps ends within a step: what stands in for the other 5 must be nothing."""
    p = problem("N1 C3 H9 W20 K5 R3 S3")
    x, w, _ = reference.inputs(p, 1)
    for place, value in (((0, 0, 4, 7), torch.inf), ((0, 2, 2, 15), torch.nan)):
        x[place] = value
    y, truth = convlab.load(rung, engine="sim")(x, w), F.conv2d(x.double(), w.double())
    assert torch.equal(y.isnan(), truth.isnan())
    assert torch.equal(y.isinf() * y.sign(), (truth.isinf() * truth.sign()).float())


@pytest.mark.parametrize(
    "spec", ["N1 C1 H16 W131 K16 R8 S11 s4 p2", "N1 C1 H13 W70 K16 R8 S7 s2 p3"]
)
def test_fragments_meet_each_bank_once(spec: str) -> None:
    """Of taps that make whole steps; in the last, two may share a bank with what is not there."""
    rung, _ = STEMS
    source = find(rung).read_text().splitlines()
    reads = [i for i, text in enumerate(source, 1) if "s_low[8 * j" in text or "= s_w[(" in text]
    lines = convlab.inspect(convlab.load(rung, engine="sim"), problem(spec)).lines
    mine = lines[lines["file"].str.endswith(f"{rung}.cu") & lines["line"].isin(reads)]
    assert len(mine) == 2 and (mine["units"] == mine["ideal_units"]).all(), mine
