// title: Implicit GEMM on tensor cores
// idea: The tiles of im2col's matrix are gathered from x while they are loaded, so the matrix is
//       never in memory. A warp's tensor core then multiplies 16 x 8 filter values by 8 x 8 inputs
//       in one instruction.
// change: Against 02: no matrix in memory. A thread no longer has its own sums: the 32 lanes of a
//       warp share fragments of the operands and of the sums, as mma.sync prescribes. Operands are
//       rounded to TF32.
// mapping: block -> k_tile output channels of one group and m_tile pixels of all images (grid.x);
//       warp (4 of them, 2 x 2) -> a quarter of that; lane -> fragments of 16 x 8 (k, pixel).
// precision: tf32
// epilogue: bias, relu
// supports: sm >= 80
// limits: Fragments are read from shared memory word by word: 24 reads for 16 mma. x is copied word
//       by word too, each word R*S times.
#include <cuda_pipeline_primitives.h>
#include "convlab.cuh"
#include "tensor.cuh"

#ifndef K_TILE
#define K_TILE 64    // output channels of a block
#endif
#ifndef M_TILE
#define M_TILE 128   // pixels of a block
#endif
constexpr int kKTile = K_TILE, kMTile = M_TILE;
constexpr int kStages = 3;    // tiles of the two operands: two being copied, one in use
constexpr int kDepth = 16;    // of these tiles, along gemm_k
constexpr int kThreads = 128;
// Rows of the tiles are padded, so that a warp's reads of fragments have no bank conflict: lanes
// read the banks 20 g + t and 8 t + g, modulo 32.
constexpr int kWPitch = kDepth + 4, kXPitch = kMTile + 8;
constexpr int kSharedBytes =
    kStages * (kKTile * kWPitch + kDepth * kXPitch + 4 * kDepth) * 4 + 8 * kMTile;
static_assert(kKTile % 32 == 0 && kKTile >= 32, "K_TILE: a multiple of 32");
static_assert(kMTile == 32 || kMTile == 64 || kMTile == 128, "M_TILE: 32, 64 or 128");
static_assert(kSharedBytes <= 48 * 1024, "K_TILE, M_TILE: the tiles pass 48 KB");

struct Tap {         // a row of im2col's matrix, relative to the first tap of channel 0
    int64_t offset;  // in x
    int h, w;
};

// Row kk of the im2col matrix; gemm_k counts (c, r, s), s fastest, in the filter's memory order.
__device__ __forceinline__ Tap tap_of(const ConvProblem& conv, int kk) {
    const int RS = conv.R * conv.S;
    const int h = kk % RS / conv.S * conv.dilation_h;
    const int w = kk % RS % conv.S * conv.dilation_w;
    return {(int64_t(kk / RS) * conv.H + h) * conv.W + w, h, w};
}

