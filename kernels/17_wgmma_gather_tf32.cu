// title: Fragments gathered from x in its memory order
// idea: wgmma can take one operand from registers. So x is staged in its own order, by asynchronous
//       copies, and lanes gather a tap's pixels, at any stride. A tile is 192 or 128 flattened
//       pixels: small images waste none.
// change: Against 11: pixels are wgmma's rows and come from registers; nothing is transposed. The
//       filter is laid out before the calls. If tiles are few, blocks share the channels, and a
//       second kernel adds their parts.
// mapping: block -> every n-th item: 192 or 128 pixels of all images x 128 output channels (64 if
//       the group has no more, or the filter is large) x a part of the input channels; a consumer
//       warpgroup -> 64 pixels; four loader warps -> x, one of their lanes -> the filter.
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000,
//       R * S > 1 or stride_h == 1 and stride_w == 1 and pad_h == 0 and pad_w == 0
//       or pad_w == 0 and 320 * (2 + 190 // Q) * W + 44032 <= smem
//       or 320 * (2 + 190 // Q) * (W + 2 * pad_w + 6) + 44032 <= smem,
//       R * S == 1 or 80 * (W + 2 * pad_w + 6) * ((1 + 190 // Q) * stride_h + 1
//             + (R - 1) * dilation_h * ((P + 190 // Q) // P + 1)) + 8196 * (R * S + 3) <= smem
//       or (R * S > 12 or K // groups <= 64)
//             and 80 * (W + 2 * pad_w + 6) * ((1 + 190 // Q) * stride_h + 1
//             + (R - 1) * dilation_h * ((P + 190 // Q) // P + 1)) + 4100 * (R * S + 4) <= smem
// best: tf32 == 1, groups == 1, C >= 64, K >= 64, Q <= 64, N * P * Q * K >= 800000,
//       dilation_h == 1, dilation_w == 1,
//       R == 3 and S == 3
//       or R * S == 1 and pad_h + pad_w == 0 and H * W % 4 == 0
//             and (stride_h == 1 and stride_w == 1 and K >= 128 and (K >= 256 or C <= 256)
//                      and (K <= C or C <= 128)
//                  or stride_h == 2 and stride_w == 2 and W % 4 == 0)
// limits: 3x3 filters keep the tensor cores busy, but a block stores when it has multiplied. 1x1
//       filters wait for the L2 cache, most of all with a stride: whole rows are copied. Rows are
//       staged whole, so wide images do not fit.
#include "convlab.cuh"
#include "convlab_async.cuh"

#if !defined(NUMBER)
#define NUMBER float   // or bf16, for 17b
#endif
#include "wgmma_n.cuh"

using Number = NUMBER;
constexpr bool kTf32 = sizeof(Number) == 4;
constexpr int kSize = int(sizeof(Number));
constexpr int kWord = 4 / kSize;   // input channels of a word of wgmma's operands
constexpr int kLoaders = 128;      // threads; before them, 128 for each 64 pixels of a tile

// What the filter is: 1x1 without stride and padding, another 1x1, 3x3, or any.
constexpr int kFlat = 0, kPoint = 1, kSquare = 2, kAny = 3;
__host__ __device__ constexpr bool is_point(int mode) { return mode == kFlat || mode == kPoint; }
// A step is one wgmma: 8 words of channels of one tap. A lane gathers a group of steps at a time.
__host__ __device__ constexpr int steps_of(int mode) { return is_point(mode) ? 4 : 3; }
// The input channels of a stage.
__host__ __device__ constexpr int depth_of(int mode) { return (is_point(mode) ? 32 : 8) * kWord; }
// How many stages a loader leaves under way.
__host__ __device__ constexpr int behind_of(int mode) { return mode == kFlat ? 2 : 1; }
// The channels that a lane of a loader copies to one place, of `bytes` bytes.
__host__ __device__ constexpr int channels_at(int bytes) { return bytes < 8 ? 8 : 4; }

// A stage has x as [channel][position], and the filter of the same channels. In mode kFlat the
// positions are the tile's pixels. Else they are the input rows that the tile reads, with margins
// of zeros.
struct Work {
    int tile, items, pixels;       // tile: pixels of a tile; pixels: of all images
    int k_tiles, splits;           // of all groups; parts of the input channels
    int chunks, parts;             // stages of a group; groups of steps of a stage
    int left, pitch;               // the left margin; positions of a row
    int row_step, image_rows;      // staged rows from p to p + 1, from image to image
    int plane;                     // positions of a channel, and padding
    int bytes_at;                  // the bytes that a lane copies at a time: 16, 8, 4 or 2
    int units;                     // copies of a row
    int stages, x_bytes, stage_bytes;            // x_bytes: of a stage, before the filter's
    int table_at, where_at, x_at, bytes;         // offsets in shared memory; its size
};

