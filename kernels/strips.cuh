// How rungs 12b and 15d cut y into strips of columns, and how a consumer's warp stores a row of one.
//
// Every 32-byte sector of y inside a row is stored whole, by one block. A row of y need not begin at a
// multiple of 32 bytes, so the columns that a strip stores begin and end a few columns further in each
// row and channel. Neighbouring strips overlap by so many columns, and both compute them.
#pragma once

#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

constexpr int kN = 128;   // columns of a strip: wgmma's n
constexpr int kMaxRing = 16;
constexpr int kBarrierBytes = 512;
constexpr int kVector = 16 / int(sizeof(Number));   // numbers in 16 bytes
constexpr int kSector = 2 * kVector;
// Numbers between two channels of y in shared memory. Eight channels lie in different banks.
constexpr int kYPitch = kN + 8;
constexpr int kYBytes = 8 * 8 * kYPitch * int(sizeof(Number));   // eight warps, eight channels each

struct Strips {
    int chunks, k_tiles, k_blocks, lanes;
    int step, tiles_q;  // columns from one strip to the next; strips of a row
    int64_t rows;       // of y, in all strips and images
    int window;         // rows of x that a consumer needs at a time
    int ring;           // rows of x that fit into shared memory
    int pitch;          // of a staged row, in pixels
    int row_units;      // of a staged row, in units of 16 bytes, for all channels
    int taps, slots;    // of a slice of the filter; slots of such slices
    int w_at, x_at, y_at, bytes;   // of shared memory
};

// Cuts y into strips, and gives every block the same number of rows.
inline Strips strips_for(const ConvProblem& conv, const Number* y, int multiprocessors) {
    Strips strips = {};
    strips.chunks = ceil_div(conv.C / conv.groups, 2 * kVector);
    strips.k_tiles = ceil_div(conv.K / conv.groups, kKTile);
    strips.k_blocks = ceil_div(strips.k_tiles, 2);
    const bool aligned = reinterpret_cast<uintptr_t>(y) % 32 == 0 && conv.Q % kSector == 0;
    const int overlap = aligned ? 0 : kSector - (conv.Q % 2 == 0 ? 2 : 1);
    strips.step = kN - overlap;
    strips.tiles_q = conv.Q <= kN ? 1 : ceil_div(conv.Q - overlap, strips.step);
    strips.rows = int64_t(conv.N) * strips.tiles_q * conv.P;
    // An odd pitch: eight lanes that store four channel groups of two pixels have no bank conflict.
    strips.pitch = (kN + (conv.S - 1) * conv.dilation_w) | 1;
    strips.row_units = 2 * strips.chunks * strips.pitch;
    strips.lanes = int(min_of(
        strips.rows, int64_t(max_of(1, multiprocessors / (conv.groups * strips.k_blocks)))));
    return strips;
}

// The rows of one strip that a block computes one after another.
struct Part {
    int n, q0, p0, rows;
    bool first, last;   // of its row's strips
};
__device__ __forceinline__ Part part_at(const ConvProblem& conv, const Strips& strips, int64_t row,
                                        int64_t end) {
    const int64_t strip = row / conv.P;
    const int p0 = int(row - strip * conv.P);
    const int i = int(strip % strips.tiles_q);
    return {int(strip / strips.tiles_q), i * strips.step, p0,
            int(min_of(int64_t(conv.P - p0), end - row)), i == 0, i + 1 == strips.tiles_q};
}

// Stores half of a warp's 16 channels of a row, or fewer if `count` of the 16 exist. The sums go to the
// warp's part of shared memory, from which the copy engine stores them while the warp goes on.
template <int half>
__device__ __forceinline__ void store_half(const ConvProblem& conv, const Strips& strips,
                                           const Part& part, Number* s_y, int lane, int count,
                                           const float (&r_bias)[2], const float (&r_sum)[kN / 2],
                                           Number* y_row) {
    constexpr int kSize = int(sizeof(Number));
    const int g = lane / 4, t = lane % 4;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const float least = conv.relu ? 0.0f : -INFINITY;
    const unsigned offset = unsigned(reinterpret_cast<uintptr_t>(y_row) / sizeof(Number));
    const unsigned plane = unsigned(PQ);
    const bool pairs = (offset | plane) % 2 == 0;
    const int own = part.last ? conv.Q - part.q0 : strips.step;
    auto shift_of = [&](int k) {   // how far channel k's first column is past a multiple of 16 bytes
        return int((offset + unsigned(k) * plane) % kVector);
    };
    bulk_wait_read<0>();   // of the other half
    __syncwarp();
    Number* s_put = s_y + g * kYPitch + shift_of(8 * half + g) + 2 * t;
    auto put_row = [&](auto in_pairs) {
        #pragma unroll
        for (int j = 0; j < kN / 8; ++j)
            put<in_pairs.value>(s_put + 8 * j,
                                max_nan(r_sum[4 * j + 2 * half] + r_bias[half], least),
                                max_nan(r_sum[4 * j + 2 * half + 1] + r_bias[half], least));
    };
    if (pairs) {
        put_row(std::true_type());
    } else {
        put_row(std::false_type());
    }
    fence_proxy_async();
    __syncwarp();
    const int channels = min_of(8, count - 8 * half);
    if (lane == 0) {   // one lane starts the copies, of eight channels
        char* to = reinterpret_cast<char*>(y_row + 8 * half * PQ);
        const char* from = reinterpret_cast<const char*>(s_y);
        const int begins = part.first ? 15 : 31, ends = part.last ? 15 : 31;   // multiples, less 1
        const int up = part.last ? 0 : 31;
        #pragma unroll 1
        for (int i = 0; i < channels; ++i) {
            const int past = int(reinterpret_cast<uintptr_t>(to) & 31);
            const int head = -past & begins;
            const int tail = ((past + own * kSize + up) & ~ends) - past;
            if (tail > head) bulk_store(to + head, from + (past & 15) + head, tail - head);
            to += PQ * kSize;
            from += kYPitch * kSize;
        }
        bulk_commit();
    }
    if (part.first || part.last) {   // four lanes store what is left of a channel, at a row's ends
        const int k = lane % 8, shift = shift_of(8 * half + k);
        const int head = part.first ? min_of(-shift & (kVector - 1), own) : 0;
        const int tail = part.last ? max_of(own - (shift + own) % kVector, head) : own;
        Number* to = y_row + (8 * half + k) * PQ;
        const Number* from = s_y + k * kYPitch + shift;
        if (k < channels) {
            #pragma unroll
            for (int i = lane / 8; i < kVector; i += 4) {
                if (i < head) to[i] = from[i];
                if (tail + i < own) to[tail + i] = from[tail + i];
            }
        }
    }
}
