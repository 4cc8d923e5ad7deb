// title: Implicit GEMM, pipelined
// idea: The same product of tiles, without pauses for loading: while one tile is multiplied,
//       asynchronous copies bring the next one into shared memory, without passing through
//       registers.
// change: Against 04: two tiles in turn, and one barrier per tile instead of two. Offsets and
//       borders are computed once per row and pixel; an element costs one test and one addition.
//       Shared-memory reads are 16 bytes.
// mapping: block -> kBN output channels of one group x kBM pixels (n, p, q) end to end; a warp -> 8
//       threads along pixels x 4 along channels; thread -> two runs of 4 pixels x two runs of kTN/2
//       channels.
// precision: fp32
// epilogue: bias, relu
// supports: R + S <= 31
// best: groups == 1, N * P * Q * K >= 2200000, tf32 == 0 or C <= 4 and stride_h >= 2
// limits: The multipliers, if gemm_k is large: about four of five instructions are multiply-adds.
#include "convlab_async.cuh"

#ifndef BK
#define BK 16     // rows of the im2col matrix that are staged at a time
#endif
constexpr int kBK = BK, kTM = 8;
constexpr int kStages = 2;   // tiles in shared memory: one in use, the others being copied
static_assert(kBK == 8 || kBK == 16, "BK: 8 or 16");

// A row (c, r, s) of the im2col matrix, for all pixels. offset: from a pixel's first element in x
// to this row's element. needs: the bits that are set in the pixel's mask if this row's element is
// inside the image.
struct alignas(16) Row {
    int64_t offset;
    unsigned needs, unused;
};

// By how much c, r and s grow from a row to the one kBK rows further, before carries.
struct Step {
    int c, r, s;
};

template <int n>
struct alignas(n * sizeof(float)) Floats {   // read and written by one instruction
    float v[n];
};

// Returns the mask of a pixel. Bit r: row r of the filter is inside the image. Bit R + s: column s
// is inside.
__device__ unsigned inside_mask(const ConvProblem& conv, int h0, int w0) {
    unsigned mask = 0;
    for (int r = 0; r < conv.R; ++r) {
        const int h = h0 + r * conv.dilation_h;
        if (h >= 0 && h < conv.H) mask |= 1u << r;
    }
    for (int s = 0; s < conv.S; ++s) {
        const int w = w0 + s * conv.dilation_w;
        if (w >= 0 && w < conv.W) mask |= 1u << (conv.R + s);
    }
    return mask;
}

template <int kBM, int kBN, int kTN>
constexpr int threads_of = (kBM / kTM) * (kBN / kTN);

