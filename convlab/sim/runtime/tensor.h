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
#define PASSED(name, parameters, ...)                                                           \
    void sim_##name parameters { t_worker->name(__VA_ARGS__); }
PASSED(mbarrier_init, (const void* at, int arrivals), uintptr_t(at), arrivals, CALLER)
PASSED(mbarrier_arrive, (const void* at, int bytes), uintptr_t(at), bytes, CALLER)
PASSED(mbarrier_wait, (const void* at, int parity), uintptr_t(at), parity, CALLER)
PASSED(bulk_load, (char* to, const char* from, int bytes, const void* barrier), to, from, bytes,
       uintptr_t(barrier), CALLER)
PASSED(bulk_store, (char* to, const char* from, int bytes), to, from, bytes, CALLER)
PASSED(bulk_commit, ())
PASSED(bulk_wait_read, (unsigned newest), newest)
PASSED(wgmma_fence, (), CALLER)
PASSED(wgmma_commit, (), CALLER)
PASSED(wgmma_wait, (unsigned newest), newest, CALLER)
PASSED(wgmma, (float* d, uint64_t a, uint64_t b, int n, char type, int accumulate), d, a, b, n,
       type, accumulate, CALLER)
void sim_launch_dependent() { g_dependent = true; }
void sim_griddepcontrol_wait() { t_worker->async.ahead_ended = true; }
void sim_fence_proxy_async() {
    Fiber& f = t_worker->fibers[t_worker->current];
    f.proxy_phase = t_worker->phase, f.proxy_stamp = t_worker->warps[t_worker->current / 32].stamp;
    t_worker->next_stamp(t_worker->current);
}
}
