"""Some blocks for all: what is scaled, how far it is off, and what a sample cannot tell."""

import math
import re

import pytest
import torch

import convlab
from convlab import sim
from convlab.right.reference import inputs
from convlab.run.launch import integers
from convlab.run.runnable import Launch
from convlab.words.errors import LaunchError, ProblemError
from convlab.words.problem import Problem
from tests.suites import FOLDER

# Blocks at the borders differ from those inside: rows and columns of tiles are cut off.
UNEVEN = Problem(N=4, C=6, H=61, W=75, K=20, R=3, S=3, stride=1, padding=2, dilation=1)
ONE = Problem(N=1, C=1, H=300, W=300, K=1, R=1, S=1)


def launched(kernel: convlab.Kernel, problem: Problem = UNEVEN) -> Launch:
    """One call on data."""
    launch = kernel.prepare(problem, *inputs(problem, 0))
    launch()
    return launch


def counted(kernel: convlab.Kernel, problem: Problem, seed: int = 0) -> sim.Trace:
    """One run of a kernel on zeros, with a seed for its sample."""
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    return sim.simulate(
        kernel.build().library, sim.runtime(), integers(problem),
        sim.Arena(shapes, sparse=["y"]), label=kernel.name, source=kernel.path,
        workspace_limit=kernel.workspace_limit, sample=kernel.sample and (kernel.sample, seed),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["01_direct", "02_im2col_gemm", "03_smem_tile@K_TILE=4"])
def test_sampled_counters_lie_within_the_stated_error(name: str) -> None:
    whole = convlab.load(name, engine="sim")
    launch = launched(whole)
    assert launch.sampling is None
    sampled = convlab.load(name, engine="sim", sample=24)
    distances = []
    for seed in range(5):
        trace = counted(sampled, UNEVEN, seed)
        assert 24 <= trace.sampling["sampled"] < trace.sampling["blocks"]
        for counter, error in trace.sampling["errors"].items():
            expected = launch.counters[counter]
            if error == 0:  # not a matter of blocks, or none did any
                assert trace.counters[counter] == expected
                continue
            assert error < 0.2
            distances.append((trace.counters[counter] / expected - 1) / error)
    assert len(distances) >= 5 * 5 and max(map(abs, distances)) < 3
    assert any(distances)  # the sample is one: a scaled total is not the whole's


def test_lines_are_scaled_as_the_totals_are() -> None:
    launch = launched(convlab.load("03", engine="sim", sample=10))
    lines = [row for row in launch.lines if row["space"] == "global" and row["kind"] == "load"]
    total = sum(row["units"] for row in lines)
    assert total == pytest.approx(launch.counters["global_load_sectors"], rel=1e-3)
    whole = launched(convlab.load("03", engine="sim"))
    assert launch.flops == pytest.approx(whole.flops, rel=0.05)
    assert math.isnan(launch.counters["launch_sectors"])


def test_the_sample_is_the_same_each_time() -> None:
    launch = launched(convlab.load("01", engine="sim", sample=12))
    first = launch.counters | {"seconds": 0}
    launch()
    assert str(first) == str(launch.counters | {"seconds": 0})  # of which one is NaN


def test_the_error_is_that_of_the_formula() -> None:
    source = BROKEN % "__syncthreads(); if (blockIdx.x >= 500) return;"
    kernel = convlab.compile(source.replace("i < n", "true"), engine="sim", sample=50)
    launch = launched(kernel, ONE)
    wrote = launch.counters["global_store_requests"] / 2 / 1000  # the share of blocks that stored
    spread = 50 / 49 * wrote * (1 - wrote) / wrote**2
    expected = math.sqrt((1 - 50 / 1000) / 50 * (spread + 1 / 50))
    assert launch.sampling["errors"]["global_store_requests"] == pytest.approx(expected, rel=1e-6)
    assert abs(wrote / 0.5 - 1) < 3 * expected


