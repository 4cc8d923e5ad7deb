#include "convlab.cuh"

// case workspace: scratch_after<<<1, 1, 0, stream>>>((float*)workspace);
// fault: store of 4 bytes at workspace\[64\]; workspace has 64 elements
__global__ void scratch_after(float* scratch) {
    scratch[64] = 1;  // here
}

// case helper: helper<<<1, 1, 0, stream>>>(x, y);
// fault: load of 4 bytes at x\[.*\] \(element -1\); x has 
template <typename T> __device__ T read(const T* p) {
    return *p;  // here
}
__global__ void helper(const float* x, float* y) { y[0] = read(x - 1); }

// case shared_after: shared_after<<<1, 9, 0, stream>>>(y);
// fault: store of 4 bytes at s_first\[8\]; s_first has 8 elements
__global__ void shared_after(float* y) {
    __shared__ float s_first[8], s_second[8];
    s_second[0] = 1;
    s_first[threadIdx.x] = y[threadIdx.x];  // here
    y[threadIdx.x] = s_second[0] + s_first[0];
}

// case shared_before: shared_before<<<1, 1, 0, stream>>>(y);
// fault: load of 4 bytes at s_only\[-1\]; s_only has 8 elements
__global__ void shared_before(float* y) {
    __shared__ float s_only[8];
    s_only[0] = 1;
    y[0] = s_only[int(threadIdx.x) - 1];  // here
}

// case local: local<<<1, 8, 0, stream>>>(x, y);
// fault: index out of bounds: index 5 of an array of type 'float \[5\]'
__global__ void local(const float* x, float* y) {
    float acc[2][5] = {};
    for (int i = 0; i < int(blockDim.x); ++i)
        acc[1][i] += x[i];  // here
    y[threadIdx.x] = acc[1][3];
}

// case table: table<<<1, 8, 0, stream>>>(y);
// fault: index out of bounds: index -1 of an array of type 'float \[3\]'
__constant__ const float taps[3] = {1, 2, 1};
__global__ void table(float* y) {
    y[threadIdx.x] = taps[int(threadIdx.x) - 1];  // here
}

// case device_after: device_after<<<1, 9, 0, stream>>>(y);
// fault: store of 4 bytes at d_bins\[2\]\[0\] \(element 8\); d_bins has 8 elements
__device__ float d_bins[2][4], d_next[64];
__global__ void device_after(float* y) {
    float* bins = d_bins[0];
    bins[threadIdx.x] = d_next[0];  // here
    y[threadIdx.x] = d_bins[0][threadIdx.x];
}

// case device_race: device_race<<<2, 1, 0, stream>>>(y);
// fault: race: (load of|store to) d_total and a (load|store) by another thread of another block
__device__ int d_total = 3;
__global__ void device_race(float* y) {
    d_total += 1;  // here
    y[blockIdx.x] = d_total;
}

// case constant_after: constant_after<<<1, 32, 0, stream>>>(y);
// fault: load of 4 bytes at c_taps\[9\]; c_taps has 9 elements
__constant__ float c_taps[9];
__global__ void constant_after(float* y) {
    y[threadIdx.x] = c_taps[threadIdx.x];  // here
}

// case constant_stored: constant_stored<<<1, 1, 0, stream>>>(y);
// fault: store to an input: store to c_taps\[2\]: c_taps is __constant__
__global__ void constant_stored(float* y) {
    c_taps[2] = y[0];  // here
}

// case dynamic_after: dynamic_after<<<1, 33, 128, stream>>>(y);
// fault: store of 4 bytes at byte 128 of extern __shared__, which has 128 bytes
__global__ void dynamic_after(float* y) {
    extern __shared__ float s_dynamic[];
    s_dynamic[threadIdx.x] = 1;  // here
}

// case dynamic_none: dynamic_none<<<1, 33, 0, stream>>>(y);
// fault: shared out of bounds: store, but the block has no shared array: the launch requests 0 bytes
__global__ void dynamic_none(float* y) {
    extern __shared__ float s_none[];
    s_none[threadIdx.x] = 1;  // here
}

