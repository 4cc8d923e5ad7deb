// title: 1x1 on tensor cores, with fp32 accuracy
// idea: A 1x1 convolution is a product of two matrices that are already in memory: the filter, and
//       each image's channels x pixels. A block computes many tiles. It copies the next one while
//       it multiplies this one.
// change: Against 10 and 14b: x is copied and its fragments are read 16 bytes at a time; a lane's
//       four pixels are neighbours. The filter is split once, in the order of fragments. A small
//       filter stays resident.
// mapping: block -> 64 channels of one group x 128 pixels (n, p, q) end to end, one such tile after
//       another; warp -> all 64 channels x 32 pixels; lane -> fragments of 16 x 8. Tiles overlap by
//       8 pixels if sectors of y would otherwise be stored in parts.
// parent: 10_mma_tf32
// precision: fp32
// epilogue: bias, relu
// supports: sm >= 80, R == 1, S == 1, N * P * Q < 2147483000
// best: tf32 == 0, sm == 90, groups == 1, C >= 64, K >= 64, N * P * Q * K >= 800000,
//       P * Q >= 64 or C >= 1024
// limits: mma.sync, which reaches half of wgmma's rate, and waits that the two warps of a scheduler
//       do not hide; see the estimate below. A tile always has 64 channels and 128 pixels, even if
//       the problem has fewer. An infinity times an infinity is NaN.
#include "convlab_async.cuh"
#include "tensor.cuh"

#ifndef STAGES
#define STAGES 2    // chunks of x in shared memory: one in use, the others being copied
#endif
#ifndef DEPTH
#define DEPTH 32    // channels of a chunk
#endif
#ifndef WARPS
#define WARPS 4     // of a block; each of 8 has half the pixels and half the registers
#endif
#ifndef OVERLAP_FROM
#define OVERLAP_FROM 16777216   // outputs from which on tiles overlap; see Work::step
#endif
#if !defined(TERMS)
#define TERMS 2     // TF32 parts of a number; 1 for 09b
#endif
constexpr int kStages = STAGES, kDepth = DEPTH, kSteps = kDepth / 8, kTerms = TERMS;
// A tensor core truncates its sum after every product, so an error grows with the sum's length.
// After this many chunks, sums move to ordinary registers.
constexpr int kPeriod = max_of(32 / kDepth, 1);
constexpr int kThreads = 32 * WARPS, kBlocks = 2; // kBlocks: of an SM, by its registers
constexpr int kKTile = 64, kPixels = 128;         // of a tile of y
constexpr int kFragments = kPixels / 8 / WARPS;   // of a warp: 8 pixels each
constexpr int kPitch = kPixels + 16 / kFragments; // see s_x_lane
constexpr int kPart = kSteps * kTerms * 32;       // float4 of a chunk's filter, of 16 channels
constexpr int kFilter = kKTile / 16 * kPart;      // the same, of all 64 channels
static_assert(kStages >= 2 && kStages <= 6, "STAGES: 2 to 6");
static_assert(kDepth == 8 || kDepth == 16 || kDepth == 32, "DEPTH: 8, 16 or 32");
static_assert(OVERLAP_FROM >= 1, "OVERLAP_FROM: at least 1");
static_assert(WARPS == 4 || WARPS == 8 && kFilter % kThreads == 0, "WARPS: 4, or 8; DEPTH: 16, 32");

template <int n>
struct alignas(n * sizeof(float)) Floats {   // read by one instruction
    float v[n];
};

// An estimate by count. For 8 channels of x, a warp issues 48 mma, about 60 instructions to split
// x, 10 reads of shared memory, and 40 for copies, sums and loops. Suppose that an mma takes 6
// cycles, 65% of wgmma's rate. Then the mma of a scheduler's two warps take 580 cycles. In this
// time the scheduler issues 320 instructions, and shared memory is busy for 320 cycles. Two blocks
// read 8 KB of x from L2, and 8 KB of the filter if it does not stay in shared memory: 28 bytes a
// cycle.
// So KernelBench's 87 would take 2.7 ms for the products and 3.05 ms for its 12.9 GB: 3.5 to 4 ms
// if they overlap. Measured on an H200: 5.69 ms (05: 7.87 ms, cuDNN: 9.67 ms).
// Products take longer than estimated. From 09b's one product to these three, a ResNet-50 layer of
// 6.6 GFLOP takes 0.0266 ms longer for each, at 247 TFLOP/s. That is 8 cycles an mma, and 3.3 ms
// for 87. An earlier form took 5.0 ms without its stores. While one block waits at a barrier,
// copies or stores, a scheduler has only one warp, and the products of that warp wait for each
// other.
// What else was tried: WARPS=8 has twice the warps, but reads the filter twice as often; it took
// 6.07 ms. Three stages took 6% less on 87, but a quarter more with a stride of 2.

