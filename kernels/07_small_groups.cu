// title: Small groups
// idea: With few channels in a group, the group's input tile, halo included, and its filter fit
//       into shared memory. DRAM delivers x once and takes y once, so memory is the limit if the
//       threads keep up.
// change: Against 06: a sum over the group's input channels, and 4 output channels per thread. A
//       value of x read from shared memory serves 4 channels; 4 values of the filter, read at once,
//       serve ROWS outputs.
// mapping: block -> tile_w x tile_h outputs of 4 channels of one group and image; lane -> column q,
//       thread -> kRows outputs p below each other x 4 channels k.
// precision: fp32
// epilogue: bias, relu
// supports: 4 * ((15 * stride_h + (R - 1) * dilation_h + 1)
//       * (15 * stride_w + (S - 1) * dilation_w + 8) + 4 * R * S) <= smem
// best: groups > 1, groups < C, C <= 4 * groups
// limits: Memory, for groups of 4 channels; the multipliers and the reads of shared memory, from
//       about 16 channels on.
#include "convlab_async.cuh"

#ifndef ROWS
#define ROWS 4     // output rows of a thread
#endif
#ifndef C_TILE
#define C_TILE 8   // input channels staged at a time, at most
#endif
constexpr int kRows = ROWS, kCTile = C_TILE, kK = 4;
static_assert(kRows == 2 || kRows == 4 || kRows == 8, "ROWS: 2, 4 or 8");
static_assert(kCTile >= 1, "C_TILE: at least 1");

// The staged tile. Its rows begin `shift` columns before the first needed one, if that aligns them
// to 16 bytes in x.
struct Staging {
    int extent_h, pitch;   // rows of a channel, and floats from one to the next
    int shift;
    bool vectors;          // copy 16 bytes at a time
    int lanes;             // that copy a row together, a power of 2
    int c_tile;            // channels staged at a time; 0: not even one fits
    int bytes;             // shared memory in all
};

// Copies the input tile, kVector columns at a time. These columns are all inside the image or all
// outside; see `staging_for`.
template <int kVector, int kThreads>
__device__ __forceinline__ void stage(const ConvProblem& conv, const Staging& staging, int channels,
                                      const float* x_c0, float* s_x, int h0, int w0) {
    const int lane = threadIdx.x % staging.lanes, team = threadIdx.x / staging.lanes;
    const int teams = kThreads / staging.lanes;   // a team to a row
    int c = team / staging.extent_h, i = team % staging.extent_h;
    for (int row = team; row < channels * staging.extent_h; row += teams) {
        const int h = h0 + i;
        const float* x_row = x_c0 + (int64_t(c) * conv.H + h) * conv.W;
        for (int column = lane * kVector; column < staging.pitch;
             column += staging.lanes * kVector) {
            const int w = w0 - staging.shift + column;
            const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
            copy_async<4 * kVector>(s_x + row * staging.pitch + column, x_row + w, inside);
        }
        for (i += teams; i >= staging.extent_h; i -= staging.extent_h) ++c;
    }
    __pipeline_commit();
}

