// title: A row of dy is multiplied once
// idea: With few channels, a tap's product is too narrow for the tensor cores. A row of dy meets 3 rows
//       of dx, so one wgmma computes 3 rows of taps.
// change: Against 20: pixels are wgmma's rows, and columns are (row of dx, channel). The filter stays in
//       shared memory. As in 11b, a block walks down the image; a shifted descriptor turns the rows.
// mapping: block -> up to `rows` consecutive rows of dx in a strip of 256 or 128 columns, then other
//       such parts; two consumer warpgroups -> half of the columns each, all channels; four loader
//       warps -> dy.
// computes: data gradient
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, R == 3, C // groups <= 32, stride_h == 1, stride_w == 1, dilation_h == 1,
//       C // groups <= 16 and (K // groups + 7) // 8 * S * 2560
//             + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
//       or (K // groups + 7) // 8 * S * 5120 + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
// best: tf32 == 1, groups == 1, C >= 8, C <= 16, N * C * H * W >= 6000000,
//       N * P * Q * K * C * R * S >= 20000000000
// limits: Memory: dy is read once. With many filters, the filter does not fit into shared memory.
//       Groups of fewer than 16 channels waste the tensor cores.
#include "convlab.cuh"
#include "wgmma_n.cuh"
#include <type_traits>   // std::integral_constant

constexpr int kR = 3;                   // rows of the filter
constexpr int kBlocks = 2 * kR - 1;     // of the filter's rows in shared memory: 2, 1, 0, 2, 1
constexpr int kConsumers = 256, kLoaders = 128, kThreads = kConsumers + kLoaders;
constexpr int kItems = 4;               // pixels of 8 channels that a loader's lane has in flight
constexpr int kMaxStages = 8;
constexpr int kBarrierBytes = 1024;

// dx is cut into parts: `rows` rows of a strip of columns. A stage is a row of dy of a part, in up to
// 16 filters: [8 filters][quad][pixel][4].
struct Walk {
    int strips, rows, parts_h;
    int64_t parts;            // of all images
    int up, left;             // row h of dx first meets row h - up of dy; columns likewise
    int chunks;               // of 8 filters
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

// Packs the filter: [group][8 filters][tap of a row][quad][row of taps][channel][4]. The rows of taps
// are 2, 1, 0, 2, 1, counted in the turned filter.
__global__ void __launch_bounds__(256)
pack_rows(ConvProblem conv, int chunks, int channels, const float* __restrict__ g_w,
          float* __restrict__ g_packed, int64_t count) {
    griddepcontrol_launch_dependents();
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / 4;
        const int c = int(rest % channels);
        rest /= channels;
        const int turned_r = kR - 1 - int(rest % kBlocks) % kR;
        rest /= kBlocks;
        const int quad = int(rest % 2);
        rest /= 2;
        const int turned_s = int(rest % conv.S);
        rest /= conv.S;
        const int k = int(rest % chunks) * 8 + quad * 4 + int(i % 4);
        const int64_t group = rest / chunks;
        const int r = kR - 1 - turned_r, s = conv.S - 1 - turned_s;
        const bool inside = c < C_group && k < K_group;
        const int64_t at = (((group * K_group + k) * C_group + c) * kR + r) * conv.S + s;
        g_packed[i] = inside ? round_tf32(g_w[at]) : 0.0f;
    }
}

// The parts of a block's shared memory.
struct Block {
    uint64_t *full, *empty, *filter;   // mbarriers of the stages, and of the filter
    char* s_bytes;
};

