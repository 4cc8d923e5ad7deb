// title: Weight gradient on Hopper's tensor cores
// idea: dw's sums run over pixels, which dy and x both hold side by side. dy is an operand in shared
//       memory. A shift by a pixel is not 16 bytes, so lanes gather x into registers.
// change: Against 19b: tensor cores. Rows are (c, r, s), columns are filters. Loader warps copy while
//       others multiply. Long sums move to memory from time to time, because tensor cores truncate them.
// mapping: unit -> 192 rows (c, r, s) x 128 filters (64 if the group has no more) of one group; block ->
//       an equal share of all units' tiles of pixels, in one or several units; a consumer warpgroup -> 64
//       rows; four loader warps -> x and dy.
// computes: weight gradient
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000, C // groups * R * S < 2147483000,
//       72000 + 8 * (191 // (R * S) + 2) * ((R - 1) * dilation_h + 1)
//             * (63 * stride_w + (S - 1) * dilation_w + 24) <= smem
//       or 72000 + 8 * (C // groups) * ((R - 1) * dilation_h + 1)
//             * (63 * stride_w + (S - 1) * dilation_w + 24) <= smem
//       or Q <= 64 and 72000 + 8 * (191 // (R * S) + 2) * ((R - 1) * dilation_h + 1)
//             * ((Q + 6) * stride_w + (S - 1) * dilation_w + 24) <= smem
//       or Q <= 64 and 72000 + 8 * (C // groups) * ((R - 1) * dilation_h + 1)
//             * ((Q + 6) * stride_w + (S - 1) * dilation_w + 24) <= smem
// best: tf32 == 1, groups == 1, N * P * Q * K * C * R * S >= 3000000000,
//       R * S >= 9 and N * P * Q >= 6000
//       or R * S == 1 and stride_h == 2 and stride_w == 2 and N * P * Q >= 25000
// limits: With more than 192 rows, several blocks read the same dy from the L2 cache. Groups of few
//       channels or filters waste the tensor cores.
#include "convlab.cuh"
#include "convlab_async.cuh"

#if !defined(NUMBER)
#define NUMBER float   // or bf16, for 21b
#endif
#if !defined(TERMS)
#define TERMS 1   // 2 for 21c: a number is split into a high and a low part
#endif
#include "wgmma_n.cuh"
#include <type_traits>   // std::true_type

using Number = NUMBER;
constexpr bool kTf32 = sizeof(Number) == 4;
constexpr int kSize = int(sizeof(Number));
constexpr bool kSplit = TERMS == 2;
constexpr int kWord = 4 / kSize;      // pixels of a word of wgmma's operands
constexpr int kStep = 8 * kWord;      // pixels of a step: one wgmma
constexpr int kSteps = 8;             // steps of a stage, at most
constexpr int kPixels = kSteps * kStep;
constexpr int kRows = 192;            // rows (c, r, s) of a block; twice as many, if it has two parts
constexpr int kConsumers = 2 * kRows, kLoaders = 128, kThreads = kConsumers + kLoaders;
constexpr int kMaxStages = 6;
constexpr int kAddThreads = 256, kMostSharers = 8;   // sharers: threads that add up one element of dw
// A tensor core truncates its sum after every step, always towards zero. So the sum must stay short:
// after this many stages it moves to memory.
#ifndef PERIOD
#define PERIOD 256   // stages
#endif
constexpr int kPeriod = PERIOD;
static_assert(kPeriod >= 1, "PERIOD: at least 1");

// A stage has dy as [16 bytes of pixels][filter], which is wgmma's order, and then x as
// [channel][row][column].
struct Work {
    int block_rows;                   // rows (c, r, s) of a block
    int row_blocks, k_blocks;         // of a group
    int units;                        // of all groups: what a block computes at a time
    int blocks;                       // they share the units' tiles
    int step;                         // from a block's tile to its next
    int tiles_p, tiles_q, tiles;      // of all images, for each unit
    int rows, columns, steps;         // of dy, in a tile
    int channels;                     // of x, in a stage, at most
    int left;                         // staged columns before the first that is used
    int down, right;                  // in x, from a staged row and column to the next
    int stride_h, stride_w;           // in staged rows and columns: 1 if others are not staged
    int x_rows, copies, pitch, plane;  // copies: of a row
    int x_bytes_at, dy_bytes_at;      // the bytes that a lane copies at a time: 16, 8, 4 or 2
    int stages, dy_bytes, stage_bytes, bytes;
};
constexpr int kBarrierBytes = 128;

