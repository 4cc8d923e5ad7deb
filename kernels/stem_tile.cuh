// The parts that 14 and 14b share besides their loops: how a problem is cut into tiles, how a block
// stages the filter, how a warp stores its sums to y, and the launch. Include it after tensor.cuh.
#pragma once

#include "convlab_async.cuh"

constexpr int kParts = 7;             // parts of 8 columns: a warp's piece of an output row
constexpr int kColumns = 8 * kParts;
// Words of a warp's buffer for y, 8 channels. The banks of a store, 56 g + 2 t, do not conflict.
constexpr int kYWords = 8 * kColumns;

// The template arguments of a kernel. k_parts: channels of a block, in parts of 16. warps: output
// rows of a tile at most, one for each warp. blocks: how many blocks the registers of an SM allow.
struct Shape {
    int k_parts, warps, blocks;
};

// A stage of x is some channels of a tile's input, halo included. Shared memory holds two stages,
// and the filter of the block's channels for the whole kernel.
struct Tiling {
    int rows;                        // of output in a tile
    int extent_h, extent_w;          // of its input
    int pitch, plane;                // words from one row of a stage to the next; one channel
    int channels, chunks;            // of a stage; stages of a tile
    int steps;                       // of 8 taps (c, r, s) of a stage; the last may be partial
    int tiles_p, tiles_q, tiles;
    int k_tiles, lanes;              // of a group; blocks for each of them
    bool vectors;                    // y is written 16 bytes at a time
    int stage_words;                 // of a stage; it later holds the warps' buffers for y
    int tap_at, bias_at, x_at;       // offsets in shared memory, in words
    int bytes;                       // of shared memory; 0: the tiles do not fit or are too many
};

struct Block {
    float4* s_w;    // [chunk][step][k part][lane]: a lane's fragment is one 16-byte read
    float *s_bias, *s_x;
    int2* s_tap;    // [step][t]: where taps 8 step + t and 8 step + t + 4 are in a stage; or -1
    int warp, lane, warps;
    int group, k0, channels;   // k0: within the group; channels: from it to the group's last
    int first_tile;
};

__device__ __forceinline__ Block block_of(const ConvProblem& conv, const Tiling& tiling,
                                          int k_parts, float4* s_mem) {
    float* s_words = reinterpret_cast<float*>(s_mem);
    Block b;
    b.s_w = s_mem;
    b.s_tap = reinterpret_cast<int2*>(s_words + tiling.tap_at);
    b.s_bias = s_words + tiling.bias_at;
    b.s_x = s_words + tiling.x_at;
    // By a shuffle, so that the compiler treats it as uniform in the warp.
    b.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    b.lane = threadIdx.x % 32;
    b.warps = tiling.rows;
    const int k_tile = blockIdx.x / tiling.lanes, K_group = conv.K / conv.groups;
    b.group = k_tile / tiling.k_tiles;
    b.k0 = k_tile % tiling.k_tiles * 16 * k_parts;
    b.channels = K_group - b.k0;
    b.first_tile = blockIdx.x % tiling.lanes;
    return b;
}

// Stages the filter in the order of fragments (see mma_m16n8k8_tf32), the bias and the taps'
// offsets.
__device__ __forceinline__ void set_up(const ConvProblem& conv, const Tiling& tiling,
                                       const Block& b, int k_parts, const float* g_w,
                                       const float* g_bias) {
    const int C_group = conv.C / conv.groups, RS = conv.R * conv.S;
    const int64_t first_k = int64_t(b.group) * (conv.K / conv.groups) + b.k0;
    for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
        const int c0 = chunk * tiling.channels;
        const int taps = min_of(tiling.channels, C_group - c0) * RS;
        for (int k = b.warp; k < 16 * k_parts; k += b.warps) {
            const float* w_k = g_w + ((first_k + k) * C_group + c0) * RS;
            float4* s_k = b.s_w + (chunk * tiling.steps * k_parts + k / 16) * 32 + k % 8 * 4;
            for (int i = b.lane; i < 8 * tiling.steps; i += 32) {
                float* to = reinterpret_cast<float*>(s_k + i / 8 * k_parts * 32 + i % 4);
                copy_async<4>(to + i / 4 % 2 * 2 + k / 8 % 2, w_k + i, k < b.channels && i < taps);
            }
        }
    }
    __pipeline_commit();
    for (int i = threadIdx.x; i < 8 * tiling.steps + 8; i += 32 * b.warps) {   // and 8 unused
        const int c = i / RS, r = i % RS / conv.S, s = i % conv.S;
        reinterpret_cast<int*>(b.s_tap)[i / 8 * 8 + i % 4 * 2 + i / 4 % 2] =
            c < tiling.channels ? c * tiling.plane + r * conv.dilation_h * tiling.pitch +
                                      s * conv.dilation_w
                                : -1;
    }
    for (int k = threadIdx.x; k < 16 * k_parts; k += 32 * b.warps)
        b.s_bias[k] = g_bias && k < b.channels ? g_bias[first_k + k] : 0.0f;
}

