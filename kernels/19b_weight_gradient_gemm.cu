// title: Weight gradient, implicit GEMM with a split sum
// idea: dw is a small matrix, (K, C*R*S), and its sums over N*P*Q pixels are long. Tiles of dw alone
//       would leave most SMs idle. So several blocks share a tile: each sums a range of pixels.
// change: Against 19: a block computes a tile of dw, and shares what it reads among the tile's weights.
//       The cost: partial sums pass through the workspace, and a second kernel adds them in a fixed order.
// mapping: block -> kBN filters x kBM columns (c, r, s) of one group, for one range of pixels (n, p, q);
//       thread -> two runs of kTN/2 filters x two runs of 4 columns.
// computes: weight gradient
// precision: fp32
// epilogue: none
// supports: everything
// limits: The multipliers, if a group has many filters and channels. With little workspace or small
//       images there are few ranges, and few blocks. Tiles of small groups are mostly padding.
#include "convlab_async.cuh"

#ifndef BK
#define BK 16     // pixels that are staged at a time
#endif
#ifndef LEAST
#define LEAST 256   // pixels of a range, at least
#endif
constexpr int kBK = BK, kLeast = LEAST, kBM = 128, kTM = 8;
constexpr int kStages = 2;   // tiles in shared memory: one in use, the other being copied
constexpr int kAddThreads = 256;
static_assert(kBK == 8 || kBK == 16, "BK: 8 or 16");
static_assert(kLeast >= kBK && kLeast % kBK == 0, "LEAST: a multiple of BK");

// A column (c, r, s) of im2col's matrix: its element is this much further than a pixel's first one.
struct alignas(16) Column {
    int64_t offset;
    int h, w;
};

template <int n>
struct alignas(n * sizeof(float)) Floats {   // read by one instruction
    float v[n];
};

template <int kBN, int kTN>
constexpr int threads_of = (kBM / kTM) * (kBN / kTN);

