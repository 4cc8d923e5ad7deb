"""11b, 13b and 15c walk down the image: what their headers support, how they read x, and the sizes of wgmmas."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

import convlab
from convlab.core.correctness import reference
from convlab.core.errors import BuildError, LaunchError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.problem.problem import Problem
from tests.suites import ENTRY

# For each rung, the channels of a chunk.
RUNGS = {"11b_wgmma_rows": 8, "13b_wgmma_rows_3xtf32": 8, "15c_wgmma_rows_bf16": 16}
# R, S and the dilations. For each, the filter and the input rows of a window fill a block's shared
# memory at another number of channels.
WINDOWS = [
    (1, 1, 1, 1),
    (3, 3, 1, 1),
    (5, 5, 1, 1),
    (5, 9, 1, 1),
    (3, 3, 5, 1),
    (3, 3, 1, 100),
    (16, 1, 1, 1),
    (2, 2, 15, 1),
]
TOO_TALL = [(17, 1, 1, 1), (2, 1, 16, 1), (9, 2, 2, 1)]


def window(R: int, S: int, dilation_h: int, dilation_w: int, C: int) -> Problem:
    """Return a problem with one output row of four columns."""
    H = (R - 1) * dilation_h + 1
    W = (S - 1) * dilation_w + 4
    return Problem(1, C, H, W, 3, R, S, dilation=(dilation_h, dilation_w))


@pytest.fixture(scope="module", params=RUNGS)
def rung(request: pytest.FixtureRequest) -> Kernel:
    return load(request.param, engine="sim")


@pytest.fixture(scope="module")
def unlimited(rung: Kernel) -> Kernel:
    """The rung with a header that declines only what no text of conv2d can refuse."""
    text = (KERNEL_DIR / f"{rung.name}.cu").read_text()
    own, count = re.subn(
        r"// supports: .*?\n// (best|limits):",
        r"// supports: sm >= 90, stride_h == 1, stride_w == 1\n// \1:",
        text,
        flags=re.DOTALL,
    )
    assert count == 1
    return convlab.compile(own, name="unlimited", engine="sim", trace=False)


def is_refused(kernel: Kernel, problem: Problem) -> bool:
    """Return whether conv2d itself refuses a problem."""
    inputs = reference.inputs(problem, format=kernel.format)
    try:
        kernel(*inputs, dilation=problem.dilation)
    except LaunchError as error:
        assert "do not fit into shared memory" in str(error)
        return True
    return False


@pytest.mark.parametrize("sizes", WINDOWS, ids=lambda sizes: "x".join(map(str, sizes)))
def test_the_header_supports_what_the_kernel_can_do_and_no_more(
    rung: Kernel, unlimited: Kernel, sizes: tuple[int, int, int, int]
) -> None:
    chunk = RUNGS[rung.name]
    chunks = next(c for c in range(100) if rung.unsupported(window(*sizes, chunk * c + 1)))
    if chunks > 0:
        assert not is_refused(unlimited, window(*sizes, chunk * chunks))
    else:  # with two terms, the filter of one chunk already does not fit
        assert (rung.name, sizes) == ("13b_wgmma_rows_3xtf32", (5, 9, 1, 1))
    assert is_refused(unlimited, window(*sizes, chunk * chunks + 1))


@pytest.mark.parametrize("sizes", TOO_TALL, ids=lambda sizes: "x".join(map(str, sizes)))
def test_a_window_of_more_than_16_rows_is_not_supported(
    rung: Kernel, unlimited: Kernel, sizes: tuple[int, int, int, int]
) -> None:
    problem = window(*sizes, 1)
    assert "(R - 1) * dilation_h <= 15" in rung.unsupported(problem)
    assert is_refused(unlimited, problem)


# Rows of x of a multiple of four numbers, and more channels than a chunk has, so x is read four pixels at a
# time. The strips begin at each distance from a multiple of four, and the last one holds the next row's first
# columns.
IN_FOURS = [
    "N1 C24 H7 W300 K70 R3 S3 p1",
    "N2 C24 H8 W520 K64 R3 S3",
    "N1 C40 H6 W260 K66 R3 S3 p2",
    "N1 C24 H6 W264 K64 R3 S4 p0x3",
    "N1 C48 H7 W320 K96 R2 S5 p1x2",
    "N1 C34 H9 W16 K66 R3 S3 p1 g2",
    "N2 C17 H5 W4 K3 R2 S2 p1 bias relu",
    "N1 C20 H5 W536 K8 R1 S3 d1x5",
]


@pytest.mark.parametrize("spec", IN_FOURS)
@pytest.mark.parametrize("engine", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", RUNGS)
def test_x_is_read_four_pixels_at_a_time(name: str, engine: str, spec: str) -> None:
    kernel = load(name, engine=engine)
    asked = convlab.problem(spec)
    if kernel.unsupported(asked):  # 13b's filter takes twice the shared memory
        asked = dataclasses.replace(asked, C=2 * RUNGS[name])
    assert asked.W % 4 == 0
    assert asked.C // asked.groups > RUNGS[name]
    convlab.check(kernel, asked, scale=None, raises=True)


# Each size and type of wgmma_n.cuh, on its own: y = a b^T, with a (64, k) and b (n, k) from x.
PRODUCTS = """
#define NUMBER %s
#include "convlab.cuh"
#include "wgmma_n.cuh"
constexpr int kQuad = 16 / int(sizeof(NUMBER));   // numbers in 16 bytes
__device__ void put(float* to, float x) { *to = x; }
__device__ void put(bf16* to, float x) { to->bits = uint16_t(round_bf16(x, 0.0f)); }
__device__ void put(fp16* to, float x) { to->bits = uint16_t(round_fp16(x, 0.0f)); }
// Rows of x as wgmma reads them: [two quads][rows][kQuad].
__device__ void place(NUMBER* s_to, const float* x, int rows) {
    for (int i = threadIdx.x; i < rows * 2 * kQuad; i += 128) {
        const int row = i / (2 * kQuad), k = i %% (2 * kQuad);
        put(&s_to[(k / kQuad * rows + row) * kQuad + k %% kQuad], x[i]);
    }
}
template <int n>
__global__ void __launch_bounds__(128) multiply(const float* x, float* y) {
    __shared__ alignas(128) NUMBER s_a[64 * 2 * kQuad];
    __shared__ alignas(128) NUMBER s_b[n * 2 * kQuad];
    place(s_a, x, 64);
    place(s_b, x + 64 * 2 * kQuad, n);
    fence_proxy_async();
    __syncthreads();
    float d[n / 2] = {};
    wgmma_fence();
    wgmma_n(d, wgmma_descriptor(s_a, 64 * 16, 128), wgmma_descriptor(s_b, n * 16, 128), 0);
    wgmma_commit();
    wgmma_wait<0>();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x %% 32 / 4, column = 2 * (threadIdx.x %% 4);
    for (int j = 0; j < n / 8; ++j)
        for (int h = 0; h < 2; ++h)
            for (int i = 0; i < 2; ++i) y[(row + 8 * h) * n + 8 * j + column + i] = d[4 * j + 2 * h + i];
}
"""
SIZES = [64, 120, 128, 136, 176, 184, 192, 208, 216, 224, 256]
DEPTHS = {"float": 8, "bf16": 16, "fp16": 16}
ON_ENGINES = pytest.mark.parametrize("engine", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])


def products(number: str, engine: str, header: str | None = None) -> Kernel:
    """Return a kernel with a launch for each size; the dilation chooses one.

    `header` is a text in place of wgmma_n.cuh.
    """
    launches = [f"multiply<{n}><<<1, 128, 0, stream>>>(x, y);" for n in SIZES]
    cases = [f"    case {case}: {launch} break;" for case, launch in enumerate(launches)]
    text = PRODUCTS % number + ENTRY % "\n".join(cases)
    if header is not None:
        text = text.replace('#include "wgmma_n.cuh"\n', header.replace("#pragma once\n", ""))
    text = "// title: Products\n// arch: sm_90a\n// supports: sm >= 90\n" + text
    return convlab.compile(text, name=f"products_{number}", engine=engine)


def multiplied(kernel: Kernel, case: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the products of one size, and the expected ones."""
    n = SIZES[case]
    # Each format has these numbers, and their sums are exact.
    x = torch.randint(-8, 9, (320 * 16,), generator=torch.Generator().manual_seed(case)).float()
    inputs = (part.to(kernel.device) for part in (x.reshape(1, 1, 1, -1), torch.ones(4, 1, 1, 1)))
    y = kernel(*inputs, dilation=(case + 1, 1)).cpu().flatten()
    a = x[: 64 * k].reshape(64, k)
    b = x[64 * k : (64 + n) * k].reshape(n, k)
    return y[: 64 * n].reshape(64, n), a @ b.T


