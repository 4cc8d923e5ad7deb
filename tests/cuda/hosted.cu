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

// case told_by_macros: told_by_macros<<<1, 64, 0, stream>>>(x, y, n);
// note: helper headers of samples test which CUDA headers were included before them
// expect: 2 * x
#if defined(__CUDA_RUNTIME_H__) && defined(__DRIVER_TYPES_H__) && __CUDACC_VER_MAJOR__ >= 11
__global__ void told_by_macros(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
#endif

// case callbacks:
//     cudaStream_t s; int least = -1, greatest = 1, called = 0;
//     CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
//     if (least < greatest) return "the least priority is above the greatest";
//     CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, least));
//     twice<<<1, 64, 0, s>>>(x, y, n);
//     CHECK(cudaStreamAddCallback(s, after, &called, 0));
//     CHECK(cudaLaunchHostFunc(s, [](void* p) { *(int*)p += 10; }, &called));
//     CHECK(cudaStreamSynchronize(s)); CHECK(cudaStreamDestroy(s));
//     if (called != 11) return "not called";
// expect: 2 * x
void CUDART_CB after(cudaStream_t, cudaError_t status, void* p) {
    *(int*)p += status == cudaSuccess ? 1 : 100;
}

// case pitched:
//     float *rows = nullptr, *pinned, *same; size_t pitch = 0;
//     CHECK(cudaMallocPitch(&rows, &pitch, 16 * 4, n / 16));
//     if (pitch % 64 || pitch < 64) return "an odd pitch";
//     CHECK(cudaMemset2D(rows, pitch, 0, 64, n / 16));
//     CHECK(cudaMemcpy2D(rows, pitch, x, 64, 32, n / 16, cudaMemcpyDeviceToDevice));
//     CHECK(cudaMemcpy2D(y, 64, rows, pitch, 64, n / 16, cudaMemcpyDeviceToDevice));
//     CHECK(cudaHostAlloc(&pinned, 4 * n, cudaHostAllocMapped | cudaHostAllocPortable));
//     CHECK(cudaHostGetDevicePointer(&same, pinned, 0));
//     for (int i = 0; i < n; ++i) pinned[i] = i;
//     add_to<<<1, 64, 0, stream>>>(same, y);
//     CHECK(cudaDeviceSynchronize()); CHECK(cudaFreeHost(pinned)); CHECK(cudaFree(rows));
// expect: [(v if i % 16 < 8 else 0) + i for i, v in enumerate(x.tolist())]
__global__ void add_to(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }

// case what_it_is:
//     int mode = -1, clock = 0, integrated = -1; cudaDeviceProp prop; cudaFuncAttributes attr;
//     CHECK(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, 0));
//     CHECK(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0));
//     CHECK(cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, 0));
//     CHECK(cudaGetDeviceProperties(&prop, 0)); CHECK(cudaFuncGetAttributes(&attr, twice));
//     if (mode == cudaComputeModeProhibited || clock < 1000000 || integrated ||
//         !prop.canMapHostMemory || attr.binaryVersion < 70) return "an odd device";
//     if (cudaSetDevice(0) != cudaSuccess || cudaErrorAssert != 710) return "an odd runtime";
//     twice<<<1, 64, 0, stream>>>(x, y, n);
// expect: 2 * x
