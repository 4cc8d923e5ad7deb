// title: A row of dy is multiplied once
// idea: With few channels, a tap's product is too narrow for the tensor cores. A row of dy meets 3 rows
//       of dx, so one wgmma computes 3 rows of taps.
// change: Against 20: pixels are wgmma's rows, and columns are (row of dx, channel). The filter stays in
//       shared memory. As in 11b, a block walks down the image. Sums move up when a row is complete.
// mapping: block -> up to `rows` consecutive rows of dx in a strip of 256 or 128 columns, then other
//       such parts; two consumer warpgroups -> half of the columns each, all channels; eight or four
//       loader warps -> dy.
// computes: data gradient
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, R == 3, C // groups <= 32, stride_h == 1, stride_w == 1, dilation_h == 1,
//       C // groups <= 16 and (K // groups + 7) // 8 * S * 1536
//             + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
//       or (K // groups + 7) // 8 * S * 3072 + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
// best: tf32 == 1, groups == 1, C >= 8, C <= 16 or C <= 32 and K <= 32, N * C * H * W >= 6000000,
//       N * P * Q * K * C * R * S >= 20000000000
// limits: Memory: dy is read once. With many filters, the filter does not fit into shared memory.
//       Groups of fewer than 16 channels waste the tensor cores.
#include "convlab.cuh"

#if !defined(NUMBER)
#define NUMBER float   // or bf16, for 20g
#endif
#if !defined(TERMS)
#define TERMS 1   // 2 for 20f: a number is split into a high and a low part
#endif
#include "wgmma_n.cuh"
#include <type_traits>   // std::integral_constant

using Number = NUMBER;
constexpr int kSize = int(sizeof(Number)), kQuad = 16 / kSize;   // kQuad: numbers in 16 bytes
constexpr int kTerms = TERMS;
constexpr bool kSplit = kTerms == 2;
constexpr int kChunk = 2 * kQuad;       // filters of a chunk: wgmma's k
constexpr int kStaged = kSize == 4 && !kSplit ? 2 : 1;   // chunks of a stage
constexpr int kR = 3;                   // rows of the filter
#ifndef LOADER_GROUPS
#define LOADER_GROUPS 2   // of four loader warps; they take the stages in turn
#endif
constexpr int kGroups = LOADER_GROUPS;
static_assert(kGroups == 1 || kGroups == 2, "LOADER_GROUPS: 1 or 2");
constexpr int kConsumers = 256, kLoaders = 128;
// One group, if the sums need so many registers that there are none for more threads.
__host__ __device__ constexpr int groups_of(int channels, int tiles) {
    return channels == 32 && (tiles == 2 || kSplit) ? 1 : kGroups;
}
__host__ __device__ constexpr int threads_of(int channels, int tiles) {
    return kConsumers + groups_of(channels, tiles) * kLoaders;
}
constexpr int kMaxStages = 8;
constexpr int kBarrierBytes = 1024;
// A tensor core truncates its sum after every product, always towards zero. With two terms the sum must
// stay short: after this many taps, or a row of them, it moves to r_sum. See 13.
constexpr int kPeriod = 9;

// dx is cut into parts: `rows` rows of a strip of columns. A stage is a row of dy of a part, in the
// filters of a chunk or two: [chunk][term][quad][pixel][16 bytes].
struct Walk {
    int strips, rows, parts_h;
    int64_t parts;            // of all images
    int up, left;             // row h of dx first meets row h - up of dy; columns likewise
    int chunks;               // of kChunk filters
    int pitch;                // pixels of a staged row
    int stages, stage_bytes;
    int filter_bytes, x_at, bytes;
};

struct Part {
    int n, h0, w0, rows;
};
template <int strip>
__device__ __forceinline__ Part part_at(const ConvProblem& conv, const Walk& walk, int64_t i) {
    const int64_t row = i / walk.strips;
    Part part;
    part.n = int(row / walk.parts_h);
    part.h0 = int(row % walk.parts_h) * walk.rows;
    part.w0 = int(i % walk.strips) * strip;
    part.rows = min_of(walk.rows, conv.H - part.h0);
    return part;
}

// A number of the filter, rounded to TF32 or split.
__device__ __forceinline__ float packed(float w, bool low) {
    if (!kSplit) return round_tf32(w);
    const Parts parts = parts_of(w);
    return low ? parts.low : parts.high;
}
__device__ __forceinline__ bf16 packed(bf16 w, bool) { return w; }

