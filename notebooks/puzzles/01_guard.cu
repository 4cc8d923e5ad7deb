// title: Guard
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1
// Task: The grid has more threads than there are outputs. Threads without an output must not store.
// Problem: N=1,C=2,H=9,W=9,K=3,R=3,S=3
// Hint: 147 outputs need 3 blocks of 64 threads. What do the last 45 threads compute?
#include "convlab.cuh"

__global__ void direct(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    // GAP begin
    // One line is missing here.
    // GAP end
    const int q = i % conv.Q, p = i / conv.Q % conv.P, k = i / conv.Q / conv.P;
    float r_acc = 0.0f;
    for (int c = 0; c < conv.C; ++c)
        for (int r = 0; r < conv.R; ++r)
            for (int s = 0; s < conv.S; ++s)
                r_acc += g_x[(c * conv.H + p + r) * conv.W + q + s] *
                         g_w[((k * conv.C + c) * conv.R + r) * conv.S + s];
    g_y[(k * conv.P + p) * conv.Q + q] = r_acc;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const int outputs = conv.K * conv.P * conv.Q;
    direct<<<ceil_div(outputs, 64), 64, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
