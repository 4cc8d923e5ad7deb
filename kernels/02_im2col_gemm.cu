// title: im2col + tiled GEMM
// idea: For each output pixel, the C*R*S inputs that it reads become a column of a matrix. The
//       convolution is then one matrix product, (K, C*R*S) x (C*R*S, N*P*Q), computed tile by tile.
// change: Against 01: the matrix holds a value of x up to R*S times. In return, the GEMM has no
//       borders, strides or dilation, and uses each value in a register kTM or kTN times.
// mapping: im2col: thread -> one pixel (n, p, q) and one channel c; it writes R*S rows.
//       GEMM: block -> kBN output channels of one group (grid.x) x kBM pixels (grid.y);
//       thread -> kTN neighbouring channels x kTM pixels, kBM/kTM apart (so that neighbouring lanes
//       have neighbouring pixels).
// precision: fp32
// epilogue: bias, relu
// supports: everything
// limits: The matrix is written to memory and read back. It must fit into the workspace, so a large
//       problem runs in chunks of pixels. Groups with few channels fill a small part of a tile.
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
static_assert(kBK >= 1, "BK: at least 1");
static_assert(kBK * (kBM + kBN + 4) * sizeof(float) <= 48 * 1024, "tiles: at most 48 KB");

constexpr int kLoweringThreads = 256;

// g_col: (C*R*S, pitch). Its column m is pixel `first + m` of y's pixels, all images end to end.
__global__ void __launch_bounds__(kLoweringThreads)
im2col(ConvProblem conv, const float* __restrict__ g_x, float* __restrict__ g_col,
       int64_t first, int pixels, int pitch) {
    const int m = int(blockIdx.x * kLoweringThreads + threadIdx.x);
    if (m >= pixels) return;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int n = int((first + m) / PQ);
    const int p = int((first + m) % PQ / conv.Q);
    const int q = int((first + m) % PQ % conv.Q);

    for (int c = blockIdx.y; c < conv.C; c += gridDim.y) {
        const float* x_c = g_x + (int64_t(n) * conv.C + c) * conv.H * conv.W;    // (H, W)
        float* col = g_col + int64_t(c) * conv.R * conv.S * pitch + m;
        for (int r = 0; r < conv.R; ++r) {
            const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
            for (int s = 0; s < conv.S; ++s) {
                const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
                *col = inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
                col += pitch;   // rows are ordered (c, r, s), as the filter is
            }
        }
    }
}