// What a loader's lane copies: from an offset in x, or zeros if it is negative; to a position of
// the stage; and the first channel.
struct Where {
    int64_t from;
    int to, c;
};

struct Item {
    int m0, k_tile, group, first_chunk, end_chunk, split;   // m0: the first pixel
};
__device__ __forceinline__ Item item_at(const ConvProblem& conv, const Work& work, int number) {
    Item item;
    item.split = number % work.splits;
    const int tile = number / work.splits;
    item.k_tile = tile % work.k_tiles;
    item.m0 = tile / work.k_tiles * work.tile;
    item.group = item.k_tile / (work.k_tiles / conv.groups);
    item.first_chunk = int(int64_t(work.chunks) * item.split / work.splits);
    item.end_chunk = int(int64_t(work.chunks) * (item.split + 1) / work.splits);
    return item;
}

struct Pixel {
    int n, p, q;
};
__device__ __forceinline__ Pixel pixel_at(const ConvProblem& conv, int m) {
    const int row = m / conv.Q;
    return {row / conv.P, row % conv.P, m % conv.Q};
}

// The staged row of a pixel's first tap. p0 is p of the tile's first pixel, whose image is n = 0.
__device__ __forceinline__ int row_at(const Work& work, int n, int p, int p0) {
    return n * work.image_rows + (p - p0) * work.row_step;
}

// The parts of a block's shared memory.
struct Block {
    uint64_t *full, *empty;   // mbarriers of the stages
    int* s_tap;               // each tap's distance in the stage; negative: none
    Where* s_where;           // the loaders' table
    char* s_stages;
    int warp, lane;
};

// A loader warp: copies x into the stages. A lane copies to the same places in each stage. The
// first lane of all also lets the copy engine copy the filter from the plan:
// [step][two quads of words][channel][4 words].
template <int mode, int tile, int out_channels, int bytes>
__device__ __forceinline__ void load(const ConvProblem& conv, const Work& work, const Block& b,
                                     const Number* g_x, const char* g_plan) {
    constexpr int kWide = bytes / kSize, kChannels = channels_at(bytes);
    constexpr int kParts = depth_of(mode) / kChannels;   // of a stage's channels
    const int filter_bytes = work.parts * steps_of(mode) * 32 * out_channels;
    const int thread = threadIdx.x - 2 * tile, plane = work.plane;
    const int C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W, image = conv.C * HW;
    const int h_step = conv.R == 1 ? conv.stride_h : 1;
    Where* s_where = b.s_where + thread;   // [place][lane]: a lane reads what it wrote itself
    int stage = 0, parity = 0, oldest = 0, under_way = 0;
    auto arrive = [&] {   // the oldest stage is complete
        if (b.lane == 0) mbarrier_arrive(&b.full[oldest]);
        if (++oldest == work.stages) oldest = 0;
        --under_way;
    };
    for (int number = blockIdx.x; number < work.items; number += gridDim.x) {
        const Item item = item_at(conv, work, number);
        const Pixel first = pixel_at(conv, item.m0);
        int places = tile / kWide;
        if (mode != kFlat) {
            const Pixel last = pixel_at(conv, min_of(item.m0 + tile, work.pixels) - 1);
            places = work.units * (row_at(work, last.n - first.n, last.p, first.p) +
                                   (conv.R - 1) * conv.dilation_h + 1);
        }
        int count = 0;
        for (int i = thread; i < kParts * places; i += kLoaders) {
            const int place = i % places;
            Where where = {-1, 0, i / places * kChannels};
            if (mode == kFlat) {
                const int m = item.m0 + kWide * place, n = m / int(HW);
                where.to = kWide * place;
                if (m < work.pixels) where.from = n * image + (m - n * int(HW));
            } else {
                const int row = place / work.units, w = place % work.units * kWide;
                const int from_first = row + first.p * work.row_step;
                const int n = first.n + from_first / work.image_rows;
                const int h = from_first % work.image_rows * h_step - conv.pad_h;
                where.to = row * work.pitch + work.left + w;
                if (n < conv.N && unsigned(h) < unsigned(conv.H))
                    where.from = n * image + int64_t(h) * conv.W + w;
            }
            where.to += where.c * plane;
            if (where.from >= 0) where.from += where.c * HW;
            s_where[count++ * kLoaders] = where;
        }
        const char* plan =
            g_plan + (int64_t(item.k_tile) * work.chunks + item.first_chunk) * filter_bytes;
        for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
            const int c0 = chunk * depth_of(mode);
            const Number* x_c0 = g_x + (int64_t(item.group) * C_group + c0) * HW;
            char* s_stage = b.s_stages + stage * work.stage_bytes;
            mbarrier_wait(&b.empty[stage], parity ^ 1);
            if (thread == 0) {
                mbarrier_arrive_expect(&b.full[stage], filter_bytes);
                bulk_load(s_stage + work.x_bytes, plan, filter_bytes, &b.full[stage]);
                plan += filter_bytes;
            }
            for (int i = 0; i < count; ++i) {
                const Where where = s_where[i * kLoaders];
                const int inside = where.from < 0 ? 0 : C_group - c0 - where.c;
                const Number* from = x_c0 + max_of(where.from, int64_t(0));
                Number* to = reinterpret_cast<Number*>(s_stage) + where.to;
                #pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    if constexpr (bytes == 2) {
                        *to = c < inside ? *from : Number{};
                    } else {
                        copy_async<bytes>(reinterpret_cast<float*>(to),
                                          reinterpret_cast<const float*>(c < inside ? from : g_x),
                                          c < inside);
                    }
                    from += HW;
                    to += plane;
                }
            }
            __pipeline_commit();
            ++under_way;
            if (under_way > behind_of(mode)) {
                __pipeline_wait_prior(behind_of(mode));
                __syncwarp();
                arrive();
            }
            if (++stage == work.stages) stage = 0, parity ^= 1;
        }
    }
    __pipeline_wait_prior(0);
    __syncwarp();
    while (under_way > 0) arrive();
}

