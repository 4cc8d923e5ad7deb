// title: Depthwise weight gradient
// idea: A depthwise filter has few weights, so a thread keeps all R*S sums in registers. It walks down
//       a column of dy and keeps its window of x, too: a step loads only the window's new rows.
// change: Against 19: a block computes all weights of a filter instead of one, so that x and dy are read
//       from memory once. Images are split over blocks, and a second kernel adds their sums.
// mapping: grid.x = filters x ranges; block -> one filter k and a range of strips; thread -> every
//       THREADS-th strip: some rows of one column q of one image n.
// computes: weight gradient
// precision: fp32
// epilogue: none
// supports: groups == C
// best: groups == C, dilation_h == 1, dilation_w == 1, stride_h == 1, stride_w == 1,
//       R == 3 and S in (1, 3, 7), N * C * H * W >= 12000000
// limits: The L1 cache: a step loads stride * S values of x and one of dy. Then the registers, for large
//       filters. Those that are not listed at the end are computed one weight after another.
#include "convlab.cuh"

#ifndef THREADS
#define THREADS 128
#endif
#ifndef STRIP
#define STRIP 16   // rows of a strip, at most: each strip loads a whole window first
#endif
constexpr int kThreads = THREADS, kStrip = STRIP;
constexpr int kWarps = kThreads / 32;
static_assert(kThreads == 64 || kThreads == 128 || kThreads == 256, "THREADS: 64, 128 or 256");
static_assert(kStrip >= 1 && kStrip <= 1024, "STRIP: 1 to 1024");

// Adds up a value over the block, in a fixed order. Thread 0 returns the sum.
__device__ float block_sum(float value, float* s_sums) {
    #pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 == 0) s_sums[threadIdx.x / 32] = value;
    __syncthreads();   // all warps have written their sums
    float sum = 0.0f;
    if (threadIdx.x == 0)
        for (int warp = 0; warp < kWarps; ++warp) sum += s_sums[warp];
    __syncthreads();   // the sums are read before the next ones are written
    return sum;
}

// A strip i of a filter's dy: image n, column q, rows p from `first` to `last` - 1. Neighbouring
// strips are neighbouring columns, so the lanes of a warp read along rows.
struct Strip {
    int64_t n;
    int q, first, last;
};

__device__ Strip strip_of(const ConvProblem& conv, int64_t i) {
    const int strips = ceil_div(conv.P, kStrip);   // of a column
    const int first = int(i / conv.Q % strips) * kStrip;
    return {i / conv.Q / strips, int(i % conv.Q), first, min_of(first + kStrip, conv.P)};
}

// kR x kS: the size of the filter. kStride: in both directions. Dilation is 1.
// g_sums[range, k, r, s] = sum over the range's strips of dy * x. With one range, g_sums is dw.
template <int kR, int kS, int kStride>
__global__ void __launch_bounds__(kThreads)
depthwise_weight_gradient(ConvProblem conv, int64_t range_strips, int64_t strips,
                          const float* __restrict__ g_x, const float* __restrict__ g_dy,
                          float* __restrict__ g_sums) {
    __shared__ float s_sums[kWarps];
    const int k = int(blockIdx.x % conv.K);
    const int64_t range = blockIdx.x / conv.K;
    const int c = k / (conv.K / conv.C);
    const int64_t end = min_of((range + 1) * range_strips, strips);

    float r_acc[kR][kS] = {};
    for (int64_t i = range * range_strips + threadIdx.x; i < end; i += kThreads) {
        const Strip strip = strip_of(conv, i);
        const float* x_plane = g_x + (strip.n * conv.C + c) * conv.H * conv.W;
        const float* dy_column = g_dy + (strip.n * conv.K + k) * conv.P * conv.Q + strip.q;
        const int w0 = strip.q * kStride - conv.pad_w;
        // r_x[r] is row p*stride - pad_h + r of x, from column w0 on, with zeros for padding.
        float r_x[kR][kS];
        const auto load_row = [&](int r, int h) {
            #pragma unroll
            for (int s = 0; s < kS; ++s) {
                const bool inside = h >= 0 && h < conv.H && w0 + s >= 0 && w0 + s < conv.W;
                r_x[r][s] = inside ? x_plane[int64_t(h) * conv.W + w0 + s] : 0.0f;
            }
        };
        // The rows that the first window shares with the one above it; a step loads the others.
        #pragma unroll
        for (int r = kStride; r < kR; ++r)
            load_row(r, (strip.first - 1) * kStride - conv.pad_h + r);
        for (int p = strip.first; p < strip.last; ++p) {
            #pragma unroll
            for (int r = 0; r < kR; ++r) {
                if (r + kStride < kR) {
                    #pragma unroll
                    for (int s = 0; s < kS; ++s) r_x[r][s] = r_x[r + kStride][s];
                } else {
                    load_row(r, p * kStride - conv.pad_h + r);
                }
            }
            const float dy = dy_column[int64_t(p) * conv.Q];
            #pragma unroll
            for (int r = 0; r < kR; ++r)
                #pragma unroll
                for (int s = 0; s < kS; ++s) r_acc[r][s] += dy * r_x[r][s];
        }
    }
    #pragma unroll
    for (int tap = 0; tap < kR * kS; ++tap) {
        const float sum = block_sum(r_acc[tap / kS][tap % kS], s_sums);
        if (threadIdx.x == 0) g_sums[(range * conv.K + k) * kR * kS + tap] = sum;
    }
}

