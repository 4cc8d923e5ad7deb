#include "convlab.cuh"
__global__ void order(float* y) { %s }
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float*, const float*,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    order<<<4, problem->Q, 0, stream>>>(y);
    return launch_error();
}
