// The tiling of the rungs on wgmma, from 11 on: how a problem is cut into tiles, how the filter is
// packed for them, and the launch of both kernels.
#pragma once

#include "convlab.cuh"
#include "tensor.cuh"

constexpr int kKTile = 64;          // output channels of a block: wgmma's m
constexpr int kChunkBytes = 32;     // of a pixel in a stage: wgmma's k
constexpr int kChunk = kChunkBytes / 4;         // input channels of a stage, in TF32
constexpr int kTapBytes = kKTile * kChunkBytes;   // of the filter for one tap and chunk
constexpr int kMaxStages = 4;
// A consumer warp's buffer for y: 8 rows of 32 positions, or of all positions of the consumer. With
// a pitch of 8 modulo 32 words, a store to 8 rows has no bank conflict.
constexpr int kPitch = 32 + 8;
__host__ __device__ constexpr int row_pitch(int positions) { return positions + 8; }

// The parameters in which the rungs differ.
struct Style {
    int positions;   // of a consumer: wgmma's n
    int terms;       // 1: a number is rounded to TF32; 2: it is split into a high and a low part
    int taps;        // of a slice of the filter, at most; 0: one row of the filter
    bool vectors;    // x is read four pixels at a time
    int size = 4;    // bytes of a number
    int halves = 1;  // k tiles of a block. 2: consumers share positions and have a k tile each
    int by_warps = 0;   // warps store half of y's rows if a tile has at most this many chunks
};

// x is staged in chunks of 8 channels: two quads of 16-byte pixels. With 2-byte numbers a chunk is
// 16 channels, two octets; the names still say quad.
// If the stride is more than 1, pixels with the same remainder of their coordinates form a plane.
// So neighbouring outputs again read neighbouring pixels. Rows are end to end, so a consumer's
// positions can span several rows. Small images follow each other like rows.
struct Tiling {
    int images, rows, columns;     // of output in a tile; rows include those between its images
    int tiles_p, tiles_q, tiles;
    int left;                      // staged columns before the first used one
    int pitch, plane, quad;        // pixels of a plane's row, of a plane, of all planes and padding
    int image_rows;                // of a plane, for an image
    unsigned by_pitch, by_image_rows, by_image_span;   // reciprocals, see `divide`
    int step;                      // pixels from the first consumer's output to the second's
    int chunks;
    int k_tiles, lanes;            // of a group; blocks for each of them
    int taps;                      // of a slice of the filter for a chunk
    int halves;                    // k tiles of a block, as in Style
    int stages, slots;             // stages of x; slots of such slices
    bool resident;                 // the filter stays: each slice has a slot of its own
    bool vectors;                  // x is read four pixels at a time
    bool rows_out;                 // y is stored in whole rows of the tile, by the copy engine
    bool by_warps;                 // with rows_out, of 2-byte numbers: warps store half of the rows
    int table_at, x_at, w_at, y_at, bytes;   // offsets in shared memory; its size

    // A consumer's first channel within the block, and its part of a slot, in units of 16 bytes.
    __device__ int first_channel(int consumer) const { return kKTile * (halves - 1) * consumer; }
    __device__ unsigned slot_at(int slot, int consumer) const {   // [slot][k tile][tap]
        return (slot * halves + (halves - 1) * consumer) * taps * (kTapBytes / 16);
    }
};

// a / b for a and b below 2^16, by multiplying with b's reciprocal; a reciprocal of 0 gives 0.
inline unsigned reciprocal(int b) { return unsigned((int64_t(1) << 31) / b + 1); }
__device__ __forceinline__ int divide(int a, unsigned by) {
    return int(__umulhi(2 * unsigned(a), by));
}

struct Tile {   // by its first output pixel
    int n, p, q;
};
__device__ __forceinline__ Tile tile_at(const Tiling& tiling, int tile) {
    const int per_image = tiling.tiles_p * tiling.tiles_q, rest = tile % per_image;
    return {tile / per_image * tiling.images, rest / tiling.tiles_q * tiling.rows,
            rest % tiling.tiles_q * tiling.columns};
}

// The shift of tap (r, s), in pixels: the tap reads the staged tile from this start.
__device__ __forceinline__ unsigned tap_at(const ConvProblem& conv, const Tiling& tiling, int r,
                                           int s) {
    const int down = r * conv.dilation_h, right = s * conv.dilation_w;
    const int plane = down % conv.stride_h * conv.stride_w + right % conv.stride_w;
    return plane * tiling.plane + down / conv.stride_h * tiling.pitch + tiling.left +
           right / conv.stride_w;
}

// A number of the filter, rounded to TF32 or split.
__device__ __forceinline__ float packed(float w, int terms, bool low) {
    const Parts parts = parts_of(w);
    return terms == 1 ? round_tf32(w) : low ? parts.low : parts.high;
}
template <typename T>
__device__ __forceinline__ T packed(T w, int, bool) { return w; }   // 16 bits: unchanged

