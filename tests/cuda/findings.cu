// Errors of several kinds, and correct code that resembles them; see test_microscope.py.
__global__ void many(const float* x, float* y) {
    __shared__ float s_x[32];
    int i = threadIdx.x;
    if (i < 8) y[i] = x[i + 100];
    else if (i < 16) y[i - 20] = 1;
    else if (i < 24) y[i] = s_x[i + 16];
    else if (i == 31) y[i] = *(const float*)nullptr;
}
__global__ void lanes(float* y, int careful) {
    __shared__ float s_y[64];
    s_y[threadIdx.x] = threadIdx.x;
    if (careful) __syncwarp();
    y[threadIdx.x] = s_y[threadIdx.x ^ 1];
}
__global__ void same(int* y, int v) {
    y[0] = v ? 7 : blockIdx.x;
}
__global__ void last_block(const float* x, float* part, unsigned* done, float* y) {
    __shared__ bool s_last;
    if (threadIdx.x == 0) {
        part[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        s_last = atomicAdd(done, 1u) == gridDim.x - 1;
        if (s_last) {
            float sum = 0;
            for (int i = 0; i < gridDim.x; ++i) sum += part[i];
            *y = sum;
        }
    }
    __syncthreads();
    if (s_last && threadIdx.x == 1) y[1] = part[3];
}
__global__ void leaves(float* y, int n) {
    if (threadIdx.x >= n) return;
    __syncthreads();  // of those that stay
    y[threadIdx.x] = 1;
}
