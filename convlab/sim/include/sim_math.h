// CUDA's mathematical functions that C++ does not have.
#pragma once

#include <cmath>
#include <limits>
#include <cstdint>
#include <type_traits>

#include "sim.h"

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }

// ---- real numbers -------------------------------------------------------------------------
#define SIM_ONE(T, name, expression) inline T name(T a) { return expression; }
#define SIM_TWO(T, name, expression) inline T name(T a, T b) { return expression; }
SIM_ONE(float, rsqrtf, 1 / std::sqrt(a)) SIM_ONE(float, __frsqrt_rn, 1 / std::sqrt(a))
SIM_ONE(float, __sinf, std::sin(a)) SIM_ONE(float, __cosf, std::cos(a))
SIM_ONE(float, __tanf, std::tan(a)) SIM_ONE(float, __expf, std::exp(a))
SIM_ONE(float, __exp10f, std::pow(10.0f, a)) SIM_ONE(float, __logf, std::log(a))
SIM_ONE(float, __log2f, std::log2(a)) SIM_ONE(float, __log10f, std::log10(a))
SIM_ONE(float, rcbrtf, 1 / std::cbrt(a)) SIM_ONE(float, __fsqrt_rn, std::sqrt(a))
SIM_ONE(float, __frcp_rn, 1 / a) SIM_ONE(float, __saturatef, a < 0 ? 0 : a > 1 ? 1 : a)
SIM_ONE(double, rsqrt, 1 / std::sqrt(a)) SIM_ONE(double, __dsqrt_rn, std::sqrt(a))
SIM_TWO(float, __fadd_rn, a + b) SIM_TWO(double, __dadd_rn, a + b)
SIM_TWO(float, __fsub_rn, a - b) SIM_TWO(double, __dsub_rn, a - b)
SIM_TWO(float, __fmul_rn, a * b) SIM_TWO(double, __dmul_rn, a * b)
SIM_TWO(float, __fdiv_rn, a / b) SIM_TWO(double, __ddiv_rn, a / b)
SIM_TWO(float, __fdividef, a / b) SIM_TWO(float, fdividef, a / b)
SIM_TWO(float, __powf, std::pow(a, b))
#ifdef __x86_64__
typedef __float128 SimWide;
#else
typedef long double SimWide;  // it has 128 bits on aarch64
#endif
// Rounded towards zero, down or up: the nearest number, then one step if it is on the wrong side.
namespace sim {
template <typename T, typename Wide>
T directed(Wide exact, char mode) {
    T near = T(exact);
    bool above = Wide(near) > exact, below = Wide(near) < exact;
    bool down = mode == 'd' || (mode == 'z' && exact > 0), up = mode == 'u' || (mode == 'z' && exact < 0);
    if (above && down) return std::nextafter(near, -std::numeric_limits<T>::infinity());
    return below && up ? std::nextafter(near, std::numeric_limits<T>::infinity()) : near;
}
}  // namespace sim
#define SIM_DIRECTED(T, f, name, op)                                                            \
    inline T __##f##name##_rd(T a, T b) { return sim::directed<T>(SimWide(a) op SimWide(b), 'd'); }   \
    inline T __##f##name##_ru(T a, T b) { return sim::directed<T>(SimWide(a) op SimWide(b), 'u'); }   \
    inline T __##f##name##_rz(T a, T b) { return sim::directed<T>(SimWide(a) op SimWide(b), 'z'); }
SIM_DIRECTED(float, f, add, +) SIM_DIRECTED(float, f, sub, -)
SIM_DIRECTED(float, f, mul, *) SIM_DIRECTED(float, f, div, /)
SIM_DIRECTED(double, d, add, +) SIM_DIRECTED(double, d, sub, -)
SIM_DIRECTED(double, d, mul, *) SIM_DIRECTED(double, d, div, /)
// A square is exact in SimWide, and so tells on which side of the root a number is.
namespace sim {
template <typename T>
T directed_root(T a, bool up) {
    T near = std::sqrt(a);
    SimWide square = SimWide(near) * near;
    if (up && square < a) return std::nextafter(near, std::numeric_limits<T>::infinity());
    return !up && square > a ? std::nextafter(near, T(0)) : near;
}
}  // namespace sim
SIM_ONE(float, __fsqrt_ru, sim::directed_root(a, true))
SIM_ONE(float, __fsqrt_rd, sim::directed_root(a, false))
SIM_ONE(float, __fsqrt_rz, sim::directed_root(a, false))
SIM_ONE(double, __dsqrt_ru, sim::directed_root(a, true))
SIM_ONE(double, __dsqrt_rd, sim::directed_root(a, false))
SIM_ONE(double, __dsqrt_rz, sim::directed_root(a, false))
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline void __sincosf(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }
inline void sincospif(float x, float* s, float* c) {
    double turns = std::fmod(double(x), 2.0) * 3.14159265358979323846;
    *s = float(std::sin(turns)), *c = float(std::cos(turns));
}