// Packs the filter into wgmma's operand layout, rounded or split:
// [group, k tile][chunk][r][s][term][quad][64 channels][4].
template <typename T>
__global__ void __launch_bounds__(256)
pack_filter(ConvProblem conv, Tiling tiling, int terms, const T* __restrict__ g_w,
            T* __restrict__ g_packed, int64_t count) {
    griddepcontrol_launch_dependents();
    constexpr int kQuad = 16 / sizeof(T);
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / (2 * kKTile * kQuad);
        const bool low = rest % terms == 1;
        rest /= terms;
        const int s = int(rest % conv.S), r = int(rest / conv.S % conv.R);
        rest /= conv.S * conv.R;
        const int c = int(rest % tiling.chunks * 2 + i / (kKTile * kQuad) % 2) * kQuad +
                      int(i % kQuad);
        rest /= tiling.chunks;
        const int k = int(rest % tiling.k_tiles) * kKTile + int(i / kQuad % kKTile);
        const int64_t group = rest / tiling.k_tiles;
        const bool inside = c < C_group && k < K_group;
        const int64_t at = (((group * K_group + k) * C_group + c) * conv.R + r) * conv.S + s;
        g_packed[i] = packed(inside ? g_w[at] : T{}, terms, low);
    }
}

// Cuts a problem into tiles; returns false if there are too many. With `vectors`, x is read four
// pixels at a time: tiles begin at multiples of 4 columns of x, and the pitches let a store to two
// rows and two quads have no bank conflict.
inline bool cut(Tiling& t, const ConvProblem& conv, int multiprocessors, Style style) {
    const int positions = style.positions, beside = 2 / style.halves;   // beside: consumers
    const bool vectors = style.vectors;
    t.vectors = vectors, t.halves = style.halves;
    const int right = (conv.S - 1) * conv.dilation_w / conv.stride_w;   // pixels of a plane
    const int down = (conv.R - 1) * conv.dilation_h / conv.stride_h;
    const int planes = conv.stride_h * conv.stride_w;
    if (vectors) t.left = (4 - conv.pad_w % 4) % 4;
    auto lay_out = [&](int tiles_q) {
        t.tiles_q = tiles_q;
        t.columns = ceil_div(ceil_div(conv.Q, tiles_q), 4) * 4;   // tiles begin at multiples of 4
        if (tiles_q == 1) t.columns = conv.Q;
        t.pitch = t.columns + right;
        if (vectors) t.pitch = ceil_div(t.left + t.pitch, 4) * 4 + 1;
        t.rows = max_of(beside, (beside * positions - t.columns) / t.pitch + 1);
        t.tiles_p = ceil_div(conv.P, t.rows);
    };
    lay_out(ceil_div(conv.Q, positions));
    if (t.tiles_q > 1 && conv.P == 1 && down == 0) {   // one row for both consumers
        lay_out(ceil_div(conv.Q, beside * positions));
        t.rows = 1;
    } else if (t.tiles_q > 1 && beside == 2 && !vectors) {
        // Narrower tiles with more rows, if an eighth fewer of them are enough.
        const int least = t.tiles_q, staged = (t.rows + down) * t.pitch;
        int best = least;
        int64_t fewest = int64_t(t.tiles_q) * t.tiles_p * 7 / 8;
        for (int tiles_q = least + 1; tiles_q <= 2 * least + 1; ++tiles_q) {
            lay_out(tiles_q);
            const int64_t tiles = int64_t(t.tiles_q) * t.tiles_p;
            if (tiles > fewest || (t.rows + down) * t.pitch > staged) continue;
            fewest = tiles;
            best = tiles_q;
        }
        lay_out(best);
    }
    t.images = 1;
    t.image_rows = conv.P + down;
    if (t.tiles_q == 1 && t.rows >= conv.P) {
        t.images = min_of(conv.N, 1 + (t.rows - conv.P) / t.image_rows);
        if (int64_t(t.images) * t.image_rows * conv.stride_h > 32767) t.images = 1;
        t.rows = (t.images - 1) * t.image_rows + conv.P;
    }
    t.tiles_p = t.images == 1 ? ceil_div(conv.P, t.rows) : 1;
    t.step = beside == 1 ? 0 : t.rows == 2 ? t.pitch : positions;
    t.plane = (t.rows + down) * t.pitch;
    t.quad = max_of(planes * t.plane,   // or up to the last pixel that wgmma reads
                    (planes - 1) * t.plane + down * t.pitch + t.left + right + t.step + positions);
    if (vectors) t.quad += (6 - t.quad % 4) % 4;
    t.by_pitch = reciprocal(t.pitch);
    t.by_image_rows = t.images == 1 ? 0 : reciprocal(t.image_rows);
    t.by_image_span = t.images == 1 ? 0 : reciprocal(t.image_rows * conv.stride_h);
    t.chunks = ceil_div(conv.C / conv.groups, kChunkBytes / style.size);
    t.k_tiles = ceil_div(conv.K / conv.groups, kKTile * style.halves);
    const int64_t tiles = int64_t(ceil_div(conv.N, t.images)) * t.tiles_p * t.tiles_q;
    const int64_t k_tiles = int64_t(conv.groups) * t.k_tiles;
    if (tiles > INT32_MAX || k_tiles > INT32_MAX / multiprocessors) return false;
    t.tiles = int(tiles);
    t.by_warps = t.chunks <= style.by_warps;
    t.lanes = int(min_of(tiles, max_of(int64_t(1), multiprocessors / k_tiles)));
    return true;
}

