__global__ void histogram(const unsigned char* data, int n, unsigned* bins) {
    __shared__ unsigned s_bins[64];
    if (threadIdx.x < 64)
        s_bins[threadIdx.x] = 0;
    __syncthreads();  // barrier before
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&s_bins[data[i] & 63], 1u);
    __syncthreads();  // barrier after
    if (threadIdx.x < 64)
        atomicAdd(&bins[threadIdx.x], s_bins[threadIdx.x]);
}
