#include "convlab.cuh"

// case float4: copy_float4<<<2, 128, 0, stream>>>((const float4*)x, (float4*)y);
// x: 1024; counts: copied(8, 128, 8, 128)
__global__ void copy_float4(const float4* x, float4* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
}

// case float3: copy_float3<<<1, 32, 0, stream>>>((const float3*)x, y);
// note: there is no 12-byte access, so there are three of 4 bytes
// x: 128; counts: copied(3, 3 * 12, 1, 4)
__global__ void copy_float3(const float3* x, float* y) {
    float3 v = x[threadIdx.x];
    y[threadIdx.x] = v.x + v.y + v.z;
}

// case bytes: copy_bytes<<<1, 64, 0, stream>>>((const unsigned char*)x, (unsigned char*)y);
// counts: copied(2, 2, 2, 2)
__global__ void copy_bytes(const unsigned char* x, unsigned char* y) {
    y[threadIdx.x] = x[threadIdx.x];
}

// case half_warp: half_warp<<<1, 48, 0, stream>>>(x, y);
// note: one warp has 16 threads; odd lanes do not load
// counts: copied(2, 4 + 2, 2, 4 + 2)
__global__ void half_warp(const float* x, float* y) {
    int i = threadIdx.x;
    float v = 0;
    if (i % 2 == 0) v = x[i];
    y[i] = v;
}

// case two_ways: two_ways<<<1, 32, 0, stream>>>(x, y);
// note: two instructions, each for half of the warp
// x: 96; counts: copied(2, 4 + 4, 2, 4 + 4)
__global__ void two_ways(const float* x, float* y) {
    int i = threadIdx.x;
    if (i % 2 == 0) y[i] = x[i] + 1;
    else y[i] = x[i + 64] * 2;
}

// case ragged_loop: ragged_loop<<<1, 32, 0, stream>>>(x, y);
// note: lane l loads l + 1 times, from the top of column l. So lanes k to 31 make the k-th load
// x: 1024; counts: copied(32, sum(4 - k // 8 for k in range(32)), 1, 4)
__global__ void ragged_loop(const float* x, float* y) {
    float sum = 0;
    for (int i = 0; i <= threadIdx.x; ++i) sum += x[i * 32 + threadIdx.x];
    y[threadIdx.x] = sum;
}

// case long_loop: long_loop<<<1, 64, 0, stream>>>(x, y);
// note: more accesses than fit in a lane's log
// x: 256; counts: copied(2 * 5000, 2 * 5000 * 4, 2, 2 * 4)
__global__ void long_loop(const float* x, float* y) {
    float sum = 0;
    for (int i = 0; i < 5000; ++i) sum += x[(i % 8) * 32 + threadIdx.x % 32];
    y[threadIdx.x] = sum;
}

// case barriers: barriers<<<dim3(5, 2), 96, 0, stream>>>(); barriers<<<1, 32, 0, stream>>>();
// counts: dict(launches=2, barriers=11 * 8)
__global__ void barriers() {
    for (int i = 0; i < 7; ++i) __syncthreads();
    if (threadIdx.x > 40) return;
    __syncthreads_or(1);
}

// case atomics: cudaMemsetAsync(y, 0, 16, stream); add_one<<<3, 64, 0, stream>>>(y);
// counts: copied(0, 0, 6, 6, atomics=3 * 64)
__global__ void add_one(float* y) { atomicAdd(y + threadIdx.x % 4, 1.0f); }

// case nothing: ;
// counts: dict(launches=0)

#define COPY(name, index)                                                      \
    __global__ void name(const float* x, float* y) {                           \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                         \
        y[i] = x[index];                                                       \
    }

// 1024 threads are 32 warps; 32 floats are 4 sectors of 32 bytes
// case coalesced: copy<<<4, 256, 0, stream>>>(x, y);
// x: 40000; counts: copied(32, 32 * 4)
COPY(copy, i)

// case small_blocks: copy<<<64, 16, 0, stream>>>(x, y);
// x: 40000; counts: copied(64, 64 * 2, 64, 64 * 2)

// case stride_2: copy_stride_2<<<4, 256, 0, stream>>>(x, y);
// x: 40000; counts: copied(32, 32 * 8)
COPY(copy_stride_2, 2 * i)

// case stride_32: copy_stride_32<<<4, 256, 0, stream>>>(x, y);
// x: 40000; counts: copied(32, 32 * 32)
COPY(copy_stride_32, 32 * i)

// case misaligned: copy_misaligned<<<4, 256, 0, stream>>>(x, y);
// x: 40000; counts: copied(32, 32 * 5)
COPY(copy_misaligned, i + 1)

// case broadcast: copy_broadcast<<<4, 256, 0, stream>>>(x, y);
// x: 40000; counts: copied(32, 32)
COPY(copy_broadcast, 1000)

// case reversed: copy_reversed<<<4, 256, 0, stream>>>(x, y);
// x: 40000; counts: copied(32, 32 * 4)
COPY(copy_reversed, 1023 - i)

// One warp stores to shared memory at t * to, and loads at t % mod * from + at.
__device__ inline float some(float) { return threadIdx.x; }
__device__ inline float2 some(float2) { return make_float2(1, 2); }
__device__ inline float4 some(float4) { return make_float4(1, 2, 3, threadIdx.x); }
template <typename T, int to, int from = to, int mod = 32, int at = 0>
__global__ void sharing(T* y) {
    __shared__ T s_x[2048 / (sizeof(T) / 4)];
    s_x[to * threadIdx.x] = some(T());
    __syncthreads();
    y[threadIdx.x] = s_x[threadIdx.x % mod * from + at];
}

// case shared_1: sharing<float, 1><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(1 + 1)

// case shared_2: sharing<float, 2><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(2 + 2)

// case shared_3: sharing<float, 3><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(1 + 1)

// case shared_4: sharing<float, 4><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(4 + 4)

// case shared_32: sharing<float, 32><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(32 + 32)

// case shared_broadcast: sharing<float, 1, 0, 1, 7><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(1 + 1)

// case shared_two_words: sharing<float, 2, 32, 2><<<1, 32, 0, stream>>>(y);
// x: 256; counts: on_shared(2 + 2)

// case shared_float2: sharing<float2, 1><<<1, 32, 0, stream>>>((float2*)y);
// x: 256; counts: on_shared(2 + 2, sectors=8)

// case shared_float4: sharing<float4, 1><<<1, 32, 0, stream>>>((float4*)y);
// x: 256; counts: on_shared(4 + 4, sectors=16)

// case shared_float4_2: sharing<float4, 2><<<1, 32, 0, stream>>>((float4*)y);
// x: 256; counts: on_shared(8 + 8, sectors=16)

template <int pitch>
__global__ void transpose(const float* x, float* y) {
    __shared__ float s_tile[32][pitch];
    int row = threadIdx.y, column = threadIdx.x;
    s_tile[row][column] = x[row * 32 + column];
    __syncthreads();
    y[row * 32 + column] = s_tile[column][row];
}

// case transpose_naive: transpose<32><<<1, dim3(32, 32), 0, stream>>>(x, y);
// x: 1024
// counts: copied(32, 128, shared_requests=64, shared_wavefronts=32 + 32 * 32, barriers=1)

// case transpose_padded: transpose<33><<<1, dim3(32, 32), 0, stream>>>(x, y);
// x: 1024; counts: copied(32, 128, shared_requests=64, shared_wavefronts=32 + 32, barriers=1)
