#include "convlab.cuh"
// `stray` is how many threads read from a lane that does not participate in the shuffle.
#define SHUFFLES(name, ...)                                                    \
    __global__ void name(int* y, unsigned mask) {                              \
        int i = threadIdx.x, v = 100 + i;                                      \
        __VA_ARGS__;                                                           \
        y[i] = v;                                                              \
    }

// case down: down<<<1, 32, 0, stream>>>((int*)y, 0xff);
// note: the last lanes keep their own values
// stray: 0
SHUFFLES(down, v = __shfl_down_sync(0xffffffffu, v, 4))

// case up: up<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(up, v = __shfl_up_sync(0xffffffffu, v, 4))

// case up_by_groups: up_by_groups<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(up_by_groups, v = __shfl_up_sync(0xffffffffu, v, 3, 8))

// case index_wraps: index_wraps<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(index_wraps, v = __shfl_sync(0xffffffffu, v, 35))

// case xor_by_groups: xor_by_groups<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(xor_by_groups, v = __shfl_xor_sync(0xffffffffu, v, 4, 8))

// case reductions: reductions<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(reductions, v = __reduce_add_sync(0xffffffffu, v) + __ballot_sync(0xffffffffu, i))

// case reductions_of_eight: reductions_of_eight<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(reductions_of_eight, if (i < 8) v = __reduce_max_sync(0xffu, v) + __match_any_sync(0xffu, i / 4))

// case down_of_eight: down_of_eight<<<1, 32, 0, stream>>>((int*)y, 0xff);
// stray: 0
SHUFFLES(down_of_eight, if (i < 8) v = __shfl_down_sync(0xffu, v, 4, 8))

// case down_past_eight: down_past_eight<<<1, 32, 0, stream>>>((int*)y, 0xff);
// stray: 4
SHUFFLES(down_past_eight, if (i < 8) v = __shfl_down_sync(mask, v, 4))

// case index_past_eight: index_past_eight<<<1, 32, 0, stream>>>((int*)y, 0xff);
// stray: 8
SHUFFLES(index_past_eight, if (i < 8) v = __shfl_sync(0xffu, v, 8))

// case down_past_forty: down_past_forty<<<1, 40, 0, stream>>>((int*)y, 0xff);
// note: lanes 4 to 7 of the second warp are stray
// stray: 4
SHUFFLES(down_past_forty, v = __shfl_down_sync(0xffffffffu, v, 4))

// case xor_past_forty: xor_past_forty<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 8
SHUFFLES(xor_past_forty, v = __shfl_xor_sync(0xffffffffu, v, 8))

// case from_one_that_left: from_one_that_left<<<1, 32, 0, stream>>>((int*)y, 0xff);
// stray: 31
SHUFFLES(from_one_that_left, if (i == 3) return; v = __shfl_sync(0xffffffffu, v, 3))

// case sum_of_the_lanes_there_are: sum_of_those<<<1, 40, 0, stream>>>((int*)y, 0xff);
// stray: 0; view: int32; expect: [sum(range(100, 132))] * 32 + [sum(range(132, 140))] * 8
SHUFFLES(sum_of_those, v = __reduce_add_sync(0xffffffffu, v))
