// Blocks that walk down the image: rung 11b's code, for TF32, 3xTF32 and 16-bit formats. A block
// loads an input row once for all of its output channels. The row stays in a ring in shared memory
// while output rows need it; the filter always stays.
//
// Whole sectors: y's sectors of 32 bytes begin at other columns in each channel. So a strip
// multiplies 8 columns more than it owns (16 in 16-bit formats), and stores each sector that begins
// among its own columns. A row often ends in the middle of a sector, where the next row begins. So
// the last strip also multiplies the next row's first columns, and stores that sector too.
#pragma once

#ifndef NUMBER
#define NUMBER float
#endif
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_n.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

#ifndef NS
#define NS 256, 216, 192, 176, 128   // columns that a block may multiply: wgmma's n
#endif
#ifndef TERMS
#define TERMS 1     // 2: numbers are split into a high and a low part (3xTF32)
#endif
#ifndef TURNS
#define TURNS (TERMS == 1)   // 1: the consumers multiply in turns
#endif
#ifndef PART
#define PART 64     // output rows of a strip that a block computes before it takes others
#endif
using Number = NUMBER;
constexpr int kPeriod = 9;       // with TERMS 2: taps that the tensor core sums before r_sum does
constexpr int kRowLoaders = 4;   // warps
constexpr int kMaxRing = 16;     // rows
constexpr int kSize = int(sizeof(Number));
constexpr int kItems = kSize == 4 ? 4 : 2;       // chunks of pixels that a lane loads at a time
constexpr int kChannels = kChunkBytes / kSize;   // of a chunk
constexpr int kSector = 32 / kSize;              // numbers
constexpr int kVector = 16 / kSize;              // numbers: the copy engine's alignment
static_assert(PART >= 1, "PART: 1 or more");

// How the outputs are cut into strips of columns, and the strips into parts of rows.
struct Walk {
    int chunks;                     // of input channels
    int k_tiles, k_blocks, lanes;   // of a group; blocks for each of its k_blocks
    bool alternate;                 // consumers share a k tile, and each has every other row
    bool wraps;                     // the last strip stores the sector that the next row begins in
    int tiles_q, columns;           // strips of a row; columns that a strip owns
    int part;                       // rows of a part
    int window;                     // input rows that an output row needs
    int gap;                        // staged columns past the last output column: of the filter
    int pitch, row_units;           // of a staged row: pixels, and 16-byte units of all chunks
    int ring;                       // staged rows
    int filter_units;               // 16-byte units of one k tile's filter
    int w_at, x_at, y_at, bytes;    // offsets in shared memory; its size
};
// Numbers from one row of a warp's buffer for y to the next, without bank conflicts.
__host__ __device__ constexpr int y_pitch(int n) {
    return kSize == 4 ? (n + 31) / 32 * 32 + 8 : (n + 8 + 63) / 64 * 64 + 8;
}

