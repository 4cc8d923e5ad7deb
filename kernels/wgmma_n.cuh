// wgmma for the sizes n that strips of columns need, in TF32, bf16 and fp16: d (64, n) = a b^T, as
// tensor.cuh describes it.
//
// The text of an instruction stands here once. nvcc assembles it, and the simulator reads n and the
// types of the operands from it, so both compute the same product.
#pragma once

#include "tensor.cuh"

// The type of the operands. A rung in 16-bit numbers defines it before it includes this file.
#ifndef NUMBER
#define NUMBER float
#endif

// d's registers, first in the text and then in the list of operands: all lists up to n / 2 of them.
#define R24                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
    "%18, %19, %20, %21, %22, %23"
#define R32 R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define R48 R32                                                                        \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define R60 R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"
#define R64 R60 ", %60, %61, %62, %63"
#define R68 R64 ", %64, %65, %66, %67"
#define R88 R68                                                                          \
    ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
    "%84, %85, %86, %87"
#define R92 R88 ", %88, %89, %90, %91"
#define R96 R92 ", %92, %93, %94, %95"
#define R104 R96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define R108 R104 ", %104, %105, %106, %107"
#define R112 R108 ", %108, %109, %110, %111"
#define R128 R112                                                                            \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D24 D4(0), D4(4), D4(8), D4(12), D4(16), D4(20)
#define D32 D24, D4(24), D4(28)
#define D48 D32, D4(32), D4(36), D4(40), D4(44)
#define D60 D48, D4(48), D4(52), D4(56)
#define D64 D60, D4(60)
#define D68 D64, D4(64)
#define D88 D68, D4(68), D4(72), D4(76), D4(80), D4(84)
#define D92 D88, D4(88)
#define D96 D92, D4(92)
#define D104 D96, D4(96), D4(100)
#define D108 D104, D4(104)
#define D112 D108, D4(108)
#define D128 D112, D4(112), D4(116), D4(120), D4(124)

// `named` is the size and the types of an instruction. Behind d's registers, a, b and accumulate are
// the operands number `a_at`, `b_at` and `add_at`. With 16-bit operands, two more zeros say that
// neither of them is transposed.
#ifdef CONVLAB_SIMULATOR
#define WGMMA(type, named, count, a_at, b_at, add_at, zeros)                                      \
    template <>                                                                                   \
    struct sim::WgmmaName<type, count> {                                                          \
        static constexpr char text[] = named;                                                     \
    };
#else
#define WGMMA(type, named, count, a_at, b_at, add_at, zeros)                                      \
    __device__ __forceinline__ void wgmma_of(const type*, float (&d)[count], uint64_t a,          \
                                             uint64_t b, int accumulate) {                        \
        asm volatile(                                                                             \
            "{\n"                                                                                 \
            ".reg .pred p;\n"                                                                     \
            "setp.ne.b32 p, %" #add_at ", 0;\n"                                                   \
            "wgmma.mma_async.sync.aligned." named " {" R##count "}, %" #a_at ", %" #b_at          \
            ", p, 1, 1" zeros ";\n"                                                               \
            "}"                                                                                   \
            : D##count                                                                            \
            : "l"(a), "l"(b), "r"(accumulate));                                                   \
    }
#endif
#define WGMMA_SIZE(n, count, a_at, b_at, add_at)                                                  \
    WGMMA(float, "m64n" #n "k8.f32.tf32.tf32", count, a_at, b_at, add_at, "")                     \
    WGMMA(bf16, "m64n" #n "k16.f32.bf16.bf16", count, a_at, b_at, add_at, ", 0, 0")               \
    WGMMA(fp16, "m64n" #n "k16.f32.f16.f16", count, a_at, b_at, add_at, ", 0, 0")

WGMMA_SIZE(48, 24, 24, 25, 26)
WGMMA_SIZE(64, 32, 32, 33, 34)
WGMMA_SIZE(96, 48, 48, 49, 50)
WGMMA_SIZE(120, 60, 60, 61, 62)
WGMMA_SIZE(128, 64, 64, 65, 66)
WGMMA_SIZE(136, 68, 68, 69, 70)
WGMMA_SIZE(176, 88, 88, 89, 90)
WGMMA_SIZE(184, 92, 92, 93, 94)
WGMMA_SIZE(192, 96, 96, 97, 98)
WGMMA_SIZE(208, 104, 104, 105, 106)
WGMMA_SIZE(216, 108, 108, 109, 110)
WGMMA_SIZE(224, 112, 112, 113, 114)
WGMMA_SIZE(256, 128, 128, 129, 130)

// The same with a in registers, of the names above: four words of a lane. With g = lane / 4 and
// t = lane % 4 they are row g and row g + 8 of word t of k, then both rows of word t + 4; a word is
// one number in TF32, two in 16 bits. They must not change before wgmma_wait.
#ifndef CONVLAB_SIMULATOR
#define WGMMA_GATHERED(type, named, count, a0, a1, a2, a3, b_at, add_at, zero)                    \
    __device__ __forceinline__ void wgmma_of(const type*, float (&d)[count],                      \
                                             const uint32_t (&a)[4], uint64_t b,                  \
                                             int accumulate) {                                    \
        asm volatile(                                                                             \
            "{\n"                                                                                 \
            ".reg .pred p;\n"                                                                     \
            "setp.ne.b32 p, %" #add_at ", 0;\n"                                                   \
            "wgmma.mma_async.sync.aligned." named " {" R##count "}, {%" #a0 ", %" #a1 ", %" #a2   \
            ", %" #a3 "}, %" #b_at ", p, 1, 1" zero ";\n"                                         \
            "}"                                                                                   \
            : D##count                                                                            \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));               \
    }
#define WGMMA_GATHERED_SIZE(n, count, a0, a1, a2, a3, b_at, add_at)                               \
    WGMMA_GATHERED(float, "m64n" #n "k8.f32.tf32.tf32", count, a0, a1, a2, a3, b_at, add_at, "")  \
    WGMMA_GATHERED(bf16, "m64n" #n "k16.f32.bf16.bf16", count, a0, a1, a2, a3, b_at, add_at,      \
                   ", 0")
WGMMA_GATHERED_SIZE(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA_GATHERED_SIZE(128, 64, 64, 65, 66, 67, 68, 69)
#undef WGMMA_GATHERED
#undef WGMMA_GATHERED_SIZE
#endif

// d (64, n) = a b^T in the rung's type, added to d if `accumulate`; n is twice d's length.
#ifdef CONVLAB_SIMULATOR
#define wgmma_n sim::wgmma_by_name<NUMBER>
#else
template <int count>
__device__ __forceinline__ void wgmma_n(float (&d)[count], uint64_t a, uint64_t b, int accumulate) {
    wgmma_of(static_cast<const NUMBER*>(nullptr), d, a, b, accumulate);
}
template <int count>
__device__ __forceinline__ void wgmma_n(float (&d)[count], const uint32_t (&a)[4], uint64_t b,
                                        int accumulate) {
    wgmma_of(static_cast<const NUMBER*>(nullptr), d, a, b, accumulate);
}
#endif

#undef R24
#undef R32
#undef R48
#undef R60
#undef R64
#undef R68
#undef R88
#undef R92
#undef R96
#undef R104
#undef R108
#undef R112
#undef R128
#undef D4
#undef D24
#undef D32
#undef D48
#undef D60
#undef D64
#undef D68
#undef D88
#undef D92
#undef D96
#undef D104
#undef D108
#undef D112
#undef D128
#undef WGMMA
#undef WGMMA_SIZE
