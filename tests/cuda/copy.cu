// title: Copy
// tensors: x f16 NHWC, w f16 KRSC, y f16 NHWC, bias f32
#include "convlab.cuh"
__global__ void copy(const unsigned short* g_x, unsigned short* g_y, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * 32 + threadIdx.x;
    if (i < count) g_y[i] = g_x[i];
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const void* x, const void* w,
                                 const void* bias, void* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int64_t count = int64_t(problem->N) * problem->K * problem->P * problem->Q;
    copy<<<ceil_div(count, int64_t(32)), 32, 0, stream>>>(
        static_cast<const unsigned short*>(x), static_cast<unsigned short*>(y), count);
    return launch_error();
}
