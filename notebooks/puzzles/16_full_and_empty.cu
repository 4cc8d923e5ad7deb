// title: Full and empty
// precision: fp32
// epilogue: none
// supports: sm >= 90, N == 1, groups == 1, R == 1, S == 1, H * W % 64 == 0, K == 2, C % 4 == 0
// Task: fill() stores a chunk, use() reads it. Write what producers and consumers do: who waits for which mbarrier, and who arrives on which?
// Problem: N=1,C=24,H=4,W=32,K=2,R=1,S=1
// Hint: Producers: empty, fill, full. Consumers: full, use, empty. The parities are given.
#include "convlab.cuh"
#include "tensor.cuh"

__global__ void ring(ConvProblem conv, const float* g_x, const float* g_w, float* g_y) {
    __shared__ float s_x[2][4][64];   // [stage][channel of the chunk][pixel]
    __shared__ uint64_t full[2], empty[2];
    const int pixels = conv.H * conv.W, pixel = blockIdx.x * 64 + threadIdx.x % 64;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; ++i) mbarrier_init(&full[i], 64), mbarrier_init(&empty[i], 64);
    __syncthreads();
    float r_acc[2] = {};
    for (int chunk = 0; chunk < conv.C / 4; ++chunk) {
        const int stage = chunk % 2, column = threadIdx.x % 64;
        const int parity = chunk / 2 % 2;   // of the phase of full
        auto fill = [&] {
            for (int c = 0; c < 4; ++c)
                s_x[stage][c][column] = g_x[(4 * chunk + c) * pixels + pixel];
        };
        auto use = [&] {
            for (int c = 0; c < 4; ++c)
                for (int k = 0; k < 2; ++k)
                    r_acc[k] += s_x[stage][c][column] * g_w[k * conv.C + 4 * chunk + c];
        };
        const bool producer = threadIdx.x >= 64;
        // GAP begin
        if (producer) {
            fill();
        } else {
            use();
        }
        // GAP end
    }
    if (threadIdx.x >= 64) return;
    for (int k = 0; k < 2; ++k) g_y[k * pixels + pixel] = r_acc[k];
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    ring<<<conv.H * conv.W / 64, 128, 0, stream>>>(conv, x, w, y);
    return launch_error();
}