// Packs the filter: [group][chunk][tap of a row][term][quad][row of taps][channel][16 bytes]. A row of dy
// meets the row of dx above it with the filter's first row, counted as it is in memory: so the rows are
// in their order, and the columns are turned.
__global__ void __launch_bounds__(256)
pack_rows(ConvProblem conv, int chunks, int channels, const Number* __restrict__ g_w,
          Number* __restrict__ g_packed, int64_t count) {
    griddepcontrol_launch_dependents();
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / kQuad;
        const int c = int(rest % channels);
        rest /= channels;
        const int r = int(rest % kR);
        rest /= kR;
        const int quad = int(rest % 2);
        rest /= 2;
        const bool low = rest % kTerms == 1;
        rest /= kTerms;
        const int s = conv.S - 1 - int(rest % conv.S);   // turned
        rest /= conv.S;
        const int k = int(rest % chunks) * kChunk + quad * kQuad + int(i % kQuad);
        const int64_t group = rest / chunks;
        const bool inside = c < C_group && k < K_group;
        const int64_t at = (((group * K_group + k) * C_group + c) * kR + r) * conv.S + s;
        g_packed[i] = packed(inside ? g_w[at] : Number{}, low);
    }
}

// The parts of a block's shared memory.
struct Block {
    uint64_t *full, *empty, *filter;   // mbarriers of the stages, and of the filter
    char* s_bytes;
};

// Stores a pixel of all filters of a chunk to the stage.
__device__ __forceinline__ void put_pixel(float4* s_to, int pitch, const float (&dy)[8]) {
    if constexpr (kSplit) {
        Parts parts[8];
        #pragma unroll
        for (int k = 0; k < 8; ++k) parts[k] = parts_of(dy[k]);
        #pragma unroll
        for (int quad = 0; quad < 2; ++quad) {
            const Parts* four = parts + 4 * quad;
            s_to[quad * pitch] =
                make_float4(four[0].high, four[1].high, four[2].high, four[3].high);
            s_to[(2 + quad) * pitch] =
                make_float4(four[0].low, four[1].low, four[2].low, four[3].low);
        }
    } else {
        s_to[0] = make_float4(before_truncation(dy[0]), before_truncation(dy[1]),
                              before_truncation(dy[2]), before_truncation(dy[3]));
        s_to[pitch] = make_float4(before_truncation(dy[4]), before_truncation(dy[5]),
                                  before_truncation(dy[6]), before_truncation(dy[7]));
    }
}
__device__ __forceinline__ void put_pixel(float4* s_to, int pitch, const bf16 (&dy)[16]) {
    auto two = [&](int k) { return uint32_t(dy[k].bits) | uint32_t(dy[k + 1].bits) << 16; };
    uint4* s_words = reinterpret_cast<uint4*>(s_to);
    s_words[0] = make_uint4(two(0), two(2), two(4), two(6));
    s_words[pitch] = make_uint4(two(8), two(10), two(12), two(14));
}

// A loader warp: copies the rows of dy through registers, into every `groups`-th stage. While one group
// waits for memory, so does the other: twice as many bytes are in flight.
template <int strip, int groups>
__device__ __forceinline__ void load(const ConvProblem& conv, const Walk& walk, const Block& b,
                                     int group, int first_part, int lanes, const Number* g_dy) {
    // Pixels that a lane has in flight: those of a stage, with up to 128 more for the taps.
    constexpr int kItems = kStaged * strip / kLoaders + 1;
    const int thread = (threadIdx.x - kConsumers) % kLoaders, lane = threadIdx.x % 32;
    const int loader_group = (threadIdx.x - kConsumers) / kLoaders;
    const int K_group = conv.K / conv.groups;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    int stage = 0, parity = 0;
    int turn = 0;   // the group that fills the stage
    for (int64_t i_part = first_part; i_part < walk.parts; i_part += lanes) {
        const Part part = part_at<strip>(conv, walk, i_part);
        for (int i = 0; i < part.rows + kR - 1; ++i) {
            const int p = part.h0 - walk.up + i;
            for (int chunk = 0; chunk < walk.chunks; chunk += kStaged) {
                const int k0 = chunk * kChunk;
                const int items = min_of(kStaged, walk.chunks - chunk) * walk.pitch;
                const Number* dy_row = g_dy + (int64_t(part.n) * conv.K + group * K_group + k0) * PQ +
                                       int64_t(p) * conv.Q;
                float4* s_row = reinterpret_cast<float4*>(b.s_bytes + walk.x_at +
                                                          stage * walk.stage_bytes);
                const bool mine = turn == loader_group;
                for (int first = 0; mine && first < items; first += kItems * kLoaders) {
                    Number r_dy[kItems][kChunk];
                    #pragma unroll
                    for (int j = 0; j < kItems; ++j) {
                        const int item = first + j * kLoaders + thread;
                        const int second = item >= walk.pitch;   // of the chunks
                        const int pixel = item - second * walk.pitch;
                        const int q = part.w0 - walk.left + pixel;
                        const bool inside = item < items && unsigned(p) < unsigned(conv.P) &&
                                            unsigned(q) < unsigned(conv.Q);
                        const Number* from = dy_row + kChunk * second * PQ + q;
                        const int filters = inside ? K_group - k0 - kChunk * second : 0;
                        #pragma unroll
                        for (int k = 0; k < kChunk; ++k) {
                            r_dy[j][k] = k < filters ? *from : Number{};
                            from += PQ;
                        }
                    }
                    if (first == 0) mbarrier_wait(&b.empty[stage], parity ^ 1);
                    #pragma unroll
                    for (int j = 0; j < kItems; ++j) {
                        const int item = first + j * kLoaders + thread;
                        if (item >= items) break;
                        const int second = item >= walk.pitch;
                        // A chunk has two quads for each term.
                        put_pixel(s_row + second * (2 * kTerms - 1) * walk.pitch + item, walk.pitch,
                                  r_dy[j]);
                    }
                }
                fence_proxy_async();
                __syncwarp();
                if (mine && lane == 0) mbarrier_arrive(&b.full[stage]);
                if (++stage == walk.stages) stage = 0, parity ^= 1;
                if (++turn == groups) turn = 0;
            }
        }
    }
}

