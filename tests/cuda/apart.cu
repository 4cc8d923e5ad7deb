#include "convlab.cuh"
#include <cstdio>
#include <csignal>
#include <fcntl.h>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
STATIC
__global__ void fill(float* y, int n) {
    int i = blockIdx.x * 32 + threadIdx.x;
    KERNEL
    if (i < n) y[i] = 7;
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* conv, const float*, const float* w, const float*,
                                 float* y, void*, size_t, cudaStream_t stream) {
    HOST
    int n = conv->N * conv->K * conv->P * conv->Q;
    fill<<<(n + 31) / 32, 32, 0, stream>>>(y, n);
    return launch_error();
}
