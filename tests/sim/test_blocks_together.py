"""Blocks that run at the same time: samples of whole clusters, and limits of cooperative launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import convlab
from convlab.core.errors import LaunchError
from convlab.sim.launch import simulated
from convlab.sim.simulation import Arena

# A cluster of 2 x 2 blocks swaps what its blocks hold. Each block stores 32 outputs of a row of blocks.
CLUSTERS = """
#include <cooperative_groups.h>
#include "convlab.cuh"
namespace cg = cooperative_groups;

template <int kWide>
__global__ void DIMS around(const float* x, float* y) {
    __shared__ float s[32];
    const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
    s[threadIdx.x] = x[block * 32 + threadIdx.x];
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    const unsigned other = (cluster.block_rank() + 1) % cluster.num_blocks();
    const float* theirs = cluster.map_shared_rank(s, other);
    y[block * 32 + threadIdx.x] = theirs[threadIdx.x];
    if (BUG && block == gridDim.x * gridDim.y - 1) y[block * 32 + threadIdx.x + 1] = 0;
    cluster.sync();
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* conv, const float* x, const float*, const float*, float* y, void*,
                                 size_t, cudaStream_t stream) {
    const dim3 grid(8, conv->N * conv->H * conv->W / 32 / 8);
    if (EXPLICIT) {
        cudaLaunchConfig_t config = {};
        config.gridDim = grid, config.blockDim = dim3(32), config.stream = stream;
        cudaLaunchAttribute attribute[1];
        attribute[0].id = cudaLaunchAttributeClusterDimension;
        attribute[0].val.clusterDim.x = 2, attribute[0].val.clusterDim.y = 2, attribute[0].val.clusterDim.z = 1;
        config.attrs = attribute, config.numAttrs = 1;
        cudaLaunchKernelEx(&config, around<1>, x, y);
    } else {
        around<1><<<grid, 32, 0, stream>>>(x, y);
    }
    return launch_error();
}
"""
PROBLEM = convlab.problem("N1 C1 H64 W128 K1 R1 S1")  # 256 blocks, 64 clusters


def cluster_kernel(explicit: bool, bug: bool = False) -> convlab.Kernel:
    text = CLUSTERS.replace("DIMS", "" if explicit else "__cluster_dims__(2, 2, 1)")
    text = text.replace("EXPLICIT", str(int(explicit))).replace("BUG", str(int(bug)))
    return convlab.compile(text, name="around", engine="sim")


def sample_of(kernel: convlab.Kernel, blocks: int, **options: Any) -> tuple[Any, torch.Tensor]:
    arena = Arena({"x": PROBLEM.x_shape, "w": PROBLEM.w_shape, "y": PROBLEM.y_shape}, [], format=kernel.format)
    arena.tensors["x"].copy_(torch.arange(8192.0).reshape(PROBLEM.x_shape))
    arena.tensors["y"].fill_(-1)
    trace = simulated(kernel, PROBLEM, arena, sample=(blocks, 3), **options)
    return trace, arena.tensors["y"].reshape(32, 8, 32)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_sample_has_whole_clusters(explicit: bool) -> None:
    """Six blocks are wanted: two clusters of four run, one of which is the last one of the grid."""
    trace, y = sample_of(cluster_kernel(explicit), 6, watch=1_000_000)
    stored = (y >= 0).all(2)
    assert int(stored.sum()) == 8 and trace.sampling["sampled"] == 8 and trace.sampling["blocks"] == 256
    clusters = stored.reshape(16, 2, 4, 2).transpose(1, 2).flatten(2)
    assert (clusters.all(2) | ~clusters.any(2)).all() and clusters[-1, -1].all()
    # Each block holds what the next one of its cluster loaded.
    numbers = torch.arange(8192.0).reshape(16, 2, 4, 2, 32).transpose(1, 2).flatten(2, 3)
    expected = numbers.roll(-1, 2).reshape(16, 4, 2, 2, 32).transpose(1, 2).reshape(32, 8, 32)
    assert (y[stored] == expected[stored]).all()


@pytest.mark.parametrize("explicit", [False, True])
def test_all_clusters_run_although_their_blocks_have_numbers_far_apart(explicit: bool) -> None:
    y = cluster_kernel(explicit)(torch.arange(8192.0).reshape(PROBLEM.x_shape), torch.ones(1, 1, 1, 1))
    numbers = torch.arange(8192.0).reshape(16, 2, 4, 2, 32).transpose(1, 2).flatten(2, 3)
    expected = numbers.roll(-1, 2).reshape(16, 4, 2, 2, 32).transpose(1, 2)
    assert (y.flatten() == expected.flatten()).all()


@pytest.mark.parametrize("explicit", [False, True])
def test_a_sample_finds_what_the_last_cluster_does(explicit: bool) -> None:
    with pytest.raises(LaunchError, match="out of bounds"):
        sample_of(cluster_kernel(explicit, bug=True), 6, watch=1_000_000)


def test_a_sample_over_its_limit_of_accesses_ends_after_two_clusters() -> None:
    _, y = sample_of(cluster_kernel(False), 64, watch=300)
    stored = (y >= 0).all(2)
    assert int(stored.sum()) == 8 and stored[-2:, -2:].all()


COOPERATIVE = """
#include <cooperative_groups.h>
#include "convlab.cuh"

__global__ void all_at_once(float* y, int count) {
    __shared__ float s[SHARED];
    s[threadIdx.x] = 1;
    cooperative_groups::this_grid().sync();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int at = i; at < count; at += gridDim.x * blockDim.x) y[at] = s[threadIdx.x];
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* conv, const float*, const float*, const float*, float* y, void*,
                                 size_t, cudaStream_t stream) {
    int blocks = BLOCKS, count = conv->N * conv->K * conv->P * conv->Q;
    if (!blocks) {
        int sms = 0, each = 0;
        cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, all_at_once, THREADS, 0);
        blocks = sms * each;
    }
    void* arguments[] = {&y, &count};
    cudaLaunchCooperativeKernel((const void*)all_at_once, dim3(blocks), dim3(THREADS), arguments, 0, stream);
    return launch_error();
}
"""


def cooperative(blocks: int, threads: int) -> torch.Tensor:
    text = COOPERATIVE.replace("BLOCKS", str(blocks)).replace("THREADS", str(threads))
    kernel = convlab.compile(text.replace("SHARED", str(threads)), name="all_at_once", engine="sim")
    return kernel(torch.ones(1, 1, 64, 64), torch.ones(1, 1, 1, 1))


@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_as_many_blocks_as_the_gpu_says_can_be_launched_cooperatively(threads: int) -> None:
    assert (cooperative(0, threads) == 1).all()


def test_more_blocks_than_run_at_once_are_refused_as_on_a_gpu() -> None:
    """An SM of an H200 holds 2,048 threads, so 132 of them hold 264 blocks of 1,024."""
    assert (cooperative(264, 1024) == 1).all()
    with pytest.raises(LaunchError, match="at most 264 do, with 1024 threads"):
        cooperative(265, 1024)


def test_a_gpu_holds_more_blocks_than_the_simulator() -> None:
    with pytest.raises(LaunchError, match="a cooperative launch of more than 528 blocks") as caught:
        cooperative(600, 64)
    assert caught.value.kind == "not simulated"
