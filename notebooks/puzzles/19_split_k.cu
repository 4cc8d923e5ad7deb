// title: Split-K
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, stride_h == 1, stride_w == 1
// Task: There are few outputs, but a long sum. A warp computes one output: lane l adds the taps l, l + 32, l + 64, ... Add the 32 sums, so that lane 0 has the total.
// Problem: N=1,C=64,H=3,W=4,K=2,R=3,S=3
// Hint: __shfl_down_sync(0xffffffff, value, offset) returns the value of the lane that is offset further on.
#include "convlab.cuh"

__global__ void by_warp(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int lane = threadIdx.x, q = blockIdx.x % conv.Q, p = blockIdx.x / conv.Q, k = blockIdx.y;
    const int taps = conv.C * conv.R * conv.S;
    float r_acc = 0.0f;
    for (int tap = lane; tap < taps; tap += 32) {
        const int c = tap / (conv.R * conv.S), r = tap / conv.S % conv.R, s = tap % conv.S;
        r_acc += g_x[(c * conv.H + p + r) * conv.W + q + s] * g_w[k * taps + tap];
    }
    // GAP begin
    // The sums of 31 lanes are lost.
    // GAP end
    if (lane == 0) g_y[(k * conv.P + p) * conv.Q + q] = r_acc;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    by_warp<<<dim3(conv.P * conv.Q, conv.K), 32, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
