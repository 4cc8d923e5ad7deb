// The part of CUDA C++ that the simulator supports: language, barriers, warp operations, atomics.
// In a warp operation fibers exchange values; see sim.h and ../runtime.
#pragma once

#include <assert.h>
#include <math.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "sim.h"

#define CONVLAB_SIMULATOR 1
#define __CUDA_RUNTIME_H__ 1  // other headers test whether CUDA's were included
#define __DRIVER_TYPES_H__ 1
#define CUDART_CB
#ifndef SIM_RUNTIME
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#ifndef __CUDA_ARCH__  // in host code too, because host and device code are compiled together
#define __CUDA_ARCH__ 900
#endif
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __block_size__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __inline__ inline

// ---- barriers, votes, shuffles ------------------------------------------------------------
__forceinline__ void __syncthreads() { sim_barrier(0, nullptr); }
__forceinline__ int __syncthreads_count(int predicate) {
    int yes;
    sim_barrier(predicate != 0, &yes);
    return yes;
}
__forceinline__ int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
__forceinline__ int __syncthreads_and(int predicate) {
    int yes, all = sim_barrier(predicate != 0, &yes);
    return all == yes;
}
__forceinline__ void __threadfence() { sim_fence(false); }
__forceinline__ void __threadfence_block() { sim_fence(true); }
__forceinline__ void __threadfence_system() { sim_fence(false); }
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) {
    sim_collective(mask, nullptr, nullptr);
}
__forceinline__ unsigned __activemask() { return sim_active_lanes(); }

namespace sim {

struct Exchange {  // a lane's value and its result in a warp operation
    uint64_t value, result;
    int source;
    unsigned participants;  // a mask of lanes
};
template <typename F>  // calls use(lane, exchange) for each participating lane
void each_lane(void** arguments, unsigned participants, F use) {
    for (int lane = 0; lane < 32; ++lane)
        if (participants >> lane & 1) use(lane, *static_cast<Exchange*>(arguments[lane]));
}
inline void shuffle_step(void** arguments, unsigned participants) {
    each_lane(arguments, participants, [=](int, Exchange& e) {
        bool there = participants >> e.source & 1;
        e.result = there ? static_cast<Exchange*>(arguments[e.source])->value : e.value;
        e.participants = participants;
    });
}
inline void ballot_step(void** arguments, unsigned participants) {
    uint64_t votes = 0;
    each_lane(arguments, participants, [&](int lane, Exchange& e) {
        votes |= uint64_t(e.value) << lane;
    });
    each_lane(arguments, participants, [=](int, Exchange& e) { e.result = votes; });
}
inline void match_step(void** arguments, unsigned participants) {
    each_lane(arguments, participants, [=](int, Exchange& e) {
        each_lane(arguments, participants, [&](int lane, Exchange& other) {
            e.result |= uint64_t(other.value == e.value) << lane;
        });
    });
}
template <typename T, typename F>
struct Fold {  // a lane's value and its results in a reduction or a scan
    T value;
    const F* combine;
    T total, through, before;  // of all lanes; of lanes up to this one; of the lanes before it
};
template <typename T, typename F>
void fold_step(void** arguments, unsigned participants) {
    auto mine = [=](int lane) { return static_cast<Fold<T, F>*>(arguments[lane]); };
    Fold<T, F>* last = nullptr;
    for (int lane = 0; lane < 32; ++lane) {
        if (!(participants >> lane & 1)) continue;
        mine(lane)->before = last ? last->through : T{};
        mine(lane)->through = last ? T((*last->combine)(last->through, mine(lane)->value))
                                   : mine(lane)->value;
        last = mine(lane);
    }
    for (int lane = 0; lane < 32; ++lane)
        if (participants >> lane & 1) mine(lane)->total = last->through;
}
template <typename T, typename F>
__forceinline__ Fold<T, F> fold(unsigned mask, T value, const F& combine) {
    Fold<T, F> mine{value, &combine, value, value, value};
    sim_collective(mask, fold_step<T, F>, &mine);
    return mine;
}
template <typename T>
__forceinline__ T shuffle(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    Exchange e{bits<uint64_t>(value), 0, source & 31, 0};
    sim_collective(mask, shuffle_step, &e);
    bool is_stray = !(e.participants >> e.source & 1);
    if (is_stray && sim_stray_shuffle(e.source, e.participants)) e.result = ~uint64_t(0);
    return unbits<T>(e.result);
}
__forceinline__ unsigned ballot(unsigned mask, bool predicate) {
    Exchange e{predicate, 0, 0, 0};
    sim_collective(mask, ballot_step, &e);
    return unsigned(e.result);
}

}  // namespace sim

template <typename T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return sim::shuffle(mask, value, int(sim_lane() & ~(width - 1)) + (source & (width - 1)));
}
template <typename T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int lane = sim_lane(), source = lane - int(delta);
    return sim::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <typename T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int lane = sim_lane(), source = lane + int(delta);
    return sim::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <typename T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    int lane = sim_lane(), source = lane ^ lane_mask;
    return sim::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
    return sim::ballot(mask, predicate);
}
__forceinline__ int __any_sync(unsigned mask, int predicate) {
    return sim::ballot(mask, predicate) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate) {
    return sim::ballot(mask, !predicate) == 0;
}
template <typename T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value) {
    sim::Exchange e{sim::bits<uint64_t>(value), 0, 0, 0};
    sim_collective(mask, sim::match_step, &e);
    return unsigned(e.result);
}
template <typename T>
__forceinline__ unsigned __match_all_sync(unsigned mask, T value, int* all) {
    unsigned same = __match_any_sync(mask, value);
    *all = __all_sync(mask, same == __ballot_sync(mask, 1));
    return *all ? same : 0;
}
#define SIM_REDUCE(name, T, expression)                                                         \
    __forceinline__ T __reduce_##name##_sync(unsigned mask, T value) {                          \
        return sim::fold(mask, value, [](T a, T b) -> T { return expression; }).total;          \
    }
