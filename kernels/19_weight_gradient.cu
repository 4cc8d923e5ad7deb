// title: Weight gradient, a block for each weight
// idea: A weight meets every pixel of every image, so its gradient is a long sum, N * P * Q products.
//       A block computes one such sum: its threads take pixels in turn, and then add up in pairs.
// change: Against 01: few outputs with long sums instead of many outputs with short ones. The sum, not
//       the output, is shared among threads.
// mapping: grid.x = elements of dw; block -> one (k, c, r, s); thread -> every THREADS-th pixel (n, p, q),
//       so that the lanes of a warp read neighbours in rows of dy and of x.
// computes: weight gradient
// precision: fp32
// epilogue: none
// supports: everything
// limits: Each block reads a whole plane of x and of dy, and R * S * C / groups blocks read the same
//       plane of dy again: the caches decide the speed.
// The sum is added in a fixed order, so two runs give the same bits. Atomics on dw would not.
#include "convlab.cuh"

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kThreads = THREADS;
static_assert(kThreads == 32 || kThreads == 64 || kThreads == 128 || kThreads == 256 ||
              kThreads == 512 || kThreads == 1024, "THREADS: 32, 64, 128, 256, 512 or 1024");

__global__ void __launch_bounds__(kThreads)
weight_gradient(ConvProblem conv, const float* __restrict__ g_x, const float* __restrict__ g_dy,
                float* __restrict__ g_dw) {
    __shared__ float s_sums[kThreads];
    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int s = int(blockIdx.x % conv.S);
    const int r = int(blockIdx.x / conv.S % conv.R);
    const int64_t filter = blockIdx.x / (int64_t(conv.S) * conv.R);   // k * C_group + c
    const int c = int(filter % C_group);
    const int k = int(filter / C_group);
    const int channel = k / K_group * C_group + c;   // in x

    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t HW = int64_t(conv.H) * conv.W;
    float r_sum = 0.0f;
    for (int64_t i = threadIdx.x; i < conv.N * PQ; i += kThreads) {
        const int q = int(i % conv.Q);
        const int p = int(i / conv.Q % conv.P);
        const int64_t n = i / PQ;
        const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
        const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
        if (h < 0 || h >= conv.H || w < 0 || w >= conv.W) continue;   // padding
        r_sum += g_dy[(n * conv.K + k) * PQ + int64_t(p) * conv.Q + q] *
                 g_x[(n * conv.C + channel) * HW + int64_t(h) * conv.W + w];
    }
    s_sums[threadIdx.x] = r_sum;
    __syncthreads();
    // A tree: half of the threads add the other half's sums, and again.
    for (int half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) s_sums[threadIdx.x] += s_sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) g_dw[blockIdx.x] = s_sums[0];
}

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const float* x,
                                                 const float* dy, float* dw, void* /*workspace*/,
                                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    const int64_t weights = int64_t(conv.K) * (conv.C / conv.groups) * conv.R * conv.S;
    if (const char* error = too_many(weights)) return error;
    weight_gradient<<<unsigned(weights), kThreads, 0, stream>>>(conv, x, dy, dw);
    return launch_error();
}
