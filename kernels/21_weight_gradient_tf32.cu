// title: Weight gradient on Hopper's tensor cores
// idea: In NCHW, pixels are neighbours in memory in both dy and x, and the sum runs over pixels. So both
//       are operands of wgmma in their own memory order: four pixels of a row of channels are 16 bytes.
// change: Against 19: a block computes a tile of dw, 64 or 128 filters by some channels and taps, from a
//       part of the pixels. A second kernel adds the parts, in a fixed order.
// mapping: block -> a tile of dw and every pixel of its part; two consumer warpgroups -> 64 filters each,
//       or, with 64 filters or fewer, every other stage; loader warps -> dy, and x once for each tap.
// computes: weight gradient
// parent: 19_weight_gradient
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000
// limits: Loaders copy single numbers, since a tap's pixels are not aligned; x is copied for each tap.
//       With few channels in a group, most of a tile is zeros.
#define NUMBER float
#include "convlab.cuh"
#include "convlab_async.cuh"
#include "tensor.cuh"
#include "wgmma_n.cuh"

#ifndef FLUSH
#define FLUSH 256   // stages after which sums leave the tensor cores, which round towards zero
#endif
constexpr int kFlush = FLUSH;
static_assert(kFlush >= 1 && kFlush <= 65536, "FLUSH: 1 to 65536");

constexpr int kPixels = 32;        // of a stage: one for each lane of a loader
constexpr int kQuads = kPixels / 4;
constexpr int kConsumers = 256;    // threads
constexpr int kLoaders = 4;        // warps
constexpr int kThreads = kConsumers + 32 * kLoaders;
constexpr int kMostStages = 4;
constexpr int kBarrierBytes = 128;

// The shape of a tile's columns: `kSlots` products for each step, each of `kTaps` taps of one row of
// the filter by `kC` channels.
template <int kSlots_, int kTaps_, int kC_>
struct Shape {
    static constexpr int kSlots = kSlots_, kTaps = kTaps_, kC = kC_;
    static constexpr int kN = kTaps * kC;                   // wgmma's n
    static constexpr int kRows = kSlots * kN;               // staged rows of x
    static constexpr int kSums = kRows / 2;                 // of a thread
};

// How dw is cut into tiles, and the pixels into parts.
struct Cut {
    int k_rows;       // filters of a block: 128, or 64
    bool alternate;   // consumers have the same filters, and every other stage
    int per_row;      // slots of a row of the filter
    int slots;        // of the whole filter
    int k_blocks, c_tiles, slot_blocks, tiles;
    int steps;        // stages in all
    int parts;        // of the pixels
    int stages, dy_pitch, x_pitch, x_at, stage_bytes, bytes;   // of shared memory
};

struct Tile {
    int group, k0, c0, slot0;   // k0, c0: within the group
};
__device__ __forceinline__ Tile tile_at(const Cut& cut, int tile, int kC, int kSlots) {
    const int slot_block = tile % cut.slot_blocks;
    tile /= cut.slot_blocks;
    const int c_tile = tile % cut.c_tiles;
    tile /= cut.c_tiles;
    return {tile / cut.k_blocks, tile % cut.k_blocks * cut.k_rows, c_tile * kC, slot_block * kSlots};
}