__global__ void __launch_bounds__(kThreads)
conv2d_mma(ConvProblem conv, const float* __restrict__ g_x, const float* __restrict__ g_w,
           const float* __restrict__ g_bias, float* __restrict__ g_y) {
    __shared__ float s_w[kStages][kKTile][kWPitch];   // filter: (k, gemm_k)
    __shared__ float s_x[kStages][kDepth][kXPitch];   // im2col: (gemm_k, pixel)
    __shared__ Tap s_tap[kStages][kDepth];
    __shared__ int64_t s_y[kMTile];                   // where each pixel's channel 0 is in y; or -1

    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int gemm_k = C_group * conv.R * conv.S;
    const int64_t PQ = int64_t(conv.P) * conv.Q, pixels = conv.N * PQ;
    const int k_tiles = ceil_div(K_group, kKTile);
    int64_t rest = blockIdx.x;
    const int k0 = int(rest % k_tiles) * kKTile;      // within the group
    rest /= k_tiles;
    const int group = int(rest % conv.groups);
    const int64_t m0 = rest / conv.groups * kMTile;

    // A thread loads elements of one pixel; neighbouring lanes load neighbouring pixels.
    constexpr int rows = kThreads / kMTile;           // of the im2col tile, at a time
    const int column = threadIdx.x % kMTile, first_row = threadIdx.x / kMTile;
    const int64_t m = m0 + column;
    const bool pixel = m < pixels;
    const int n = int(m / PQ), p = int(m % PQ / conv.Q), q = int(m % PQ % conv.Q);
    const int h0 = p * conv.stride_h - conv.pad_h, w0 = q * conv.stride_w - conv.pad_w;
    const float* x_pixel =
        g_x + ((int64_t(n) * conv.C + group * C_group) * conv.H + h0) * conv.W + w0;
    if (first_row == 0) s_y[column] = pixel ? int64_t(n) * conv.K * PQ + m % PQ : -1;
    const float* w_k0 = g_w + int64_t(group * K_group + k0) * gemm_k;

    const int steps = ceil_div(gemm_k, kDepth);
    auto find_taps = [&](int step) {   // one step before `load`, with a barrier in between
        if (threadIdx.x < kDepth && step < steps)
            s_tap[step % kStages][threadIdx.x] = tap_of(conv, step * kDepth + threadIdx.x);
    };
    auto load = [&](int step) {
        const int stage = step % kStages, kk0 = step * kDepth;
        if (step < steps) {
            for (int i = threadIdx.x; i < kKTile * kDepth; i += kThreads) {
                const int k = i / kDepth, kk = i % kDepth;
                const bool inside = k0 + k < K_group && kk0 + kk < gemm_k;
                const float* from = inside ? w_k0 + int64_t(k) * gemm_k + kk0 + kk : g_w;
                __pipeline_memcpy_async(&s_w[stage][k][kk], from, 4, inside ? 0 : 4);
            }
            #pragma unroll
            for (int kk = first_row; kk < kDepth; kk += rows) {
                const Tap tap = s_tap[stage][kk];
                const int h = h0 + tap.h, w = w0 + tap.w;
                const bool inside = pixel && kk0 + kk < gemm_k && h >= 0 && h < conv.H && w >= 0 &&
                                    w < conv.W;
                const float* from = inside ? x_pixel + tap.offset : g_x;
                __pipeline_memcpy_async(&s_x[stage][kk][column], from, 4, inside ? 0 : 4);
            }
        }
        __pipeline_commit();   // also without copies, because groups are counted
    };

    // A warp computes half of the block's channels and half of its pixels, in tiles of 16 x 8.
    constexpr int k_parts = kKTile / 2 / 16, m_parts = kMTile / 2 / 8;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int warp_k = warp / 2 * kKTile / 2, warp_m = warp % 2 * kMTile / 2;
    float r_acc[k_parts][m_parts][4] = {};

    for (int step = 0; step < kStages; ++step) find_taps(step);
    __syncthreads();
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
        __pipeline_wait_prior(kStages - 2);   // this thread's part of the tiles has arrived
        __syncthreads();                      // all parts have; and all have read the oldest tiles
        load(step + kStages - 1);
        find_taps(step + kStages);            // replaces the taps of step `step`
        const int stage = step % kStages;
        #pragma unroll
        for (int kk = 0; kk < kDepth; kk += 8) {
            // The lanes' elements of the fragments: see mma_m16n8k8_tf32.
            float r_x[m_parts][2];
            #pragma unroll
            for (int j = 0; j < m_parts; ++j)
                for (int i = 0; i < 2; ++i)
                    r_x[j][i] = round_tf32(s_x[stage][kk + t + 4 * i][warp_m + 8 * j + g]);
            #pragma unroll
            for (int i = 0; i < k_parts; ++i) {
                const float (*w_rows)[kWPitch] = &s_w[stage][warp_k + 16 * i + g];
                const float r_w[4] = {
                    round_tf32(w_rows[0][kk + t]), round_tf32(w_rows[8][kk + t]),
                    round_tf32(w_rows[0][kk + t + 4]), round_tf32(w_rows[8][kk + t + 4])};
                #pragma unroll
                for (int j = 0; j < m_parts; ++j) mma_m16n8k8_tf32(r_acc[i][j], r_w, r_x[j]);
            }
        }
    }

    #pragma unroll
    for (int i = 0; i < k_parts; ++i) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int k_in_group = k0 + warp_k + 16 * i + 8 * half + g;
            if (k_in_group >= K_group) continue;
            const int k = group * K_group + k_in_group;
            const float bias = g_bias ? g_bias[k] : 0.0f;
            #pragma unroll
            for (int j = 0; j < m_parts; ++j)
                for (int c = 0; c < 2; ++c) {
                    const int64_t y_pixel = s_y[warp_m + 8 * j + 2 * t + c];
                    if (y_pixel < 0) continue;
                    g_y[y_pixel + k * PQ] = activated(conv, r_acc[i][j][2 * half + c] + bias);
                }
        }
    }
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const int64_t pixels = int64_t(conv.N) * conv.P * conv.Q;
    if (pixels == 0) return nullptr;
    const int64_t blocks =
        ceil_div(pixels, int64_t(kMTile)) * conv.groups * ceil_div(conv.K / conv.groups, kKTile);
    if (blocks > INT32_MAX) return "10_mma_tf32: more tiles than blocks in a grid (2^31)";
    if (int64_t(conv.C / conv.groups) * conv.R * conv.S > INT32_MAX - kDepth)
        return "10_mma_tf32: C/groups * R * S passes 2^31";
    conv2d_mma<<<unsigned(blocks), kThreads, 0, stream>>>(conv, x, w, bias, y);
    return launch_error();
}
