// How rungs 11b, 13b and 15c cut the output into strips, and lay out shared memory.
//
// Every 32-byte sector of y is stored whole, by one block. A row of y need not begin at a multiple of
// 32 bytes, so the columns that a strip stores begin and end a few columns further in each row and
// channel; neighbouring strips overlap by a sector, and both compute the columns in between. The
// last sector of a row also holds the first columns of the next row: the last strip computes them too.
#pragma once
#ifndef NUMBER
#define NUMBER float
#endif
#if !defined(TERMS)
#define TERMS 1   // 2 for 13b: a number is split into a high and a low part
#endif
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_n.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

using Number = NUMBER;
#ifndef WIDTHS
#define WIDTHS 256, 216, 192, 176, 128   // columns that one wgmma computes
#endif
#ifndef PART
#define PART 64   // rows of a part, see Walk
#endif
static_assert(PART >= 1, "PART: at least 1");

constexpr int kRowLoaders = 4;                   // warps that stage x
constexpr int kSize = int(sizeof(Number));
constexpr int kTerms = TERMS;
constexpr bool kSplit = kTerms == 2;
// Two sets of sums need more than the 168 registers that every thread can have. The loaders give up some.
constexpr int kConsumerRegisters = 224, kLoaderRegisters = 56;
constexpr int kItems = kSize == 4 && !kSplit ? 4 : 2;   // pixels that a loader's lane has in flight
constexpr int kVectorItems = kSplit ? 2 : 4;     // or so many times four pixels of kVector channels
constexpr int kChannels = kChunkBytes / kSize;   // of a chunk
constexpr int kSector = 32 / kSize;              // numbers of a sector
constexpr int kVector = 16 / kSize;              // the copy engine aligns to so many numbers
constexpr int kMaxRing = 16;
constexpr int kBarrierBytes = 512;

// The output is cut into parts: `part` rows of a strip of `columns` columns. Every `lanes`-th part
// belongs to the same block.
struct Walk {
    int chunks, k_tiles, k_blocks, lanes;
    bool alternate;     // consumers have the same 64 channels and every other row, not the same row
    bool wraps;         // the last strip also stores the first columns of the next row
    bool vectors;       // x is read four pixels at a time
    int columns, tiles_q, part, parts_p;
    int64_t parts;
    int gap;            // columns of x beyond those of y, for a row: at least (S - 1) * dilation_w
    int window;         // rows of x for a row of y
    int ring;           // rows of x that fit into shared memory
    int pitch;          // of a staged row, in units of 16 bytes, for four (or eight) channels
    int row_units;      // of a staged row, in units of 16 bytes, for all channels and terms
    int filter_units;   // of the filter of 64 channels, in units of 16 bytes
    int w_at, x_at, y_at, bytes;   // of shared memory
};

// Returns `value`, which all lanes have. With two terms, the sums need nearly all registers. A shuffle then
// stops the compiler from computing early, and keeping, what follows from the value.
__device__ __forceinline__ int computed_late(int value) {
    return kSplit ? __shfl_sync(0xffffffffu, value, 0) : value;
}

// Numbers between two channels of y in shared memory. Eight channels are written at a time, and with
// this pitch they lie in different banks.
__host__ __device__ constexpr int y_pitch(int n) {
    return kSize == 4 ? (n + 31) / 32 * 32 + 8 : (n + 63) / 64 * 64 + 8;
}

// Places everything in shared memory. Returns whether there is room for `spare` rows more than an
// output row needs.
inline bool place(Walk& walk, const ConvProblem& conv, int smem, int n, int spare) {
    walk.gap = (conv.S - 1) * conv.dilation_w;
    walk.pitch = n + walk.gap;
    if (walk.vectors) {
        // The next row's first column is then as far from a multiple of four as this row's.
        walk.gap += -(conv.Q + walk.gap) & 3;
        // An odd pitch: eight lanes that store two pixels of four quads (or octets) of channels have no
        // bank conflict.
        walk.pitch = (n + walk.gap) | 1;
    }
    walk.row_units = kTerms * walk.chunks * 2 * walk.pitch;
    walk.window = (conv.R - 1) * conv.dilation_h + 1;
    const int64_t filter = int64_t(walk.chunks) * conv.R * conv.S * kTerms * kTapBytes;
    const int64_t y_at = kBarrierBytes + (walk.alternate ? 1 : 2) * filter;
    const int64_t x_at = y_at + 8 * 8 * y_pitch(n) * kSize;
    if (x_at >= smem) return false;
    walk.filter_units = int(filter / 16);
    walk.w_at = kBarrierBytes;
    walk.y_at = int(y_at);
    walk.x_at = int(x_at);
    walk.ring = int(min_of((smem - x_at) / (walk.row_units * int64_t(16)), int64_t(kMaxRing)));
    walk.bytes = walk.x_at + walk.ring * walk.row_units * 16;
    return walk.ring >= walk.window + spare;
}

