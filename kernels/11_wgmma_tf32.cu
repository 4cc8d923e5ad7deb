// title: Taps as moved starts on Hopper's tensor cores
// idea: wgmma reads both operands from shared memory, wherever a descriptor points. With x staged as
//       [channel quad][pixel][4], a filter tap is the same tile at another start: im2col costs one
//       addition. Producer warps transpose NCHW into that layout while consumer warps multiply.
// change: Against 10: operands are never gathered by taps nor read into registers; loading,
//       multiplying and storing overlap, handed on through mbarriers; blocks stay for many tiles.
// mapping: block -> 64 output channels of one group, for every so-manieth tile of pixels; two
//       consumer warpgroups -> 64 channels x 256 positions of the tile each; producer warps ->
//       three stage x, one the filter.
// precision: tf32
// arch: sm_90a
// supports: sm >= 90,
//       68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (256 * stride_w + (S - 1) * dilation_w))
//       + 4096 * S + 4 * R * S + 10496 <= smem
//       or Q < 256 and 68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (Q * stride_w + (S - 1) * dilation_w))
//       + 4096 * S + 4 * R * S + 10496 <= smem
// limits: y leaves in runs of 1 KB. Tiles are of 64 channels and 512 positions, and reads of 8
//       channels, whether a problem has them or not.
#include "convlab.cuh"
#include "tensor.cuh"

#ifndef STAGES
#define STAGES 4   // of staged input, at most
#endif
constexpr int kMaxStages = STAGES;
static_assert(kMaxStages >= 2 && kMaxStages <= 8, "STAGES: 2 to 8");

constexpr int kKTile = 64;          // output channels of a block: wgmma's m
constexpr int kPositions = 256;     // of a consumer: wgmma's n
constexpr int kChunk = 8;           // input channels of a stage: wgmma's k
constexpr int kLoaders = 96;        // threads that stage x
constexpr int kThreads = 384;       // two warpgroups of consumers, one of producers
constexpr int kBatch = 4;           // pixels that a loader has under way at a time, twice
constexpr int kTapBytes = kKTile * kChunk * 4;   // of the filter for one tap and chunk
// A consumer warp's buffer for y: 8 rows of 32 positions, or of 256. Pitches of 8 modulo 32 words
// keep the 8 rows of a store apart.
constexpr int kPitch = 32 + 8, kRowPitch = kPositions + 8;

// x is staged in chunks of 8 channels: two quads of 16-byte pixels. Where the stride is more than
// 1, pixels whose coordinates leave the same remainder lie together, in a plane, so that
// neighbouring outputs again read neighbouring pixels.
struct Tiling {
    int rows, columns;       // of output pixels in a tile
    int tiles_p, tiles_q, tiles;
    int pitch, plane, quad;  // pixels of a plane's row, of a plane, of all planes (and some beyond)
    unsigned by_pitch;       // the reciprocal, in units of 2^-31
    int step;                // pixels from the first consumer's output to the second's
    int chunks;
    int k_tiles, lanes;      // of a group; blocks for each of them
    int stages, slots;       // of x, and of the filter in slices of one chunk and r
    bool resident;           // all slices have a slot: they are loaded once
    bool rows_out;           // y leaves by the copy engine, in whole rows of the tile
    int where_at, x_at, w_at, y_at, bytes;   // in shared memory
};

__device__ __forceinline__ int divide(int a, unsigned reciprocal) {   // a below 2^16
    return int(__umulhi(2 * unsigned(a), reciprocal));
}

struct Tile {   // its first output pixel
    int n, p, q;
};
__device__ __forceinline__ Tile tile_at(const Tiling& tiling, int tile) {
    const int per_image = tiling.tiles_p * tiling.tiles_q, rest = tile % per_image;
    return {tile / per_image, rest / tiling.tiles_q * tiling.rows,
            rest % tiling.tiles_q * tiling.columns};
}

