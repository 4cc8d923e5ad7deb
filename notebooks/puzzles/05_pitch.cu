// title: Pitch
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, C == 32, K == 32, R == 1, S == 1
// Task: The result is correct, but 32 lanes read 32 words of one bank. Change the pitch of the rows of s_w.
// Problem: N=1,C=32,H=2,W=4,K=32,R=1,S=1
// Hint: Lane k reads s_w[k][c]. In which bank is it? There are 32 banks of one word.
#include "convlab.cuh"

__global__ void channels(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    // GAP begin
    constexpr int kPitch = 32;
    // GAP end
    __shared__ float s_w[32][kPitch];
    const int k = threadIdx.x, pixels = conv.H * conv.W;
    for (int row = 0; row < 32; ++row) s_w[row][threadIdx.x] = g_w[row * 32 + threadIdx.x];
    __syncwarp();
    for (int pixel = 0; pixel < pixels; ++pixel) {
        float r_acc = 0.0f;
        for (int c = 0; c < 32; ++c) r_acc += s_w[k][c] * g_x[c * pixels + pixel];
        g_y[k * pixels + pixel] = r_acc;
    }
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    channels<<<1, 32, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
