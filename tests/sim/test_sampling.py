"""Sampled blocks: scaled counts, their errors, and findings that a sample cannot give."""

import math
import re

import pytest

import convlab
from convlab.core.errors import LaunchError
from convlab.core.problem.problem import Problem
from convlab.profile import sampling
from convlab.sim import simulation, trace
from convlab.sim.launch import simulated
from tests.suites import FOLDER

# Blocks at the borders differ from those inside: rows and columns of tiles are cut off.
UNEVEN = Problem(N=4, C=6, H=61, W=75, K=20, R=3, S=3, stride=1, padding=2, dilation=1)
ONE = Problem(N=1, C=1, H=300, W=300, K=1, R=1, S=1)


def counted(
    kernel: convlab.Kernel | str, problem: Problem, blocks: int | None, seed: int = 0
) -> trace.Trace:
    """Run a kernel once on zeros: all of its blocks, or a sample of `blocks`."""
    kernel = convlab.load(kernel, engine="sim") if isinstance(kernel, str) else kernel
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = simulation.Arena(shapes, sparse=["y"])
    return simulated(kernel, problem, arena, sample=blocks and (blocks, seed))


@pytest.mark.parametrize("name", ["01_direct", "02_im2col_gemm", "03_smem_tile@K_TILE=4"])
def test_sampled_counters_lie_within_the_stated_error(name: str) -> None:
    whole = counted(name, UNEVEN, None)
    assert whole.sampling is None
    distances = []
    for seed in range(5):
        trace = counted(name, UNEVEN, 24, seed)
        assert 24 <= trace.sampling["sampled"] < trace.sampling["blocks"]
        for counter, error in trace.sampling["errors"].items():
            expected = whole.counters[counter]
            if error == 0:  # the counter does not depend on the blocks, or is zero
                assert trace.counters[counter] == expected
                continue
            assert error < 0.2
            distances.append((trace.counters[counter] / expected - 1) / error)
    assert len(distances) >= 5 * 5 and max(map(abs, distances)) < 3
    assert any(distances)  # a scaled total differs from the exact one


def test_lines_are_scaled_as_the_totals_are() -> None:
    some, whole = (counted("03", UNEVEN, blocks) for blocks in (10, None))
    lines = [row for row in some.lines if row["space"] == "global" and row["kind"] == "load"]
    total = sum(row["units"] for row in lines)
    assert total == pytest.approx(some.counters["global_load_sectors"], rel=1e-3)
    assert some.flops == pytest.approx(whole.flops, rel=0.05)
    assert math.isnan(some.counters["launch_sectors"])


def test_the_sample_is_the_same_each_time() -> None:
    one, other = (counted("01", UNEVEN, 12).counters | {"seconds": 0} for _ in range(2))
    assert str(one) == str(other)  # as texts, because one of the counters is NaN


def test_the_standard_error_follows_the_formula() -> None:
    source = BROKEN % "__syncthreads(); if (blockIdx.x >= 500) return;"
    trace = counted(convlab.compile(source.replace("i < n", "true"), engine="sim"), ONE, 50)
    wrote = trace.counters["global_store_requests"] / 2 / 1000  # the share of blocks that stored
    spread = 50 / 49 * wrote * (1 - wrote) / wrote**2
    expected = math.sqrt((1 - 50 / 1000) / 50 * (spread + 1 / 50))
    assert trace.sampling["errors"]["global_store_requests"] == pytest.approx(expected, rel=1e-6)
    assert abs(wrote / 0.5 - 1) < 3 * expected


def test_a_sample_of_all_blocks_has_no_error() -> None:
    problem = Problem(N=1, C=2, H=8, W=8, K=3, R=3, S=3)
    one, other = (counted("01", problem, blocks) for blocks in (None, 1000))
    assert other.sampling["blocks"] == other.sampling["sampled"]
    assert not any(other.sampling["errors"].values())
    del one.counters["seconds"], other.counters["seconds"]
    assert one.counters == other.counters


def test_memory_that_is_never_accessed_takes_no_space() -> None:
    big = Problem(N=2048, C=1, H=130, W=130, K=256, R=3, S=3)  # y has 34 GB
    trace = counted("01", big, 20)
    stores = math.prod(big.y_shape) / 8
    assert trace.counters["global_store_sectors"] == pytest.approx(stores, rel=0.1)
    of_y = [row for row in trace.reaches if row["array"] == "y"]
    assert len({row["block"] for row in of_y}) == 20  # 256 outputs each, end to end
    assert all(
        (row["low"], row["high"], row["sectors"])
        == (1024 * row["block"], 1024 * row["block"] + 1024, 32)
        for row in of_y
    )
    assert not counted("01", ONE, None).reaches


BROKEN = (FOLDER / "broken.cu").read_text()


@pytest.mark.parametrize(
    "line, kind",
    [("", "race"), ("__syncthreads(); y[i + (1 << 20)] = 0;", "global out of bounds")],
    ids=["race", "out of bounds"],
)
def test_an_error_within_a_block_is_still_found(line: str, kind: str) -> None:
    kernel = convlab.compile(BROKEN % line, engine="sim")
    with pytest.raises(LaunchError) as raised:
        counted(kernel, ONE, 16)
    assert kind in {finding.kind for finding in raised.value.findings}


def test_findings_that_need_all_blocks_are_not_reported() -> None:
    kernel = convlab.compile(BROKEN % "__syncthreads();", engine="sim")
    assert not counted(kernel, ONE, 16).findings
    assert not counted("02_im2col_gemm", UNEVEN, 4).findings  # it reads results of other blocks


def test_inspect_scales_a_sample_to_the_whole_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = convlab.problem("N=1,C=4,H=130,W=130,K=8,R=3,S=3")
    whole = convlab.inspect("01", problem, engine="sim")
    monkeypatch.setattr(sampling, "MACS", problem.macs // 8)
    sampled = convlab.inspect("01", problem, engine="sim")
    assert whole.problem == sampled.problem == problem
    note = next(note for note in sampled.notes if "blocks simulated" in note)
    assert note.startswith("64 of 512 blocks simulated, chosen at random")
    assert re.search(r"load sectors \d\.\d%", note) and "blocks simulated" not in str(whole)
    one, other = (found.frame.set_index("quantity")["simulated"] for found in (whole, sampled))
    for quantity in ("global loads", "sectors per load", "operations"):
        assert other[quantity] == pytest.approx(one[quantity], rel=0.1)
