// title: im2col + batched cuBLAS GEMM
// idea: Keep images separate: the columns of each image are a matrix of their own, and one
//       strided-batched call multiplies all of them. The filter is the same for all: its stride is
//       0.
// change: Against 02b: the product of image n, (K, P*Q), is exactly y[n], so the GEMM writes y
//       itself and nothing is moved afterwards; bias and ReLU, if any, are applied in place.
// mapping: im2col: thread -> one pixel (n, p, q) and one channel c, writing its R*S rows.
//       GEMM: cuBLAS's, the batch being the images, a call for each group.
//       add_bias: thread -> one pixel (p, q) of one plane (n, k).
// parent: 02b_im2col_cublas
// precision: fp32
// epilogue: bias, relu
// supports: C * R * S <= 2147483647 * groups, P * Q <= 2147483647
// limits: Small images make small GEMMs, many groups make many calls. As many images as fit the
//       workspace go at once; an image that does not fit goes in chunks of pixels. Where the matrix
//       is far larger than y, as for 5x9 filters, not moving y hardly shows.
#include <cublas_v2.h>
#include "convlab.cuh"
#include "convlab_cublas.cuh"
#include "im2col.cuh"

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kThreads = THREADS;
static_assert(kThreads > 0 && kThreads % 32 == 0 && kThreads <= 1024, "THREADS: 32, 64, ... 1024");

constexpr int64_t kMaxPixels = 8 * 1024 * 1024; // of a chunk; far below what overflows an int

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

// Returns how many pixels fit into `bytes`, 0 if not even one: those of whole images, or of a part
// of one.
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

        // For each image: (K_group, gemm_k) x (gemm_k, PQ) -> (K_group, PQ), a part of y[n] or all.
        // Images are PQ columns apart in col; y's rows are PQ long however few are in this chunk.
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
