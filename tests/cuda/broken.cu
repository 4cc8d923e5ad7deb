// A race, unless the test inserts a barrier or other code.
#include "convlab.cuh"
__global__ void broken(float* y, int n) {
    __shared__ float s_sum[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    s_sum[threadIdx.x] = 1.f;
    %s
    if (i < n) y[i] = s_sum[63 - threadIdx.x];
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* conv, const float*, const float*, const float*,
                                 float* y, void*, size_t, cudaStream_t stream) {
    broken<<<1000, 64, 0, stream>>>(y, conv->N * conv->K * conv->P * conv->Q);
    return launch_error();
}
