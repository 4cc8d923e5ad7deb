// title: im2col + batched cuBLAS GEMM
// idea: The columns of each image form a matrix of their own. One strided-batched call multiplies
//       the matrices of many images by the same filter: the filter has stride 0.
// change: Against 02b: the product of image n, (K, P*Q), is exactly y[n]. So the GEMM writes y
//       itself, and no kernel copies it. Bias and ReLU, if any, are applied to y in place.
// mapping: im2col: thread -> one pixel (n, p, q) and one channel c; it writes R*S rows.
//       GEMM: cuBLAS's; the images are its batch, one call for each group.
//       add_bias: thread -> one pixel (p, q) of one plane (n, k).
// parent: 02b_im2col_cublas
// precision: fp32
// epilogue: bias, relu
// supports: C * R * S <= 2147483647 * groups, P * Q <= 2147483647
// limits: Small images make small GEMMs, and many groups make many calls. The matrices of as many
//       images as fit into the workspace are multiplied at a time; an image that does not fit runs
//       in chunks of pixels. For a 5x9 filter the matrix is far larger than y, so the saved copy of
//       y hardly matters.
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

__global__ void __launch_bounds__(kThreads)
add_bias(ConvProblem conv, const float* __restrict__ g_bias, float* __restrict__ g_y) {
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t pq = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (pq >= PQ) return;
    for (int64_t plane = blockIdx.y; plane < int64_t(conv.N) * conv.K; plane += gridDim.y) {
        float* y = g_y + plane * PQ + pq;
        *y = activated(conv, *y + (g_bias ? g_bias[plane % conv.K] : 0.0f));
    }
}

// Returns how many pixels fit into `bytes`: those of whole images, or else of a part of one image;
// 0 if none fits.
static int pixels_per_chunk(const ConvProblem& conv, size_t bytes) {
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t floats = int64_t(conv.C) * conv.R * conv.S;
    const int64_t fit = min_of(int64_t(bytes / sizeof(float)) / floats, max_of(kMaxPixels, PQ));
    if (fit < PQ) return columns_that_fit(conv, bytes, floats, kMaxPixels);
    return int(min_of(int64_t(conv.N), fit / PQ) * PQ);
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
    if (pitch == 0) return "02c_im2col_batched: the workspace is too small for one pixel";
    const int K_group = conv.K / conv.groups;
    const int64_t gemm_k = int64_t(conv.C / conv.groups) * conv.R * conv.S;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    float* col = static_cast<float*>(workspace);                           // (C*R*S, pitch)

    const int64_t all = conv.N * PQ;
    for (int64_t first = 0, pixels; first < all; first += pixels) {
        const int64_t n = first / PQ, m = first % PQ;
        pixels = min_of(int64_t(pitch), pitch < PQ ? PQ - m : all - first);
        const int images = int(max_of(int64_t(1), pixels / PQ));
        const dim3 lowering(ceil_div(int(pixels), kLoweringThreads), min_of(conv.C, kMaxGrid));
        im2col<<<lowering, kLoweringThreads, 0, stream>>>(conv, x, col, first, int(pixels), pitch);

        // For each image: (K_group, gemm_k) x (gemm_k, PQ) -> (K_group, PQ), which is y[n] or a
        // part of it. Images are PQ columns apart in col. A row of y is PQ long, also if the chunk
        // has fewer pixels.
        for (int group = 0; group < conv.groups; ++group) {
            const int64_t k = int64_t(group) * K_group;
            const char* error = sgemm_row_major(
                stream, K_group, int(pixels / images), int(gemm_k),
                RowMajor{w + k * gemm_k, int(gemm_k), 0},
                RowMajor{col + group * gemm_k * pitch, pitch, PQ},
                y + (n * conv.K + k) * PQ + m, int(PQ), conv.K * PQ, images);
            if (error) return error;
        }
    }
    if (bias || conv.relu) {
        const dim3 planes(unsigned(ceil_div(PQ, int64_t(kThreads))),
                          unsigned(min_of(int64_t(conv.N) * conv.K, int64_t(kMaxGrid))));
        add_bias<<<planes, kThreads, 0, stream>>>(conv, bias, y);
    }
    return launch_error();
}