// The filter as wgmma wants it: [group, k tile][chunk][r][s][quad][64 channels][4], rounded.
__global__ void __launch_bounds__(256)
pack_filter(ConvProblem conv, Tiling tiling, const float* __restrict__ g_w,
            float* __restrict__ g_packed, int64_t count) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / (kKTile * kChunk);
        const int s = int(rest % conv.S), r = int(rest / conv.S % conv.R);
        rest /= conv.S * conv.R;
        const int c = int(rest % tiling.chunks) * kChunk + int(i / (kKTile * 4) % 2 * 4 + i % 4);
        rest /= tiling.chunks;
        const int k = int(rest % tiling.k_tiles) * kKTile + int(i / 4 % kKTile);
        const int64_t group = rest / tiling.k_tiles;
        const bool inside = c < C_group && k < K_group;
        const int64_t at = (((group * K_group + k) * C_group + c) * conv.R + r) * conv.S + s;
        g_packed[i] = inside ? round_tf32(g_w[at]) : 0.0f;
    }
}

__global__ void __launch_bounds__(kThreads, 1)
conv2d_wgmma(ConvProblem conv, Tiling tiling, const float* __restrict__ g_x,
             const float* __restrict__ g_packed, const float* __restrict__ g_bias,
             float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    char* s_bytes = reinterpret_cast<char*>(s_mem);
    uint64_t* x_full = reinterpret_cast<uint64_t*>(s_bytes);   // by stage
    uint64_t* x_empty = x_full + tiling.stages;
    uint64_t* w_full = x_empty + tiling.stages;                // by slot
    uint64_t* w_empty = w_full + tiling.slots;
    uint64_t* first_half = w_empty + tiling.slots;
    const int slice_bytes = conv.S * kTapBytes;

    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);   // known to be a warp's
    const int lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int k_tile = blockIdx.x / tiling.lanes;              // of all groups
    const int group = k_tile / tiling.k_tiles;
    const int k0 = k_tile % tiling.k_tiles * kKTile;           // within the group
    const int first_tile = blockIdx.x % tiling.lanes;

    // Where each pixel of the staged tile is in x, from the tile's first: rows down, columns on.
    unsigned* s_where = reinterpret_cast<unsigned*>(s_bytes + tiling.where_at);
    for (int i = threadIdx.x; i < tiling.quad; i += kThreads) {
        const int plane = i / tiling.plane, row = i % tiling.plane / tiling.pitch;
        const int column = i % tiling.plane % tiling.pitch;
        const bool used = plane < conv.stride_h * conv.stride_w;   // else nobody minds the value
        s_where[i] = used ? unsigned(row * conv.stride_h + plane / conv.stride_w) << 16 |
                                unsigned(column * conv.stride_w + plane % conv.stride_w)
                          : 0;
    }
    // A tap (r, s) is the staged tile moved by so many pixels, and into another plane.
    unsigned* s_tap = s_where + tiling.quad;
    for (int i = threadIdx.x; i < conv.R * conv.S; i += kThreads) {
        const int down = i / conv.S * conv.dilation_h, right = i % conv.S * conv.dilation_w;
        const int plane = down % conv.stride_h * conv.stride_w + right % conv.stride_w;
        s_tap[i] = plane * tiling.plane + down / conv.stride_h * tiling.pitch +
                   right / conv.stride_w;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < tiling.stages; ++i) {
            mbarrier_init(&x_full[i], kLoaders / 32);
            mbarrier_init(&x_empty[i], 8);                     // the consumers' warps
        }
        for (int i = 0; i < tiling.slots; ++i) {
            mbarrier_init(&w_full[i], 1);
            mbarrier_init(&w_empty[i], 8);
        }
        mbarrier_init(first_half, 4);
        mbarrier_fence_init();
    }
    __syncthreads();

    if (warp == 11) {   // ---- the filter, slice by slice: [s][quad][64 channels][4]
        if (lane != 0) return;
        const int slices = tiling.chunks * conv.R;
        const char* packed = reinterpret_cast<const char*>(g_packed) +
                             int64_t(k_tile) * slices * slice_bytes;
        int slot = 0, parity = 0;
        for (int tile = first_tile; tile < tiling.tiles; tile += tiling.lanes) {
            for (int slice = 0; slice < slices; ++slice) {
                mbarrier_wait(&w_empty[slot], parity ^ 1);
                mbarrier_arrive_expect(&w_full[slot], slice_bytes);
                bulk_load(s_bytes + tiling.w_at + slot * slice_bytes,
                          packed + int64_t(slice) * slice_bytes, slice_bytes, &w_full[slot]);
                if (++slot == tiling.slots) slot = 0, parity ^= 1;
            }
            if (tiling.resident) return;
        }
        return;
    }

    if (warp >= 8) {   // ---- x: one batch of pixels on its way to registers, one to shared memory
        struct Place {   // in the sequence of batches
            int tile, chunk, first;
        };
        struct Batch {
            float x[kBatch][kChunk];
        };
        const int thread = threadIdx.x - 256;
        const int64_t HW = int64_t(conv.H) * conv.W;
        auto advance = [&](Place& at) {
            at.first += kLoaders * kBatch;
            if (at.first < tiling.quad) return;
            at.first = 0;
            if (++at.chunk < tiling.chunks) return;
            at.chunk = 0;
            at.tile += tiling.lanes;
        };
        int h0 = 0, w0 = 0;                // the tile's first pixel: may be negative
        const float* x_c0 = nullptr;       // the chunk's first channel of its image
        auto load = [&](Batch& batch, const Place& at) {
            if (at.first == 0 && at.chunk == 0) {
                const Tile tile = tile_at(tiling, at.tile);
                h0 = tile.p * conv.stride_h - conv.pad_h;
                w0 = tile.q * conv.stride_w - conv.pad_w;
                x_c0 = g_x + (int64_t(tile.n) * conv.C + group * C_group) * HW;
            } else if (at.first == 0) {
                x_c0 += kChunk * HW;
            }
            const int channels = C_group - at.chunk * kChunk;
            #pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int pixel = at.first + i * kLoaders + thread;
                const unsigned where = s_where[min_of(pixel, tiling.quad - 1)];
                const int h = h0 + int(where >> 16), w = w0 + int(where & 0xffff);
                const bool inside = unsigned(h) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W);
                const float* x_pixel = x_c0 + (int64_t(h) * conv.W + w);
                #pragma unroll
                for (int c = 0; c < kChunk; ++c) {
                    batch.x[i][c] = inside && c < channels ? *x_pixel : 0.0f;
                    x_pixel += HW;
                }
            }
        };
        int stage = 0, parity = 0;
        auto store = [&](const Batch& batch, const Place& at) {
            if (at.first == 0) mbarrier_wait(&x_empty[stage], parity ^ 1);
            float4* s_x = reinterpret_cast<float4*>(s_bytes + tiling.x_at) +
                          stage * 2 * tiling.quad;
            #pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int pixel = at.first + i * kLoaders + thread;
                if (pixel >= tiling.quad) break;
                const float (&x)[kChunk] = batch.x[i];
                s_x[pixel] = make_float4(round_tf32(x[0]), round_tf32(x[1]), round_tf32(x[2]),
                                         round_tf32(x[3]));
                s_x[tiling.quad + pixel] = make_float4(round_tf32(x[4]), round_tf32(x[5]),
                                                       round_tf32(x[6]), round_tf32(x[7]));
            }
            if (at.first + kLoaders * kBatch < tiling.quad) return;
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
        };
        Batch even, odd;
        Place loads{first_tile, 0, 0}, stores = loads;
        load(even, loads);
        advance(loads);
        while (true) {
            if (loads.tile < tiling.tiles) load(odd, loads), advance(loads);
            store(even, stores);
            advance(stores);
            if (stores.tile >= tiling.tiles) return;
            if (loads.tile < tiling.tiles) load(even, loads), advance(loads);
            store(odd, stores);
            advance(stores);
            if (stores.tile >= tiling.tiles) return;
        }
    }

    // ---- products, and y
    const int consumer = warp / 4, g = lane / 4, t = lane % 4;
    const int k_warp = k0 + warp % 4 * 16;                     // its first of 16 output channels
    float* s_y = reinterpret_cast<float*>(s_bytes + tiling.y_at) +
                 warp * 8 * (tiling.rows_out ? kRowPitch : kPitch);
    const uint64_t x_first = wgmma_descriptor(s_bytes + tiling.x_at, 16 * tiling.quad, 128) +
                             unsigned(consumer * tiling.step);
    const uint64_t w_first = wgmma_descriptor(s_bytes + tiling.w_at, 16 * kKTile, 128);
    float r_acc[128] = {};   // wgmma's d: 64 channels x 256 positions
    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;

    // A lag of one chunk: while one consumer stores its tile, the other still multiplies.
    if (consumer == 1 && tiling.resident) mbarrier_wait(first_half, 0);
    for (int tile = first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        int accumulate = 0, last_stage = -1, last_slot = -1;
        auto release = [&](int next_stage) {   // what the last slice's products have read
            if (lane == 0 && last_slot >= 0) {
                if (!tiling.resident) mbarrier_arrive(&w_empty[last_slot]);
                if (last_stage != next_stage) mbarrier_arrive(&x_empty[last_stage]);
            }
        };
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            mbarrier_wait(&x_full[stage], stage_parity);
            const uint64_t x_stage = x_first + unsigned(stage * 2 * tiling.quad);
            for (int r = 0; r < conv.R; ++r) {
                mbarrier_wait(&w_full[slot], slot_parity);
                const uint64_t w_slot = w_first + unsigned(slot * slice_bytes / 16);
                auto tap = [&](int s) {
                    wgmma_m64n256k8_tf32(r_acc, w_slot + unsigned(s * (kTapBytes / 16)),
                                         x_stage + s_tap[r * conv.S + s], accumulate);
                    accumulate = 1;
                };
                // One group of products runs while the next is issued. Groups of three keep the
                // tensor cores busier than single ones.
                #pragma unroll 1
                for (int s = 0; s < conv.S;) {
                    if (s + 3 <= conv.S) {
                        wgmma_fence();
                        tap(s), tap(s + 1), tap(s + 2);
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (s == 0) release(stage);
                        s += 3;
                    } else {
                        wgmma_fence();
                        tap(s);
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (s == 0) release(stage);
                        s += 1;
                    }
                }
                last_stage = stage, last_slot = slot;
                if (++slot == tiling.slots) slot = 0, slot_parity ^= !tiling.resident;
            }
            if (++stage == tiling.stages) stage = 0, stage_parity ^= 1;
            if (consumer == 0 && lane == 0 && chunk == 0 && tile == first_tile)
                mbarrier_arrive(first_half);
        }
        const Tile at = tile_at(tiling, tile);
        const int64_t PQ = int64_t(conv.P) * conv.Q;
        float r_bias[2];
        for (int half = 0; half < 2; ++half) {
            const int k = k_warp + 8 * half + g;
            r_bias[half] = g_bias && k < K_group ? g_bias[group * K_group + k] : 0.0f;
        }
        wgmma_wait<0>();
        release(-1);

        float* y_k = g_y + (int64_t(at.n) * conv.K + group * K_group + k_warp) * PQ;
        const int channels = K_group - k_warp;
        if (tiling.rows_out) {
            // Each consumer has one row of the tile. The copy engine moves its 16-byte multiples;
            // what remains at the two ends, up to 3 floats, is stored by hand.
            const int p = at.p + consumer;
            const int length = p < conv.P ? min_of(tiling.columns, conv.Q - at.q) : 0;
            float* y_row = y_k + int64_t(p) * conv.Q + at.q;
            auto shift_of = [&](int k) {   // of a row in s_y, as in y: floats past a multiple of 16
                return int(reinterpret_cast<uintptr_t>(y_row + k * PQ) / 4 % 4);
            };
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                bulk_wait_read<0>();           // of what this lane had stored from here
                __syncwarp();
                const int shift = shift_of(8 * half + g);
                float* s_row = s_y + g * kRowPitch + shift + 2 * t;
                #pragma unroll
                for (int j = 0; j < kPositions / 8; ++j) {
                    const float2 pair = {r_acc[4 * j + 2 * half] + r_bias[half],
                                         r_acc[4 * j + 2 * half + 1] + r_bias[half]};
                    if (shift % 2 == 0) {
                        *reinterpret_cast<float2*>(s_row + 8 * j) = pair;
                    } else {
                        s_row[8 * j] = pair.x;
                        s_row[8 * j + 1] = pair.y;
                    }
                }
                fence_proxy_async();
                __syncwarp();
                for (int i = lane; i < 8 * 7; i += 32) {   // 8 rows: the engine's part, 6 floats
                    const int k = i % 8, piece = i / 8, row_shift = shift_of(8 * half + k);
                    if (8 * half + k >= channels) continue;
                    const int head = min_of((4 - row_shift) % 4, length);
                    const int body = (length - head) / 4 * 4;
                    const int at_end = piece <= 3 ? piece - 1 : head + body + piece - 4;
                    float* to = y_row + (8 * half + k) * PQ;
                    const float* from = s_y + k * kRowPitch + row_shift;
                    if (piece == 0) {
                        if (body > 0) bulk_store(to + head, from + head, 4 * body);
                    } else if (at_end < (piece <= 3 ? head : length)) {
                        to[at_end] = from[at_end];
                    }
                }
                bulk_commit();
            }
            continue;
        }
        #pragma unroll
        for (int part = 0; part < kPositions / 32; ++part) {
            const int position = consumer * tiling.step + 32 * part + lane;
            const int row = divide(position, tiling.by_pitch);
            const int column = position - row * tiling.pitch;
            const bool inside = row < tiling.rows && at.p + row < conv.P &&
                                column < tiling.columns && at.q + column < conv.Q;
            float* y_pixel = y_k + int64_t(at.p + row) * conv.Q + at.q + column;
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                __syncwarp();                  // all have read what was there
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float* d = &r_acc[4 * (4 * part + j) + 2 * half];
                    *reinterpret_cast<float2*>(s_y + g * kPitch + 8 * j + 2 * t) =
                        make_float2(d[0] + r_bias[half], d[1] + r_bias[half]);
                }
                __syncwarp();
                #pragma unroll 4
                for (int k = 0; k < 8; ++k) {
                    if (inside && 8 * half + k < channels) __stcs(y_pixel, s_y[k * kPitch + lane]);
                    y_pixel += PQ;
                }
            }
        }
    }
    bulk_wait_read<0>();   // the copy engine still reads this block's shared memory
}

