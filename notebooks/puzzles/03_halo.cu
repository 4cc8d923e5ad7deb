// title: Halo
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, R == 3, S == 3, stride_h == 1, stride_w == 1, P % 8 == 0, Q % 32 == 0
// Task: A block computes 8 x 32 outputs. Its 256 threads load the tile of inputs that these outputs need: 10 x 34.
// Problem: N=1,C=2,H=18,W=66,K=2,R=3,S=3
// Hint: 340 elements, 256 threads: some threads load two. Number the elements from 0 to 339.
#include "convlab.cuh"

__global__ void tile(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    __shared__ float s_x[10][34];
    const int q0 = blockIdx.x * 32, p0 = blockIdx.y * 8, k = blockIdx.z;
    const int thread = threadIdx.y * 32 + threadIdx.x;   // 0 to 255
    float r_acc = 0.0f;
    for (int c = 0; c < conv.C; ++c) {
        const float* x_tile = g_x + (c * conv.H + p0) * conv.W + q0;
        // GAP begin
        s_x[thread / 32][thread % 32] = x_tile[thread / 32 * conv.W + thread % 32];
        // GAP end
        __syncthreads();
        for (int r = 0; r < 3; ++r)
            for (int s = 0; s < 3; ++s)
                r_acc += s_x[threadIdx.y + r][threadIdx.x + s] * g_w[((k * conv.C + c) * 3 + r) * 3 + s];
        __syncthreads();
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