// The block's share of all tiles, which are numbered unit by unit. If units have as many blocks each,
// the blocks of a unit take its tiles in turn instead: neighbours are then read at the same time.
__device__ __forceinline__ int64_t share_at(const Work& work, int block) {
    return int64_t(work.units) * work.tiles * block / work.blocks;
}

// A unit, and the tiles of it that a block sums up.
struct Item {
    int64_t next;          // the number of the next item's first tile
    int unit, first_tile, end_tile;
    int group, k0, row0;   // of the group: the first filter, the first row (c, r, s)
    int c0, channels;      // the rows' channels
};
// The item that begins with tile number `at` of all.
__device__ __forceinline__ Item item_at(const ConvProblem& conv, const Work& work, int filters,
                                        int64_t at) {
    const int taps = conv.R * conv.S;
    Item item;
    item.unit = int(at / work.tiles);
    const int64_t before = int64_t(item.unit) * work.tiles, end = share_at(work, blockIdx.x + 1);
    item.first_tile = int(at - before);
    item.end_tile = int(min_of(int64_t(work.tiles), end - before));
    item.next = before + item.end_tile;
    if (work.step > 1) {
        item.first_tile = blockIdx.x % work.step;
        item.end_tile = work.tiles;
        item.next = end;
    }
    const int unit = item.unit;
    item.row0 = unit % work.row_blocks * work.block_rows;
    item.k0 = unit / work.row_blocks % work.k_blocks * filters;
    item.group = unit / work.row_blocks / work.k_blocks;
    item.c0 = item.row0 / taps;
    const int last = min_of(item.row0 + work.block_rows, conv.C / conv.groups * taps) - 1;
    item.channels = last / taps - item.c0 + 1;
    return item;
}
// Where an item's sums are in memory: from one item to the next, the block or the unit grows.
__device__ __forceinline__ int64_t sums_at(const Work& work, int unit, int block, int filters) {
    return (int64_t(unit) + block) * filters * work.block_rows;
}

struct Tile {   // by its first pixel of dy
    int n, p, q;
};
__device__ __forceinline__ Tile tile_at(const Work& work, int tile) {
    const int row = tile / work.tiles_q;
    return {row / work.tiles_p, row % work.tiles_p * work.rows, tile % work.tiles_q * work.columns};
}
// Moves to the block's next tile, without a division. `by` is tile_at(work.step).
__device__ __forceinline__ void advance(const Work& work, Tile& tile, const Tile& by) {
    tile.q += by.q;
    const int next_row = tile.q >= work.tiles_q * work.columns;
    tile.q -= next_row ? work.tiles_q * work.columns : 0;
    tile.p += by.p + next_row * work.rows;
    const int next_image = tile.p >= work.tiles_p * work.rows;
    tile.p -= next_image ? work.tiles_p * work.rows : 0;
    tile.n += by.n + next_image;
}

template <int bytes>
__device__ __forceinline__ void copy(Number* s_to, const Number* from, bool inside) {
    if constexpr (bytes == 2) {
        *s_to = Number{};
        if (inside) *s_to = *from;
    } else {
        copy_async<bytes>(reinterpret_cast<float*>(s_to), reinterpret_cast<const float*>(from),
                          inside);
    }
}

// The parts of a block's shared memory.
struct Block {
    uint64_t *full, *empty;   // mbarriers of the stages
    char* s_stages;
};

// A number is the sum of two that TF32 holds: high, which is the number as a tensor core truncates it,
// and low, the rest. Of an infinity, low is infinity and high is 0, see parts_of.
__device__ __forceinline__ Parts truncated_parts(float value) {
    const float high = __uint_as_float(__float_as_uint(value) & 0xffffe000);
    const bool finite = fabsf(value) < INFINITY;
    return {finite ? value : 0.0f, finite ? before_truncation(value - high) : value};
}

// Writes the low parts of the numbers of dy that this thread has copied, behind those of the stage.
template <int filters, int numbers, int every>
__device__ __forceinline__ void split_dy(char* s_own) {
    float* s_high = reinterpret_cast<float*>(s_own);
    float* s_low = s_high + 2 * kSteps * (filters + 1) * 4;
    #pragma unroll 4
    for (int i = 0; i < filters; i += every) {
        Parts parts[numbers];
        #pragma unroll
        for (int j = 0; j < numbers; ++j) parts[j] = truncated_parts(s_high[4 * i + j]);
        #pragma unroll
        for (int j = 0; j < numbers; ++j) {
            s_high[4 * i + j] = parts[j].high;
            s_low[4 * i + j] = parts[j].low;
        }
    }
}