// A slice is 64 channels of a group. The slices of one tile of pixels follow each other, so blocks
// that share pixels run at the same time.
struct Work {
    int slices, k_tiles;           // slices of all groups; of one group
    int tiles, chunks;             // tiles of pixels; chunks of a group's input channels
    int tile_step, slice_step;     // from a block's tile to its next one
    // Pixels from a tile to the next. If the planes of y are no multiple of 32 bytes, tiles of 128
    // pixels would store parts of sectors, which takes a third longer. So tiles begin every 120
    // pixels, and the tile in which a sector begins stores all of it.
    int step;
    unsigned pixels, PQ;           // of all images; of one image
    bool resident;                 // a block has one slice, and loads its filter once
    bool wide, vectors;            // wide: x is read 16 bytes at a time; vectors: y is written so
};

struct Place {
    int tile, slice;
};
__device__ __forceinline__ Place first_place(const Work& work) {
    return {int(blockIdx.x) / work.slices, int(blockIdx.x) % work.slices};
}
__device__ __forceinline__ void advance(const Work& work, Place& at) {
    at.tile += work.tile_step, at.slice += work.slice_step;
    if (at.slice >= work.slices) at.slice -= work.slices, ++at.tile;
}

// Packs the filter as [slice][chunk][16 channels][8 channels of x][term][lane], in float4; see
// mma_m16n8k8_tf32. Elements past the last channels are zero.
__global__ void __launch_bounds__(256)
pack_filter(ConvProblem conv, Work work, const float* __restrict__ g_w,
            float4* __restrict__ g_packed, int64_t count) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        const int lane = int(i % 32), part = int(i / 32 / kSteps % (kKTile / 16));
        const int64_t chunk = i / 32 / (kFilter / 32 / kTerms), slice = chunk / work.chunks;
        const int k = int(slice % work.k_tiles) * kKTile + part * 16 + lane / 4;
        const int c = int(chunk % work.chunks) * kDepth + int(i / 32 % kSteps) * 8 + lane % 4;
        const float* w = g_w + (slice / work.k_tiles * K_group + k) * C_group + c;
        float high[4], low[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const bool inside = k + e % 2 * 8 < K_group && c + e / 2 * 4 < C_group;
            const float value = inside ? w[int64_t(e % 2 * 8) * C_group + e / 2 * 4] : 0.0f;
            const Parts parts = parts_of(value);
            high[e] = kTerms == 2 ? parts.high : round_tf32(value), low[e] = parts.low;
        }
        float4* to = g_packed + i / 32 * kTerms * 32 + lane;
        to[0] = make_float4(high[0], high[1], high[2], high[3]);
        if (kTerms == 2) to[32] = make_float4(low[0], low[1], low[2], low[3]);
    }
}