// A loader warp: copies the rows of dy through registers.
template <int strip>
__device__ __forceinline__ void load(const ConvProblem& conv, const Walk& walk, const Block& b,
                                     int group, int first_part, int lanes, const float* g_dy) {
    const int thread = threadIdx.x - kConsumers, lane = threadIdx.x % 32;
    const int K_group = conv.K / conv.groups;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    int stage = 0, parity = 0;
    for (int64_t i_part = first_part; i_part < walk.parts; i_part += lanes) {
        const Part part = part_at<strip>(conv, walk, i_part);
        for (int i = 0; i < part.rows + kR - 1; ++i) {
            const int p = part.h0 - walk.up + i;
            for (int chunk = 0; chunk < walk.chunks; chunk += 2) {
                const int k0 = chunk * 8, items = min_of(2, walk.chunks - chunk) * walk.pitch;
                const float* dy_row = g_dy + (int64_t(part.n) * conv.K + group * K_group + k0) * PQ +
                                      int64_t(p) * conv.Q;
                float4* s_row = reinterpret_cast<float4*>(b.s_bytes + walk.x_at +
                                                          stage * walk.stage_bytes);
                for (int first = 0; first < items; first += kItems * kLoaders) {
                    float r_dy[kItems][8];
                    #pragma unroll
                    for (int j = 0; j < kItems; ++j) {
                        const int item = first + j * kLoaders + thread;
                        const int second = item >= walk.pitch;   // of the two chunks
                        const int pixel = item - second * walk.pitch;
                        const int q = part.w0 - walk.left + pixel;
                        const bool inside = item < items && unsigned(p) < unsigned(conv.P) &&
                                            unsigned(q) < unsigned(conv.Q);
                        const float* from = dy_row + 8 * second * PQ + q;
                        const int filters = inside ? K_group - k0 - 8 * second : 0;
                        #pragma unroll
                        for (int k = 0; k < 8; ++k) {
                            r_dy[j][k] = k < filters ? *from : 0.0f;
                            from += PQ;
                        }
                    }
                    if (first == 0) mbarrier_wait(&b.empty[stage], parity ^ 1);
                    #pragma unroll
                    for (int j = 0; j < kItems; ++j) {
                        const int item = first + j * kLoaders + thread;
                        if (item >= items) break;
                        const int second = item >= walk.pitch;
                        float4* s_to = s_row + second * walk.pitch + item;   // two quads a chunk
                        const float (&dy)[8] = r_dy[j];
                        s_to[0] = make_float4(before_truncation(dy[0]), before_truncation(dy[1]),
                                              before_truncation(dy[2]), before_truncation(dy[3]));
                        s_to[walk.pitch] =
                            make_float4(before_truncation(dy[4]), before_truncation(dy[5]),
                                        before_truncation(dy[6]), before_truncation(dy[7]));
                    }
                }
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(&b.full[stage]);
                if (++stage == walk.stages) stage = 0, parity ^= 1;
            }
        }
    }
}

// A consumer warpgroup: `tiles` tiles of 64 columns, all channels.
template <int channels, int tiles>
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Walk& walk, const Block& b,
                                         int warp, int group, int first_part, int lanes,
                                         float* g_dx) {
    constexpr int kStrip = 128 * tiles;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, consumer = warp / 4;
    const int C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;
    const uint64_t dy_first = wgmma_moved(
        wgmma_descriptor(b.s_bytes + walk.x_at, 16 * walk.pitch, 128), consumer * (64 * tiles));
    const uint64_t w_first =
        wgmma_descriptor(b.s_bytes + kBarrierBytes, 16 * kBlocks * channels, 128);
    // d: 64 pixels x (row of dx, channel). Row h of a part has the columns of h % kR.
    float r_acc[tiles][kR * channels / 2];
    int stage = 0, parity = 0;
    mbarrier_wait(b.filter, 0);
    for (int64_t i_part = first_part; i_part < walk.parts; i_part += lanes) {
        const Part part = part_at<kStrip>(conv, walk, i_part);
        #pragma unroll
        for (int tile = 0; tile < tiles; ++tile)
            #pragma unroll
            for (int i = 0; i < kR * channels / 2; ++i) r_acc[tile][i] = 0.0f;
        int turn = 0;   // i % kR
        #pragma unroll 1
        for (int i = 0; i < part.rows + kR - 1; ++i) {   // rows of dy
            // Columns 0, 1, 2 of rows of dx need the rows turn, turn - 1, turn - 2 of the filter.
            const uint64_t w_turn = wgmma_moved(w_first, (kR - 1 - turn) * channels);
            #pragma unroll 1
            for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                const bool begins = chunk % 2 == 0, ends = !begins || chunk == walk.chunks - 1;
                if (begins) mbarrier_wait(&b.full[stage], parity);
                uint64_t dy_tap = wgmma_moved(dy_first, stage * (walk.stage_bytes / 16) +
                                                            chunk % 2 * 2 * walk.pitch);
                uint64_t w_tap = wgmma_moved(w_turn, chunk * conv.S * (2 * kBlocks * channels));
                // A tap is the same row, read from a shifted start.
                auto multiply_tap = [&] {
                    #pragma unroll
                    for (int tile = 0; tile < tiles; ++tile)
                        wgmma_n(r_acc[tile], wgmma_moved(dy_tap, 64 * tile), w_tap, true);
                    dy_tap = wgmma_moved(dy_tap, conv.dilation_w);
                    w_tap = wgmma_moved(w_tap, 2 * kBlocks * channels);
                };
                if (conv.S == 3) {   // without a loop over the taps
                    wgmma_fence();
                    multiply_tap();
                    multiply_tap();
                    multiply_tap();
                    wgmma_commit();
                } else {
                    #pragma unroll 1
                    for (int s = 0; s < conv.S; ++s) {
                        wgmma_fence();
                        multiply_tap();
                        wgmma_commit();
                        wgmma_wait<0>();
                    }
                }
                wgmma_wait<0>();
                if (!ends) continue;
                if (lane == 0) mbarrier_arrive(&b.empty[stage]);
                if (++stage == walk.stages) stage = 0, parity ^= 1;
            }
            // Row i - kR + 1 of dx is complete. Its registers begin another row.
            const int h = part.h0 + i - kR + 1;
            float* dx_row = g_dx + (int64_t(part.n) * conv.C + group * C_group + 2 * t) * HW +
                            int64_t(h) * conv.W;
            auto store_row = [&](auto slot) {
                #pragma unroll
                for (int tile = 0; tile < tiles; ++tile) {
                    #pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int w = part.w0 + 64 * (consumer * tiles + tile) + 16 * (warp % 4) +
                                      8 * half + g;
                        const bool inside = i >= kR - 1 && w < conv.W;
                        #pragma unroll
                        for (int j = 0; j < channels / 8; ++j) {
                            #pragma unroll
                            for (int c = 0; c < 2; ++c) {
                                float& sum =
                                    r_acc[tile][slot.value * (channels / 2) + 4 * j + 2 * half + c];
                                if (inside && 8 * j + 2 * t + c < C_group)
                                    dx_row[(8 * j + c) * HW + w] = sum;
                                sum = 0.0f;
                            }
                        }
                    }
                }
            };
            if (++turn == kR) turn = 0;
            if (turn == 0) {
                store_row(std::integral_constant<int, 0>());
            } else if (turn == 1) {
                store_row(std::integral_constant<int, 1>());
            } else {
                store_row(std::integral_constant<int, 2>());
            }
        }
    }
}

