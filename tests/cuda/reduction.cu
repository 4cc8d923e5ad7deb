__global__ void reduction(const float* x, float* y, int n) {
    __shared__ float s_part[8];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0)
        s_part[threadIdx.x / 32] = sum;
    __syncthreads();  // barrier
    if (threadIdx.x == 0) {
        for (int i = 1; i < 8; ++i)
            sum += s_part[i];
        atomicAdd(y, sum);
    }
}
