#include "convlab.cuh"

// case ballot: ballot<<<1, 50, 0, stream>>>(x, reinterpret_cast<unsigned*>(y));
// view: int32; expect: votes(x[:32] > 0, 32) + votes(x[32:50] > 0, 18)
__global__ void ballot(const float* x, unsigned* y) {
    int i = threadIdx.x;
    y[i] = __ballot_sync(0xffffffff, x[i] > 0);
}

// case any_all: any_all<<<1, 128, 0, stream>>>(x, y);
// x: 128
// expect: [8 * (w > 48).any() + 4 * (w > -50).all() + 1 for w in lanes(x) for _ in range(32)]
__global__ void any_all(const float* x, float* y) {
    int i = threadIdx.x;
    y[i] = 8 * __any_sync(0xffffffff, x[i] > 48)
         + 4 * __all_sync(0xffffffff, x[i] > -50)
         + 2 * __any_sync(0xffffffff, x[i] > 99) + __all_sync(0xffffffff, x[i] > -99);
}

// case match_any: match_any<<<1, 32, 0, stream>>>(x, reinterpret_cast<unsigned*>(y));
// x: 32; view: int32; expect: [votes(x.int() & 3 == int(v) & 3, 1)[0] for v in x]
__global__ void match_any(const float* x, unsigned* y) {
    int i = threadIdx.x;
    y[i] = __match_any_sync(0xffffffff, int(x[i]) & 3);
}

// case match_all: match_all<<<1, 32, 0, stream>>>(x, y);
// x: 32; expect: [15] * 32
__global__ void match_all(const float* x, float* y) {
    int same, other;
    unsigned a = __match_all_sync(0xffffffff, 7, &same);
    unsigned b = __match_all_sync(0xffffffff, int(threadIdx.x), &other);
    y[threadIdx.x] = (a == 0xffffffff) * 8 + (same != 0) * 4 + (b == 0) * 2
                   + (other == 0);
}

// case half_warps: half_warps<<<1, 32, 0, stream>>>(x, y);
// note: each half of the lanes takes another path, with another barrier
// x: 32; expect: torch.cat([x[:16].flip(0) + 3, 3 * x[16:].flip(0) + 20])
__global__ void half_warps(const float* x, float* y) {
    __shared__ float s_x[32];
    int lane = threadIdx.x;
    s_x[lane] = 0;
    __syncwarp();
    if (lane < 16) {
        s_x[lane] = x[lane];
        __syncwarp(0x0000ffff);
        y[lane] = s_x[15 - lane] + __shfl_sync(0x0000ffff, lane, 3);
    } else {
        for (int round = 0; round < 3; ++round) {
            s_x[lane] += x[lane];
            __syncwarp(0xffff0000);
        }
        y[lane] = s_x[47 - lane] + __shfl_sync(0xffff0000, lane, 20);
    }
}

// case mixed_masks: mixed_masks<<<1, 32, 0, stream>>>(x, y);
// note: half of the lanes synchronize first
// x: 32; expect: [x[lane ^ 1] + (0 if lane % 2 else lane ^ 2) for lane in range(32)]
__global__ void mixed_masks(const float* x, float* y) {
    int lane = threadIdx.x, extra = 0;
    if (lane % 2 == 0) extra = __shfl_xor_sync(0x55555555, lane, 2);
    y[lane] = __shfl_xor_sync(0xffffffff, x[lane], 1) + extra;
}

// case activemask: activemask<<<1, 96, 0, stream>>>(x, y, n);
// note: the active lanes add their values; the total does not depend on which are active together
// x: 70; expect: [x[::3].sum()]
__global__ void activemask(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i == 0) y[0] = 0;
    __syncthreads();
    if (i >= n) return;
    if (i % 3 == 0) {
        unsigned mask = __activemask();
        int first = __ffs(mask) - 1, total = __reduce_add_sync(mask, int(x[i]));
        if (i % 32 == first) atomicAdd(y, float(total));
    }
}

// case early_exit: warp_early_exit<<<1, 64, 0, stream>>>(x, y, n);
// x: 41; expect: [*x[1:32], x[31], *x[33:41]]
__global__ void warp_early_exit(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    y[i] = __shfl_down_sync(__activemask(), x[i], 1);
}

#define SHUFFLE(name, ...)                                                     \
    __global__ void name(const float* x, float* y, int width) {                \
        int i = blockIdx.x * blockDim.x + threadIdx.x, lane = i % 32;          \
        (void)lane;                                                            \
        y[i] = __VA_ARGS__;                                                    \
    }

// case shfl: shuffle_index<<<2, 96, 0, stream>>>(x, y, arg);
// x: 192; args: 2, 4, 8, 16, 32
// expect: shuffled(x, lambda lane: lane // arg * arg + (3 * lane + 1) % arg)
SHUFFLE(shuffle_index, __shfl_sync(0xffffffff, x[i], 3 * lane + 1, width))

// case shfl_up: shuffle_up<<<2, 96, 0, stream>>>(x, y, arg);
// x: 192; args: 2, 4, 8, 16, 32
// expect: shuffled(x, lambda lane: lane - 1 if lane % arg else lane)
SHUFFLE(shuffle_up, __shfl_up_sync(0xffffffff, x[i], 1, width))