// For any filter, stride and dilation: one weight after another.
__global__ void __launch_bounds__(kThreads)
depthwise_any(ConvProblem conv, int64_t range_strips, int64_t strips, const float* __restrict__ g_x,
              const float* __restrict__ g_dy, float* __restrict__ g_sums) {
    __shared__ float s_sums[kWarps];
    const int k = int(blockIdx.x % conv.K);
    const int64_t range = blockIdx.x / conv.K;
    const int c = k / (conv.K / conv.C);
    const int64_t end = min_of((range + 1) * range_strips, strips);
    const int taps = conv.R * conv.S;
    for (int tap = 0; tap < taps; ++tap) {
        const int r = tap / conv.S, s = tap % conv.S;
        float r_sum = 0.0f;
        for (int64_t i = range * range_strips + threadIdx.x; i < end; i += kThreads) {
            const Strip strip = strip_of(conv, i);
            const int w = strip.q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
            if (w < 0 || w >= conv.W) continue;
            const float* x_column = g_x + (strip.n * conv.C + c) * conv.H * conv.W + w;
            const float* dy_column = g_dy + (strip.n * conv.K + k) * conv.P * conv.Q + strip.q;
            for (int p = strip.first; p < strip.last; ++p) {
                const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
                if (h < 0 || h >= conv.H) continue;
                r_sum += dy_column[int64_t(p) * conv.Q] * x_column[int64_t(h) * conv.W];
            }
        }
        const float sum = block_sum(r_sum, s_sums);
        if (threadIdx.x == 0) g_sums[(range * conv.K + k) * taps + tap] = sum;
    }
}

// dw[i] = sum over the ranges of g_sums[range, i], in their order: two runs give the same bits.
__global__ void __launch_bounds__(kThreads)
add_ranges(int64_t weights, int ranges, const float* __restrict__ g_sums,
           float* __restrict__ g_dw) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= weights) return;
    float r_sum = 0.0f;
    for (int range = 0; range < ranges; ++range) r_sum += g_sums[range * weights + i];
    g_dw[i] = r_sum;
}

static int64_t strips_of(const ConvProblem& conv) {
    return int64_t(conv.N) * ceil_div(conv.P, kStrip) * conv.Q;
}

// Returns the number of ranges: as many as give each SM 2048 threads, as have a strip for each
// thread, and as fit into the workspace. 1 needs no workspace.
static int64_t ranges_of(const ConvProblem& conv, size_t bytes, int sms) {
    const int64_t filter = int64_t(conv.R) * conv.S * sizeof(float);
    const int64_t wanted = min_of(int64_t(sms) * (2048 / kThreads) / conv.K,
                                  strips_of(conv) / kThreads);
    return max_of(int64_t(1), min_of(wanted, int64_t(bytes / (conv.K * filter))));
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const int64_t ranges = ranges_of(*problem, limit, this_device().sms);
    return ranges > 1 ? ranges * problem->K * problem->R * problem->S * sizeof(float) : 0;
}

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const float* x,
                                                 const float* dy, float* dw, void* workspace,
                                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t ranges = ranges_of(conv, workspace_bytes, device.sms);
    const int64_t strips = strips_of(conv);
    const int64_t weights = int64_t(conv.K) * conv.R * conv.S;
    const int64_t adding = ceil_div(weights, int64_t(kThreads));
    if (conv.K > INT32_MAX / ranges || adding > INT32_MAX)
        return "22b_depthwise_weight_gradient: more filters than blocks in a grid (2^31)";

    float* sums = ranges > 1 ? static_cast<float*>(workspace) : dw;
    const auto is = [&](int height, int width, int stride) {   // the filter's height and width
        return conv.dilation_h == 1 && conv.dilation_w == 1 && conv.R == height && conv.S == width &&
               conv.stride_h == stride && conv.stride_w == stride;
    };
    auto* kernel = depthwise_any;
    if (is(3, 3, 1)) kernel = depthwise_weight_gradient<3, 3, 1>;
    if (is(3, 3, 2)) kernel = depthwise_weight_gradient<3, 3, 2>;
    if (is(5, 5, 1)) kernel = depthwise_weight_gradient<5, 5, 1>;
    if (is(5, 5, 2)) kernel = depthwise_weight_gradient<5, 5, 2>;
    if (is(7, 7, 1)) kernel = depthwise_weight_gradient<7, 7, 1>;
    if (is(3, 1, 1)) kernel = depthwise_weight_gradient<3, 1, 1>;
    if (is(3, 7, 1)) kernel = depthwise_weight_gradient<3, 7, 1>;
    kernel<<<unsigned(conv.K * ranges), kThreads, 0, stream>>>(conv, ceil_div(strips, ranges), strips,
                                                              x, dy, sums);
    if (ranges > 1)
        add_ranges<<<unsigned(adding), kThreads, 0, stream>>>(weights, int(ranges), sums, dw);
    return launch_error();
}
