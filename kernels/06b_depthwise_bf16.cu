// title: Depthwise in bf16
// idea: Memory is the limit, and bf16 halves its traffic. Two neighbours share a 32-bit word, so a
//       thread computes two columns: it reads words, and it stores one.
// change: Against 06: x, w and y are bf16; sums are fp32, and a sum is rounded once, at the end. A
//       thread computes two neighbouring columns.
// mapping: block -> tile_w x tile_h outputs of one plane (n, c), for all K/groups channels that use
//       the plane; lane -> columns q and q + 1, thread -> up to ROWS outputs p below each other.
// precision: bf16
// epilogue: bias, relu
// tensors: x bf16, w bf16, y bf16, bias f32
// supports: groups == C, 2 * (3 * stride_h + (R - 1) * dilation_h + 1)
//       * (63 * stride_w + (S - 1) * dilation_w + 18) <= smem
// limits: Memory, as 06. If W is odd, x is staged number by number, and if Q is odd, y is stored so.
#include "convlab_async.cuh"
#include "tensor.cuh"

#ifndef TILE_W
#define TILE_W 256    // output columns of a block, at most
#endif
#ifndef ROWS
#define ROWS 32       // output rows of a thread, at most
#endif
constexpr int kThreads = 256;
constexpr int kTileW = TILE_W, kRows = ROWS;
static_assert(kTileW >= 64 && 2 * kThreads % kTileW == 0, "TILE_W: 64, 128, 256 or 512");
static_assert(kRows >= 1 && kRows <= 256, "ROWS: 1 to 256");
constexpr int kChunk = 4;   // outputs of a column that are summed at a time, for any R and S

// A block computes tile_w x (2 * kThreads / tile_w * rows) outputs. Their input tile is in shared
// memory. Its rows begin `shift` columns before the first needed one, so that copies are aligned.
struct Tile {
    int tile_w, rows;
    int extent_h, pitch;   // staged rows, and numbers from one to the next: an even number
    int shift;
    int vector;            // columns of a copy: 8, 2 or 1
};

