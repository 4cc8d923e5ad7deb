"""Races: which accesses fences, atomics and volatile order, and the same report in each run.

The cases are in `tests/cuda/races.cu`. The simulator finds a race in at least one of two schedules.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import convlab
from convlab.core.errors import LaunchError
from convlab.core.finding import Finding
from convlab.core.kernel.runnable import Launch
from convlab.sim import any_kernel
from tests.suites import DEEP, FOLDER, Suite

RACES = Suite("races")


def findings(launch: Launch) -> list[Finding]:
    """Run a launch, in its next schedule; return what it reports, except unwritten elements of y."""
    try:
        launch()
    except LaunchError as error:
        assert error.findings, error
    return [finding for finding in launch.findings if finding.kind != "never written"]


@pytest.mark.xdist_group("races")
@pytest.mark.parametrize("name", RACES.cases)
def test_race(name: str) -> None:
    case = RACES.cases[name]
    launch = RACES.prepare(name)
    first = findings(launch)
    # As in a check, the second run only looks for errors.
    launch.counted = False
    runs = first, findings(launch)
    assert launch.counters is None
    found = [finding for run in runs for finding in run]
    errors = {finding.kind for finding in found if finding.error}
    warnings = {finding.kind for finding in found if not finding.error}
    text = "\n".join(finding.text for finding in found)
    if case["expect"] == "race":
        # A word may also be read before the other thread has written it. The race comes first.
        assert "race" in errors <= {"race", "uninitialised read"}, text
        assert all(run[0].kind == "race" for run in runs if any(f.kind == "race" for f in run))
    elif case["expect"] == "nothing":
        assert not found, text
    else:
        kind = case["expect"].removeprefix("warning ")
        assert not errors and warnings == {kind}, text
    assert case.get("says", "") in text
    if "lacks" in case:
        assert case["lacks"] not in text


# Kernels whose blocks depend on one another, in ways that the order of OS threads could change.
UNSTEADY = (
    "volatile_other_values",
    "the_same_value_twice",
    "added_without_atomics",
    "guarded_atomic",
    "two_locks",
    "fence_of_one_thread_before_a_barrier",
)


@pytest.mark.xdist_group("races")
@pytest.mark.parametrize("name", UNSTEADY)
def test_each_run_gives_the_same_report(name: str) -> None:
    """Several runs at the same time, which compete for the cores."""

    def report(_: int) -> list[Finding]:
        return findings(RACES.prepare(name))

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(report, range(30 if DEEP else 8))
    assert first and all(other == first for other in others)


@pytest.mark.xdist_group("races")
def test_a_shifted_last_tile_is_correct_each_time() -> None:
    """Two blocks store the same values to the same outputs: a warning in each default check."""
    kernel = convlab.load(FOLDER / "shifted.cu", engine="sim")
    problem = convlab.problem("N=1,C=2,H=9,W=41,K=3,R=2,S=2")
    reports = [convlab.check(kernel, problem) for _ in range(6)]
    for report in reports:
        assert report.ok
        assert [finding.kind for finding in report.findings] == ["written twice"]
        assert report.findings == reports[0].findings


def test_a_run_that_is_repeated_leaves_no_trace() -> None:
    """Blocks run in parallel at first. What such a run stored and printed is undone."""
    source = (
        "__global__ void adds(int* y, int* sum) { if (!threadIdx.x) { y[blockIdx.x] += 1; "
        "atomicAdd(sum, 1); } }"
    )
    y = np.full(512, 7, np.int32)
    total = np.zeros(1, np.int32)
    any_kernel.run(source, "adds", y, total, grid=512, block=32)
    assert (y == 8).all() and total[0] == 512


_SIGNAL = """#include <cuda/atomic>
__global__ void signal(int* data, int* flag) {
    cuda::atomic_ref<int, cuda::%s> f(*flag);
    if (blockIdx.x == 0) {
        data[0] = 5;
        f.store(1, cuda::memory_order_release);
    } else {
        while (f.load(cuda::memory_order_acquire) == 0) {}
        data[1] = data[0];
    }
}"""


def test_an_atomic_of_block_scope_orders_only_its_block() -> None:
    def run(scope: str) -> list[Finding]:
        arguments = np.zeros(4, np.int32), np.zeros(1, np.int32)
        return any_kernel.run(_SIGNAL % scope, "signal", *arguments, grid=2, block=1).findings

    assert not run("thread_scope_device")
    with pytest.raises(LaunchError, match="block scope") as caught:
        run("thread_scope_block")
    assert {finding.kind for finding in caught.value.findings if finding.error} == {"race"}


UNION = """
#include "convlab.cuh"
__global__ void k(float* y) {
    __shared__ union { float number[32]; int whole[32]; } s;
    s.number[threadIdx.x] = y[threadIdx.x];
    BARRIER
    y[threadIdx.x] = float(s.whole[31 - threadIdx.x]);
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem*, const float*, const float*, const float*, float* y, void*, size_t,
                                 cudaStream_t stream) {
    cudaMemsetAsync(y, 0, 128, stream);
    k<<<1, THREADS, 0, stream>>>(y);
    return launch_error();
}
"""


@pytest.mark.parametrize(
    "barrier, threads, message",
    [("__syncthreads();", 32, ""), ("", 32, "race"), ("__syncthreads();", 64, "out of bounds")],
)
def test_shared_memory_of_a_union_is_watched(barrier: str, threads: int, message: str) -> None:
    """Its type is defined in the declaration, and it has two views of the same bytes."""
    text = UNION.replace("BARRIER", barrier).replace("THREADS", str(threads))
    kernel = convlab.compile(text, name="union", engine="sim")
    x, w = torch.ones(1, 1, 1, 32), torch.ones(1, 1, 1, 1)
    if not message:
        assert (kernel(x, w) == 0).all()
        return
    with pytest.raises(LaunchError, match=message):
        kernel(x, w)
