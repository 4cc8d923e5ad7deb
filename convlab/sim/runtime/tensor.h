// The functions behind ../include/sim_tensor.h: mma.sync, and the calls into async.h.
#pragma once
#include "async.h"
#include "host.h"

namespace {
struct Fragments {  // a lane's elements of a 16 x 8 x 8 product
    float* d;
    const float *a, *b;
    unsigned participants = 0;  // a mask of lanes
};
// Computes the product in double precision. A tensor core is less accurate: it truncates.
void mma_step(void** arguments, unsigned participants) {
    typedef double Two __attribute__((vector_size(16)));
    double a[16][8];
    alignas(16) double b[8][8];
    auto part = [&](int lane) -> Fragments& { return *static_cast<Fragments*>(arguments[lane]); };
    for (int l = 0; l < 32; ++l)
        if (participants >> l & 1) part(l).participants = participants;
    if (~participants) return;
    for (int l = 0; l < 32; ++l) {
        const Fragments& f = part(l);
        int g = l / 4, t = l % 4;
        for (int half : {0, 1}) {
            a[g][t + 4 * half] = seen_as_tf32(f.a[2 * half]);
            a[g + 8][t + 4 * half] = seen_as_tf32(f.a[2 * half + 1]);
            b[t + 4 * half][g] = seen_as_tf32(f.b[half]);
        }
    }
    for (int l = 0; l < 32; l += 4)
        for (int half : {0, 1}) {
            Two sums[4];
            for (int t = 0; t < 4; ++t) sums[t] = Two{part(l + t).d[2 * half], part(l + t).d[2 * half + 1]};
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k)
#pragma GCC unroll 4
                for (int t = 0; t < 4; ++t)
                    sums[t] += a[l / 4 + 8 * half][k] * *reinterpret_cast<Two*>(&b[k][2 * t]);
            for (int t = 0; t < 4; ++t)
                for (int i : {0, 1}) part(l + t).d[2 * half + i] = float(sums[t][i]);
        }
}
[[noreturn]] void partial_warp(const char* operation, unsigned participants, uintptr_t pc) {
    t_worker->leave_after(~participants);
    fault("warp mask", pc, "%s by lanes 0x%08x only: all 32 lanes must participate", operation,
          participants);
}
}  // namespace

extern "C" {
void sim_partial_stmatrix(unsigned participants) {
    partial_warp("stmatrix", participants, CALLER);
}
void sim_mma(float* d, const float* a, const float* b) {
    Fragments mine{d, a, b};
    t_worker->note("mma.sync", CALLER);
    t_worker->counters.tensor_flops += 2 * 16 * 8 * 8 / 32;  // a lane's share
    t_worker->collective(0xffffffffu, mma_step, &mine, CALLER);
    if (~mine.participants) partial_warp("mma.sync", mine.participants, CALLER);
}
uint32_t sim_shared_address(const void* pointer) {
    uintptr_t at = uintptr_t(pointer) - uintptr_t(t_worker->shared);
    if (at >= kSharedSpan)
        fault("illegal address", CALLER, "the address is not in shared memory, as it must be here");
    return uint32_t(at);
}
#define FORWARDED(name, parameters, ...)                                                           \
    void sim_##name parameters { t_worker->name(__VA_ARGS__); }
FORWARDED(mbarrier_init, (const void* at, int arrivals), uintptr_t(at), arrivals, CALLER)
FORWARDED(mbarrier_arrive, (const void* at, int bytes), uintptr_t(at), bytes, CALLER)
FORWARDED(mbarrier_wait, (const void* at, int parity), uintptr_t(at), parity, CALLER)
FORWARDED(bulk_load, (char* to, const char* from, int bytes, const void* barrier), to, from, bytes,
       uintptr_t(barrier), CALLER)
FORWARDED(bulk_store, (char* to, const char* from, int bytes), to, from, bytes, CALLER)
FORWARDED(bulk_commit, (), CALLER)
FORWARDED(bulk_wait_read, (unsigned newest), newest, CALLER)
FORWARDED(wgmma_fence, (), CALLER)
FORWARDED(wgmma_commit, (), CALLER)
FORWARDED(wgmma_wait, (unsigned newest), newest, CALLER)
FORWARDED(wgmma, (float* d, uint64_t a, uint64_t b, int n, char type, int accumulate), d, a, b, n,
       type, accumulate, CALLER)
void sim_wgmma_gathered(float* d, const uint32_t* a, uint64_t b, int n, char type, int accumulate) {
    t_worker->wgmma(d, 0, b, n, type, accumulate, CALLER, a);
}
void sim_partial_wmma(const char* operation, unsigned participants) {
    partial_warp(operation, participants, CALLER);
}
void sim_barrier_init(void* barrier, int arrivals) {
    if (uintptr_t(barrier) - uintptr_t(t_worker->shared) >= kSharedSpan)
        not_simulated(CALLER, "a cuda::barrier outside of shared memory");
    t_worker->mbarrier_init(uintptr_t(barrier), arrivals, CALLER);
}
uint64_t sim_mbarrier_phase(const void* at) {
    return t_worker->mbarrier_at(uintptr_t(at), CALLER).phase;
}
FORWARDED(mbarrier_drop, (const void* at), uintptr_t(at), CALLER)
FORWARDED(mbarrier_expect, (const void* at, int bytes), uintptr_t(at), bytes, CALLER)
FORWARDED(copy_on_barrier, (void* to, const void* from, size_t bytes, const void* at), to, from,
          bytes, uintptr_t(at), CALLER)
void sim_launch_dependent() { g_dependent = true; }
void sim_griddepcontrol_launch_dependents() { t_worker->lets_next_start(); }
void sim_griddepcontrol_wait() { t_worker->waits_for_previous(); }
void sim_fence_proxy_async() {
    t_worker->note("fence_proxy_async", CALLER);
    Fiber& f = t_worker->fibers[t_worker->current];
    f.proxy_phase = t_worker->phase, f.proxy_stamp = t_worker->warps[t_worker->current / 32].stamp;
    t_worker->next_stamp(t_worker->current);
}
}