__device__ __forceinline__ float number(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// Copies the input tile, kVector columns at a time. These columns are all inside the image or all
// outside; see `tile_for`.
template <int kVector>
__device__ __forceinline__ void stage(const ConvProblem& conv, const Tile& tile,
                                      const bf16* x_plane, bf16* s_x, int h0, int w0) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < tile.extent_h; row += kThreads / 32) {
        const int h = h0 + row;
        const bf16* x_row = x_plane + int64_t(h) * conv.W;
        for (int column = lane * kVector; column < tile.pitch; column += 32 * kVector) {
            const int w = w0 - tile.shift + column;
            const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
            bf16* s_to = s_x + row * tile.pitch + column;
            if constexpr (kVector == 1) {   // the smallest asynchronous copy has 4 bytes
                s_to->bits = inside ? x_row[w].bits : 0;
            } else {
                copy_async<2 * kVector>(reinterpret_cast<float*>(s_to),
                                        reinterpret_cast<const float*>(x_row + w), inside);
            }
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
}

// Stores the outputs of two columns, or of the first one alone.
__device__ __forceinline__ void store(bf16* y, float first, float second, bool both, bool aligned) {
    const uint32_t pair = round_bf16(first, second);
    if (both && aligned) {
        *reinterpret_cast<uint32_t*>(y) = pair;
    } else {
        y[0].bits = uint16_t(pair);
        if (both) y[1].bits = uint16_t(pair >> 16);
    }
}

// kR x kS: the size of the filter, as a constant for the compiler; stride and dilation are 1.
// 0 x 0: any filter, stride and dilation. kOdd: a thread's first number is a word's upper half.
template <int kR, int kS, int kOdd>
__global__ void __launch_bounds__(kThreads, kR * kS > 25 ? 1 : kR * kS > 9 ? 2 : 4)
conv2d_depthwise(ConvProblem conv, Tile tile, const bf16* __restrict__ g_x,
                 const bf16* __restrict__ g_w, const float* __restrict__ g_bias,
                 bf16* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    bf16* s_x = reinterpret_cast<bf16*>(s_mem);   // (extent_h, pitch)

    const int across = tile.tile_w / 2;           // threads
    const int tile_h = kThreads / across * tile.rows;
    const int tiles_q = ceil_div(conv.Q, tile.tile_w);
    const int tiles = tiles_q * ceil_div(conv.P, tile_h);
    const int plane = blockIdx.x / tiles;   // n * C + c
    const int q0 = blockIdx.x % tiles % tiles_q * tile.tile_w;
    const int p0 = blockIdx.x % tiles / tiles_q * tile_h;
    const int h0 = p0 * conv.stride_h - conv.pad_h;   // the input tile's corner: may be negative
    const int w0 = q0 * conv.stride_w - conv.pad_w;
    const bf16* x_plane = g_x + int64_t(plane) * conv.H * conv.W;   // (H, W)
    if (tile.vector == 8) stage<8>(conv, tile, x_plane, s_x, h0, w0);
    else if (tile.vector == 2) stage<2>(conv, tile, x_plane, s_x, h0, w0);
    else stage<1>(conv, tile, x_plane, s_x, h0, w0);
    __syncthreads();

    const int q = q0 + threadIdx.x % across * 2;
    const int row0 = threadIdx.x / across * tile.rows;   // within the tile
    // x at h = p*stride_h - pad_h + r*dilation_h, w = q*stride_w - pad_w + s*dilation_w is
    // s_thread[((p - p0 - row0)*stride_h + r*dilation_h) * pitch + s*dilation_w].
    const bf16* s_thread = s_x + row0 * conv.stride_h * tile.pitch + tile.shift +
                           (q - q0) * conv.stride_w;
    const int rows = q < conv.Q ? min_of(tile.rows, conv.P - p0 - row0) : 0;   // may be negative
    const bool both = q + 1 < conv.Q, aligned = conv.Q % 2 == 0;
    const int multiplier = conv.K / conv.C;
    for (int i = 0; i < multiplier; ++i) {
        const int k = plane % conv.C * multiplier + i;
        const bf16* w_k = g_w + int64_t(k) * conv.R * conv.S;   // (R, S)
        const float r_bias = g_bias ? g_bias[k] : 0.0f;
        const int64_t n = plane / conv.C;
        bf16* y_thread = g_y + ((n * conv.K + k) * conv.P + p0 + row0) * conv.Q + q;
        if constexpr (kR > 0) {
            constexpr int kWords = (kOdd + kS + 2) / 2;   // that hold kS + 1 numbers
            float r_w[kR][kS];
            #pragma unroll
            for (int tap = 0; tap < kR * kS; ++tap) r_w[tap / kS][tap % kS] = number(w_k[tap].bits);
            float r_acc[kR][2] = {};   // sums of the kR output rows that use this input row
            const uint32_t* s_row = reinterpret_cast<const uint32_t*>(s_thread - kOdd);
            #pragma unroll kR   // so that the shift of r_acc only renames registers
            for (int row = 0; row < rows + kR - 1; ++row) {
                // Each word of this input row is read once, for the sums of kR output rows.
                float r_x[2 * kWords];
                #pragma unroll
                for (int word = 0; word < kWords; ++word) {
                    const uint32_t pair = s_row[word];
                    r_x[2 * word] = low_of(pair), r_x[2 * word + 1] = high_of(pair);
                }
                #pragma unroll
                for (int s = 0; s < kS; ++s)
                    for (int r = 0; r < kR; ++r)
                        for (int column = 0; column < 2; ++column)
                            r_acc[r][column] += r_x[kOdd + s + column] * r_w[r][s];
                if (row >= kR - 1) {
                    store(y_thread, activated(conv, r_acc[kR - 1][0] + r_bias),
                          activated(conv, r_acc[kR - 1][1] + r_bias), both, aligned);
                    y_thread += conv.Q;
                }
                #pragma unroll
                for (int column = 0; column < 2; ++column) {
                    #pragma unroll
                    for (int r = kR - 1; r > 0; --r) r_acc[r][column] = r_acc[r - 1][column];
                    r_acc[0][column] = 0.0f;
                }
                s_row += tile.pitch / 2;
            }
        } else {
            // From the input row of one output to that of the next, and to the next column's input.
            const int step = conv.stride_h * tile.pitch;
            for (int first = 0; first < rows; first += kChunk) {
                const int last = min_of(kChunk, rows - first) - 1;
                float r_acc[kChunk][2] = {};
                for (int r = 0; r < conv.R; ++r) {
                    #pragma unroll 1
                    for (int s = 0; s < conv.S; ++s) {
                        const float r_w = number(w_k[r * conv.S + s].bits);
                        const bf16* s_tap = s_thread + first * step +
                                            r * conv.dilation_h * tile.pitch + s * conv.dilation_w;
                        #pragma unroll
                        for (int row = 0; row < kChunk; ++row) {   // past the last: the last again
                            const bf16* s_x_row = s_tap + min_of(row, last) * step;
                            r_acc[row][0] += number(s_x_row[0].bits) * r_w;
                            r_acc[row][1] += number(s_x_row[both ? conv.stride_w : 0].bits) * r_w;
                        }
                    }
                }
                #pragma unroll
                for (int row = 0; row < kChunk; ++row)
                    if (row <= last)
                        store(y_thread + int64_t(first + row) * conv.Q,
                              activated(conv, r_acc[row][0] + r_bias),
                              activated(conv, r_acc[row][1] + r_bias), both, aligned);
            }
        }
    }
}

// Returns the tile of a size. Tiles begin at multiples of 64 columns, so all have the same shift.
static Tile tile_for(const ConvProblem& conv, int tile_w, int rows, const bf16* x) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(x);
    const int vector = conv.W % 8 == 0 && at % 16 == 0 ? 8 : conv.W % 2 == 0 && at % 4 == 0 ? 2 : 1;
    const int shift = (vector - conv.pad_w % vector) % vector;
    const int64_t tile_h = 2 * kThreads / tile_w * rows;
    const int64_t extent_h =
        (tile_h - 1) * conv.stride_h + int64_t(conv.R - 1) * conv.dilation_h + 1;
    // One number more than the outputs need, to the end of a word.
    const int64_t extent_w =
        int64_t(tile_w - 1) * conv.stride_w + int64_t(conv.S - 1) * conv.dilation_w + 2;
    const int64_t multiple = max_of(vector, 2);
    const int64_t pitch = ceil_div(extent_w + shift, multiple) * multiple;
    if (extent_h > INT32_MAX / 4 / pitch) return {};
    return {tile_w, rows, int(extent_h), int(pitch), shift, vector};
}

