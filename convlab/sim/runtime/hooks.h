// The hooks: g++ calls them before each access (-fsanitize=thread), and at the start of each basic
// block (-fsanitize-coverage=trace-pc).
#pragma once
#include "access.h"

extern "C" {
// Splits the copy of a struct into accesses of `piece` bytes each.
static inline void pieces(void* address, size_t bytes, size_t piece, Kind kind, uintptr_t pc) {
    Worker* w = t_worker;
    for (size_t at = 0; w && at < bytes; at += piece)
        w->access(uintptr_t(address) + at, unsigned(piece), kind, pc, false);
}
// Returns the largest power of two that divides a size, and at most 16.
static inline size_t piece_of(size_t bytes) { return std::min<size_t>(bytes & -bytes, 16); }
#define HOOK(name, bytes, kind, before, how)                                                    \
    void __tsan_##name(void* address) {                                                         \
        if (Worker* w = t_worker) {                                                             \
            before;                                                                             \
            w->access(uintptr_t(address), bytes, kind, CALLER, true, how);                      \
        }                                                                                       \
    }
#define HOOKS(n)                                                                                \
    HOOK(read##n, n, Kind::load, , 0)                                                           \
    HOOK(write##n, n, Kind::store, , 0)                                                         \
    HOOK(volatile_write##n, n, Kind::store, , kVolatile)                                        \
    HOOK(volatile_read##n, n, Kind::load, w->spin(uintptr_t(address)), kVolatile)               \
    void __tsan_unaligned_read##n(void* address) {                                              \
        pieces(address, n, std::min(n, 4), Kind::load, CALLER);                                 \
    }                                                                                           \
    void __tsan_unaligned_write##n(void* address) {                                             \
        pieces(address, n, std::min(n, 4), Kind::store, CALLER);                                \
    }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* address, size_t bytes) {
    pieces(address, bytes, piece_of(bytes), Kind::load, CALLER);
}
void __tsan_write_range(void* address, size_t bytes) {
    pieces(address, bytes, piece_of(bytes), Kind::store, CALLER);
}
// Atomics of the C++ library in host code, such as the guard of a local static: not checked.
#define ATOMIC_UPDATE(n, T, name, update)                                                       \
    T __tsan_atomic##n##_##name(volatile T* p, T v, int) { return update(p, v, 5); }
#define ATOMIC_COMPARE(n, T, how)                                                               \
    int __tsan_atomic##n##_compare_exchange_##how(volatile T* p, T* old, T v, int, int) {       \
        return __atomic_compare_exchange_n(p, old, v, false, 5, 5);                             \
    }
#define ATOMICS(n, T)                                                                           \
    T __tsan_atomic##n##_load(const volatile T* p, int) { return __atomic_load_n(p, 5); }       \
    void __tsan_atomic##n##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, 5); }       \
    ATOMIC_UPDATE(n, T, exchange, __atomic_exchange_n)                                          \
    ATOMIC_UPDATE(n, T, fetch_add, __atomic_fetch_add)                                          \
    ATOMIC_UPDATE(n, T, fetch_sub, __atomic_fetch_sub)                                          \
    ATOMIC_COMPARE(n, T, strong)                                                                \
    ATOMIC_COMPARE(n, T, weak)
ATOMICS(8, uint8_t) ATOMICS(16, uint16_t) ATOMICS(32, uint32_t) ATOMICS(64, uint64_t)
void __tsan_init() {}
void __tsan_func_entry(void* from) {
    if (Worker* w = t_worker) w->function_entry(uintptr_t(from));
}
void __tsan_func_exit() {
    if (Worker* w = t_worker) w->function_exit();
}
// -fsanitize-coverage=trace-pc calls this at the start of each basic block.
void __sanitizer_cov_trace_pc() {
    if (Worker* w = t_worker) w->step(CALLER);
}
HOOK(vptr_update, 8, Kind::store, , 0)  // a constructor sets the pointer to virtual functions
void __tsan_vptr_read(void**) {}
// -fsanitize=return calls this at the end of a function that should have returned a value.
void __ubsan_handle_missing_return(void*) {
    fault("abort", CALLER, "a function that must return a value ended without one");
}
// -fsanitize=bounds calls this before an index outside an array of known size is used.
struct SimType {
    uint16_t kind, info;  // info: lowest bit: is it signed? The others: log2 of its size in bits
    char name[];          // 'float [2][4]'
};
struct SimIndexed {
    const char* file;
    unsigned line, column;
    const SimType *array, *index;
};
void __ubsan_handle_out_of_bounds(const SimIndexed* what, intptr_t index) {
    int unused = what->index->info & 1 ? 64 - (1 << (what->index->info >> 1)) : 0;
    std::string extents;
    for (const char* c = strchr(what->array->name, '['); *c; ++c)
        if (*c == '[' || (*c >= '0' && *c <= '9')) extents += *c == '[' ? ',' : *c;
    // The addresses of a watched array are checked too, and code may leave one of its rows on
    // purpose. So that is a warning.
    int watched = t_worker ? t_worker->watched(extents) : 0;
    bool error = watched < 2;
    report(error, "index out of bounds", CALLER, {}, "index %ld of %s of type %s",
           index << unused >> unused, error ? "an array" : "a row", what->array->name);
    if (watched) return;
    if (!t_worker) end(77);
    t_worker->leave(true);
}
}  // extern "C"