// A loader warp: copies tiles of dy, and the rows of x that they meet. A thread copies the same
// pixels of every tile, in every n-th filter or channel.
template <int filters, int dy_bytes, int x_bytes>
__device__ __forceinline__ void load(const ConvProblem& conv, const Work& work, const Block& b,
                                     const Number* g_x, const Number* g_dy) {
    const int thread = threadIdx.x - kConsumers;
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W, PQ = int64_t(conv.P) * conv.Q;
    // This thread's pixels of dy, and the first of its filters.
    constexpr int kWide = dy_bytes / kSize, kUnits = kPixels / kWide, kEvery = kLoaders / kUnits;
    constexpr int kRun = 16 / kSize;   // pixels in 16 bytes
    const int pixel = thread % kUnits * kWide, k = thread / kUnits;
    const int dy_row = pixel / work.columns, dy_column = pixel % work.columns;
    const int dy_at = pixel / kRun * (filters + 1) * 16 + pixel % kRun * kSize + k * 16;
    // This thread's pixels of x, and the first of its channels.
    constexpr int kWideX = x_bytes / kSize;
    const int places = work.x_rows * work.copies;
    const int x_every = max_of(kLoaders / places, 1), c = thread / places;
    const bool has_x = places > kLoaders || c < x_every;

    int stage = 0, parity = 0, oldest = 0, under_way = 0;
    auto arrive = [&] {   // the oldest stage is complete
        if (kSplit && dy_row < work.rows)
            split_dy<filters, kWide, kEvery>(b.s_stages + oldest * work.stage_bytes + dy_at);
        fence_proxy_async();   // wgmma reads dy
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&b.full[oldest]);
        if (++oldest == work.stages) oldest = 0;
        --under_way;
    };
    const int64_t end = share_at(work, blockIdx.x + 1);
    Item item;
    const Tile by = tile_at(work, work.step);
    for (int64_t at = share_at(work, blockIdx.x); at < end; at = item.next) {
        item = item_at(conv, work, filters, at);
        const int dy_count = dy_row < work.rows ? K_group - item.k0 - k : 0;
        const Number* dy_own = g_dy + (int64_t(item.group) * K_group + item.k0 + k) * PQ +
                               int64_t(dy_row) * conv.Q + dy_column;
        const Number* x_own = g_x + (int64_t(item.group) * C_group + item.c0) * HW;
        Tile tile = tile_at(work, item.first_tile);
        for (int number = item.first_tile; number < item.end_tile; number += work.step) {
            char* s_stage = b.s_stages + stage * work.stage_bytes;
            mbarrier_wait(&b.empty[stage], parity ^ 1);
            if (dy_row < work.rows) {
                const bool inside = tile.p + dy_row < conv.P && tile.q + dy_column < conv.Q;
                const int count = inside ? dy_count : 0;
                const Number* from = dy_own + tile.n * conv.K * PQ + int64_t(tile.p) * conv.Q + tile.q;
                char* s_to = s_stage + dy_at;
                #pragma unroll 8
                for (int i = 0; i < filters; i += kEvery) {
                    copy<dy_bytes>(reinterpret_cast<Number*>(s_to + i * 16), from, i < count);
                    from += kEvery * PQ;
                }
            }
            if (has_x) {
                const int h0 = tile.p * conv.stride_h - conv.pad_h;
                const int w0 = tile.q * conv.stride_w - conv.pad_w - work.left;
                const Number* x_tile = x_own + tile.n * conv.C * HW;
                Number* s_x = reinterpret_cast<Number*>(s_stage + work.dy_bytes);
                for (int place = places > kLoaders ? thread : thread - c * places; place < places;
                     place += kLoaders) {
                    const int row = place / work.copies, column = (place - row * work.copies) * kWideX;
                    const int h = h0 + row * work.down, w = w0 + column * work.right;
                    const bool inside = unsigned(h) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W);
                    const int first = places > kLoaders ? 0 : c;
                    const Number* from = x_tile + first * HW + int64_t(h) * conv.W + w;
                    Number* s_to = s_x + first * work.plane + row * work.pitch + column;
                    #pragma unroll 4
                    for (int i = first; i < item.channels; i += x_every) {
                        copy<x_bytes>(s_to, from, inside);
                        from += x_every * HW;
                        s_to += x_every * work.plane;
                    }
                }
            }
            __pipeline_commit();
            ++under_way;
            if (work.stages > 2 && under_way > 2) {
                __pipeline_wait_prior(2);
                arrive();
            } else if (work.stages == 2 && under_way > 1) {
                __pipeline_wait_prior(1);
                arrive();
            }
            if (++stage == work.stages) stage = 0, parity ^= 1;
            advance(work, tile, by);
        }
    }
    __pipeline_wait_prior(0);
    while (under_way > 0) arrive();
}