// A loader warp: a lane has one pixel, and copies it for each filter from dy, and for each tap and
// channel from x. What is outside becomes zero in both, since 0 * inf would be NaN.
template <typename S>
__device__ __forceinline__ void load(const ConvProblem& conv, const Cut& cut, const Tile& tile,
                                     char* s_stages, uint64_t* full, uint64_t* empty, int first,
                                     int last, const float* g_x, const float* g_dy) {
    const int warp = threadIdx.x / 32 - kConsumers / 32, lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int PQ = conv.P * conv.Q;
    const int64_t HW = int64_t(conv.H) * conv.W;
    const int k_count = K_group - tile.k0, c_count = C_group - tile.c0;
    const int pixels = conv.N * PQ;
    // Behind: stages that are on their way before the loader waits for the first of them.
    const int behind = max_of(cut.stages - 2, 0);
    int stage = 0, parity = 0, arrived = 0, under_way = 0;
    auto arrive = [&]() {
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&full[arrived]);
        if (++arrived == cut.stages) arrived = 0;
        --under_way;
    };
    for (int step = first; step < last; ++step) {
        const int pixel = step * kPixels + lane;
        const bool exists = pixel < pixels;
        const int n = exists ? pixel / PQ : 0, pq = exists ? pixel % PQ : 0;
        const int p = pq / conv.Q, q = pq % conv.Q;
        char* s_stage = s_stages + stage * cut.stage_bytes;
        mbarrier_wait(&empty[stage], parity ^ 1);

        float* s_dy = reinterpret_cast<float*>(s_stage + lane / 4 * cut.dy_pitch) + lane % 4;
        const float* dy = g_dy + (int64_t(n) * conv.K + tile.group * K_group + tile.k0) * PQ + pq;
        #pragma unroll 4
        for (int k = warp; k < cut.k_rows; k += kLoaders) {
            const bool inside = exists && k < k_count;
            copy_async<4>(s_dy + 4 * k, inside ? dy + int64_t(k) * PQ : g_dy, inside);
        }

        float* s_x = reinterpret_cast<float*>(s_stage + cut.x_at + lane / 4 * cut.x_pitch) + lane % 4;
        const float* x_n = g_x + (int64_t(n) * conv.C + tile.group * C_group + tile.c0) * HW;
        for (int slot = 0; slot < S::kSlots; ++slot) {
            const int r = (tile.slot0 + slot) / cut.per_row;
            const int s0 = (tile.slot0 + slot) % cut.per_row * S::kTaps;
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            const bool row_inside = exists && r < conv.R && unsigned(h) < unsigned(conv.H);
            #pragma unroll
            for (int tap = 0; tap < S::kTaps; ++tap) {
                const int s = s0 + tap;
                const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                const bool has = row_inside && s < conv.S && unsigned(w) < unsigned(conv.W);
                const float* x = x_n + int64_t(h) * conv.W + w;
                float* s_to = s_x + 4 * (slot * S::kN + tap * S::kC);
                #pragma unroll
                for (int i = 0; i < S::kC / kLoaders; ++i) {
                    const int c = warp + i * kLoaders;
                    const bool inside = has && c < c_count;
                    copy_async<4>(s_to + 4 * c, inside ? x + c * HW : g_x, inside);
                }
            }
        }
        __pipeline_commit();
        if (++under_way > behind) {
            if (behind == 0) __pipeline_wait_prior(0);
            if (behind == 1) __pipeline_wait_prior(1);
            if (behind == 2) __pipeline_wait_prior(2);
            arrive();
        }
        if (++stage == cut.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    __pipeline_wait_prior(0);
    while (under_way > 0) arrive();
}

// A consumer warpgroup: multiplies the stages of its part, and adds the sums to its own place in the
// workspace now and then.
template <typename S>
__device__ __forceinline__ void multiply(const Cut& cut, char* s_stages, uint64_t* full,
                                         uint64_t* empty, int first, int last, float* g_sums) {
    const int consumer = threadIdx.x / 128;
    const uint64_t dy_first = wgmma_moved(wgmma_descriptor(s_stages, cut.dy_pitch, 128),
                                          cut.alternate ? 0 : consumer * 64);
    const uint64_t x_first = wgmma_descriptor(s_stages + cut.x_at, cut.x_pitch, 128);
    float r_acc[S::kSlots][S::kN / 2] = {};
    int stage = 0, parity = 0;
    int since = 0;            // stages in the sums
    int holds = -1;           // the stage whose products may still run
    bool stored = false;      // whether the workspace has sums
    auto release = [&]() {
        if (holds >= 0 && threadIdx.x % 32 == 0) mbarrier_arrive(&empty[holds]);
        holds = -1;
    };
    auto flush = [&]() {
        wgmma_wait<0>();
        release();
        #pragma unroll
        for (int i = 0; i < S::kSums; ++i) {
            float* to = g_sums + i * kConsumers + threadIdx.x;
            const float sum = r_acc[i / (S::kN / 2)][i % (S::kN / 2)];
            *to = stored ? *to + sum : sum;
        }
        stored = true;
        since = 0;
    };
    for (int step = first; step < last; ++step) {
        if (!cut.alternate || (step - first) % 2 == consumer) {
            mbarrier_wait(&full[stage], parity);
            const unsigned at = stage * (cut.stage_bytes / 16);
            wgmma_fence();
            #pragma unroll
            for (int j = 0; j < kQuads / 2; ++j) {
                const uint64_t dy = wgmma_moved(dy_first, at + 2 * j * (cut.dy_pitch / 16));
                const uint64_t x = wgmma_moved(x_first, at + 2 * j * (cut.x_pitch / 16));
                #pragma unroll
                for (int slot = 0; slot < S::kSlots; ++slot)
                    wgmma_n(r_acc[slot], dy, wgmma_moved(x, slot * S::kN), since + j > 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
            release();
            holds = stage;
            if (++since == kFlush) flush();
        }
        if (++stage == cut.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    if (since > 0 || !stored) flush();
    else wgmma_wait<0>();
}

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
weight_gradient_tiles(ConvProblem conv, Cut cut, const float* __restrict__ g_x,
                      const float* __restrict__ g_dy, float* __restrict__ g_sums) {
    extern __shared__ float4 s_mem[];
    uint64_t* full = reinterpret_cast<uint64_t*>(s_mem);
    uint64_t* empty = full + kMostStages;
    char* s_stages = reinterpret_cast<char*>(s_mem) + kBarrierBytes;
    const Tile tile = tile_at(cut, blockIdx.x / cut.parts, S::kC, S::kSlots);
    const int part = blockIdx.x % cut.parts;
    const int first = int(int64_t(cut.steps) * part / cut.parts);
    const int last = int(int64_t(cut.steps) * (part + 1) / cut.parts);
    if (threadIdx.x == 0) {
        for (int i = 0; i < cut.stages; ++i) {
            mbarrier_init(&full[i], kLoaders);
            mbarrier_init(&empty[i], cut.alternate ? 4 : 8);   // the warps that read a stage
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    // Consumers keep up to 144 sums in registers, and loaders need few.
    if (threadIdx.x < kConsumers) {
        more_registers<208>();
        multiply<S>(cut, s_stages, full, empty, first, last,
                    g_sums + int64_t(blockIdx.x) * S::kSums * kConsumers);
    } else {
        fewer_registers<88>();
        load<S>(conv, cut, tile, s_stages, full, empty, first, last, g_x, g_dy);
    }
}

// Adds the parts of each element of dw, always in the same order. A thread of wgmma holds, of each 8
// columns, two neighbours in row lane / 4 and two in the row 8 further down.
template <typename S>
__global__ void __launch_bounds__(256)
add_parts(ConvProblem conv, Cut cut, const float* __restrict__ g_sums, float* __restrict__ g_dw,
          int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int s = int(i % conv.S), r = int(i / conv.S % conv.R);
    const int c = int(i / (int64_t(conv.S) * conv.R) % C_group);
    const int k = int(i / (int64_t(conv.S) * conv.R) / C_group);
    const int slot = r * cut.per_row + s / S::kTaps;
    const int in_group = k % K_group, row = in_group % cut.k_rows;
    const int column = s % S::kTaps * S::kC + c % S::kC;
    const int64_t tile =
        ((int64_t(k / K_group) * cut.k_blocks + in_group / cut.k_rows) * cut.c_tiles + c / S::kC) *
            cut.slot_blocks + slot / S::kSlots;
    const int at = slot % S::kSlots * (S::kN / 2) + column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
    const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    const int64_t of_part = int64_t(S::kSums) * kConsumers;
    const float* from = g_sums + tile * cut.parts * of_part + int64_t(at) * kConsumers + thread;
    float r_sum = 0.0f;
    #pragma unroll 4
    for (int part = 0; part < cut.parts; ++part) {
        r_sum += from[part * of_part];
        if (cut.alternate) r_sum += from[part * of_part + 128];
    }
    g_dw[i] = r_sum;
}

template <typename S>
Cut cut_for(const ConvProblem& conv, int smem, int multiprocessors) {
    const int K_group = conv.K / conv.groups, C_group = conv.C / conv.groups;
    Cut cut = {};
    cut.alternate = K_group <= 64;
    cut.k_rows = cut.alternate ? 64 : 128;
    cut.per_row = ceil_div(conv.S, S::kTaps);
    cut.slots = conv.R * cut.per_row;
    cut.k_blocks = ceil_div(K_group, cut.k_rows);
    cut.c_tiles = ceil_div(C_group, S::kC);
    cut.slot_blocks = ceil_div(cut.slots, S::kSlots);
    const int64_t tiles = int64_t(conv.groups) * cut.k_blocks * cut.c_tiles * cut.slot_blocks;
    if (tiles > INT32_MAX) return cut;
    cut.tiles = int(tiles);
    cut.steps = int(ceil_div(int64_t(conv.N) * conv.P * conv.Q, int64_t(kPixels)));
    cut.parts = int(max_of(int64_t(1), min_of(multiprocessors / tiles, int64_t(cut.steps))));
    // A pitch of 16 modulo 128 bytes: the lanes of a copy reach different banks.
    cut.dy_pitch = 16 * cut.k_rows + 16;
    cut.x_pitch = 16 * S::kRows + 16;
    cut.x_at = kQuads * cut.dy_pitch;
    cut.stage_bytes = cut.x_at + kQuads * cut.x_pitch;
    cut.stages = min_of(kMostStages, (smem - kBarrierBytes) / cut.stage_bytes);
    cut.bytes = kBarrierBytes + cut.stages * cut.stage_bytes;
    return cut;
}

// Calls `use` with the shape for a problem.
template <typename Use>
auto with_shape(const ConvProblem& conv, Use use) {
    const bool few = conv.C / conv.groups <= 16;
    if (conv.S == 1 && conv.R == 1) return use(Shape<1, 1, 64>());
    if (conv.S == 1) return use(Shape<3, 1, 64>());
    if (few) return use(Shape<3, 3, 16>());
    return use(Shape<3, 3, 32>());
}

// Bytes of the sums of one part of the pixels.
template <typename S>
int64_t part_bytes(const Cut& cut) {
    return int64_t(cut.tiles) * S::kSums * kConsumers * int64_t(sizeof(float));
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const ThisDevice device = this_device();
    return with_shape(*problem, [&](auto shape) {
        using S = decltype(shape);
        const Cut cut = cut_for<S>(*problem, device.smem, device.sms);
        const int64_t one = part_bytes<S>(cut);
        const int64_t parts = min_of(int64_t(cut.parts), int64_t(limit) / max_of(one, int64_t(1)));
        return size_t(one * max_of(parts, int64_t(1)));
    });
}

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const float* x,
                                                 const float* dy, float* dw, void* workspace,
                                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    return with_shape(conv, [&](auto shape) -> const char* {
        using S = decltype(shape);
        Cut cut = cut_for<S>(conv, device.smem, device.sms);
        if (cut.tiles == 0) return "dw has more than 2^31 tiles";
        if (cut.stages < 2) return "two stages do not fit into shared memory";
        const int64_t one = part_bytes<S>(cut);
        if (int64_t(workspace_bytes) < one) return "the workspace is too small for the sums";
        cut.parts = int(min_of(int64_t(cut.parts), int64_t(workspace_bytes) / one));
        if (const char* error = ask_for_shared_memory(weight_gradient_tiles<S>, cut.bytes))
            return error;
        if (const char* error = too_many(int64_t(cut.tiles) * cut.parts)) return error;
        float* g_sums = static_cast<float*>(workspace);
        weight_gradient_tiles<S><<<cut.tiles * cut.parts, kThreads, cut.bytes, stream>>>(
            conv, cut, x, dy, g_sums);
        const int64_t count = int64_t(conv.K) * (conv.C / conv.groups) * conv.R * conv.S;
        const int64_t blocks = ceil_div(count, int64_t(256));
        if (const char* error = too_many(blocks)) return error;
        add_parts<S><<<unsigned(blocks), 256, 0, stream>>>(conv, cut, g_sums, dw, count);
        return launch_error();
    });
}
