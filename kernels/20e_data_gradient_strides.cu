// title: All phases of the data gradient in one launch
// idea: Neighbours in a row of dx belong to different phases, but read the same dy. So a block keeps the
//       sums of all phases of a row: dy is staged once for them, and whole rows are stored.
// change: Against 20: the rows of dx with the same remainder are a block's item, and items are one launch.
//       Sums of `stride_w` phases share the registers, so a tile has fewer positions.
// mapping: block -> 64 channels of dx of one group, every n-th item: a tile of positions, and the rows of
//       dx with one remainder; two consumer warpgroups -> 64 channels x 256, 128, 64 or 48 positions in each
//       of the row's phases.
// computes: data gradient
// parent: 20_data_gradient_wgmma
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, stride_h <= 8, stride_w <= 5,
//       68 * (2 * (256 // stride_w) + 2 * (((S - 1) * dilation_w + stride_w - 1) // stride_w)
//             + ((R - 1) * dilation_h + stride_h - 1) // stride_h
//             * (256 // stride_w + ((S - 1) * dilation_w + stride_w - 1) // stride_w))
//       + 4 * R * S + 4096 * stride_w + 7168 <= smem
// best: tf32 == 1, groups == 1, stride_h > 1 or stride_w > 1, C >= 32, N * C * H * W >= 100000000
// limits: As 20: a tile always has 64 channels of dx. With few taps to a phase, consumers wait for dy, or
//       memory takes longest to store dx.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_n.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"

constexpr int kMaxStride = 8;
constexpr int kTaps = 3;   // of a slot of the filter, at most: one group of products
constexpr int kRun = 16;   // positions that a warp stores at a time
// The positions of a consumer: 128 registers hold the sums of all phases of a row.
__host__ __device__ constexpr int positions_of(int phases) {
    return phases == 1 ? 256 : phases == 2 ? 128 : phases <= 4 ? 64 : 48;
}
// A warp's buffer for dx has 8 rows, each of a run of all phases. No bank conflicts with one or two.
__host__ __device__ constexpr int pitch_of(int phases) { return kRun * phases + 8; }

// Element (h, w) of dx meets tap (r, s) in dy at ((h + pad_h - r * dilation_h) / stride_h, ...), if that
// is an integer. So rows with the same remainder of h, a phase, have the same taps. The filter is sorted
// by them: [phase of rows][phase of columns][r][s].
struct Phases {
    int rows, row_taps[kMaxStride], row_before[kMaxStride];   // taps of a phase, and of those before it
    int column_taps[kMaxStride], column_before[kMaxStride];
};

// Where a row of the filter, or a column, has its place: its phase, its number there, and where it meets
// the phase's first element.
struct Place {
    int phase, number, at;
};
__host__ __device__ inline Place place_of(int tap, int stride, int pad, int dilation) {
    Place place = {};
    const int64_t from = int64_t(tap) * dilation - pad;
    place.phase = int((from % stride + stride) % stride);
    place.at = int((place.phase - from) / stride);
    for (int i = 0; i < tap; ++i)
        place.number += (int64_t(tap - i) * dilation) % stride == 0;
    return place;
}
__device__ __forceinline__ int sorted(const Phases& phases, int S, const Place& row,
                                      const Place& column) {
    return S * phases.row_before[row.phase] +
           phases.row_taps[row.phase] * phases.column_before[column.phase] +
           row.number * phases.column_taps[column.phase] + column.number;
}