// Chooses the widths of the copies.
template <int filters, int dy_bytes>
__device__ __forceinline__ void load_x(const ConvProblem& conv, const Work& work, const Block& b,
                                       const Number* g_x, const Number* g_dy) {
    switch (work.x_bytes_at) {
        case 16: load<filters, dy_bytes, 16>(conv, work, b, g_x, g_dy); break;
        case 8: load<filters, dy_bytes, 8>(conv, work, b, g_x, g_dy); break;
        case 4: load<filters, dy_bytes, 4>(conv, work, b, g_x, g_dy); break;
        default: load<filters, dy_bytes, kTf32 ? 4 : 2>(conv, work, b, g_x, g_dy);
    }
}
template <int filters>
__device__ __forceinline__ void load_any(const ConvProblem& conv, const Work& work, const Block& b,
                                         const Number* g_x, const Number* g_dy) {
    switch (work.dy_bytes_at) {
        case 16: load_x<filters, 16>(conv, work, b, g_x, g_dy); break;
        case 8: load_x<filters, 8>(conv, work, b, g_x, g_dy); break;
        case 4: load_x<filters, 4>(conv, work, b, g_x, g_dy); break;
        default: load_x<filters, kTf32 ? 4 : 2>(conv, work, b, g_x, g_dy);
    }
}

// A word of wgmma's operand, from pixels that are `step` apart; those that are not valid are zeros.
// TF32: a tensor core truncates both operands. This makes up for the mean loss of x; dy is copied as it
// is. A factor for both would change small integers, which must stay exact.
__device__ __forceinline__ uint32_t operand(const float* s_x, int /*step*/, bool whole, int valid) {
    const float value = before_truncation(*s_x);
    return whole || valid > 0 ? __float_as_uint(value) : 0;
}
__device__ __forceinline__ uint32_t operand(const bf16* s_x, int step, bool whole, int valid) {
    const uint32_t low = s_x[0].bits, high = s_x[step].bits;
    return (whole || valid > 0 ? low : 0) | (whole || valid > 1 ? high << 16 : 0);
}

// Both terms of a word, in 21c.
__device__ __forceinline__ void split_operand(const float* s_x, bool whole, int valid, uint32_t& high,
                                              uint32_t& low) {
    const Parts both = truncated_parts(*s_x);
    high = whole || valid > 0 ? __float_as_uint(both.high) : 0;
    low = whole || valid > 0 ? __float_as_uint(both.low) : 0;
}

