// title: bf16 on Hopper's tensor cores
// idea: A pixel stays a row of 16 bytes, now of 8 channels: wgmma does twice the work for the same
//       bytes staged. But two channels of a pixel are no longer two words; they lie far apart in
//       NCHW, each beside its neighbour's. So a lane takes four pixels of 8 channels, 8 bytes of
//       each channel, and a byte permutation makes two words of two.
// change: Against 12: bf16 in and out, rounded once, at the end. Chunks are of 16 channels; a
//       loader's four pixels are of 8. Where W or the stride forbid that, its item is one pixel.
// mapping: as 12.
// precision: bf16
// epilogue: bias, relu
// arch: sm_90a
// tensors: x bf16, w bf16, y bf16, bias f32
// supports: sm >= 90,
//       68 * (512 * stride_h * stride_w + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (264 * stride_w + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 11264 <= smem
//       or Q < 256 and 68 * (512 * stride_h * stride_w + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * ((Q + 8) * stride_w + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 11264 <= smem
// limits: as 12, with half of the time for a stage of the same bytes: 3x3 taps wait for x. y leaves
//       in runs of 512 bytes, each with two ends that are stored by hand. On `square`, with one chunk
//       a tile, storing is two thirds of the time, though warps store half of the runs: 9,300 cycles
//       a tile, on an H200, where the products take 2,300.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_roles.cuh"

#if !defined(NUMBER)
#define NUMBER bf16   // or fp16, for 15b
#endif
using Number = NUMBER;
#ifndef STORES
#define STORES 0   // rows of y leave 1: by the copy engine; 2: half of them by warps, 16 bytes a
#endif             // lane; 0: as 2 where a tile has one chunk, too few products to hide the engine
static_assert(STORES >= 0 && STORES <= 2, "STORES must be 0, 1 or 2");

constexpr Style style_of(bool vectors) {
    constexpr int kByWarps = STORES == 0 ? 1 : STORES == 1 ? 0 : INT32_MAX;
    return {256, 1, 0, vectors, int(sizeof(Number)), 1, kByWarps};
}
constexpr int kChannels = kChunkBytes / int(sizeof(Number));   // of a chunk
constexpr int kBatch = 6;    // items that a loader has under way at a time
constexpr int kPixels = 4;   // or pixels

// A loader: in batches of items, each four pixels of an octet of channels.
__device__ __forceinline__ void load_vectors(const ConvProblem& conv, const Tiling& tiling,
                                             const Block& b, const Number* g_x) {
    const int C_group = conv.C / conv.groups;
    const int rows = tiling.plane / tiling.pitch * conv.stride_h;   // of x, in a tile
    uint4* s_x = reinterpret_cast<uint4*>(b.s_bytes + tiling.x_at);   // [stage][octet][pixel]
    // A lane's part of an item: bit 1 is the octet, bit 2 the row, the others the column group.
    const int octet = b.lane / 2 % 2, odd_row = b.lane / 4 % 2;
    const int column = 4 * (b.lane % 2 + b.lane / 8 * 2);
    const int across = ceil_div(tiling.pitch - 1, 32);   // no row's last pixel is read
    const int items = across * ceil_div(rows, 2);
    const int64_t HW = int64_t(conv.H) * conv.W;
    const Number* r_from[kBatch];        // in the octet's first channel,
    bool inside[kBatch];               // if it is inside of x
    int r_to[kBatch];                  // in the staged octet; or -1
    uint2 r_x[kBatch][8];              // four pixels of each of the octet's channels
    auto find = [&](int number, int first, int chunk) {
        const Tile tile = tile_at(tiling, number);
        const int h0 = tile.p * conv.stride_h - conv.pad_h;                 // may be negative
        const int w0 = tile.q * conv.stride_w - conv.pad_w - tiling.left;   // a multiple of 4
        const int c = b.group * C_group + chunk * kChannels + 8 * octet;
        const Number* x_octet = g_x + (int64_t(tile.n) * conv.C + c) * HW;
        #pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int item = first + i * kLoaders + b.warp - 8;
            const int row = item / across * 2 + odd_row, w = item % across * 32 + column;
            const int where = int(b.s_where[min_of(row, rows - 1)]);
            const int image = divide(where, tiling.by_image_span);
            const int h = h0 + where - image * tiling.image_rows * conv.stride_h;
            r_from[i] = x_octet + int64_t(image) * conv.C * HW + (int64_t(h) * conv.W + w0 + w);
            inside[i] = row < rows && unsigned(h) < unsigned(conv.H) &&
                        unsigned(w0 + w) < unsigned(conv.W) && tile.n + image < conv.N;
            r_to[i] = row < rows && w < tiling.pitch - 1 ? row * tiling.pitch + w : -1;
        }
    };
    const int batch = kLoaders * kBatch;   // items of all loaders
    int stage = 0, parity = 0;
    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const int channels = C_group - chunk * kChannels - 8 * octet;
            uint4* s_octet = s_x + (2 * stage + octet) * tiling.quad;
            for (int first = 0; first < items; first += batch) {
                // Under way while the stage is still in use; see 12.
                if (chunk == 0 || items > batch) find(tile, first, chunk);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int limit = inside[i] ? channels : 0;
                    #pragma unroll
                    for (int c = 0; c < 8; ++c)
                        r_x[i][c] = c < limit ? *reinterpret_cast<const uint2*>(r_from[i] + c * HW)
                                              : uint2{};
                    r_from[i] += kChannels * HW;
                }
                if (first == 0) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    if (r_to[i] < 0) continue;
                    const uint2 (&x)[8] = r_x[i];
                    #pragma unroll
                    for (int odd = 0; odd < 2; ++odd) {
                        // A word holds two pixels of a channel. Of two words, the lower or
                        // the upper halves:
                        const unsigned halves = odd ? 0x7632 : 0x5410;
                        auto two = [=](unsigned a, unsigned b) {
                            return __byte_perm(a, b, halves);
                        };
                        uint4* s_to = s_octet + r_to[i] + odd;
                        s_to[0] = make_uint4(two(x[0].x, x[1].x), two(x[2].x, x[3].x),
                                             two(x[4].x, x[5].x), two(x[6].x, x[7].x));
                        s_to[2] = make_uint4(two(x[0].y, x[1].y), two(x[2].y, x[3].y),
                                             two(x[4].y, x[5].y), two(x[6].y, x[7].y));
                    }
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
        }
    }
}