static Tiling tiling_for(const ConvProblem& conv, int smem, int multiprocessors) {
    Tiling t = {};
    const int right = (conv.S - 1) * conv.dilation_w / conv.stride_w;   // pixels, in a plane
    const int down = (conv.R - 1) * conv.dilation_h / conv.stride_h;
    const int planes = conv.stride_h * conv.stride_w;
    t.tiles_q = ceil_div(conv.Q, kPositions);
    t.columns = ceil_div(ceil_div(conv.Q, t.tiles_q), 4) * 4;   // tiles begin at multiples of 4
    if (t.tiles_q == 1) t.columns = conv.Q;
    t.pitch = t.columns + right;
    // Rows of the staged tile are end to end, so that a consumer's 256 positions may be several.
    t.rows = min_of(max_of(2, (2 * kPositions - t.columns) / t.pitch + 1), conv.P);
    t.step = t.rows == 2 ? t.pitch : kPositions;
    t.plane = (t.rows + down) * t.pitch;
    t.quad = max_of(planes * t.plane,   // or to where the last wgmma reads
                    (planes - 1) * t.plane + down * t.pitch + right + t.step + kPositions);
    t.by_pitch = unsigned((int64_t(1) << 31) / t.pitch + 1);
    t.tiles_p = ceil_div(conv.P, t.rows);
    t.chunks = ceil_div(conv.C / conv.groups, kChunk);
    t.k_tiles = ceil_div(conv.K / conv.groups, kKTile);
    const int64_t tiles = int64_t(conv.N) * t.tiles_p * t.tiles_q;
    const int64_t k_tiles = int64_t(conv.groups) * t.k_tiles;
    const int64_t slices = int64_t(t.chunks) * conv.R;
    if (tiles > INT32_MAX || k_tiles > INT32_MAX / multiprocessors) return t;
    t.tiles = int(tiles);
    t.lanes = int(min_of(tiles, max_of(int64_t(1), multiprocessors / k_tiles)));

    const int64_t slice_bytes = int64_t(conv.S) * kTapBytes, stage_bytes = 32 * int64_t(t.quad);
    auto fits = [&](int stages, int64_t slots, bool rows_out) {
        const int64_t barriers = ceil_div((2 * stages + 2 * slots + 1) * 8, int64_t(128)) * 128;
        const int64_t y_bytes = 8 * 8 * (rows_out ? kRowPitch : kPitch) * 4;
        const int64_t where_bytes = ceil_div(4 * (t.quad + conv.R * conv.S), 128) * 128;
        const int64_t bytes =
            barriers + where_bytes + stages * stage_bytes + slots * slice_bytes + y_bytes;
        if (bytes > smem) return false;
        t.stages = stages, t.slots = int(slots), t.rows_out = rows_out, t.bytes = int(bytes);
        t.where_at = int(barriers), t.x_at = int(t.where_at + where_bytes);
        t.w_at = int(t.x_at + stages * stage_bytes);
        t.y_at = int(t.w_at + slots * slice_bytes);
        return true;
    };
    t.resident = fits(2, slices, false);
    if (!t.resident && !fits(2, 2, false)) return t;
    if (t.rows == 2) fits(t.stages, t.slots, true);
    while (!t.resident && t.slots < 4 && fits(t.stages, t.slots + 1, t.rows_out)) {}
    while (t.stages < kMaxStages && fits(t.stages + 1, t.slots, t.rows_out)) {}
    return t;
}

static int64_t packed_bytes(const ConvProblem& conv) {
    return int64_t(conv.groups) * ceil_div(conv.K / conv.groups, kKTile) *
           ceil_div(conv.C / conv.groups, kChunk) * conv.R * conv.S * kTapBytes;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    int device = 0, smem = 0, multiprocessors = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    const Tiling tiling = tiling_for(conv, smem, multiprocessors);
    if (tiling.stages == 0) return "11_wgmma_tf32: the tiles are too many, or do not fit";
    const int64_t packed = packed_bytes(conv);
    if (int64_t(workspace_bytes) < packed) return "11_wgmma_tf32: the workspace is too small";
    status = cudaFuncSetAttribute(conv2d_wgmma, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  tiling.bytes);
    if (status != cudaSuccess) return cudaGetErrorString(status);

    float* g_packed = static_cast<float*>(workspace);
    const int64_t count = packed / 4;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_filter<<<pack_blocks, 256, 0, stream>>>(conv, tiling, w, g_packed, count);
    const int grid = conv.groups * tiling.k_tiles * tiling.lanes;
    conv2d_wgmma<<<grid, kThreads, tiling.bytes, stream>>>(conv, tiling, x, g_packed, bias, y);
    return launch_error();
}
