// The runtime's functions behind cuda::barrier and cuda::pipeline.
#pragma once

#include <cuda_runtime.h>

extern "C" {
void sim_barrier_init(void* barrier, int arrivals);  // a cuda::barrier, in shared memory
uint64_t sim_mbarrier_phase(const void* barrier);
void sim_mbarrier_arrive(const void* barrier, int bytes);
void sim_mbarrier_drop(const void* barrier);
void sim_mbarrier_expect(const void* barrier, int bytes);
void sim_mbarrier_wait(const void* barrier, int parity);
void sim_bulk_load(char* to, const char* from, int bytes, const void* barrier);
void sim_bulk_store(char* to, const char* from, int bytes);
void sim_bulk_commit();
void sim_bulk_wait_read(unsigned newest);
void sim_fence_proxy_async();
void sim_copy_on_barrier(void* to, const void* from, size_t bytes, const void* barrier);
}
namespace sim {
// The bytes of each asynchronous copy that a range allows.
inline size_t copy_piece(const void* to, const void* from, size_t bytes) {
    auto all = uintptr_t(to) | uintptr_t(from) | bytes;
    return all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : 4;
}
__forceinline__ void copy_async_pieces(void* to, const void* from, size_t bytes) {
    size_t piece = copy_piece(to, from, bytes);
    for (size_t at = 0; at < bytes; at += piece)
        sim_copy_async((char*)to + at, (const char*)from + at, piece, 0);
}
}  // namespace sim
