#include <cuda_pipeline.h>
__global__ void product(const float* a, const float* b, float* c, int size) {
    __shared__ float s_a[2][16][16], s_b[2][16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    auto load = [&](int stage, int k0) {
        __pipeline_memcpy_async(&s_a[stage][threadIdx.y][threadIdx.x],
                                &a[row * size + k0 + threadIdx.x], 4);
        __pipeline_memcpy_async(&s_b[stage][threadIdx.y][threadIdx.x],
                                &b[(k0 + threadIdx.y) * size + column], 4);
        __pipeline_commit();
    };
    float sum = 0;
    load(0, 0);
    for (int k0 = 0, stage = 0; k0 < size; k0 += 16, stage ^= 1) {
        if (k0 + 16 < size) load(stage ^ 1, k0 + 16);
        else __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();  // barrier before
        for (int k = 0; k < 16; ++k)
            sum += s_a[stage][threadIdx.y][k] * s_b[stage][k][threadIdx.x];
        __syncthreads();  // barrier after
    }
    c[row * size + column] = sum;
}
