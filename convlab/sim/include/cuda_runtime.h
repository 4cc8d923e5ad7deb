// CUDA C++ as the simulator knows it: the part of the language and the runtime that kernels use.
// Warp operations are exchanges between fibers; see sim.h and ../runtime.
#pragma once

#include <assert.h>
#include <math.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "sim.h"

#define CONVLAB_SIMULATOR 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

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
__forceinline__ void __threadfence() { sim_fence(); }
__forceinline__ void __threadfence_block() { sim_fence(); }
__forceinline__ void __threadfence_system() { sim_fence(); }
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) {
    sim_collective(mask, nullptr, nullptr);
}
__forceinline__ unsigned __activemask() { return sim_active_lanes(); }

namespace sim {

struct Exchange {  // what a lane brings to a warp operation, and takes away
    uint64_t value, result;
    int source;
    unsigned came;  // the lanes that took part
};
template <typename F>  // in a warp operation, for each lane that came: use(lane, its exchange)
void each_lane(void** arguments, unsigned came, F use) {
    for (int lane = 0; lane < 32; ++lane)
        if (came >> lane & 1) use(lane, *static_cast<Exchange*>(arguments[lane]));
}
inline void shuffle_step(void** arguments, unsigned came) {
    each_lane(arguments, came, [=](int, Exchange& e) {
        bool there = came >> e.source & 1;
        e.result = there ? static_cast<Exchange*>(arguments[e.source])->value : e.value;
        e.came = came;
    });
}
inline void ballot_step(void** arguments, unsigned came) {
    uint64_t votes = 0;
    each_lane(arguments, came, [&](int lane, Exchange& e) { votes |= uint64_t(e.value) << lane; });
    each_lane(arguments, came, [=](int, Exchange& e) { e.result = votes; });
}
inline void match_step(void** arguments, unsigned came) {
    each_lane(arguments, came, [=](int, Exchange& e) {
        each_lane(arguments, came, [&](int lane, Exchange& other) {
            e.result |= uint64_t(other.value == e.value) << lane;
        });
    });
}
template <typename T, typename F>
void reduce_step(void** arguments, unsigned came, F combine) {
    T total{};
    each_lane(arguments, came, [&](int lane, Exchange& e) {
        bool first = !(came & ((1u << lane) - 1));
        total = first ? unbits<T>(e.value) : combine(total, unbits<T>(e.value));
    });
    each_lane(arguments, came, [=](int, Exchange& e) { e.result = bits<uint64_t>(total); });
}
template <typename T>
__forceinline__ T shuffle(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    Exchange e{bits<uint64_t>(value), 0, source & 31, 0};
    sim_collective(mask, shuffle_step, &e);
    if (!(e.came >> e.source & 1)) sim_stray_shuffle(e.source, e.came);
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
        sim::Exchange e{sim::bits<uint64_t>(value), 0, 0, 0};                                   \
        auto step = [](void** arguments, unsigned came) {                                       \
            sim::reduce_step<T>(arguments, came, [](T a, T b) -> T { return expression; });     \
        };                                                                                      \
        sim_collective(mask, step, &e);                                                         \
        return sim::unbits<T>(e.result);                                                        \
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

// ---- atomics: real ones, since blocks run on several cores --------------------------------
#define SIM_UNSEEN __attribute__((no_sanitize("thread"), no_sanitize_coverage))
namespace sim {
template <typename T, typename F>
SIM_UNSEEN T atomic(T* address, F update) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics work on 4 or 8 bytes");
    using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    auto* word = reinterpret_cast<Word*>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED), next;
    T before, after;
    do {  // copied here, since a call of bits() would be seen
        std::memcpy(&before, &old, sizeof(T));
        after = update(before);
        std::memcpy(&next, &after, sizeof(T));
    } while (!__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return before;
}
template <typename T> struct Same { using type = T; };  // keeps `T` from being deduced twice
template <typename T> using same = typename Same<T>::type;
}  // namespace sim
#define SIM_ATOMIC(name, expression)                                                            \
    template <typename T>                                                                       \
    __forceinline__ T name(T* address, sim::same<T> b) {                                        \
        sim_atomic(address, sizeof(T));                                                         \
        return sim::atomic(address, [b](T a) SIM_UNSEEN -> T { return expression; });           \
    }
SIM_ATOMIC(atomicAdd, a + b)
SIM_ATOMIC(atomicSub, a - b)
SIM_ATOMIC(atomicExch, ((void)a, b))
SIM_ATOMIC(atomicMin, a < b ? a : b)
SIM_ATOMIC(atomicMax, a > b ? a : b)
SIM_ATOMIC(atomicAnd, a & b)
SIM_ATOMIC(atomicOr, a | b)
SIM_ATOMIC(atomicXor, a ^ b)
SIM_ATOMIC(atomicInc, a >= b ? 0 : a + 1)
SIM_ATOMIC(atomicDec, a == 0 || a > b ? b : a - 1)
template <typename T>
__forceinline__ T atomicCAS(T* address, sim::same<T> compare, sim::same<T> value) {
    sim_atomic(address, sizeof(T));
    T old = sim::atomic(address, [=](T a) SIM_UNSEEN -> T { return a == compare ? value : a; });
    if (!(old == compare)) sim_spin();
    return old;
}

// ---- loads and stores with a hint: the hint is dropped ------------------------------------
#define SIM_LOAD(name) template <typename T> __forceinline__ T name(const T* p) { return *p; }
#define SIM_STORE(name)                                                                         \
    template <typename T> __forceinline__ void name(T* p, sim::same<T> v) { *p = v; }
SIM_LOAD(__ldg) SIM_LOAD(__ldcs) SIM_LOAD(__ldca) SIM_LOAD(__ldcg)
SIM_STORE(__stcs) SIM_STORE(__stcg) SIM_STORE(__stwt)

// ---- arithmetic ---------------------------------------------------------------------------
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __int2float_rn(int a) { return float(a); }
inline float __uint2float_rn(unsigned a) { return float(a); }
inline int __float2int_rz(float a) { return int(a); }
inline int __float2int_rd(float a) { return int(std::floor(a)); }
inline int __float2int_ru(float a) { return int(std::ceil(a)); }
inline long long __double_as_longlong(double a) { return sim::bits<long long>(a); }
inline double __longlong_as_double(long long a) { return sim::bits<double>(a); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }
inline int __float2int_rn(float a) { return int(std::nearbyint(a)); }
inline int __float_as_int(float a) { return sim::bits<int>(a); }
inline unsigned __float_as_uint(float a) { return sim::bits<unsigned>(a); }
inline float __int_as_float(int a) { return sim::bits<float>(a); }
inline float __uint_as_float(unsigned a) { return sim::bits<float>(a); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }
inline int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)a) : 64; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned __brev(unsigned a) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (a >> i & 1) << (31 - i);
    return r;
}
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline void __trap() { sim_trap(); }
inline void __nanosleep(unsigned) {}
inline long long clock64() { return 0; }  // no time passes on the simulator

