"""Sums of fp16 numbers in a gradient: a partial sum that is kept in fp16 overflows."""

from __future__ import annotations

import pytest

import convlab
from convlab.strict.settings import NAMES

HEADER = """// computes: %(gradient)s
// precision: fp16
// epilogue: none
// tensors: %(tensors)s
// supports: R == 1, S == 1, groups == 1, stride_h == 1, stride_w == 1, pad_h == 0, pad_w == 0
#include "convlab.cuh"
#include <cuda_fp16.h>
"""
DATA = """
__global__ void of_dx(ConvProblem conv, const __half* dy, const __half* w, __half* dx) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, pixels = conv.P * conv.Q;
    if (i >= conv.N * conv.C * pixels) return;
    const int n = i / pixels / conv.C, c = i / pixels % conv.C;
    float sum = 0;
    for (int k = 0; k < conv.K; ++k) {
        sum += __half2float(dy[(n * conv.K + k) * pixels + i % pixels]) * __half2float(w[k * conv.C + c]);
        KEEP
    }
    dx[i] = __float2half(sum);
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const void* dy, const void* w, void* dx,
                                               void*, size_t, cudaStream_t stream) {
    const int outputs = problem->N * problem->C * problem->H * problem->W;
    of_dx<<<ceil_div(outputs, 128), 128, 0, stream>>>(*problem, (const __half*)dy, (const __half*)w, (__half*)dx);
    return launch_error();
}
"""
WEIGHT = """
__global__ void of_dw(ConvProblem conv, const __half* x, const __half* dy, __half* dw) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, pixels = conv.P * conv.Q;
    if (i >= conv.K * conv.C) return;
    float sum = 0;
    for (int n = 0; n < conv.N; ++n) {
        const __half* plane = x + (n * conv.C + i % conv.C) * pixels;
        const __half* filter = dy + (n * conv.K + i / conv.C) * pixels;
        for (int pixel = 0; pixel < pixels; ++pixel) sum += __half2float(plane[pixel]) * __half2float(filter[pixel]);
        KEEP
    }
    dw[i] = __float2half(sum);
}

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const void* x, const void* dy, void* dw,
                                                 void*, size_t, cudaStream_t stream) {
    const int weights = problem->K * problem->C;
    of_dw<<<ceil_div(weights, 128), 128, 0, stream>>>(*problem, (const __half*)x, (const __half*)dy, (__half*)dw);
    return launch_error();
}
"""
GRADIENTS = {
    "data gradient": (DATA, "dy f16, w f16, dx f16"),
    "weight gradient": (WEIGHT, "x f16, dy f16, dw f16"),
}
SATURATED = "if (sum > 65504) sum = 65504;"


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("keep", ["", SATURATED])
def test_a_partial_sum_of_a_gradient_that_cannot_exceed_fp16_is_found(gradient: str, keep: str) -> None:
    """Such a kernel is right on numbers near 1, because its sums are far from that limit."""
    assert "overflowing" in NAMES
    source, tensors = GRADIENTS[gradient]
    text = HEADER % {"gradient": gradient, "tensors": tensors} + source.replace("KEEP", keep)
    kernel = convlab.compile(text, name="partial", engine="sim")
    problem = f"N2 C8 H8 W12 K8 R1 S1 {gradient.replace(' ', '_')}"
    assert convlab.check(kernel, problem).ok
    report = convlab.check(kernel, problem, setting="overflowing")
    assert report.ok == (not keep)
