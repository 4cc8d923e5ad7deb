"""What a header may say beside the plain case: other formats, an architecture, a prepared filter."""

from __future__ import annotations

import pytest
import torch

import convlab
from convlab.run import data
from convlab.run.kernel import Kernel
from convlab.words.catalog import parse_header
from convlab.words.errors import LaunchError, ProblemError
from convlab.words.problem import Problem

ENGINES = ["sim", pytest.param("cuda", marks=pytest.mark.gpu)]
PROBLEM = Problem(2, 3, 5, 7, 3, 1, 1)

# Copies x to y: what a 1x1 filter of ones on the diagonal does.
COPY = """\
// title: Copy
// tensors: x f16 NHWC, w f16 KRSC, y f16 NHWC, bias f32
#include "convlab.cuh"
__global__ void copy(const unsigned short* g_x, unsigned short* g_y, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * 32 + threadIdx.x;
    if (i < count) g_y[i] = g_x[i];
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const void* x, const void* w,
                                 const void* bias, void* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int64_t count = int64_t(problem->N) * problem->K * problem->P * problem->Q;
    copy<<<ceil_div(count, int64_t(32)), 32, 0, stream>>>(
        static_cast<const unsigned short*>(x), static_cast<unsigned short*>(y), count);
    return launch_error();
}
"""

# Adds one to the filter, once; then y is the sum of what it is given for w.
PLANNED = """\
// title: Planned
#include "convlab.cuh"
__global__ void plus_one(const float* g_w, float* g_plan, int count) {
    if (int(threadIdx.x) < count) g_plan[threadIdx.x] = g_w[threadIdx.x] + 1;
}
__global__ void sum(const float* g_w, float* g_y, int count, int64_t outputs) {
    const int64_t i = int64_t(blockIdx.x) * 32 + threadIdx.x;
    float r_sum = 0;
    for (int j = 0; j < count; ++j) r_sum += g_w[j];
    if (i < outputs) g_y[i] = r_sum;
}
static int count(const ConvProblem* p) { return p->K * (p->C / p->groups) * p->R * p->S; }
CONVLAB_ENTRY size_t conv2d_plan(const ConvProblem* problem) {
    return problem->stride_h == 1 ? count(problem) * sizeof(float) : 0;
}
CONVLAB_ENTRY const char* conv2d_prepare(const ConvProblem* problem, const float* w, void* plan,
                                         cudaStream_t stream) {
    if (count(problem) > 32) return "too many";
    plus_one<<<1, 32, 0, stream>>>(w, static_cast<float*>(plan), count(problem));
    return launch_error();
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int64_t outputs = int64_t(problem->N) * problem->K * problem->P * problem->Q;
    sum<<<ceil_div(outputs, int64_t(32)), 32, 0, stream>>>(w, y, count(problem), outputs);
    return launch_error();
}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_half_precision_with_channels_last(engine: str) -> None:
    kernel = convlab.compile(COPY, name="copy", engine=engine)
    x, w, _ = data.inputs(PROBLEM, 0, kernel.device, format=kernel.format)
    assert x.dtype == w.dtype == torch.float16
    assert x.is_contiguous(memory_format=torch.channels_last)
    for given in (x, x.contiguous()):
        y = kernel(given, w)
        assert y.dtype == torch.float16 and torch.equal(y, x)
        assert y.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(
        ProblemError, match=r"x is torch\.float32, and copy takes .*16: pass x\.half"
    ):
        kernel(x.float(), w)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_filter_is_laid_out_before_the_call(engine: str) -> None:
    kernel = convlab.compile(PLANNED, name="planned", engine=engine)
    x, w, _ = data.inputs(PROBLEM, 0, kernel.device)
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(kernel(x, w)[0, 0, 0, 0], (w + 1).sum(), **close)
    torch.testing.assert_close(kernel(x, w, stride=2)[0, 0, 0, 0], w.sum(), **close)  # no plan
    with pytest.raises(LaunchError, match="planned failed: too many"):
        kernel(torch.ones(1, 4, 3, 3).to(kernel.device), torch.ones(4, 4, 3, 3).to(kernel.device))


def test_only_the_entry_point_prepares() -> None:
    source = PLANNED.replace("const char* conv2d_prepare(", "const char* prepare(")
    kernel = convlab.compile(source, name="half", engine="sim")
    x, w, _ = data.inputs(PROBLEM)
    with pytest.raises(LaunchError, match="conv2d_plan, but no conv2d_prepare"):
        kernel(x, w)


@pytest.mark.parametrize(
    ("arch", "runs_on"),
    [
        ("sm_80", {80, 86, 90, 100}),
        ("sm_90a", {90}),
        ("sm_100f", {100, 103}),
        ("sm_120a", {120}),
    ],
)
def test_an_architecture_is_declined_elsewhere(arch: str, runs_on: set[int]) -> None:
    header = parse_header(f"// arch: {arch}\n", "a.cu")
    for sm in (75, 80, 86, 90, 100, 103, 120):
        reason = header.unsupported(PROBLEM, sm, 0)
        assert (reason is None) == (sm in runs_on or (arch == "sm_80" and sm >= 80)), sm
        assert reason is None or reason == f"it is for {arch} (here sm_{sm})"


def test_the_simulator_is_an_h200() -> None:
    for arch, runs in (("sm_90a", True), ("sm_100a", False)):
        kernel = convlab.compile(f"// arch: {arch}\n{PLANNED}", engine="sim")
        assert isinstance(kernel, Kernel) and (kernel.unsupported(PROBLEM) is None) == runs
