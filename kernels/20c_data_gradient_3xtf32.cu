// title: Data gradient with fp32's accuracy on Hopper's tensor cores
// idea: A phase of dx is a convolution of dy with stride 1, as in 20. An fp32 number is the sum of two
//       TF32 numbers, high and low. Three products, high high + high low + low high, keep the accuracy
//       of fp32.
// change: Against 13: only the packing of the filter is new, and stores with a stride. The main loop
//       multiplies dy with the filter of a phase.
// mapping: as 13, once for each phase: block -> 64 channels of dx of one group; two consumer warpgroups
//       -> 64 channels x 128 elements each.
// computes: data gradient
// parent: 13_wgmma_3xtf32
// precision: fp32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90,
//       132 * (256 + 2 * ((S - 1) * dilation_w // stride_w)
//             + (R - 1) * dilation_h // stride_h * (128 + (S - 1) * dilation_w // stride_w))
//       + 8192 + 4 * R * S + 10496 <= smem
//       or W < 128 * stride_w and 132 * (256 + 2 * ((S - 1) * dilation_w // stride_w)
//             + (R - 1) * dilation_h // stride_h
//             * ((W + stride_w - 1) // stride_w + (S - 1) * dilation_w // stride_w))
//       + 8192 + 4 * R * S + 10496 <= smem
// limits: The tensor cores, as 13. A tile always has 64 channels of dx, so groups of fewer channels waste
//       them. An infinity times an infinity is NaN.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"
#include "phases.cuh"

constexpr int kPositions = 128;
// A tensor core truncates its sum after every product, always towards zero. So the sum must stay
// short: after this many taps it moves from r_acc to r_sum.
constexpr int kPeriod = 9;
constexpr int kBatch = 6;    // pixels that a lane of a loader loads at a time
constexpr Style kStyle = {kPositions, 2, kPeriod, false};

// In the following, `conv` is the convolution of a phase: its x is dy, and its y is dx.
//
// A loader warp: copies x into the stages, [high, low][quad][pixel], in batches of pixels, through
// registers.
__device__ __forceinline__ void load(const ConvProblem& conv, const Tiling& tiling, const Block& b,
                                     const float* g_x) {
    const int C_group = conv.C / conv.groups, quad = tiling.quad;
    const int64_t HW = int64_t(conv.H) * conv.W;
    float r_x[kBatch][kChunk];
    int stage = 0, parity = 0;
    for (int number = b.first_tile; number < tiling.tiles; number += tiling.lanes) {
        const Tile tile = tile_at(tiling, number);
        const float* x_c0 = g_x + (int64_t(tile.n) * conv.C + b.group * C_group) * HW;
        for (int c0 = 0; c0 < C_group; c0 += kChunk) {
            float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at) + stage * 4 * quad;
            #pragma unroll 1
            for (int first = threadIdx.x - 256; first < quad; first += 32 * kLoaders * kBatch) {
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const Pixel pixel =
                        pixel_at(conv, tiling, b, tile, first + i * 32 * kLoaders);
                    const float* x = x_c0 + pixel.at;
                    #pragma unroll
                    for (int c = 0; c < kChunk; ++c) {
                        r_x[i][c] = pixel.inside && c0 + c < C_group ? *x : 0.0f;
                        x += HW;
                    }
                }
                if (first < 32 * kLoaders) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int pixel = first + i * 32 * kLoaders;
                    if (pixel >= quad) break;
                    #pragma unroll
                    for (int q = 0; q < 2; ++q) {
                        Parts x[4];
                        #pragma unroll
                        for (int c = 0; c < 4; ++c) x[c] = parts_of(r_x[i][4 * q + c]);
                        s_x[q * quad + pixel] =
                            make_float4(x[0].high, x[1].high, x[2].high, x[3].high);
                        s_x[(2 + q) * quad + pixel] =
                            make_float4(x[0].low, x[1].low, x[2].low, x[3].low);
                    }
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
            x_c0 += kChunk * HW;
        }
    }
}

// The filter's warp: the copy engine copies the packed filter into the slots, slice by slice. A
// slice is [tap][high, low][quad][64 channels][4] for each of the block's k tiles. A filter that
// stays in shared memory is copied for the first tile only; for later tiles the warp just arrives
// on the barriers.
__device__ __forceinline__ void load_filter(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const float* g_packed) {
    if (b.lane != 0) return;
    griddepcontrol_wait();   // until the kernel that packs the filter has finished
    const int taps = conv.R * conv.S, tap_bytes = 2 * kTapBytes;
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
                    bulk_load(b.s_bytes + tiling.w_at + 2 * 16 * tiling.slot_at(slot, half),
                              from + half * k_tile_bytes, bytes, &b.w_full[slot]);
                from += bytes;
                if (++slot == tiling.slots) slot = 0, parity ^= 1;
            }
        }
    }
}

