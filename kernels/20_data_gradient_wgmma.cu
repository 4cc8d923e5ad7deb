// title: Data gradient on Hopper's tensor cores, phase by phase
// idea: The elements h, w of dx with the same remainders modulo the stride are reached by the same taps.
//       They are the output of a convolution of dy with stride 1, whose filter is these taps, turned
//       by 180 degrees, with K and C exchanged.
// change: Against 11: only the packing of the filter is new, and stores with a stride. The main loop
//       multiplies dy with the filter of a phase.
// mapping: as 11, once for each phase: block -> 64 channels of dx of one group, every n-th tile of the
//       phase's elements; two consumer warpgroups -> 64 channels x 256 elements each.
// computes: data gradient
// parent: 11_wgmma_tf32
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90,
//       68 * (512 + 2 * ((S - 1) * dilation_w // stride_w)
//             + (R - 1) * dilation_h // stride_h * (256 + (S - 1) * dilation_w // stride_w))
//       + 4096 + 4 * R * S + 10496 <= smem
//       or W < 256 * stride_w and 68 * (512 + 2 * ((S - 1) * dilation_w // stride_w)
//             + (R - 1) * dilation_h // stride_h
//             * ((W + stride_w - 1) // stride_w + (S - 1) * dilation_w // stride_w))
//       + 4096 + 4 * R * S + 10496 <= smem
// limits: A tile always has 64 channels of dx, so groups of fewer channels waste the tensor cores. With
//       a stride, phases are launched one after another, and each stores parts of sectors.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"
#include "phases.cuh"

constexpr Style kStyle = {256, 1, 0, false};
constexpr int kBatch = 11;   // pixels that a lane of a loader loads at a time

// In the following, `conv` is the convolution of a phase: its x is dy, and its y is dx.
//
// A loader warp: copies x into the stages, in batches of pixels, through registers.
__device__ __forceinline__ void load(const ConvProblem& conv, const Tiling& tiling, const Block& b,
                                     const float* g_x) {
    const int thread = threadIdx.x - 256;
    const int C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;
    Tile tile = {};
    const float* x_c0 = nullptr;   // the chunk's first channel of the tile's first image
    int stage = 0, parity = 0;
    int number = b.first_tile, chunk = 0, first = 0;   // the batch's tile, chunk and first pixel
    while (number < tiling.tiles) {
        if (first == 0 && chunk == 0) {
            tile = tile_at(tiling, number);
            x_c0 = g_x + (int64_t(tile.n) * conv.C + b.group * C_group) * HW;
        } else if (first == 0) {
            x_c0 += kChunk * HW;
        }
        // The loads begin before the stage is free. Only one batch at a time: with two, ptxas makes
        // the stores of one batch wait for the loads of the other.
        const int channels = C_group - chunk * kChunk;
        float r_x[kBatch][kChunk];
        #pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const Pixel pixel = pixel_at(conv, tiling, b, tile, first + i * 32 * kLoaders + thread);
            const float* x_pixel = x_c0 + pixel.at;
            #pragma unroll
            for (int c = 0; c < kChunk; ++c) {
                r_x[i][c] = pixel.inside && c < channels ? *x_pixel : 0.0f;
                x_pixel += HW;
            }
        }
        if (first == 0) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
        float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at) + stage * 2 * tiling.quad;
        #pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int pixel = first + i * 32 * kLoaders + thread;
            if (pixel >= tiling.quad) break;
            const float (&x)[kChunk] = r_x[i];
            s_x[pixel] = ready(x[0], x[1], x[2], x[3]);
            s_x[tiling.quad + pixel] = ready(x[4], x[5], x[6], x[7]);
        }
        first += 32 * kLoaders * kBatch;
        if (first < tiling.quad) continue;
        fence_proxy_async();
        __syncwarp();
        if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
        if (++stage == tiling.stages) stage = 0, parity ^= 1;
        first = 0;
        if (++chunk < tiling.chunks) continue;
        chunk = 0;
        number += tiling.lanes;
    }
}

// The filter's warp: the copy engine copies the packed filter into the slots, slice by slice. A
// slice is [tap][quad][64 channels][4] for each of the block's k tiles. A filter that stays in
// shared memory is copied for the first tile only; for later tiles the warp just arrives on the
// barriers.
__device__ __forceinline__ void load_filter(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const float* g_packed) {
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

// A consumer warpgroup: multiplies 64 channels x 256 positions of each tile, and stores them to dx.
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Tiling& tiling,
                                         const Block& b, const Places& places, float* g_dx) {
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
                            wgmma_m64n256k8_tf32(r_acc, w_tap, x_tap, chunk + first + tap > 0);
                        }
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (i == 0 && chunk + first > 0) release(first == 0);
                        i += 3;
                    } else {
                        wgmma_fence();
                        const uint64_t w_tap = wgmma_moved(w_slot, i * (kTapBytes / 16));
                        const uint64_t x_tap = wgmma_moved(x_stage, b.s_tap[first + i]);
                        wgmma_m64n256k8_tf32(r_acc, w_tap, x_tap, chunk + first + i > 0);
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
        const Channels mine = channels_of(tiling, b, nullptr);
        wgmma_wait<0>();
        release(true);
        store_phase<256>(conv, places, tiling, b, tile, mine, r_acc, g_dx);
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
}

__global__ void __launch_bounds__(kThreads, 1)
data_gradient_wgmma(ConvProblem conv, Tiling tiling, Places places, const float* __restrict__ g_x,
                    const float* __restrict__ g_packed, float* __restrict__ g_dx) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, s_mem);
    set_up(conv, tiling, b);
    find_pixels(conv, tiling, b);
    __syncthreads();
    if (b.warp == 11) {
        load_filter(conv, tiling, b, g_packed);
    } else if (b.warp >= 8) {
        load(conv, tiling, b, g_x);
    } else {
        multiply(conv, tiling, b, places, g_dx);
    }
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(phase_bytes(*problem, kStyle));
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    return launch_phases(data_gradient_wgmma, kStyle, *problem, dy, w, dx, workspace,
                         workspace_bytes, stream);
}
