// title: Depthwise row reuse
// precision: fp32
// epilogue: none
// supports: N == 1, groups == C, K == C, R == 3, S == 3, stride_h == 1, stride_w == 1, Q <= 32
// Task: A thread goes down a column. The kernel is correct, but loads each of the three rows again for each output. Keep the rows r_0 and r_1 for the next output, so that each row is loaded once.
// Problem: N=1,C=4,H=18,W=34,K=4,R=3,S=3,groups=4
// Hint: After an output, row 1 becomes row 0, and row 2 becomes row 1. Then only row 2 is new.
#include "convlab.cuh"

__global__ void column(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int q = threadIdx.x, c = blockIdx.x;
    if (q >= conv.Q) return;
    const float* x_q = g_x + c * conv.H * conv.W + q;
    float r_rows[3][3], r_w[9];   // [row][s]
    for (int tap = 0; tap < 9; ++tap) r_w[tap] = g_w[c * 9 + tap];
    auto load = [&](int row, int h) {
        for (int s = 0; s < 3; ++s) r_rows[row][s] = x_q[h * conv.W + s];
    };
    load(0, 0);
    load(1, 1);
    for (int p = 0; p < conv.P; ++p) {
        load(2, p + 2);
        float r_acc = 0.0f;
        for (int tap = 0; tap < 9; ++tap) r_acc += r_w[tap] * r_rows[tap / 3][tap % 3];
        g_y[(c * conv.P + p) * conv.Q + q] = r_acc;
        // GAP begin
        load(0, p + 1);
        if (p + 2 < conv.H) load(1, p + 2);
        // GAP end
    }
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    column<<<conv.C, 32, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
