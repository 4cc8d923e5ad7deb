// title: bf16 on Hopper's tensor cores
// idea: wgmma multiplies twice as many bf16 numbers as TF32 numbers for the same staged bytes. A
//       lane loads four pixels of 8 channels, 8 bytes of each channel, and byte permutations pair
//       up channels.
// change: Against 12: x, w and y are bf16; a sum is rounded once, at the end. A chunk has 16
//       channels. If W or the stride does not allow 8-byte loads, a lane loads single pixels.
// mapping: as 12.
// parent: 12_wgmma_vector_reads
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
// limits: As 12, but the products of a stage take half the time, so 3x3 filters wait for x. y is
//       stored in runs of 512 bytes, and threads store the two ends of each. On `square`, with one
//       chunk per tile, storing takes about two thirds of the time, although warps store half of
//       the runs.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

#if !defined(NUMBER)
#define NUMBER bf16   // or fp16, for 15b
#endif
using Number = NUMBER;
#ifndef STORES
// How rows of y are stored. 1: by the copy engine. 2: half of them by warps, 16 bytes a lane. 0: as
// 2 if a tile has one chunk, which has too few products to hide the stores; else as 1.
#define STORES 0
#endif
static_assert(STORES >= 0 && STORES <= 2, "STORES must be 0, 1 or 2");

constexpr Style style_of(bool vectors) {
    constexpr int kByWarps = STORES == 0 ? 1 : STORES == 1 ? 0 : INT32_MAX;
    return {256, 1, 0, vectors, int(sizeof(Number)), 1, kByWarps};
}
constexpr int kChannels = kChunkBytes / int(sizeof(Number));   // of a chunk
constexpr int kBatch = 6;    // items that a loader warp loads at a time
constexpr int kPixels = 4;   // pixels that a lane loads at a time in load_pixels

// d += a b^T in the number's format.
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b,
                                                 int accumulate) {
    if constexpr (std::is_same_v<Number, bf16>) {
        wgmma_m64n256k16_bf16(d, a, b, accumulate);
    } else {
        wgmma_m64n256k16_fp16(d, a, b, accumulate);
    }
}