template <int channels, int tiles>
__global__ void __launch_bounds__(kThreads, 1)
data_gradient_rows(ConvProblem conv, Walk walk, const float* __restrict__ g_dy,
                   const float* __restrict__ g_packed, float* __restrict__ g_dx) {
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
        multiply<channels, tiles>(conv, walk, b, warp, group, first_part, lanes, g_dx);
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
    load<128 * tiles>(conv, walk, b, group, first_part, lanes, g_dy);
}

static int channels_of(const ConvProblem& conv) { return conv.C / conv.groups <= 16 ? 16 : 32; }
static int filter_bytes_of(const ConvProblem& conv) {   // of a group
    return ceil_div(conv.K / conv.groups, 8) * conv.S * (2 * kBlocks * 16) * channels_of(conv);
}

// Returns the walk with a strip of this many columns; its `stages` is 0 if it does not fit.
static Walk walk_of(const ConvProblem& conv, const ThisDevice& device, int strip) {
    Walk walk = {};
    walk.strips = ceil_div(conv.W, strip);
    walk.up = kR - 1 - conv.pad_h;
    walk.left = (conv.S - 1) * conv.dilation_w - conv.pad_w;
    walk.chunks = ceil_div(conv.K / conv.groups, 8);
    walk.pitch = strip + (conv.S - 1) * conv.dilation_w;
    walk.stage_bytes = 64 * walk.pitch;
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

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* workspace,
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
    const bool wide = walk.stages > 2 && ceil_div(conv.W, 128) % 2 == 0;
    if (!wide) walk = walk_of(conv, device, 128);
    if (walk.stages == 0) return "the filter does not fit into shared memory; use 20_data_gradient_wgmma";
    float* g_packed = static_cast<float*>(workspace);
    const int64_t count = packed / 4;
    pack_rows<<<int(min_of(ceil_div(count, int64_t(256)), int64_t(1024))), 256, 0, stream>>>(
        conv, walk.chunks, channels, w, g_packed, count);
    const int64_t lanes = min_of(walk.parts, int64_t(max_of(1, device.sms / conv.groups)));
    if (const char* error = too_many(lanes * conv.groups)) return error;
    auto launch = [&](auto kernel) -> const char* {
        if (const char* error = ask_for_shared_memory(kernel, walk.bytes)) return error;
        launch_dependent(kernel, int(lanes * conv.groups), kThreads, walk.bytes, stream, conv, walk, dy,
                         g_packed, dx);
        return launch_error();
    };
    if (channels == 16)
        return wide ? launch(data_gradient_rows<16, 2>) : launch(data_gradient_rows<16, 1>);
    return wide ? launch(data_gradient_rows<32, 2>) : launch(data_gradient_rows<32, 1>);
}
