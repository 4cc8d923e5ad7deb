// Operations that a warpgroup must execute together, and mbarriers whose phase never completes.
#include "convlab.cuh"
#include "tensor.cuh"

// d (64, 128) = a (64, 8) * b (128, 8)^T. The operands are zeros: only who executes what matters.
struct Operands {
    float a[64 * 8], b[128 * 8];
};
__device__ void clear(Operands& s) {
    for (int i = threadIdx.x; i < 64 * 8; i += blockDim.x) s.a[i] = 0;
    for (int i = threadIdx.x; i < 128 * 8; i += blockDim.x) s.b[i] = 0;
    fence_proxy_async();
    __syncthreads();
}
__device__ void multiply(Operands& s, float (&d)[64], int b_moved = 0) {
    uint64_t a = wgmma_descriptor(s.a, 64 * 16, 128);
    uint64_t b = wgmma_moved(wgmma_descriptor(s.b, 128 * 16, 128), b_moved);
    wgmma_m64n128k8_tf32(d, a, b, 0);  // multiply
}
// which: 0 all warps; 1 not the last one; 2 the last one with another descriptor; 3 it commits twice; 4 the
// sums are read before the wait; 5 a thread writes past the end of s before
__global__ void some(float* y, int which) {
    __shared__ alignas(128) Operands s;
    clear(s);
    float d[64] = {};
    bool last = threadIdx.x / 32 == 3;
    if (which == 5 && threadIdx.x == 70) s.b[128 * 8 + 4] = 0;
    wgmma_fence();
    if (which != 1 || !last) multiply(s, d, which == 2 && last ? 8 : 0);
    wgmma_commit();
    if (which == 3 && last) wgmma_commit();
    float early = d[0];
    wgmma_wait<0>();
    y[threadIdx.x] = which == 4 ? early : d[0];
}

// case together: some<<<1, 128, 0, stream>>>(y, 0);
// k: 128; x: 1; expect: torch.zeros(128)
// case without_a_warp: some<<<1, 128, 0, stream>>>(y, 1);
// k: 128; fault: wgmma: .*(warps \d and \d of a warpgroup execute different operations|not by warp 3)
// case another_descriptor: some<<<1, 128, 0, stream>>>(y, 2);
// k: 128; fault: warps \d and \d of a warpgroup pass different descriptors
// case one_more_commit: some<<<1, 128, 0, stream>>>(y, 3);
// k: 128; fault: wgmma_commit by warp 3 of a warpgroup, but not by warp 0
// case read_before_the_wait: some<<<1, 128, 0, stream>>>(y, 4);
// k: 128; fault: accumulators of this wgmma were read before wgmma_wait
// case after_an_error: some<<<1, 128, 0, stream>>>(y, 5);
// k: 128; note: the other lanes of its warp cannot multiply, which is no second error
// only: shared out of bounds; fault: s[._a-z]*\[
// case half_a_warpgroup: some<<<1, 64, 0, stream>>>(y, 0);
// fault: by a warpgroup of 2 warps: it needs four

// One thread initialises the mbarrier; `arriving` threads arrive; the others wait for `parity`.
__global__ void meet(const float* x, float* y, int count, int arriving, int bytes, int parity) {
    __shared__ alignas(16) float s_data[32];
    __shared__ uint64_t s_full;
    if (threadIdx.x == 0) {
        mbarrier_init(&s_full, count);
        mbarrier_fence_init();
    }
    __syncthreads();
    if (int(threadIdx.x) < arriving) {
        if (threadIdx.x == 0 && bytes) {
            mbarrier_arrive_expect(&s_full, bytes);
            bulk_load(s_data, x, 64, &s_full);
        } else {
            mbarrier_arrive(&s_full);
        }
    }
    mbarrier_wait(&s_full, parity);  // here
    y[threadIdx.x] = bytes ? s_data[threadIdx.x % 16] : 1;
}

// case met: meet<<<1, 32, 0, stream>>>(x, y, 4, 4, 64, 0);
// k: 32; expect: torch.cat([x[:16], x[:16]])
// case count: meet<<<1, 32, 0, stream>>>(x, y, 4, 3, 0, 0);
// fault: waits for phase 0 \(parity 0\) of the mbarrier at s_full: 3 of 4 arrivals came; the count
// case bytes: meet<<<1, 32, 0, stream>>>(x, y, 4, 4, 128, 0);
// fault: 4 of 4 arrivals came, 64 of 128 expected bytes; the expected bytes are too many
// case too_few_bytes: meet<<<1, 32, 0, stream>>>(x, y, 4, 4, 32, 0);
// fault: 4 of 4 arrivals came, 64 of 32 expected bytes; the expected bytes are too few
// case parity: meet<<<1, 32, 0, stream>>>(x, y, 4, 4, 0, 1);
// fault: waits for phase 1 \(parity 1\).* 0 of 4 arrivals came; nothing .* since phase 0 completed

// The block ends while a bulk copy reads its shared memory, unless it waits.
__global__ void copied_out(float* y, bool commits, bool waits) {
    __shared__ alignas(16) float s_out[32];
    s_out[threadIdx.x] = 1;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x) return;
    bulk_store(y, s_out, 128);
    if (commits) bulk_commit();
    if (waits) bulk_wait_read<0>();
}
// case copied_out: copied_out<<<1, 32, 0, stream>>>(y, true, true);
// k: 32; expect: torch.ones(32)
// case copied_out_without_a_wait: copied_out<<<1, 32, 0, stream>>>(y, true, false);
// k: 32; fault: overwritten too early: .*the block ended while .* call bulk_wait_read
// case copied_out_without_a_commit: copied_out<<<1, 32, 0, stream>>>(y, false, true);
// k: 32; fault: overwritten too early: .*call bulk_commit
