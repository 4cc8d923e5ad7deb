// A test plants an error: it replaces the words in capitals.
#include "convlab.cuh"
#include <cassert>
#include <csignal>
#include <cstdio>
#include <unistd.h>

__global__ void faulty(float* y) { KERNEL }

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return WORKSPACE; }

CONVLAB_ENTRY const char* conv2d(const ConvProblem*, const float*, const float*, const float*,
                                 float* y, void*, size_t, cudaStream_t stream) {
    faulty<<<1, THREADS, SHARED, stream>>>(y);
    AFTER
    return launch_error();
}
