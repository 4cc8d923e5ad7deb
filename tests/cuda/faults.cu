// Cases of the suite "faults" of ../test_sim.py: after "// case NAME:" its launch, then its kernels.

// case workspace: scratch_after<<<1, 1, 0, stream>>>((float*)workspace);
__global__ void scratch_after(float* scratch) {
    scratch[64] = 1;  // here: scratch_after
}

// case helper: helper<<<1, 1, 0, stream>>>(x, y);
template <typename T> __device__ T read(const T* p) {
    return *p;  // here: read
}
__global__ void helper(const float* x, float* y) { y[0] = read(x - 1); }

// case shared_after: shared_after<<<1, 9, 0, stream>>>(y);
__global__ void shared_after(float* y) {
    __shared__ float s_first[8], s_second[8];
    s_second[0] = 1;
    s_first[threadIdx.x] = y[threadIdx.x];  // here: shared_after
    y[threadIdx.x] = s_second[0] + s_first[0];
}

// case shared_before: shared_before<<<1, 1, 0, stream>>>(y);
__global__ void shared_before(float* y) {
    __shared__ float s_only[8];
    s_only[0] = 1;
    y[0] = s_only[int(threadIdx.x) - 1];  // here: shared_before
}

// case dynamic_after: dynamic_after<<<1, 33, 128, stream>>>(y);
__global__ void dynamic_after(float* y) {
    extern __shared__ float s_dynamic[];
    s_dynamic[threadIdx.x] = 1;  // here: dynamic_after
}

// case dynamic_none: dynamic_none<<<1, 33, 0, stream>>>(y);
__global__ void dynamic_none(float* y) {
    extern __shared__ float s_none[];
    s_none[threadIdx.x] = 1;  // here: dynamic_none
}

// case half_barrier: half_barrier<<<1, 64, 0, stream>>>(y);
__global__ void half_barrier(float* y) {
    int v = 0;
    if (threadIdx.x < 16) {
        v = __shfl_sync(0xffffffff, 1, 0);  // here: half_barrier
    }
    __syncthreads();
    y[threadIdx.x] = v;
}

// case mask_without_me: mask_without_me<<<1, 32, 0, stream>>>(y);
__global__ void mask_without_me(float* y) {
    y[threadIdx.x] = __shfl_sync(0xffff, 1, 0);  // here: mask_without_me
}

// case masks_overlap: masks_overlap<<<1, 32, 0, stream>>>(y);
__global__ void masks_overlap(float* y) {
    unsigned mask = threadIdx.x < 8 ? 0x0000ffff : 0xffffff00;
    __syncwarp(mask);  // here: masks_overlap
    __syncthreads();
    y[threadIdx.x] = 1;
}

// case different_operations: different_operations<<<1, 32, 0, stream>>>(y);
__global__ void different_operations(float* y) {
    if (threadIdx.x < 8) __syncwarp();
    else y[0] = __ballot_sync(0xffffffff, 1);  // here: different_operations
}
