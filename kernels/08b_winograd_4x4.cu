// title: Winograd F(4x4, 3x3), fused
// idea: 4 x 4 outputs of a 3 x 3 filter need 36 products instead of 144. With the usual points,
//       large terms cancel. The points 0, +-5/8, +-3/2 and infinity more than halve the error. A, B
//       stay exact.
// change: Against 08: 36 elements. The sums of 32 tiles x 32 channels take 96 registers of each of
//       384 threads and leave none for loads of x. So four warps load and transform while twelve
//       multiply.
// mapping: block -> 32 tiles of 4 x 4 outputs (n, p, q) end to end x 32 channels k of one group;
//       each of twelve warps -> 3 elements: one for each half warp, with 8 x 8 sums a thread, and
//       one for both, with 8 x 4.
// precision: fp32
// epilogue: bias, relu
// supports: R == 3, S == 3, stride_h == 1, stride_w == 1, dilation_h == 1, dilation_w == 1
// mixes: 4x4
// limits: Loads of x, which four warps do not hide completely. With few channels, the exchange of a
//       tile's elements takes as long. An inf or NaN in x reaches all outputs of its 4 x 4 tile,
//       and inf minus inf is NaN.
#include "convlab_async.cuh"

#ifndef BC
#define BC 8       // input channels staged at a time
#endif
#ifndef KEEP
#define KEEP 1     // 1: the filter stays in shared memory if its channels fit
#endif
static_assert(BC == 4 || BC == 8, "BC: 4 or 8");
static_assert(KEEP == 0 || KEEP == 1, "KEEP: 0 or 1");
constexpr int kTile = 32, kElements = 36;   // tiles of a block, and channels
constexpr int kRow = kElements * kTile;     // floats of an input channel, of x or of the filter
constexpr int kMultiply = 12, kLoad = 4;    // warps
constexpr int kThreads = 32 * (kMultiply + kLoad);
// The points are 0, kA, -kA, kB, -kB and infinity. The usual ones are 0, +-1, +-2 and infinity.
constexpr float kA = 0.625f, kB = 1.5f;
constexpr float kA2 = kA * kA, kB2 = kB * kB;

#include "winograd_tile.cuh"

// An estimate by count.
// For a block and an input channel, the 32 x 32 x 36 products are 1152 warp instructions. With
// their reads (7 of 16 bytes for 96 products of a thread) and loop steps, the twelve warps issue
// 1340 instructions, the loaders 280. An SM issues four a cycle, so these take 405 cycles. The
// products alone take 288.
// Shared memory is busy for 290 cycles: 168 for operands, 36 + 36 for the stores of v and u, 50 for
// loads of x, which use the same path. The L2 delivers 4.6 KB of u and 3.3 KB of x. That is 19
// bytes a cycle, of about 24 that it can. The registers hold no larger block.
// At the end of an item, 36 x 1024 sums are exchanged, 128 bytes a cycle in and out, and y is
// written. That takes 3000 to 3500 cycles.
// So `square` would take 5.0 ms and `wide` 3.7 ms on an H200 at 1.98 GHz; 6.2 and 4.6 ms at 0.8 of
// that clock. Measured: 9.1 and 7.1 ms (2026-11-22). About 2 ms of each are loads of x that four
// warps do not hide.
// The alternative writes v and the products to memory, and computes 36 matrix products. On `square`
// it would move 38 GB more: the products are 2.25 times as large as y, and are written and read.

// B' of six numbers: the values of the polynomial that is zero at all points but one.
__device__ __forceinline__ void transform_x(const float (&x)[6], float (&v)[6]) {
    const float even_a = x[4] - kB2 * x[2], odd_a = kA * (x[3] - kB2 * x[1]);
    const float even_b = x[4] - kA2 * x[2], odd_b = kB * (x[3] - kA2 * x[1]);
    v[0] = kA2 * kB2 * x[0] + (x[4] - (kA2 + kB2) * x[2]);
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = kA2 * kB2 * x[1] + (x[5] - (kA2 + kB2) * x[3]);
}

