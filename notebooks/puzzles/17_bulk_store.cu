// title: Bulk store
// precision: fp32
// epilogue: none
// supports: sm >= 90, N == 1, groups == 1, R == 1, S == 1, H * W == 128
// Task: s_y has 128 pixels of y. Let the copy engine store them: make the stores of all threads visible to it, let one thread store 512 bytes, commit, and wait.
// Problem: N=1,C=4,H=4,W=32,K=2,R=1,S=1
// Hint: fence_proxy_async() by each thread that stored, a barrier, then bulk_store, bulk_commit, bulk_wait_read<0>.
#include "convlab.cuh"
#include "tensor.cuh"

__global__ void stored(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    __shared__ alignas(128) float s_y[128];
    const int k = blockIdx.x;
    float r_acc = 0.0f;
    for (int c = 0; c < conv.C; ++c) r_acc += g_x[c * 128 + threadIdx.x] * g_w[k * conv.C + c];
    s_y[threadIdx.x] = r_acc;
    // GAP begin
    if (threadIdx.x == 0) bulk_store(g_y + k * 128, s_y, 512);
    // GAP end
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    stored<<<conv.K, 128, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
