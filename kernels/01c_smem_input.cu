// title: Input tile in shared memory
// idea: Neighbouring outputs read almost the same inputs. A block loads its input tile, halo
//       included, into shared memory once, and all its threads read it there.
// change: Against 01b: the border tests move into the loading of the tile, and global memory is
//       read once for all taps. A block is now a square of pixels, which keeps the halo small.
// mapping: block -> tile x tile output pixels and k_tile output channels of one group (grid.x) of
//       image n (grid.y, z); thread -> one pixel (p, q) and k_tile sums in registers.
// parent: 01b_register_channels
// precision: fp32
// epilogue: bias, relu
// supports: 4 * (15 * stride_h + (R - 1) * dilation_h + 1)
//       * (15 * stride_w + (S - 1) * dilation_w + 1) <= smem,
//       32 * C * R * S <= 2147483647 * groups
// limits: Each product of a warp loads a value of w from the cache, although all its lanes load the
//       same value. The load units are busier than the multipliers.
#include "convlab.cuh"

#ifndef TILE
#define TILE 16    // output pixels of a block, in each direction
#endif
#ifndef K_TILE
#define K_TILE 8   // output channels of a block
#endif
constexpr int kTile = TILE, kKTile = K_TILE;
static_assert(kTile == 8 || kTile == 16 || kTile == 32, "TILE: 8, 16 or 32");
static_assert(kKTile >= 1 && kKTile <= 32, "K_TILE: 1 to 32");

// The staged input tile: one channel, halo included. Neighbouring outputs are `stride` pixels apart
// in x, neighbouring taps `dilation` pixels:
// extent = (tile - 1) * stride + (filter - 1) * dilation + 1.
struct Staging {
    int extent_h, extent_w;
    int bytes;
};

__global__ void __launch_bounds__(kTile * kTile)
conv2d_smem_input(ConvProblem conv, Staging staging, const float* __restrict__ g_x,
                  const float* __restrict__ g_w, const float* __restrict__ g_bias,
                  float* __restrict__ g_y) {
    extern __shared__ float s_x[];   // (extent_h, extent_w)
    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int RS = conv.R * conv.S;

    // Channel tiles vary fastest, so blocks that share an input tile run at the same time.
    const int k_tiles = ceil_div(K_group, kKTile);
    const int tiles_q = ceil_div(conv.Q, kTile);
    int rest = blockIdx.x;
    const int k0 = rest % k_tiles * kKTile;   // within the group
    rest /= k_tiles;
    const int group = rest % conv.groups;
    rest /= conv.groups;
    const int p0 = rest / tiles_q * kTile;
    const int q0 = rest % tiles_q * kTile;
    const int h0 = p0 * conv.stride_h - conv.pad_h;   // the input tile's corner: may be negative
    const int w0 = q0 * conv.stride_w - conv.pad_w;
    const int p = p0 + threadIdx.y;
    const int q = q0 + threadIdx.x;
    const int64_t n = image_of_block();
    if (n >= conv.N) return;   // the whole block returns, so no barrier waits for it

    // (k_tile, C_group, R, S)
    const float* w_k0 = g_w + int64_t(group * K_group + k0) * C_group * RS;
    // Each filter's offset from w_k0. Past the group's last filter, the last one's offset again.
    int r_offset[kKTile];
    #pragma unroll
    for (int j = 0; j < kKTile; ++j)
        r_offset[j] = min_of(j, K_group - k0 - 1) * C_group * RS;

    // The tile is loaded by teams of 32 threads; a team loads one row at a time.
    constexpr int teams = kTile * kTile / 32;
    const int lane = (threadIdx.y * kTile + threadIdx.x) % 32;
    const int team = (threadIdx.y * kTile + threadIdx.x) / 32;

    float r_acc[kKTile] = {};
    for (int c = 0; c < C_group; ++c) {
        const float* x_c = g_x + (n * conv.C + group * C_group + c) * conv.H * conv.W;
        for (int row = team; row < staging.extent_h; row += teams) {
            const int h = h0 + row;
            for (int column = lane; column < staging.extent_w; column += 32) {
                const int w = w0 + column;
                // Borders are tested here, once for all taps: outside the image x is 0.
                const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
                s_x[row * staging.extent_w + column] =
                    inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
            }
        }
        __syncthreads();

        for (int r = 0; r < conv.R; ++r) {
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            for (int s = 0; s < conv.S; ++s) {
                const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                const float* w_tap = w_k0 + (c * RS + r * conv.S + s);
                const float r_x = s_x[(h - h0) * staging.extent_w + w - w0];
                #pragma unroll
                for (int j = 0; j < kKTile; ++j) r_acc[j] += r_x * w_tap[r_offset[j]];
            }
        }
        __syncthreads();   // all have read the tile before the next is loaded
    }

    if (p >= conv.P || q >= conv.Q) return;   // not earlier: all threads load
    #pragma unroll
    for (int j = 0; j < kKTile; ++j) {
        if (k0 + j >= K_group) continue;
        const int k = group * K_group + k0 + j;
        g_y[((n * conv.K + k) * conv.P + p) * conv.Q + q] =
            activated(conv, r_acc[j] + (g_bias ? g_bias[k] : 0.0f));
    }
}

static Staging staging_of(const ConvProblem& conv) {
    const int extent_h = (kTile - 1) * conv.stride_h + (conv.R - 1) * conv.dilation_h + 1;
    const int extent_w = (kTile - 1) * conv.stride_w + (conv.S - 1) * conv.dilation_w + 1;
    return {extent_h, extent_w, extent_h * extent_w * int(sizeof(float))};
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const Staging staging = staging_of(conv);
    const int64_t blocks = int64_t(ceil_div(conv.P, kTile)) * ceil_div(conv.Q, kTile) *
                           conv.groups * ceil_div(conv.K / conv.groups, kKTile);
    if (const char* error = too_many(blocks)) return error;
    if (const char* error = ask_for_shared_memory(conv2d_smem_input, staging.bytes)) return error;
    const dim3 grid = grid_of_images(blocks, conv.N), block(kTile, kTile);
    conv2d_smem_input<<<grid, block, staging.bytes, stream>>>(conv, staging, x, w, bias, y);
    return launch_error();
}