__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(bf16* to, float x) { to->bits = uint16_t(round_bf16(x, 0)); }

// A consumer warpgroup: `tiles` tiles of 64 columns, all channels. `taps` is S, or 0: any.
template <int channels, int tiles, int taps>
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Walk& walk, const Block& b,
                                         int warp, int group, int first_part, int lanes,
                                         Number* g_dx) {
    constexpr int kStrip = 128 * tiles;
    constexpr int kSums = kR * channels / 2, kRowSums = channels / 2;   // of a lane: all, of a row
    constexpr int kTapRows = 2 * kR * channels;   // of 16 bytes: a tap of the filter, one term
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, consumer = warp / 4;
    const int C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;
    const uint64_t dy_first = wgmma_moved(
        wgmma_descriptor(b.s_bytes + walk.x_at, 16 * walk.pitch, 128), consumer * (64 * tiles));
    const uint64_t w_first =
        wgmma_descriptor(b.s_bytes + kBarrierBytes, 16 * kR * channels, 128);
    // d: 64 pixels x (row of dx, channel). The first row is the one that is complete next.
    float r_acc[tiles][kSums];
    float r_sum[kSplit ? tiles : 1][kSums];   // with two terms, which r_acc's sums move to
    int stage = 0, parity = 0;
    mbarrier_wait(b.filter, 0);
    for (int64_t i_part = first_part; i_part < walk.parts; i_part += lanes) {
        const Part part = part_at<kStrip>(conv, walk, i_part);
        #pragma unroll
        for (int tile = 0; tile < tiles; ++tile)
            #pragma unroll
            for (int i = 0; i < kSums; ++i) {
                r_acc[tile][i] = 0.0f;
                if constexpr (kSplit) r_sum[tile][i] = 0.0f;
            }
        #pragma unroll 1
        for (int i = 0; i < part.rows + kR - 1; ++i) {   // rows of dy
            int since = 0;   // taps whose products are in r_acc, with two terms
            #pragma unroll 1
            for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                const bool begins = chunk % kStaged == 0;
                const bool ends = chunk % kStaged == kStaged - 1 || chunk == walk.chunks - 1;
                if (begins) mbarrier_wait(&b.full[stage], parity);
                uint64_t dy_tap = wgmma_moved(
                    dy_first, stage * (walk.stage_bytes / 16) +
                                  chunk % kStaged * (2 * kTerms) * walk.pitch);
                uint64_t w_tap = wgmma_moved(w_first, chunk * conv.S * (kTerms * kTapRows));
                // A tap is the same row, read from a shifted start. With two terms, the small products
                // come first, while truncating the small sum loses little.
                auto multiply_tap = [&] {
                    #pragma unroll
                    for (int tile = 0; tile < tiles; ++tile) {
                        const uint64_t dy_tile = wgmma_moved(dy_tap, 64 * tile);
                        if constexpr (kSplit) {
                            wgmma_n(r_acc[tile], dy_tile, wgmma_moved(w_tap, kTapRows), since > 0);
                            wgmma_n(r_acc[tile], wgmma_moved(dy_tile, 2 * walk.pitch), w_tap, true);
                        }
                        wgmma_n(r_acc[tile], dy_tile, w_tap, true);
                    }
                    ++since;
                    dy_tap = wgmma_moved(dy_tap, conv.dilation_w);
                    w_tap = wgmma_moved(w_tap, kTerms * kTapRows);
                };
                auto move_sums = [&] {
                    if constexpr (kSplit) {
                        #pragma unroll
                        for (int tile = 0; tile < tiles; ++tile)
                            #pragma unroll
                            for (int j = 0; j < kSums; ++j) r_sum[tile][j] += r_acc[tile][j];
                        since = 0;
                    }
                };
                if constexpr (taps > 0) {   // without a loop
                    wgmma_fence();
                    #pragma unroll
                    for (int s = 0; s < taps; ++s) multiply_tap();
                    wgmma_commit();
                } else {
                    #pragma unroll 1
                    for (int s = 0; s < conv.S; ++s) {
                        wgmma_fence();
                        multiply_tap();
                        wgmma_commit();
                        wgmma_wait<0>();
                        if (since == kPeriod) move_sums();
                    }
                }
                wgmma_wait<0>();
                if (since > 0 && (since + taps > kPeriod || chunk == walk.chunks - 1)) move_sums();
                if (!ends) continue;
                if (lane == 0) mbarrier_arrive(&b.empty[stage]);
                if (++stage == walk.stages) stage = 0, parity ^= 1;
            }
            // Row i - kR + 1 of dx is complete. The sums of the others move up.
            const int h = part.h0 + i - kR + 1;
            Number* dx_row = g_dx + (int64_t(part.n) * conv.C + group * C_group + 2 * t) * HW +
                             int64_t(h) * conv.W;
            #pragma unroll
            for (int tile = 0; tile < tiles; ++tile) {
                float (&r_rows)[kSums] = kSplit ? r_sum[tile] : r_acc[tile];
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int w = part.w0 + 64 * (consumer * tiles + tile) + 16 * (warp % 4) +
                                  8 * half + g;
                    const bool inside = i >= kR - 1 && w < conv.W;
                    #pragma unroll
                    for (int j = 0; j < channels / 8; ++j)
                        #pragma unroll
                        for (int c = 0; c < 2; ++c)
                            if (inside && 8 * j + 2 * t + c < C_group)
                                put(dx_row + (8 * j + c) * HW + w, r_rows[4 * j + 2 * half + c]);
                }
                #pragma unroll
                for (int j = 0; j < kSums; ++j)
                    r_rows[j] = j + kRowSums < kSums ? r_rows[j + kRowSums] : 0.0f;
            }
        }
    }
}

