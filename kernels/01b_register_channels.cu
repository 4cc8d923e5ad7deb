// title: Several channels per thread
// idea: All output channels at a pixel read the same inputs. A thread computes k_tile of these
//       channels and keeps their sums in registers, so it loads each value of x once for k_tile
//       products.
// change: Against 01: one load of x, with its address and border test, serves k_tile products. The
//       cost: k_tile registers for the sums.
// mapping: grid.x = tiles of channels, then blocks of pixels; thread -> one pixel (n, p, q), q
//       fastest, and k_tile output channels of one group.
// parent: 01_direct
// precision: fp32
// epilogue: bias, relu
// supports: 32 * C * R * S <= 2147483647 * groups
// limits: Each product loads a value of w from the cache, although all lanes of a warp load the
//       same value. The load units are busier than the multipliers.
#include "convlab.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef K_TILE
#define K_TILE 8   // output channels of a thread
#endif
constexpr int kThreads = THREADS, kKTile = K_TILE;
static_assert(kThreads > 0 && kThreads % 32 == 0 && kThreads <= 1024, "THREADS: 32, 64, ... 1024");
static_assert(kKTile >= 1 && kKTile <= 32, "K_TILE: 1 to 32");

__global__ void __launch_bounds__(kThreads)
conv2d_register_channels(ConvProblem conv, const float* __restrict__ g_x,
                         const float* __restrict__ g_w, const float* __restrict__ g_bias,
                         float* __restrict__ g_y) {
    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;
    const int RS = conv.R * conv.S;

    // Channel tiles vary fastest, so blocks that read the same pixels run at the same time.
    const int k_tiles = ceil_div(K_group, kKTile);
    int rest = blockIdx.x;
    const int k0 = rest % k_tiles * kKTile;   // within the group
    rest /= k_tiles;
    const int group = rest % conv.groups;
    rest /= conv.groups;
    const int64_t i = int64_t(rest) * kThreads + threadIdx.x;
    if (i >= int64_t(conv.N) * conv.P * conv.Q) return;
    const int q = int(i % conv.Q);
    const int p = int(i / conv.Q % conv.P);
    const int64_t n = i / (int64_t(conv.P) * conv.Q);

    const float* x_n = g_x + (n * conv.C + group * C_group) * HW;   // (C_group, H, W)
    // (k_tile, C_group, R, S)
    const float* w_k0 = g_w + int64_t(group * K_group + k0) * C_group * RS;
    // Each filter's offset from w_k0. Past the group's last filter, the last one's offset again.
    int r_offset[kKTile];
    #pragma unroll
    for (int j = 0; j < kKTile; ++j)
        r_offset[j] = min_of(j, K_group - k0 - 1) * C_group * RS;

    float r_acc[kKTile] = {};
    for (int c = 0; c < C_group; ++c) {
        for (int r = 0; r < conv.R; ++r) {
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            if (h < 0 || h >= conv.H) continue;   // a row of padding: all zeros
            for (int s = 0; s < conv.S; ++s) {
                const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                if (w < 0 || w >= conv.W) continue;
                const float* w_tap = w_k0 + (c * RS + r * conv.S + s);
                const float r_x = x_n[c * HW + int64_t(h) * conv.W + w];
                // One load of x serves all channels of the thread.
                #pragma unroll
                for (int j = 0; j < kKTile; ++j) r_acc[j] += r_x * w_tap[r_offset[j]];
            }
        }
    }
    #pragma unroll
    for (int j = 0; j < kKTile; ++j) {
        if (k0 + j >= K_group) continue;
        const int k = group * K_group + k0 + j;
        g_y[((n * conv.K + k) * conv.P + p) * conv.Q + q] =
            activated(conv, r_acc[j] + (g_bias ? g_bias[k] : 0.0f));
    }
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int64_t pixels = int64_t(conv.N) * conv.P * conv.Q;
    const int64_t blocks = ceil_div(pixels, int64_t(kThreads)) * conv.groups *
                           ceil_div(conv.K / conv.groups, kKTile);
    if (const char* error = too_many(blocks)) return error;
    conv2d_register_channels<<<unsigned(blocks), kThreads, 0, stream>>>(conv, x, w, bias, y);
    return launch_error();
}