// ---- conversions: round to nearest (n), towards zero (z), down, up ------------------------
#define SIM_WHOLE(real, T, whole, To)                                                           \
    inline To __##real##2##whole##_rn(T a) { return (To)std::nearbyint(a); }                    \
    inline To __##real##2##whole##_rz(T a) { return (To)a; }                                    \
    inline To __##real##2##whole##_rd(T a) { return (To)std::floor(a); }                        \
    inline To __##real##2##whole##_ru(T a) { return (To)std::ceil(a); }                         \
    inline T __##whole##2##real##_rn(To a) { return T(a); }
SIM_WHOLE(float, float, int, int) SIM_WHOLE(float, float, uint, unsigned)
SIM_WHOLE(float, float, ll, long long) SIM_WHOLE(float, float, ull, unsigned long long)
SIM_WHOLE(double, double, int, int) SIM_WHOLE(double, double, uint, unsigned)
SIM_WHOLE(double, double, ll, long long) SIM_WHOLE(double, double, ull, unsigned long long)
inline float __double2float_rn(double a) { return float(a); }
#define SIM_CAST(name, To, From) inline To name(From a) { return sim::bits<To>(a); }
SIM_CAST(__float_as_int, int, float) SIM_CAST(__float_as_uint, unsigned, float)
// A GPU's arithmetic returns the NaN 0x7fffffff, a CPU's a NaN of its operands. So a NaN that was made from
// 16 bits, as kernels do with bf16, is that one: rounding by hand overflows for it.
inline float __uint_as_float(unsigned a) {
    bool nan_of_16_bits = (a & 0x7fffffff) > 0x7f800000 && !(a & 0xffff);
    return sim::bits<float>(nan_of_16_bits ? 0x7fffffffu : a);
}
inline float __int_as_float(int a) { return __uint_as_float(unsigned(a)); }
SIM_CAST(__double_as_longlong, long long, double) SIM_CAST(__longlong_as_double, double, long long)
inline int __double2hiint(double a) { return int(__double_as_longlong(a) >> 32); }
inline int __double2loint(double a) { return int(__double_as_longlong(a)); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)high << 32 | unsigned(low));
}

// ---- whole numbers ------------------------------------------------------------------------
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
inline unsigned long long __brevll(unsigned long long a) {
    return (unsigned long long)__brev(unsigned(a)) << 32 | __brev(unsigned(a >> 32));
}
SIM_TWO(int, __mulhi, int(int64_t(a) * b >> 32)) SIM_TWO(int, __mul24, a * b)
SIM_TWO(unsigned, __umulhi, unsigned(uint64_t(a) * b >> 32)) SIM_TWO(unsigned, __umul24, a * b)
SIM_TWO(long long, __mul64hi, (long long)(__int128(a) * b >> 64))
SIM_TWO(unsigned long long, __umul64hi, (unsigned long long)((unsigned __int128)a * b >> 64))
SIM_TWO(int, __hadd, int((int64_t(a) + b) >> 1))
SIM_TWO(int, __rhadd, int((int64_t(a) + b + 1) >> 1))
inline unsigned __sad(int a, int b, unsigned c) { return unsigned(a < b ? b - a : a - b) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned which = selector >> 4 * i;
        unsigned of = uint8_t((uint64_t(b) << 32 | a) >> 8 * (which & 7));
        r |= (which & 8 ? (of >> 7) * 0xff : of) << 8 * i;  // bit 3: repeat the byte's sign bit
    }
    return r;
}
#define SIM_DP4A(T, Byte)                                                                       \
    inline T __dp4a(T a, T b, T c) {                                                            \
        for (int i = 0; i < 32; i += 8) c += T(Byte(a >> i)) * T(Byte(b >> i));                 \
        return c;                                                                               \
    }
SIM_DP4A(int, int8_t) SIM_DP4A(unsigned, uint8_t)

inline void __trap() { sim_trap(); }
inline void __nanosleep(unsigned) {}
inline long long clock64() { return 0; }  // the simulator has no clock