// Packs the filter into wgmma's operand layout, rounded, sorted and with K and C exchanged:
// [group, tile of c][chunk of k][sorted tap][quad of k][64 c][4 k].
__global__ void __launch_bounds__(256)
pack_phases(ConvProblem conv, Tiling tiling, Phases phases, const float* __restrict__ g_w,
            float* __restrict__ g_packed, int64_t count) {
    griddepcontrol_launch_dependents();
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int taps = conv.R * conv.S;
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        const int64_t slice = i / (2 * kKTile * 4) / taps;   // of all taps of a chunk
        const int tap = int(i / (2 * kKTile * 4) % taps);
        const Place row = place_of(tap / conv.S, conv.stride_h, conv.pad_h, conv.dilation_h);
        const Place column = place_of(tap % conv.S, conv.stride_w, conv.pad_w, conv.dilation_w);
        if (row.phase >= conv.H || column.phase >= conv.W) continue;   // dx has no such elements
        const int k = int(slice % tiling.chunks * 2 + i / (kKTile * 4) % 2) * 4 + int(i % 4);
        const int64_t c_tile = slice / tiling.chunks;
        const int c = int(c_tile % tiling.k_tiles) * kKTile + int(i / 4 % kKTile);
        const int64_t group = c_tile / tiling.k_tiles;
        const bool inside = c < C_group && k < K_group;
        const int64_t from = ((group * K_group + k) * C_group + c) * taps + tap;
        const int64_t to = (slice * taps + sorted(phases, conv.S, row, column)) * (2 * kKTile * 4);
        g_packed[to + i % (2 * kKTile * 4)] = inside ? round_tf32(g_w[from]) : 0.0f;
    }
}

// What a block computes: a tile of all phases, and which rows of dx. `turn` changes the order from tile
// to tile, so that a block does not always have the rows with most taps.
struct Item {
    int tile, phase;
};
__device__ __forceinline__ Item item_at(const Tiling& tiling, const Phases& phases, int number) {
    Item item;
    item.tile = number / phases.rows;
    const int turn = item.tile / ceil_div(tiling.lanes, phases.rows);
    item.phase = (number + turn) % phases.rows;
    return item;
}

// Stores a consumer's sums, [phase] laid out as wgmma's d, to the rows of dx of one phase.
template <int phases>
__device__ __forceinline__ void store_rows(
    const ConvProblem& conv, const ConvProblem& part, const Tiling& tiling, const Block& b,
    const Item& item, const float (&r_sum)[phases][positions_of(phases) / 2], float* g_dx) {
    constexpr int kRow = kRun * phases, kPitch = pitch_of(phases);   // numbers of a buffer's row
    // Where a number of the buffer goes is the same for all channels, if a row has a multiple of 32.
    constexpr int kUnrolled = kRow % 32 == 0 ? 8 : 2;
    const int g = b.lane / 4, t = b.lane % 4;
    const int first = b.s_k[0] + b.warp % 4 * 16, count = b.s_k[1] - b.warp % 4 * 16;   // channels
    const int64_t HW = int64_t(conv.H) * conv.W;
    const Tile at = tile_at(tiling, item.tile);
    float* s_dx = reinterpret_cast<float*>(b.s_bytes + tiling.y_at) + b.warp * 8 * kPitch;
    float* dx_first = g_dx + (int64_t(at.n) * conv.C + first) * HW;
    #pragma unroll
    for (int run = 0; run < positions_of(phases) / kRun; ++run) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            __syncwarp();   // all have read the previous part
            #pragma unroll
            for (int j = 0; j < kRun / 8; ++j) {
                // This lane's two positions, with all phases: neighbours in dx.
                const int d = 4 * (kRun / 8 * run + j) + 2 * half;
                float* s_to = s_dx + g * kPitch + (8 * j + 2 * t) * phases;
                #pragma unroll
                for (int i = 0; i < 2 * phases; i += 2)
                    *reinterpret_cast<float2*>(s_to + i) =
                        make_float2(r_sum[i % phases][d + i / phases],
                                    r_sum[(i + 1) % phases][d + (i + 1) / phases]);
            }
            __syncwarp();
            #pragma unroll kUnrolled
            for (int i = 0; i < 8 * kRow / 32; ++i) {
                const int number = 32 * i + b.lane;   // in the buffer
                const int c = number / kRow, along = number % kRow;
                const int position = b.warp / 4 * tiling.step + kRun * run + along / phases;
                const int row = divide(position, tiling.by_pitch);
                const int column = position - row * tiling.pitch;
                const int image = divide(row, tiling.by_image_rows);
                const int p = at.p + row - image * tiling.image_rows;   // of the phase's elements
                const int h = p * conv.stride_h + item.phase;
                const int w = (at.q + column) * phases + along % phases;
                const bool inside = row < tiling.rows && p < part.P && h < conv.H &&
                                    column < tiling.columns && w < conv.W && at.n + image < conv.N;
                if (inside && 8 * half + c < count)
                    dx_first[(int64_t(image) * conv.C + 8 * half + c) * HW + int64_t(h) * conv.W + w] =
                        s_dx[c * kPitch + along];
            }
        }
    }
}