// A consumer warpgroup: multiplies 64 rows of x, in each part of the block's rows, with the filters of
// dy. `simple`: a tile is one row of kPixels pixels, and x has no stride.
template <int filters, int parts, bool simple>
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Work& work, const Block& b,
                                         const Item& item, int warp, int& stage, int& parity,
                                         float* g_sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, taps = conv.R * conv.S;
    constexpr int kGroup = kSplit ? 1 : 2 / parts;   // steps
    const int stride_w = simple ? 1 : work.stride_w;
    const int half_step = 4 * kWord * stride_w;   // numbers of x, from word t to t + 4
    // A lane gathers two rows of a part, g and g + 8 of its warp's 16, and words t and t + 4.
    int at[parts][2];
    #pragma unroll
    for (int part = 0; part < parts; ++part) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = min_of(item.row0 + part * kRows + 16 * warp + 8 * half + g,
                                   conv.C / conv.groups * taps - 1);
            const int c = row / taps - item.c0, r = row % taps / conv.S, s = row % conv.S;
            at[part][half] = c * work.plane + r * conv.dilation_h * work.pitch +
                             s * conv.dilation_w + work.left + t * kWord * stride_w;
        }
    }
    const uint64_t dy_first = wgmma_descriptor(b.s_stages, 16 * (filters + 1), 128);
    float r_acc[parts][filters / 2] = {};   // wgmma's d: 64 rows x `filters`
    // 21c adds the sums of each stage in fp32.
    float r_sum[kSplit ? parts : 1][kSplit ? filters / 2 : 1] = {};
    int since = 0;
    bool added = false;
    // This lane's sums in memory: [item][filter][row].
    float* sums = g_sums + sums_at(work, item.unit, blockIdx.x, filters) + 2 * t * (parts * kRows) +
                  16 * warp + g;
    // A warpgroup past the last row multiplies nothing.
    const bool idle = item.row0 + warp / 4 * 64 >= conv.C / conv.groups * taps;
    auto move_sums = [&] {
        #pragma unroll
        for (int part = 0; part < parts; ++part)
            #pragma unroll
            for (int j = 0; j < filters / 8; ++j)
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float* to = sums + (8 * j + i % 2) * (parts * kRows) + part * kRows + i / 2 * 8;
                    float& sum = kSplit ? r_sum[kSplit ? part : 0][kSplit ? 4 * j + i : 0]
                                        : r_acc[part][4 * j + i];
                    *to = added ? *to + sum : sum;
                    if (kSplit) sum = 0.0f;
                }
        added = true;
        since = 0;
    };
    auto release = [&] {   // the stage
        if (lane == 0) mbarrier_arrive(&b.empty[stage]);
        if (++stage == work.stages) stage = 0, parity ^= 1;
    };
    Tile tile = tile_at(work, item.first_tile);
    const Tile by = tile_at(work, work.step);
    for (int number = item.first_tile; number < item.end_tile; number += work.step) {
        mbarrier_wait(&b.full[stage], parity);
        if (idle) {
            release();
            continue;
        }
        const Number* s_x =
            reinterpret_cast<const Number*>(b.s_stages + stage * work.stage_bytes + work.dy_bytes);
        const uint64_t dy_stage = wgmma_moved(dy_first, stage * (work.stage_bytes / 16));
        // A step's words of x. `first`: its first pixel's number in a staged row; `left`: how many of
        // its pixels are in dy, from this lane's on.
        auto gather = [&](uint32_t (&r_x)[TERMS * parts][4], int first, auto whole, int left) {
            #pragma unroll
            for (int part = 0; part < parts; ++part)
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const Number* from = s_x + at[part][i % 2] + first + i / 2 * half_step;
                    const int valid = left - i / 2 * 4 * kWord;
                    if constexpr (kSplit) {
                        split_operand(from, whole.value, valid, r_x[part][i], r_x[parts + part][i]);
                    } else {
                        r_x[part][i] = operand(from, stride_w, whole.value, valid);
                    }
                }
        };
        constexpr int kLowAt = 2 * kSteps * (filters + 1);   // of dy, in units of 16 bytes
        auto product = [&](const uint32_t (&r_from)[kGroup][TERMS * parts][4], int step) {
            wgmma_fence();
            #pragma unroll
            for (int i = 0; i < kGroup; ++i)
                #pragma unroll
                for (int part = 0; part < parts; ++part) {
                    const uint64_t dy_step = wgmma_moved(dy_stage, (step + i) * 2 * (filters + 1));
                    const int add = (kSplit ? 0 : since) + step + i > 0;
                    if constexpr (kSplit) {   // the small products first
                        wgmma_n(r_acc[part], r_from[i][parts + part], dy_step, add);
                        wgmma_n(r_acc[part], r_from[i][part], wgmma_moved(dy_step, kLowAt), true);
                    }
                    wgmma_n(r_acc[part], r_from[i][part], dy_step, kSplit || add);
                }
            wgmma_commit();
        };
        // A group of steps is gathered while another one is multiplied.
        uint32_t r_x[2][kGroup][TERMS * parts][4];
        auto multiply_row = [&](auto whole) {
            const int left = conv.Q - tile.q - t * kWord;
            #pragma unroll
            for (int step = 0; step < kSteps; step += kGroup) {
                uint32_t (&r_now)[kGroup][TERMS * parts][4] = r_x[step / kGroup % 2];
                #pragma unroll
                for (int i = step; i < step + kGroup; ++i)
                    gather(r_now[i - step], kStep * i, whole, left - kStep * i);
                product(r_now, step);
                if (step > 0) wgmma_wait<1>();
            }
        };
        if constexpr (simple) {
            if (tile.q + kPixels <= conv.Q) {
                multiply_row(std::true_type());
            } else {
                multiply_row(std::false_type());
            }
        } else {
            int row = 0, column = 0;   // of the step's first pixel, in the tile
            auto gather_next = [&](uint32_t (&r_to)[TERMS * parts][4]) {
                const bool there = row < work.rows && tile.p + row < conv.P;
                // Steps that are not there read the first row, and use nothing of it.
                const int from = there ? row * work.stride_h * work.pitch + column * stride_w : 0;
                gather(r_to, from, std::false_type(),
                       there ? conv.Q - tile.q - column - t * kWord : 0);
                column += kStep;
                if (column == work.columns) column = 0, ++row;
            };
            #pragma unroll 1
            for (int step = 0; step < work.steps; step += 2 * kGroup) {
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    #pragma unroll
                    for (int i = 0; i < kGroup; ++i) gather_next(r_x[half][i]);
                    product(r_x[half], step + half * kGroup);
                }
                wgmma_wait<0>();
            }
        }
        wgmma_wait<0>();
        if constexpr (kSplit) {
            #pragma unroll
            for (int part = 0; part < parts; ++part)
                #pragma unroll
                for (int i = 0; i < filters / 2; ++i) r_sum[part][i] += r_acc[part][i];
        }
        release();
        advance(work, tile, by);
        if (++since == kPeriod) move_sums();
    }
    if (since > 0) move_sums();
}