// case shfl_down: shuffle_down<<<2, 96, 0, stream>>>(x, y, arg);
// x: 192; args: 2, 4, 8, 16, 32
// expect: shuffled(x, lambda lane: lane + 1 if (lane + 1) % arg else lane)
SHUFFLE(shuffle_down, __shfl_down_sync(0xffffffff, x[i], 1, width))

// case shfl_xor: shuffle_xor<<<2, 96, 0, stream>>>(x, y, arg);
// x: 192; args: 2, 4, 8, 16, 32
// expect: shuffled(x, lambda lane: lane ^ 1)
SHUFFLE(shuffle_xor, __shfl_xor_sync(0xffffffff, x[i], 1, width))

// case shfl_xor_far: shuffle_far<<<2, 96, 0, stream>>>(x, y, arg);
// note: groups may read from earlier groups, not from later ones (CUDA C++ guide, 10.22)
// x: 192; args: 2, 4, 8, 16, 32
// expect: shuffled(x, lambda lane: lane if arg <= 8 and not lane & 8 else lane ^ 8)
SHUFFLE(shuffle_far, __shfl_xor_sync(0xffffffff, x[i], 8, width))

// Values of another type, through each of the four shuffles in turn.
#define FOUR_SHUFFLES(name, T, value)                                          \
    __global__ void name(const float* x, T* y) {                               \
        int i = threadIdx.x;                                                   \
        T v = value;                                                           \
        v = __shfl_sync(0xffffffff, v, (i + 5) % 32);                          \
        v = __shfl_xor_sync(0xffffffff, v, 3);                                 \
        v = __shfl_up_sync(0xffffffff, v, 1);                                  \
        y[i] = __shfl_down_sync(0xffffffff, v, 2);                             \
    }

// case shfl_int: shuffle_int<<<1, 32, 0, stream>>>(x, (int*)y);
// x: 32; view: int32; expect: four(x) * 1000003
FOUR_SHUFFLES(shuffle_int, int, int(x[i]) * 1000003)

// case shfl_unsigned: shuffle_unsigned<<<1, 32, 0, stream>>>(x, (unsigned*)y);
// x: 32; view: int32; expect: four(x) + 50 - 2**31
FOUR_SHUFFLES(shuffle_unsigned, unsigned, 0x80000000u + unsigned(x[i] + 50))

// case shfl_float: shuffle_float<<<1, 32, 0, stream>>>(x, y);
// x: 32; expect: four(x) / 7
FOUR_SHUFFLES(shuffle_float, float, x[i] / 7)

// case shfl_double: shuffle_double<<<1, 32, 0, stream>>>(x, (double*)y);
// x: 32; k: 2; view: float64; expect: four(x) / 7
FOUR_SHUFFLES(shuffle_double, double, x[i] / 7.0)

// case shfl_ulonglong: shuffle_ull<<<1, 32, 0, stream>>>(x, (unsigned long long*)y);
// x: 32; k: 2; view: int64; expect: four(x) + 50 + 2**40
FOUR_SHUFFLES(shuffle_ull, unsigned long long, (1ull << 40) + (unsigned long long)(x[i] + 50))

#define REDUCE(name, operation, T, offset)                                     \
    __global__ void name(const float* x, T* y) {                               \
        int i = threadIdx.x;                                                   \
        unsigned mask = i % 32 < 8 ? 0x000000ffu : 0xffffff00u;                \
        y[i] = operation(mask, T(x[i] + offset));                              \
    }

// case reduce_add: sums_add_int<<<1, 64, 0, stream>>>(x, (int*)y);
// view: int32; expect: reduced(x, int.__add__)
REDUCE(sums_add_int, __reduce_add_sync, int, 0)

// case reduce_min: sums_min_int<<<1, 64, 0, stream>>>(x, (int*)y);
// view: int32; expect: reduced(x, min)
REDUCE(sums_min_int, __reduce_min_sync, int, 0)

// case reduce_max: sums_max_int<<<1, 64, 0, stream>>>(x, (int*)y);
// view: int32; expect: reduced(x, max)
REDUCE(sums_max_int, __reduce_max_sync, int, 0)

// case reduce_add_unsigned: sums_add_unsigned<<<1, 64, 0, stream>>>(x, (unsigned*)y);
// view: int32; expect: reduced(x + 60, int.__add__)
REDUCE(sums_add_unsigned, __reduce_add_sync, unsigned, 60)

// case reduce_and: sums_and_unsigned<<<1, 64, 0, stream>>>(x, (unsigned*)y);
// view: int32; expect: reduced(x + 60, int.__and__)
REDUCE(sums_and_unsigned, __reduce_and_sync, unsigned, 60)

// case reduce_or: sums_or_unsigned<<<1, 64, 0, stream>>>(x, (unsigned*)y);
// view: int32; expect: reduced(x + 60, int.__or__)
REDUCE(sums_or_unsigned, __reduce_or_sync, unsigned, 60)

// case reduce_xor: sums_xor_unsigned<<<1, 64, 0, stream>>>(x, (unsigned*)y);
// view: int32; expect: reduced(x + 60, int.__xor__)
REDUCE(sums_xor_unsigned, __reduce_xor_sync, unsigned, 60)
