#include "convlab.cuh"
#include <cassert>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <unistd.h>
#include <vector>
__device__ __noinline__ float deep(int n) {
    volatile float a[64];
    a[n % 64] = n;
    return n < 0 ? a[0] : deep(n + 1) + a[(n + 1) % 64];
}
__device__ __noinline__ float large(int i) { volatile float a[40000]; a[7 * i] = i; return a[i]; }
__device__ __noinline__ float unfinished(int i) { if (i > 99) return 1; }
__global__ void body(ConvProblem conv, const float* x, const float* w, const float* bias,
                     float* y) {
    const int i = threadIdx.x;
    DEVICE
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    int grid = 1, block = 32, shared = 0;
    HOST
    body<<<grid, block, shared, stream>>>(*problem, x, w, bias, y);
    return nullptr;
}