template <int kR, int kS, int kOdd>
static const char* launch(const ConvProblem& conv, const Tile& tile, const bf16* x, const bf16* w,
                          const float* bias, bf16* y, cudaStream_t stream) {
    const int64_t tiles = int64_t(ceil_div(conv.P, 2 * kThreads / tile.tile_w * tile.rows)) *
                          ceil_div(conv.Q, tile.tile_w);
    const int64_t planes = int64_t(conv.N) * conv.C;
    if (tiles > INT32_MAX / planes)
        return "06b_depthwise_bf16: more tiles than blocks in a grid (2^31)";
    const int bytes = tile.extent_h * tile.pitch * int(sizeof(bf16));
    // Without this call, a block may have 48 KB of shared memory at most.
    const cudaError_t status = cudaFuncSetAttribute(
        conv2d_depthwise<kR, kS, kOdd>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    conv2d_depthwise<kR, kS, kOdd><<<unsigned(tiles * planes), kThreads, bytes, stream>>>(
        conv, tile, x, w, bias, y);
    return launch_error();
}

template <int kR, int kS>
static const char* launch_odd(const ConvProblem& conv, const Tile& tile, const bf16* x,
                              const bf16* w, const float* bias, bf16* y, cudaStream_t stream) {
    if (tile.shift % 2 == 1) return launch<kR, kS, 1>(conv, tile, x, w, bias, y, stream);
    return launch<kR, kS, 0>(conv, tile, x, w, bias, y, stream);
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const bf16* x, const bf16* w,
                                 const float* bias, bf16* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;

    // Start with the widest tile that is more than half full. Then take as many rows as fit into a
    // quarter of the shared memory, so that four blocks share an SM.
    int tile_w = kTileW, rows = kRows;
    while (tile_w > 64 && tile_w / 2 >= conv.Q) tile_w /= 2;
    while (rows > 1 && 2 * kThreads / tile_w * rows / 2 >= conv.P) rows = ceil_div(rows, 2);
    const auto bytes = [&] {
        const Tile tile = tile_for(conv, tile_w, rows, x);
        return tile.pitch ? int64_t(tile.extent_h) * tile.pitch * int(sizeof(bf16)) : INT64_MAX;
    };
    while (rows > 1 && bytes() > device.smem / 4) rows = ceil_div(rows, 2);
    while (tile_w > 64 && bytes() > device.smem) tile_w /= 2;
    if (bytes() > device.smem)
        return "06b_depthwise_bf16: a tile does not fit into shared memory; use 06_depthwise";

    const Tile tile = tile_for(conv, tile_w, rows, x);
    const bool unit = conv.stride_h == 1 && conv.stride_w == 1 && conv.dilation_h == 1 &&
                      conv.dilation_w == 1;
    const auto is = [&](int R, int S) { return unit && conv.R == R && conv.S == S; };
    if (is(3, 3)) return launch_odd<3, 3>(conv, tile, x, w, bias, y, stream);
    if (is(3, 1)) return launch_odd<3, 1>(conv, tile, x, w, bias, y, stream);
    if (is(3, 7)) return launch_odd<3, 7>(conv, tile, x, w, bias, y, stream);
    if (is(5, 5)) return launch_odd<5, 5>(conv, tile, x, w, bias, y, stream);
    if (is(7, 7)) return launch_odd<7, 7>(conv, tile, x, w, bias, y, stream);
    return launch<0, 0, 0>(conv, tile, x, w, bias, y, stream);
}