// A word of wgmma's operand: a pixel of one channel, which the tensor core truncates, or of two.
__device__ __forceinline__ uint32_t operand(const float* s_x, int /*plane*/) {
    return __float_as_uint(before_truncation(*s_x));
}
__device__ __forceinline__ uint32_t operand(const bf16* s_x, int plane) {
    return s_x[0].bits | uint32_t(s_x[plane].bits) << 16;
}

__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(bf16* to, float x) { to->bits = uint16_t(round_bf16(x, 0)); }
__device__ __forceinline__ void put_two(float* to, float x, float y) {
    *reinterpret_cast<float2*>(to) = {x, y};
}
__device__ __forceinline__ void put_two(bf16* to, float x, float y) {
    *reinterpret_cast<uint32_t*>(to) = round_bf16(x, y);
}

// Stores a consumer's sums: to y, with bias and ReLU if `whole`, or as they are to the array of its
// split. A lane has rows g and g + 8 of its warp's 16 pixels.
template <int channels, bool whole, typename T>
__device__ __forceinline__ void store(const ConvProblem& conv, const Work& work, const Block& b,
                                      const Item& item, const float (&r_sum)[channels / 2],
                                      const float* g_bias, T* g_y) {
    const int g = b.lane / 4, t = b.lane % 4, odd = g % 2;
    const int K_group = conv.K / conv.groups;
    const int k0 = item.k_tile % (work.k_tiles / conv.groups) * channels;   // in the group
    const int count = K_group - k0 - 2 * t;
    const int PQ = conv.P * conv.Q;   // below 2^31, as all pixels
    const int m = item.m0 + 16 * b.warp;
    auto at = [&](int pixel) {
        const int n = pixel / PQ;
        return (int64_t(n) * conv.K + item.group * K_group + k0 + 2 * t) * PQ + (pixel - n * PQ);
    };
    auto finished = [&](float sum, int k) {
        if (!whole) return sum;
        if (g_bias) sum += g_bias[item.group * K_group + k0 + 2 * t + k];
        return activated(conv, sum);
    };
    if (PQ % 2 == 0) {
        // Lanes g and g ^ 1 exchange halves, so that each has two neighbouring pixels, and a warp
        // stores runs of 16.
        const int pixel = m + (odd ? 7 + g : g);
        T* y_k = g_y + at(pixel);
        #pragma unroll
        for (int j = 0; j < channels / 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float low = r_sum[4 * j + i], high = r_sum[4 * j + 2 + i];
                const float other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 4);
                if (pixel < work.pixels && 8 * j + i < count)
                    put_two(y_k + i * int64_t(PQ), finished(odd ? other : low, 8 * j + i),
                            finished(odd ? high : other, 8 * j + i));
            }
            y_k += 8 * int64_t(PQ);
        }
        return;
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int pixel = m + 8 * half + g;
        T* y_k = g_y + at(pixel);
        #pragma unroll
        for (int j = 0; j < channels / 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                if (pixel < work.pixels && 8 * j + i < count)
                    put(y_k + i * int64_t(PQ), finished(r_sum[4 * j + 2 * half + i], 8 * j + i));
            y_k += 8 * int64_t(PQ);
        }
    }
}

