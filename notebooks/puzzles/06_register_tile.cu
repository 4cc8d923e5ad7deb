// title: Register tile
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, K % 4 == 0, stride_h == 1, stride_w == 1
// Task: A thread computes four output channels, and loads each value of x four times. Load it once.
// Problem: N=1,C=3,H=10,W=34,K=8,R=3,S=3
// Hint: Put the value into a register, and use it for four sums.
#include "convlab.cuh"

__global__ void four(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, k0 = blockIdx.y * 4;
    if (i >= conv.P * conv.Q) return;
    const int q = i % conv.Q, p = i / conv.Q, taps = conv.C * conv.R * conv.S;
    float r_acc[4] = {};
    auto x_at = [&](int tap) {
        const int c = tap / (conv.R * conv.S), r = tap / conv.S % conv.R, s = tap % conv.S;
        return g_x[(c * conv.H + p + r) * conv.W + q + s];
    };
    // GAP begin
    for (int j = 0; j < 4; ++j)
        for (int tap = 0; tap < taps; ++tap) r_acc[j] += x_at(tap) * g_w[(k0 + j) * taps + tap];
    // GAP end
    for (int j = 0; j < 4; ++j) g_y[((k0 + j) * conv.P + p) * conv.Q + q] = r_acc[j];
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const dim3 grid(ceil_div(conv.P * conv.Q, 64), conv.K / 4);
    four<<<grid, 64, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
