// title: Vector load
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, R == 1, S == 1, H * W % 128 == 0
// Task: A thread computes four neighbouring pixels, and loads them one by one. Load the four floats of a channel at once.
// Problem: N=1,C=8,H=8,W=32,K=2,R=1,S=1
// Hint: A float4 has the members x, y, z and w. Its address must be a multiple of 16 bytes, and here it is.
#include "convlab.cuh"

__global__ void pixels4(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    const int pixels = conv.H * conv.W, k = blockIdx.y;
    const int pixel = 4 * (blockIdx.x * 32 + threadIdx.x);   // the first of four
    float4 r_acc = {};
    for (int c = 0; c < conv.C; ++c) {
        const float* from = g_x + c * pixels + pixel;
        const float r_w = g_w[k * conv.C + c];
        // GAP begin
        r_acc.x += r_w * from[0];
        r_acc.y += r_w * from[1];
        r_acc.z += r_w * from[2];
        r_acc.w += r_w * from[3];
        // GAP end
    }
    *reinterpret_cast<float4*>(g_y + k * pixels + pixel) = r_acc;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const dim3 grid(conv.H * conv.W / 128, conv.K);
    pixels4<<<grid, 32, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
