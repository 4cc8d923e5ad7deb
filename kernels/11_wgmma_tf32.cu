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
#include "wgmma_tile.cuh"

constexpr int kLoaders = 3;     // warps that stage x
constexpr int kThreads = 384;   // two warpgroups of consumers, one of producers
constexpr int kBatch = 11;      // pixels that a loader has under way at a time

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
    uint64_t* started = w_empty + tiling.slots;
    const int slice_bytes = conv.S * kTapBytes;

    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);   // known to be a warp's
    const int lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups;
    const int k_tile = blockIdx.x / tiling.lanes;              // of all groups
    const int group = k_tile / tiling.k_tiles;
    const int first_tile = blockIdx.x % tiling.lanes;

    // Where each tap is in the staged tile; and where each of its pixels is in x, from the tile's
    // first: rows down, columns on.
    unsigned* s_tap = reinterpret_cast<unsigned*>(s_bytes + tiling.table_at);
    unsigned* s_where = s_tap + conv.R * conv.S;
    int* s_k = reinterpret_cast<int*>(s_bytes + tiling.x_at) - 2;   // the block's first output
    if (threadIdx.x == 0) {                                         // channel; and how many
        const int K_group = conv.K / conv.groups, k0 = k_tile % tiling.k_tiles * kKTile;
        s_k[0] = group * K_group + k0;
        s_k[1] = K_group - k0;
    }
    for (int i = threadIdx.x; i < conv.R * conv.S; i += kThreads)
        s_tap[i] = tap_at(conv, tiling, i / conv.S, i % conv.S);
    for (int i = threadIdx.x; i < tiling.quad; i += kThreads) {
        const int plane = i / tiling.plane, row = i % tiling.plane / tiling.pitch;
        const int column = i % tiling.plane % tiling.pitch;
        const bool used = plane < conv.stride_h * conv.stride_w;   // else nobody minds the value
        s_where[i] = used ? unsigned(row * conv.stride_h + plane / conv.stride_w) << 16 |
                                unsigned(column * conv.stride_w + plane % conv.stride_w)
                          : 0;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < tiling.stages; ++i) {
            mbarrier_init(&x_full[i], kLoaders);
            mbarrier_init(&x_empty[i], 8);                     // the consumers' warps
        }
        for (int i = 0; i < tiling.slots; ++i) {
            mbarrier_init(&w_full[i], 1);
            mbarrier_init(&w_empty[i], 8);
        }
        mbarrier_init(started, 4);
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

    if (warp >= 8) {   // ---- x: in batches of pixels, through registers
        struct Place {   // in the sequence of batches
            int tile, chunk, first;
        };
        struct Batch {
            float x[kBatch][kChunk];
        };
        const int thread = threadIdx.x - 256;
        const int64_t HW = int64_t(conv.H) * conv.W;
        auto advance = [&](Place& at) {
            at.first += 32 * kLoaders * kBatch;
            if (at.first < tiling.quad) return;
            at.first = 0;
            if (++at.chunk < tiling.chunks) return;
            at.chunk = 0;
            at.tile += tiling.lanes;
        };
        Tile tile = {};
        const float* x_c0 = nullptr;       // the chunk's first channel of the tile's first image
        auto load = [&](Batch& batch, const Place& at) {
            if (at.first == 0 && at.chunk == 0) {
                tile = tile_at(tiling, at.tile);
                x_c0 = g_x + (int64_t(tile.n) * conv.C + group * C_group) * HW;
            } else if (at.first == 0) {
                x_c0 += kChunk * HW;
            }
            const int h0 = tile.p * conv.stride_h - conv.pad_h;   // may be negative
            const int w0 = tile.q * conv.stride_w - conv.pad_w;
            const int channels = C_group - at.chunk * kChunk;
            #pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int pixel = at.first + i * 32 * kLoaders + thread;
                const unsigned where = s_where[min_of(pixel, tiling.quad - 1)];
                const int image = divide(int(where >> 16), tiling.by_image_span);
                const int h = h0 + int(where >> 16) - image * tiling.image_rows * conv.stride_h;
                const int w = w0 + int(where & 0xffff);
                const bool inside = unsigned(h) < unsigned(conv.H) &&
                                    unsigned(w) < unsigned(conv.W) && tile.n + image < conv.N;
                const float* x_pixel =
                    x_c0 + int64_t(image) * conv.C * HW + (int64_t(h) * conv.W + w);
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
                const int pixel = at.first + i * 32 * kLoaders + thread;
                if (pixel >= tiling.quad) break;
                const float (&x)[kChunk] = batch.x[i];
                s_x[pixel] = make_float4(round_tf32(x[0]), round_tf32(x[1]), round_tf32(x[2]),
                                         round_tf32(x[3]));
                s_x[tiling.quad + pixel] = make_float4(round_tf32(x[4]), round_tf32(x[5]),
                                                       round_tf32(x[6]), round_tf32(x[7]));
            }
            if (at.first + 32 * kLoaders * kBatch < tiling.quad) return;
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
        };
        // One batch at a time: with two, ptxas has stores of one wait for loads of the other too.
        // Its loads are under way while the stage that it is for is still in use.
        Batch batch;
        for (Place at{first_tile, 0, 0}; at.tile < tiling.tiles; advance(at)) {
            load(batch, at);
            store(batch, at);
        }
        return;
    }

    // ---- products, and y
    const int consumer = warp / 4, g = lane / 4, t = lane % 4;
    float* s_y = reinterpret_cast<float*>(s_bytes + tiling.y_at) +
                 warp * 8 * (tiling.rows_out ? kRowPitch : kPitch);
    const uint64_t x_first = wgmma_moved(
        wgmma_descriptor(s_bytes + tiling.x_at, 16 * tiling.quad, 128), consumer * tiling.step);
    const uint64_t w_first = wgmma_descriptor(s_bytes + tiling.w_at, 16 * kKTile, 128);
    float r_acc[128] = {};   // wgmma's d: 64 channels x 256 positions
    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;

    // A lag: while one consumer stores its tile, the other still multiplies.
    if (consumer == 1) mbarrier_wait(started, 0);
    auto before = [](int place, int places) { return (place == 0 ? places : place) - 1; };
    auto release = [&](bool whole_chunk) {   // the slice before this one has been read
        if (lane != 0) return;
        if (!tiling.resident) mbarrier_arrive(&w_empty[before(slot, tiling.slots)]);
        if (whole_chunk) mbarrier_arrive(&x_empty[before(stage, tiling.stages)]);
    };
    for (int tile = first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            mbarrier_wait(&x_full[stage], stage_parity);
            const uint64_t x_stage = wgmma_moved(x_first, stage * 2 * tiling.quad);
            for (int r = 0; r < conv.R; ++r) {
                mbarrier_wait(&w_full[slot], slot_parity);
                const uint64_t w_slot = wgmma_moved(w_first, slot * slice_bytes / 16);
                auto tap = [&](int s) {
                    wgmma_m64n256k8_tf32(r_acc, wgmma_moved(w_slot, s * (kTapBytes / 16)),
                                         wgmma_moved(x_stage, s_tap[r * conv.S + s]),
                                         chunk + r + s > 0);
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
                        if (s == 0 && chunk + r > 0) release(r == 0);
                        s += 3;
                    } else {
                        wgmma_fence();
                        tap(s);
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (s == 0 && chunk + r > 0) release(r == 0);
                        s += 1;
                    }
                }
                if (++slot == tiling.slots) slot = 0, slot_parity ^= !tiling.resident;
                if (consumer == 0 && lane == 0 && chunk + r == 0 && tile == first_tile)
                    mbarrier_arrive(started);
            }
            if (++stage == tiling.stages) stage = 0, stage_parity ^= 1;
        }
        const Tile at = tile_at(tiling, tile);
        const int64_t PQ = int64_t(conv.P) * conv.Q;
        const int k_warp = s_k[0] + warp % 4 * 16;             // its first of 16 output channels
        const int channels = s_k[1] - warp % 4 * 16;           // and how many there are
        float r_bias[2];
        for (int half = 0; half < 2; ++half)
            r_bias[half] = g_bias && 8 * half + g < channels ? g_bias[k_warp + 8 * half + g] : 0.0f;
        wgmma_wait<0>();
        release(true);

        float* y_k = g_y + (int64_t(at.n) * conv.K + k_warp) * PQ;
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
                const int k = 8 * half + lane % 8, part = lane / 8;   // four lanes for a row
                if (k < channels) {
                    const int row_shift = shift_of(k);
                    const int head = min_of((4 - row_shift) % 4, length);
                    const int body = (length - head) / 4 * 4, tail = head + body + part;
                    float* to = y_row + k * PQ;
                    const float* from = s_y + lane % 8 * kRowPitch + row_shift;
                    if (part == 0 && body > 0) bulk_store(to + head, from + head, 4 * body);
                    if (part < head) to[part] = from[part];
                    if (tail < length) to[tail] = from[tail];
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
            const int image = divide(row, tiling.by_image_rows);
            const int p = at.p + row - image * tiling.image_rows;
            const bool inside = row < tiling.rows && p < conv.P && at.n + image < conv.N &&
                                column < tiling.columns && at.q + column < conv.Q;
            float* y_pixel =
                y_k + int64_t(image) * conv.K * PQ + int64_t(p) * conv.Q + at.q + column;
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

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    return launch_wgmma(conv2d_wgmma, kThreads, false, *problem, x, w, bias, y, workspace,
                        workspace_bytes, stream);
}
