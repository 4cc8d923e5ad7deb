// title: Descriptor
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, N == 1, groups == 1, C == 8, K == 64, R == 1, S == 1, H == 1, W == 128
// Task: Give the two steps of each operand in bytes: from a core matrix to the next one along k, and along the rows.
// Problem: N=1,C=8,H=1,W=128,K=64,R=1,S=1
// Hint: A core matrix is 8 rows of 16 bytes. The next quad of channels comes after all rows of this one.
#include "convlab.cuh"
#include "tensor.cuh"

__global__ void __launch_bounds__(128) one_tile(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    __shared__ alignas(128) float s_w[2][64][4], s_x[2][128][4];   // [quad of c][row][4 channels]
    const int row = threadIdx.x % 128;
    for (int c = 0; c < 8; ++c) {
        s_x[c / 4][row][c % 4] = round_tf32(g_x[c * 128 + row]);
        if (row < 64) s_w[c / 4][row][c % 4] = round_tf32(g_w[row * 8 + c]);
    }
    fence_proxy_async();
    __syncthreads();
    int w_k_step = 128, w_row_step = 128, x_k_step = 128, x_row_step = 128;
    // GAP begin
    w_k_step = 16, w_row_step = 128;
    x_k_step = 16, x_row_step = 128;
    // GAP end
    float r_y[64] = {};
    wgmma_fence();
    wgmma_m64n128k8_tf32(r_y, wgmma_descriptor(s_w, w_k_step, w_row_step),
                         wgmma_descriptor(s_x, x_k_step, x_row_step), 0);
    wgmma_commit();
    wgmma_wait<0>();
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 64; ++i) {
        const int k = 16 * warp + 8 * (i % 4 / 2) + g, m = 8 * (i / 4) + 2 * t + i % 2;
        g_y[k * 128 + m] = r_y[i];
    }
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    one_tile<<<1, 128, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