// A loader warp: copies x into the stages, in batches of items, through registers. An item is four
// pixels of an octet of channels. In NCHW a 32-bit word holds two pixels of one channel; in the
// stage it holds two channels of one pixel.
__device__ __forceinline__ void load_vectors(const ConvProblem& conv, const Tiling& tiling,
                                             const Block& b, const Number* g_x) {
    const int C_group = conv.C / conv.groups;
    const int rows = tiling.plane / tiling.pitch * conv.stride_h;   // of x, in a tile
    uint4* s_x = reinterpret_cast<uint4*>(b.s_bytes + tiling.x_at);   // [stage][octet][pixel]
    // A lane's part of an item: bit 1 of the lane selects the octet, bit 2 the row, the other bits
    // the column group.
    const int octet = b.lane / 2 % 2, odd_row = b.lane / 4 % 2;
    const int column = 4 * (b.lane % 2 + b.lane / 8 * 2);
    const int across = ceil_div(tiling.pitch - 1, 32);   // a row's last pixel is padding
    const int items = across * ceil_div(rows, 2);
    const int64_t HW = int64_t(conv.H) * conv.W;
    const Number* r_from[kBatch];      // an item's first pixel, in the octet's first channel of x
    bool inside[kBatch];               // whether it is inside x
    int r_to[kBatch];                  // its pixel in the staged octet; or -1
    uint2 r_x[kBatch][8];              // four pixels of each of the octet's channels
    const int batch = kLoaders * kBatch;   // items of all loaders
    int parity = 0, stage = 0;
    for (int number = b.first_tile; number < tiling.tiles; number += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const int channels = C_group - chunk * kChannels - 8 * octet;
            uint4* s_octet = s_x + (2 * stage + octet) * tiling.quad;
            for (int first = 0; first < items; first += batch) {
                // The loads begin before the stage is free, as in 12.
                if (chunk == 0 || items > batch) {   // else only the channels differ
                    const Tile tile = tile_at(tiling, number);
                    const int h0 = tile.p * conv.stride_h - conv.pad_h;   // may be negative
                    const int w0 =                                        // a multiple of 4
                        tile.q * conv.stride_w - conv.pad_w - tiling.left;
                    const int c = b.group * C_group + chunk * kChannels + 8 * octet;
                    const Number* x_octet = g_x + (int64_t(tile.n) * conv.C + c) * HW;
                    #pragma unroll
                    for (int i = 0; i < kBatch; ++i) {
                        const int item = first + i * kLoaders + b.warp - 8;
                        const int row = item / across * 2 + odd_row;
                        const int w = item % across * 32 + column;
                        const int where = int(b.s_where[min_of(row, rows - 1)]);
                        const int image = divide(where, tiling.by_image_span);
                        const int h = h0 + where - image * tiling.image_rows * conv.stride_h;
                        r_from[i] = x_octet + int64_t(image) * conv.C * HW +
                                    (int64_t(h) * conv.W + w0 + w);
                        inside[i] = row < rows && unsigned(h) < unsigned(conv.H) &&
                                    unsigned(w0 + w) < unsigned(conv.W) && tile.n + image < conv.N;
                        r_to[i] = row < rows && w < tiling.pitch - 1 ? row * tiling.pitch + w : -1;
                    }
                }
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
                        // Of two words, take the lower halves for the even pixel, the upper halves
                        // for the odd one.
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

// A loader warp for any W and stride: an item is one pixel of all the chunk's channels.
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

// The filter's warp: the copy engine copies the packed filter into the slots, slice by slice. A
// slice is [tap][octet][64 channels][8] for each of the block's k tiles. A filter that stays in
// shared memory is copied for the first tile only; for later tiles the warp just arrives on the
// barriers.
__device__ __forceinline__ void load_filter(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const Number* g_packed) {
    if (b.lane != 0) return;
    griddepcontrol_wait();   // until the kernel that packs the filter has finished
    const int taps = conv.R * conv.S, tap_bytes = kTapBytes;
    const int64_t k_tile_bytes = int64_t(tiling.chunks) * taps * tap_bytes;
    const char* packed =
        reinterpret_cast<const char*>(g_packed) + b.k_tile * tiling.halves * k_tile_bytes;
    int slot = 0, parity = 0;
    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        const char* from = packed;
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            for (int first = 0; first < taps; first += tiling.taps) {
                const int bytes = min_of(tiling.taps, taps - first) * tap_bytes;
                const int copies = tiling.resident && tile != b.first_tile ? 0 : tiling.halves;
                mbarrier_wait(&b.w_empty[slot], parity ^ 1);
                mbarrier_arrive_expect(&b.w_full[slot], copies * bytes);
                for (int half = 0; half < copies; ++half)
                    bulk_load(b.s_bytes + tiling.w_at + 16 * tiling.slot_at(slot, half),
                              from + half * k_tile_bytes, bytes, &b.w_full[slot]);
                from += bytes;
                if (++slot == tiling.slots) slot = 0, parity ^= 1;
            }
        }
    }
}

// A consumer warpgroup: multiplies 64 channels x 256 positions of each tile, and stores them to y.
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Tiling& tiling,
                                         const Block& b, const float* g_bias, Number* g_y) {
    const int consumer = b.warp / 4, taps = conv.R * conv.S;
    const uint64_t x_first = wgmma_moved(
        wgmma_descriptor(b.s_bytes + tiling.x_at, 16 * tiling.quad, 128), consumer * tiling.step);
    const uint64_t w_first = wgmma_descriptor(b.s_bytes + tiling.w_at, 16 * kKTile, 128);
    float r_acc[128] = {};   // wgmma's d: 64 channels x 256 positions
    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;
    // Called when the previous slice's products are computed: frees that slice's slot, and if it
    // was the chunk's last slice, also the chunk's stage of x.
    auto release = [&](bool whole_chunk) {
        if (b.lane != 0) return;
        mbarrier_arrive(&b.w_empty[(slot == 0 ? tiling.slots : slot) - 1]);
        if (whole_chunk) mbarrier_arrive(&b.x_empty[(stage == 0 ? tiling.stages : stage) - 1]);
    };

    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            mbarrier_wait(&b.x_full[stage], stage_parity);
            const uint64_t x_stage = wgmma_moved(x_first, stage * 2 * tiling.quad);
            for (int first = 0; first < taps; first += tiling.taps) {
                mbarrier_wait(&b.w_full[slot], slot_parity);
                const uint64_t w_slot = wgmma_moved(w_first, tiling.slot_at(slot, consumer));
                const int count = min_of(tiling.taps, taps - first);
                // One group of products runs while the next is issued. Groups of three taps keep
                // the tensor cores busier than single taps.
                #pragma unroll 1
                for (int i = 0; i < count;) {
                    if (i + 3 <= count) {
                        wgmma_fence();
                        #pragma unroll
                        for (int tap = i; tap < i + 3; ++tap) {
                            // A tap is the same tile of x, read from a shifted start.
                            const uint64_t w_tap = wgmma_moved(w_slot, tap * (kTapBytes / 16));
                            const uint64_t x_tap = wgmma_moved(x_stage, b.s_tap[first + tap]);
                            wgmma_m64n256k16(r_acc, w_tap, x_tap, chunk + first + tap > 0);
                        }
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (i == 0 && chunk + first > 0) release(first == 0);
                        i += 3;
                    } else {
                        wgmma_fence();
                        const uint64_t w_tap = wgmma_moved(w_slot, i * (kTapBytes / 16));
                        const uint64_t x_tap = wgmma_moved(x_stage, b.s_tap[first + i]);
                        wgmma_m64n256k16(r_acc, w_tap, x_tap, chunk + first + i > 0);
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (i == 0 && chunk + first > 0) release(first == 0);
                        i += 1;
                    }
                }
                if (++slot == tiling.slots) slot = 0, slot_parity ^= 1;
            }
            if (++stage == tiling.stages) stage = 0, stage_parity ^= 1;
        }
        const Channels mine = channels_of(tiling, b, g_bias);
        wgmma_wait<0>();
        release(true);
        store_tile<256>(conv, tiling, b, tile, mine, r_acc, g_y);
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
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
        load_filter(conv, tiling, b, g_packed);
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
