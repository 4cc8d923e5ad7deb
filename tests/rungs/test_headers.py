"""A kernel's own headers, on the simulator: __shared__ arrays and launches there are read too."""

from pathlib import Path

import numpy as np
import pytest
import torch

import convlab
from convlab.core.errors import BuildError, LaunchError
from convlab.sim import any_kernel
from tests.suites import ENTRY

TILE = """#pragma once
#include "deeper/turn.cuh"
template <int T> __device__ void stage(const float* x, float* y) {
    __shared__ float s_part[T];
    s_part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // barrier
    y[threadIdx.x] = s_part[turned(threadIdx.x, T)];
}
"""
TURN = "inline __device__ int turned(int i, int n) { __shared__ int s_n; s_n = n; return n - 1 - i; }\n"
KERNEL = """#include "tile.cuh"
__global__ void turn(const float* x, float* y) { stage<32>(x, y); }
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel of three files, of which each but the first has a __shared__ array."""
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "turn.cuh").write_text(TURN)
    (tmp_path / "tile.cuh").write_text(TILE)
    (tmp_path / "turn.cu").write_text(KERNEL)
    return tmp_path / "turn.cu"


def run(kernel: Path) -> np.ndarray:
    x = np.arange(32, dtype=np.float32)
    y = np.zeros(32, np.float32)
    any_kernel.run(kernel, "turn", x, y, grid=1, block=32)
    return y


def test_a_shared_array_in_a_header(kernel: Path) -> None:
    assert list(run(kernel)) == list(range(31, -1, -1))


def test_a_header_that_is_named_as_one_of_cuda(kernel: Path) -> None:
    (kernel.parent / "cuda.h").write_text("#define BLOCK 32\n")
    kernel.write_text('#include "cuda.h"\n' + KERNEL.replace("<32>", "<BLOCK>"))
    assert list(run(kernel)) == list(range(31, -1, -1))


def test_a_finding_names_the_header_and_an_edit_of_it_is_seen(kernel: Path) -> None:
    header = kernel.parent / "tile.cuh"
    run(kernel)
    header.write_text(TILE.replace("__syncthreads();", ""))
    with pytest.raises(LaunchError, match=r"tile\.cuh:7:.*s_part") as error:
        run(kernel)
    assert {"race"} <= {f.kind for f in error.value.findings}


def test_a_compiler_message_names_the_header(kernel: Path) -> None:
    header = kernel.parent / "tile.cuh"
    header.write_text(TILE.replace("x[threadIdx.x];", "x[threadIdx];"))
    with pytest.raises(BuildError, match=r"tile\.cuh:5"):
        run(kernel)


def test_a_header_of_the_folder_above_is_rewritten(kernel: Path) -> None:
    inner = kernel.parent / "inner"
    inner.mkdir()
    (inner / "turn.cu").write_text(KERNEL.replace("tile.cuh", "../tile.cuh"))
    run(inner / "turn.cu")
    # A bug in it is found at its line.
    (kernel.parent / "tile.cuh").write_text(TILE.replace("__syncthreads();", ""))
    with pytest.raises(LaunchError, match=r"tile\.cuh:7:.*s_part"):
        run(inner / "turn.cu")


LAUNCHES = """#pragma once
inline void go(const float* x, float* y) { turn<<<1, 32>>>(x, y); }
"""


def test_a_launch_in_a_header_of_a_header(tmp_path: Path) -> None:
    """Who includes it has nothing to rewrite itself, and lies beside it in another folder."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "plain.cuh").write_text('#pragma once\n#include "launches.cuh"\n')
    (tmp_path / "all" / "launches.cuh").write_text(LAUNCHES)
    path = tmp_path / "by_headers.cu"
    path.write_text(
        '#include "convlab.cuh"\n'
        "__global__ void turn(const float* x, float* y) { y[threadIdx.x] = -x[threadIdx.x]; }\n"
        '#include "all/plain.cuh"\n' + (ENTRY % "    case 0: go(x, y); break;")
    )
    x = torch.arange(32.0).reshape(1, 1, 1, 32)
    w = torch.ones(1, 1, 1, 1)
    assert torch.equal(convlab.load(path, engine="sim")(x, w), -x)
