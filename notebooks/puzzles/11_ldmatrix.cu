// title: ldmatrix
// precision: tf32
// epilogue: none
// supports: N == 1, groups == 1, C == 8, K == 16, R == 1, S == 1, H == 1, W == 8, sm >= 80
// Task: ldmatrix.x4 loads four matrices of 8 rows x 16 bytes. Lane l gives the address of one row: row l % 8 of matrix l / 8. Choose it so that the results are the fragment of A.
// Problem: N=1,C=8,H=1,W=8,K=16,R=1,S=1
// Hint: r_w[0] to r_w[3] come from matrices 0 to 3. 16 bytes are four columns of s_w.
#include "convlab.cuh"
#include "tensor.cuh"

__global__ void one_tile(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    __shared__ alignas(16) float s_w[16][8];
    for (int i = lane; i < 16 * 8; i += 32) s_w[i / 8][i % 8] = round_tf32(g_w[i]);
    __syncwarp();
    const float* address = nullptr;
    // GAP begin
    address = &s_w[lane % 16][0];
    // GAP end
    uint32_t bits[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(address)));
    float r_w[4], r_y[4] = {};
    for (int i = 0; i < 4; ++i) r_w[i] = __uint_as_float(bits[i]);
    const float r_x[2] = {round_tf32(g_x[t * 8 + g]), round_tf32(g_x[(t + 4) * 8 + g])};
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
