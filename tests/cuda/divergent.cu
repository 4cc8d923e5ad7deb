#include "convlab.cuh"
// One warp runs each kernel; t is its lane. x[8 * i] is in another sector for each i.
// `loads` are (requests, sectors, lanes) of each line with loads, in their order, as on a GPU: lanes
// that diverge reconverge after the branch, and at the end of each iteration of a loop.

// case borders: borders<<<1, 32, 0, stream>>>(x, y);
// note: a tap outside the row is skipped: 31, 32 and 31 lanes read, each from another sector
// x: 4096; loads: [(3, 31 + 32 + 31, 31 + 32 + 31)]
__global__ void borders(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int s = 0; s < 3; ++s) {
        int w = t + s - 1;
        if (w < 0 || w >= 32) continue;
        a += x[8 * w];
    }
    y[t] = a;
}

// case take_turns: take_turns<<<1, 32, 0, stream>>>(x, y);
// note: half of the lanes execute each iteration, all at one address
// x: 4096; loads: [(8, 8, 8 * 16)]
__global__ void take_turns(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 8; ++i)
        if ((i + t) % 2) a += x[8 * i];
    y[t] = a;
}

// case if_else: if_else<<<1, 32, 0, stream>>>(x, y);
// note: both branches run in each iteration, and lanes alternate between them
// x: 4096; loads: [(4, 4, 4 * 16), (4, 4, 4 * 16)]
__global__ void if_else(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 4; ++i) {
        if ((i + t) % 2)
            a += x[8 * i];
        else
            a -= x[8 * i + 800];
    }
    y[t] = a;
}

// case three_ways: three_ways<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(6, 6, 6 * 8), (6, 6, 6 * 8), (6, 6, 6 * 16)]
__global__ void three_ways(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 6; ++i) {
        switch ((i + t) % 4) {
            case 0: a += x[8 * i];
                break;
            case 1: a -= x[8 * i + 800];
                break;
            default:
                continue;
        }
        a *= x[8 * i + 1600];
    }
    y[t] = a;
}

// case own_bounds: own_bounds<<<1, 32, 0, stream>>>(x, y);
// note: the loop runs until its longest lane is done; the others wait after it
// x: 4096; loads: [(31, 31, sum(range(32))), (1, 4, 32)]
__global__ void own_bounds(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < t; ++i) a += x[8 * i];
    a += x[t];
    y[t] = a;
}

// case skipped: skipped<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(8, 8, 8 * 16), (1, 4, 32)]
__global__ void skipped(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    if (t < 16)
        for (int i = 0; i < 8; ++i)
            a += x[8 * i];
    a += x[t];
    y[t] = a;
}

// case leaves_early: leaves_early<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(7, 7, sum(t // 4 for t in range(32))), (1, 4, 32)]
__global__ void leaves_early(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 8; ++i) {
        if (i == t / 4) break;
        a += x[8 * i];
    }
    a += x[t];
    y[t] = a;
}

// case returns: returns<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(7, 7, sum(t // 4 for t in range(32)))]
__global__ void returns(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 8; ++i) {
        if (i == t / 4) return;
        a += x[8 * i];
    }
    y[t] = a;
}

// case nested: nested<<<1, 32, 0, stream>>>(x, y);
// note: in each of three rounds the longest lane has three iterations; no lane has nine in all
// x: 4096; loads: [(9, 9, 3 * 8 * (0 + 1 + 2 + 3))]
__global__ void nested(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < (t + i) % 4; ++j)
            a += x[8 * (4 * i + j)];
    y[t] = a;
}

// case empty_rounds: empty_rounds<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(40, 40, 40)]
__global__ void empty_rounds(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 40; ++i) {
        for (int j = 0; j < t; ++j) a += i ^ j;
        if (i % 32 == t) a += x[8 * i];
    }
    y[t] = a;
}

// case long_loops: long_loops<<<1, 32, 0, stream>>>(x, y);
// note: more accesses than fit in a log: lanes that skip the first loop wait for those in it
// x: 4096; loads: [(3000, 3000, 3000 * 16), (3000, 3000, 3000 * 32)]
__global__ void long_loops(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    if (t < 16)
        for (int i = 0; i < 3000; ++i) a += x[i];
    for (int i = 0; i < 3000; ++i) a += x[i];
    y[t] = a;
}

