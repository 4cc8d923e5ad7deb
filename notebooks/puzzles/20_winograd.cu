// title: Winograd's transform
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, R == 1, S == 3, Q % 2 == 0, stride_h == 1, stride_w == 1
// Task: F(2, 3): four inputs d of a row, two outputs, four products. Compute the factors v of the image; those of the filter are given.
// Problem: N=1,C=3,H=4,W=34,K=2,R=1,S=3
// Hint: m0 = (d0 - d2) u0, m1 = (d1 + d2) u1, m2 = (d2 - d1) u2, m3 = (d1 - d3) u3.
#include "convlab.cuh"

__global__ void f23(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int q = 2 * threadIdx.x, p = blockIdx.x, k = blockIdx.y;
    if (q >= conv.Q) return;
    float r_m[4] = {};
    for (int c = 0; c < conv.C; ++c) {
        const float* d = g_x + (c * conv.H + p) * conv.W + q;
        const float* g = g_w + (k * conv.C + c) * 3;
        const float u[4] = {g[0], (g[0] + g[1] + g[2]) / 2, (g[0] - g[1] + g[2]) / 2, g[2]};
        float v[4] = {};
        // GAP begin
        for (int i = 0; i < 4; ++i) v[i] = d[i];
        // GAP end
        for (int i = 0; i < 4; ++i) r_m[i] += u[i] * v[i];
    }
    float* to = g_y + (k * conv.P + p) * conv.Q + q;
    to[0] = r_m[0] + r_m[1] + r_m[2];
    to[1] = r_m[1] - r_m[2] - r_m[3];
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    f23<<<dim3(conv.P, conv.K), 32, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