__global__ void __launch_bounds__(kThreads, kBlocks)
conv2d_pointwise(ConvProblem conv, Work work, const float* __restrict__ g_x,
                 const float4* __restrict__ g_packed, const float* __restrict__ g_bias,
                 float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    float4* s_w = s_mem;   // [slot][16 channels][step][term][lane]
    float* s_x = reinterpret_cast<float*>(
        s_mem + (work.resident ? work.chunks : kStages) * kFilter);   // [stage][channel][pixel]

    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;

    // The next copies. A thread copies one column of the tile, of 4 pixels or of one pixel.
    const int column = work.wide ? threadIdx.x % 32 * 4 : threadIdx.x % kPixels;
    const int row = threadIdx.x / (work.wide ? 32 : kPixels);
    const float* x_from = nullptr;
    const float4* w_from = nullptr;
    bool inside = false;
    Place next = first_place(work);
    int next_chunk = 0, next_stage = 0;
    bool w_wanted = true;
    const auto find = [&] {
        const int group = conv.groups == 1 ? 0 : next.slice / work.k_tiles;
        const unsigned m = unsigned(next.tile) * work.step + column, n = m / work.PQ;
        int64_t at = m - n * work.PQ;
        inside = m < work.pixels;
        if (!work.wide) {
            const int p = int(at) / conv.Q, q = int(at) % conv.Q;
            const int h = p * conv.stride_h - conv.pad_h, w = q * conv.stride_w - conv.pad_w;
            inside = inside && h >= 0 && h < conv.H && w >= 0 && w < conv.W;
            at = int64_t(h) * conv.W + w;
        }
        x_from = g_x + (int64_t(n) * conv.C + int64_t(group) * C_group + row) * HW + at;
        w_from = g_packed + int64_t(next.slice) * work.chunks * kFilter + threadIdx.x;
    };
    const auto copy = [&] {
        if (next.tile < work.tiles) {
            float* s_to = s_x + (next_stage * kDepth + row) * kPitch + column;
            const float* from = x_from;
            const int channels = inside ? C_group - next_chunk * kDepth - row : 0;
            if (work.wide) {
                #pragma unroll
                for (int c = 0; c < kDepth; c += WARPS, from += WARPS * HW)
                    copy_async<16>(s_to + c * kPitch, from, c < channels);
            } else {
                constexpr int kRows = kThreads / kPixels;
                #pragma unroll 4
                for (int c = 0; c < kDepth; c += kRows, from += kRows * HW)
                    copy_async<4>(s_to + c * kPitch, from, c < channels);
            }
            x_from += kDepth * HW;
            if (w_wanted) {
                float4* s_filter =
                    s_w + (work.resident ? next_chunk : next_stage) * kFilter + threadIdx.x;
                #pragma unroll
                for (int i = 0; i < kFilter; i += kThreads)
                    copy_async16(s_filter + i, w_from + i, true);
                w_from += kFilter;
            }
        }
        __pipeline_commit();   // also without copies, because groups are counted
        if (++next_stage == kStages) next_stage = 0;
        if (++next_chunk == work.chunks) {
            next_chunk = 0, w_wanted = !work.resident;
            advance(work, next);
            if (next.tile < work.tiles) find();
        }
    };
    find();
    #pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) copy();

    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp_m = threadIdx.x / 32 * 8 * kFragments;   // its first pixel
    // Column g of fragment j is pixel `first` + j, so that one read fetches a lane's pixels of all
    // fragments. With four fragments, a quarter of a warp (two g, four t) reads 32 different banks:
    // 4 (t + g/2) + 16 (g%2). With two fragments, half a warp does: 8 t + 2 g.
    const int first = kFragments == 4 ? g / 2 * 4 + g % 2 * 16 : 2 * g;
    const float* s_x_lane = s_x + t * kPitch + warp_m + first;
    int stage = 0;
    for (Place at = first_place(work); at.tile < work.tiles; advance(work, at)) {
        const int group = conv.groups == 1 ? 0 : at.slice / work.k_tiles;
        const int k0 = (at.slice - group * work.k_tiles) * kKTile + g;   // within the group
        const int64_t first_k = int64_t(group) * K_group + k0;
        // [16 channels][fragment][mma's d]
        float r_sum[4][kFragments][4], r_acc[4][kFragments][4] = {};
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < kFragments; ++j)
                for (int e = 0; e < 4; ++e) {
                    const int k = 16 * i + e / 2 * 8;
                    r_sum[i][j][e] = g_bias && k0 + k < K_group ? g_bias[first_k + k] : 0.0f;
                }
        #pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            __pipeline_wait_prior(kStages - 2);
            __syncthreads();   // all have copied their part of it, and have read the last
            // These copies run while this chunk is multiplied. They can be those of the next tile.
            copy();
            const float4* s_filter = s_w + (work.resident ? chunk : stage) * kFilter + lane;
            const float* s_pixels = s_x_lane + stage * kDepth * kPitch;
            if (++stage == kStages) stage = 0;
            #pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                float r_high[kFragments][2], r_low[kFragments][2];
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float* s_row = s_pixels + (8 * step + 4 * e) * kPitch;
                    const auto x = *reinterpret_cast<const Floats<kFragments>*>(s_row);
                    #pragma unroll
                    for (int j = 0; j < kFragments; ++j) {
                        const Parts parts = parts_of(x.v[j]);
                        r_high[j][e] = kTerms == 2 ? parts.high : before_truncation(x.v[j]);
                        r_low[j][e] = parts.low;
                    }
                }
                #pragma unroll
                for (int two = 0; two < 4; two += 2) {   // several sums, to hide latency
                    float w_high[2][4], w_low[2][4];
                    #pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const float4* s_part = s_filter + (two + i) * kPart + step * kTerms * 32;
                        const float4 high = s_part[0], low = s_part[kTerms == 2 ? 32 : 0];
                        w_high[i][0] = high.x, w_high[i][1] = high.y;
                        w_high[i][2] = high.z, w_high[i][3] = high.w;
                        w_low[i][0] = low.x, w_low[i][1] = low.y;
                        w_low[i][2] = low.z, w_low[i][3] = low.w;
                    }
                    const auto multiply = [&](const float (&w)[2][4],
                                              const float (&x)[kFragments][2]) {
                        #pragma unroll
                        for (int i = 0; i < 2; ++i)
                            for (int j = 0; j < kFragments; ++j)
                                mma_m16n8k8_tf32(r_acc[two + i][j], w[i], x[j]);
                    };
                    if (kTerms == 2) multiply(w_low, r_high), multiply(w_high, r_low);
                    multiply(w_high, r_high);
                }
            }
            if ((chunk + 1) % kPeriod != 0 && chunk + 1 < work.chunks) continue;
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < kFragments; ++j)
                    for (int e = 0; e < 4; ++e)
                        r_sum[i][j][e] += r_acc[i][j][e], r_acc[i][j][e] = 0;
        }

        // Rows of y: 4 lanes store 64 contiguous bytes, whole sectors if the pixels are aligned.
        #pragma unroll
        for (int half = 0; half < kFragments / 2; ++half) {
            const int mine = warp_m + 4 * t + 16 * half;   // this lane's pixel in the tile
            const unsigned m = unsigned(at.tile) * work.step + mine;
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (m + j >= work.pixels || (work.vectors && j > 0)) continue;
                const unsigned n = (m + j) / work.PQ;
                float* y = g_y + (int64_t(n) * conv.K + first_k) * work.PQ + (m + j - n * work.PQ);
                if (work.step < kPixels) {   // the sector begins here, or four pixels earlier
                    const int begins = mine - int(reinterpret_cast<uintptr_t>(y) % 32 / 4);
                    if (begins >= work.step || (begins < 0 && at.tile > 0)) continue;
                }
                #pragma unroll
                for (int i = 0; i < 8; ++i, y += int64_t(8) * work.PQ) {
                    if (k0 + 8 * i >= K_group) continue;
                    const auto y_of = [&](int of) {
                        const int odd = kFragments == 4 ? half : of / 2 % 2;   // column 2 t + odd
                        return activated(conv, r_sum[i / 2][of % kFragments][i % 2 * 2 + odd]);
                    };
                    if (work.vectors)
                        *reinterpret_cast<float4*>(y) =
                            make_float4(y_of(j), y_of(j + 1), y_of(j + 2), y_of(j + 3));
                    else
                        *y = y_of(j);
                }
            }
        }
    }
    __pipeline_wait_prior(0);
}