// kR x kS: the size of the filter, as a constant for the compiler; stride and dilation are 1.
// 0 x 0: any filter, stride and dilation.
template <int kR, int kS, int kTileW, int kThreads>
__global__ void __launch_bounds__(kThreads, kTileW == 32 ? 4 : 12)
conv2d_small_groups(ConvProblem conv, Staging staging, const float* __restrict__ g_x,
                    const float* __restrict__ g_w, const float* __restrict__ g_bias,
                    float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const int RS = conv.R * conv.S;
    float4* s_w = s_mem;                                                // (c_tile, R, S), 4 k
    float* s_x = reinterpret_cast<float*>(s_w + staging.c_tile * RS);   // (c_tile, extent_h, pitch)

    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    constexpr int tile_h = kThreads / kTileW * kRows;
    const int tiles_q = ceil_div(conv.Q, kTileW);
    const int k_tiles = ceil_div(K_group, kK);
    int rest = blockIdx.x;
    const int k0 = rest % k_tiles * kK;   // within the group
    rest /= k_tiles;
    const int q0 = rest % tiles_q * kTileW;
    rest /= tiles_q;
    const int p0 = rest % ceil_div(conv.P, tile_h) * tile_h;
    rest /= ceil_div(conv.P, tile_h);
    const int group = rest % conv.groups;
    const int n = rest / conv.groups;
    const int h0 = p0 * conv.stride_h - conv.pad_h;   // the input tile's corner: may be negative
    const int w0 = q0 * conv.stride_w - conv.pad_w;

    const int q = q0 + threadIdx.x % kTileW;
    const int row0 = threadIdx.x / kTileW * kRows;   // within the tile
    // x at h = p*stride_h - pad_h + r*dilation_h, w = q*stride_w - pad_w + s*dilation_w is
    // s_thread[((p - p0 - row0)*stride_h + r*dilation_h) * pitch + s*dilation_w].
    const float* s_thread = s_x + row0 * conv.stride_h * staging.pitch + staging.shift +
                            (q - q0) * conv.stride_w;
    float r_acc[kRows][kK] = {};
    for (int c0 = 0; c0 < C_group; c0 += staging.c_tile) {
        const int channels = min_of(staging.c_tile, C_group - c0);
        const float* x_c0 = g_x + (int64_t(n) * conv.C + group * C_group + c0) * conv.H * conv.W;
        if (staging.vectors) stage<4, kThreads>(conv, staging, channels, x_c0, s_x, h0, w0);
        else stage<1, kThreads>(conv, staging, channels, x_c0, s_x, h0, w0);
        for (int i = threadIdx.x; i < channels * RS * kK; i += kThreads) {   // lanes along w's rows
            const int tap = i % (channels * RS), k = i / (channels * RS);    // tap: c, r, s
            const float* w_k = g_w + (int64_t(group * K_group + k0 + k) * C_group + c0) * RS;
            reinterpret_cast<float*>(s_w + tap)[k] = k0 + k < K_group ? w_k[tap] : 0.0f;
        }
        __pipeline_wait_prior(0);
        __syncthreads();

        #pragma unroll 1
        for (int c = 0; c < channels; ++c) {
            const float* s_c = s_thread + c * staging.extent_h * staging.pitch;
            if constexpr (kR > 0) {
                #pragma unroll
                for (int s = 0; s < kS; ++s) {
                    float4 r_w[kR];
                    #pragma unroll
                    for (int r = 0; r < kR; ++r) r_w[r] = s_w[c * RS + r * kS + s];
                    #pragma unroll
                    for (int row = 0; row < kRows + kR - 1; ++row) {   // of the input
                        const float r_x = s_c[row * staging.pitch + s];
                        // One read of x serves up to kR output rows x 4 channels.
                        #pragma unroll
                        for (int r = 0; r < kR; ++r) {
                            const int j = row - r;   // of the output
                            if (j < 0 || j >= kRows) continue;
                            r_acc[j][0] += r_x * r_w[r].x;
                            r_acc[j][1] += r_x * r_w[r].y;
                            r_acc[j][2] += r_x * r_w[r].z;
                            r_acc[j][3] += r_x * r_w[r].w;
                        }
                    }
                }
            } else {
                // From the input row of one output to that of the next.
                const int step = conv.stride_h * staging.pitch;
                for (int r = 0; r < conv.R; ++r) {
                    #pragma unroll 1
                    for (int s = 0; s < conv.S; ++s) {
                        const float4 r_w = s_w[c * RS + r * conv.S + s];
                        const float* s_tap =
                            s_c + r * conv.dilation_h * staging.pitch + s * conv.dilation_w;
                        #pragma unroll
                        for (int j = 0; j < kRows; ++j) {
                            const float r_x = s_tap[j * step];
                            r_acc[j][0] += r_x * r_w.x;
                            r_acc[j][1] += r_x * r_w.y;
                            r_acc[j][2] += r_x * r_w.z;
                            r_acc[j][3] += r_x * r_w.w;
                        }
                    }
                }
            }
        }
        __syncthreads();   // all have read the tiles before the next are loaded
    }

    #pragma unroll
    for (int i = 0; i < kK; ++i) {
        if (q >= conv.Q || k0 + i >= K_group) continue;
        const int k = group * K_group + k0 + i;
        const float r_bias = g_bias ? g_bias[k] : 0.0f;
        float* y_p = g_y + ((int64_t(n) * conv.K + k) * conv.P + p0 + row0) * conv.Q + q;
        #pragma unroll
        for (int j = 0; j < kRows; ++j, y_p += conv.Q)
            if (p0 + row0 + j < conv.P) *y_p = activated(conv, r_acc[j][i] + r_bias);
    }
}