// g_sums[range, k, cc] = sum over the range's pixels m of dy[k, m] * x[m, cc].
// m -> (n, p, q), cc -> (c, r, s). With one range, g_sums is dw.
template <int kBN, int kTN>
__global__ void __launch_bounds__(threads_of<kBN, kTN>, 512 / threads_of<kBN, kTN>)
weight_gradient_gemm(ConvProblem conv, int64_t range_pixels, bool vectors,
                     const float* __restrict__ g_x, const float* __restrict__ g_dy,
                     float* __restrict__ g_sums) {
    constexpr int kThreads = threads_of<kBN, kTN>;
    // +4: the stores of 16 pixels of a column go to 8 banks, not 1.
    __shared__ __align__(16) float s_x[kStages][kBK][kBM + 4];
    __shared__ __align__(16) float s_dy[kStages][kBK][kBN + 4];
    __shared__ Column s_columns[kBM];

    const int K_group = conv.K / conv.groups, C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W, PQ = int64_t(conv.P) * conv.Q;
    const int64_t CRS = int64_t(C_group) * conv.R * conv.S;
    // Tiles vary fastest, so that the blocks of a range, which read the same pixels, run together.
    const int64_t k_tiles = ceil_div(K_group, kBN), c_tiles = ceil_div(CRS, int64_t(kBM));
    const int64_t tile_of_dw = blockIdx.x % (k_tiles * c_tiles * conv.groups);
    const int64_t range = blockIdx.x / (k_tiles * c_tiles * conv.groups);
    const int group = int(tile_of_dw / (k_tiles * c_tiles));
    const int k0 = int(tile_of_dw % k_tiles) * kBN;                      // within the group
    const int64_t cc0 = tile_of_dw / k_tiles % c_tiles * kBM;            // within the group
    const int columns = int(min_of(int64_t(kBM), CRS - cc0)), filters = min_of(kBN, K_group - k0);
    const int64_t last = min_of((range + 1) * range_pixels, conv.N * PQ);
    const int64_t pixels = max_of(int64_t(0), last - range * range_pixels);
    const int tiles = int(ceil_div(pixels, int64_t(kBK)));   // 0 if N is 0

    for (int i = threadIdx.x; i < columns; i += kThreads) {
        const int64_t cc = cc0 + i;
        const int s = int(cc % conv.S), r = int(cc / conv.S % conv.R);
        const int64_t c = cc / conv.S / conv.R;
        const int h = r * conv.dilation_h, w = s * conv.dilation_w;
        s_columns[i] = {c * HW + int64_t(h) * conv.W + w, h, w};
    }
    __syncthreads();   // the columns are written

    // This thread copies pixel kk of each tile, for the columns i, i + step, ... and such filters.
    constexpr int step = kThreads / kBK;
    const int kk = threadIdx.x % kBK, first = threadIdx.x / kBK;
    int64_t m = range * range_pixels + kk;
    int64_t n = m / PQ;
    int p = int(m % PQ / conv.Q), q = int(m % PQ % conv.Q);
    const auto copy_tile = [&](int tile) {
        const int stage = tile % kStages;
        const int h0 = p * conv.stride_h - conv.pad_h;   // of r = 0: may be outside
        const int w0 = q * conv.stride_w - conv.pad_w;   // of s = 0
        const float* x_own =
            g_x + (n * conv.C + int64_t(group) * C_group) * HW + int64_t(h0) * conv.W + w0;
        #pragma unroll 8
        for (int i = first; i < kBM; i += step) {
            const Column column = i < columns ? s_columns[i] : Column{};
            const int h = h0 + column.h, w = w0 + column.w;
            const bool inside = i < columns && m < last && h >= 0 && h < conv.H && w >= 0 &&
                                w < conv.W;
            copy_async<4>(&s_x[stage][kk][i], x_own + column.offset, inside);
        }
        const float* dy_own = g_dy + (n * conv.K + int64_t(group) * K_group + k0) * PQ +
                              int64_t(p) * conv.Q + q;
        #pragma unroll 8
        for (int i = first; i < kBN; i += step)
            copy_async<4>(&s_dy[stage][kk][i], dy_own + i * PQ, i < filters && m < last);
        // The same pixel of the next tile.
        m += kBK;
        q += kBK;
        p += q / conv.Q;
        q %= conv.Q;
        n += p / conv.P;
        p %= conv.P;
    };

    if (tiles > 0) copy_tile(0);
    __pipeline_commit();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A thread's columns are thread_m + 0 to 3, and the same plus kBM / 2. Its filters: likewise.
    const int thread_m = (warp % (kBM / kTM / 8) * 8 + lane % 8) * 4;
    const int thread_n = (warp / (kBM / kTM / 8) * 4 + lane / 8) * (kTN / 2);
    float r_acc[kTN][kTM] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        __pipeline_wait_prior(0);
        __syncthreads();   // all have copied their part of this tile, and have read the one before
        // These copies run while this tile is multiplied.
        if (tile + 1 < tiles) copy_tile(tile + 1);
        __pipeline_commit();
        const int stage = tile % kStages;
        #pragma unroll
        for (int pixel = 0; pixel < kBK; ++pixel) {
            Floats<4> r_x[2];
            Floats<kTN / 2> r_dy[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                r_x[i] = *reinterpret_cast<const Floats<4>*>(
                    &s_x[stage][pixel][thread_m + i * (kBM / 2)]);
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                r_dy[i] = *reinterpret_cast<const Floats<kTN / 2>*>(
                    &s_dy[stage][pixel][thread_n + i * (kBN / 2)]);
            #pragma unroll
            for (int i = 0; i < kTN; ++i)
                #pragma unroll
                for (int j = 0; j < kTM; ++j)
                    r_acc[i][j] += r_dy[i / (kTN / 2)].v[i % (kTN / 2)] * r_x[j / 4].v[j % 4];
        }
    }

    float* sums = g_sums + (range * conv.K + int64_t(group) * K_group + k0) * CRS + cc0;
    #pragma unroll
    for (int i = 0; i < kTN; ++i) {
        const int k = thread_n + i / (kTN / 2) * (kBN / 2) + i % (kTN / 2);
        if (k >= filters) continue;
        #pragma unroll
        for (int j = 0; j < kTM; ++j) {
            const int column = thread_m + j / 4 * (kBM / 2) + j % 4;
            if (column >= columns || (vectors && j % 4 > 0)) continue;
            if (vectors)   // the four columns are all there, or none
                *reinterpret_cast<float4*>(sums + k * CRS + column) =
                    make_float4(r_acc[i][j], r_acc[i][(j + 1) % kTM], r_acc[i][(j + 2) % kTM],
                                r_acc[i][(j + 3) % kTM]);
            else
                sums[k * CRS + column] = r_acc[i][j];
        }
    }
}

