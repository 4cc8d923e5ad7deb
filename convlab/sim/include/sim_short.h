// 16-bit floating-point numbers. They are computed as floats, and rounded after each operation.
#pragma once

#include <cuda_runtime.h>

namespace sim {
union Bits {
    float real;
    unsigned whole;
};
#define SIM_INFIX(T, op)                                                                        \
    friend __forceinline__ T operator op(T a, T b) { return T::of(a, b, SIM_BY(a op b)); }      \
    __forceinline__ T& operator op##=(T b) { return *this = *this op b; }
#define SIM_BY(expression)                                                                      \
    [](auto a, auto b) __attribute__((always_inline)) { return expression; }
#define SIM_BOTH(name, expression) /* of two numbers, or of two pairs (name2) */                \
    template <typename K>                                                                       \
    __forceinline__ Short<K> name(Short<K> a, same<Short<K>> b) {                               \
        return Short<K>::of(a, b, SIM_BY(expression));                                          \
    }                                                                                           \
    template <typename K>                                                                       \
    __forceinline__ Two<K> name##2(Two<K> a, Two<K> b) {                                        \
        return Two<K>::of(a, b, SIM_BY(expression));                                            \
    }
#define SIM_OF_ONE(one, two, expression)                                                        \
    template <typename K>                                                                       \
    __forceinline__ Short<K> one(Short<K> a) {                                                  \
        return Short<K>::of(a, a, SIM_BY(expression));                                          \
    }                                                                                           \
    template <typename K>                                                                       \
    __forceinline__ Two<K> two(Two<K> a) { return Two<K>::of(a, a, SIM_BY(expression)); }
#define SIM_ASK(name, op)                                                                       \
    friend __forceinline__ bool operator op(Short a, Short b) { return float(a) op float(b); }  \
    friend __forceinline__ bool name(Short a, Short b) { return a op b; }

template <typename K>
struct Short {
    unsigned short raw;
    Short() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    __forceinline__ Short(T value) : raw(K::narrow(float(value))) {}
    __forceinline__ operator float() const { return K::widen(raw); }
    template <typename F>
    static __forceinline__ Short of(Short a, Short b, F f) { return Short(f(float(a), float(b))); }
    static __forceinline__ Short made(unsigned short raw) {
        Short s;
        return s.raw = raw, s;
    }
    SIM_INFIX(Short, +) SIM_INFIX(Short, -) SIM_INFIX(Short, *) SIM_INFIX(Short, /)
    SIM_ASK(__hlt, <) SIM_ASK(__hle, <=) SIM_ASK(__hgt, >) SIM_ASK(__hge, >=)
    SIM_ASK(__heq, ==) SIM_ASK(__hne, !=)
    friend __forceinline__ Short operator-(Short a) { return made(a.raw ^ 0x8000); }
};
template <typename K>
struct alignas(4) Two {
    Short<K> x, y;
    Two() = default;
    __forceinline__ Two(Short<K> x, Short<K> y) : x(x), y(y) {}
    template <typename F>
    static __forceinline__ Two of(Two a, Two b, F f) {
        return {Short<K>::of(a.x, b.x, f), Short<K>::of(a.y, b.y, f)};
    }
    SIM_INFIX(Two, +) SIM_INFIX(Two, -) SIM_INFIX(Two, *) SIM_INFIX(Two, /)
    friend __forceinline__ Two operator-(Two a) { return {-a.x, -a.y}; }
};