// A' of six numbers: four sums of them, times powers of the points.
__device__ __forceinline__ void transform_m(const float (&m)[6], float (&y)[4]) {
    const float even_a = m[1] + m[2], odd_a = m[1] - m[2];
    const float even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + even_a + even_b;
    y[1] = kA * odd_a + kB * odd_b;
    y[2] = kA2 * even_a + kB2 * even_b;
    y[3] = kA2 * kA * odd_a + (kB2 * kB * odd_b + m[5]);
}

// A barrier for all warps of the block. In PTX a barrier has a number, so warps may wait for it at
// different places of the code.
__device__ __forceinline__ void meet() {
#ifdef CONVLAB_SIMULATOR
    __syncthreads();
#else
    asm volatile("bar.sync 0;" ::: "memory");
#endif
}

// The exchange of sums through shared memory, in rounds: (36, 4 kRows, 32) are elements, channels
// and tiles. In every second group of kRows channels, the two halves of the tiles are swapped, so
// that a warp's 16-byte stores use different banks.
// A thread's channels are 16 i + 4 g + j, with g = 0 to 3. A round has one i and kRows of the j.
template <int kBC>
struct Meeting {
    static constexpr int kRows = kBC / 2;
    static constexpr int kRounds = 8 / kRows;
    // Channels that the twelve warps store to y. With more than two rounds they have no registers
    // for it.
    static constexpr int kOthers = kRows == 4 ? kMultiply : 0;

    __device__ static int at(int element, int g, int j, int t) {
        return (element * 4 * kRows + g * kRows + j) * kTile + (t ^ (g & 1) * 16);
    }
};

// Computes 4 x 4 outputs from 36 elements and stores them to y: for one channel of a round, one
// tile per lane.
template <int kBC>
__device__ __forceinline__ void write_y(const ConvProblem& conv, const Tiling& tiling,
                                        const Item& item, int first_group, int round,
                                        const float* s_m, const float* g_bias, float* g_y,
                                        int channel, int lane) {
    using Meet = Meeting<kBC>;
    const int K_group = conv.K / conv.groups;
    const int g = channel / Meet::kRows, j = channel % Meet::kRows, first = round * Meet::kRows;
    const int k_group = item.k_tile * kTile + first / 4 * 16 + g * 4 + first % 4 + j;
    if (k_group >= K_group) return;
    const int k = (first_group + item.group) * K_group + k_group;
    float r_half[4][6];   // A' m
    #pragma unroll
    for (int f = 0; f < 6; ++f) {
        float r_m[6], r_y[4];
        #pragma unroll
        for (int e = 0; e < 6; ++e) r_m[e] = s_m[Meet::at(6 * e + f, g, j, lane)];
        transform_m(r_m, r_y);
        #pragma unroll
        for (int row = 0; row < 4; ++row) r_half[row][f] = r_y[row];
    }
    const float bias = g_bias ? g_bias[k] : 0.0f;
    const int rows = item.n < conv.N ? conv.P - item.p : 0, columns = conv.Q - item.q;
    float* y = g_y + (int64_t(item.n) * conv.K + k) * tiling.PQ + int64_t(item.p) * conv.Q + item.q;
    const bool to_left = item.q > 0 && lane > 0, to_right = columns > 4 && lane < 31;
    #pragma unroll
    for (int row = 0; row < 4; ++row, y += conv.Q) {
        float r_y[4];
        transform_m(r_half[row], r_y);
        #pragma unroll
        for (int i = 0; i < 4; ++i) r_y[i] = activated(conv, r_y[i] + bias);
        write_row(tiling, y, r_y, row < rows, columns, to_left, to_right);
    }
}

// Returns where value (element, t) of x is in the (36, 32) of a channel. A warp multiplies three
// elements: one for each half warp, and one for both, which have half of its tiles each. The values
// that a half warp reads are contiguous: 32 of its own element and 16 of the shared one. So a
// thread needs one address for both.
__device__ __forceinline__ int v_at(int element, int t) {
    const int third = element % 3;
    return element / 3 * 3 * kTile + (third < 2 ? third * 48 + t : 32 + t + t / 16 * 32);
}

