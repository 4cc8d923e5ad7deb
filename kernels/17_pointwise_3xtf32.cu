// title: 1x1 on tensor cores, to fp32's accuracy
// idea: A 1x1 filter makes a convolution the product of two matrices that lie there as they are: the
//       filter, and each image's channels x pixels. Nothing is gathered; what counts is how little
//       moves for each product. So blocks stay and go from pixels to pixels: x of the next is on
//       its way while these are multiplied and stored, and a filter of few channels is loaded once.
// change: Against 10 and 14b: x comes 16 bytes at a time, and its fragments are read so too: which
//       pixel is which column of a fragment is free, so a lane's four are neighbours, in x as in y.
//       The filter's two parts are made once, in the order in which lanes want them.
// mapping: block -> 64 or 128 channels of one group x 64 or 128 pixels (n, p, q) end to end, one such
//       tile after the other; warp -> 64 channels x 32 pixels; lane -> fragments of 16 x 8.
// parent: 10_mma_tf32
// precision: fp32
// supports: sm >= 80, R == 1, S == 1, N * P * Q < 2147483000
// limits: Not measured.
#include "convlab_async.cuh"
#include "tensor.cuh"

#ifndef STAGES
#define STAGES 4    // chunks of x in shared memory: one in use, the others on their way
#endif
#ifndef DEPTH
#define DEPTH 16    // channels of a chunk
#endif
#if !defined(TERMS)
#define TERMS 2     // parts of a number; 1 for 17b
#endif
constexpr int kStages = STAGES, kDepth = DEPTH, kSteps = kDepth / 8, kTerms = TERMS;
constexpr int kPeriod = 4;             // steps of 8 channels, after which sums leave tensor cores
constexpr int kUnit = kSteps * kTerms * 32;   // 16-byte pieces of a chunk's filter, 16 channels of y
constexpr int kWarpsOfSM = 8;          // that it has registers for
static_assert(kStages >= 2 && kStages <= 8, "STAGES: 2 to 8");
static_assert(kDepth == 8 || kDepth == 16 || kDepth == 32, "DEPTH: 8, 16 or 32");

// A tile of y is 16 k_parts channels of one group, a slice, x `pixels`. They are counted slice by
// slice: blocks that share pixels run side by side.
struct Work {
    int slices, k_tiles, items;   // k_tiles: slices of a group; items: tiles in all
    int k_parts, chunks;          // of a group: 16 channels of y each; kDepth channels of x each
    unsigned pixels, PQ;          // of all images; of one
    bool resident;                // the filter of the block's slice is loaded once
    bool wide, vectors;           // x is read, y written 16 bytes at a time
};

// Lays the filter out as [group][16 channels][8 channels of x][term][lane]: see mma_m16n8k8_tf32.
__global__ void __launch_bounds__(256)
pack_filter(ConvProblem conv, int k_parts, int steps, const float* __restrict__ g_w,
            float4* __restrict__ g_packed, int64_t count) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        const int lane = int(i % 32);
        const int64_t part = i / 32 / steps;
        const int k = int(part % k_parts) * 16 + lane / 4, c = int(i / 32 % steps) * 8 + lane % 4;
        const float* w = g_w + (part / k_parts * K_group + k) * C_group + c;
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