// A consumer warpgroup: multiplies 64 pixels of each item with the filter, and stores them.
template <int mode, int tile, int channels>
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Work& work, const Block& b,
                                         const float* g_bias, Number* g_y, float* g_parts) {
    constexpr int kSteps = steps_of(mode);
    const int plane = mode == kFlat ? tile + 8 : work.plane;   // the same, as a constant
    const uint64_t w_first = wgmma_descriptor(b.s_stages + work.x_bytes, 16 * channels, 128);
    float r_acc[channels / 2] = {};   // wgmma's d: 64 pixels x `channels`
    int stage = 0, parity = 0;
    for (int number = blockIdx.x; number < work.items; number += gridDim.x) {
        const Item item = item_at(conv, work, number);
        // A lane gathers two pixels, rows g and g + 8 of its warp's 16, and words t and t + 4.
        int at[2];
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int m = 16 * b.warp + 8 * half + b.lane / 4;
            at[half] = m;
            if (mode != kFlat) {
                const Pixel first = pixel_at(conv, item.m0);
                const Pixel pixel = pixel_at(conv, min_of(item.m0 + m, work.pixels - 1));
                at[half] = row_at(work, pixel.n - first.n, pixel.p, first.p) * work.pitch +
                           pixel.q * conv.stride_w + work.left - conv.pad_w;
            }
            at[half] += b.lane % 4 * kWord * plane;
        }
        uint32_t r_x[2][kSteps][4];
        int added = 0;
        for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
            mbarrier_wait(&b.full[stage], parity);
            const Number* s_x =
                reinterpret_cast<const Number*>(b.s_stages + stage * work.stage_bytes);
            const uint64_t w_stage = wgmma_moved(w_first, stage * (work.stage_bytes / 16));
            // Gathers a group of steps. A tap is the same pixels, read from a shifted start.
            auto gather = [&](uint32_t (&r_to)[kSteps][4], int part) {
                #pragma unroll
                for (int step = 0; step < kSteps; ++step) {
                    unsigned present = ~0u;
                    int tap = step * 8 * kWord * plane;
                    if (mode == kSquare) tap = part * conv.dilation_h * work.pitch + step;
                    if (mode == kAny) {
                        tap = b.s_tap[part * kSteps + step];
                        present = tap < 0 ? 0 : ~0u;
                        tap = max_of(tap, 0);
                    }
                    const Number* s_0 = s_x + at[0] + tap;
                    const Number* s_1 = s_x + at[1] + tap;
                    r_to[step][0] = operand(s_0, plane) & present;
                    r_to[step][1] = operand(s_1, plane) & present;
                    r_to[step][2] = operand(s_0 + 4 * kWord * plane, plane) & present;
                    r_to[step][3] = operand(s_1 + 4 * kWord * plane, plane) & present;
                }
            };
            auto product = [&](const uint32_t (&r_from)[kSteps][4], int part) {
                const uint64_t w_part = wgmma_moved(w_stage, part * kSteps * 2 * channels);
                wgmma_fence();
                #pragma unroll
                for (int step = 0; step < kSteps; ++step) {
                    wgmma_n(r_acc, r_from[step], wgmma_moved(w_part, step * 2 * channels), added);
                    added = 1;
                }
                wgmma_commit();
            };
            if constexpr (mode == kSquare) {
                // One row of taps is gathered while another one is multiplied.
                gather(r_x[0], 0);
                product(r_x[0], 0);
                gather(r_x[1], 1);
                product(r_x[1], 1);
                wgmma_wait<1>();
                gather(r_x[0], 2);
                product(r_x[0], 2);
            } else {
                for (int part = 0; part < (mode == kAny ? work.parts : 1); ++part) {
                    if (part > 0) wgmma_wait<0>();
                    gather(r_x[0], part);
                    product(r_x[0], part);
                }
            }
            wgmma_wait<0>();
            if (b.lane == 0) mbarrier_arrive(&b.empty[stage]);
            if (++stage == work.stages) stage = 0, parity ^= 1;
        }
        if (work.splits == 1) {
            store<channels, true>(conv, work, b, item, r_acc, g_bias, g_y);
        } else {
            const int64_t outputs = int64_t(conv.N) * conv.K * conv.P * conv.Q;
            store<channels, false>(conv, work, b, item, r_acc, g_bias,
                                   g_parts + item.split * outputs);
        }
    }
}