// kWidth neighbouring pixels are copied at once: 4 if the rows of the matrix are planes of x, else
// 1.
template <int kBM, int kBN, int kTN, int kWidth>
__global__ void __launch_bounds__(threads_of<kBM, kBN, kTN>, 512 / threads_of<kBM, kBN, kTN>)
conv2d_async_gemm(ConvProblem conv, Step step, bool vectors, const float* __restrict__ g_x,
                  const float* __restrict__ g_w, const float* __restrict__ g_bias,
                  float* __restrict__ g_y) {
    constexpr int kThreads = threads_of<kBM, kBN, kTN>;
    constexpr int kPitchW = kBN + 4;   // stores of 8 rows x 4 channels: no bank conflict
    __shared__ __align__(16) float s_x[kStages][kBK][kBM];
    __shared__ __align__(16) float s_w[kStages][kBK][kPitchW];
    __shared__ Row s_rows[2][kBK];

    const int K_group = conv.K / conv.groups, C_group = conv.C / conv.groups;
    const int64_t gemm_k = int64_t(C_group) * conv.R * conv.S;
    const int64_t HW = int64_t(conv.H) * conv.W, PQ = int64_t(conv.P) * conv.Q;
    const int64_t pixels = conv.N * PQ;
    // Tiles of channels vary fastest, so blocks that share pixels run at the same time.
    const int k_tiles = ceil_div(K_group, kBN);   // of a group
    const int slices = k_tiles * conv.groups;     // of all groups
    const int group = blockIdx.x % slices / k_tiles;
    const int k0 = blockIdx.x % k_tiles * kBN;    // within the group
    const int64_t m0 = int64_t(blockIdx.x / slices) * kBM;
    const int tiles = int(ceil_div(gemm_k, int64_t(kBK)));

    // For copying x: a thread copies kPieces runs of pixels, in rows row_x, row_x + row_step, ...
    constexpr int columns = min_of(kThreads, kBM / kWidth);   // threads along a row
    constexpr int row_step = kThreads / columns;
    constexpr int kPieces = kBM / kWidth / columns;           // of a row, for each thread
    const int row_x = threadIdx.x / columns;
    const int column_x = threadIdx.x % columns * kWidth;
    const float* x_pixel[kPieces];   // the filter's corner in x; may be outside the image
    unsigned mask[kPieces];
    #pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int64_t m = m0 + column_x + i * columns * kWidth;
        const int64_t n = m / PQ;
        const int p = int(m % PQ / conv.Q), q = int(m % PQ % conv.Q);
        const int h0 = p * conv.stride_h - conv.pad_h;   // of r = 0
        const int w0 = q * conv.stride_w - conv.pad_w;   // of s = 0
        x_pixel[i] = g_x + (n * conv.C + group * C_group) * HW + int64_t(h0) * conv.W + w0;
        mask[i] = m < pixels ? inside_mask(conv, h0, w0) : 0;
    }
    // For copying w: neighbouring lanes copy neighbours in a row of w. This thread copies column
    // kk_w of the channels k_w, k_w + k_step, ...
    constexpr int k_step = kThreads / kBK;
    const int kk_w = threadIdx.x % kBK, k_w = threadIdx.x / kBK;
    const float* w_thread = g_w + (int64_t(group) * K_group + k0 + k_w) * gemm_k + kk_w;

    // For s_rows: thread kk < kBK computes the rows kk, kk + kBK, kk + 2 kBK, ...
    int c = threadIdx.x / (conv.R * conv.S), rest = threadIdx.x % (conv.R * conv.S);
    int r = rest / conv.S, s = rest % conv.S;
    const auto write_rows = [&](int tile) {
        if (threadIdx.x >= kBK) return;
        const int64_t offset = c * HW + int64_t(r) * conv.dilation_h * conv.W + s * conv.dilation_w;
        const unsigned needs = c < C_group ? 1u << r | 1u << (conv.R + s) : 1u << 31;   // never set
        s_rows[tile % 2][threadIdx.x] = {offset, needs, 0};
        s += step.s;
        r += step.r + (s >= conv.S);
        c += step.c + (r >= conv.R);
        s -= s >= conv.S ? conv.S : 0;
        r -= r >= conv.R ? conv.R : 0;
    };
    const auto copy_tile = [&](int tile) {
        const int stage = tile % kStages;
        // kRead rows are read before their copies begin: alternating the two is slower.
        constexpr int kRead = min_of(8, kBK / row_step);
        #pragma unroll
        for (int first = 0; first < kBK / row_step; first += kRead) {
            Row r_rows[kRead];
            #pragma unroll
            for (int i = 0; i < kRead; ++i)
                r_rows[i] = s_rows[tile % 2][(first + i) * row_step + row_x];
            #pragma unroll
            for (int i = 0; i < kRead * kPieces; ++i) {
                const Row row = r_rows[i / kPieces];
                const int m = column_x + i % kPieces * columns * kWidth;
                copy_async<4 * kWidth>(&s_x[stage][(first + i / kPieces) * row_step + row_x][m],
                                       x_pixel[i % kPieces] + row.offset,
                                       (row.needs & ~mask[i % kPieces]) == 0);
            }
        }
        const bool inside = int64_t(tile) * kBK + kk_w < gemm_k;
        #pragma unroll
        for (int k = 0; k < kBN; k += k_step)
            copy_async<4>(&s_w[stage][kk_w][k_w + k], w_thread + k * gemm_k,
                          inside && k0 + k_w + k < K_group);
        w_thread += kBK;
    };

    #pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) {
        write_rows(tile);
        __syncthreads();
        if (tile < tiles) copy_tile(tile);
        __pipeline_commit();
    }
    write_rows(kStages - 1);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A thread's pixels are thread_m + 0 to 3, and the same plus kBM / 2. Its channels: likewise.
    const int thread_m = (warp % (kBM / kTM / 8) * 8 + lane % 8) * 4;
    const int thread_n = (warp / (kBM / kTM / 8) * 4 + lane / 8) * (kTN / 2);
    float r_acc[kTN][kTM] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        __pipeline_wait_prior(kStages - 2);
        __syncthreads();   // all have copied their part of this tile, and have read the one before
        // These copies run while this tile is multiplied.
        if (tile + kStages - 1 < tiles) copy_tile(tile + kStages - 1);
        __pipeline_commit();   // also without copies, because groups are counted
        write_rows(tile + kStages);
        const int stage = tile % kStages;
        #pragma unroll
        for (int kk = 0; kk < kBK; ++kk) {
            Floats<4> r_x[2];
            Floats<kTN / 2> r_w[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                r_x[i] = *reinterpret_cast<const Floats<4>*>(
                    &s_x[stage][kk][thread_m + i * (kBM / 2)]);
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                r_w[i] = *reinterpret_cast<const Floats<kTN / 2>*>(
                    &s_w[stage][kk][thread_n + i * (kBN / 2)]);
            #pragma unroll
            for (int i = 0; i < kTN; ++i)
                #pragma unroll
                for (int j = 0; j < kTM; ++j)
                    r_acc[i][j] += r_w[i / (kTN / 2)].v[i % (kTN / 2)] * r_x[j / 4].v[j % 4];
        }
    }

    #pragma unroll
    for (int j = 0; j < kTM; ++j) {
        const int64_t m = m0 + thread_m + j / 4 * (kBM / 2) + j % 4;
        if (m >= pixels || (vectors && j % 4 > 0)) continue;
        float* y_m = g_y + m / PQ * conv.K * PQ + m % PQ;   // y[n, 0, p, q]
        #pragma unroll
        for (int i = 0; i < kTN; ++i) {
            const int k_group = k0 + thread_n + i / (kTN / 2) * (kBN / 2) + i % (kTN / 2);
            if (k_group >= K_group) continue;
            const int k = group * K_group + k_group;
            const float bias = g_bias ? g_bias[k] : 0.0f;
            const auto y_of = [&](int of) { return activated(conv, r_acc[i][of % kTM] + bias); };
            if (vectors)   // the four pixels are in one plane, or all past the last
                *reinterpret_cast<float4*>(y_m + k * PQ) =
                    make_float4(y_of(j), y_of(j + 1), y_of(j + 2), y_of(j + 3));
            else
                y_m[k * PQ] = y_of(j);
        }
    }
}