// A chunk of a pixel's channels: loaded from x, and stored as wgmma reads it.
__device__ __forceinline__ float raw(const float* from) { return *from; }
__device__ __forceinline__ unsigned raw(const bf16* from) { return from->bits; }
__device__ __forceinline__ unsigned raw(const fp16* from) { return from->bits; }
__device__ __forceinline__ void put_pixel(float4* s_to, int pitch, const float (&r_x)[8]) {
    if constexpr (TERMS == 1) {
        s_to[0] = ready(r_x[0], r_x[1], r_x[2], r_x[3]);
        s_to[pitch] = ready(r_x[4], r_x[5], r_x[6], r_x[7]);
    } else {
        #pragma unroll
        for (int q = 0; q < 2; ++q) {
            Parts x[4];
            #pragma unroll
            for (int c = 0; c < 4; ++c) x[c] = parts_of(r_x[4 * q + c]);
            s_to[q * pitch] = make_float4(x[0].high, x[1].high, x[2].high, x[3].high);
            s_to[(2 + q) * pitch] = make_float4(x[0].low, x[1].low, x[2].low, x[3].low);
        }
    }
}
__device__ __forceinline__ void put_pixel(float4* s_to, int pitch, const unsigned (&r_x)[16]) {
    for (int octet = 0; octet < 2; ++octet) {
        const unsigned* x = r_x + 8 * octet;
        reinterpret_cast<uint4*>(s_to)[octet * pitch] = make_uint4(
            x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
    }
}
using Raw = decltype(raw(static_cast<const Number*>(nullptr)));

template <int kN>
__global__ void __launch_bounds__(kThreads, 1)
conv2d_rows(ConvProblem conv, Walk walk, const Number* __restrict__ g_x,
            const Number* __restrict__ g_packed, const float* __restrict__ g_bias,
            Number* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    char* s_bytes = reinterpret_cast<char*>(s_mem);
    uint64_t* x_full = reinterpret_cast<uint64_t*>(s_mem);
    uint64_t* x_empty = x_full + walk.ring;
    uint64_t* w_full = x_empty + walk.ring;
    uint64_t* turn = w_full + 1;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int k_block = blockIdx.x / walk.lanes, part_of_rows = blockIdx.x % walk.lanes;
    const int group = k_block / walk.k_blocks;
    const int k_tile = k_block % walk.k_blocks * (walk.alternate ? 1 : 2);
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    // A part is consecutive rows of a strip. This block computes every `lanes`-th part. So blocks
    // that run at the same time have neighbouring strips, and x's sectors are read in L2.
    const int parts_p = ceil_div(conv.P, walk.part);
    const int64_t parts = int64_t(conv.N) * walk.tiles_q * parts_p;
    struct Part {
        int n, q0, p0, count;
    };
    auto part_at = [&](int64_t i) {
        Part part;
        const int64_t at = i / walk.tiles_q;
        part.q0 = int(i % walk.tiles_q) * walk.columns;
        part.n = int(at / parts_p);
        part.p0 = int(at % parts_p) * walk.part;
        part.count = min_of(walk.part, conv.P - part.p0);
        return part;
    };

    if (threadIdx.x == 0) {
        for (int i = 0; i < walk.ring; ++i) {
            mbarrier_init(&x_full[i], kRowLoaders);
            mbarrier_init(&x_empty[i], 8);
        }
        mbarrier_init(w_full, 1);
        mbarrier_init(&turn[0], 4);
        mbarrier_init(&turn[1], 4);
        mbarrier_fence_init();
    }
    __syncthreads();

    if (warp >= 8) {
        if (threadIdx.x == 256) {
            griddepcontrol_wait();
            const int bytes = walk.filter_units * 16, copies = walk.alternate ? 1 : 2;
            mbarrier_arrive_expect(w_full, copies * bytes);
            const char* packed = reinterpret_cast<const char*>(g_packed) +
                                 int64_t(group) * walk.k_tiles * bytes;
            for (int i = 0; i < copies; ++i) {
                // In place of a second k tile that does not exist: the first again.
                const char* from = packed + int64_t(min_of(k_tile + i, walk.k_tiles - 1)) * bytes;
                bulk_load(s_bytes + walk.w_at + i * bytes, from, bytes, w_full);
            }
        }
        const int thread = threadIdx.x - 256, items = walk.chunks * walk.pitch;
        const int64_t HW = int64_t(conv.H) * conv.W;
        int slot = 0, parity = 0;
        for (int64_t i_part = part_of_rows; i_part < parts; i_part += walk.lanes) {
            const Part part = part_at(i_part);
            const int n = part.n, q0 = part.q0, p0 = part.p0, count = part.count;
            const Number* x_n = g_x + (int64_t(n) * conv.C + group * C_group) * HW;
            const int h_end = p0 + count - 1 + walk.window - conv.pad_h;
            // The last strip goes on with the first columns of the next row, after a gap.
            const int wrap_at = walk.wraps && q0 + walk.columns >= conv.Q ? conv.Q - q0 + walk.gap
                                                                          : 1 << 30;
            for (int h = p0 - conv.pad_h; h < h_end; ++h) {
                float4* s_row = reinterpret_cast<float4*>(s_bytes + walk.x_at) +
                                slot * walk.row_units;
                for (int first = 0; first < items; first += kItems * 32 * kRowLoaders) {
                    Raw r_x[kItems][kChannels];
                    #pragma unroll
                    for (int i = 0; i < kItems; ++i) {
                        const int item = first + i * 32 * kRowLoaders + thread;
                        const int chunk = item / walk.pitch, pixel = item - chunk * walk.pitch;
                        const bool next = pixel >= wrap_at;
                        const int w = (next ? pixel - wrap_at : q0 + pixel) - conv.pad_w;
                        const int h_pixel = h + next;
                        const bool inside = unsigned(h_pixel) < unsigned(conv.H) &&
                                            unsigned(w) < unsigned(conv.W);
                        const Number* from =
                            x_n + chunk * kChannels * HW + int64_t(h_pixel) * conv.W + w;
                        const int channels = C_group - chunk * kChannels;
                        #pragma unroll
                        for (int c = 0; c < kChannels; ++c)
                            r_x[i][c] = inside && c < channels ? raw(from + c * HW) : Raw(0);
                    }
                    if (first == 0) mbarrier_wait(&x_empty[slot], parity ^ 1);
                    #pragma unroll
                    for (int i = 0; i < kItems; ++i) {
                        const int item = first + i * 32 * kRowLoaders + thread;
                        if (item >= items) break;
                        const int chunk = item / walk.pitch, pixel = item - chunk * walk.pitch;
                        put_pixel(s_row + 2 * TERMS * chunk * walk.pitch + pixel, walk.pitch,
                                  r_x[i]);
                    }
                }
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(&x_full[slot]);
                if (++slot == walk.ring) slot = 0, parity ^= 1;
            }
        }
        return;
    }

    const int consumer = warp / 4;
    const uint64_t x_first = wgmma_descriptor(s_bytes + walk.x_at, 16 * walk.pitch, 128);
    const uint64_t w_first = wgmma_moved(wgmma_descriptor(s_bytes + walk.w_at, 16 * kKTile, 128),
                                         walk.alternate ? 0 : consumer * walk.filter_units);
    const int g = lane / 4, t = lane % 4;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    // This warp's first channel in the group, and how many there are from it on.
    const int k_first = (k_tile + (walk.alternate ? 0 : consumer)) * kKTile + warp % 4 * 16;
    const int k_count = K_group - k_first;
    float r_bias[2];
    for (int half = 0; half < 2; ++half)
        r_bias[half] = g_bias && 8 * half + g < k_count
                           ? g_bias[group * K_group + k_first + 8 * half + g] : 0.0f;
    const float least = conv.relu ? 0.0f : -INFINITY;
    Number* s_y = reinterpret_cast<Number*>(s_bytes + walk.y_at) + warp * 8 * y_pitch(kN);
    float r_acc[kN / 2] = {};
    float r_sum[TERMS == 1 ? 1 : kN / 2];
    int slot = 0;                            // of input row `freed`
    int ready_slot = 0, ready_parity = 0;    // of input row `ready`
    int turn_parity = consumer ^ 1;
    mbarrier_wait(w_full, 0);
    int done = 0;   // rows of earlier parts
    for (int64_t i_part = part_of_rows; i_part < parts; i_part += walk.lanes) {
        const Part part = part_at(i_part);
        const int n = part.n, q0 = part.q0, p0 = part.p0, count = part.count;
        const bool last_strip = q0 + walk.columns >= conv.Q;
        // Input rows of this strip, from 0: those that are staged, and those that are freed.
        int ready_rows = 0, freed = 0;
        auto wait_until = [&](int rows) {
            for (; ready_rows < rows; ++ready_rows) {
                mbarrier_wait(&x_full[ready_slot], ready_parity);
                if (++ready_slot == walk.ring) ready_slot = 0, ready_parity ^= 1;
            }
        };
        auto free_until = [&](int rows) {
            wait_until(rows);
            for (; freed < rows; ++freed) {
                if (lane == 0) mbarrier_arrive(&x_empty[slot]);
                if (++slot == walk.ring) slot = 0;
            }
        };
        const int step = walk.alternate ? 2 : 1;
        const int i0 = walk.alternate ? ((done + consumer) & 1) : 0;
        done += count;
        for (int i = i0; i < count; i += step) {
            const int p = p0 + i;
            free_until(i);
            wait_until(i + walk.window);
            if (TURNS) {
                mbarrier_wait(&turn[consumer], turn_parity);
                turn_parity ^= 1;
            }
            auto row_of = [&](int chunk, int r) {   // tap (r, 0) in the ring
                int at = slot + r * conv.dilation_h;
                if (at >= walk.ring) at -= walk.ring;
                return wgmma_moved(x_first, at * walk.row_units + 2 * TERMS * chunk * walk.pitch);
            };
            if (TERMS == 1 && conv.R == 3 && conv.S == 3) {
                if constexpr (TERMS == 1) {
                    wgmma_fence();
                    #pragma unroll 1
                    for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                        const uint64_t w_chunk =
                            wgmma_moved(w_first, chunk * (9 * kTapBytes / 16));
                        #pragma unroll
                        for (int r = 0; r < 3; ++r) {
                            const uint64_t x_row = row_of(chunk, r);
                            #pragma unroll
                            for (int s = 0; s < 3; ++s) {
                                const int tap = 3 * r + s;
                                const uint64_t x_tap = wgmma_moved(x_row, s * conv.dilation_w);
                                wgmma_n(r_acc, wgmma_moved(w_chunk, tap * (kTapBytes / 16)), x_tap,
                                        chunk + tap > 0);
                            }
                        }
                    }
                    wgmma_commit();
                }
            } else if constexpr (TERMS == 1) {
                uint64_t w_tap = w_first;
                for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                    #pragma unroll 1
                    for (int r = 0; r < conv.R; ++r) {
                        uint64_t x_tap = row_of(chunk, r);
                        #pragma unroll 1
                        for (int s = 0; s < conv.S;) {
                            if (s + 3 <= conv.S) {
                                wgmma_fence();
                                #pragma unroll
                                for (int j = 0; j < 3; ++j) {
                                    wgmma_n(r_acc, w_tap, x_tap, chunk + r + s + j > 0);
                                    w_tap = wgmma_moved(w_tap, kTapBytes / 16);
                                    x_tap = wgmma_moved(x_tap, conv.dilation_w);
                                }
                                wgmma_commit();
                                wgmma_wait<1>();
                                s += 3;
                            } else {
                                wgmma_fence();
                                wgmma_n(r_acc, w_tap, x_tap, chunk + r + s > 0);
                                w_tap = wgmma_moved(w_tap, kTapBytes / 16);
                                x_tap = wgmma_moved(x_tap, conv.dilation_w);
                                wgmma_commit();
                                wgmma_wait<1>();
                                s += 1;
                            }
                        }
                    }
                }
            } else {
                #pragma unroll
                for (int j = 0; j < kN / 2; ++j) r_sum[j] = 0.0f;
                const int rows = max_of(1, kPeriod / conv.S);   // of taps, before r_sum adds
                for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                    #pragma unroll 1
                    for (int r0 = 0; r0 < conv.R; r0 += rows) {
                        const int r1 = min_of(r0 + rows, conv.R);
                        wgmma_fence();
                        // The small products come first: truncating a small sum loses little.
                        #pragma unroll 1
                        for (int r = r0; r < r1; ++r) {
                            const uint64_t x_row = row_of(chunk, r);
                            const uint64_t w_row = wgmma_moved(
                                w_first, ((chunk * conv.R + r) * conv.S) * (2 * kTapBytes / 16));
                            auto small = [&](int s, bool add) {
                                const uint64_t w = wgmma_moved(w_row, s * (2 * kTapBytes / 16));
                                const uint64_t x = wgmma_moved(x_row, s * conv.dilation_w);
                                wgmma_n(r_acc, wgmma_moved(w, kTapBytes / 16), x, add);
                                wgmma_n(r_acc, w, wgmma_moved(x, 2 * walk.pitch), true);
                            };
                            if (conv.S == 3) {
                                #pragma unroll
                                for (int s = 0; s < 3; ++s) small(s, r - r0 + s > 0);
                            } else {
                                #pragma unroll 1
                                for (int s = 0; s < conv.S; ++s) small(s, r - r0 + s > 0);
                            }
                        }
                        #pragma unroll 1
                        for (int r = r0; r < r1; ++r) {
                            const uint64_t x_row = row_of(chunk, r);
                            const uint64_t w_row = wgmma_moved(
                                w_first, ((chunk * conv.R + r) * conv.S) * (2 * kTapBytes / 16));
                            auto large = [&](int s) {
                                wgmma_n(r_acc, wgmma_moved(w_row, s * (2 * kTapBytes / 16)),
                                        wgmma_moved(x_row, s * conv.dilation_w), true);
                            };
                            if (conv.S == 3) {
                                #pragma unroll
                                for (int s = 0; s < 3; ++s) large(s);
                            } else {
                                #pragma unroll 1
                                for (int s = 0; s < conv.S; ++s) large(s);
                            }
                        }
                        wgmma_commit();
                        wgmma_wait<0>();
                        #pragma unroll
                        for (int j = 0; j < kN / 2; ++j) r_sum[j] += r_acc[j];
                    }
                }
            }
            if (TURNS && lane == 0) mbarrier_arrive(&turn[consumer ^ 1]);
            wgmma_wait<0>();
            free_until(min_of(i + step, ready_rows));
            auto sum_of = [&](int j) { return TERMS == 1 ? r_acc[j] : r_sum[TERMS == 1 ? 0 : j]; };

            // Whole sectors: from the first that begins in this strip to the first that does not.
            const int64_t plane_at = int64_t(n) * conv.K + group * K_group + k_first;
            Number* y_row = g_y + (plane_at * conv.P + p) * conv.Q + q0;
            const unsigned offset = unsigned(reinterpret_cast<uintptr_t>(y_row) / kSize);
            const unsigned plane = unsigned(PQ);
            const bool pairs = (offset | plane) % 2 == 0;
            const bool wrapped = walk.wraps && last_strip && p + 1 < conv.P;
            const bool from_start = q0 == 0 && !(walk.wraps && p > 0);
            const int own = last_strip ? conv.Q - q0 : walk.columns;
            const bool to_end = last_strip && !wrapped;
            auto phase_of = [&](int k) {   // numbers from the start of a sector to channel k's row
                return (offset + unsigned(k) * plane) % unsigned(kSector);
            };
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                bulk_wait_read<0>();
                __syncwarp();
                Number* s_put = s_y + g * y_pitch(kN) + phase_of(8 * half + g) % kVector + 2 * t;
                auto output = [&](int j) { return max_nan(sum_of(j) + r_bias[half], least); };
                auto put_row = [&](auto in_pairs) {
                    #pragma unroll
                    for (int j = 0; j < kN / 8; ++j)
                        put<in_pairs.value>(s_put + 8 * j, output(4 * j + 2 * half),
                                            output(4 * j + 2 * half + 1));
                };
                if (pairs) {
                    put_row(std::true_type());
                } else {
                    put_row(std::false_type());
                }
                if (wrapped) {
                    // The gap's columns are no outputs. The next row's columns take their place.
                    __syncwarp();
                    Number* s_end = s_y + lane % 8 * y_pitch(kN) +
                                    phase_of(8 * half + lane % 8) % kVector + own + lane / 8;
                    Number r_next[kSector / 4];
                    #pragma unroll
                    for (int j = 0; j < kSector / 4; ++j) r_next[j] = s_end[walk.gap + 4 * j];
                    __syncwarp();
                    #pragma unroll
                    for (int j = 0; j < kSector / 4; ++j) s_end[4 * j] = r_next[j];
                }
                fence_proxy_async();
                __syncwarp();
                const int rows = min_of(8, k_count - 8 * half);
                // Lane i finds the whole sectors of channel i. One thread starts all copies.
                {
                    const int i = lane % 8;
                    char* to = reinterpret_cast<char*>(y_row + (8 * half + i) * PQ);
                    const unsigned own_bytes = unsigned(own) * kSize + (to_end ? 0 : 31);
                    // Bytes: from the start of a sector, to the first whole one, and to the end of
                    // the last one.
                    const unsigned at = unsigned(reinterpret_cast<uintptr_t>(to)) % 32;
                    const int head = int((0u - at) % 32);
                    const int tail = int((at + own_bytes) / 32 * 32 - at);
                    const uint64_t to_head = reinterpret_cast<uint64_t>(to + head);
                    const unsigned to_low = unsigned(to_head), to_high = unsigned(to_head >> 32);
                    const int from = int(reinterpret_cast<char*>(s_y) - s_bytes) +
                                     i * y_pitch(kN) * kSize + int(at % 16) + head;
                    const int bytes = i < rows ? max_of(tail - head, 0) : 0;
                    #pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        const unsigned low = __shfl_sync(0xffffffffu, to_low, j);
                        const unsigned high = __shfl_sync(0xffffffffu, to_high, j);
                        const int source = __shfl_sync(0xffffffffu, from, j);
                        const int count = __shfl_sync(0xffffffffu, bytes, j);
                        if (lane == 0 && count > 0)
                            bulk_store(reinterpret_cast<char*>(uint64_t(high) << 32 | low),
                                       s_bytes + source, count);
                    }
                    if (lane == 0) bulk_commit();
                }
                if (from_start || to_end) {   // parts of sectors
                    const int i = lane % 8, k = 8 * half + i, part = lane / 8;
                    const int phase = int(phase_of(k));
                    const int whole = (kSector - phase) % kSector;
                    const int begin = from_start ? 0 : whole, head = min_of(own, whole);
                    const int tail = max_of(head, own - (phase + own) % kSector);
                    const Number* from = s_y + i * y_pitch(kN) + phase % kVector;
                    Number* to = y_row + k * PQ;
                    if (i < rows) {
                        #pragma unroll
                        for (int j = 0; j < kSector / 4; ++j) {
                            const int at = part + 4 * j;
                            if (begin + at < head) to[begin + at] = from[begin + at];
                            if (to_end && tail + at < own) to[tail + at] = from[tail + at];
                        }
                    }
                }
            }
        }
        free_until(count - 1 + walk.window);
    }
    bulk_wait_read<0>();
}