// dw[i] = sum over the ranges of g_sums[range, i], in their order: two runs give the same bits.
__global__ void __launch_bounds__(kAddThreads)
add_ranges(int64_t weights, int ranges, const float* __restrict__ g_sums,
           float* __restrict__ g_dw) {
    const int64_t i = int64_t(blockIdx.x) * kAddThreads + threadIdx.x;
    if (i >= weights) return;
    float r_sum = 0.0f;
    for (int range = 0; range < ranges; ++range) r_sum += g_sums[range * weights + i];
    g_dw[i] = r_sum;
}

static int64_t weights_of(const ConvProblem& conv) {
    return int64_t(conv.K) * (conv.C / conv.groups) * conv.R * conv.S;
}

// Returns the filters of a tile: the smallest size that holds a group's, up to 128.
static int tile_filters(const ConvProblem& conv) {
    const int K_group = conv.K / conv.groups;
    return K_group > 64 ? 128 : K_group > 32 ? 64 : 32;
}

static int64_t tiles_of(const ConvProblem& conv) {
    const int64_t CRS = int64_t(conv.C / conv.groups) * conv.R * conv.S;
    return ceil_div(CRS, int64_t(kBM)) * ceil_div(conv.K / conv.groups, tile_filters(conv)) *
           conv.groups;
}

// Returns the number of ranges: as many as fill the GPU with two blocks per SM, as have kLeast
// pixels each, and as fit into the workspace. 1 needs no workspace.
static int64_t ranges_of(const ConvProblem& conv, size_t bytes, int sms) {
    const int64_t pixels = int64_t(conv.N) * conv.P * conv.Q;
    const int64_t wanted = min_of(2 * sms / tiles_of(conv), pixels / kLeast);
    const int64_t fit = int64_t(bytes / (weights_of(conv) * sizeof(float)));
    return max_of(int64_t(1), min_of(wanted, fit));
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const int64_t ranges = ranges_of(*problem, limit, this_device().sms);
    return ranges > 1 ? ranges * weights_of(*problem) * sizeof(float) : 0;
}

template <int kBN, int kTN>
static void launch(const ConvProblem& conv, int64_t ranges, const float* x, const float* dy,
                   float* sums, cudaStream_t stream) {
    const int64_t pixels = int64_t(conv.N) * conv.P * conv.Q;
    // Whole tiles, so that only the last range has a part of one.
    const int64_t range_pixels = ceil_div(ceil_div(pixels, ranges), int64_t(kBK)) * kBK;
    const bool vectors = int64_t(conv.C / conv.groups) * conv.R * conv.S % 4 == 0 &&
                         reinterpret_cast<uintptr_t>(sums) % 16 == 0;
    weight_gradient_gemm<kBN, kTN>
        <<<unsigned(tiles_of(conv) * ranges), threads_of<kBN, kTN>, 0, stream>>>(
            conv, range_pixels, vectors, x, dy, sums);
}

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const float* x,
                                                 const float* dy, float* dw, void* workspace,
                                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t ranges = ranges_of(conv, workspace_bytes, device.sms);
    if (tiles_of(conv) > INT32_MAX / ranges)
        return "19b_weight_gradient_gemm: more tiles than blocks in a grid (2^31)";
    const int64_t adding = ceil_div(weights_of(conv), int64_t(kAddThreads));
    if (ranges > 1 && adding > INT32_MAX)
        return "19b_weight_gradient_gemm: more weights than threads in a grid";

    float* sums = ranges > 1 ? static_cast<float*>(workspace) : dw;
    if (tile_filters(conv) == 128) launch<128, 8>(conv, ranges, x, dy, sums, stream);
    else if (tile_filters(conv) == 64) launch<64, 8>(conv, ranges, x, dy, sums, stream);
    else launch<32, 4>(conv, ranges, x, dy, sums, stream);
    if (ranges > 1)
        add_ranges<<<unsigned(adding), kAddThreads, 0, stream>>>(weights_of(conv), int(ranges), sums,
                                                                 dw);
    return launch_error();
}