template <int filters, int parts>
__global__ void __launch_bounds__(kThreads, 1)
weight_gradient_wgmma(ConvProblem conv, Work work, const Number* __restrict__ g_x,
                      const Number* __restrict__ g_dy, float* __restrict__ g_sums) {
    extern __shared__ float4 s_mem[];
    Block b;
    b.full = reinterpret_cast<uint64_t*>(s_mem);
    b.empty = b.full + kMaxStages;
    b.s_stages = reinterpret_cast<char*>(s_mem) + kBarrierBytes;
    // By a shuffle, so that the compiler treats it as uniform in the warp.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    griddepcontrol_launch_dependents();   // add_items may be launched when blocks end
    // Zeros where nobody copies anything: steps that a tile does not have, ends of rows.
    for (int i = threadIdx.x; i < work.stages * (work.stage_bytes / 16); i += kThreads)
        reinterpret_cast<float4*>(b.s_stages)[i] = {};
    fence_proxy_async();
    if (threadIdx.x == 0) {
        for (int i = 0; i < work.stages; ++i) {
            mbarrier_init(&b.full[i], kLoaders / 32);
            mbarrier_init(&b.empty[i], kConsumers / 32);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (warp < kConsumers / 32) {
        const int64_t end = share_at(work, blockIdx.x + 1);
        int stage = 0, parity = 0;
        Item item;
        for (int64_t at = share_at(work, blockIdx.x); at < end; at = item.next) {
            item = item_at(conv, work, filters, at);
            if (work.columns == kPixels && work.stride_w == 1) {
                multiply<filters, parts, true>(conv, work, b, item, warp, stage, parity, g_sums);
            } else {
                multiply<filters, parts, false>(conv, work, b, item, warp, stage, parity, g_sums);
            }
        }
    } else {
        load_any<filters>(conv, work, b, g_x, g_dy);
    }
}

__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(bf16* to, float x) { to->bits = uint16_t(round_bf16(x, 0)); }

// dw[i] = the sum over the items of its unit, in a fixed order: two runs give the same bits. Lanes have
// neighbouring i, and `sharers` threads each add every n-th item. Int holds all numbers that occur: a
// division of 64 bits takes as long as many additions.
template <typename Int>
__global__ void __launch_bounds__(kAddThreads)
add_items(ConvProblem conv, Work work, int filters, int sharers, const float* __restrict__ g_sums,
          Number* __restrict__ g_dw) {
    __shared__ float s_sums[kAddThreads];
    griddepcontrol_wait();   // until the sums are there
    const Int rows = conv.C / conv.groups * conv.R * conv.S, K_group = conv.K / conv.groups;
    const int elements = kAddThreads / sharers, sharer = threadIdx.x / elements;
    const Int i = Int(blockIdx.x) * elements + threadIdx.x % elements;
    const bool inside = i < Int(conv.K) * rows;
    float r_sum = 0.0f;
    if (inside && work.blocks > 0) {
        const int row = int(i % rows), k = int(i / rows % K_group), group = int(i / rows / K_group);
        const int unit =
            (group * work.k_blocks + k / filters) * work.row_blocks + row / work.block_rows;
        // The blocks that have tiles of the unit. Block n ends before the tile number
        // tiles * units * (n + 1) / blocks.
        const Int all = Int(work.units) * work.tiles, first = Int(unit) * work.tiles;
        const int first_block = int(ceil_div((first + 1) * work.blocks, all)) - 1;
        const int last_block = int(ceil_div((first + work.tiles) * work.blocks, all)) - 1;
        const float* sums = g_sums + k % filters * work.block_rows + row % work.block_rows;
        #pragma unroll 8
        for (int block = first_block + sharer; block <= last_block; block += sharers)
            r_sum += sums[sums_at(work, unit, block, filters)];
    }
    s_sums[threadIdx.x] = r_sum;
    __syncthreads();   // all sharers have added their items
    if (!inside || sharer > 0) return;
    for (int other = 1; other < sharers; ++other) r_sum += s_sums[threadIdx.x + other * elements];
    put(g_dw + i, r_sum);
}

// Two sets of sums leave 21c fewer registers.
constexpr int kMostFilters = kSplit ? 64 : 128, kMostParts = kSplit ? 1 : 2;
static int filters_of(const ConvProblem& conv) {
    return conv.K / conv.groups > 64 ? kMostFilters : 64;
}

// Cuts the problem into tiles and parts. `stages` is 0 if they do not fit into shared memory.
static Work work_of(const ConvProblem& conv, const ThisDevice& device, int64_t limit, int parts) {
    Work work = {};
    const int filters = filters_of(conv), taps = conv.R * conv.S;
    const int rows = conv.C / conv.groups * taps;
    work.block_rows = parts * kRows;
    work.row_blocks = ceil_div(rows, work.block_rows);
    work.k_blocks = ceil_div(conv.K / conv.groups, filters);
    work.channels = min_of(conv.C / conv.groups, (work.block_rows - 1) / taps + 2);
    work.tiles_q = ceil_div(ceil_div(conv.Q, kStep) * kStep, kPixels);
    work.columns = ceil_div(ceil_div(conv.Q, work.tiles_q), kStep) * kStep;
    work.dy_bytes = TERMS * 2 * kSteps * (filters + 1) * 16;
    // One row or column of the filter: only the rows and columns of x that it meets are staged.
    work.down = conv.R == 1 ? conv.stride_h : 1;
    work.right = conv.S == 1 ? conv.stride_w : 1;
    work.stride_h = conv.stride_h / work.down;
    work.stride_w = conv.stride_w / work.right;
    // As many rows as a stage has room for, and at least two stages fit.
    for (work.rows = min_of(kPixels / work.columns, conv.P); work.rows >= 1; --work.rows) {
        work.tiles_p = ceil_div(conv.P, work.rows);
        work.steps = ceil_div(work.rows * work.columns / kStep, 4) * 4;
        work.x_rows = (work.rows - 1) * work.stride_h + (conv.R - 1) * conv.dilation_h + 1;
        const int64_t columns =
            int64_t(work.columns - 1) * work.stride_w + int64_t(conv.S - 1) * conv.dilation_w + 1;
        // Neighbouring rows and channels begin in different banks.
        int64_t words = ceil_div(columns + 16 / kSize - 1, int64_t(4 * kWord)) * 4;   // of a row
        if (taps > 1) words += (24 - words % 16) % 16;   // 8 modulo 16
        int64_t plane = work.x_rows * words;
        if (taps == 1) plane += (12 - plane % 8) % 8;    // 4 modulo 8
        const int64_t stage =
            work.dy_bytes + ceil_div(work.channels * plane * 4, int64_t(128)) * 128;
        const int64_t stages = (device.smem - kBarrierBytes) / stage;
        if (stages < 2) continue;
        work.pitch = int(words) * kWord;
        work.plane = int(plane) * kWord;
        work.stages = int(min_of(stages, int64_t(kMaxStages)));
        work.stage_bytes = int(stage);
        work.bytes = kBarrierBytes + work.stages * work.stage_bytes;
        break;
    }
    if (work.stages == 0) return work;
    work.tiles = conv.N * work.tiles_p * work.tiles_q;
    const int64_t units = int64_t(conv.groups) * work.k_blocks * work.row_blocks;
    if (units > INT32_MAX) return work;   // refused later
    work.units = int(units);
    // As many blocks as SMs. If nearly as many give each unit equal shares of blocks, these: blocks with
    // the same tiles of different units then run side by side, and read them from the L2 cache.
    int64_t blocks = device.sms;
    const int64_t even = device.sms / units * units;
    if (even * 20 >= device.sms * 19) blocks = even;
    const int64_t fit = limit / (filters * int64_t(work.block_rows) * 4) - units + 1;
    work.blocks = int(max_of(int64_t(1), min_of(min_of(blocks, fit), units * work.tiles)));
    work.step = work.blocks % work.units == 0 ? work.blocks / work.units : 1;
    return work;
}
// Two parts share the reads of dy, if their sums fit into registers and their x into shared memory.
static Work work_of(const ConvProblem& conv, const ThisDevice& device, int64_t limit) {
    const int rows = conv.C / conv.groups * conv.R * conv.S;
    if (kMostParts == 2 && filters_of(conv) == 64 && rows > kRows) {
        const Work work = work_of(conv, device, limit, kMostParts);
        if (work.stages > 2) return work;
    }
    return work_of(conv, device, limit, 1);
}
static int64_t sum_bytes(const ConvProblem& conv, const Work& work) {
    const int64_t items = max_of(int64_t(work.units) + work.blocks - 1, int64_t(0));   // at most
    return items * filters_of(conv) * work.block_rows * 4;
}

// A 1x1 filter without stride and padding sees an image as one row of pixels.
static ConvProblem one_row(const ConvProblem& conv) {
    ConvProblem row = conv;
    if (conv.R * conv.S > 1 || conv.stride_h * conv.stride_w > 1 || conv.pad_h + conv.pad_w > 0)
        return row;
    row.W = conv.H * conv.W, row.Q = row.W;   // below 2^31, as N * P * Q
    row.H = row.P = 1;
    return row;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const int64_t most = int64_t(min_of(limit, size_t(INT64_MAX)));
    const ConvProblem conv = one_row(*problem);
    return size_t(sum_bytes(conv, work_of(conv, this_device(), most)));
}

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const Number* x,
                                                 const Number* dy, Number* dw, void* workspace,
                                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = one_row(*problem);
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    Work work = work_of(conv, device, int64_t(workspace_bytes));
    if (work.stages == 0)
        return "the rows of x do not fit into shared memory; use 19b_weight_gradient_gemm";
    if (sum_bytes(conv, work) > int64_t(workspace_bytes))
        return "the workspace is too small for the sums";
    const int filters = filters_of(conv);
    float* sums = static_cast<float*>(workspace);
    const int64_t units = int64_t(conv.groups) * work.k_blocks * work.row_blocks;
    // A thread adds at least four items, and then others share them.
    int sharers = 1;
    while (sharers < kMostSharers && units * sharers * 8 <= work.blocks) sharers *= 2;
    const int64_t adding = ceil_div(
        int64_t(conv.K) * (conv.C / conv.groups) * conv.R * conv.S, int64_t(kAddThreads / sharers));
    if (const char* error = too_many(max_of(units, adding))) return error;
    // The widest copies that the addresses allow.
    auto widest = [](int columns, const void* address) {
        int bytes = 16;
        while (columns * int64_t(kSize) % bytes != 0 ||
               reinterpret_cast<uintptr_t>(address) % bytes != 0)
            bytes /= 2;
        return bytes;
    };
    work.x_bytes_at = widest(conv.W, x);
    work.dy_bytes_at = widest(conv.Q, dy);
    if (work.right > 1) work.x_bytes_at = kSize;   // columns that are apart
    const int wide = work.x_bytes_at / kSize;
    work.left = (wide - conv.pad_w % wide) % wide;
    work.copies = ceil_div(work.left + (work.columns - 1) * work.stride_w +
                              (conv.S - 1) * conv.dilation_w + 1, wide);
    if (conv.N == 0) work.blocks = 0;   // the sums are zeros
    auto launch = [&](auto kernel) -> const char* {
        if (const char* error = ask_for_shared_memory(kernel, work.bytes)) return error;
        kernel<<<unsigned(work.blocks), kThreads, work.bytes, stream>>>(conv, work, x, dy, sums);
        return launch_error();
    };
    if (conv.N > 0) {
        const char* error =
            filters == kMostFilters    ? launch(weight_gradient_wgmma<kMostFilters, 1>)
            : work.block_rows == kRows ? launch(weight_gradient_wgmma<64, 1>)
                                       : launch(weight_gradient_wgmma<64, kMostParts>);
        if (error) return error;
    }
    const int64_t most = max_of(adding * kAddThreads,
                                (int64_t(work.units) * work.tiles + 1) * max_of(work.blocks, 1));
    auto* add = most < INT32_MAX ? add_items<unsigned> : add_items<int64_t>;
    launch_dependent(add, int(adding), kAddThreads, 0, stream, conv, work, filters, sharers, sums, dw);
    return launch_error();
}