SIM_REDUCE(add, unsigned, a + b)
SIM_REDUCE(add, int, a + b)
SIM_REDUCE(min, unsigned, a < b ? a : b)
SIM_REDUCE(min, int, a < b ? a : b)
SIM_REDUCE(max, unsigned, a > b ? a : b)
SIM_REDUCE(max, int, a > b ? a : b)
SIM_REDUCE(and, unsigned, a & b)
SIM_REDUCE(or, unsigned, a | b)
SIM_REDUCE(xor, unsigned, a ^ b)

// ---- atomics: they are atomic on the CPU too, because blocks run on several cores ---------
#define SIM_UNSEEN __attribute__((no_sanitize("thread"), no_sanitize_coverage))
namespace sim {
template <typename T, typename F>
SIM_UNSEEN T atomic(T* address, F update) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "2, 4 or 8 bytes");
    using Word = std::conditional_t<
        sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    auto* word = reinterpret_cast<Word*>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED), next;
    T before, after;
    do {  // memcpy, not bits(): a call of bits() would have hooks
        std::memcpy(&before, &old, sizeof(T));
        after = update(before);
        std::memcpy(&next, &after, sizeof(T));
    } while (!__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return before;
}
template <typename T> struct Same { using type = T; };  // T is not deduced from such a parameter
template <typename T> using same = typename Same<T>::type;
// Returns whether adding a number, or another operation with 0, changes nothing: nobody can see such an atomic.
template <typename T> SIM_UNSEEN inline unsigned keeps(T number) {
    if constexpr (std::is_arithmetic<T>::value) return number == T(0) ? kKeeps : 0;
    else return 0;
}
}  // namespace sim
#define SIM_ATOMIC_OF(name, expression, how)                                                    \
    template <typename T>                                                                       \
    __forceinline__ T name(T* address, sim::same<T> b) {                                        \
        sim_atomic(address, sizeof(T), how);                                                    \
        return sim::atomic(address, [b](T a) SIM_UNSEEN -> T { return expression; });           \
    }
#define SIM_ATOMIC(name, expression, how)                                                       \
    SIM_ATOMIC_OF(name, expression, how)                                                        \
    SIM_ATOMIC_OF(name##_block, expression, (how) | sim::kOfBlock)                              \
    SIM_ATOMIC_OF(name##_system, expression, how)
SIM_ATOMIC(atomicAdd, a + b, sim::keeps<T>(b))
SIM_ATOMIC(atomicSub, a - b, sim::keeps<T>(b))
SIM_ATOMIC(atomicExch, ((void)a, b), sim::kReplaces)
SIM_ATOMIC(atomicMin, a < b ? a : b, 0)
SIM_ATOMIC(atomicMax, a > b ? a : b, 0)
SIM_ATOMIC(atomicAnd, a & b, 0)
SIM_ATOMIC(atomicOr, a | b, sim::keeps<T>(b))
SIM_ATOMIC(atomicXor, a ^ b, sim::keeps<T>(b))
SIM_ATOMIC(atomicInc, a >= b ? 0 : a + 1, 0)
SIM_ATOMIC(atomicDec, a == 0 || a > b ? b : a - 1, 0)
#define SIM_CAS(name, scope)                                                                    \
    template <typename T>                                                                       \
    __forceinline__ T name(T* address, sim::same<T> compare, sim::same<T> value) {              \
        sim_atomic(address, sizeof(T), sim::kSwaps | (scope));                                  \
        auto swap = [=](T a) SIM_UNSEEN -> T { return a == compare ? value : a; };              \
        T old = sim::atomic(address, swap);                                                     \
        if (!(old == compare)) sim_spin();                                                      \
        return old;                                                                             \
    }
SIM_CAS(atomicCAS, 0) SIM_CAS(atomicCAS_block, sim::kOfBlock) SIM_CAS(atomicCAS_system, 0)

// ---- loads and stores with a cache hint: the hint is ignored ------------------------------
#define SIM_LOAD(name) template <typename T> __forceinline__ T name(const T* p) { return *p; }
#define SIM_STORE(name)                                                                         \
    template <typename T> __forceinline__ void name(T* p, sim::same<T> v) { *p = v; }
template <typename T> __forceinline__ T __ldg(const T* p) {
    sim_read_only(p, sizeof(T));
    return *p;
}
SIM_LOAD(__ldcs) SIM_LOAD(__ldca) SIM_LOAD(__ldcg) SIM_LOAD(__ldlu) SIM_LOAD(__ldcv)
SIM_STORE(__stcs) SIM_STORE(__stcg) SIM_STORE(__stwt) SIM_STORE(__stwb)

#include "sim_math.h"

#include "sim_ptx.h"

#include "sim_ptx.h"

#include "sim_api.h"
#include "sim_launch.h"
#include "sim_texture.h"
#include "sim_graph.h"