static int64_t blocks_of(const ConvProblem& conv, int kBM, int kBN) {
    return ceil_div(int64_t(conv.N) * conv.P * conv.Q, int64_t(kBM)) * conv.groups *
           ceil_div(conv.K / conv.groups, kBN);
}

template <int kBM, int kBN, int kTN, int kWidth>
static const char* launch(const ConvProblem& conv, const float* x, const float* w,
                          const float* bias, float* y, cudaStream_t stream) {
    const int64_t blocks = blocks_of(conv, kBM, kBN);
    if (blocks > INT32_MAX) return "05_async_gemm: more tiles than blocks in a grid (2^31)";
    const bool vectors =
        int64_t(conv.P) * conv.Q % 4 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    const Step step = {kBK / (conv.R * conv.S), kBK / conv.S % conv.R, kBK % conv.S};
    constexpr int threads = threads_of<kBM, kBN, kTN>;
    conv2d_async_gemm<kBM, kBN, kTN, kWidth><<<unsigned(blocks), threads, 0, stream>>>(
        conv, step, vectors, x, w, bias, y);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;

    // Choose the tile shape that gives the busiest SM the least work. A smaller tile copies more
    // bytes for each sum, so it costs a few percent more.
    const auto cost = [&](int kBM, int kBN, int percent) {
        return ceil_div(blocks_of(conv, kBM, kBN), int64_t(device.sms)) * kBM * kBN * percent;
    };
    const int64_t square = cost(128, 128, 100), half = cost(64, 128, 105);
    const int64_t narrow = cost(128, 64, 105), strip = cost(128, 32, 130);
    const int64_t least = min_of(min_of(square, half), min_of(narrow, strip));
    const bool rows_of_x = conv.R * conv.S == 1 && conv.P == conv.H && conv.Q == conv.W &&
                           int64_t(conv.H) * conv.W % 4 == 0 && conv.pad_h + conv.pad_w == 0 &&
                           reinterpret_cast<uintptr_t>(x) % 16 == 0;
    if (least == square && rows_of_x) return launch<128, 128, 8, 4>(conv, x, w, bias, y, stream);
    if (least == square) return launch<128, 128, 8, 1>(conv, x, w, bias, y, stream);
    if (least == half) return launch<64, 128, 8, 1>(conv, x, w, bias, y, stream);
    if (least == narrow) return launch<128, 64, 8, 1>(conv, x, w, bias, y, stream);
    return launch<128, 32, 4, 1>(conv, x, w, bias, y, stream);
}
