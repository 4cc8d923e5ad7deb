// What the rewritten kernel and the runtime (../runtime.cpp) say to each other.
// Everything a kernel's thread asks of the simulator goes through the extern "C" functions below;
// they live in the runtime's object file, so that the memory they touch is never traced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
typedef struct CUstream_st* cudaStream_t;

// `const` keeps the compiler from tracing them; the runtime writes them at each fiber switch.
#ifndef SIM_RUNTIME
#define SIM_TLS __attribute__((tls_model("initial-exec")))  // read without a call
extern const __thread uint3 threadIdx SIM_TLS, blockIdx SIM_TLS;
extern const __thread dim3 blockDim SIM_TLS, gridDim SIM_TLS;
constexpr int warpSize = 32;
#endif

extern "C" {
// One launch: `body(context)` is run once by every thread of the grid.
void sim_launch(dim3 grid, dim3 block, size_t shared_bytes, const void* kernel,
                void (*body)(void*), void* context);
void* sim_shared(const char* name, int line, size_t bytes);   // this block's `__shared__` array
void* sim_dynamic_shared();                                    // this block's `extern __shared__`
int sim_barrier(int predicate, int* how_many_true);            // how many threads arrived
// Every lane of `mask` brings an argument; the last to arrive runs `step` on all of them.
void sim_collective(unsigned mask, void (*step)(void** arguments, unsigned mask), void* argument);
unsigned sim_live_lanes();
unsigned sim_lane();
void sim_atomic(const volatile void* address, unsigned bytes);  // one atomic, to be counted
[[noreturn]] void sim_trap();
[[noreturn]] void sim_assert_fail(const char* expression, const char* file, unsigned line,
                                  const char* function) noexcept;  // as <cassert> declares it
}

namespace sim {

struct Config {
    dim3 grid, block;
    size_t shared_bytes;
};
inline Config config(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t = nullptr) {
    return {grid, block, shared_bytes};
}

template <typename... P>
void start(const Config& config, void (*kernel)(P...), std::tuple<P...> arguments) {
    auto call = std::make_pair(kernel, arguments);
    auto body = [](void* context) {
        auto* c = static_cast<std::pair<void (*)(P...), std::tuple<P...>>*>(context);
        std::apply(c->first, c->second);
    };
    sim_launch(config.grid, config.block, config.shared_bytes,
               reinterpret_cast<const void*>(kernel), body, &call);
}
// kernel<<<...>>>(a...): the kernel's own parameter types when it is one function,
// else (a template whose arguments are deduced) the types of what was passed.
template <typename... P, typename... A>
void launch_as(int, const Config& config, void (*kernel)(P...), A&&... a) {
    start<P...>(config, kernel, std::tuple<P...>(std::forward<A>(a)...));
}
template <typename... A>
void launch_as(long, const Config& config, void (*kernel)(std::decay_t<A>...), A&&... a) {
    start<std::decay_t<A>...>(config, kernel, {std::forward<A>(a)...});
}

template <typename T>
T& shared(const char* name, int line) {
    return *static_cast<T*>(sim_shared(name, line, sizeof(T)));
}

template <typename To, typename From>
To bits(From value) {
    static_assert(sizeof(To) >= sizeof(From), "too wide");
    To to{};
    std::memcpy(&to, &value, sizeof(From));
    return to;
}
template <typename T>
T unbits(uint64_t value) {
    T to;
    std::memcpy(&to, &value, sizeof(T));
    return to;
}

}  // namespace sim
