"""The simulator counts 32-byte sectors of which blocks store only a part, at their line."""

from __future__ import annotations

import math

import pytest

import convlab
from convlab.core.correctness import reference
from convlab.core.kernel.runnable import Launch
from convlab.core.problem.problem import Problem
from convlab.sim import simulation
from convlab.sim.launch import simulated
from tests.instruments import mutants
from tests.instruments.planted import Mutant
from tests.suites import ENTRY, line_of

RUN = """#include "convlab.cuh"
// A block stores a run of `arg` floats of y.
__global__ void run(float* y, int n) {
    for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = 1;  // whole
}
// The same; the first half of the run is stored before the second.
__global__ void in_two(float* y, int n) {
    for (int half = 0; half < 2; ++half) {
        for (int i = half * n / 2 + threadIdx.x; i < (half + 1) * n / 2; i += 32)
            y[blockIdx.x * n + i] = 1;  // halves
        __syncthreads();
    }
}
// A block stores every second float. Another block stores the others.
__global__ void in_turns(float* y, int n) {
    y[2 * threadIdx.x + blockIdx.x] = float(n);  // turns
}
"""
CASES = """    case 0: run<<<64 / arg, 32, 0, stream>>>(y, arg); break;
    case 1: in_two<<<64 / arg, 32, 0, stream>>>(y, arg); break;
    case 2: in_turns<<<2, 32, 0, stream>>>(y, arg); break;"""


@pytest.fixture(scope="module")
def kernel() -> convlab.Kernel:
    return convlab.compile(RUN + ENTRY % CASES, name="runs", engine="sim")


def launched(kernel: convlab.Kernel, problem: Problem) -> Launch:
    """Run a kernel on a problem, and return the launch with its counts."""
    launch = kernel.prepare(problem, *reference.inputs(problem, format=kernel.format))
    launch()
    return launch


@pytest.mark.parametrize(
    ("case", "run", "split", "partial"),
    [
        (0, 16, 0, 0),
        (0, 8, 0, 0),
        (0, 4, 8, 16),  # two runs to a sector
        (0, 2, 8, 32),  # four runs
        # Runs of 48 bytes: 60 of 64 floats are stored. Of each 3 sectors, one is shared; the last
        # block ends in the middle of a sector.
        (0, 12, 3, 5),
        (1, 16, 0, 0),  # one block stores both halves of each sector
        (1, 8, 0, 0),
        (2, 1, 8, 16),
    ],
)
def test_sectors_in_parts(
    kernel: convlab.Kernel, case: int, run: int, split: int, partial: int
) -> None:
    shape = Problem(1, 1, 3, 64, 1, 1, 1, dilation=(case + 1, run + 1))
    launch = launched(kernel, shape)
    assert launch.counters["split_sectors"] == split
    (row,) = (row for row in launch.lines if row["kind"] == "store")
    assert row["partial"] == partial and row["array"] == "y"
    assert row["line"] == line_of(RUN, ("// whole", "// halves", "// turns")[case])


# Rows of 1,028 outputs begin and end in the middle of a sector.
WIDE = Problem(1, 16, 6, 1030, 8, 3, 3)
WITHOUT_OVERLAP = Mutant(
    "11b_without_overlap",
    "11b_wgmma_rows",
    "each strip stores its own columns, so that two blocks store the sector between them",
    (
        (
            "const bool from_start = part.q0 == 0 && !(walk.wraps && p > 0);",
            "const bool from_start = true;",
        ),
        ("const bool to_end = last_strip && !wrapped;", "const bool to_end = true;"),
    ),
)  # fmt: skip


def split_sectors(kernel: convlab.Kernel) -> float:
    """Check a kernel on `WIDE`; return how many sectors its blocks store in parts."""
    launch = launched(kernel, WIDE)
    assert convlab.check(kernel, WIDE).ok
    return launch.counters["split_sectors"]


def test_only_the_count_tells_strips_that_do_not_overlap_apart() -> None:
    assert split_sectors(convlab.load("11b_wgmma_rows", engine="sim")) == 0
    # Of each plane, 4 strips share 3 sectors in each of the 4 rows, or 2 rows share one.
    assert split_sectors(mutants.build(WITHOUT_OVERLAP, "sim")) > 50
    assert split_sectors(convlab.load("11_wgmma_tf32", engine="sim")) > 50


def test_a_sample_of_the_blocks_does_not_show_which_sectors_are_shared(
    kernel: convlab.Kernel,
) -> None:
    shape = Problem(1, 1, 3, 64, 1, 1, 1, dilation=(1, 5))
    shapes = {"x": shape.x_shape, "w": shape.w_shape, "y": shape.y_shape}
    arena = simulation.Arena(shapes, sparse=["y"])
    sampled = simulated(kernel, shape, arena, sample=(8, 0))
    assert math.isnan(sampled.counters["split_sectors"])
    (row,) = (row for row in sampled.lines if row["kind"] == "store")
    assert row["partial"] == 16  # of 16 blocks, each stores a half of one sector
