// title: Coalesce
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1
// Task: Output i of a thread is correct, but lanes store to addresses that are far apart. Choose k, p, q so that neighbouring lanes have neighbouring outputs.
// Problem: N=1,C=4,H=10,W=34,K=8,R=3,S=3
// Hint: Which of k, p and q is contiguous in y?
#include "convlab.cuh"

__global__ void direct(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= conv.K * conv.P * conv.Q) return;
    // GAP begin
    const int k = i % conv.K, p = i / conv.K % conv.P, q = i / conv.K / conv.P;
    // GAP end
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