def test_few_blocks_run_whole() -> None:
    problem = Problem(N=1, C=2, H=8, W=8, K=3, R=3, S=3)
    one, other = (launched(convlab.load("01", engine="sim", sample=s), problem)
                  for s in (None, 1000))  # fmt: skip
    assert other.sampling["blocks"] == other.sampling["sampled"]
    assert not any(other.sampling["errors"].values())
    del one.counters["seconds"], other.counters["seconds"]
    assert one.counters == other.counters


def test_what_is_never_touched_takes_no_memory() -> None:
    big = Problem(N=2048, C=1, H=130, W=130, K=256, R=3, S=3)  # y has 34 GB
    trace = counted(convlab.load("01", engine="sim", sample=20), big)
    stores = math.prod(big.y_shape) / 8
    assert trace.counters["global_store_sectors"] == pytest.approx(stores, rel=0.1)
    of_y = [row for row in trace.reaches if row["array"] == "y"]
    assert len({row["block"] for row in of_y}) == 20  # 256 outputs each, end to end
    assert all((row["low"], row["high"], row["sectors"])
               == (1024 * row["block"], 1024 * row["block"] + 1024, 32) for row in of_y)  # fmt: skip
    assert not counted(convlab.load("01", engine="sim"), ONE).reaches


def test_a_sampled_kernel_gives_no_results() -> None:
    kernel = convlab.load("01", engine="sim", sample=8)
    x, w = torch.zeros(1, 2, 8, 8), torch.zeros(3, 2, 3, 3)
    for attempt in (
        lambda: convlab.check(kernel, "N=1,C=2,H=8,W=8,K=3,R=3,S=3"),
        lambda: convlab.check(kernel),
        lambda: kernel(x, w),
    ):
        with pytest.raises(ProblemError, match="sample=8"):
            attempt()
    assert convlab.load("01", engine="sim").on("sim").sample is None
    assert kernel.on("sim").sample == 8


def test_a_gpu_takes_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ProblemError, match='engine="sim"'):
        convlab.load("01", engine="cuda", sample=8)
    assert convlab.load("01", engine="sim", sample=8).on("cuda").sample is None


BROKEN = (FOLDER / "broken.cu").read_text()


@pytest.mark.parametrize(
    "line, kind",
    [("", "race"), ("__syncthreads(); y[i + (1 << 20)] = 0;", "global out of bounds")],
    ids=["race", "out of bounds"],
)
def test_what_one_block_does_wrong_is_still_found(line: str, kind: str) -> None:
    kernel = convlab.compile(BROKEN % line, engine="sim", sample=16)
    with pytest.raises(LaunchError) as raised:
        launched(kernel, ONE)
    assert kind in {finding.kind for finding in raised.value.findings}


def test_what_needs_all_blocks_is_not_reported() -> None:
    kernel = convlab.compile(BROKEN % "__syncthreads();", engine="sim", sample=16)
    assert not launched(kernel, ONE).findings
    lowered = convlab.load("02_im2col_gemm", engine="sim", sample=4)  # reads what did not run
    assert not launched(lowered).findings


def test_inspect_of_a_sample_is_of_the_problem_itself() -> None:
    problem = convlab.problem("N=1,C=4,H=130,W=130,K=8,R=3,S=3")
    whole, sampled = (
        convlab.inspect(convlab.load("01", engine="sim", sample=sample), problem, engine="sim")
        for sample in (None, 64)
    )
    assert whole.problem == sampled.problem == problem
    note = next(note for note in sampled.notes if "blocks simulated" in note)
    assert note.startswith("64 of 512 blocks simulated, at random")
    assert re.search(r"load sectors \d\.\d%", note) and "blocks simulated" not in str(whole)
    one, other = (found.frame.set_index("quantity")["simulated"] for found in (whole, sampled))
    for quantity in ("global loads", "sectors per load", "operations"):
        assert other[quantity] == pytest.approx(one[quantity], rel=0.1)