// Cuts a row of y into strips. `aligned`: all its sectors are whole anyway. Returns false if the last
// strip has no room for the gap and the next row's first columns.
inline bool cut(Walk& walk, const ConvProblem& conv, int n, bool aligned, bool wraps) {
    walk.wraps = wraps;
    const int most = aligned ? n / kSector * kSector : n - kSector;     // columns of a strip
    const int most_last = wraps ? n - kSector - walk.gap : n;           // of the last one
    if (most_last < 1) return false;
    if (conv.Q <= most_last) {
        walk.tiles_q = 1;
        walk.columns = conv.Q;
        return true;
    }
    for (int tiles = max_of(2, ceil_div(conv.Q, most)); tiles <= conv.Q; ++tiles) {
        walk.tiles_q = tiles;
        walk.columns = min_of(most, ceil_div(ceil_div(conv.Q, tiles), kSector) * kSector);
        const int last = conv.Q - (tiles - 1) * walk.columns;
        if (last < 1) return false;
        if (last <= most_last) return true;
    }
    return false;
}

// ---- the products of two terms ------------------------------------------------------------------
// A tensor core truncates its sum after every product, always towards zero. So a sum must stay short:
// after this many taps, the next products go to another sum. Ordinary instructions add the two.
constexpr int kPeriod = 9;

template <int count>
__device__ __forceinline__ void add(float (&r_sum)[count], const float (&r_more)[count]) {
    #pragma unroll
    for (int i = 0; i < count; ++i) r_sum[i] += r_more[i];
}

// Starts the products of a row of y: `multiply(r_to, i)` starts batch i, of up to kPeriod taps. Returns
// whether r_more has sums that must be added to r_sum, after wgmma_wait<0>. With up to two batches, the
// tensor cores never wait for an addition.
template <int count, typename Multiply>
__device__ __forceinline__ bool multiply_batches(int batches, float (&r_sum)[count],
                                                 float (&r_more)[count], const Multiply& multiply) {
    multiply(r_sum, 0);
    #pragma unroll 1
    for (int i = 1; i < batches; ++i) {
        if (i > 1) {
            wgmma_wait<0>();
            add(r_sum, r_more);
        }
        multiply(r_more, i);
    }
    return batches > 1;
}

// The same, with three products for each tap. `row_of(chunk, r)` is the descriptor of x's high parts for
// the taps (r, 0).
template <int count, typename RowOf>
__device__ __forceinline__ bool multiply_split(const ConvProblem& conv, const Walk& walk,
                                               uint64_t w_first, const RowOf& row_of,
                                               float (&r_sum)[count], float (&r_more)[count]) {
    constexpr int kLow = kTapBytes / 16;   // from a high part of w to its low part, in units of 16 bytes
    constexpr int kTap = 2 * kLow;         // to the next tap
    const int low = walk.row_units / 2;    // from a high part of x to its low part
    // Otherwise the compiler computes the descriptors of all taps once, and spills them.
    const uint64_t w_row = w_first >> 32 << 32 | unsigned(computed_late(int(w_first)));
    // The small products come first, while truncating the small sum loses little.
    auto small = [&](float (&r_to)[count], uint64_t w_tap, uint64_t x_tap, int accumulate) {
        wgmma_n(r_to, wgmma_moved(w_tap, kLow), x_tap, accumulate);
        wgmma_n(r_to, w_tap, wgmma_moved(x_tap, low), true);
    };
    if (conv.R == 3 && conv.S == 3) {   // a batch is a chunk, without loops over the taps
        return multiply_batches(walk.chunks, r_sum, r_more, [&](float (&r_to)[count], int chunk) {
            const uint64_t w_chunk = wgmma_moved(w_row, chunk * (9 * kTap));
            const uint64_t x_rows[3] = {row_of(chunk, 0), row_of(chunk, 1), row_of(chunk, 2)};
            auto w_at = [&](int tap) { return wgmma_moved(w_chunk, tap * kTap); };
            auto x_at = [&](int tap) {
                return wgmma_moved(x_rows[tap / 3], tap % 3 * conv.dilation_w);
            };
            wgmma_fence();
            #pragma unroll
            for (int tap = 0; tap < 9; ++tap) small(r_to, w_at(tap), x_at(tap), tap > 0);
            #pragma unroll
            for (int tap = 0; tap < 9; ++tap) wgmma_n(r_to, w_at(tap), x_at(tap), true);
            wgmma_commit();
        });
    }
    // A batch is up to kPeriod taps of a row of the filter.
    const int per_row = ceil_div(conv.S, kPeriod), rows = walk.chunks * conv.R;
    return multiply_batches(rows * per_row, r_sum, r_more, [&](float (&r_to)[count], int i) {
        const int row = i / per_row, s = i % per_row * kPeriod;
        const int taps = min_of(kPeriod, conv.S - s);
        const uint64_t w_tap = wgmma_moved(w_row, (row * conv.S + s) * kTap);
        const uint64_t x_tap =
            wgmma_moved(row_of(row / conv.R, row % conv.R), s * conv.dilation_w);
        wgmma_fence();
        #pragma unroll 1
        for (int tap = 0; tap < taps; ++tap)
            small(r_to, wgmma_moved(w_tap, tap * kTap), wgmma_moved(x_tap, tap * conv.dilation_w),
                  tap > 0);
        #pragma unroll 1
        for (int tap = 0; tap < taps; ++tap)
            wgmma_n(r_to, wgmma_moved(w_tap, tap * kTap), wgmma_moved(x_tap, tap * conv.dilation_w),
                    true);
        wgmma_commit();
    });
}
