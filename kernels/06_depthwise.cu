// title: Depthwise
// idea: With one input channel per output channel, each value of x is used only R*S times, so
//       memory is the limit. A block copies the input tile of one plane into shared memory, and
//       keeps many copies in flight.
// change: Against 03: no loops over channels. The tile arrives by asynchronous copies, of 16 bytes
//       if rows allow it. A thread computes several outputs of a column and reads each input row
//       once for all of them.
// mapping: block -> tile_w x tile_h outputs of one plane (n, c), for all K/groups channels that use
//       the plane; lane -> column q, thread -> up to ROWS outputs p below each other.
// precision: fp32
// epilogue: bias, relu
// supports: groups == C, 4 * (7 * stride_h + (R - 1) * dilation_h + 1)
//       * (31 * stride_w + (S - 1) * dilation_w + 8) <= smem
// best: groups > 1
// limits: Memory: x is read and y written once. Filter sizes that are not listed at the end,
//       strides and dilations need loops at run time, and a shared-memory read for each product.
#include "convlab_async.cuh"

#ifndef TILE_W
#define TILE_W 256    // output columns of a block, at most
#endif
#ifndef ROWS
#define ROWS 32       // output rows of a thread, at most
#endif
constexpr int kThreads = 256;
constexpr int kTileW = TILE_W, kRows = ROWS;
static_assert(kTileW >= 32 && kThreads % kTileW == 0, "TILE_W: 32, 64, 128 or 256");
static_assert(kRows >= 1 && kRows <= 256, "ROWS: 1 to 256");
constexpr int kChunk = 4;   // outputs of a column that are summed at a time, for any R and S

// A block computes tile_w x (kThreads / tile_w * rows) outputs. Their input tile is in shared
// memory. Its rows begin `shift` columns before the first needed one, if that aligns them to 16
// bytes in x.
struct Tile {
    int tile_w, rows;
    int extent_h, pitch;   // staged rows, and floats from one to the next
    int shift;
    bool vectors;          // copy 16 bytes at a time
};