// ---- the runtime API ----------------------------------------------------------------------
enum cudaError_t : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNotSupported = 801,
};
typedef cudaError_t cudaError;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                      cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
                         cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
enum cudaDeviceAttr { cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxSharedMemoryPerBlock = 8,
                      cudaDevAttrWarpSize = 10, cudaDevAttrMultiProcessorCount = 16,
                      cudaDevAttrL2CacheSize = 38, cudaDevAttrMaxThreadsPerMultiProcessor = 39,
                      cudaDevAttrComputeCapabilityMajor = 75,
                      cudaDevAttrComputeCapabilityMinor = 76,
                      cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
                      cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
extern "C" {
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t);
const char* cudaGetErrorName(cudaError_t);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device);
cudaError_t sim_error(cudaError_t);  // is the last error from now on
cudaError_t sim_set_attribute(const void* kernel, cudaFuncAttribute, int value);
cudaError_t sim_malloc(void** pointer, size_t bytes);
}
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
template <typename F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute attribute, int value) {
    return sim_set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
    return sim_malloc(reinterpret_cast<void**>(pointer), bytes);
}
inline cudaError_t cudaFree(void*) { return cudaSuccess; }
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    sim_host_wrote(to, bytes);
    return std::memset(to, value, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    sim_host_wrote(to, bytes);
    return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t = nullptr) {
    return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t = nullptr) {
    return cudaMemcpy(to, from, bytes, kind);
}
template <typename T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return sim_error(cudaErrorInvalidValue);
    return cudaMemcpy(reinterpret_cast<char*>(&symbol) + offset, from, bytes, cudaMemcpyDefault);
}
template <typename T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return sim_error(cudaErrorInvalidValue);
    auto* from = reinterpret_cast<const char*>(&symbol) + offset;
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
template <typename T>
cudaError_t cudaGetSymbolAddress(void** pointer, T& symbol) {
    return *pointer = (void*)&symbol, cudaSuccess;
}
template <typename T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                                    cudaStream_t = nullptr) {
    return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
