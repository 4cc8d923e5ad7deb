// title: Barrier
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, R == 3, S == 3, stride_h == 1, stride_w == 1, P % 8 == 0, Q % 32 == 0
// Task: load() fills the tile of a channel, and add() uses it. Put the two barriers where they are needed.
// Problem: N=1,C=3,H=10,W=34,K=2,R=3,S=3
// Hint: No thread may read an incomplete tile, and none may overwrite a tile that another thread still reads.
#include "convlab.cuh"

__global__ void tile(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    __shared__ float s_x[10][34];
    const int q0 = blockIdx.x * 32, p0 = blockIdx.y * 8, k = blockIdx.z;
    float r_acc = 0.0f;
    auto load = [&](int c) {
        for (int i = threadIdx.y * 32 + threadIdx.x; i < 10 * 34; i += 256)
            s_x[i / 34][i % 34] = g_x[(c * conv.H + p0 + i / 34) * conv.W + q0 + i % 34];
    };
    auto add = [&](int c) {
        for (int r = 0; r < 3; ++r)
            for (int s = 0; s < 3; ++s)
                r_acc += s_x[threadIdx.y + r][threadIdx.x + s] * g_w[((k * conv.C + c) * 3 + r) * 3 + s];
    };
    for (int c = 0; c < conv.C; ++c) {
        // GAP begin
        load(c);
        add(c);
        // GAP end
    }
    g_y[(k * conv.P + p0 + threadIdx.y) * conv.Q + q0 + threadIdx.x] = r_acc;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const dim3 grid(conv.Q / 32, conv.P / 8, conv.K);
    tile<<<grid, dim3(32, 8), 0, stream>>>(conv, x, w, y);
    return launch_error();
}
