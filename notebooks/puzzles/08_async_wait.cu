// title: cp.async's wait
// precision: fp32
// epilogue: none
// supports: N == 1, groups == 1, R == 1, S == 1, C % 8 == 0, H * W % 32 == 0, K == 2
// Task: The next chunk is copied while this one is used. Wait until the copies of *this* chunk are complete, and no longer.
// Problem: N=1,C=32,H=4,W=16,K=2,R=1,S=1
// Hint: __pipeline_wait_prior(n) lets the n newest groups of this thread stay in flight. Other threads copied, too.
#include "convlab_async.cuh"

__global__ void chunks(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    __shared__ alignas(16) float s_x[2][8][32];   // [stage][channel of the chunk][pixel]
    const int pixels = conv.H * conv.W, pixel0 = blockIdx.x * 32;
    const int lane = threadIdx.x, k = threadIdx.y, thread = 32 * k + lane;   // 64 threads
    auto copy = [&](int chunk) {   // 16 bytes for each thread
        const int c = thread / 8, pixel = thread % 8 * 4;
        copy_async<16>(&s_x[chunk % 2][c][pixel], g_x + (8 * chunk + c) * pixels + pixel0 + pixel, true);
    };
    float r_acc = 0.0f;
    copy(0);
    __pipeline_commit();
    for (int chunk = 0; chunk < conv.C / 8; ++chunk) {
        if (chunk + 1 < conv.C / 8) copy(chunk + 1);
        __pipeline_commit();   // also without copies, so that groups can be counted
        // GAP begin
        // Two lines are missing here.
        // GAP end
        for (int c = 0; c < 8; ++c)
            r_acc += s_x[chunk % 2][c][lane] * g_w[k * conv.C + 8 * chunk + c];
        __syncthreads();   // all have read the stage
    }
    g_y[k * pixels + pixel0 + lane] = r_acc;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    chunks<<<conv.H * conv.W / 32, dim3(32, 2), 0, stream>>>(conv, x, w, y);
    return launch_error();
}