@ON_ENGINES
@pytest.mark.parametrize("number", DEPTHS)
def test_each_size_and_type_of_wgmma_multiplies(number: str, engine: str) -> None:
    kernel = products(number, engine)
    for case, n in enumerate(SIZES):
        y, expected = multiplied(kernel, case, DEPTHS[number])
        assert torch.equal(y, expected), n


@ON_ENGINES
def test_an_instruction_of_another_type_is_incorrect_on_each_engine(engine: str) -> None:
    """The simulator reads the text that nvcc assembles, so it multiplies as that text says."""
    header = (KERNEL_DIR / "wgmma_n.cuh").read_text()
    of_tf32 = header.replace('"k16.f32.bf16.bf16"', '"k8.f32.tf32.tf32"').replace(
        'WGMMA(bf16, "m64n" #n "k8.f32.tf32.tf32", count, a_at, b_at, add_at, ", 0, 0")',
        'WGMMA(bf16, "m64n" #n "k8.f32.tf32.tf32", count, a_at, b_at, add_at, "")       ',
    )
    assert of_tf32.count("k8.f32.tf32.tf32") == 4
    y, expected = multiplied(products("bf16", engine, of_tf32), 0, DEPTHS["bf16"])
    assert not torch.equal(y, expected)
    unknown = header.replace('"k16.f32.bf16.bf16"', '"k16.f16.f16.f16"')
    with pytest.raises(BuildError):
        products("bf16", engine, unknown)