// case half_barrier: half_barrier<<<1, 64, 0, stream>>>(y);
// note: lanes 0 to 15 wait for the other lanes, which wait for them
// fault: 48 threads wait at __syncthreads and 16 in warp operations; one with mask 0xffffffff waits
//     for lanes 0xffff0000, which never arrive
__global__ void half_barrier(float* y) {
    int v = 0;
    if (threadIdx.x < 16) {
        v = __shfl_sync(0xffffffff, 1, 0);  // here
    }
    __syncthreads();
    y[threadIdx.x] = v;
}

// case mask_without_me: mask_without_me<<<1, 32, 0, stream>>>(y);
// fault: lane 16 calls a warp operation with mask 0x0000ffff
__global__ void mask_without_me(float* y) {
    y[threadIdx.x] = __shfl_sync(0xffff, 1, 0);  // here
}

// case masks_overlap: masks_overlap<<<1, 32, 0, stream>>>(y);
// fault: 24 threads .* one with mask 0x0000ffff waits for lanes 0x0000ff00
__global__ void masks_overlap(float* y) {
    unsigned mask = threadIdx.x < 8 ? 0x0000ffff : 0xffffff00;
    __syncwarp(mask);  // here
    __syncthreads();
    y[threadIdx.x] = 1;
}

// case different_operations: different_operations<<<1, 32, 0, stream>>>(y);
// fault: a different warp operation than the lanes of mask
__global__ void different_operations(float* y) {
    if (threadIdx.x < 8) __syncwarp();
    else y[0] = __ballot_sync(0xffffffff, 1);  // here
}

// case static_too_big: static_too_big<<<1, 32, 0, stream>>>(y);
// fault: static __shared__ arrays take 49156 bytes, more than the limit of 49152 bytes
__global__ void static_too_big(float* y) {
    __shared__ float s_big[12 * 1024 + 1];
    s_big[0] = 1;
}

// case both_too_big: both_too_big<<<1, 32, 40 * 1024, stream>>>(y);
// fault: 12288 bytes of static and 40960 bytes of dynamic shared memory are more than the limit
__global__ void both_too_big(float* y) {
    __shared__ float s_part[3 * 1024];
    s_part[0] = 1;
}

// case stack: stack<<<1, 32, 0, stream>>>(y, n);
// fault: stack overflow
__global__ void stack(float* y, int n) {
    volatile float r_big[50000];
    r_big[n] = 1;
    y[0] = r_big[n];
}

#define FIVE(kernel) kernel<<<dim3(1, 2), 40, 0, stream>>>(x, w, y, n)
#define IN_THREAD_5(name, ...)                                                 \
    __global__ void name(const float* x, const float* w, float* y, int n) {    \
        int i = threadIdx.x;                                                   \
        if (i == 5) { __VA_ARGS__; }                                           \
    }

// case x_before: FIVE(at_x_before);
// fault: load of 4 bytes at x\[n=0, .*, h=-1, .*\] \(element -1\); x has 64 elements
IN_THREAD_5(at_x_before, y[i] = x[i - 6])  // here

// case x_after: FIVE(at_x_after);
// fault: load of 4 bytes at x\[.*\] \(element 64\); x has 64 elements
IN_THREAD_5(at_x_after, y[i] = x[n + i - 5])  // here

// case x_float4: FIVE(at_x_float4);
// fault: at x\[.*\] \(element 6[45]\); x has 64 elements
IN_THREAD_5(at_x_float4, y[i] = ((const float4*)x)[n / 4].y)  // here

// case w_before: FIVE(at_w_before);
// fault: load of 4 bytes at w\[k=-1, .*\] \(element -1\); w has 1 element
IN_THREAD_5(at_w_before, y[i] = w[-1])  // here

