template <typename T>
__global__ void scan(T* x) {
    __shared__ T s_x[256];
    s_x[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // barrier before
    for (int d = 1; d < 256; d *= 2) {
        T v = threadIdx.x >= d ? s_x[threadIdx.x - d] : 0;
        __syncthreads();  // barrier between
        s_x[threadIdx.x] += v;
        __syncthreads();  // barrier after
    }
    x[threadIdx.x] = s_x[threadIdx.x];
}