// In the following, `part` is the convolution that stages dy: its x is dy, and its y is a phase.
//
// A loader warp: copies dy into the stages, in batches of pixels, through registers.
template <int phases>
__device__ __forceinline__ void load(const ConvProblem& part, const Tiling& tiling,
                                     const Phases& all, const Block& b, const float* g_dy) {
    // Pixels that a lane of a loader loads at a time.
    constexpr int kBatch = phases == 1 ? 11 : phases == 2 ? 6 : 4;
    const int K_group = part.C / part.groups, quad = tiling.quad;
    const int64_t PQ = int64_t(part.H) * part.W;
    float r_dy[kBatch][kChunk];
    int stage = 0, parity = 0;
    for (int number = b.first_tile; number < tiling.tiles * all.rows; number += tiling.lanes) {
        const Item item = item_at(tiling, all, number);
        if (all.row_taps[item.phase] == 0) continue;
        const Tile tile = tile_at(tiling, item.tile);
        const float* dy_k0 = g_dy + (int64_t(tile.n) * part.C + b.group * K_group) * PQ;
        for (int k0 = 0; k0 < K_group; k0 += kChunk) {
            float4* s_dy = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at) + stage * 2 * quad;
            #pragma unroll 1
            for (int first = threadIdx.x - 256; first < quad; first += 32 * kLoaders * kBatch) {
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const Pixel pixel = pixel_at(part, tiling, b, tile, first + i * 32 * kLoaders);
                    const float* dy = dy_k0 + pixel.at;
                    #pragma unroll
                    for (int k = 0; k < kChunk; ++k) {
                        r_dy[i][k] = pixel.inside && k0 + k < K_group ? *dy : 0.0f;
                        dy += PQ;
                    }
                }
                if (first < 32 * kLoaders) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int pixel = first + i * 32 * kLoaders;
                    if (pixel >= quad) break;
                    const float (&dy)[kChunk] = r_dy[i];
                    s_dy[pixel] = ready(dy[0], dy[1], dy[2], dy[3]);
                    s_dy[quad + pixel] = ready(dy[4], dy[5], dy[6], dy[7]);
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
            dy_k0 += kChunk * PQ;
        }
    }
}

