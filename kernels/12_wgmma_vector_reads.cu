// title: x by 16-byte reads on Hopper's tensor cores
// idea: Four neighbouring pixels of four channels are four reads of 16 bytes, 16 registers and four
//       stores of 16 bytes: the transposition costs no instruction. Tiles begin at multiples of 4
//       columns; wgmma may start anywhere, so the surplus on the left costs nothing either.
// change: Against 11: a loader's item is 4 pixels of a quad instead of one pixel of 8 channels, a
//       quarter of the instructions. The eight lanes whose stores share a turn take 2 rows and 2
//       quads, or they would meet in two of eight banks' groups.
// mapping: as 11; a loader warp takes items of 2 rows x 2 quads x 8 groups of 4 columns.
// precision: tf32
// arch: sm_90a
// supports: sm >= 90, W % 4 == 0, stride_w == 1,
//       64 * (512 * stride_h + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (264 + (S - 1) * dilation_w)) + 4 * (R + 1) * (dilation_h + 512)
//       + 4096 * S + 4 * R * S + 11264 <= smem
// limits: as 11, without the wait for x: wgmma reads 80 of the 128 bytes that shared memory has for
//       a cycle, and staging x and y takes much of the rest. It pays where there are many channels;
//       with few, as in `square`, 11 is the quicker one.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"

constexpr int kLoaders = 3;     // warps that stage x
constexpr int kThreads = 384;   // two warpgroups of consumers, one of producers
constexpr int kBatch = 6;       // items that a loader has under way at a time

__device__ __forceinline__ float4 ready(float x, float y, float z, float w) {
    return make_float4(before_truncation(x), before_truncation(y), before_truncation(z),
                       before_truncation(w));
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
    uint64_t* started = w_empty + tiling.slots;
    const int slice_bytes = conv.S * kTapBytes;

    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);   // known to be a warp's
    const int lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups;
    const int k_tile = blockIdx.x / tiling.lanes;              // of all groups
    const int group = k_tile / tiling.k_tiles;
    const int first_tile = blockIdx.x % tiling.lanes;

    // Where each tap is in the staged tile; and how many rows each of its rows is from the first.
    unsigned* s_tap = reinterpret_cast<unsigned*>(s_bytes + tiling.table_at);
    unsigned* s_where = s_tap + conv.R * conv.S;
    int* s_k = reinterpret_cast<int*>(s_bytes + tiling.x_at) - 2;   // the block's first output
    if (threadIdx.x == 0) {                                         // channel; and how many
        const int K_group = conv.K / conv.groups, k0 = k_tile % tiling.k_tiles * kKTile;
        s_k[0] = group * K_group + k0;
        s_k[1] = K_group - k0;
    }
    const int plane_rows = tiling.plane / tiling.pitch, rows = plane_rows * conv.stride_h;
    for (int i = threadIdx.x; i < conv.R * conv.S; i += kThreads)
        s_tap[i] = tap_at(conv, tiling, i / conv.S, i % conv.S);
    for (int i = threadIdx.x; i < rows; i += kThreads)
        s_where[i] = i % plane_rows * conv.stride_h + i / plane_rows;
    // Between the rows, and behind the last, is what no valid output needs, but wgmma reads.
    float4* s_x = reinterpret_cast<float4*>(s_bytes + tiling.x_at);   // [stage][quad][pixel]
    for (int i = threadIdx.x; i < tiling.stages * 2 * tiling.quad; i += kThreads) s_x[i] = {};
    fence_proxy_async();
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

    if (warp >= 8) {   // ---- x: in batches of items, through registers
        // A lane's part of an item: bit 1 is the quad, bit 2 the row, the others the column group.
        const int quad = lane / 2 % 2, odd_row = lane / 4 % 2;
        const int column = 4 * (lane % 2 + lane / 8 * 2);
        const int across = ceil_div(tiling.pitch, 32), items = across * ceil_div(rows, 2);
        const int64_t HW = int64_t(conv.H) * conv.W;
        const float* r_from[kBatch];       // in the quad's first channel,
        bool inside[kBatch];               // if it is inside of x
        int r_to[kBatch];                  // in the staged quad; or -1
        float4 r_x[kBatch][4];             // four pixels of each of the quad's channels
        auto find = [&](int number, int first, int chunk) {
            const Tile tile = tile_at(tiling, number);
            const int h0 = tile.p * conv.stride_h - conv.pad_h;                 // may be negative
            const int w0 = tile.q * conv.stride_w - conv.pad_w - tiling.left;   // a multiple of 4
            const int c = group * C_group + chunk * kChunk + 4 * quad;
            const float* x_quad = g_x + (int64_t(tile.n) * conv.C + c) * HW;
            #pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int item = first + i * kLoaders + warp - 8;
                const int row = item / across * 2 + odd_row, w = item % across * 32 + column;
                const int where = int(s_where[min_of(row, rows - 1)]);
                const int image = divide(where, tiling.by_image_span);
                const int h = h0 + where - image * tiling.image_rows * conv.stride_h;
                r_from[i] = x_quad + int64_t(image) * conv.C * HW + (int64_t(h) * conv.W + w0 + w);
                inside[i] = row < rows && unsigned(h) < unsigned(conv.H) &&
                            unsigned(w0 + w) < unsigned(conv.W) && tile.n + image < conv.N;
                r_to[i] = row < rows && w < tiling.pitch - 1 ? row * tiling.pitch + w : -1;
            }
        };
        const int batch = kLoaders * kBatch;   // items of all loaders
        int stage = 0, parity = 0;
        for (int tile = first_tile; tile < tiling.tiles; tile += tiling.lanes) {
            for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
                const int channels = C_group - chunk * kChunk - 4 * quad;
                float4* s_quad = s_x + (2 * stage + quad) * tiling.quad;
                for (int first = 0; first < items; first += batch) {
                    // Under way while the stage is still in use. Not two batches at a time: ptxas
                    // has the stores of one wait for the loads of the other too.
                    if (chunk == 0 || items > batch) find(tile, first, chunk);
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
                    if (first == 0) mbarrier_wait(&x_empty[stage], parity ^ 1);
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
                if (lane == 0) mbarrier_arrive(&x_full[stage]);
                if (++stage == tiling.stages) stage = 0, parity ^= 1;
            }
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
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0)
        return "x does not begin at a multiple of 16 bytes; pass a copy, x.clone()";
    return launch_wgmma(conv2d_wgmma, kThreads, true, *problem, x, w, bias, y, workspace,
                        workspace_bytes, stream);
}
