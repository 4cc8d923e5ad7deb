// Inline PTX: rewrite.py turns `asm volatile("..." : outputs : inputs)` into a call of sim::ptx. The
// runtime interprets the text, one thread at a time (../runtime/ptx.h).
#pragma once

#include "sim.h"

extern "C" {
struct SimPtxOperand {
    uint64_t bits;    // the value, before and after
    char constraint;  // r, l, h, f, d, n
};
void sim_ptx(const char* text, SimPtxOperand* operands, int count);
}

namespace sim {
template <typename To, typename T>
SIM_UNSEEN uint64_t ptx_bits(T value) {
    To as;
    if constexpr (std::is_pointer_v<T>) as = To(uintptr_t(value));
    else as = To(value);
    uint64_t all = 0;
    std::memcpy(&all, &as, sizeof as);
    return all;
}
// An operand: a value, and for an output the variable that gets the result.
template <char constraint, typename T>
struct PtxOut {
    T& to;
    static constexpr bool is_output = true;
};
struct PtxIn {
    SimPtxOperand operand;
    static constexpr bool is_output = false;
};
template <char c, typename T>
__forceinline__ uint64_t ptx_value(const T& value) {
    if constexpr (c == 'f') return ptx_bits<float>(value);
    else if constexpr (c == 'd') return ptx_bits<double>(value);
    else if constexpr (c == 'h') return ptx_bits<uint16_t>(value);
    else if constexpr (c == 'r') return ptx_bits<uint32_t>(value);
    else return ptx_bits<uint64_t>(value);
}
template <char c, typename T>
__forceinline__ PtxIn ptx_in(const T& value) { return {{ptx_value<c>(value), c}}; }
template <char c, typename T>
__forceinline__ PtxOut<c, T> ptx_out(T& to) { return {to}; }
template <char c, typename T>
struct PtxInOut {
    T& to;
    static constexpr bool is_output = true;
};
template <char c, typename T>
__forceinline__ PtxInOut<c, T> ptx_inout(T& to) { return {to}; }

template <char c, typename T>
__forceinline__ SimPtxOperand ptx_operand(const PtxOut<c, T>&) { return {0, c}; }
template <char c, typename T>
__forceinline__ SimPtxOperand ptx_operand(const PtxInOut<c, T>& o) {
    return {ptx_value<c>(o.to), c};
}
__forceinline__ SimPtxOperand ptx_operand(const PtxIn& in) { return in.operand; }
template <char c, typename T>
__forceinline__ void ptx_store(T& to, uint64_t bits) {
    if constexpr (c == 'f') to = T(unbits<float>(bits));
    else if constexpr (c == 'd') to = T(unbits<double>(bits));
    else if constexpr (std::is_pointer_v<T>) to = T(uintptr_t(bits));
    else if constexpr (c == 'h') to = T(uint16_t(bits));
    else if constexpr (c == 'r') to = T(uint32_t(bits));
    else to = T(bits);
}
template <typename O>
__forceinline__ void ptx_result(O&, const SimPtxOperand&) {}
template <char c, typename T>
__forceinline__ void ptx_result(PtxOut<c, T>& o, const SimPtxOperand& is) {
    ptx_store<c>(o.to, is.bits);
}
template <char c, typename T>
__forceinline__ void ptx_result(PtxInOut<c, T>& o, const SimPtxOperand& is) {
    ptx_store<c>(o.to, is.bits);
}
template <typename... O>
__forceinline__ void ptx(const char* text, O... o) {
    SimPtxOperand all[sizeof...(O) + 1] = {ptx_operand(o)..., {}};
    sim_ptx(text, all, int(sizeof...(O)));
    int i = 0;
    (void)i;
    (ptx_result(o, all[i++]), ...);
}
}  // namespace sim

// A generic address as an address in a state space, and back. Shared addresses are byte offsets.
extern "C" {
size_t sim_to_shared(const void* pointer);
void* sim_from_shared(size_t address);
int sim_is_shared(const void* pointer);
}
inline size_t __cvta_generic_to_shared(const void* p) { return sim_to_shared(p); }
inline size_t __cvta_generic_to_global(const void* p) { return size_t(p); }
inline size_t __cvta_generic_to_local(const void* p) { return size_t(p); }
inline size_t __cvta_generic_to_constant(const void* p) { return size_t(p); }
inline void* __cvta_shared_to_generic(size_t a) { return sim_from_shared(a); }
inline void* __cvta_global_to_generic(size_t a) { return (void*)a; }
inline unsigned __isShared(const void* p) { return unsigned(sim_is_shared(p)); }
inline unsigned __isGlobal(const void* p) { return !sim_is_shared(p); }