// What a block does before its roles begin: the table of taps, the margins' zeros, the mbarriers.
template <int mode, int tile>
__device__ __forceinline__ Block set_up(const ConvProblem& conv, const Work& work, float4* s_mem) {
    constexpr int kConsumers = 2 * tile, kThreads = kConsumers + kLoaders;
    char* s_bytes = reinterpret_cast<char*>(s_mem);
    Block b;
    b.full = reinterpret_cast<uint64_t*>(s_mem);
    b.empty = b.full + work.stages;
    b.s_tap = reinterpret_cast<int*>(s_bytes + work.table_at);
    b.s_where = reinterpret_cast<Where*>(s_bytes + work.where_at);
    b.s_stages = s_bytes + work.x_at;
    // By a shuffle, so that the compiler treats it as uniform in the warp.
    b.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    b.lane = threadIdx.x % 32;
    for (int i = threadIdx.x; mode == kAny && i < work.parts * steps_of(mode); i += kThreads)
        b.s_tap[i] = i >= conv.R * conv.S
                         ? -1
                         : i / conv.S * conv.dilation_h * work.pitch + i % conv.S * conv.dilation_w;
    if constexpr (mode != kFlat) {   // the margins, which nobody loads
        const int vectors = work.x_bytes / 16;
        for (int i = threadIdx.x; i < work.stages * vectors; i += kThreads) {
            char* s_x = b.s_stages + i / vectors * work.stage_bytes;
            reinterpret_cast<float4*>(s_x)[i % vectors] = {};
        }
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < work.stages; ++i) {
            mbarrier_init(&b.full[i], kLoaders / 32 + 1);
            mbarrier_init(&b.empty[i], kConsumers / 32);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    return b;
}

// A loader warp, with the widest copies.
template <int mode, int tile, int out_channels>
__device__ __forceinline__ void load_any(const ConvProblem& conv, const Work& work, const Block& b,
                                         const Number* g_x, const char* g_plan) {
    switch (work.bytes_at) {
        case 16: load<mode, tile, out_channels, 16>(conv, work, b, g_x, g_plan); break;
        case 8: load<mode, tile, out_channels, 8>(conv, work, b, g_x, g_plan); break;
        case 4: load<mode, tile, out_channels, 4>(conv, work, b, g_x, g_plan); break;
        default: load<mode, tile, out_channels, kTf32 ? 4 : 2>(conv, work, b, g_x, g_plan);
    }
}

template <int mode, int tile, int channels>
__global__ void __launch_bounds__(2 * tile + kLoaders, 1)
conv2d_gather(ConvProblem conv, Work work, const Number* __restrict__ g_x,
              const char* __restrict__ g_plan, const float* __restrict__ g_bias,
              Number* __restrict__ g_y, float* __restrict__ g_parts) {
    extern __shared__ float4 s_mem[];
    griddepcontrol_launch_dependents();   // add_parts may be launched when blocks end
    const Block b = set_up<mode, tile>(conv, work, s_mem);
    if (b.warp >= 2 * tile / 32) {
        griddepcontrol_wait();   // until the filter is laid out, in 20h
        load_any<mode, tile, channels>(conv, work, b, g_x, g_plan);
    } else {
        multiply<mode, tile, channels>(conv, work, b, g_bias, g_y, g_parts);
    }
}

// Adds the parts of the splits, in their order.
__global__ void __launch_bounds__(256)
add_parts(ConvProblem conv, int splits, bool vectors, const float* __restrict__ g_parts,
          const float* __restrict__ g_bias, Number* __restrict__ g_y) {
    griddepcontrol_wait();   // until the parts are there
    const int64_t PQ = int64_t(conv.P) * conv.Q, outputs = conv.N * conv.K * PQ;
    const int64_t i = (int64_t(blockIdx.x) * 256 + threadIdx.x) * (vectors ? 4 : 1);
    if (i >= outputs) return;
    const float bias = g_bias ? g_bias[i / PQ % conv.K] : 0.0f;
    if (vectors) {
        float4 sum = {bias, bias, bias, bias};
        #pragma unroll 4
        for (int split = 0; split < splits; ++split) {
            const float4 part = *reinterpret_cast<const float4*>(g_parts + split * outputs + i);
            sum.x += part.x;
            sum.y += part.y;
            sum.z += part.z;
            sum.w += part.w;
        }
        put_two(g_y + i, activated(conv, sum.x), activated(conv, sum.y));
        put_two(g_y + i + 2, activated(conv, sum.z), activated(conv, sum.w));
    } else {
        float sum = bias;
        #pragma unroll 4
        for (int split = 0; split < splits; ++split) sum += g_parts[split * outputs + i];
        put(g_y + i, activated(conv, sum));
    }
}

// ---- the plan: the filter in wgmma's order, rounded to TF32 ------------------------------------
static int mode_of(const ConvProblem& conv) {
    if (conv.R == 3 && conv.S == 3 && conv.dilation_w == 1) return kSquare;
    if (conv.R * conv.S > 1) return kAny;
    const bool flat =
        conv.stride_h == 1 && conv.stride_w == 1 && conv.pad_h == 0 && conv.pad_w == 0;
    return flat ? kFlat : kPoint;
}
static int channels_of(const ConvProblem& conv) {
    return conv.K / conv.groups <= 64 || conv.R * conv.S > 12 ? 64 : 128;
}
static int k_tiles_of(const ConvProblem& conv) {   // of a group
    return ceil_div(conv.K / conv.groups, channels_of(conv));
}
static int chunks_of(const ConvProblem& conv) {
    return ceil_div(conv.C / conv.groups, depth_of(mode_of(conv)));
}
static int parts_of(const ConvProblem& conv) {
    return is_point(mode_of(conv)) ? 1 : ceil_div(conv.R * conv.S, 3);
}
static int64_t filter_bytes_of(const ConvProblem& conv) {   // of a stage
    return int64_t(parts_of(conv)) * steps_of(mode_of(conv)) * 32 * channels_of(conv);
}
static int64_t plan_bytes(const ConvProblem& conv) {
    return conv.groups * int64_t(k_tiles_of(conv)) * chunks_of(conv) * filter_bytes_of(conv);
}

__device__ __forceinline__ float rounded(const float& w) { return round_tf32(w); }
__device__ __forceinline__ bf16 rounded(const bf16& w) { return w; }

__global__ void lay_out(ConvProblem conv, int mode, int channels, int k_tiles, int chunks,
                        int steps, int64_t numbers, const Number* __restrict__ g_w,
                        Number* __restrict__ g_plan) {
    constexpr int kRow = 4 * kWord;   // numbers in 16 bytes
    const int C_group = conv.C / conv.groups;   // steps: of a stage
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < numbers;
         i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / kRow;
        const int number = int(i % kRow), k_in = int(rest % channels);
        rest /= channels;
        const int quad = int(rest % 2);
        rest /= 2;
        const int step = int(rest % steps);
        rest /= steps;
        const int chunk = int(rest % chunks), k_tile = int(rest / chunks);
        const int group = k_tile / k_tiles, K_group = conv.K / conv.groups;
        const int k = k_tile % k_tiles * channels + k_in;
        const int tap = is_point(mode) ? 0 : step;
        const int c = chunk * depth_of(mode) +
                      ((is_point(mode) ? 8 * step : 0) + 4 * quad) * kWord + number;
        const bool inside = k < K_group && c < C_group && tap < conv.R * conv.S;
        const int64_t from = ((int64_t(group) * K_group + k) * C_group + c) * conv.R * conv.S + tap;
        g_plan[i] = inside ? rounded(g_w[from]) : Number{};
    }
}