// The filter's warp: the copy engine copies the taps of a phase of rows into the slots. A slot has up to
// tiling.taps taps of one phase of columns: [tap][quad][64 channels][4].
template <int phases>
__device__ __forceinline__ void load_filter(const ConvProblem& part, const Tiling& tiling,
                                            const Phases& all, const Block& b,
                                            const float* g_packed) {
    if (b.lane != 0) return;
    griddepcontrol_wait();   // until the kernel that packs the filter has finished
    const int64_t chunk_bytes = int64_t(part.R) * part.S * kTapBytes;
    const char* packed =
        reinterpret_cast<const char*>(g_packed) + b.k_tile * tiling.chunks * chunk_bytes;
    int slot = 0, parity = 0;
    for (int number = b.first_tile; number < tiling.tiles * all.rows; number += tiling.lanes) {
        const Item item = item_at(tiling, all, number);
        const int row_taps = all.row_taps[item.phase];
        if (row_taps == 0) continue;
        const char* chunk_from = packed + int64_t(all.row_before[item.phase]) * part.S * kTapBytes;
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const char* from = chunk_from + chunk * chunk_bytes;
            for (int phase = 0; phase < phases; ++phase) {
                const int taps = row_taps * all.column_taps[phase];
                for (int first = 0; first < taps; first += tiling.taps) {
                    const int bytes = min_of(tiling.taps, taps - first) * kTapBytes;
                    mbarrier_wait(&b.w_empty[slot], parity ^ 1);
                    mbarrier_arrive_expect(&b.w_full[slot], bytes);
                    bulk_load(b.s_bytes + tiling.w_at + 16 * tiling.slot_at(slot, 0), from, bytes,
                              &b.w_full[slot]);
                    from += bytes;
                    if (++slot == tiling.slots) slot = 0, parity ^= 1;
                }
            }
        }
    }
}

// A consumer warpgroup: multiplies 64 channels x its positions of each item, in all phases of columns.
template <int phases>
__device__ __forceinline__ void multiply(const ConvProblem& conv, const ConvProblem& part,
                                         const Tiling& tiling, const Phases& all, const Block& b,
                                         float* g_dx) {
    const int consumer = b.warp / 4;
    const uint64_t dy_first = wgmma_moved(
        wgmma_descriptor(b.s_bytes + tiling.x_at, 16 * tiling.quad, 128), consumer * tiling.step);
    const uint64_t w_first = wgmma_descriptor(b.s_bytes + tiling.w_at, 16 * kKTile, 128);
    float r_acc[phases][positions_of(phases) / 2];   // wgmma's d of each phase: 64 channels x positions
    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;
    // Called when the previous group of products is computed: frees its slot, and if it was the chunk's
    // last group, also the chunk's stage of dy.
    auto release = [&](bool whole_chunk) {
        if (b.lane != 0) return;
        mbarrier_arrive(&b.w_empty[(slot == 0 ? tiling.slots : slot) - 1]);
        if (whole_chunk) mbarrier_arrive(&b.x_empty[(stage == 0 ? tiling.stages : stage) - 1]);
    };

    for (int number = b.first_tile; number < tiling.tiles * all.rows; number += tiling.lanes) {
        const Item item = item_at(tiling, all, number);
        const int row_taps = all.row_taps[item.phase];
        #pragma unroll
        for (int phase = 0; phase < phases; ++phase)
            #pragma unroll
            for (int i = 0; i < positions_of(phases) / 2; ++i) r_acc[phase][i] = 0.0f;
        // Rows that no tap reaches have no products: they are zeros.
        const int chunks = row_taps == 0 ? 0 : tiling.chunks;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            mbarrier_wait(&b.x_full[stage], stage_parity);
            const uint64_t dy_stage = wgmma_moved(dy_first, stage * 2 * tiling.quad);
            const unsigned* s_tap = b.s_tap + all.row_before[item.phase] * part.S;
            bool begins = true;   // no group of this chunk has been issued
            #pragma unroll
            for (int phase = 0; phase < phases; ++phase) {
                const int taps = row_taps * all.column_taps[phase];
                #pragma unroll 1
                for (int first = 0; first < taps; first += tiling.taps) {
                    mbarrier_wait(&b.w_full[slot], slot_parity);
                    const uint64_t w_slot = wgmma_moved(w_first, tiling.slot_at(slot, 0));
                    const int count = min_of(tiling.taps, taps - first);
                    // A tap is the same tile of dy, read from a shifted start. One group of products
                    // runs while the next is issued.
                    auto product = [&](int tap) {
                        wgmma_n(r_acc[phase], wgmma_moved(w_slot, tap * (kTapBytes / 16)),
                                wgmma_moved(dy_stage, s_tap[tap]), true);
                    };
                    auto issued = [&](bool first_of_slot) {
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (!first_of_slot) return;
                        if (chunk > 0 || !begins) release(begins);
                        begins = false;
                    };
                    if (count == kTaps) {
                        wgmma_fence();
                        #pragma unroll
                        for (int tap = 0; tap < kTaps; ++tap) product(tap);
                        issued(true);
                    } else {
                        #pragma unroll 1
                        for (int tap = 0; tap < count; ++tap) {
                            wgmma_fence();
                            product(tap);
                            issued(tap == 0);
                        }
                    }
                    s_tap += count;
                    if (++slot == tiling.slots) slot = 0, slot_parity ^= 1;
                }
            }
            if (++stage == tiling.stages) stage = 0, stage_parity ^= 1;
        }
        wgmma_wait<0>();
        if (chunks > 0) release(true);
        store_rows<phases>(conv, part, tiling, b, item, r_acc, g_dx);
    }
}