// The grid has at most one block for each SM, and a block computes one item after another. Its
// warps have fixed roles. Four warps stage the next kBC channels, also those of the next item,
// while twelve multiply. All warps store y.
// kKeep: the two stages hold all channels, and all items of a block use the same 32 filters. Then u
// is copied only once, and sums are exchanged in a buffer of their own, not in a stage.
template <int kBC, bool kKeep>
__global__ void __launch_bounds__(kThreads, 1)
conv2d_winograd_4x4(ConvProblem conv, Tiling tiling, int first_group, int items, int blocks,
                    const float* __restrict__ g_x, const float* __restrict__ g_u,
                    const float* __restrict__ g_bias, float* __restrict__ g_y) {
    using Meet = Meeting<kBC>;
    extern __shared__ float4 s_mem[];
    // Floats of a stage: v (kBC, 36, 32), then u (kBC, 36, 32). There are two stages.
    constexpr int kStage = kBC * kRow * 2;
    float* s_stages = reinterpret_cast<float*>(s_mem);
    float* s_meeting = s_stages + 2 * kStage;       // with kKeep: where sums are exchanged
    const int C_group = tiling.C_group;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    if (warp >= kMultiply) {
        int stage = 0;
        const int loader = warp - kMultiply;        // loads channels loader, loader + kLoad, ...
        int copies = 2;                             // of u still to make, with kKeep
        int next_item = blockIdx.x, next_c = loader;
        Pixels pixels = pixels_of(conv, tiling, item_at(tiling, next_item, lane), first_group, g_x);
        float r_x[6][6];
        const auto load_x = [&] {
            const float* x = pixels.x + next_c * tiling.HW;
            if (pixels.inside && next_c < C_group)   // most tiles; tests cost more than loads
                load_tile<true>(x, 0, conv.W, conv.pad_w, tiling.quads, r_x);
            else
                load_tile<false>(x, next_c < C_group ? pixels.mask : 0, conv.W, conv.pad_w,
                                 tiling.quads, r_x);
            // Prefetch the next channel of this loader: each lane one row of its tile. Every sixth
            // lane takes the same row. Their tiles are 96 bytes apart, so no cache line of the row
            // is left out.
            if (pixels.inside && next_c + kLoad < C_group)
                fetch_to_L2(x + kLoad * tiling.HW + lane % 6 * conv.W);
        };
        load_x();
        // Fills the stage that begins with channel c0 of an item. The loads of x of its first
        // channel are already in flight.
        const auto fill = [&](int number, int c0, int stage) {
            float* s_v = s_stages + stage * kStage + loader * kRow;
            float* s_u = s_stages + stage * kStage + kBC * kRow;
            if (!kKeep || copies-- > 0) {
                constexpr int kStep = kLoad * 32 * 4, kSteps = kBC * kRow / kStep;   // by 16 bytes
                static_assert(kBC * kRow % kStep == 0, "the same for all threads");
                const int first = (loader * 32 + lane) * 4, floats = (C_group - c0) * kRow;
                const float* u = g_u + (int64_t(number % tiling.slices) * C_group + c0) * kRow;
                if (C_group - c0 >= kBC) {
                    #pragma unroll
                    for (int i = 0; i < kSteps; ++i)
                        copy_async<16>(s_u + first + i * kStep, u + first + i * kStep, true);
                } else {
                    #pragma unroll 1
                    for (int i = first; i < floats; i += kStep)
                        copy_async<16>(s_u + i, u + i, true);
                }
                __pipeline_commit();
            }
            #pragma unroll 1
            for (int c = 0; c < kBC; c += kLoad, s_v += kLoad * kRow) {
                float r_half[6][6];   // B' x
                #pragma unroll
                for (int j = 0; j < 6; ++j) {
                    float r_column[6], r_v[6];
                    #pragma unroll
                    for (int i = 0; i < 6; ++i) r_column[i] = r_x[i][j];
                    transform_x(r_column, r_v);
                    #pragma unroll
                    for (int i = 0; i < 6; ++i) r_half[i][j] = r_v[i];
                }
                next_c += kLoad;
                if (next_c >= ceil_div(C_group, kBC) * kBC) {
                    next_c = loader;
                    next_item = min_of(next_item + blocks, items - 1);   // past the last: the last
                    pixels = pixels_of(conv, tiling, item_at(tiling, next_item, lane), first_group,
                                       g_x);
                }
                load_x();
                #pragma unroll
                for (int i = 0; i < 6; ++i) {
                    float r_v[6];
                    transform_x(r_half[i], r_v);
                    #pragma unroll
                    for (int j = 0; j < 6; ++j) s_v[v_at(6 * i + j, lane)] = r_v[j];
                }
            }
            __pipeline_wait_prior(0);
        };
        // While the channels from c0 on of an item are multiplied, the next stage is filled.
        for (int number = blockIdx.x, c0 = -kBC;; stage ^= 1) {
            const bool last = c0 + kBC >= C_group;
            const int then = last ? number + blocks : number;
            if (then < items) fill(then, last ? 0 : c0 + kBC, stage);
            if (last) {
                const Item item = item_at(tiling, number, lane);
                #pragma unroll 1
                for (int round = 0; round < Meet::kRounds; ++round) {
                    if (!kKeep || round > 0) meet();
                    meet();
                    #pragma unroll 1
                    for (int i = Meet::kOthers + loader; i < 4 * Meet::kRows; i += kLoad)
                        write_y<kBC>(conv, tiling, item, first_group, round,
                                     kKeep ? s_meeting : s_stages + (stage ^ 1) * kStage, g_bias,
                                     g_y, i, lane);
                }
                if (then >= items) return;
            }
            number = then;
            c0 = last ? 0 : c0 + kBC;
            meet();
        }
    }

    // What a thread reads for a channel: v of its elements, u of the element of its half warp, and
    // u of the element for both. The pointers start in the stage that is read next.
    const int half = lane / 16, thread_k = lane / 4 % 4 * 4;   // + 0 to 3, and 16 on
    const float* s_v = s_stages + v_at(3 * warp + half, lane % 4 * 4);
    const float* s_u = s_stages + (kBC * kElements + 3 * warp + half) * kTile + thread_k;
    const float* s_u_both = s_stages + (kBC * kElements + 3 * warp + 2) * kTile + thread_k;
    bool second = false;   // whether the next stage is the second one
    for (int number = blockIdx.x; number < items; number += blocks) {
        float r_own[8][8] = {}, r_both[8][4] = {};   // k, t
        for (int left = C_group; left > 0; left -= kBC) {
            meet();   // all have filled their part of this stage, and read the other
            const int channels = min_of(kBC, left);
            #pragma unroll 1   // unrolled, early reads need too many registers
            for (int c = 0; c < channels; ++c) {
                Quad r_v[2], r_u[2];
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    r_v[i] = *reinterpret_cast<const Quad*>(s_v + i * 16);
                    r_u[i] = *reinterpret_cast<const Quad*>(s_u + i * 16);
                }
                #pragma unroll
                for (int k = 0; k < 8; ++k)
                    #pragma unroll
                    for (int t = 0; t < 8; ++t)
                        r_own[k][t] += r_u[k / 4].v[k % 4] * r_v[t / 4].v[t % 4];
                r_v[0] = *reinterpret_cast<const Quad*>(s_v + 32);
                #pragma unroll
                for (int i = 0; i < 2; ++i)
                    r_u[i] = *reinterpret_cast<const Quad*>(s_u_both + i * 16);
                #pragma unroll
                for (int k = 0; k < 8; ++k)
                    #pragma unroll
                    for (int t = 0; t < 4; ++t)
                        r_both[k][t] += r_u[k / 4].v[k % 4] * r_v[0].v[t];
                s_v += kRow;
                s_u += kRow;
                s_u_both += kRow;
            }
            const int step = (second ? -kStage : kStage) - channels * kRow;
            second = !second;
            s_v += step;
            s_u += step;
            s_u_both += step;
        }
        // Computed again from here on: kept in registers, these values would take them from the
        // loop above. The same holds for the item below.
        unsigned thread = threadIdx.x;
        asm volatile("" : "+r"(thread));
        const int g = thread / 4 % 4, t = thread % 4 * 4, element = thread / 32 * 3;
        Item item;
        float* s_m = kKeep ? s_meeting : s_stages + (second ? 0 : kStage);   // the stage read last
        #pragma unroll
        for (int round = 0; round < Meet::kRounds; ++round) {
            if (!kKeep || round > 0) meet();   // all have read what is there
            #pragma unroll
            for (int j = 0; j < Meet::kRows; ++j) {
                const float* r_m = r_own[round * Meet::kRows + j];
                const float* r_n = r_both[round * Meet::kRows + j];
                #pragma unroll
                for (int i = 0; i < 2; ++i)
                    *reinterpret_cast<float4*>(
                        s_m + Meet::at(element + thread / 16 % 2, g, j, t + i * 16)) =
                        make_float4(r_m[4 * i], r_m[4 * i + 1], r_m[4 * i + 2], r_m[4 * i + 3]);
                *reinterpret_cast<float4*>(
                    s_m + Meet::at(element + 2, g, j, t + thread / 16 % 2 * 16)) =
                    make_float4(r_n[0], r_n[1], r_n[2], r_n[3]);
            }
            meet();
            if constexpr (Meet::kOthers > 0) {
                if (round == 0) {
                    asm volatile("" : "+r"(thread));
                    item = item_at(tiling, number, thread % 32);
                }
                write_y<kBC>(conv, tiling, item, first_group, round, s_m, g_bias, g_y, thread / 32,
                             thread % 32);
            }
        }
    }
}