// Places everything in shared memory; returns whether there is room for `spare` rows more than an
// output row needs.
inline bool place(Walk& walk, const ConvProblem& conv, int smem, int n, int spare) {
    walk.gap = (conv.S - 1) * conv.dilation_w;
    walk.pitch = n + walk.gap;
    walk.row_units = walk.chunks * 2 * TERMS * walk.pitch;
    walk.window = (conv.R - 1) * conv.dilation_h + 1;
    const int64_t filter = int64_t(walk.chunks) * conv.R * conv.S * TERMS * kTapBytes;
    const int64_t x_at = 512 + (walk.alternate ? 1 : 2) * filter + 8 * 8 * y_pitch(n) * kSize;
    if (x_at >= smem) return false;
    walk.filter_units = int(filter / 16);
    walk.w_at = 512;
    walk.y_at = int(walk.w_at + (walk.alternate ? 1 : 2) * filter);
    walk.x_at = int(x_at);
    walk.ring = int(min_of((smem - x_at) / (walk.row_units * int64_t(16)), int64_t(kMaxRing)));
    walk.bytes = walk.x_at + walk.ring * walk.row_units * 16;
    return walk.ring >= walk.window + spare;
}

// Cuts the rows of y into strips of at most n columns. `aligned`: all rows are whole sectors.
// Returns false if `wraps`, and the last strip has no room for the next row's first columns.
inline bool cut(Walk& walk, const ConvProblem& conv, int n, bool aligned, bool wraps) {
    walk.wraps = wraps;
    // The most columns of the last strip, and of another one.
    const int last = wraps ? n - walk.gap - (kSector - 1) : n;
    const int other = aligned ? n / kSector * kSector : n - kSector;
    if (last < 1) return false;
    if (conv.Q <= last) {
        walk.tiles_q = 1, walk.columns = conv.Q;
        return true;
    }
    for (int tiles = max_of(2, ceil_div(conv.Q, other)); ; ++tiles) {
        walk.tiles_q = tiles;
        walk.columns = min_of(other, ceil_div(ceil_div(conv.Q, tiles), kSector) * kSector);
        const int rest = conv.Q - (tiles - 1) * walk.columns;
        if (rest < 1) return false;
        if (rest <= last) return true;
    }
}