// Copies the input tile, kVector columns at a time. These columns are all inside the image or all
// outside; see `tile_for`.
template <int kVector>
__device__ __forceinline__ void stage(const ConvProblem& conv, const Tile& tile,
                                      const float* x_plane, float* s_x, int h0, int w0) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < tile.extent_h; row += kThreads / 32) {
        const int h = h0 + row;
        const float* x_row = x_plane + int64_t(h) * conv.W;
        for (int column = lane * kVector; column < tile.pitch; column += 32 * kVector) {
            const int w = w0 - tile.shift + column;
            const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
            copy_async<4 * kVector>(s_x + row * tile.pitch + column, x_row + w, inside);
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
}

// kR x kS: the size of the filter, as a constant for the compiler; stride and dilation are 1.
// 0 x 0: any filter, stride and dilation.
template <int kR, int kS>
__global__ void __launch_bounds__(kThreads, kR * kS > 25 ? 2 : 4)
conv2d_depthwise(ConvProblem conv, Tile tile, const float* __restrict__ g_x,
                 const float* __restrict__ g_w, const float* __restrict__ g_bias,
                 float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    float* s_x = reinterpret_cast<float*>(s_mem);   // (extent_h, pitch)

    const int tile_h = kThreads / tile.tile_w * tile.rows;
    const int tiles_q = ceil_div(conv.Q, tile.tile_w);
    const int tiles = tiles_q * ceil_div(conv.P, tile_h);
    const int plane = blockIdx.x / tiles;   // n * C + c
    const int q0 = blockIdx.x % tiles % tiles_q * tile.tile_w;
    const int p0 = blockIdx.x % tiles / tiles_q * tile_h;
    const int h0 = p0 * conv.stride_h - conv.pad_h;   // the input tile's corner: may be negative
    const int w0 = q0 * conv.stride_w - conv.pad_w;
    const float* x_plane = g_x + int64_t(plane) * conv.H * conv.W;   // (H, W)
    if (tile.vectors) stage<4>(conv, tile, x_plane, s_x, h0, w0);
    else stage<1>(conv, tile, x_plane, s_x, h0, w0);
    __syncthreads();

    const int q = q0 + threadIdx.x % tile.tile_w;
    const int row0 = threadIdx.x / tile.tile_w * tile.rows;   // within the tile
    // x at h = p*stride_h - pad_h + r*dilation_h, w = q*stride_w - pad_w + s*dilation_w is
    // s_thread[((p - p0 - row0)*stride_h + r*dilation_h) * pitch + s*dilation_w].
    const float* s_thread = s_x + row0 * conv.stride_h * tile.pitch + tile.shift +
                            (q - q0) * conv.stride_w;
    const int rows = q < conv.Q ? min_of(tile.rows, conv.P - p0 - row0) : 0;   // may be negative
    const int multiplier = conv.K / conv.C;
    for (int i = 0; i < multiplier; ++i) {
        const int k = plane % conv.C * multiplier + i;
        const float* w_k = g_w + int64_t(k) * conv.R * conv.S;   // (R, S)
        const float r_bias = g_bias ? g_bias[k] : 0.0f;
        const int64_t n = plane / conv.C;
        float* y_thread = g_y + ((n * conv.K + k) * conv.P + p0 + row0) * conv.Q + q;
        if constexpr (kR > 0) {
            float r_w[kR][kS];
            #pragma unroll
            for (int tap = 0; tap < kR * kS; ++tap) r_w[tap / kS][tap % kS] = w_k[tap];
            float r_acc[kR] = {};   // sums of the kR output rows that use this input row: row - r
            const float* s_row = s_thread;
            #pragma unroll kR   // so that the shift of r_acc only renames registers
            for (int row = 0; row < rows + kR - 1; ++row) {
                // Each value of this input row is read once, for the sums of kR output rows.
                #pragma unroll
                for (int s = 0; s < kS; ++s)
                    for (int r = 0; r < kR; ++r) r_acc[r] += s_row[s] * r_w[r][s];
                if (row >= kR - 1) {
                    *y_thread = activated(conv, r_acc[kR - 1] + r_bias);
                    y_thread += conv.Q;
                }
                #pragma unroll
                for (int r = kR - 1; r > 0; --r) r_acc[r] = r_acc[r - 1];
                r_acc[0] = 0.0f;
                s_row += tile.pitch;
            }
        } else {
            // From the input row of one output to that of the next.
            const int step = conv.stride_h * tile.pitch;
            for (int first = 0; first < rows; first += kChunk) {
                const int last = min_of(kChunk, rows - first) - 1;
                float r_acc[kChunk] = {};
                for (int r = 0; r < conv.R; ++r) {
                    #pragma unroll 1
                    for (int s = 0; s < conv.S; ++s) {
                        const float r_w = w_k[r * conv.S + s];
                        const float* s_tap = s_thread + first * step +
                                             r * conv.dilation_h * tile.pitch + s * conv.dilation_w;
                        #pragma unroll
                        for (int row = 0; row < kChunk; ++row)   // past the last: the last again
                            r_acc[row] += s_tap[min_of(row, last) * step] * r_w;
                    }
                }
                #pragma unroll
                for (int row = 0; row < kChunk; ++row)
                    if (row <= last)
                        y_thread[int64_t(first + row) * conv.Q] =
                            activated(conv, r_acc[row] + r_bias);
            }
        }
    }
}

// Returns the tile of a size. Tiles begin at multiples of 32 columns, so all have the same shift.
static Tile tile_for(const ConvProblem& conv, int tile_w, int rows, const float* x) {
    const bool vectors = conv.W % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const int shift = vectors ? (4 - conv.pad_w % 4) % 4 : 0;
    const int64_t tile_h = kThreads / tile_w * rows;
    const int64_t extent_h =
        (tile_h - 1) * conv.stride_h + int64_t(conv.R - 1) * conv.dilation_h + 1;
    const int64_t extent_w =
        int64_t(tile_w - 1) * conv.stride_w + int64_t(conv.S - 1) * conv.dilation_w + 1;
    const int64_t pitch = vectors ? ceil_div(extent_w + shift, int64_t(4)) * 4 : extent_w;
    if (extent_h > INT32_MAX / 4 / pitch) return {};
    return {tile_w, rows, int(extent_h), int(pitch), shift, vectors};
}

template <int kR, int kS>
static const char* launch(const ConvProblem& conv, const Tile& tile, const float* x, const float* w,
                          const float* bias, float* y, cudaStream_t stream) {
    const int64_t tiles = int64_t(ceil_div(conv.P, kThreads / tile.tile_w * tile.rows)) *
                          ceil_div(conv.Q, tile.tile_w);
    const int64_t planes = int64_t(conv.N) * conv.C;
    if (tiles > INT32_MAX / planes) return "06_depthwise: more tiles than blocks in a grid (2^31)";
    const int bytes = tile.extent_h * tile.pitch * int(sizeof(float));
    // Without this call, a block may have 48 KB of shared memory at most.
    const cudaError_t status = cudaFuncSetAttribute(
        conv2d_depthwise<kR, kS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    conv2d_depthwise<kR, kS><<<unsigned(tiles * planes), kThreads, bytes, stream>>>(
        conv, tile, x, w, bias, y);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;

    // Start with the widest tile that is more than half full. Then take as many rows as fit into a
    // quarter of the shared memory, so that four blocks share an SM.
    int tile_w = kTileW, rows = kRows;
    while (tile_w > 32 && tile_w / 2 >= conv.Q) tile_w /= 2;
    while (rows > 1 && kThreads / tile_w * rows / 2 >= conv.P) rows = ceil_div(rows, 2);
    const auto bytes = [&] {
        const Tile tile = tile_for(conv, tile_w, rows, x);
        return tile.pitch ? int64_t(tile.extent_h) * tile.pitch * int(sizeof(float)) : INT64_MAX;
    };
    while (rows > 1 && bytes() > device.smem / 4) rows = ceil_div(rows, 2);
    while (tile_w > 32 && bytes() > device.smem) tile_w /= 2;
    if (bytes() > device.smem)
        return "06_depthwise: a tile does not fit into shared memory; use 01_direct";

    const Tile tile = tile_for(conv, tile_w, rows, x);
    const bool unit = conv.stride_h == 1 && conv.stride_w == 1 && conv.dilation_h == 1 &&
                      conv.dilation_w == 1;
    const auto is = [&](int R, int S) { return unit && conv.R == R && conv.S == S; };
    if (is(3, 3)) return launch<3, 3>(conv, tile, x, w, bias, y, stream);
    if (is(3, 1)) return launch<3, 1>(conv, tile, x, w, bias, y, stream);
    if (is(3, 7)) return launch<3, 7>(conv, tile, x, w, bias, y, stream);
    if (is(5, 5)) return launch<5, 5>(conv, tile, x, w, bias, y, stream);
    if (is(7, 7)) return launch<7, 7>(conv, tile, x, w, bias, y, stream);
    return launch<0, 0>(conv, tile, x, w, bias, y, stream);
}
