// The im2col kernel of 02_im2col_gemm, for 02b and 02c, which leave the product to cuBLAS.
#pragma once

#include "convlab.cuh"

constexpr int kLoweringThreads = 256;

// g_col: (C*R*S, pitch). Its column m is pixel `first + m` of y's pixels, all images end to end.
__global__ void __launch_bounds__(kLoweringThreads)
im2col(ConvProblem conv, const float* __restrict__ g_x, float* __restrict__ g_col,
       int64_t first, int pixels, int pitch) {
    const int m = int(blockIdx.x * kLoweringThreads + threadIdx.x);
    if (m >= pixels) return;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int n = int((first + m) / PQ);
    const int p = int((first + m) % PQ / conv.Q);
    const int q = int((first + m) % PQ % conv.Q);

    for (int c = blockIdx.y; c < conv.C; c += gridDim.y) {
        const float* x_c = g_x + (int64_t(n) * conv.C + c) * conv.H * conv.W;    // (H, W)
        float* col = g_col + int64_t(c) * conv.R * conv.S * pitch + m;
        for (int r = 0; r < conv.R; ++r) {
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            for (int s = 0; s < conv.S; ++s) {
                const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
                *col = inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
                col += pitch;   // rows are ordered (c, r, s), as the filter is
            }
        }
    }
}

// Returns how many columns of `floats` floats fit into `bytes`, at most `most`. From 32 columns on,
// a multiple of 32, so that rows consist of whole 128-byte lines.
inline int columns_that_fit(const ConvProblem& conv, size_t bytes, int64_t floats, int64_t most) {
    const int64_t all = ceil_div(int64_t(conv.N) * conv.P * conv.Q, int64_t(32)) * 32;
    const int64_t fit = int64_t(bytes / sizeof(float)) / floats;
    const int64_t columns = min_of(min_of(fit, all), most);
    return int(columns < 32 ? columns : columns / 32 * 32);
}