// The bytes of a block's two stages of `channels` input channels.
constexpr int stages_bytes(int channels) { return 2 * 2 * channels * kRow * int(sizeof(float)); }

// The same, and a buffer for the exchange of sums.
constexpr int kept_bytes(int channels) { return stages_bytes(channels) / 2 * 3; }

// Returns the bytes of the transformed filter of one group.
static size_t group_bytes(const ConvProblem& conv) {
    return sizeof(float) * kRow * (conv.C / conv.groups) *
           size_t(ceil_div(conv.K / conv.groups, kTile));
}

// Groups run one or several at a time, as the workspace allows.
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    if (problem->N == 0) return 0;
    const size_t group = group_bytes(*problem);
    return group * min_of(max_of(limit / group, size_t(1)), size_t(problem->groups));
}

template <int kBC, bool kKeep>
static const char* launch(const ConvProblem& conv, int sms, int first_group, int groups,
                          const float* x, const float* u, const float* bias, float* y,
                          cudaStream_t stream) {
    const Tiling tiling = tiling_of(conv, groups, x, y);
    const int64_t tiles = int64_t(conv.N) * tiling.per_image;
    const int64_t items = ceil_div(tiles, int64_t(kTile)) * tiling.slices;
    if (tiles > INT32_MAX || items > INT32_MAX / 2) return "08b_winograd_4x4: over 2^30 items";
    if (kKeep) sms -= sms % tiling.slices;   // all items of a block have one slice
    const int blocks = int(min_of(items, int64_t(sms)));
    constexpr int bytes = kKeep ? kept_bytes(kBC) : stages_bytes(kBC);
    const char* error = ask_for_shared_memory(conv2d_winograd_4x4<kBC, kKeep>, bytes);
    if (error) return error;
    conv2d_winograd_4x4<kBC, kKeep><<<blocks, kThreads, bytes, stream>>>(
        conv, tiling, first_group, int(items), blocks, x, u, bias, y);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;

    const size_t fit = min_of(workspace_bytes / group_bytes(conv), size_t(conv.groups));
    if (fit == 0) return "08b_winograd_4x4: the workspace is too small for one group's filter";
    float* u = static_cast<float*>(workspace);
    const char* error = nullptr;
    for (int first = 0; first < conv.groups && !error; first += int(fit)) {
        const int groups = min_of(int(fit), conv.groups - first);
        const int64_t filters = int64_t(group_bytes(conv) / sizeof(float) / kElements) * groups;
        if (filters / 256 >= INT32_MAX) return "08b_winograd_4x4: too many filters for a grid";
        transform_filter<<<unsigned(ceil_div(filters, int64_t(256))), 256, 0, stream>>>(
            conv, first, groups, w, u);
        error = launch_error();
        if (error) break;
        const bool keep = KEEP && conv.C / conv.groups <= 2 * BC && kept_bytes(BC) <= device.smem &&
                          ceil_div(conv.K / conv.groups, kTile) * groups <= device.sms;
        const auto run = keep                              ? launch<BC, true>
                         : stages_bytes(BC) <= device.smem ? launch<BC, false>
                                                           : launch<min_of(BC, 4), false>;
        error = run(conv, device.sms, first, groups, x, u, bias, y, stream);
    }
    return error;
}