struct Tile {   // by its first output
    int n, p, q;
};
__device__ __forceinline__ Tile tile_at(const Tiling& tiling, int tile) {
    const int per_image = tiling.tiles_p * tiling.tiles_q, rest = tile % per_image;
    return {tile / per_image, rest / tiling.tiles_q * tiling.rows,
            rest % tiling.tiles_q * kColumns};
}

// Stores a warp's sums, an output row of 16 k_parts channels, to y: 8 channels at a time, through
// shared memory. Direct stores would be runs of only 32 bytes. If y's rows allow it, a lane stores
// 16 bytes at a time.
template <int kKParts>
__device__ __forceinline__ void store_row(const ConvProblem& conv, const Tiling& tiling,
                                          const Block& b, const Tile& at,
                                          const float (&r_acc)[kKParts][kParts][4], float* s_y,
                                          float* g_y) {
    const int p = at.p + b.warp;
    if (p >= conv.P) return;
    const int g = b.lane / 4, t = b.lane % 4;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int columns = min_of(kColumns, conv.Q - at.q);
    float* y_k = g_y + (int64_t(at.n) * conv.K + b.group * (conv.K / conv.groups) + b.k0) * PQ +
                 int64_t(p) * conv.Q + at.q;
    #pragma unroll
    for (int i = 0; i < 2 * kKParts; ++i, y_k += 8 * PQ) {
        const int channels = b.channels - 8 * i;
        #pragma unroll
        for (int j = 0; j < kParts; ++j) {
            const float* r_two = r_acc[i / 2][j] + i % 2 * 2;
            *reinterpret_cast<float2*>(s_y + g * kColumns + 8 * j + 2 * t) =
                make_float2(activated(conv, r_two[0]), activated(conv, r_two[1]));
        }
        __syncwarp();
        if (tiling.vectors) {
            const int first = b.lane / 16, column = b.lane % 16 * 4;
            #pragma unroll
            for (int k = first; k < first + 8; k += 2)
                if (k < channels && column < columns)
                    *reinterpret_cast<float4*>(y_k + k * PQ + column) =
                        *reinterpret_cast<float4*>(s_y + k * kColumns + column);
        } else {
            #pragma unroll
            for (int k = 0; k < 8; ++k)
                for (int column = b.lane; column < b.lane + 64; column += 32)
                    if (k < channels && column < columns)
                        y_k[k * PQ + column] = s_y[k * kColumns + column];
        }
        __syncwarp();
    }
}

// A fragment of x is read at tap + stride_w * output, for 4 taps and 8 outputs. In a row of x these
// are one run of words. One lane (stride 4) or several lanes (smaller strides) read each word. If
// the taps continue in the next row, its words should follow in the banks after that run. Returns
// the smallest pitch, at least `words`, for which they do.
inline int64_t continued(int64_t words, int64_t run, int stride_w) {
    const int64_t banks = stride_w % 4 == 0 ? 4 : 32;
    return words + ((run - words) % banks + banks) % banks;
}

