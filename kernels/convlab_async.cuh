// Asynchronous copies from global to shared memory. They do not pass through registers, and the
// issuing thread does not wait for them. They need compute capability 8.0 or later; earlier GPUs
// make ordinary copies.
#pragma once

#include <cuda_pipeline_primitives.h>  // __pipeline_commit, __pipeline_wait_prior
#include "convlab.cuh"

// Copies kBytes (4, 8 or 16); both addresses are aligned to kBytes. If `inside` is false, it reads
// nothing and writes zeros.
// This thread may use the copy after __pipeline_commit and __pipeline_wait_prior, other threads
// after the next barrier. The compiler may move other accesses past a copy. So a barrier is also
// needed between the last use of the target and the copy.
template <int kBytes>
__device__ __forceinline__ void copy_async(float* s_to, const float* g_from, bool inside) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async moves 4, 8 or 16 bytes");
#if defined(CONVLAB_SIMULATOR)
    __pipeline_memcpy_async(s_to, g_from, kBytes, inside ? 0 : kBytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned to = unsigned(__cvta_generic_to_shared(s_to));
    const int bytes = inside ? kBytes : 0;
    if constexpr (kBytes == 16)   // bypasses L1: this SM does not read the same bytes again
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(to), "l"(g_from), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(to), "l"(g_from), "n"(kBytes), "r"(bytes));
#else
    #pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) s_to[i] = inside ? g_from[i] : 0.0f;
#endif
}
