// The interface between a rewritten kernel and the runtime (../runtime).
// A kernel's thread calls the extern "C" functions below. They are in the runtime's library, which
// has no hooks, so their own accesses are not counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "vector_types.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
#define __forceinline__ inline __attribute__((always_inline))
typedef struct CUstream_st* cudaStream_t;
#define CUDART_VERSION 13000

// Makes a call a compile error: it needs a GPU. A function that is never called is no error.
#define SIM_REFUSED(why) \
    __attribute__((error(why "; the simulator does not support it: use a GPU")))

// `const` keeps g++ from calling hooks for them. The runtime writes them at each fiber switch.
#ifndef SIM_RUNTIME
#define SIM_TLS __attribute__((tls_model("initial-exec")))  // a read needs no function call
extern const __thread uint3 threadIdx SIM_TLS, blockIdx SIM_TLS;
extern const __thread dim3 blockDim SIM_TLS, gridDim SIM_TLS;
constexpr int warpSize = 32;
#endif

namespace sim {
enum How : unsigned {
    kReplaces = 1,   // an atomic that ignores the old value, which may be uninitialised
    kSwaps = 2,      // a compare-and-swap
    kOfBlock = 4,    // of block scope
    kLoads = 8,      // an atomic that only loads
    kAcquires = 16,  // a fence follows it
    kReleases = 32,  // a fence precedes it
    kVolatile = 64,  // no atomic, but a volatile access
    kKeeps = 128,    // an atomic that does not change the word, such as a poll by atomicAdd(p, 0)
};
struct Config {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    const char* name;
};
inline Config config(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
    return {grid, block, shared_bytes, stream, ""};
}
}  // namespace sim

extern "C" {
// Launches a kernel: every thread of the grid runs `body(context)` once. A graph copies the context.
void sim_launch(const sim::Config& config, const void* kernel, void (*body)(void*), void* context,
                size_t context_bytes);
// Returns a `__shared__` array of the block. Its shape is: bytes of an element, extents, 0.
void* sim_shared(const char* name, const void* declaration, size_t bytes, const unsigned* shape);
// Returns the memory of a file's variable, with unmapped memory around it; for `use` see enum Use.
void* sim_variable(const char* name, const void* image, size_t bytes, const unsigned* shape,
                   int use);
void* sim_dynamic_shared();                                    // this block's `extern __shared__`
// Blocks at __syncthreads; returns how many threads arrived.
int sim_barrier(int predicate, int* how_many_true);
// Blocks until all lanes of `mask` have passed an argument. The last one runs `step` on all.
void sim_collective(unsigned mask, void (*step)(void** arguments, unsigned mask), void* argument);
// Reports a shuffle that read from a lane outside `participants`.
bool sim_stray_shuffle(int source, unsigned participants);
unsigned sim_active_lanes();
void sim_read_only(const void* address, unsigned bytes);        // __ldg
void sim_spin();                                                // polls for another thread
unsigned sim_lane();
// Checks and counts one atomic; `how` is a set of bits of sim::How.
void sim_atomic(const volatile void* address, unsigned bytes, unsigned how = 0);
void sim_fence(bool of_block);                                  // __threadfence, or .._block
void sim_copy_async(void* to, const void* from, size_t bytes, size_t zeros);  // runs at the wait
void sim_copy_commit();
void sim_copy_wait(unsigned newest);                            // for all but the newest batches
[[noreturn]] void sim_trap();
}

namespace sim {

// `kernel<<<...>>>` becomes one of these two objects; its call with the arguments is the launch.
template <typename Call>
struct Deduced {  // of a template: the call in each thread deduces the template arguments
    Config config;
    Call call_kernel;
    template <typename... A>
    __attribute__((always_inline)) void operator()(A&&... a) const {
        std::pair<const Call&, std::tuple<std::decay_t<A>...>> call(
            call_kernel, std::tuple<std::decay_t<A>...>(std::forward<A>(a)...));
        auto body = [](void* context) {
            auto* c = static_cast<decltype(call)*>(context);
            auto arguments = c->second;
            std::apply(c->first, arguments);
        };
        sim_launch(config, nullptr, body, &call, sizeof call);
    }
};
template <typename Call, typename... P>
struct Typed {  // of one function: the arguments are converted to its parameters' types
    Config config;
    void (*kernel)(P...);
    Call call_kernel;
    template <typename... A, typename = std::enable_if_t<(sizeof...(A) < sizeof...(P))>>
    __attribute__((always_inline)) void operator()(A&&... a) const {  // uses default arguments
        Deduced<Call>{config, call_kernel}(std::forward<A>(a)...);
    }
    __attribute__((always_inline)) void operator()(P... p) const {
        std::pair<void (*)(P...), std::tuple<P...>> call(kernel, std::tuple<P...>(p...));
        auto body = [](void* context) {
            auto* c = static_cast<decltype(call)*>(context);
            std::apply(c->first, c->second);
        };
        sim_launch(config, reinterpret_cast<const void*>(kernel), body, &call, sizeof call);
    }
};
struct Address {
    template <typename... P>
    auto operator()(void (*kernel)(P...)) const { return kernel; }
};
template <typename Call, typename... P>
Typed<Call, P...> prepare(const Config& config, const Call& call, void (*kernel)(P...)) {
    return {config, kernel, call};
}
// `address(Address())` is the kernel's address, if its name alone selects one function.
template <typename Find, typename Call>
auto launch(const char* name, const Find& address, const Call& call, Config config) {
    config.name = name;
    if constexpr (std::is_invocable_v<const Find&, Address>)
        return prepare(config, call, address(Address()));
    else
        return Deduced<Call>{config, call};
}

template <typename T, size_t... rank>
const unsigned* shape(std::index_sequence<rank...>) {
    static constexpr unsigned all[] = {sizeof(std::remove_all_extents_t<T>),
                                       unsigned(std::extent_v<T, rank>)..., 0};
    return all;
}
template <typename T>
T& shared(const char* name, const void* declaration) {
    return *static_cast<T*>(sim_shared(name, declaration, sizeof(T),
                                       shape<T>(std::make_index_sequence<std::rank_v<T>>())));
}
template <typename T>
T& variable(const char* name, T& image, int use) {
    return *(T*)sim_variable(name, (const void*)&image, sizeof(T),
                             shape<T>(std::make_index_sequence<std::rank_v<T>>()), use);
}

// An argument of `any_kernel.run`, for a parameter of any type.
struct Argument {
    void* pointer;
    double real;
    long long whole;
    int is_real;
    template <typename T>
    T as() const {
        if constexpr (std::is_pointer_v<T>) return (T)pointer;
        else return is_real ? T(real) : T(whole);
    }
};
template <typename... P, size_t... i>
const char* call(void (*kernel)(P...), const char* name, const Argument* a, const unsigned* shape,
                 std::index_sequence<i...>) {
    Config config{{shape[0], shape[1], shape[2]}, {shape[3], shape[4], shape[5]}, shape[6], nullptr,
                  name};
    if (shape[7] != sizeof...(P))
        return "wrong number of arguments: pass one for each parameter of the kernel";
    Typed<int, P...>{config, kernel, 0}(a[i].template as<std::decay_t<P>>()...);
    return nullptr;
}
template <typename... P>
const char* call(void (*kernel)(P...), const char* name, const Argument* a, const unsigned* shape) {
    return call(kernel, name, a, shape, std::make_index_sequence<sizeof...(P)>());
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
