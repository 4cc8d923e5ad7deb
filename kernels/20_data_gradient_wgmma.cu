// title: Data gradient on Hopper's tensor cores, phase by phase
// idea: Elements of dx whose h and w leave the same remainders modulo the stride are reached by the same
//       taps: each such phase is a convolution of dy, with these taps turned by 180 degrees.
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
// best: tf32 == 1,
//       groups == 1 and stride_h == 1 and stride_w == 1 and C >= 16
//             and (R * S >= 9 or H == 1 and S >= 3)
//             and N * C * H * W >= 6000000 and N * P * Q * K * C * R * S >= 20000000000
//       or groups > 1 and C // groups >= 16 and stride_h > 1 and stride_w > 1
//             and N * C * H * W >= 100000000
// limits: A tile always has 64 channels of dx, so groups of fewer channels waste the tensor cores. With
//       a stride, phases are launched one after another, and each stores parts of sectors.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

// A phase of dx along one dimension. Its elements are first + j * stride. Its taps are
// tap + i * tap_step. Element j and tap i meet in dy at base + j - i * step.
struct Phase {
    int first, count;
    int tap, tap_step, taps;
    int base, step;
};
static Phase phase_of(int first, int size, int stride, int pad, int dilation, int filter) {
    Phase phase = {first, (size - 1 - first) / stride + 1, 0, 1, 0, 0, 0};
    for (int r = 0; r < filter; ++r) {
        if ((int64_t(first) + pad - int64_t(r) * dilation) % stride != 0) continue;
        if (phase.taps == 0) phase.tap = r;
        if (phase.taps == 1) phase.tap_step = r - phase.tap;   // the others are as far apart
        ++phase.taps;
    }
    phase.base = int((int64_t(first) + pad - int64_t(phase.tap) * dilation) / stride);
    phase.step = int(int64_t(phase.tap_step) * dilation / stride);
    return phase;
}

// The phase as a convolution of dy: element j reads dy at j - pad + i * dilation for its turned tap i.
static ConvProblem convolution_of(const ConvProblem& conv, const Phase& rows, const Phase& columns) {
    ConvProblem part = {};
    part.N = conv.N;
    part.C = conv.K, part.H = conv.P, part.W = conv.Q;
    part.K = conv.C, part.R = rows.taps, part.S = columns.taps;
    part.P = rows.count, part.Q = columns.count;
    part.stride_h = 1, part.stride_w = 1;
    part.pad_h = (rows.taps - 1) * rows.step - rows.base;   // may be negative
    part.pad_w = (columns.taps - 1) * columns.step - columns.base;
    part.dilation_h = max_of(rows.step, 1), part.dilation_w = max_of(columns.step, 1);
    part.groups = conv.groups;
    return part;
}

// Where the phase's elements lie in dx.
struct Places {
    int64_t first, plane;   // of the first element; numbers of a channel of dx
    int down, right;        // numbers from an element to the next row's, and to the next column's
};

// Packs the taps of a phase into wgmma's operand layout, rounded, turned and with K and C exchanged:
// [group, tile of c][chunk of k][r][s][quad of k][64 c][4 k].
__global__ void __launch_bounds__(256)
pack_phase(ConvProblem conv, ConvProblem part, Tiling tiling, Phase rows, Phase columns,
           const float* __restrict__ g_w, float* __restrict__ g_packed, int64_t count) {
    griddepcontrol_launch_dependents();
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / (2 * kKTile * 4);
        const int i_s = int(rest % part.S), i_r = int(rest / part.S % part.R);
        rest /= part.S * part.R;
        const int k = int(rest % tiling.chunks * 2 + i / (kKTile * 4) % 2) * 4 + int(i % 4);
        rest /= tiling.chunks;
        const int c = int(rest % tiling.k_tiles) * kKTile + int(i / 4 % kKTile);
        const int64_t group = rest / tiling.k_tiles;
        const int r = rows.tap + (part.R - 1 - i_r) * rows.tap_step;         // turned
        const int s = columns.tap + (part.S - 1 - i_s) * columns.tap_step;
        const bool inside = c < C_group && k < K_group;
        const int64_t at = (((group * K_group + k) * C_group + c) * conv.R + r) * conv.S + s;
        g_packed[i] = inside ? round_tf32(g_w[at]) : 0.0f;
    }
}

// Writes zeros to a phase that no tap reaches.
__global__ void __launch_bounds__(256)
clear_phase(ConvProblem part, Places places, float* __restrict__ g_dx) {
    const int64_t count = int64_t(part.N) * part.K * part.P * part.Q;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * 256) {
        const int64_t row = i / part.Q;
        g_dx[places.first + row / part.P * places.plane + row % part.P * places.down +
             i % part.Q * places.right] = 0.0f;
    }
}