// case some_lanes_call: some_lanes_call<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(4, 4, 4 * 16), (4, 4 * 4, 4 * 32)]
__device__ __noinline__ float read(const float* p) { return *p + 1; }
__global__ void some_lanes_call(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    for (int i = 0; i < 4; ++i) {
        if (t % 2) a += read(x + 8 * i);
        a += x[t];
    }
    y[t] = a;
}

// case from_two_places: from_two_places<<<1, 32, 0, stream>>>(x, y);
// note: two calls of one function are separate requests
// x: 4096; loads: [(2, 2, 32), (1, 4, 32)]
__global__ void from_two_places(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    if (t % 2) a += read(x + 8);
    else a -= read(x + 16);
    a += x[t];
    y[t] = a;
}

// case recursion: recursion<<<1, 32, 0, stream>>>(x, y);
// x: 4096; loads: [(3, 3 + 2 + 1, 8 * (3 + 2 + 1)), (1, 4, 32)]
__device__ __noinline__ float sum(const float* p, int n) {
    return n ? p[8 * n] + sum(p, n - 1) : 0;
}
__global__ void recursion(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    a = sum(x, t % 4);
    a += x[t];
    y[t] = a;
}

// case waits:
//     cudaMemsetAsync(workspace, 0, 4, stream);
//     waits<<<1, 32, 0, stream>>>(x, (volatile int*)workspace, y);
// note: the lane that is behind spins until a lane that is ahead, with a full log, stores
// loads: [(5000, 5000, 5000 * 31)]
__global__ void waits(const float* x, volatile int* flag, float* y) {
    float a = 0;
    if (threadIdx.x == 0) {
        while (!*flag) a += 1;
        y[0] = a;
    } else {
        for (int i = 0; i < 5000; ++i) a += x[i % 64];
        if (threadIdx.x == 1) *flag = 1;
        y[threadIdx.x] = a;
    }
}

#define OPERATIONS(name, ...)                                                  \
    __global__ void name(const float* x, float* y) {                           \
        int t = threadIdx.x;                                                   \
        float a = 0;                                                           \
        __VA_ARGS__;                                                           \
        y[t] = a;                                                              \
    }

// case op_add: op_add<<<1, 32, 0, stream>>>(x, y);
// flops: 32
OPERATIONS(op_add, a = x[t] + x[t + 1])

// case op_multiply_add: op_multiply_add<<<1, 32, 0, stream>>>(x, y);
// flops: 2 * 32
OPERATIONS(op_multiply_add, a = x[t] * x[t + 1] + x[t + 2])

// case op_fmaf: op_fmaf<<<1, 32, 0, stream>>>(x, y);
// flops: 2 * 32
OPERATIONS(op_fmaf, a = fmaf(x[t], x[t + 1], x[t + 2]))

// case op_divide_and_root: op_divide_and_root<<<1, 32, 0, stream>>>(x, y);
// flops: 2 * 32
OPERATIONS(op_divide_and_root, a = x[t] / sqrtf(fabsf(x[t + 1])))

// case op_minus: op_minus<<<1, 32, 0, stream>>>(x, y);
// flops: 0
OPERATIONS(op_minus, a = -x[t])

// case op_compare: op_compare<<<1, 32, 0, stream>>>(x, y);
// flops: 0
OPERATIONS(op_compare, a = x[t] < x[t + 1] ? 3.0f : 4.0f)

// case op_convert: op_convert<<<1, 32, 0, stream>>>(x, y);
// flops: 0
OPERATIONS(op_convert, a = float(int(x[t]) + t))

// case op_double: op_double<<<1, 32, 0, stream>>>(x, y);
// flops: 32
OPERATIONS(op_double, a = float(double(x[t]) * x[t + 1]))

// case op_some_lanes: op_some_lanes<<<1, 32, 0, stream>>>(x, y);
// flops: 20
OPERATIONS(op_some_lanes, if (t < 20) a = x[t] + x[t + 1])

// case op_own_bounds: op_own_bounds<<<1, 32, 0, stream>>>(x, y);
// flops: sum(range(32))
OPERATIONS(op_own_bounds, for (int i = 0; i < t; ++i) a += x[i])

// case op_nothing: op_nothing<<<1, 32, 0, stream>>>(x, y);
// flops: 0
OPERATIONS(op_nothing, )