static int k_tiles_of(const ConvProblem& conv) { return ceil_div(conv.K / conv.groups, kKTile); }
static int chunks_of(const ConvProblem& conv) { return ceil_div(conv.C / conv.groups, kDepth); }

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(problem->groups) * k_tiles_of(*problem) * chunks_of(*problem) * kFilter * 16;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const size_t packed = conv2d_workspace(problem, 0);
    if (workspace_bytes < packed) return "the workspace is too small for the filter";

    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const bool overlap = PQ % 8 == 4 && conv.N * conv.K * PQ >= OVERLAP_FROM;
    const int step = overlap && reinterpret_cast<uintptr_t>(y) % 16 == 0 ? kPixels - 8 : kPixels;
    const int64_t tiles = ceil_div(conv.N * PQ, int64_t(step));
    const int64_t slices = int64_t(conv.groups) * k_tiles_of(conv);
    const int64_t slots = int64_t(kBlocks) * device.sms;
    if (slices > INT32_MAX / 2) return "more slices of channels than 2^30; use 10_mma_tf32";
    const bool rows_of_x = conv.P == conv.H && conv.Q == conv.W && conv.pad_h + conv.pad_w == 0 &&
                           conv.stride_h * conv.stride_w == 1;
    Work work = {int(slices), k_tiles_of(conv), int(tiles), chunks_of(conv)};
    work.step = step, work.pixels = unsigned(conv.N * PQ), work.PQ = unsigned(PQ);
    work.wide = rows_of_x && PQ % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    work.vectors = PQ % 4 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    // The filter is resident if all of it, for one slice, leaves room for kBlocks blocks on an SM.
    // There must also be at least four blocks for each slice.
    const int64_t x_bytes = int64_t(kStages) * kDepth * kPitch * 4, chunk_bytes = kFilter * 16;
    const int64_t room = min_of(device.smem, device.smem_sm / kBlocks - 1024);
    work.resident = x_bytes + work.chunks * chunk_bytes <= room && 4 * slices <= slots;
    const int64_t bytes = x_bytes + (work.resident ? work.chunks : kStages) * chunk_bytes;
    const int grid = int(min_of(tiles * slices, work.resident ? slots / slices * slices : slots));
    work.tile_step = grid / work.slices, work.slice_step = grid % work.slices;
    if (const char* error = ask_for_shared_memory(conv2d_pointwise, int(bytes))) return error;

    float4* g_packed = static_cast<float4*>(workspace);
    const int64_t count = int64_t(packed / (16 * kTerms));
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_filter<<<pack_blocks, 256, 0, stream>>>(conv, work, w, g_packed, count);
    conv2d_pointwise<<<grid, kThreads, int(bytes), stream>>>(conv, work, x, g_packed, bias, y);
    return launch_error();
}
