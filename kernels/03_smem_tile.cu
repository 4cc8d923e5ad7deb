// title: Shared-memory tile
// idea: Neighbouring outputs read almost the same inputs. A block loads its input tile, halo
//       included, into shared memory once, and uses it for all its pixels and several output
//       channels.
// change: Against 01c: the filter is staged too, transposed: one 16-byte read fetches 4 channels of
//       a tap. Several input channels are staged at a time, and the tile's pitch avoids bank
//       conflicts. Against 02: no matrix in memory.
// mapping: block -> tile x tile output pixels and k_tile output channels of one group (grid.x) of
//       image n (grid.y, z); thread -> one pixel (p, q) and k_tile sums in registers.
// parent: 01c_smem_input
// precision: fp32
// epilogue: bias, relu
// supports: 4 * ((15 * stride_h + (R - 1) * dilation_h + 1)
//       * (15 * stride_w + (S - 1) * dilation_w + 1) + 36 * R * S) <= smem
// limits: Shared memory is busier than the multipliers: a read of x serves k_tile products, but a
//       read of w only 4, and it takes two wavefronts. Groups with few channels leave sums unused.
#include "convlab.cuh"

#ifndef TILE
#define TILE 16    // output pixels of a block, in each direction
#endif
#ifndef K_TILE
#define K_TILE 32  // output channels of a block
#endif
#ifndef C_TILE
#define C_TILE 4   // input channels staged at a time, at most
#endif
constexpr int kTile = TILE, kKTile = K_TILE, kCTile = C_TILE;
static_assert(kTile == 8 || kTile == 16 || kTile == 32, "TILE: 8, 16 or 32");
static_assert(kKTile % 4 == 0 && kKTile >= 4 && kKTile <= 64, "K_TILE: a multiple of 4, <= 64");
static_assert(kCTile >= 1, "C_TILE: at least 1");

// A row of the staged filter holds kKTile channels of one tap and 4 floats of padding. With this
// padding, the stores of neighbouring taps use different banks, and float4 reads stay aligned.
constexpr int kWPitch = kKTile + 4;

// The staged tiles. Neighbouring outputs are `stride` pixels apart in x, neighbouring taps
// `dilation` pixels:
// extent = (tile - 1) * stride + (filter - 1) * dilation + 1.
struct Staging {
    int extent_h, extent_w;   // of the input tile, halo included
    int pitch;                // from one row of it to the next, >= extent_w
    int c_tile;               // channels staged at a time
    int bytes;                // shared memory in all
};

__global__ void __launch_bounds__(kTile * kTile)
conv2d_smem_tile(ConvProblem conv, Staging staging, const float* __restrict__ g_x,
                 const float* __restrict__ g_w, const float* __restrict__ g_bias,
                 float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int RS = conv.R * conv.S;
    float* s_w = reinterpret_cast<float*>(s_mem);       // (c_tile, R, S, kWPitch)
    float* s_x = s_w + staging.c_tile * RS * kWPitch;   // (c_tile, extent_h, pitch)

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

    // The tiles are loaded by teams of 32 threads; a team loads one row at a time.
    constexpr int teams = kTile * kTile / 32;
    const int lane = (threadIdx.y * kTile + threadIdx.x) % 32;
    const int team = (threadIdx.y * kTile + threadIdx.x) / 32;

    float r_acc[kKTile] = {};
    for (int c0 = 0; c0 < C_group; c0 += staging.c_tile) {
        const int channels = min_of(staging.c_tile, C_group - c0);
        const float* x_c0 = g_x + (n * conv.C + group * C_group + c0) * conv.H * conv.W;
        for (int c = 0; c < channels; ++c) {
            const float* x_c = x_c0 + int64_t(c) * conv.H * conv.W;
            float* s_x_c = s_x + c * staging.extent_h * staging.pitch;
            for (int row = team; row < staging.extent_h; row += teams) {
                const int h = h0 + row;
                for (int column = lane; column < staging.extent_w; column += 32) {
                    const int w = w0 + column;
                    const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
                    s_x_c[row * staging.pitch + column] =
                        inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
                }
            }
        }
        for (int k = team; k < kKTile; k += teams) {
            const float* w_k = g_w + (int64_t(group * K_group + k0 + k) * C_group + c0) * RS;
            for (int tap = lane; tap < channels * RS; tap += 32)   // (c, r, s), end to end
                s_w[tap * kWPitch + k] = k0 + k < K_group ? w_k[tap] : 0.0f;
        }
        __syncthreads();

        const float4* s_tap = s_mem;   // one row of s_w: (kWPitch / 4) float4
        for (int c = 0; c < channels; ++c) {
            for (int r = 0; r < conv.R; ++r) {
                const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
                const float* s_row = s_x + (c * staging.extent_h + h - h0) * staging.pitch;
                for (int s = 0; s < conv.S; ++s) {
                    const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                    const float r_x = s_row[w - w0];
                    #pragma unroll
                    for (int k = 0; k < kKTile; k += 4) {
                        const float4 r_w = s_tap[k / 4];   // one address in all lanes: a broadcast
                        r_acc[k + 0] += r_x * r_w.x;
                        r_acc[k + 1] += r_x * r_w.y;
                        r_acc[k + 2] += r_x * r_w.z;
                        r_acc[k + 3] += r_x * r_w.w;
                    }
                    s_tap += kWPitch / 4;
                }
            }
        }
        __syncthreads();   // all have read the tiles before the next are loaded
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

// Returns a staging of as many channels at a time as fit into 48 KB, but at least one. With 48 KB a
// block, several blocks share an SM.
static Staging staging_of(const ConvProblem& conv) {
    constexpr int budget = 48 * 1024 / sizeof(float);
    const int extent_h = (kTile - 1) * conv.stride_h + (conv.R - 1) * conv.dilation_h + 1;
    const int extent_w = (kTile - 1) * conv.stride_w + (conv.S - 1) * conv.dilation_w + 1;
    // A warp reads 32 / kTile rows of the tile. With a pitch of kTile modulo 32 (and stride 1),
    // these rows are in different banks. If shared memory has no room for this pitch, rows are end
    // to end.
    const int w_floats = conv.R * conv.S * kWPitch;
    int pitch = extent_w + (32 + kTile - extent_w % 32) % 32;
    if (w_floats + extent_h * pitch > budget) pitch = extent_w;
    const int channel = w_floats + extent_h * pitch;
    const int fit = max_of(1, budget / channel);
    const int c_tile = min_of(min_of(fit, kCTile), conv.C / conv.groups);
    return {extent_h, extent_w, pitch, c_tile, c_tile * channel * int(sizeof(float))};
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
    if (const char* error = ask_for_shared_memory(conv2d_smem_tile, staging.bytes)) return error;
    const dim3 grid = grid_of_images(blocks, conv.N), block(kTile, kTile);
    conv2d_smem_tile<<<grid, block, staging.bytes, stream>>>(conv, staging, x, w, bias, y);
    return launch_error();
}
