// Asynchronous copies to shared memory. The simulator performs a copy when its thread waits for it,
// so a read before the wait does not get the data.
#pragma once
#include <cuda_runtime.h>

__forceinline__ void __pipeline_memcpy_async(void* to, const void* from, size_t bytes,
                                             size_t zeros = 0) {
    sim_copy_async(to, from, bytes, zeros);
}
__forceinline__ void __pipeline_commit() { sim_copy_commit(); }
__forceinline__ void __pipeline_wait_prior(unsigned newest) { sim_copy_wait(newest); }