template <int phases>
__global__ void __launch_bounds__(kThreads, 1)
data_gradient_strides(ConvProblem conv, ConvProblem part, Tiling tiling, Phases all,
                      const float* __restrict__ g_dy, const float* __restrict__ g_packed,
                      float* __restrict__ g_dx) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(part, tiling, s_mem);
    set_up(part, tiling, b);
    find_pixels(part, tiling, b);
    __syncthreads();
    // The shift of each tap in the stage, in the sorted order, in place of what set_up wrote.
    for (int i = threadIdx.x; i < conv.R * conv.S; i += kThreads) {
        const Place row = place_of(i / conv.S, conv.stride_h, conv.pad_h, conv.dilation_h);
        const Place column = place_of(i % conv.S, conv.stride_w, conv.pad_w, conv.dilation_w);
        if (row.phase >= conv.H || column.phase >= conv.W) continue;
        b.s_tap[sorted(all, conv.S, row, column)] =
            (row.at + part.pad_h) * tiling.pitch + column.at + part.pad_w;
    }
    __syncthreads();
    if (b.warp == 11) {
        load_filter<phases>(part, tiling, all, b, g_packed);
    } else if (b.warp >= 8) {
        load<phases>(part, tiling, all, b, g_dy);
    } else {
        multiply<phases>(conv, part, tiling, all, b, g_dx);
    }
}

// Where the taps of one dimension meet the first elements of the phases: at `least` and up to `span` more.
struct Reach {
    int least, span;
};
static Reach reach_of(int filter, int stride, int pad, int dilation, int size) {
    int least = INT32_MAX, most = INT32_MIN;
    for (int r = 0; r < filter; ++r) {
        const Place place = place_of(r, stride, pad, dilation);
        if (place.phase >= size) continue;   // dx has no such row
        least = min_of(least, place.at);
        most = max_of(most, place.at);
    }
    if (most < least) return {0, 0};
    return {least, most - least};
}

// Counts the taps of each phase that dx has, and those of the phases before it.
static void count_taps(int filter, int stride, int pad, int dilation, int size, int* taps,
                       int* before) {
    for (int r = 0; r < filter; ++r) {
        const int phase = place_of(r, stride, pad, dilation).phase;
        if (phase < size) ++taps[phase];
    }
    for (int i = 1; i < stride; ++i) before[i] = before[i - 1] + taps[i - 1];
}