template <int channels, int tiles, int taps>
__global__ void __launch_bounds__(threads_of(channels, tiles), 1)
data_gradient_rows(ConvProblem conv, Walk walk, const Number* __restrict__ g_dy,
                   const Number* __restrict__ g_packed, Number* __restrict__ g_dx) {
    extern __shared__ float4 s_mem[];
    Block b;
    b.full = reinterpret_cast<uint64_t*>(s_mem);
    b.empty = b.full + kMaxStages;
    b.filter = b.empty + kMaxStages;
    b.s_bytes = reinterpret_cast<char*>(s_mem);
    // By a shuffle, so that the compiler treats it as uniform in the warp.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    const int lanes = gridDim.x / conv.groups;   // blocks of a group
    const int group = blockIdx.x / lanes, first_part = blockIdx.x % lanes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < walk.stages; ++i) {
            mbarrier_init(&b.full[i], kLoaders / 32);
            mbarrier_init(&b.empty[i], kConsumers / 32);
        }
        mbarrier_init(b.filter, 1);
        mbarrier_fence_init();
    }
    __syncthreads();
    if (warp < kConsumers / 32) {
        multiply<channels, tiles, taps>(conv, walk, b, warp, group, first_part, lanes, g_dx);
        return;
    }
    if (threadIdx.x == kConsumers) {
        griddepcontrol_wait();   // until the kernel that packs the filter has finished
        mbarrier_arrive_expect(b.filter, walk.filter_bytes);
        const int bytes = walk.filter_bytes / walk.chunks;
        const char* from = reinterpret_cast<const char*>(g_packed) + int64_t(group) * walk.filter_bytes;
        for (int i = 0; i < walk.chunks; ++i)
            bulk_load(b.s_bytes + kBarrierBytes + i * bytes, from + int64_t(i) * bytes, bytes, b.filter);
    }
    load<128 * tiles, groups_of(channels, tiles)>(conv, walk, b, group, first_part, lanes, g_dy);
}

