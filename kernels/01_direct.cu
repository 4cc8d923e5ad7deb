// title: Direct
// idea: The formula, written as loops. Each output is a sum of C/groups * R * S products, and one
//       thread computes one output.
// change: The first rung. Threads share data only through the caches.
// mapping: grid.x * block = all outputs end to end; thread -> one (n, k, p, q), q fastest: the
//       lanes of a warp read neighbours in a row of x and write neighbours in y.
// precision: fp32
// epilogue: bias, relu
// supports: everything
// limits: Each multiply-add needs two loads and a border test. Loads and address arithmetic take
//       the time; the multipliers wait.
#include "convlab.cuh"

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kThreads = THREADS;
static_assert(kThreads > 0 && kThreads % 32 == 0 && kThreads <= 1024, "THREADS: 32, 64, ... 1024");

__global__ void __launch_bounds__(kThreads)
conv2d_direct(ConvProblem conv, const float* __restrict__ g_x, const float* __restrict__ g_w,
              const float* __restrict__ g_bias, float* __restrict__ g_y) {
    // 64 bits: y may have more than 2^31 elements.
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= int64_t(conv.N) * conv.K * conv.P * conv.Q) return;

    const int q = int(i % conv.Q);
    const int p = int(i / conv.Q % conv.P);
    const int64_t plane = i / (int64_t(conv.P) * conv.Q);   // n * K + k
    const int k = int(plane % conv.K);
    const int n = int(plane / conv.K);

    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int group = k / K_group;
    const int64_t HW = int64_t(conv.H) * conv.W;
    const int64_t RS = int64_t(conv.R) * conv.S;
    const float* x_n = g_x + (int64_t(n) * conv.C + group * C_group) * HW;   // (C_group, H, W)
    const float* w_k = g_w + int64_t(k) * C_group * RS;                      // (C_group, R, S)

    float r_acc = 0.0f;
    for (int c = 0; c < C_group; ++c) {
        for (int r = 0; r < conv.R; ++r) {
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            if (h < 0 || h >= conv.H) continue;   // a row of padding: all zeros
            for (int s = 0; s < conv.S; ++s) {
                const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                if (w < 0 || w >= conv.W) continue;
                r_acc += x_n[c * HW + int64_t(h) * conv.W + w] *
                         w_k[c * RS + int64_t(r) * conv.S + s];
            }
        }
    }
    g_y[i] = activated(conv, r_acc + (g_bias ? g_bias[k] : 0.0f));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int64_t outputs = int64_t(conv.N) * conv.K * conv.P * conv.Q;
    const int64_t blocks = ceil_div(outputs, int64_t(kThreads));
    if (const char* error = too_many(blocks)) return error;
    conv2d_direct<<<unsigned(blocks), kThreads, 0, stream>>>(conv, x, w, bias, y);
    return launch_error();
}
