// title: Data gradient, gathered
// idea: The chain rule, read backwards. Each output pixel that read an element of x sends its
//       gradient back through the same weight, and one thread adds up what arrives at one element.
// change: Against 01: the sum runs over filters instead of channels, and with a stride a tap reaches
//       only every n-th pixel, so the address must be divided and the remainder tested.
// mapping: grid.x * block = all elements of dx end to end; thread -> one (n, c, h, w), w fastest: the
//       lanes of a warp read neighbours in a row of dy and write neighbours in dx.
// computes: data gradient
// precision: fp32
// epilogue: none
// parent: 01_direct
// supports: everything
// limits: As in 01, two loads for each multiply-add. With stride 2 half of the taps of each direction
//       miss, and their tests take time all the same.
// Scattering would be the other way: one thread for each pixel of dy, which adds to many elements of
// dx. Several threads would then add to one address, by atomics and in no fixed order.
#include "convlab.cuh"

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kThreads = THREADS;
static_assert(kThreads > 0 && kThreads % 32 == 0 && kThreads <= 1024, "THREADS: 32, 64, ... 1024");

__global__ void __launch_bounds__(kThreads)
data_gradient(ConvProblem conv, const float* __restrict__ g_dy, const float* __restrict__ g_w,
              float* __restrict__ g_dx) {
    // 64 bits: dx may have more than 2^31 elements.
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= int64_t(conv.N) * conv.C * conv.H * conv.W) return;

    const int w = int(i % conv.W);
    const int h = int(i / conv.W % conv.H);
    const int64_t plane = i / (int64_t(conv.W) * conv.H);   // n * C + c
    const int c = int(plane % conv.C);
    const int n = int(plane / conv.C);

    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int first_k = c / C_group * K_group;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t RS = int64_t(conv.R) * conv.S;
    const float* dy_n = g_dy + (int64_t(n) * conv.K + first_k) * PQ;   // (K_group, P, Q)
    const float* w_c = g_w + (int64_t(first_k) * C_group + c % C_group) * RS;   // of filter first_k

    float r_acc = 0.0f;
    for (int r = 0; r < conv.R; ++r) {
        // The forward pass reads row h at p * stride_h - pad_h + r * dilation_h. Solve that for p.
        const int p_times_stride = h + conv.pad_h - r * conv.dilation_h;
        if (p_times_stride < 0 || p_times_stride % conv.stride_h != 0) continue;
        const int p = p_times_stride / conv.stride_h;
        if (p >= conv.P) continue;
        for (int s = 0; s < conv.S; ++s) {
            const int q_times_stride = w + conv.pad_w - s * conv.dilation_w;
            if (q_times_stride < 0 || q_times_stride % conv.stride_w != 0) continue;
            const int q = q_times_stride / conv.stride_w;
            if (q >= conv.Q) continue;
            for (int k = 0; k < K_group; ++k)
                r_acc += dy_n[k * PQ + int64_t(p) * conv.Q + q] *
                         w_c[int64_t(k) * C_group * RS + int64_t(r) * conv.S + s];
        }
    }
    g_dx[i] = r_acc;
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* /*workspace*/,
                                               size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int64_t elements = int64_t(conv.N) * conv.C * conv.H * conv.W;
    const int64_t blocks = ceil_div(elements, int64_t(kThreads));
    if (const char* error = too_many(blocks)) return error;
    data_gradient<<<unsigned(blocks), kThreads, 0, stream>>>(conv, dy, w, dx);
    return launch_error();
}
