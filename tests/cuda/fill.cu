// title: Fill
#include "convlab.cuh"
#ifndef VALUE
#define VALUE 1
#endif
static_assert(VALUE < 1000, "VALUE: less than 1000");

__global__ void fill(float* g_y, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * 32 + threadIdx.x;
    if (i < count) g_y[i] = VALUE;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int64_t count = int64_t(problem->N) * problem->K * problem->P * problem->Q;
    fill<<<ceil_div(count, int64_t(32)), 32, 0, stream>>>(y, count);
    return launch_error();
}
