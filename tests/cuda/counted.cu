// Cases of the suite "counted" of ../test_sim.py: after "// case NAME:" its launch, then its kernels.

// case float4: copy_float4<<<2, 128, 0, stream>>>((const float4*)x, (float4*)y);
__global__ void copy_float4(const float4* x, float4* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
}

// case float3: copy_float3<<<1, 32, 0, stream>>>((const float3*)x, y);
__global__ void copy_float3(const float3* x, float* y) {
    float3 v = x[threadIdx.x];
    y[threadIdx.x] = v.x + v.y + v.z;
}

// case bytes: copy_bytes<<<1, 64, 0, stream>>>((const unsigned char*)x, (unsigned char*)y);
__global__ void copy_bytes(const unsigned char* x, unsigned char* y) {
    y[threadIdx.x] = x[threadIdx.x];
}

// case half_warp: half_warp<<<1, 48, 0, stream>>>(x, y);
__global__ void half_warp(const float* x, float* y) {
    int i = threadIdx.x;
    float v = 0;
    if (i % 2 == 0) v = x[i];
    y[i] = v;
}

// case two_ways: two_ways<<<1, 32, 0, stream>>>(x, y);
__global__ void two_ways(const float* x, float* y) {
    int i = threadIdx.x;
    if (i % 2 == 0) y[i] = x[i] + 1;
    else y[i] = x[i + 64] * 2;
}

// case ragged_loop: ragged_loop<<<1, 32, 0, stream>>>(x, y);
__global__ void ragged_loop(const float* x, float* y) {
    float sum = 0;
    for (int i = 0; i <= threadIdx.x; ++i) sum += x[i * 32 + threadIdx.x];
    y[threadIdx.x] = sum;
}

// case long_loop: long_loop<<<1, 64, 0, stream>>>(x, y);
__global__ void long_loop(const float* x, float* y) {
    float sum = 0;
    for (int i = 0; i < 5000; ++i) sum += x[(i % 8) * 32 + threadIdx.x % 32];
    y[threadIdx.x] = sum;
}

// case barriers: barriers<<<dim3(5, 2), 96, 0, stream>>>(); barriers<<<1, 32, 0, stream>>>();
__global__ void barriers() {
    for (int i = 0; i < 7; ++i) __syncthreads();
    if (threadIdx.x > 40) return;
    __syncthreads_or(1);
}

// case atomics: cudaMemsetAsync(y, 0, 16, stream); add_one<<<3, 64, 0, stream>>>(y);
__global__ void add_one(float* y) { atomicAdd(y + threadIdx.x % 4, 1.0f); }

// case nothing: ;
