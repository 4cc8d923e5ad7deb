"""Two sets of sums of one warpgroup, each complete with its own commit group."""

from __future__ import annotations

import pytest
import torch

import convlab
from convlab.core.errors import LaunchError
from tests.suites import ENTRY

# A warpgroup has two sets of sums, each in a commit group of its own. After wgmma_wait<1>, only the
# first set is complete.
TWO_SETS = """// title: Two sets of sums
// arch: sm_90a
// supports: sm >= 90
#define NUMBER float
#include "convlab.cuh"
#include "wgmma_n.cuh"
__global__ void __launch_bounds__(128) multiply(const float* x, float* y) {
    __shared__ alignas(128) float s_a[64 * 8];
    __shared__ alignas(128) float s_b[64 * 8];
    for (int i = threadIdx.x; i < 64 * 8; i += 128) {
        const int row = i / 8, k = i %% 8;
        s_a[(k / 4 * 64 + row) * 4 + k %% 4] = x[i];
        s_b[(k / 4 * 64 + row) * 4 + k %% 4] = x[512 + i];
    }
    fence_proxy_async();
    __syncthreads();
    const uint64_t a = wgmma_descriptor(s_a, 1024, 128), b = wgmma_descriptor(s_b, 1024, 128);
    float first[32] = {}, second[32] = {};
    wgmma_fence();
    wgmma_n(first, a, b, 0);
    wgmma_commit();
    wgmma_fence();
    wgmma_n(second, b, a, 0);
    wgmma_commit();
    wgmma_wait<1>();
    y[threadIdx.x] = %s[0];
    wgmma_wait<0>();
    y[128 + threadIdx.x] = second[0];
}
"""


def two_sets(read: str) -> torch.Tensor:
    """Return element 0 of each thread: of the set that is read after wgmma_wait<1>, and the second."""
    kernel = convlab.compile(
        TWO_SETS % read + ENTRY % "    default: multiply<<<1, 128, 0, stream>>>(x, y);",
        name=f"two_sets_{read}",
        engine="sim",
    )
    x = torch.randint(-8, 9, (1024,), generator=torch.Generator().manual_seed(0)).float()
    y = kernel(x.reshape(1, 1, 1, -1), torch.ones(4, 1, 1, 1)).flatten()
    a, b = x[:512].reshape(64, 8), x[512:].reshape(64, 8)
    thread = torch.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, 2 * (thread % 4)
    expected = torch.cat([(a @ b.T)[row, column], (b @ a.T)[row, column]])
    return y[:256] == expected


def test_a_set_of_sums_is_complete_with_its_own_group() -> None:
    assert two_sets("first").all()


def test_a_set_of_a_later_group_is_not_complete_yet() -> None:
    with pytest.raises(LaunchError, match="read before wgmma_wait completed it"):
        two_sets("second")
