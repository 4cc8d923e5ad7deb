// title: im2col + batched cuBLAS GEMM
// idea: Keep images apart: one im2col matrix for each image, and one small GEMM for each, all in
//       one strided-batched call. The filter is the same for all of them: its stride is 0.
// change: Against 02b: the product of image n, (K, P*Q), is y[n] as it stands, so the GEMM writes
//       y itself and nothing is moved afterwards; the bias is added in place, if there is one.
// mapping: im2col: thread -> one pixel (p, q) of one image and one channel c, writing its R*S rows.
//       GEMM: cuBLAS's, the batch being the images, a call for each group.
//       add_bias: thread -> one pixel (p, q) of one plane (n, k).
// precision: fp32
// supports: C * R * S <= 2147483647 * groups, P * Q <= 2147483647
// limits: Small images make small GEMMs, many groups make many calls. As many images as fit the
//       workspace go at once; an image that does not fit goes in chunks of pixels.
#include <cublas_v2.h>
#include "convlab.cuh"
#include "convlab_cublas.cuh"

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kThreads = THREADS;
static_assert(kThreads > 0 && kThreads % 32 == 0 && kThreads <= 1024, "THREADS: 32, 64, ... 1024");

constexpr int kMaxGrid = 65535;   // of a grid's y and z

// What is lowered at once: `pixels` pixels of each of `images` images; pixels is P*Q if images > 1.
struct Chunk {
    int images;
    int pixels;
};

// g_col: (images, C*R*S, pixels): pixels from first_pixel on, of the images from first_image on.
__global__ void __launch_bounds__(kThreads)
im2col(ConvProblem conv, const float* __restrict__ g_x, float* __restrict__ g_col,
       int first_image, int first_pixel, Chunk chunk) {
    const int64_t m = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (m >= chunk.pixels) return;
    const int p = int((first_pixel + m) / conv.Q);
    const int q = int((first_pixel + m) % conv.Q);

    for (int image = blockIdx.z; image < chunk.images; image += gridDim.z) {
        for (int c = blockIdx.y; c < conv.C; c += gridDim.y) {
            const int64_t plane = int64_t(image) * conv.C + c;
            const float* x_c =
                g_x + (int64_t(first_image) * conv.C + plane) * conv.H * conv.W;   // (H, W)
            float* col = g_col + plane * conv.R * conv.S * chunk.pixels + m;
            for (int r = 0; r < conv.R; ++r) {
                const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
                for (int s = 0; s < conv.S; ++s) {
                    const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                    const bool inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;
                    *col = inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
                    col += chunk.pixels;   // rows are ordered (c, r, s), as the filter is
                }
            }
        }
    }
}

__global__ void __launch_bounds__(kThreads)
add_bias(ConvProblem conv, const float* __restrict__ g_bias, float* __restrict__ g_y) {
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t pq = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (pq >= PQ) return;
    for (int64_t plane = blockIdx.y; plane < int64_t(conv.N) * conv.K; plane += gridDim.y)
        g_y[plane * PQ + pq] += g_bias[plane % conv.K];
}

// The most that fits into `bytes`: whole images, or else a part of one; no pixels if nothing fits.
static Chunk chunk_that_fits(const ConvProblem& conv, size_t bytes) {
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    const int64_t pixels = int64_t(bytes / sizeof(float)) / (int64_t(conv.C) * conv.R * conv.S);
    if (pixels >= PQ) return {int(min_of(int64_t(conv.N), pixels / PQ)), int(PQ)};
    return {1, int(pixels < 32 ? pixels : pixels / 32 * 32)};
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    if (problem->N == 0) return 0;
    const Chunk chunk = chunk_that_fits(*problem, limit);
    const size_t pixels = size_t(chunk.images) * max_of(1, chunk.pixels);
    return pixels * problem->C * problem->R * problem->S * sizeof(float);
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const int K_group = conv.K / conv.groups;
    const int64_t gemm_k = int64_t(conv.C / conv.groups) * conv.R * conv.S;
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    if (gemm_k > INT32_MAX) return "02c_im2col_batched: C/groups*R*S passes 2^31; use 01_direct";
    if (PQ > INT32_MAX) return "02c_im2col_batched: P*Q passes 2^31; use 02_im2col_gemm";
    const Chunk most = chunk_that_fits(conv, workspace_bytes);
    if (most.pixels == 0) return "02c_im2col_batched: the workspace is too small for one pixel";
    float* col = static_cast<float*>(workspace);

    for (int64_t n = 0; n < conv.N; n += most.images) {
        for (int64_t m = 0; m < PQ; m += most.pixels) {
            const Chunk chunk = {int(min_of(int64_t(most.images), conv.N - n)),
                                 int(min_of(int64_t(most.pixels), PQ - m))};
            const dim3 lowering(ceil_div(chunk.pixels, kThreads), min_of(conv.C, kMaxGrid),
                                min_of(chunk.images, kMaxGrid));
            im2col<<<lowering, kThreads, 0, stream>>>(conv, x, col, int(n), int(m), chunk);

            // For each image: (K_group, gemm_k) x (gemm_k, pixels) -> (K_group, pixels), the last a
            // part of y[n], whose rows are P*Q long however few of its pixels are in this chunk.
            for (int group = 0; group < conv.groups; ++group) {
                const int64_t k = int64_t(group) * K_group;
                const char* error = sgemm_row_major(
                    stream, K_group, chunk.pixels, int(gemm_k),
                    RowMajor{w + k * gemm_k, int(gemm_k), 0},
                    RowMajor{col + group * gemm_k * chunk.pixels, chunk.pixels,
                             conv.groups * gemm_k * chunk.pixels},
                    y + (n * conv.K + k) * PQ + m, int(PQ), conv.K * PQ, chunk.images);
                if (error) return error;
            }
        }
    }
    if (bias) {
        const dim3 planes(unsigned(ceil_div(PQ, int64_t(kThreads))),
                          unsigned(min_of(int64_t(conv.N) * conv.K, int64_t(kMaxGrid))));
        add_bias<<<planes, kThreads, 0, stream>>>(conv, bias, y);
    }
    return launch_error();
}