CONVLAB_ENTRY size_t conv2d_plan(const ConvProblem* problem) { return plan_bytes(*problem); }

CONVLAB_ENTRY const char* conv2d_prepare(const ConvProblem* problem, const Number* w, void* plan,
                                         cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const int64_t numbers = plan_bytes(conv) / int64_t(sizeof(Number));
    const int blocks = int(min_of(ceil_div(numbers, int64_t(256)), int64_t(2048)));
    lay_out<<<blocks, 256, 0, stream>>>(conv, mode_of(conv), channels_of(conv), k_tiles_of(conv),
                                        chunks_of(conv), parts_of(conv) * steps_of(mode_of(conv)),
                                        numbers, w, static_cast<Number*>(plan));
    return launch_error();
}

// ---- the launch --------------------------------------------------------------------------------
static int64_t part_bytes(const ConvProblem& conv) {   // of one split
    return int64_t(conv.N) * conv.K * conv.P * conv.Q * 4;
}
// How many pixels a tile has, and in how many parts the input channels are cut.
struct Cut {
    int tile, splits;
};
// All blocks together take as long as the one with the most items. An item takes as long as its
// chunks, and some time to begin and to end. Adding the parts takes time, too. The constants are in
// microseconds, measured on an H100.
static Cut cut_of(const ConvProblem& conv, int sms, int64_t limit) {
    const int mode = mode_of(conv), chunks = chunks_of(conv);
    const int along = mode == kFlat ? conv.P * conv.Q : conv.W;   // what is contiguous in x
    const bool narrow = mode == kPoint || along % 2 != 0;   // copies are small, or of unused pixels
    const double chunk = is_point(mode) ? narrow ? 0.95 : 0.58
                                        : (narrow ? 0.45 : 0.34) * parts_of(conv);
    const double megabytes = double(part_bytes(conv)) / 1e6;
    Cut best = {192, 1};
    double least = 0;
    for (int tile = 192; tile >= 128; tile -= 64) {
        if (tile == 128 && (channels_of(conv) == 64 || mode == kPoint || mode == kAny)) continue;
        const int64_t tiles = ceil_div(int64_t(conv.N) * conv.P * conv.Q, int64_t(tile)) *
                              k_tiles_of(conv) * conv.groups;
        for (int splits = 1; splits <= 8 && splits <= chunks; ++splits) {
            if (splits > 1 && splits * part_bytes(conv) > limit) break;
            const double time =
                double(ceil_div(tiles * splits, int64_t(sms))) *
                    (ceil_div(chunks, splits) * chunk * (tile == 192 ? 1.0 : 0.7) + 6) +
                (splits > 1 ? 2 + 0.55 * (splits + 1) * megabytes : 0);
            if (least == 0 || time < least) {
                best = {tile, splits};
                least = time;
            }
        }
    }
    return best;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const int64_t most = int64_t(min_of(limit, size_t(INT64_MAX)));
    const int splits = cut_of(*problem, this_device().sms, most).splits;
    return splits == 1 ? 0 : size_t(splits * part_bytes(*problem));
}