// Returns a staging of as many channels at a time as fit into 48 KB, so that several blocks share
// an SM. If a single channel needs more, it is one channel, up to the device's limit. Tiles begin
// at multiples of 16 columns, so all have the same shift.
static Staging staging_for(const ConvProblem& conv, int tile_w, int tile_h, const float* x,
                           int64_t smem) {
    const bool vectors = conv.W % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const int shift = vectors ? (4 - conv.pad_w % 4) % 4 : 0;
    const int64_t extent_h =
        int64_t(tile_h - 1) * conv.stride_h + int64_t(conv.R - 1) * conv.dilation_h + 1;
    const int64_t extent_w =
        int64_t(tile_w - 1) * conv.stride_w + int64_t(conv.S - 1) * conv.dilation_w + 1;
    const int64_t pitch = vectors ? ceil_div(extent_w + shift, int64_t(4)) * 4 : extent_w;
    if (extent_h > smem || pitch > smem) return {};
    const int64_t channel = sizeof(float) * (extent_h * pitch + int64_t(conv.R) * conv.S * kK);
    if (channel > smem) return {};
    const int64_t fit = max_of(int64_t(1), 48 * 1024 / channel);
    const int c_tile = int(min_of(min_of(fit, int64_t(kCTile)), int64_t(conv.C / conv.groups)));
    int lanes = 32;
    while (lanes > 4 && lanes / 2 * (vectors ? 4 : 1) >= pitch) lanes /= 2;
    return {int(extent_h), int(pitch), shift, vectors, lanes, c_tile, int(c_tile * channel)};
}

// Launches the kernel and sets `error`. Returns false if the tile does not fit into shared memory.
template <int kR, int kS, int kTileW, int kThreads>
static bool launch(const ConvProblem& conv, int smem, const float* x, const float* w,
                   const float* bias, float* y, cudaStream_t stream, const char** error) {
    constexpr int tile_h = kThreads / kTileW * kRows;
    const Staging staging = staging_for(conv, kTileW, tile_h, x, smem);
    if (staging.c_tile == 0) return false;
    const int64_t tiles = int64_t(ceil_div(conv.P, tile_h)) * ceil_div(conv.Q, kTileW);
    const int64_t slices = int64_t(conv.groups) * ceil_div(conv.K / conv.groups, kK);
    if (tiles > INT32_MAX / slices || tiles * slices > INT32_MAX / conv.N) {
        *error = "07_small_groups: more tiles than blocks in a grid (2^31)";
        return true;
    }
    const auto kernel = conv2d_small_groups<kR, kS, kTileW, kThreads>;
    // Without this call, a block may have 48 KB of shared memory at most.
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, staging.bytes);
    if (status != cudaSuccess) {
        *error = cudaGetErrorString(status);
        return true;
    }
    kernel<<<unsigned(tiles * slices * conv.N), kThreads, staging.bytes, stream>>>(
        conv, staging, x, w, bias, y);
    *error = launch_error();
    return true;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int smem = device.smem;

    const bool usual = conv.R == 3 && conv.S == 3 && conv.stride_h == 1 && conv.stride_w == 1 &&
                       conv.dilation_h == 1 && conv.dilation_w == 1;
    const bool wide = conv.Q > 16;
    const char* error = nullptr;
    const bool launched =
        (usual && wide && launch<3, 3, 32, 256>(conv, smem, x, w, bias, y, stream, &error)) ||
        (usual && launch<3, 3, 16, 64>(conv, smem, x, w, bias, y, stream, &error)) ||
        (wide && launch<0, 0, 32, 256>(conv, smem, x, w, bias, y, stream, &error)) ||
        launch<0, 0, 16, 64>(conv, smem, x, w, bias, y, stream, &error);
    if (launched) return error;
    return "07_small_groups: a tile does not fit into shared memory; use 01_direct";
}