// y[n, k, p, q] = bias[k] + sum over kk of w[k, kk] * col[kk, m],  m -> (n, p, q).
__global__ void __launch_bounds__(kThreads)
gemm_nchw(ConvProblem conv, const float* __restrict__ g_w, const float* __restrict__ g_col,
          const float* __restrict__ g_bias, float* __restrict__ g_y,
          int64_t first, int pixels, int pitch) {
    __shared__ float s_col[kBK][kBM];
    __shared__ float s_w[kBK][kBN + 4];   // +4: stores down a column go to 8 banks, not 1

    const int K_group = conv.K / conv.groups;
    const int64_t gemm_k = int64_t(conv.C / conv.groups) * conv.R * conv.S;
    const int k_tiles = ceil_div(K_group, kBN);
    const int group = blockIdx.x / k_tiles;
    const int k0 = blockIdx.x % k_tiles * kBN;        // within the group
    const int m0 = blockIdx.y * kBM;                  // within the chunk
    const int thread_m = threadIdx.x % (kBM / kTM);
    const int thread_n = threadIdx.x / (kBM / kTM);

    const float* w_group = g_w + int64_t(group) * K_group * gemm_k;   // (K_group, gemm_k)
    const float* col_group = g_col + group * gemm_k * pitch;          // (gemm_k, pitch)
    float r_acc[kTN][kTM] = {};

    for (int64_t kk0 = 0; kk0 < gemm_k; kk0 += kBK) {
        for (int i = threadIdx.x; i < kBK * kBM; i += kThreads) {     // lanes along pixels
            const int kk = i / kBM, m = i % kBM;
            s_col[kk][m] = kk0 + kk < gemm_k && m0 + m < pixels
                               ? col_group[(kk0 + kk) * pitch + m0 + m] : 0.0f;
        }
        for (int i = threadIdx.x; i < kBK * kBN; i += kThreads) {     // lanes along w's rows
            const int kk = i % kBK, k = i / kBK;
            s_w[kk][k] = kk0 + kk < gemm_k && k0 + k < K_group
                             ? w_group[(k0 + k) * gemm_k + kk0 + kk] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int kk = 0; kk < kBK; ++kk) {
            float r_col[kTM], r_w[kTN];
            for (int j = 0; j < kTM; ++j) r_col[j] = s_col[kk][thread_m + j * (kBM / kTM)];
            for (int i = 0; i < kTN; ++i) r_w[i] = s_w[kk][thread_n * kTN + i];
            // Each value of w serves kTM products, each value of the matrix kTN.
            for (int i = 0; i < kTN; ++i)
                for (int j = 0; j < kTM; ++j) r_acc[i][j] += r_w[i] * r_col[j];
        }
        __syncthreads();   // all have read the tiles before the next are loaded
    }

    const int64_t PQ = int64_t(conv.P) * conv.Q;
    for (int j = 0; j < kTM; ++j) {
        const int m = m0 + thread_m + j * (kBM / kTM);
        if (m >= pixels) continue;
        const int64_t n = (first + m) / PQ, pq = (first + m) % PQ;
        for (int i = 0; i < kTN; ++i) {
            const int k = group * K_group + k0 + thread_n * kTN + i;
            if (k >= (group + 1) * K_group) continue;
            g_y[(n * conv.K + k) * PQ + pq] =
                activated(conv, r_acc[i][j] + (g_bias ? g_bias[k] : 0.0f));
        }
    }
}

// Returns how many columns of the matrix fit into `bytes`, at most as many as a grid can cover.
// From 32 columns on, a multiple of 32, so that rows consist of whole 128-byte lines.
static int pixels_per_chunk(const ConvProblem& conv, size_t bytes) {
    const int64_t all = ceil_div(int64_t(conv.N) * conv.P * conv.Q, int64_t(32)) * 32;
    const int64_t fit = int64_t(bytes / sizeof(float)) / (int64_t(conv.C) * conv.R * conv.S);
    const int64_t pixels = min_of(min_of(fit, all), int64_t(kMaxGrid) * kBM);
    return int(pixels < 32 ? pixels : pixels / 32 * 32);
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    if (problem->N == 0) return 0;
    const size_t pixels = max_of(1, pixels_per_chunk(*problem, limit));
    return pixels * problem->C * problem->R * problem->S * sizeof(float);
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int pitch = pixels_per_chunk(conv, workspace_bytes);
    if (pitch == 0) return "02_im2col_gemm: the workspace is too small for one pixel's column";
    float* col = static_cast<float*>(workspace);

    const int64_t all = int64_t(conv.N) * conv.P * conv.Q;
    for (int64_t first = 0; first < all; first += pitch) {
        const int pixels = int(min_of(int64_t(pitch), all - first));
        const dim3 lowering(ceil_div(pixels, kLoweringThreads), min_of(conv.C, kMaxGrid));
        im2col<<<lowering, kLoweringThreads, 0, stream>>>(conv, x, col, first, pixels, pitch);
        // Tiles of channels vary fastest, so blocks that share a tile of pixels run at the same
        // time.
        const dim3 tiles(ceil_div(conv.K / conv.groups, kBN) * conv.groups, ceil_div(pixels, kBM));
        gemm_nchw<<<tiles, kThreads, 0, stream>>>(conv, w, col, bias, y, first, pixels, pitch);
    }
    return launch_error();
}