// Returns the tiling of a problem; its `stages` is 0 if there are too many tiles or they do not
// fit.
inline Tiling tiling_for(const ConvProblem& conv, int smem, int multiprocessors, Style style) {
    const int positions = style.positions, planes = conv.stride_h * conv.stride_w;
    const bool vectors = style.vectors;
    Tiling t = {};
    if (!cut(t, conv, multiprocessors, style)) return t;
    const int64_t stage_bytes = 32 * int64_t(style.terms) * t.quad;
    const int64_t table_bytes =   // taps, rows or pixels, and s_k
        ceil_div(4 * (conv.R * conv.S + (vectors ? planes * t.plane / t.pitch : t.quad) + 2), 128) *
        128;
    auto fits = [&](int stages, int slots, bool rows_out) {
        const int64_t slice_bytes = int64_t(t.taps) * style.terms * kTapBytes;
        const int64_t barriers = ceil_div((2 * stages + 2 * slots) * 8, 128) * 128;
        const int64_t y_bytes =
            8 * 8 * (rows_out ? row_pitch(positions) * style.size : kPitch * 4);
        const int64_t bytes =
            barriers + table_bytes + stages * stage_bytes + slots * slice_bytes + y_bytes;
        if (bytes > smem) return false;
        t.stages = stages, t.slots = slots, t.rows_out = rows_out, t.bytes = int(bytes);
        t.table_at = int(barriers), t.x_at = int(t.table_at + table_bytes);
        t.w_at = int(t.x_at + stages * stage_bytes);
        t.y_at = int(t.w_at + slots * slice_bytes);
        return true;
    };
    t.taps = style.taps == 0 ? conv.S : min_of(style.taps, conv.R * conv.S);
    while (!fits(2, 2, false)) {
        if (t.taps == 1) return t;
        t.taps = ceil_div(t.taps, 3);
    }
    const bool one_row = t.rows == 1 && style.halves == 1;   // of both consumers
    if ((t.rows == 2 || one_row) && t.images == 1) fits(2, 2, true);
    while (t.slots < 4 && fits(t.stages, t.slots + 1, t.rows_out)) {}
    while (t.stages < kMaxStages && fits(t.stages + 1, t.slots, t.rows_out)) {}
    return t;
}

inline int64_t packed_bytes(const ConvProblem& conv, Style style) {
    return int64_t(conv.groups) * ceil_div(conv.K / conv.groups, kKTile) *
           ceil_div(conv.C / conv.groups, kChunkBytes / style.size) * conv.R * conv.S *
           style.terms * kTapBytes;
}

template <typename T>
using WgmmaKernel = void (*)(ConvProblem, Tiling, const T*, const T*, const float*, T*);

// Launches pack_filter, which packs the filter into the workspace, and then the convolution with
// programmatic dependent launch.
template <typename T>
const char* launch_wgmma(WgmmaKernel<T> kernel, int threads, Style style, const ConvProblem& conv,
                         const T* x, const T* w, const float* bias, T* y, void* workspace,
                         size_t workspace_bytes, cudaStream_t stream) {
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const Tiling tiling = tiling_for(conv, device.smem, device.sms, style);
    if (tiling.stages == 0) return "the tiles are more than 2^31, or do not fit into shared memory";
    const int64_t packed = packed_bytes(conv, style);
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    if (const char* error = ask_for_shared_memory(kernel, tiling.bytes)) return error;

    T* g_packed = static_cast<T*>(workspace);
    const int64_t count = packed / int(sizeof(T));
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_filter<T><<<pack_blocks, 256, 0, stream>>>(conv, tiling, style.terms, w, g_packed,
                                                    count);
    const int grid = conv.groups * tiling.k_tiles * tiling.lanes;
    launch_dependent(kernel, grid, threads, tiling.bytes, stream, conv, tiling, x, g_packed, bias,
                     y);
    return launch_error();
}
