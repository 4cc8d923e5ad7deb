// title: 16-byte reads of x on Hopper's tensor cores
// idea: A lane reads four neighbouring pixels of four channels with four 16-byte loads. These 16
//       registers are four 16-byte stores in the staged layout, so the transposition itself needs
//       no instruction.
// change: Against 11: a quarter of the load instructions. Tiles begin at multiples of 4 columns of
//       x; a descriptor skips the extra columns on the left. Lanes take 2 rows and 2 quads, so
//       stores have no bank conflict.
// mapping: as 11; a loader warp takes items of 2 rows x 2 quads x 8 groups of 4 columns.
// parent: 11_wgmma_tf32
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, W % 4 == 0, stride_w == 1,
//       64 * (512 * stride_h + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (264 + (S - 1) * dilation_w))
//       + 4 * (R + 1) * (dilation_h + 512) + 4096 + 4 * R * S + 11264 <= smem
// best: tf32 == 1, groups == 1, C >= 32, stride_h == 1, stride_w == 1, R * S >= 9, K >= 64,
//       N * P * Q * K >= 6000000
// limits: As 11, with a shorter wait for x: wgmma reads 80 of the 128 bytes that shared memory
//       delivers in a cycle, and staging x and y takes much of the rest. 12 is faster than 11 with
//       many input channels, as in `wide`; with 16, as in `square`, they take about the same time.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

constexpr Style kStyle = {256, 1, 0, true};
constexpr int kBatch = 6;   // items that a loader warp loads at a time

// A loader warp: copies x into the stages, in batches of items, through registers.
__device__ __forceinline__ void load(const ConvProblem& conv, const Tiling& tiling, const Block& b,
                                     const float* g_x) {
    const int C_group = conv.C / conv.groups;
    const int rows = tiling.plane / tiling.pitch * conv.stride_h;   // of x, in a tile
    float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at);   // [stage][quad][pixel]
    // A lane's part of an item: bit 1 of the lane selects the quad, bit 2 the row, the other bits
    // the column group.
    const int quad = b.lane / 2 % 2, odd_row = b.lane / 4 % 2;
    const int column = 4 * (b.lane % 2 + b.lane / 8 * 2);
    const int across = ceil_div(tiling.pitch - 1, 32);   // a row's last pixel is padding
    const int items = across * ceil_div(rows, 2);
    const int64_t HW = int64_t(conv.H) * conv.W;
    const float* r_from[kBatch];       // an item's first pixel, in the quad's first channel of x
    bool inside[kBatch];               // whether it is inside x
    int r_to[kBatch];                  // its pixel in the staged quad; or -1
    float4 r_x[kBatch][4];             // four pixels of each of the quad's channels
    const int batch = kLoaders * kBatch;   // items of all loaders
    int parity = 0, stage = 0;
    for (int number = b.first_tile; number < tiling.tiles; number += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const int channels = C_group - chunk * kChunk - 4 * quad;
            float4* s_quad = s_x + (2 * stage + quad) * tiling.quad;
            for (int first = 0; first < items; first += batch) {
                // The loads begin before the stage is free. Only one batch at a time: with two,
                // ptxas makes the stores of one batch wait for the loads of the other.
                if (chunk == 0 || items > batch) {   // else only the channels differ
                    const Tile tile = tile_at(tiling, number);
                    const int h0 = tile.p * conv.stride_h - conv.pad_h;   // may be negative
                    const int w0 =                                        // a multiple of 4
                        tile.q * conv.stride_w - conv.pad_w - tiling.left;
                    const int c = b.group * C_group + chunk * kChunk + 4 * quad;
                    const float* x_quad = g_x + (int64_t(tile.n) * conv.C + c) * HW;
                    #pragma unroll
                    for (int i = 0; i < kBatch; ++i) {
                        const int item = first + i * kLoaders + b.warp - 8;
                        const int row = item / across * 2 + odd_row;
                        const int w = item % across * 32 + column;
                        const int where = int(b.s_where[min_of(row, rows - 1)]);
                        const int image = divide(where, tiling.by_image_span);
                        const int h = h0 + where - image * tiling.image_rows * conv.stride_h;
                        r_from[i] = x_quad + int64_t(image) * conv.C * HW +
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
                    for (int c = 0; c < 4; ++c)
                        r_x[i][c] = c < limit ? *reinterpret_cast<const float4*>(
                                                    r_from[i] + c * HW)
                                              : float4{};
                    r_from[i] += kChunk * HW;
                }
                if (first == 0) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    if (r_to[i] < 0) continue;
                    const float4 (&x)[4] = r_x[i];
                    s_quad[r_to[i]] = ready(x[0].x, x[1].x, x[2].x, x[3].x);
                    s_quad[r_to[i] + 1] = ready(x[0].y, x[1].y, x[2].y, x[3].y);
                    s_quad[r_to[i] + 2] = ready(x[0].z, x[1].z, x[2].z, x[3].z);
                    s_quad[r_to[i] + 3] = ready(x[0].w, x[1].w, x[2].w, x[3].w);
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
        }
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

// A consumer warpgroup: multiplies 64 channels x 256 positions of each tile, and stores them to y.
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Tiling& tiling,
                                         const Block& b, const float* g_bias, float* g_y) {
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
        const Channels mine = channels_of(tiling, b, g_bias);
        wgmma_wait<0>();
        release(true);
        store_tile<256>(conv, tiling, b, tile, mine, r_acc, g_y);
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
}

__global__ void __launch_bounds__(kThreads, 1)
conv2d_wgmma(ConvProblem conv, Tiling tiling, const float* __restrict__ g_x,
             const float* __restrict__ g_packed, const float* __restrict__ g_bias,
             float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, s_mem);
    set_up(conv, tiling, b);
    find_rows(conv, tiling, b);
    __syncthreads();
    if (b.warp == 11) {
        load_filter(conv, tiling, b, g_packed);
    } else if (b.warp >= 8) {
        load(conv, tiling, b, g_x);
    } else {
        multiply(conv, tiling, b, g_bias, g_y);
    }
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, kStyle));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0)
        return "x is not 16-byte aligned; pass a copy, x.clone()";
    return launch_wgmma(conv2d_wgmma, kThreads, kStyle, *problem, x, w, bias, y, workspace,
                        workspace_bytes, stream);
}
