// title: im2col + one cuBLAS GEMM
// idea: A library computes the matrix product: one SGEMM over all images gives a (K, N*P*Q) matrix.
//       Since y is (N, K, P, Q), another kernel then copies its planes to y.
// change: Against 02: cuBLAS's GEMM replaces ours. It cannot write NCHW or add the bias. So it
//       writes the product to the workspace, and a third kernel adds the bias and writes y.
// mapping: im2col: thread -> one pixel (n, p, q) and one channel c; it writes R*S rows.
//       GEMM: cuBLAS's; the groups are its batch. to_nchw: thread -> one pixel, one k.
// parent: 02_im2col_gemm
// precision: fp32
// epilogue: bias, relu
// supports: C * R * S <= 2147483647 * groups
// limits: The product is written, read, and written again as y, in addition to im2col's traffic.
//       The matrix and the product share the workspace, so a large problem runs in chunks of
//       pixels.
#include <cublas_v2.h>
#include "convlab.cuh"
#include "convlab_cublas.cuh"
#include "im2col.cuh"

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kThreads = THREADS;
static_assert(kThreads > 0 && kThreads % 32 == 0 && kThreads <= 1024, "THREADS: 32, 64, ... 1024");

// Pixels of a chunk; far fewer than would overflow an int.
constexpr int64_t kMaxPixels = 8 * 1024 * 1024;

// y[n, k, p, q] = bias[k] + product[k, m], m -> (n, p, q); g_product: (K, pitch).
// If N > 1, y has another memory order than the product: n moves in front of k.
__global__ void __launch_bounds__(kThreads)
to_nchw(ConvProblem conv, const float* __restrict__ g_product, const float* __restrict__ g_bias,
        float* __restrict__ g_y, int64_t first, int pixels, int pitch) {
    const int m = int(blockIdx.x * kThreads + threadIdx.x);
    if (m >= pixels) return;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t n = (first + m) / PQ, pq = (first + m) % PQ;
    for (int k = blockIdx.y; k < conv.K; k += gridDim.y)
        g_y[(n * conv.K + k) * PQ + pq] =
            activated(conv, g_product[int64_t(k) * pitch + m] + (g_bias ? g_bias[k] : 0.0f));
}

// Returns the floats of one pixel: its columns of the im2col matrix and of the product.
static int64_t floats_per_pixel(const ConvProblem& conv) {
    return int64_t(conv.C) * conv.R * conv.S + conv.K;
}

static int pixels_per_chunk(const ConvProblem& conv, size_t bytes) {
    return columns_that_fit(conv, bytes, floats_per_pixel(conv), kMaxPixels);
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    if (problem->N == 0) return 0;
    const size_t pixels = max_of(1, pixels_per_chunk(*problem, limit));
    return pixels * floats_per_pixel(*problem) * sizeof(float);
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int pitch = pixels_per_chunk(conv, workspace_bytes);
    if (pitch == 0) return "02b_im2col_cublas: the workspace is too small for one pixel";
    const int K_group = conv.K / conv.groups;
    const int64_t gemm_k = int64_t(conv.C / conv.groups) * conv.R * conv.S;
    float* col = static_cast<float*>(workspace);                           // (C*R*S, pitch)
    float* product = col + int64_t(conv.C) * conv.R * conv.S * pitch;      // (K, pitch)

    const int64_t all = int64_t(conv.N) * conv.P * conv.Q;
    for (int64_t first = 0; first < all; first += pitch) {
        const int pixels = int(min_of(int64_t(pitch), all - first));
        const dim3 lowering(ceil_div(pixels, kLoweringThreads), min_of(conv.C, kMaxGrid));
        im2col<<<lowering, kLoweringThreads, 0, stream>>>(conv, x, col, first, pixels, pitch);

        // For each group: (K_group, gemm_k) x (gemm_k, pixels) -> (K_group, pixels). The rows of
        // col and product are `pitch` long, also in the last chunk, which has fewer pixels.
        const char* error = sgemm_row_major(
            stream, K_group, pixels, int(gemm_k),
            RowMajor{w, int(gemm_k), K_group * gemm_k}, RowMajor{col, pitch, gemm_k * pitch},
            product, pitch, int64_t(K_group) * pitch, conv.groups);
        if (error) return error;

        const dim3 moving(ceil_div(pixels, kThreads), min_of(conv.K, kMaxGrid));
        to_nchw<<<moving, kThreads, 0, stream>>>(conv, product, bias, y, first, pixels, pitch);
    }
    return launch_error();
}