// case w_after: FIVE(at_w_after);
// fault: load of 4 bytes at w\[k=1, .*\] \(element 1\); w has 1 element
IN_THREAD_5(at_w_after, y[i] = __ldg(w + 1))  // here

// case y_before: FIVE(at_y_before);
// fault: store of 4 bytes at y\[n=0, .*\] \(element -1\); y has 64 elements
IN_THREAD_5(at_y_before, y[-1] = x[i])  // here

// case y_after: FIVE(at_y_after);
// fault: store of 4 bytes at y\[.*\] \(element 64\); y has 64 elements
IN_THREAD_5(at_y_after, y[n] = x[i])  // here

// case y_atomic: FIVE(at_y_atomic);
// fault: store of 4 bytes at y\[.*\] \(element 64\); y has 64 elements
IN_THREAD_5(at_y_atomic, atomicAdd(y + n, x[i]))  // here

// case y_far: FIVE(at_y_far);
// fault: global out of bounds: store far outside all buffers
IN_THREAD_5(at_y_far, y[1000000000ll * i] = x[i])  // here

// case x_far: FIVE(at_x_far);
// fault: load of 4 bytes at x\[.*\] \(element 100000000\); x has 64 elements
IN_THREAD_5(at_x_far, y[i] = x[100000000ll])  // here

// case x_store: FIVE(at_x_store);
// fault: store to x\[n=0, .*, w=3\]: x is an input, which a kernel may not write
IN_THREAD_5(at_x_store, const_cast<float*>(x)[3] = 1)  // here

// case null: FIVE(at_null);
// fault: null pointer: load of 4 bytes through a null pointer; null arguments of conv2d: bias \(the problem has none\)
IN_THREAD_5(at_null, y[i] = *(const float*)nullptr)  // here

// case misaligned: FIVE(at_misaligned);
// fault: misaligned access: store of 16 bytes at y\[.*\], which is not aligned to 16 bytes
IN_THREAD_5(at_misaligned, *(float4*)(y + 1) = make_float4(1, 2, 3, x[i]))  // here

// case wild: FIVE(at_wild);
// fault: illegal address|misaligned
IN_THREAD_5(at_wild, y[i] = *(const float*)(0x123456789000 + i))  // here

// case not_canonical: FIVE(at_not_canonical);
// fault: illegal address
IN_THREAD_5(at_not_canonical, y[i] = *(const float*)(0x7123456789abc000 + 4 * i))  // here

// case division: FIVE(at_division);
// fault: integer division by zero
IN_THREAD_5(at_division, y[i] = 7 / (n - 64))  // here

// case trap: FIVE(at_trap);
// fault: __trap\(\) was called
IN_THREAD_5(at_trap, __trap())  // here

// case assertion: FIVE(at_assertion);
// fault: assert\(n == 3\) failed
IN_THREAD_5(at_assertion, assert(n == 3))  // here

// case from_a_kernel: parent<<<1, 32, 0, stream>>>(y);
// fault: launch in a kernel: a thread of a kernel launches child
__global__ void child(float* y) { y[threadIdx.x] = 1; }
__global__ void parent(float* y) {
    if (threadIdx.x == 5)
        child<<<1, 32>>>(y);  // here
}

// case read_only: reads_what_it_writes<<<1, 64, 0, stream>>>(x, y);
// fault: stale read: __ldg of y
__global__ void reads_what_it_writes(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (__ldg(y + (threadIdx.x ^ 1)) > 1e9f) y[threadIdx.x] = 0;  // here
}

// case freed:
//     float* own; cudaMalloc(&own, 4 * n); cudaMemset(own, 0, 4 * n);
//     reads_freed<<<1, 64, 0, stream>>>(own, y); cudaFree(own);
//     reads_freed<<<1, 64, 0, stream>>>(own, y);
// fault: global out of bounds: load of 4 bytes at freed memory
__global__ void reads_freed(const float* own, float* y) {
    y[threadIdx.x] = own[threadIdx.x];  // here
}