// Returns the tiling of a problem: with as many rows in a tile as fit, then as many blocks on an
// SM, then as many channels in a stage.
inline Tiling tiling_for(const ConvProblem& conv, const Shape& shape, const ThisDevice& device) {
    Tiling t = {};
    const int C_group = conv.C / conv.groups, k_words = 16 * shape.k_parts;
    const int64_t RS = int64_t(conv.R) * conv.S;
    const int64_t run = 7 * int64_t(conv.stride_w) + int64_t(conv.S - 1) * conv.dilation_w + 1;
    const int64_t extent_w = run + int64_t(kColumns - 8) * conv.stride_w;
    const int64_t down = int64_t(conv.R - 1) * conv.dilation_h;
    const int64_t pitch = continued(extent_w, run, conv.stride_w);
    if (pitch > device.smem || down >= device.smem || RS * C_group > device.smem / 64) return t;
    t.extent_w = int(extent_w), t.pitch = int(pitch);
    t.tiles_q = ceil_div(conv.Q, kColumns);
    t.k_tiles = ceil_div(conv.K / conv.groups, k_words);

    auto fits = [&](int rows, int blocks, int chunks) {
        const int64_t extent_h = int64_t(rows - 1) * conv.stride_h + down + 1;
        const int64_t plane = continued(extent_h * pitch, down * pitch + run, conv.stride_w);
        const int channels = ceil_div(C_group, chunks);
        if (ceil_div(C_group, channels) != chunks) return false;
        const int64_t steps = ceil_div(channels * RS, int64_t(8));
        const int64_t stage_words =   // later y, 16 bytes aligned
            ceil_div(max_of(channels * plane, int64_t(rows) * kYWords), int64_t(4)) * 4;
        const int64_t tap_at = 8 * steps * chunks * k_words;
        const int64_t bias_at = tap_at + 8 * steps + 8, x_at = bias_at + k_words;
        const int64_t bytes = 4 * (x_at + 2 * stage_words);
        if (bytes > min_of(device.smem, device.smem_sm / blocks - 1024)) return false;
        const int64_t tiles = int64_t(conv.N) * ceil_div(conv.P, rows) * t.tiles_q;
        const int64_t k_tiles = int64_t(conv.groups) * t.k_tiles;
        if (tiles > INT32_MAX / 2 || k_tiles > INT32_MAX / (blocks * device.sms)) return false;
        t.rows = rows, t.extent_h = int(extent_h), t.plane = int(plane);
        t.channels = channels, t.chunks = chunks, t.steps = int(steps);
        t.tiles_p = ceil_div(conv.P, rows), t.tiles = int(tiles);
        t.lanes = int(min_of(tiles, max_of(int64_t(1), blocks * device.sms / k_tiles)));
        t.stage_words = int(stage_words), t.tap_at = int(tap_at), t.bias_at = int(bias_at);
        t.x_at = int(x_at), t.bytes = int(bytes);
        return true;
    };
    for (int rows = min_of(shape.warps, conv.P); rows > 0; rows /= 2)
        for (int blocks = shape.blocks; blocks > 0; --blocks)
            for (int chunks = 1; chunks <= C_group; ++chunks)
                if (fits(rows, blocks, chunks)) return t;
    return t;
}

using StemKernel = void (*)(ConvProblem, Tiling, const float*, const float*, const float*, float*);
struct Choice {
    Shape shape;
    StemKernel kernel;
};

// Launches the choice that wastes the fewest channels. Of equal ones, it takes the first with at
// least 4 rows in a tile.
template <int kChoices>
const char* launch_stem(const Choice (&choices)[kChoices], const ConvProblem& conv, const float* x,
                        const float* w, const float* bias, float* y, cudaStream_t stream) {
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;

    Tiling best = {};
    StemKernel kernel = nullptr;
    int64_t least = 0;
    for (const Choice& choice : choices) {
        const Tiling t = tiling_for(conv, choice.shape, device);
        if (t.bytes == 0) continue;
        const int64_t channels = int64_t(t.k_tiles) * choice.shape.k_parts * 16;
        const int64_t cost = 2 * channels + (t.rows < min_of(4, conv.P));
        if (kernel && cost >= least) continue;
        best = t, kernel = choice.kernel, least = cost;
    }
    if (!kernel)
        return "the tiles are more than 2^30, or do not fit into shared memory; use 10_mma_tf32";
    if (const char* error = ask_for_shared_memory(kernel, best.bytes)) return error;
    best.vectors = conv.Q % 4 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    const unsigned grid = unsigned(conv.groups) * best.k_tiles * best.lanes;
    kernel<<<grid, 32 * best.rows, best.bytes, stream>>>(conv, best, x, w, bias, y);
    return launch_error();
}
