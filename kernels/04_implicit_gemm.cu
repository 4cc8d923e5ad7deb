// title: Implicit GEMM
// idea: The matrix product of im2col, without the matrix: a block computes which elements of x a
//       tile of the matrix would hold, and loads those. Only x, the filter and y move through
//       memory.
// change: Against 02: no im2col kernel and no workspace. The cost: a thread finds its pixel (n, p,
//       q) once, but the row (c, r, s) for each element that it loads, by integer divisions. Rung
//       05 removes them.
// parent: 02_im2col_gemm
// mapping: block -> kBN output channels of one group x kBM pixels (n, p, q) end to end; thread ->
//       kTN neighbouring channels x kTM pixels, kBM/kTM apart (as in 02).
// precision: fp32
// epilogue: bias, relu
// supports: everything
// limits: Three integer divisions and a border test for each element of a tile. While a block loads
//       a tile, only other blocks multiply. nvcc does not unroll the last loop, so the sums pass
//       through local memory. Slower than 02, but without its workspace; it is the step to 05.
#include "convlab.cuh"

#ifndef BM
#define BM 128   // pixels per block
#endif
#ifndef BN
#define BN 64    // output channels per block
#endif
#ifndef BK
#define BK 8     // rows of the im2col matrix that are staged at a time
#endif
#ifndef TM
#define TM 8     // pixels per thread
#endif
#ifndef TN
#define TN 8     // output channels per thread
#endif
constexpr int kBM = BM, kBN = BN, kBK = BK, kTM = TM, kTN = TN;
constexpr int kThreads = (kBM / kTM) * (kBN / kTN);
static_assert(kBM % kTM == 0 && kBN % kTN == 0, "BM and BN: multiples of TM and TN");
static_assert(kThreads >= 32 && kThreads <= 1024, "(BM/TM) * (BN/TN): 32 to 1024 threads");
static_assert(kThreads % kBM == 0, "(BM/TM) * (BN/TN): a multiple of BM; a thread keeps its pixel");
static_assert(kBK >= 1, "BK: at least 1");
static_assert(kBK * (kBM + kBN + 4) * sizeof(float) <= 48 * 1024, "tiles: at most 48 KB");

// y[n, k, p, q] = bias[k] + sum over kk of w[k, kk] * x[n, c, h, w],
// m -> (n, p, q), kk -> (c, r, s).
__global__ void __launch_bounds__(kThreads)
conv2d_implicit_gemm(ConvProblem conv, const float* __restrict__ g_x,
                     const float* __restrict__ g_w, const float* __restrict__ g_bias,
                     float* __restrict__ g_y) {
    __shared__ float s_x[kBK][kBM];
    __shared__ float s_w[kBK][kBN + 4];   // +4: stores down a column go to 8 banks, not 1

    const int K_group = conv.K / conv.groups;
    const int64_t gemm_k = int64_t(conv.C / conv.groups) * conv.R * conv.S;
    const int64_t PQ = int64_t(conv.P) * conv.Q, pixels = conv.N * PQ;
    // Tiles of channels vary fastest, so blocks that share pixels run at the same time.
    const int k_tiles = ceil_div(K_group, kBN);       // of a group
    const int slices = k_tiles * conv.groups;         // of all groups
    const int group = blockIdx.x % slices / k_tiles;
    const int k0 = blockIdx.x % k_tiles * kBN;        // within the group
    const int64_t m0 = int64_t(blockIdx.x / slices) * kBM;
    const int thread_m = threadIdx.x % (kBM / kTM);
    const int thread_n = threadIdx.x / (kBM / kTM);

    const float* w_group = g_w + int64_t(group) * K_group * gemm_k;   // (K_group, gemm_k)

    // This thread loads the elements of one pixel, m.
    const int64_t m = m0 + threadIdx.x % kBM;
    const int p = int(m % PQ / conv.Q), q = int(m % PQ % conv.Q);
    const float* x_group =                                            // (C_group, H, W)
        g_x + (m / PQ * conv.C + int64_t(group) * (conv.C / conv.groups)) * conv.H * conv.W;
    float r_acc[kTN][kTM] = {};

    for (int64_t kk0 = 0; kk0 < gemm_k; kk0 += kBK) {
        for (int i = threadIdx.x / kBM; i < kBK; i += kThreads / kBM) {   // lanes along pixels
            // Element (kk, m) of im2col's matrix is x[n, c, h, w].
            const int64_t kk = kk0 + i;
            const int c = int(kk / (conv.R * conv.S)), r = int(kk / conv.S % conv.R);
            const int s = int(kk % conv.S);
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
            const bool inside = kk < gemm_k && m < pixels && h >= 0 && h < conv.H && w >= 0 &&
                                w < conv.W;
            s_x[i][threadIdx.x % kBM] =
                inside ? x_group[(int64_t(c) * conv.H + h) * conv.W + w] : 0.0f;
        }
        for (int i = threadIdx.x; i < kBK * kBN; i += kThreads) {     // lanes along w's rows
            const int kk = i % kBK, k = i / kBK;
            s_w[kk][k] = kk0 + kk < gemm_k && k0 + k < K_group
                             ? w_group[(k0 + k) * gemm_k + kk0 + kk] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int kk = 0; kk < kBK; ++kk) {
            float r_x[kTM], r_w[kTN];
            for (int j = 0; j < kTM; ++j) r_x[j] = s_x[kk][thread_m + j * (kBM / kTM)];
            for (int i = 0; i < kTN; ++i) r_w[i] = s_w[kk][thread_n * kTN + i];
            for (int i = 0; i < kTN; ++i)
                for (int j = 0; j < kTM; ++j) r_acc[i][j] += r_w[i] * r_x[j];
        }
        __syncthreads();   // all have read the tiles before the next are loaded
    }

    for (int j = 0; j < kTM; ++j) {
        const int64_t m = m0 + thread_m + j * (kBM / kTM);
        if (m >= pixels) continue;
        for (int i = 0; i < kTN; ++i) {
            const int k = group * K_group + k0 + thread_n * kTN + i;
            if (k >= (group + 1) * K_group) continue;
            g_y[(m / PQ * conv.K + k) * PQ + m % PQ] =
                activated(conv, r_acc[i][j] + (g_bias ? g_bias[k] : 0.0f));
        }
    }
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int64_t pixels = int64_t(conv.N) * conv.P * conv.Q;
    const int64_t blocks = ceil_div(pixels, int64_t(kBM)) * conv.groups *
                           ceil_div(conv.K / conv.groups, kBN);
    if (blocks > INT32_MAX) return "04_implicit_gemm: more tiles than blocks in a grid (2^31)";
    conv2d_implicit_gemm<<<unsigned(blocks), kThreads, 0, stream>>>(conv, x, w, bias, y);
    return launch_error();
}