// Stores a consumer's sums, laid out as wgmma's d, to the elements of a phase.
__device__ __forceinline__ void store_phase(const ConvProblem& part, const Places& places,
                                            const Tiling& tiling, const Block& b, int tile,
                                            const Channels& mine, const float (&r_sum)[128],
                                            float* g_dx) {
    const int g = b.lane / 4, t = b.lane % 4;
    const Tile at = tile_at(tiling, tile);
    float* s_dx = reinterpret_cast<float*>(b.s_bytes + tiling.y_at) + b.warp * 8 * kPitch;
    #pragma unroll
    for (int run = 0; run < 8; ++run) {   // of 32 positions
        const int position = b.warp / 4 * tiling.step + 32 * run + b.lane;
        const int row = divide(position, tiling.by_pitch);
        const int column = position - row * tiling.pitch;
        const int image = divide(row, tiling.by_image_rows);
        const int i = at.p + row - image * tiling.image_rows, j = at.q + column;
        const bool inside = row < tiling.rows && i < part.P && at.n + image < part.N &&
                            column < tiling.columns && j < part.Q;
        float* dx_c = g_dx + places.first + int64_t(i) * places.down + int64_t(j) * places.right +
                      (int64_t(at.n + image) * part.K + mine.first) * places.plane;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            __syncwarp();   // all have read the previous run
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float* d = &r_sum[4 * (4 * run + k) + 2 * half];
                *reinterpret_cast<float2*>(s_dx + g * kPitch + 8 * k + 2 * t) =
                    make_float2(d[0], d[1]);
            }
            __syncwarp();
            #pragma unroll 4
            for (int c = 0; c < 8; ++c) {
                if (inside && 8 * half + c < mine.count) *dx_c = s_dx[c * kPitch + b.lane];
                dx_c += places.plane;
            }
        }
    }
}

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
        if (places.plane == int64_t(conv.P) * conv.Q) {   // the phase is all of dx
            store_tile<256>(conv, tiling, b, tile, mine, r_acc, g_dx);
        } else {
            store_phase(conv, places, tiling, b, tile, mine, r_acc, g_dx);
        }
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
    const ConvProblem& conv = *problem;
    int64_t most = 0;   // phases follow one another, so they use the same workspace
    for (int h = 0; h < min_of(conv.stride_h, conv.H); ++h)
        for (int w = 0; w < min_of(conv.stride_w, conv.W); ++w) {
            const Phase rows =
                phase_of(h, conv.H, conv.stride_h, conv.pad_h, conv.dilation_h, conv.R);
            const Phase columns =
                phase_of(w, conv.W, conv.stride_w, conv.pad_w, conv.dilation_w, conv.S);
            most = max_of(most, packed_bytes(convolution_of(conv, rows, columns), kStyle));
        }
    return size_t(most);
}

static const char* launch_phase(const ConvProblem& conv, const Phase& rows, const Phase& columns,
                                const ThisDevice& device, const float* dy, const float* w,
                                float* dx, float* g_packed, cudaStream_t stream) {
    const ConvProblem part = convolution_of(conv, rows, columns);
    const Places places = {int64_t(rows.first) * conv.W + columns.first,
                           int64_t(conv.H) * conv.W, conv.stride_h * conv.W, conv.stride_w};
    if (rows.taps * columns.taps == 0) {
        const int64_t count = int64_t(part.N) * part.K * part.P * part.Q;
        const int clear_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
        clear_phase<<<clear_blocks, 256, 0, stream>>>(part, places, dx);
        return launch_error();
    }
    const Tiling tiling = tiling_for(part, device.smem, device.sms, kStyle);
    if (tiling.stages == 0) return "the tiles are more than 2^31, or do not fit into shared memory";
    if (const char* error = ask_for_shared_memory(data_gradient_wgmma, tiling.bytes)) return error;
    const int64_t count = packed_bytes(part, kStyle) / 4;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_phase<<<pack_blocks, 256, 0, stream>>>(conv, part, tiling, rows, columns, w, g_packed,
                                                count);
    const int grid = part.groups * tiling.k_tiles * tiling.lanes;
    launch_dependent(data_gradient_wgmma, grid, kThreads, tiling.bytes, stream, part, tiling, places,
                     dy, g_packed, dx);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    if (workspace_bytes < conv2d_workspace(problem, 0))
        return "the workspace is too small for the filter";
    for (int h = 0; h < min_of(conv.stride_h, conv.H); ++h)
        for (int w_first = 0; w_first < min_of(conv.stride_w, conv.W); ++w_first) {
            const Phase rows =
                phase_of(h, conv.H, conv.stride_h, conv.pad_h, conv.dilation_h, conv.R);
            const Phase columns =
                phase_of(w_first, conv.W, conv.stride_w, conv.pad_w, conv.dilation_w, conv.S);
            const char* error = launch_phase(conv, rows, columns, device, dy, w, dx,
                                             static_cast<float*>(workspace), stream);
            if (error) return error;
        }
    return launch_error();
}