// A loader of any W and stride: pixel by pixel.
__device__ __forceinline__ void load_pixels(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const Number* g_x) {
    const int C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;
    unsigned r_x[kPixels][kChannels];
    int stage = 0, parity = 0;
    for (int number = b.first_tile; number < tiling.tiles; number += tiling.lanes) {
        const Tile tile = tile_at(tiling, number);
        const Number* x_c0 = g_x + (int64_t(tile.n) * conv.C + b.group * C_group) * HW;
        for (int c0 = 0; c0 < C_group; c0 += kChannels) {
            uint4* s_x =
                reinterpret_cast<uint4*>(b.s_bytes + tiling.x_at) + stage * 2 * tiling.quad;
            #pragma unroll 1
            for (int first = threadIdx.x - 256; first < tiling.quad;
                 first += 32 * kLoaders * kPixels) {
                #pragma unroll
                for (int i = 0; i < kPixels; ++i) {
                    const Pixel pixel =
                        pixel_at(conv, tiling, b, tile, first + i * 32 * kLoaders);
                    const Number* x = x_c0 + pixel.at;
                    #pragma unroll
                    for (int c = 0; c < kChannels; ++c) {
                        r_x[i][c] = pixel.inside && c0 + c < C_group ? x->bits : 0;
                        x += HW;
                    }
                }
                if (first < 32 * kLoaders) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kPixels; ++i) {
                    const int pixel = first + i * 32 * kLoaders;
                    if (pixel >= tiling.quad) break;
                    #pragma unroll
                    for (int octet = 0; octet < 2; ++octet) {
                        const unsigned* x = r_x[i] + 8 * octet;
                        s_x[octet * tiling.quad + pixel] =
                            make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16,
                                       x[6] | x[7] << 16);
                    }
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
            x_c0 += kChannels * HW;
        }
    }
}

__global__ void __launch_bounds__(kThreads, 1)
conv2d_wgmma_half(ConvProblem conv, Tiling tiling, const Number* __restrict__ g_x,
                  const Number* __restrict__ g_packed, const float* __restrict__ g_bias,
                  Number* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, s_mem);
    set_up(conv, tiling, b);
    if (tiling.vectors) {
        find_rows(conv, tiling, b);
    } else {
        find_pixels(conv, tiling, b);
    }
    __syncthreads();
    if (b.warp == 11) {
        load_filter(conv, tiling, b, g_packed, 1);
    } else if (b.warp < 8) {
        multiply(conv, tiling, b, g_bias, g_y);
    } else if (tiling.vectors) {
        load_vectors(conv, tiling, b, g_x);
    } else {
        load_pixels(conv, tiling, b, g_x);
    }
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, style_of(true)));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* w,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const bool vectors = problem->W % 4 == 0 && problem->stride_w == 1 &&
                         reinterpret_cast<uintptr_t>(x) % 8 == 0;
    return launch_wgmma(conv2d_wgmma_half, kThreads, style_of(vectors), *problem, x, w, bias, y,
                        workspace, workspace_bytes, stream);
}
