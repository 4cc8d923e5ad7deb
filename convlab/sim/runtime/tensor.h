// Tensor cores, asynchronous copies and their barriers, as kernels call them: see
// ../include/sim_tensor.h.
#pragma once
#include "async.h"
#include "host.h"

extern "C" {
void sim_partial_warp(unsigned came) {
    fault("warp mask", CALLER, "a warp multiplies with lanes 0x%08x only: all 32 must come", came);
}
uint32_t sim_shared_address(const void* pointer) {
    uintptr_t at = uintptr_t(pointer) - uintptr_t(t_worker->shared);
    if (at >= kSharedSpan) fault("illegal address", CALLER, "this is no address in shared memory");
    return uint32_t(at);
}
void sim_mbarrier_init(const void* barrier, int arrivals) {
    t_worker->mbarrier_init(uintptr_t(barrier), arrivals, CALLER);
}
void sim_mbarrier_arrive(const void* barrier, int bytes) {
    t_worker->mbarrier_arrive(uintptr_t(barrier), bytes, CALLER);
}
void sim_mbarrier_wait(const void* barrier, int parity) {
    t_worker->mbarrier_wait(uintptr_t(barrier), parity, CALLER);
}
void sim_bulk_load(void* to, const void* from, int bytes, const void* barrier) {
    t_worker->bulk_load(static_cast<char*>(to), static_cast<const char*>(from), bytes,
                        uintptr_t(barrier), CALLER);
}
void sim_bulk_store(void* to, const void* from, int bytes) {
    t_worker->bulk_store(static_cast<char*>(to), static_cast<const char*>(from), bytes, CALLER);
}
void sim_bulk_commit() { t_worker->bulk_commit(); }
void sim_bulk_wait_read(unsigned newest) { t_worker->bulk_wait_read(newest); }
void sim_fence_proxy_async() {
    Fiber& f = t_worker->fibers[t_worker->current];
    f.proxy_phase = t_worker->phase, f.proxy_stamp = t_worker->warps[t_worker->current / 32].stamp;
    t_worker->next_stamp(t_worker->current);
}
void sim_wgmma_fence() { t_worker->wgmma_fence(CALLER); }
void sim_wgmma_commit() { t_worker->wgmma_commit(CALLER); }
void sim_wgmma_wait(unsigned newest) { t_worker->wgmma_wait(newest, CALLER); }
void sim_wgmma(float* d, uint64_t a, uint64_t b, int n, char type, int accumulate) {
    t_worker->wgmma(d, a, b, n, type, accumulate, CALLER);
}
}
