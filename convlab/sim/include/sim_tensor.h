// kernels/tensor.cuh on the simulator: the same functions, by the same names.
#pragma once

#include <cuda_runtime.h>

extern "C" {  // see ../runtime/tensor.h
void sim_partial_warp(unsigned came);
}

// ---- numbers ------------------------------------------------------------------------------
__forceinline__ float round_tf32(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;  // infinity, NaN
    return __uint_as_float((bits + 0x1000) & 0xffffe000);
}
namespace sim {
inline float truncate_tf32(float value) {  // what a tensor core sees of a number
    return bits<float>(bits<unsigned>(value) & 0xffffe000);
}
}  // namespace sim

// ---- mma.sync -----------------------------------------------------------------------------
// Sums are of the simulator's own precision, better than a tensor core's, which truncates.
namespace sim {
struct Fragments {
    float* d;
    const float *a, *b;
    unsigned came;  // the lanes that took part
};
inline void mma_step(void** arguments, unsigned came) {
    for (int l = 0; l < 32; ++l)
        if (came >> l & 1) static_cast<Fragments*>(arguments[l])->came = came;
    if (~came) return;
    auto lane = [=](int i) { return *static_cast<Fragments*>(arguments[i]); };
    float a[16][8], b[8][8];
    for (int l = 0; l < 32; ++l) {
        int g = l / 4, t = l % 4;
        for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = truncate_tf32(lane(l).a[i]);
        for (int i = 0; i < 2; ++i) b[t + 4 * i][g] = truncate_tf32(lane(l).b[i]);
    }
    for (int l = 0; l < 32; ++l)
        for (int i = 0; i < 4; ++i) {
            int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
            double sum = lane(l).d[i];
            for (int k = 0; k < 8; ++k) sum += double(a[row][k]) * b[k][column];
            lane(l).d[i] = float(sum);
        }
}
}  // namespace sim
__forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
    sim::Fragments mine{d, a, b, 0};
    sim_collective(0xffffffffu, sim::mma_step, &mine);
    if (~mine.came) sim_partial_warp(mine.came);
}