SIM_BOTH(__hadd, a + b) SIM_BOTH(__hsub, a - b) SIM_BOTH(__hmul, a * b)
SIM_BOTH(__hmin, std::fmin(a, b)) SIM_BOTH(__hmax, std::fmax(a, b))
template <typename K>
__forceinline__ Short<K> __hdiv(Short<K> a, same<Short<K>> b) { return a / b; }
template <typename K>
__forceinline__ Two<K> __h2div(Two<K> a, Two<K> b) { return a / b; }
template <typename K>  // the product of two 16-bit numbers is exact in a float
__forceinline__ Short<K> __hfma(Short<K> a, same<Short<K>> b, same<Short<K>> c) {
    return Short<K>(float(a) * float(b) + float(c));
}
template <typename K>
__forceinline__ Two<K> __hfma2(Two<K> a, Two<K> b, Two<K> c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
SIM_OF_ONE(__habs, __habs2, std::fabs(a)) SIM_OF_ONE(__hneg, __hneg2, -a)
SIM_OF_ONE(hexp, h2exp, std::exp(a)) SIM_OF_ONE(hexp2, h2exp2, std::exp2(a))
SIM_OF_ONE(hlog, h2log, std::log(a)) SIM_OF_ONE(hlog2, h2log2, std::log2(a))
SIM_OF_ONE(hsqrt, h2sqrt, std::sqrt(a)) SIM_OF_ONE(hrsqrt, h2rsqrt, 1 / std::sqrt(a))
SIM_OF_ONE(hrcp, h2rcp, 1 / a) SIM_OF_ONE(htanh, h2tanh, std::tanh(a))
SIM_OF_ONE(hsin, h2sin, std::sin(a)) SIM_OF_ONE(hcos, h2cos, std::cos(a))
SIM_OF_ONE(hfloor, h2floor, std::floor(a)) SIM_OF_ONE(hceil, h2ceil, std::ceil(a))
SIM_OF_ONE(hrint, h2rint, std::nearbyint(a)) SIM_OF_ONE(htrunc, h2trunc, std::trunc(a))
template <typename K>
__forceinline__ bool __hisnan(Short<K> a) { return a != a; }
template <typename K>
__forceinline__ int __hisinf(Short<K> a) {
    return std::isinf(float(a)) ? a > Short<K>(0) ? 1 : -1 : 0;
}
template <typename K>
__forceinline__ float __low2float(Two<K> a) { return a.x; }
template <typename K>
__forceinline__ float __high2float(Two<K> a) { return a.y; }
}  // namespace sim
using sim::__high2float, sim::__low2float;

// Functions with a type's name in their own. N is the name of the type T, and P of the pair T2.
#define SIM_FN(T, name, parameters, expression)                                                 \
    __forceinline__ T name parameters { return expression; }
#define SIM_SHORT(N, T, P, T2)                                                                  \
    SIM_FN(T, __float2##N, (float a), T(a)) SIM_FN(T, __float2##N##_rn, (float a), T(a))        \
    SIM_FN(T, __double2##N, (double a), T(a)) SIM_FN(T, __int2##N##_rn, (int a), T(a))          \
    SIM_FN(T, __uint2##N##_rn, (unsigned a), T(a)) SIM_FN(float, __##N##2float, (T a), a)       \
    SIM_FN(int, __##N##2int_rn, (T a), __float2int_rn(a))                                       \
    SIM_FN(int, __##N##2int_rz, (T a), __float2int_rz(a))                                       \
    SIM_FN(unsigned short, __##N##_as_ushort, (T a), a.raw)                                     \
    SIM_FN(short, __##N##_as_short, (T a), short(a.raw))                                        \
    SIM_FN(T, __ushort_as_##N, (unsigned short a), T::made(a))                                  \
    SIM_FN(T, __short_as_##N, (short a), T::made((unsigned short)a))                            \
    SIM_FN(T2, __float2##P##_rn, (float a), T2(a, a))                                           \
    SIM_FN(T2, __floats2##P##_rn, (float a, float b), T2(a, b))                                 \
    SIM_FN(T2, __float22##P##_rn, (float2 a), T2(a.x, a.y))                                     \
    SIM_FN(float2, __##P##2float2, (T2 a), make_float2(a.x, a.y))                               \
    SIM_FN(T2, __##N##2##P, (T a), T2(a, a)) SIM_FN(T2, __halves2##P, (T a, T b), T2(a, b))     \
    SIM_FN(T2, make_##P, (T a, T b), T2(a, b)) SIM_FN(T, __low2##N, (T2 a), a.x)                \
    SIM_FN(T, __high2##N, (T2 a), a.y) SIM_FN(T2, __low2##P, (T2 a), T2(a.x, a.x))              \
    SIM_FN(T2, __high2##P, (T2 a), T2(a.y, a.y))                                                \
    SIM_FN(T2, __lows2##P, (T2 a, T2 b), T2(a.x, b.x))                                          \
    SIM_FN(T2, __highs2##P, (T2 a, T2 b), T2(a.y, b.y))
