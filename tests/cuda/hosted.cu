#include "convlab.cuh"
#include <cuda_runtime_api.h>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t err = (call);                                                       \
        if (err != cudaSuccess) {                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(err)); \
            return cudaGetErrorName(err);                                               \
        }                                                                               \
    } while (0)

__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}

// case events:
//     cudaEvent_t start, stop;
//     CHECK(cudaEventCreate(&start)); CHECK(cudaEventCreateWithFlags(&stop, cudaEventDefault));
//     CHECK(cudaEventRecord(start, stream));
//     twice<<<1, 64, 0, stream>>>(x, y, n);
//     CHECK(cudaEventRecord(stop, stream)); CHECK(cudaEventSynchronize(stop));
//     float ms = -1; CHECK(cudaEventElapsedTime(&ms, start, stop));
//     CHECK(cudaEventQuery(stop)); cudaEventDestroy(start); cudaEventDestroy(stop);
//     if (!(ms > 0 && ms < 60000)) return "no time passed";
// expect: 2 * x

// case streams:
//     cudaStream_t s; cudaEvent_t e;
//     CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); CHECK(cudaEventCreate(&e));
//     cudaEventRecord(e, stream); CHECK(cudaStreamWaitEvent(s, e, 0));
//     twice<<<1, 64, 0, s>>>(x, y, n);
//     CHECK(cudaStreamSynchronize(s)); CHECK(cudaStreamQuery(s)); CHECK(cudaStreamDestroy(s));
// expect: 2 * x

// case properties:
//     cudaDeviceProp prop; int device = -1;
//     CHECK(cudaGetDevice(&device)); CHECK(cudaGetDeviceProperties(&prop, device));
//     int sms = 0; CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
//     if (prop.warpSize != 32 || prop.multiProcessorCount != sms || prop.major < 7 ||
//         prop.maxThreadsPerBlock != 1024 || prop.sharedMemPerBlock != 48 << 10 ||
//         prop.maxGridSize[1] != 65535 || prop.totalGlobalMem >> 30 == 0 || !prop.name[0])
//         return "an odd device";
//     twice<<<min(prop.multiProcessorCount, 2), 32, 0, stream>>>(x, y, n);
// expect: 2 * x

// case occupancy:
//     int blocks = 0, grid = 0, size = 0;
//     CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, twice, 1024, 0));
//     if (blocks != 2) return "not two blocks";
//     CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, twice, 32, 40 << 10));
//     if (blocks != 5) return "not five blocks";
//     CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &size, twice, 0, 0));
//     if (grid < 1 || size % 32 || size > 1024) return "an odd block";
//     twice<<<(n + size - 1) / size, size, 0, stream>>>(x, y, n);
// expect: 2 * x

// case memory:
//     float *a, *b, *c; size_t free_bytes = 0, total = 0;
//     CHECK(cudaMalloc(&a, n * sizeof(float))); CHECK(cudaMallocManaged(&b, 4 * n));
//     CHECK(cudaMallocHost((void**)&c, 4 * n));
//     CHECK(cudaMemcpy(c, x, 4 * n, cudaMemcpyDeviceToHost));
//     for (int i = 0; i < n; ++i) b[i] = c[i] + 1;
//     twice<<<1, 64, 0, stream>>>(b, a, n);
//     CHECK(cudaMemcpy2D(y, 64, a, 64, 64, n / 16, cudaMemcpyDeviceToDevice));
//     CHECK(cudaMemGetInfo(&free_bytes, &total)); CHECK(cudaStreamSynchronize(stream));
//     CHECK(cudaFree(a)); CHECK(cudaFree(b)); CHECK(cudaFreeHost(c)); CHECK(cudaFree(nullptr));
//     if (free_bytes > total) return "more memory free than there is";
// expect: 2 * x + 2

// case attributes:
//     cudaFuncAttributes attr; CHECK(cudaFuncGetAttributes(&attr, twice));
//     if (attr.maxThreadsPerBlock < 64) return "too few threads";
//     CHECK(cudaFuncSetCacheConfig(twice, cudaFuncCachePreferShared));
//     twice<<<1, 64, 0, stream>>>(x, y, n);
//     CHECK(cudaGetLastError()); CHECK(cudaDeviceSynchronize());
// expect: 2 * x
