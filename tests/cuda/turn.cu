__global__ void turn(const float* x, float* y, float half) {
    extern __shared__ float s_x[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s_x[threadIdx.x] = x[i];
    float kept[4] = {half, half / 2, half / 2, -half};   // survives switches
    __syncthreads();
    float v = __shfl_xor_sync(0xffffffff, s_x[95 - threadIdx.x], 1);
    __syncthreads();
    y[i] = v + kept[0] + kept[1] + kept[2] + kept[3];
    if (half < 0) y[-1] = 0;
}