template <int kN>
const char* run(const Walk& walk, const ConvProblem& conv, const Number* x, const Number* g_packed,
                const float* bias, Number* y, cudaStream_t stream) {
    if (const char* error = ask_for_shared_memory(conv2d_rows<kN>, walk.bytes)) return error;
    const int grid = conv.groups * walk.k_blocks * walk.lanes;
    launch_dependent(conv2d_rows<kN>, grid, kThreads, walk.bytes, stream, conv, walk, x, g_packed,
                     bias, y);
    return launch_error();
}

constexpr int kWidths[] = {NS};

template <int kFirst>
const char* run_any(int n, const Walk& walk, const ConvProblem& conv, const Number* x,
                    const Number* g_packed, const float* bias, Number* y, cudaStream_t stream) {
    if constexpr (kFirst < int(sizeof(kWidths) / sizeof(int))) {
        if (n == kWidths[kFirst])
            return run<kWidths[kFirst]>(walk, conv, x, g_packed, bias, y, stream);
        return run_any<kFirst + 1>(n, walk, conv, x, g_packed, bias, y, stream);
    }
    return "NS does not have this width";
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, {256, TERMS, 0, false, kSize}));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* w,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t packed = packed_bytes(conv, {256, TERMS, 0, false, kSize});
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    const bool aligned = reinterpret_cast<uintptr_t>(y) % 32 == 0 && conv.Q % kSector == 0;
    Walk best = {};
    int64_t best_cost = 0;
    int best_n = 0;
    for (int n : kWidths) {
        Walk walk = {};
        walk.chunks = ceil_div(conv.C / conv.groups, kChannels);
        walk.k_tiles = ceil_div(conv.K / conv.groups, kKTile);
        walk.alternate = walk.k_tiles == 1;
        const int spare = 2;
        if (!walk.alternate && !place(walk, conv, device.smem, n, spare)) walk.alternate = true;
        if (walk.alternate && !place(walk, conv, device.smem, n, spare) &&
            !place(walk, conv, device.smem, n, 0)) continue;
        walk.k_blocks = walk.alternate ? walk.k_tiles : ceil_div(walk.k_tiles, 2);
        const bool wraps = !aligned && conv.Q >= kSector && conv.P > 1;
        if (!wraps || !cut(walk, conv, n, aligned, true)) cut(walk, conv, n, aligned, false);
        const int64_t cost = int64_t(walk.tiles_q) * n;
        if (best_n == 0 || cost < best_cost) best = walk, best_cost = cost, best_n = n;
    }
    if (best_n == 0) return "the rows do not fit into shared memory";
    const int64_t strips = int64_t(conv.N) * best.tiles_q;
    const int blocks = max_of(1, device.sms / (conv.groups * best.k_blocks));
    best.part = max_of(1, min_of(conv.P, PART));
    // If there are few parts, shorter ones, so that each block has work.
    while (best.part > 8 && strips * ceil_div(conv.P, best.part) < 2 * blocks)
        best.part = ceil_div(best.part, 2);
    best.lanes = int(min_of(strips * ceil_div(conv.P, best.part), int64_t(blocks)));
    Tiling tiling = {};
    tiling.chunks = best.chunks, tiling.k_tiles = best.k_tiles;
    Number* g_packed = static_cast<Number*>(workspace);
    const int64_t count = packed / kSize;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_filter<Number><<<pack_blocks, 256, 0, stream>>>(conv, tiling, TERMS, w, g_packed, count);
    return run_any<0>(best_n, best, conv, x, g_packed, bias, y, stream);
}
