// title: Shared-memory tile
// idea: Neighbouring outputs see almost the same inputs. A block loads the input tile it needs,
//       halo included, into shared memory once, for all its pixels and several output channels.
// change: Against 01: borders are dealt with while loading, one input read feeds k_tile products,
//       one filter read a whole warp. Against 02: nothing is copied through memory.
// mapping: block -> tile x tile output pixels and k_tile output channels of one group (grid.x) of
//       image n (grid.y, z); thread -> one pixel (p, q) and k_tile sums in registers.
// precision: fp32
// supports: 4 * ((3 * stride_h + (R - 1) * dilation_h + 1)
//       * (3 * stride_w + (S - 1) * dilation_w + 1) + 8 * R * S) <= smem
// limits: A shared-memory read of x for every k_tile products and one of w for every 4, which takes
//       two turns: shared memory is busier than the multipliers. Groups of few channels leave sums
//       unused.
#include "convlab.cuh"

#ifndef TILE
#define TILE 16    // output pixels of a block, each way
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

// The staged tiles. Two neighbouring outputs are stride apart in x, two taps dilation apart:
// extent = (tile - 1) * stride + (filter - 1) * dilation + 1.
struct Staging {
    int extent_h, extent_w;   // of the input tile, halo included
    int pitch;                // from one row of it to the next, >= extent_w
    int c_tile;               // channels staged at a time; 0: not even one fits
    int bytes;                // shared memory in all
};

// A row of the staged filter holds k_tile channels of one tap, and 4 floats of padding: the stores
// of neighbouring taps then meet different banks, and float4 reads stay aligned.
constexpr int kPadding = 4;

template <int tile, int k_tile>
__global__ void __launch_bounds__(tile * tile)
conv2d_smem_tile(ConvProblem conv, Staging staging, const float* __restrict__ g_x,
                 const float* __restrict__ g_w, const float* __restrict__ g_bias,
                 float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const int C_group = conv.C / conv.groups;
    const int K_group = conv.K / conv.groups;
    const int RS = conv.R * conv.S;
    constexpr int w_pitch = k_tile + kPadding;
    float* s_w = reinterpret_cast<float*>(s_mem);       // (c_tile, R, S, w_pitch)
    float* s_x = s_w + staging.c_tile * RS * w_pitch;   // (c_tile, extent_h, pitch)

    // Channel tiles vary fastest: blocks that share an input tile run side by side.
    const int k_tiles = ceil_div(K_group, k_tile);
    const int tiles_q = ceil_div(conv.Q, tile);
    int rest = blockIdx.x;
    const int k0 = rest % k_tiles * k_tile;   // within the group
    rest /= k_tiles;
    const int group = rest % conv.groups;
    rest /= conv.groups;
    const int p0 = rest / tiles_q * tile;
    const int q0 = rest % tiles_q * tile;
    const int h0 = p0 * conv.stride_h - conv.pad_h;   // the input tile's corner: may be negative
    const int w0 = q0 * conv.stride_w - conv.pad_w;
    const int p = p0 + threadIdx.y;
    const int q = q0 + threadIdx.x;
    const int64_t n = int64_t(blockIdx.z) * gridDim.y + blockIdx.y;
    if (n >= conv.N) return;   // the whole block, so nobody waits for it at a barrier

    // For loading: teams of up to 32 lanes, a team to a row.
    constexpr int lanes = min_of(32, tile * tile);
    constexpr int teams = tile * tile / lanes;
    const int lane = (threadIdx.y * tile + threadIdx.x) % lanes;
    const int team = (threadIdx.y * tile + threadIdx.x) / lanes;

    float r_acc[k_tile] = {};
    for (int c0 = 0; c0 < C_group; c0 += staging.c_tile) {
        const int channels = min_of(staging.c_tile, C_group - c0);
        const float* x_c0 = g_x + (n * conv.C + group * C_group + c0) * conv.H * conv.W;
        for (int row = team; row < channels * staging.extent_h; row += teams) {
            const int c = row / staging.extent_h;
            const int h = h0 + row % staging.extent_h;
            for (int column = lane; column < staging.extent_w; column += lanes) {
                const int w = w0 + column;
                const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
                s_x[row * staging.pitch + column] =
                    inside ? x_c0[(int64_t(c) * conv.H + h) * conv.W + w] : 0.0f;
            }
        }
        for (int k = team; k < k_tile; k += teams) {
            const float* w_k = g_w + (int64_t(group * K_group + k0 + k) * C_group + c0) * RS;
            for (int tap = lane; tap < channels * RS; tap += lanes)   // (c, r, s), end to end
                s_w[tap * w_pitch + k] = k0 + k < K_group ? w_k[tap] : 0.0f;
        }
        __syncthreads();

        const float4* s_tap = s_mem;   // one row of s_w: (w_pitch / 4) float4
        for (int c = 0; c < channels; ++c) {
            for (int r = 0; r < conv.R; ++r) {
                const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
                const float* s_row = s_x + (c * staging.extent_h + h - h0) * staging.pitch;
                for (int s = 0; s < conv.S; ++s) {
                    const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                    const float r_x = s_row[w - w0];
                    #pragma unroll
                    for (int k = 0; k < k_tile; k += 4) {
                        const float4 r_w = s_tap[k / 4];   // the same for all: a broadcast
                        r_acc[k + 0] += r_x * r_w.x;
                        r_acc[k + 1] += r_x * r_w.y;
                        r_acc[k + 2] += r_x * r_w.z;
                        r_acc[k + 3] += r_x * r_w.w;
                    }
                    s_tap += w_pitch / 4;
                }
            }
        }
        __syncthreads();   // all have read the tiles before they are loaded anew
    }

    if (p < conv.P && q < conv.Q) {   // not before: every thread loads, every thread waits
        #pragma unroll
        for (int i = 0; i < k_tile; ++i) {
            if (k0 + i >= K_group) continue;
            const int k = group * K_group + k0 + i;
            g_y[((n * conv.K + k) * conv.P + p) * conv.Q + q] =
                r_acc[i] + (g_bias ? g_bias[k] : 0.0f);
        }
    }
}