// Says what a stage holds, and where everything is in shared memory. `taps`: of the filter.
static const char* work_of(const ConvProblem& conv, int mode, int channels, int taps, const Cut& cut,
                           const ThisDevice& device, const Number* x, Work& work) {
    const int R1 = (conv.R - 1) * conv.dilation_h;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    work = {};
    work.pixels = int(conv.N * PQ);
    work.k_tiles = ceil_div(conv.K / conv.groups, channels) * conv.groups;
    work.tile = cut.tile;
    work.splits = cut.splits;
    work.chunks = ceil_div(conv.C / conv.groups, depth_of(mode));
    work.parts = is_point(mode) ? 1 : ceil_div(taps, 3);
    const int64_t items =
        ceil_div(int64_t(work.pixels), int64_t(work.tile)) * work.k_tiles * work.splits;
    if (const char* error = too_many(items)) return error;
    work.items = int(items);
    // The widest copies that the addresses allow: of the rows, or of all of a channel's pixels.
    int wide = 16 / kSize;
    const uintptr_t address = reinterpret_cast<uintptr_t>(x);
    while ((mode == kFlat ? PQ : conv.W) % wide != 0 || address % (wide * kSize) != 0) wide /= 2;
    work.bytes_at = wide * kSize;
    int64_t positions = work.tile, places = work.tile / wide;
    if (mode != kFlat) {
        const int S1 = (conv.S - 1) * conv.dilation_w;
        const int columns =   // of x, that are read
            max_of((conv.Q - 1) * conv.stride_w + S1 + 1 - conv.pad_w, 0);
        work.left = ceil_div(conv.pad_w, wide) * wide;
        work.units = ceil_div(min_of(columns, conv.W), wide);
        work.pitch = work.left + max_of(ceil_div(columns, wide), work.units) * wide;
        work.row_step = conv.R == 1 ? 1 : conv.stride_h;
        work.image_rows = (conv.P - 1) * work.row_step + R1 + 1;
        // The most rows that a tile reads: those of its output rows, and more for each image.
        const int rows_out = 1 + (work.tile - 2) / conv.Q;
        const int images = (conv.P - 1 + rows_out) / conv.P;
        const int64_t rows = int64_t(rows_out) * work.row_step + R1 + 1 +
                             images * int64_t(max_of(R1 + 1 - work.row_step, 0));
        positions = rows * work.pitch;
        places = rows * work.units;
        if (positions > 1 << 16)
            return "the input rows of a tile do not fit into shared memory; use 01_direct";
    }
    // No bank conflicts: a lane's next word of channels is 32 bytes modulo 128 further on.
    const int after = 32 / kWord, modulo = 128 / kWord;
    const int over = int(positions * kSize % modulo);
    work.plane = int(positions) + (after + modulo - over) % modulo / kSize;
    work.x_bytes = int(ceil_div(depth_of(mode) * int64_t(work.plane) * kSize, int64_t(128)) * 128);
    const int64_t stage = work.x_bytes + int64_t(work.parts) * steps_of(mode) * 32 * channels;
    work.stage_bytes = int(stage);
    const int64_t rounds = ceil_div(places * (depth_of(mode) / channels_at(work.bytes_at)),
                                    int64_t(kLoaders));
    work.table_at = 128;
    work.where_at = int(ceil_div(work.table_at + 4 * work.parts * steps_of(mode), 16)) * 16;
    work.x_at = int(ceil_div(work.where_at + rounds * kLoaders * int64_t(sizeof(Where)),
                             int64_t(128)) * 128);
    work.stages = int(min_of((device.smem - work.x_at) / stage, int64_t(6)));
    if (work.stages <= behind_of(mode))
        return "the input rows of a tile do not fit into shared memory; use 01_direct";
    work.bytes = work.x_at + int(work.stages * stage);
    return nullptr;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* plan,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return launch_error();
    const int mode = mode_of(conv), channels = channels_of(conv);
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const Cut cut = cut_of(conv, device.sms, int64_t(workspace_bytes));
    Work work;
    const char* refused = work_of(conv, mode, channels, conv.R * conv.S, cut, device, x, work);
    if (refused) return refused;

    const int grid = int(min_of(work.items, device.sms));
    float* parts = static_cast<float*>(workspace);
    auto launch = [&](auto kernel) -> const char* {
        if (const char* error = ask_for_shared_memory(kernel, work.bytes)) return error;
        launch_dependent(kernel, grid, 2 * work.tile + kLoaders, work.bytes, stream, conv, work, x,
                         reinterpret_cast<const char*>(plan), bias, y, parts);
        return launch_error();
    };
    const bool few = channels == 64, small = work.tile == 128;
    const char* error = mode == kFlat     ? few     ? launch(conv2d_gather<kFlat, 192, 64>)
                                            : small ? launch(conv2d_gather<kFlat, 128, 128>)
                                                    : launch(conv2d_gather<kFlat, 192, 128>)
                        : mode == kSquare ? few     ? launch(conv2d_gather<kSquare, 192, 64>)
                                            : small ? launch(conv2d_gather<kSquare, 128, 128>)
                                                    : launch(conv2d_gather<kSquare, 192, 128>)
                        : mode == kPoint  ? few ? launch(conv2d_gather<kPoint, 192, 64>)
                                                : launch(conv2d_gather<kPoint, 192, 128>)
                        : few             ? launch(conv2d_gather<kAny, 192, 64>)
                                          : launch(conv2d_gather<kAny, 192, 128>);
    if (error || work.splits == 1) return error;
    const int64_t outputs = conv.K * int64_t(work.pixels);
    const bool vectors = PQ % 4 == 0;
    const int blocks = int(ceil_div(outputs, int64_t(vectors ? 1024 : 256)));
    launch_dependent(add_parts, blocks, 256, 0, stream, conv, work.splits, vectors, parts, bias, y);
    return launch_error();
}