template <int kKWarps, int kMWarps>
__global__ void __launch_bounds__(32 * kKWarps * kMWarps, kWarpsOfSM / (kKWarps * kMWarps))
conv2d_pointwise(ConvProblem conv, Work work, const float* __restrict__ g_x,
                 const float4* __restrict__ g_packed, const float* __restrict__ g_bias,
                 float* __restrict__ g_y) {
    constexpr int kThreads = 32 * kKWarps * kMWarps, kKParts = 4 * kKWarps;
    constexpr int kPixels = 32 * kMWarps, kPitch = kPixels + 4;   // see s_x_lane
    constexpr int kFilter = kKParts * kUnit, kStageWords = kDepth * kPitch;
    extern __shared__ float4 s_mem[];
    float4* s_w = s_mem;   // [slot][16 channels][step][term][lane]
    float* s_x = reinterpret_cast<float*>(
        s_mem + (work.resident ? work.chunks : kStages) * kFilter);   // [stage][channel][pixel]

    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;

    // What is to be copied next. A thread keeps to one column of the tile, of 4 pixels or of one.
    const int columns = work.wide ? kPixels / 4 : kPixels, row_step = kThreads / columns;
    const int row = threadIdx.x / columns;
    const int column = threadIdx.x % columns * (work.wide ? 4 : 1);
    const float* x_from = nullptr;
    const float4* w_from = nullptr;
    bool inside = false;
    int next = blockIdx.x, next_chunk = 0, next_stage = 0, parts_left = 0;
    const int64_t w_part = int64_t(work.chunks) * kUnit;   // from 16 channels to the next
    const auto find = [&] {
        const int slice = next % work.slices, group = slice / work.k_tiles;
        const int k_part = slice % work.k_tiles * kKParts;
        parts_left = work.k_parts - k_part;
        w_from = g_packed + (int64_t(group) * work.k_parts + k_part) * w_part;
        const unsigned m = unsigned(next / work.slices) * kPixels + column, n = m / work.PQ;
        const int p = int(m % work.PQ) / conv.Q, q = int(m % work.PQ) % conv.Q;
        const int h = p * conv.stride_h - conv.pad_h, w = q * conv.stride_w - conv.pad_w;
        inside = m < work.pixels && h >= 0 && h < conv.H && w >= 0 && w < conv.W;
        x_from = g_x + (int64_t(n) * conv.C + int64_t(group) * C_group + row) * HW +
                 int64_t(h) * conv.W + w;
    };
    const auto copy = [&] {
        if (next < work.items) {
            float* s_to = s_x + next_stage * kStageWords + row * kPitch + column;
            const float* from = x_from;
            const int channels = inside ? C_group - next_chunk * kDepth : 0;
            if (work.wide) {
                #pragma unroll
                for (int c = 0; c < kDepth; c += 4 * kKWarps) {
                    copy_async<16>(s_to + c * kPitch, from, row + c < channels);
                    from += row_step * HW;
                }
            } else {
                #pragma unroll 4
                for (int c = 0; c < kDepth; c += kKWarps) {
                    copy_async<4>(s_to + c * kPitch, from, row + c < channels);
                    from += row_step * HW;
                }
            }
            x_from += kDepth * HW;
            if (!work.resident || next == blockIdx.x) {
                float4* s_filter = s_w + (work.resident ? next_chunk : next_stage) * kFilter;
                #pragma unroll 4
                for (int i = 0; i < kFilter / kThreads; ++i) {
                    const int at = threadIdx.x + i * kThreads, part = at / kUnit;
                    copy_async16(s_filter + at, w_from + part * w_part + at % kUnit,
                                 part < parts_left);
                }
                w_from += kUnit;
            }
        }
        __pipeline_commit();   // also where there was nothing: the count goes on
        if (++next_stage == kStages) next_stage = 0;
        if (++next_chunk == work.chunks) {
            next_chunk = 0, next += gridDim.x;
            if (next < work.items) find();
        }
    };
    find();
    #pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) copy();

    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);   // known to be a warp's
    const int warp_k = warp / kMWarps, warp_m = warp % kMWarps * 32;
    // Column g of the fragments 0 to 3 are the pixels first + 0 to 3, so that one read has them.
    // A quarter of a warp, 2 g and 4 t, meets 32 banks: 4 (t + g/2) + 16 (g%2).
    const int first = g / 2 * 4 + g % 2 * 16;
    const float* s_x_lane = s_x + t * kPitch + warp_m + first;
    int stage = 0;
    for (int item = blockIdx.x; item < work.items; item += gridDim.x) {
        const int slice = item % work.slices, group = slice / work.k_tiles;
        const int k0 = slice % work.k_tiles * 16 * kKParts + warp_k * 64 + g;   // within the group
        const int64_t first_k = int64_t(group) * K_group + k0;
        float r_sum[4][4][4], r_acc[4][4][4] = {};   // 16 channels, fragment, as mma's d
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
                for (int e = 0; e < 4; ++e) {
                    const int k = 16 * i + e / 2 * 8;
                    r_sum[i][j][e] = g_bias && k0 + k < K_group ? g_bias[first_k + k] : 0.0f;
                }
        const auto add = [&] {
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j)
                    for (int e = 0; e < 4; ++e)
                        r_sum[i][j][e] += r_acc[i][j][e], r_acc[i][j][e] = 0;
        };
        int since = 0;   // steps
        #pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            __pipeline_wait_prior(kStages - 2);
            __syncthreads();   // all have their part of this chunk, and are done with the one before
            copy();
            const float4* s_filter = s_w + (work.resident ? chunk : stage) * kFilter +
                                     warp_k * 4 * kUnit + lane;
            const float* s_pixels = s_x_lane + stage * kStageWords;
            if (++stage == kStages) stage = 0;
            #pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                float r_high[4][2], r_low[4][2];
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float4 x =
                        *reinterpret_cast<const float4*>(s_pixels + (8 * step + 4 * e) * kPitch);
                    const float r_x[4] = {x.x, x.y, x.z, x.w};
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const Parts parts = parts_of(r_x[j]);
                        r_high[j][e] = kTerms == 2 ? parts.high : before_truncation(r_x[j]);
                        r_low[j][e] = parts.low;
                    }
                }
                #pragma unroll
                for (int two = 0; two < 4; two += 2) {   // 8 sums: each comes late enough again
                    float w_high[2][4], w_low[2][4];
                    #pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const float4* s_part = s_filter + (two + i) * kUnit + step * kTerms * 32;
                        const float4 high = s_part[0], low = s_part[kTerms == 2 ? 32 : 0];
                        w_high[i][0] = high.x, w_high[i][1] = high.y;
                        w_high[i][2] = high.z, w_high[i][3] = high.w;
                        w_low[i][0] = low.x, w_low[i][1] = low.y;
                        w_low[i][2] = low.z, w_low[i][3] = low.w;
                    }
                    const auto multiply = [&](const float (&w)[2][4], const float (&x)[4][2]) {
                        #pragma unroll
                        for (int i = 0; i < 2; ++i)
                            for (int j = 0; j < 4; ++j)
                                mma_m16n8k8_tf32(r_acc[two + i][j], w[i], x[j]);
                    };
                    if (kTerms == 2) multiply(w_low, r_high), multiply(w_high, r_low);
                    multiply(w_high, r_high);
                }
            }
            since += kSteps;
            if (since + kSteps > kPeriod) add(), since = 0;
        }
        if (since > 0) add();

        // Rows of y: 4 lanes have 64 bytes side by side, whole sectors where pixels are aligned.
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned m = unsigned(item / work.slices) * kPixels + warp_m + 4 * t + 16 * half;
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (m + j >= work.pixels || (work.vectors && j > 0)) continue;
                const unsigned n = (m + j) / work.PQ;
                float* y = g_y + (int64_t(n) * conv.K + first_k) * work.PQ + (m + j - n * work.PQ);
                #pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if (k0 + 8 * i >= K_group) continue;
                    const auto sum = [&](int column) {
                        return r_sum[i / 2][column % 4][i % 2 * 2 + half];
                    };
                    float* to = y + int64_t(8 * i) * work.PQ;
                    if (work.vectors)
                        *reinterpret_cast<float4*>(to) =
                            make_float4(sum(j), sum(j + 1), sum(j + 2), sum(j + 3));
                    else
                        *to = sum(j);
                }
            }
        }
    }
    __pipeline_wait_prior(0);
}

