"""17, 17b, 20h and 21: each way to cut a problem, and wgmma with an operand in registers."""

from __future__ import annotations

import pytest
import torch

import convlab
from convlab.core.correctness.check import check
from convlab.core.problem.named import problem as named_problem
from tests.suites import on_engines

RUNGS = ("17_wgmma_gather_tf32", "17b_wgmma_gather_bf16")
# What each is there for; blocks have 128 pixels unless it says otherwise.
SHAPES = {
    "parts-of-the-channels-relu": "N1 C512 H5 W6 K130 R1 S1 bias relu",
    "parts-of-the-channels-odd": "N3 C300 H3 W3 K130 R3 S3 p1 bias relu",
    "192-pixels": "N1 C40 H12 W20 K12800 R1 S1",
    "192-pixels-3x3": "N2 C9 H10 W11 K9000 R3 S3 p1",
    "few-channels-of-output": "N3 C40 H12 W12 K20 R1 S1",
    "many-small-images-3x3": "N40 C20 H3 W3 K70 R3 S3 p1 bias",
    "3x3-stride-2-groups": "N2 C32 H13 W18 K260 R3 S3 s2 p1 g2 bias",
    "3x3-rows-apart": "N2 C16 H15 W12 K70 R3 S3 p1x2 d3x1",
    "1x1-stride-2": "N3 C70 H12 W12 K140 R1 S1 s2",
    "1x1-padding": "N3 C70 H5 W7 K40 R1 S1 p2x5",
    "1x1-columns-left-out": "N2 C8 H8 W8 K8 R1 S1 s2",
    "large-filter": "N1 C20 H9 W24 K70 R5 S5 p2",
    "all-strides": "N2 C33 H20 W11 K40 R2 S4 s2x1 p0x3 d1x2",
}


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("spec", "engine"), on_engines(SHAPES, 3))
def test_each_cut_of_a_problem(rung: str, spec: str, engine: str) -> None:
    _assert_correct(rung, spec, engine)


# Of gradients: the data gradient's tiles have 128 pixels of dy with stride 2, 192 if 1x1.
DATA_SHAPES = {
    "stride-2": "N2 C70 H12 W12 K40 R3 S3 p1 s2",
    "stride-2-odd": "N3 C33 H9 W11 K20 R3 S3 p1 s2",
    "stride-2-groups": "N2 C64 H6 W6 K20 R3 S3 p1 s2 g2",
    "stride-2-parts-of-the-filters": "N1 C40 H8 W8 K300 R3 S3 p1 s2",
    "1x1-stride-2": "N3 C70 H12 W12 K140 R1 S1 s2",
    "1x1-stride-2-odd-parts-of-the-filters": "N3 C40 H7 W9 K300 R1 S1 s2",
    "3x3": "N2 C16 H9 W9 K16 R3 S3 p1",
    "1x1-parts-of-the-filters": "N1 C130 H5 W6 K512 R1 S1",
    "large-filter": "N1 C20 H9 W24 K70 R5 S5 p2",
    "3x3-groups": "N2 C260 H13 W18 K32 R3 S3 p1 g2",
}
WEIGHT_SHAPES = {
    "1x1-one-row-of-pixels": "N2 C70 H7 W7 K140 R1 S1",
    "1x1-stride-2": "N3 C70 H14 W12 K140 R1 S1 s2",
    "1x1-padding-uneven-shares": "N1 C300 H9 W9 K300 R1 S1 p1",
    "a-row-of-64": "N1 C8 H9 W70 K20 R3 S3 p1",
    "3x1-stride-2": "N2 C48 H16 W16 K64 R3 S1 s2",
    "1x3-stride-2": "N1 C20 H30 W17 K30 R1 S3 s2",
}


@pytest.mark.parametrize(("spec", "engine"), on_engines(DATA_SHAPES, 3))
def test_each_cut_of_a_data_gradient(spec: str, engine: str) -> None:
    _assert_correct("20h_data_gradient_gather", spec, engine)


@pytest.mark.parametrize(("spec", "engine"), on_engines(WEIGHT_SHAPES, 3))
def test_each_cut_of_a_weight_gradient(spec: str, engine: str) -> None:
    _assert_correct("21_weight_gradient_wgmma", spec, engine)


def _assert_correct(rung: str, spec: str, engine: str) -> None:
    kernel = convlab.load(rung, engine=engine)
    report = check(kernel, kernel.asked(named_problem(spec)), scale=None)
    assert report.ok, str(report)


# y = a b^T, with a (64, k) and b (n, k) from x; a in registers.
PRODUCTS = """// title: Products
// arch: sm_90a
// supports: sm >= 90
#define NUMBER %s
#include "convlab.cuh"
#include "wgmma_n.cuh"
constexpr int kQuad = 16 / int(sizeof(NUMBER));   // numbers in 16 bytes
__device__ void put(float* to, float x) { *to = x; }
__device__ void put(bf16* to, float x) { to->bits = uint16_t(round_bf16(x, 0.0f)); }
__device__ uint32_t word(const float* x, float*) { return __float_as_uint(x[0]); }
__device__ uint32_t word(const float* x, bf16*) { return round_bf16(x[0], x[1]); }
template <int n>
__global__ void __launch_bounds__(128) multiply(const float* x, float* y) {
    __shared__ alignas(128) NUMBER s_b[n * 2 * kQuad];
    const float* x_b = x + 64 * 2 * kQuad;
    for (int i = threadIdx.x; i < n * 2 * kQuad; i += 128) {
        const int row = i / (2 * kQuad), k = i %% (2 * kQuad);
        put(&s_b[(k / kQuad * n + row) * kQuad + k %% kQuad], x_b[i]);
    }
    const int row = threadIdx.x / 32 * 16 + threadIdx.x %% 32 / 4, t = threadIdx.x %% 4;
    uint32_t a[4];
    for (int i = 0; i < 4; ++i)
        a[i] = word(x + (row + i %% 2 * 8) * 2 * kQuad + (t + i / 2 * 4) * kQuad / 4, s_b);
    fence_proxy_async();
    __syncthreads();
    float d[n / 2] = {};
    wgmma_fence();
    wgmma_n(d, a, wgmma_descriptor(s_b, n * 16, 128), 0);
    wgmma_commit();
    wgmma_wait<0>();
    for (int j = 0; j < n / 8; ++j)
        for (int h = 0; h < 2; ++h)
            for (int i = 0; i < 2; ++i)
                y[(row + 8 * h) * n + 8 * j + 2 * t + i] = d[4 * j + 2 * h + i];
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float*,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    if (problem->P == 64) multiply<64><<<1, 128, 0, stream>>>(x, y);
    else multiply<128><<<1, 128, 0, stream>>>(x, y);
    return launch_error();
}
"""


@pytest.mark.parametrize("engine", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("number", "k"), [("float", 8), ("bf16", 16)])
def test_an_operand_in_registers(number: str, k: int, engine: str) -> None:
    kernel = convlab.compile(PRODUCTS % number, name=f"gathered_{number}", engine=engine)
    for n in (64, 128):
        # Both formats have these numbers, and their sums are exact. y has 64 rows of n numbers.
        x = torch.randint(-8, 9, (n * 64,), generator=torch.Generator().manual_seed(n)).float()
        image, one = x.reshape(1, 1, n, 64), torch.ones(1, 1, 1, 1)
        y = kernel(image.to(kernel.device), one.to(kernel.device)).cpu().reshape(64, n)
        a, b = x[: 64 * k].reshape(64, k), x[64 * k : (64 + n) * k].reshape(n, k)
        assert torch.equal(y, a @ b.T), n