// As many channels at a time as stay below 48 KB, so that several blocks share an SM; where one
// channel alone is larger, one, up to the device's limit of `smem` bytes.
static Staging staging_for(const ConvProblem& conv, int tile, int k_tile, int64_t smem) {
    const int64_t extent_h =
        int64_t(tile - 1) * conv.stride_h + int64_t(conv.R - 1) * conv.dilation_h + 1;
    const int64_t extent_w =
        int64_t(tile - 1) * conv.stride_w + int64_t(conv.S - 1) * conv.dilation_w + 1;
    if (extent_h > smem || extent_w > smem) return {};
    // A warp reads 32 / tile rows of the tile; with a pitch of tile modulo 32 (and stride 1) they
    // meet in different banks. Where there is no room for that, rows are simply end to end.
    const int64_t w_bytes = int64_t(conv.R) * conv.S * (k_tile + kPadding) * int64_t(sizeof(float));
    int64_t pitch = extent_w + (32 + tile - extent_w % 32) % 32;
    if (w_bytes + extent_h * pitch * int64_t(sizeof(float)) > smem) pitch = extent_w;
    const int64_t channel = w_bytes + extent_h * pitch * int64_t(sizeof(float));
    if (channel > smem) return {};
    const int64_t fit = max_of(int64_t(1), 48 * 1024 / channel);
    const int c_tile = int(min_of(min_of(fit, int64_t(kCTile)), int64_t(conv.C / conv.groups)));
    return {int(extent_h), int(extent_w), int(pitch), c_tile, int(c_tile * channel)};
}

// False if the tiles don't fit into shared memory; else launches, and says in `error` how it went.
template <int tile, int k_tile>
static bool launch(const ConvProblem& conv, int smem, const float* x, const float* w,
                   const float* bias, float* y, cudaStream_t stream, const char** error) {
    const Staging staging = staging_for(conv, tile, k_tile, smem);
    if (staging.c_tile == 0) return false;
    const int64_t blocks = int64_t(ceil_div(conv.P, tile)) * ceil_div(conv.Q, tile) * conv.groups *
                           ceil_div(conv.K / conv.groups, k_tile);
    if (blocks > INT32_MAX) {
        *error = "03_smem_tile: more tiles in an image than blocks in a grid (2^31)";
        return true;
    }
    const cudaError_t status = cudaFuncSetAttribute(   // 48 KB unless asked for
        conv2d_smem_tile<tile, k_tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, staging.bytes);
    if (status != cudaSuccess) {
        *error = cudaGetErrorString(status);
        return true;
    }
    const int rows = min_of(conv.N, 65535);   // as far as a grid's y and z go
    const dim3 grid(unsigned(blocks), rows, ceil_div(conv.N, rows));
    const dim3 block(tile, tile);
    conv2d_smem_tile<tile, k_tile><<<grid, block, staging.bytes, stream>>>(
        conv, staging, x, w, bias, y);
    *error = launch_error();
    return true;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    int device = 0, smem = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return cudaGetErrorString(status);

    // The tunables' tiles, unless the group is small or shared memory is; then ever smaller ones.
    const char* error = nullptr;
    const bool launched =
        (conv.K / conv.groups > 4 &&
         launch<kTile, kKTile>(conv, smem, x, w, bias, y, stream, &error)) ||
        launch<kTile, 4>(conv, smem, x, w, bias, y, stream, &error) ||
        launch<8, 4>(conv, smem, x, w, bias, y, stream, &error) ||
        launch<4, 4>(conv, smem, x, w, bias, y, stream, &error);
    if (launched) return error;
    return "03_smem_tile: one channel's tile does not fit into shared memory; use 01_direct";
}
