// title: Lane map of mma
// precision: tf32
// epilogue: none
// supports: N == 1, groups == 1, C == 8, K == 16, R == 1, S == 1, H == 1, W == 8, sm >= 80
// Task: Load the fragments of A (the filter, 16 x 8) and B (the image, 8 x 8) for the lane with these g and t.
// Problem: N=1,C=8,H=1,W=8,K=16,R=1,S=1
// Hint: A: (g, t) (g+8, t) (g, t+4) (g+8, t+4). B: (t, g) (t+4, g).
#include "convlab.cuh"
#include "tensor.cuh"

__global__ void one_tile(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    float r_w[4], r_x[2], r_y[4] = {};
    for (int i = 0; i < 4; ++i) {
        int row = 0, column = 0;   // of A
        int c = 0, pixel = 0;      // of B, for i < 2
        // GAP begin
        row = g, column = t;
        c = t, pixel = g;
        // GAP end
        r_w[i] = round_tf32(g_w[row * 8 + column]);
        if (i < 2) r_x[i] = round_tf32(g_x[c * 8 + pixel]);
    }
    mma_m16n8k8_tf32(r_y, r_w, r_x);
    g_y[g * 8 + 2 * t] = r_y[0];
    g_y[g * 8 + 2 * t + 1] = r_y[1];
    g_y[(g + 8) * 8 + 2 * t] = r_y[2];
    g_y[(g + 8) * 8 + 2 * t + 1] = r_y[3];
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    one_tile<<<1, 32, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
