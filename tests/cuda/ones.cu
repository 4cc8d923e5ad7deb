// title: All ones
#include "convlab.cuh"
__global__ void ones(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) printf("{ a kernel \"speaks\" }\n");
    if (i < n) y[i] = 1;
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    int n = problem->N * problem->K * problem->P * problem->Q;
    ones<<<(n + 255) / 256, 256, 0, stream>>>(y, n);
    return launch_error();
}
