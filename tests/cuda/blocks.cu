#include "convlab.cuh"

// case reverse: reverse<<<3, arg, 4 * arg, stream>>>(x, y);
// args: 1, 32, 33, 64, 100, 256, 500, 1024; x: 3 * arg
// expect: x.reshape(3, arg).flip(1)
__global__ void reverse(const float* x, float* y) {
    extern __shared__ float s_x[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s_x[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = s_x[blockDim.x - 1 - threadIdx.x];
}

// case index_3d: index_3d<<<dim3(2, 2, 2), dim3(5, 3, 4), 0, stream>>>(y);
// x: 480
// expect: [1000 * tz + 100 * ty + tx + 10000 * b
//     for b in range(8) for tz in range(4) for ty in range(3) for tx in range(5)]
__global__ void index_3d(float* y) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int size = blockDim.x * blockDim.y * blockDim.z;
    y[block * size + thread] = 1000 * threadIdx.z + 100 * threadIdx.y + threadIdx.x
                             + 10000 * (blockIdx.z * 4 + blockIdx.y * 2 + blockIdx.x);
}

// case block_2d: block_2d<<<1, dim3(8, 8), 0, stream>>>(y);
// note: a warp has 32 consecutive threads of a 2-D block
// expect: [0] * 32 + [32] * 32
__global__ void block_2d(float* y) {
    int thread = threadIdx.y * blockDim.x + threadIdx.x;
    y[thread] = __shfl_sync(0xffffffff, thread, 0);
}

// case votes: votes<<<n / 50, 50, 0, stream>>>(x, y);
// x: 400
// expect: [(b > 0).sum() * 4 + (b > -45).all() * 2 + (b > 47).any()
//     for b in x.reshape(-1, 50) for _ in range(50)]
__global__ void votes(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int count = __syncthreads_count(x[i] > 0);
    int all = __syncthreads_and(x[i] > -45), any = __syncthreads_or(x[i] > 47);
    y[i] = count * 4 + (all != 0) * 2 + (any != 0);
}

// case early_exit: early_exit<<<1, 128, 0, stream>>>(x, y, n);
// note: barriers and warp operations do not wait for threads that returned
// x: 70; expect: x.flip(0) + len(x)
__global__ void early_exit(const float* x, float* y, int n) {
    __shared__ float s_x[128];
    int i = threadIdx.x;
    s_x[i] = 0;
    __syncthreads();
    if (i >= n) return;
    s_x[i] = x[i];
    __syncthreads();
    y[i] = s_x[n - 1 - i] + __syncthreads_count(1);
}

// case many_barriers: many_barriers<<<n / 256, 256, 0, stream>>>(x, y);
// note: a tree; each step has half of the threads
// x: 1024; expect: x.reshape(-1, 256).sum(1)
__global__ void many_barriers(const float* x, float* y) {
    __shared__ float s_sum[256];
    s_sum[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) s_sum[threadIdx.x] += s_sum[threadIdx.x + half];
    }
    if (threadIdx.x == 0) y[blockIdx.x] = s_sum[0];
}

// case warp_and_block: warp_and_block<<<n / 512, 512, 0, stream>>>(x, y);
// x: 2048; expect: x.reshape(-1, 512).sum(1)
__device__ float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    return v;
}
__global__ void warp_and_block(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float s_part[32];
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    float v = warp_sum(x[blockIdx.x * blockDim.x + threadIdx.x]);
    if (lane == 0) s_part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = warp_sum(lane < blockDim.x / warpSize ? s_part[lane] : 0.0f);
        if (lane == 0) y[blockIdx.x] = v;
    }
}

// case big_shared:
//     int bytes = arg * 1024;
//     cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
//     big_shared<<<1, 64, bytes, stream>>>(x, y, bytes / 4);
// note: more than 48 KB, opted into
// args: 48, 64, 227; expect: x + 256 * arg - 1 - torch.arange(64)
__global__ void big_shared(const float* x, float* y, int words) {
    extern __shared__ float s_x[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) s_x[i] = i;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x] + s_x[words - 1 - threadIdx.x];
}

// case launches:
//     cudaMemsetAsync(y, 0, 4 * n, stream);
//     for (int i = 1; i <= 4; ++i) add<<<1, 64, 0, stream>>>(y, float(i), n);
//     add<<<1, 32>>>(y, 100, n);
// note: launches run one after the other, and each reads what the previous one wrote
// expect: [110] * 32 + [10] * 32
__global__ void add(float* y, float v, int n) {
    if (threadIdx.x < n) y[threadIdx.x] += v;
}

// case exchanged: exchanged<<<1, 32, 0, stream>>>(x, y);
// note: an exchange may replace an uninitialised value
// expect: x[:32]
__global__ void exchanged(const float* x, float* y) { atomicExch(y + threadIdx.x, x[threadIdx.x]); }