static int channels_of(const ConvProblem& conv) { return conv.C / conv.groups <= 16 ? 16 : 32; }
static int filter_bytes_of(const ConvProblem& conv) {   // of a group
    return ceil_div(conv.K / conv.groups, kChunk) * conv.S * (kTerms * 2 * kR * 16) *
           channels_of(conv);
}

// Returns the walk with a strip of this many columns; its `stages` is 0 if it does not fit.
static Walk walk_of(const ConvProblem& conv, const ThisDevice& device, int strip) {
    Walk walk = {};
    walk.strips = ceil_div(conv.W, strip);
    walk.up = kR - 1 - conv.pad_h;
    walk.left = (conv.S - 1) * conv.dilation_w - conv.pad_w;
    walk.chunks = ceil_div(conv.K / conv.groups, kChunk);
    walk.pitch = strip + (conv.S - 1) * conv.dilation_w;
    walk.stage_bytes = 32 * kStaged * kTerms * walk.pitch;
    walk.filter_bytes = filter_bytes_of(conv);
    walk.x_at = kBarrierBytes + walk.filter_bytes;
    walk.stages = min_of((device.smem - walk.x_at) / walk.stage_bytes, kMaxStages);
    if (walk.stages < 2) walk.stages = 0;
    walk.bytes = walk.x_at + walk.stages * walk.stage_bytes;
    // As many rows to a part as give all blocks about the same work.
    const int blocks = max_of(1, device.sms / conv.groups);
    int64_t least = 0;
    for (int rows = min_of(conv.H, 128); rows >= min_of(conv.H, 8); --rows) {
        const int parts_h = ceil_div(conv.H, rows);
        const int64_t parts = int64_t(conv.N) * walk.strips * parts_h;
        const int64_t cost = ceil_div(parts, int64_t(blocks)) * (rows + kR - 1);
        if (least != 0 && cost >= least) continue;
        least = cost;
        walk.rows = rows, walk.parts_h = parts_h, walk.parts = parts;
    }
    return walk;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(problem->groups) * filter_bytes_of(*problem);
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const Number* dy,
                                               const Number* w, Number* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t packed = int64_t(conv.groups) * filter_bytes_of(conv);
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    const int channels = channels_of(conv);
    // Strips of 256 columns, unless 128 waste less or only they fit.
    Walk walk = walk_of(conv, device, 256);
    const bool few = !kSplit || channels == 16;   // sums of a lane
    const bool wide = few && walk.stages > 2 && ceil_div(conv.W, 128) % 2 == 0;
    if (!wide) walk = walk_of(conv, device, 128);
    if (walk.stages == 0) return "the filter does not fit into shared memory; use 20_data_gradient_wgmma";
    Number* g_packed = static_cast<Number*>(workspace);
    const int64_t count = packed / kSize;
    pack_rows<<<int(min_of(ceil_div(count, int64_t(256)), int64_t(1024))), 256, 0, stream>>>(
        conv, walk.chunks, channels, w, g_packed, count);
    const int64_t lanes = min_of(walk.parts, int64_t(max_of(1, device.sms / conv.groups)));
    if (const char* error = too_many(lanes * conv.groups)) return error;
    const int threads = threads_of(channels, wide ? 2 : 1);
    auto launch = [&](auto kernel) -> const char* {
        if (const char* error = ask_for_shared_memory(kernel, walk.bytes)) return error;
        launch_dependent(kernel, int(lanes * conv.groups), threads, walk.bytes, stream, conv, walk, dy,
                         g_packed, dx);
        return launch_error();
    };
    auto launch_for = [&](auto taps) -> const char* {
        constexpr int kTaps = decltype(taps)::value;
        if (channels == 16)
            return wide ? launch(data_gradient_rows<16, 2, kTaps>)
                        : launch(data_gradient_rows<16, 1, kTaps>);
        return wide ? launch(data_gradient_rows<32, kSplit ? 1 : 2, kTaps>)
                    : launch(data_gradient_rows<32, 1, kTaps>);
    };
    if (conv.S == 3) return launch_for(std::integral_constant<int, 3>());
    if (conv.S == 5) return launch_for(std::integral_constant<int, 5>());
    if (conv.S == 7) return launch_for(std::integral_constant<int, 7>());
    return launch_for(std::integral_constant<int, 0>());
}
