"""A kernel with programmatic dependent launch may begin before the call before it has ended."""

from __future__ import annotations

import pytest

import convlab
from convlab.strict.after_others import starts_early

# The first kernel doubles the filter in the workspace. The second one reads it there, and halves its sums.
SOURCE = """
#include "convlab.cuh"
#include "tensor.cuh"

__global__ void doubled(int count, const float* w, float* to) {
    griddepcontrol_launch_dependents();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    %(wait)s
    if (i < count) to[i] = 2 * w[i];
}

__global__ void between() {
    %(between)s
    griddepcontrol_launch_dependents();
}

__global__ void pointwise(ConvProblem conv, const float* x, const float* w, float* y) {
    %(trigger)s
    const int i = blockIdx.x * blockDim.x + threadIdx.x, pixels = conv.P * conv.Q;
    griddepcontrol_wait();
    if (i >= conv.N * conv.K * pixels) return;
    const int n = i / pixels / conv.K, k = i / pixels %% conv.K;
    float sum = 0;
    for (int c = 0; c < conv.C; ++c) sum += x[(n * conv.C + c) * pixels + i %% pixels] * w[k * conv.C + c];
    y[i] = sum / 2;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t) {
    return sizeof(float) * problem->K * problem->C;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w, const float*, float* y,
                                 void* workspace, size_t, cudaStream_t stream) {
    float* twice = static_cast<float*>(workspace);
    const int weights = problem->K * problem->C;
    const int outputs = problem->N * problem->K * problem->P * problem->Q;
    %(launch)s(doubled, ceil_div(weights, 256), 256, 0, stream, weights, w, twice);
    %(more)s
    launch_dependent(pointwise, ceil_div(outputs, 256), 256, 0, stream, *problem, x, (const float*)twice, y);
    return launch_error();
}
"""
HEADER = """// arch: sm_90a
// epilogue: none
// supports: R == 1, S == 1, groups == 1, stride_h == 1, stride_w == 1, pad_h == 0, pad_w == 0, N > 0
"""
PROBLEM = "N2 C8 H8 W12 K8 R1 S1"
CORRECT = {
    "wait": "griddepcontrol_wait();",
    "trigger": "griddepcontrol_launch_dependents();",
    "launch": "launch_dependent",
    "more": "",
    "between": "",
}
PLAIN_LAUNCH = """
    auto launch_plain = [](auto kernel, int blocks, int threads, size_t bytes, cudaStream_t stream, auto... rest) {
        kernel<<<blocks, threads, bytes, stream>>>(rest...);
    };
    launch_plain"""


def compiled(engine: str = "sim", **parts: str) -> convlab.Kernel:
    """Return the kernel with some parts replaced."""
    return convlab.compile(HEADER + SOURCE % (CORRECT | parts), name="doubled", engine=engine)


@pytest.mark.parametrize(
    "parts",
    [{}, {"wait": "", "trigger": ""}, {"wait": "", "launch": PLAIN_LAUNCH}],
    ids=["waits", "nothing starts early", "an ordinary launch"],
)
def test_a_call_may_follow_another_one(parts: dict[str, str]) -> None:
    kernel = compiled(**parts)
    assert starts_early(kernel)
    assert convlab.check(kernel, PROBLEM, setting="back_to_back").ok


def test_a_kernel_that_overwrites_what_the_call_before_still_reads_is_found() -> None:
    found = convlab.check(compiled(wait=""), [PROBLEM], setting="back_to_back", progress=False)
    assert not found.ok
    finding = found.smallest.findings[0]
    assert finding.kind == "race" and "workspace" in finding.text


def test_the_default_check_has_the_setting_for_such_kernels() -> None:
    found = convlab.check(compiled(wait=""), progress=False, count=0)
    assert not found.ok and "directly after another call" in str(found)


MORE = "launch_dependent(between, 1, 32, 0, stream);"


@pytest.mark.parametrize(
    "parts",
    [{"between": "griddepcontrol_wait();"}, {"launch": PLAIN_LAUNCH, "between": "griddepcontrol_wait();"}],
    ids=["waits", "an ordinary launch first"],
)
def test_a_grid_that_waits_passes_on_what_it_waited_for(parts: dict[str, str]) -> None:
    assert convlab.check(compiled(more=MORE, **parts), PROBLEM).ok


def test_a_grid_that_does_not_wait_may_end_before_the_grid_before_it() -> None:
    found = convlab.check(compiled(more=MORE), [PROBLEM], progress=False)
    assert not found.ok
    finding = found.smallest.findings[0]
    assert finding.kind == "race" and "the grid between the two" in finding.text


def test_a_grid_begins_after_the_end_of_one_that_lets_nothing_start_early() -> None:
    kernel = compiled(more=MORE)
    source = kernel.source.replace("griddepcontrol_launch_dependents();\n    const int i", "const int i", 1)
    assert source != kernel.source
    assert convlab.check(convlab.compile(source, name="late", engine="sim"), PROBLEM).ok


@pytest.mark.gpu
def test_a_correct_kernel_passes_on_a_gpu() -> None:
    assert convlab.check(compiled("cuda"), PROBLEM, setting="back_to_back").ok