// Cuts the elements of a phase into tiles; `stages` is 0 if they do not fit. `part` becomes the
// convolution that stages dy.
static Tiling tiling_of(const ConvProblem& conv, const ThisDevice& device, ConvProblem& part) {
    const Reach rows = reach_of(conv.R, conv.stride_h, conv.pad_h, conv.dilation_h, conv.H);
    const Reach columns = reach_of(conv.S, conv.stride_w, conv.pad_w, conv.dilation_w, conv.W);
    part.N = conv.N;
    part.C = conv.K, part.H = conv.P, part.W = conv.Q;
    part.K = conv.C, part.R = rows.span + 1, part.S = columns.span + 1;
    part.P = ceil_div(conv.H, conv.stride_h), part.Q = ceil_div(conv.W, conv.stride_w);
    part.stride_h = 1, part.stride_w = 1;
    part.pad_h = -rows.least, part.pad_w = -columns.least;   // may be negative
    part.dilation_h = 1, part.dilation_w = 1;
    part.groups = conv.groups;
    const int phases = conv.stride_w;
    Tiling t = {};
    if (!cut(t, part, device.sms, {positions_of(phases), 1, kTaps, false})) return t;
    if (int64_t(t.tiles) * conv.stride_h > INT32_MAX) return t;
    part.R = conv.R, part.S = conv.S;   // of the table of taps, and of the packed filter
    const int64_t table_bytes = ceil_div(4 * (int64_t(conv.R) * conv.S + t.quad + 2), int64_t(128)) * 128;
    const int64_t dx_bytes = 8 * 8 * pitch_of(phases) * 4;
    auto fits = [&](int stages, int slots) {
        const int64_t barriers = ceil_div((2 * stages + 2 * slots) * 8, 128) * 128;
        const int64_t bytes = barriers + table_bytes + stages * 32 * int64_t(t.quad) +
                              int64_t(slots) * t.taps * kTapBytes + dx_bytes;
        if (bytes > device.smem) return false;
        t.stages = stages, t.slots = slots, t.bytes = int(bytes);
        t.table_at = int(barriers), t.x_at = int(t.table_at + table_bytes);
        t.w_at = t.x_at + stages * 32 * t.quad;
        t.y_at = t.w_at + slots * t.taps * kTapBytes;
        return true;
    };
    t.taps = min_of(kTaps, conv.R * conv.S);
    while (!fits(2, 2)) {
        if (t.taps == 1) return t;
        t.taps = 1;
    }
    while (t.slots < 6 && fits(t.stages, t.slots + 1)) {}
    while (t.stages < 6 && fits(t.stages + 1, t.slots)) {}
    return t;
}

static int64_t filter_bytes(const ConvProblem& conv) {
    return int64_t(conv.groups) * ceil_div(conv.C / conv.groups, kKTile) *
           ceil_div(conv.K / conv.groups, kChunk) * conv.R * conv.S * kTapBytes;
}
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(filter_bytes(*problem));
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t packed = filter_bytes(conv);
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    ConvProblem part = {};
    const Tiling tiling = tiling_of(conv, device, part);
    if (tiling.stages == 0) return "the tiles are more than 2^31, or do not fit into shared memory";
    Phases all = {};
    all.rows = min_of(conv.stride_h, conv.H);
    count_taps(conv.R, conv.stride_h, conv.pad_h, conv.dilation_h, conv.H, all.row_taps,
               all.row_before);
    count_taps(conv.S, conv.stride_w, conv.pad_w, conv.dilation_w, conv.W, all.column_taps,
               all.column_before);
    float* g_packed = static_cast<float*>(workspace);
    const int64_t count = packed / 4;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_phases<<<pack_blocks, 256, 0, stream>>>(conv, tiling, all, w, g_packed, count);
    const int grid = part.groups * tiling.k_tiles * tiling.lanes;
    auto launch = [&](auto kernel) -> const char* {
        if (const char* error = ask_for_shared_memory(kernel, tiling.bytes)) return error;
        launch_dependent(kernel, grid, kThreads, tiling.bytes, stream, conv, part, tiling, all, dy,
                         g_packed, dx);
        return launch_error();
    };
    switch (conv.stride_w) {
        case 1: return launch(data_gradient_strides<1>);
        case 2: return launch(data_gradient_strides<2>);
        case 3: return launch(data_gradient_strides<3>);
        case 4: return launch(data_gradient_strides<4>);
        default: return launch(data_gradient_strides<5>);
    }
}