static int k_parts_of(const ConvProblem& conv) { return ceil_div(conv.K / conv.groups, 16); }
static int chunks_of(const ConvProblem& conv) { return ceil_div(conv.C / conv.groups, kDepth); }

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(problem->groups) * k_parts_of(*problem) * chunks_of(*problem) * kUnit * 16;
}

using Kernel = void (*)(ConvProblem, Work, const float*, const float4*, const float*, float*);
struct Shape {
    int k_warps, m_warps;
    int resident, streamed;   // what a product costs more in small tiles, in percent
    Kernel kernel;
};

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    int device = 0, smem = 0, smem_sm = 0, sms = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&smem_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                        device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    if (workspace_bytes < conv2d_workspace(problem, 0))
        return "the workspace is too small for the filter";

    const int64_t PQ = int64_t(conv.P) * conv.Q, pixels = conv.N * PQ;
    const bool rows_of_x = conv.P == conv.H && conv.Q == conv.W && conv.pad_h + conv.pad_w == 0 &&
                           conv.stride_h * conv.stride_w == 1;
    Work best = {};
    int best_bytes = 0, grid = 0, threads = 0;
    Kernel kernel = nullptr;
    int64_t least = INT64_MAX;
    const Shape shapes[] = {{2, 4, 115, 100, conv2d_pointwise<2, 4>},
                            {2, 2, 100, 115, conv2d_pointwise<2, 2>},
                            {1, 4, 100, 110, conv2d_pointwise<1, 4>},
                            {1, 2, 105, 140, conv2d_pointwise<1, 2>}};
    for (const Shape& shape : shapes) {
        const int tile_m = 32 * shape.m_warps, tile_k = 64 * shape.k_warps;
        Work work = {};
        work.k_parts = k_parts_of(conv), work.chunks = chunks_of(conv);
        work.pixels = unsigned(pixels), work.PQ = unsigned(PQ);
        work.k_tiles = ceil_div(conv.K / conv.groups, tile_k);
        const int64_t slices = int64_t(work.k_tiles) * conv.groups;
        const int64_t items = slices * ceil_div(pixels, int64_t(tile_m));
        if (items > INT32_MAX / 2) continue;
        work.slices = int(slices), work.items = int(items);
        const int64_t filter = int64_t(tile_k / 16) * kUnit * 16;   // bytes of a chunk
        const int64_t x_bytes = int64_t(kStages) * kDepth * (tile_m + 4) * 4;
        const int full = kWarpsOfSM / (shape.k_warps * shape.m_warps);
        for (int blocks = full; blocks > 0; --blocks) {
            const int64_t room = min_of(smem, smem_sm / blocks - 1024), slots = blocks * sms;
            work.resident = work.chunks * filter + x_bytes <= room && 4 * slices <= slots;
            const int64_t bytes = (work.resident ? work.chunks : kStages) * filter + x_bytes;
            const int percent = work.resident ? shape.resident : shape.streamed;
            const int64_t cost = ceil_div(items, int64_t(sms)) * tile_m * tile_k * percent;
            if (bytes > room || cost / blocks * full >= least) continue;
            least = cost / blocks * full;
            best = work, best_bytes = int(bytes), kernel = shape.kernel;
            threads = 32 * shape.k_warps * shape.m_warps;
            grid = int(min_of(items, work.resident ? slots / slices * slices : slots));
            break;
        }
    }
    if (!kernel) return "the tiles are over 2^30, or do not fit into shared memory; use 10_mma_tf32";
    best.wide = rows_of_x && PQ % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    best.vectors = PQ % 4 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    if (const char* error = ask_for_shared_memory(kernel, best_bytes)) return error;

    float4* g_packed = static_cast<float4*>(workspace);
    const int64_t count = int64_t(conv2d_workspace(problem, 0) / (16 * kTerms));
    pack_filter<<<unsigned(min_of(ceil_div(count, int64_t(256)), int64_t(1024))), 256, 0, stream>>>(
        conv, best.k_parts, best.chunks * kSteps, w, g_packed, count);
    kernel<<<grid, threads, best_bytes, stream>>>(conv, best, x, g_packed, bias, y);
    return launch_error();
}