// A consumer warpgroup: multiplies 64 channels x 128 positions of each tile, and stores them to dx.
// While one consumer adds r_acc to r_sum, the other keeps the tensor cores busy.
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Tiling& tiling,
                                         const Block& b, const Places& places, float* g_dx) {
    const int consumer = b.warp / 4, taps = conv.R * conv.S;
    const uint64_t x_first = wgmma_moved(
        wgmma_descriptor(b.s_bytes + tiling.x_at, 16 * tiling.quad, 128), consumer * tiling.step);
    const uint64_t w_first = wgmma_descriptor(b.s_bytes + tiling.w_at, 16 * kKTile, 128);
    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;

    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        float r_sum[kPositions / 2] = {};   // as wgmma's d: 64 channels x 128 positions
        float r_acc[kPositions / 2] = {};   // wgmma's d: the sums of the last `since` taps
        int since = 0;
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            mbarrier_wait(&b.x_full[stage], stage_parity);
            const uint64_t x_high = wgmma_moved(x_first, stage * 4 * tiling.quad);
            const uint64_t x_low = wgmma_moved(x_high, 2 * tiling.quad);
            for (int first = 0; first < taps; first += tiling.taps) {
                const uint64_t w_high =
                    wgmma_moved(w_first, slot * tiling.taps * (2 * kTapBytes / 16));
                const uint64_t w_low = wgmma_moved(w_high, kTapBytes / 16);
                const int count = min_of(tiling.taps, taps - first);
                // A tap is the same tile of x, read from a shifted start.
                auto product = [&](uint64_t w, uint64_t x, int tap, int accumulate) {
                    const uint64_t w_tap = wgmma_moved(w, tap * (2 * kTapBytes / 16));
                    const uint64_t x_tap = wgmma_moved(x, b.s_tap[first + tap]);
                    wgmma_m64n128k8_tf32(r_acc, w_tap, x_tap, accumulate);
                };
                mbarrier_wait(&b.w_full[slot], slot_parity);
                wgmma_fence();
                // The small products come first, while truncating the small sum loses little.
                if (count == kPeriod) {   // unrolled: without jumps the tensor cores are busier
                    #pragma unroll
                    for (int tap = 0; tap < kPeriod; ++tap) {
                        product(w_low, x_high, tap, tap > 0);
                        product(w_high, x_low, tap, true);
                    }
                    #pragma unroll
                    for (int tap = 0; tap < kPeriod; ++tap) product(w_high, x_high, tap, true);
                } else {
                    #pragma unroll 1
                    for (int tap = 0; tap < count; ++tap) {
                        product(w_low, x_high, tap, since + tap > 0);
                        product(w_high, x_low, tap, true);
                    }
                    #pragma unroll 1
                    for (int tap = 0; tap < count; ++tap) product(w_high, x_high, tap, true);
                }
                wgmma_commit();
                wgmma_wait<0>();
                if (b.lane == 0) mbarrier_arrive(&b.w_empty[slot]);
                if (++slot == tiling.slots) slot = 0, slot_parity ^= 1;
                since += count;
                if (since + tiling.taps <= kPeriod) continue;
                #pragma unroll
                for (int i = 0; i < kPositions / 2; ++i) r_sum[i] += r_acc[i];
                since = 0;
            }
            if (b.lane == 0) mbarrier_arrive(&b.x_empty[stage]);
            if (++stage == tiling.stages) stage = 0, stage_parity ^= 1;
        }
        if (since > 0) {
            #pragma unroll
            for (int i = 0; i < kPositions / 2; ++i) r_sum[i] += r_acc[i];
        }
        const Channels mine = channels_of(tiling, b, nullptr);
        store_phase<kPositions>(conv, places, tiling, b, tile, mine, r_sum, g_dx);
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
}

__global__ void __launch_bounds__(kThreads, 1)
data_gradient_3xtf32(ConvProblem conv, Tiling tiling, Places places,
                     const float* __restrict__ g_x, const float* __restrict__ g_packed,
                     float* __restrict__ g_dx) {
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
    return launch_phases(data_gradient_3xtf32, kStyle, *problem, dy, w, dx, workspace,
                         workspace_bytes, stream);
}
