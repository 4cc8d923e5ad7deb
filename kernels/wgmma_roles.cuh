// What the warps of a block on wgmma do, in the rungs from 11 on: two warpgroups multiply and store
// y, three warps stage x, one has the filter fetched. They hand stages of x and slots of the filter
// on through mbarriers. Included after wgmma_tile.cuh.
#pragma once

#include <type_traits>   // std::true_type

constexpr int kLoaders = 3;     // warps that stage x
constexpr int kThreads = 384;   // two warpgroups of consumers, one of producers

// A block's shared memory, and its place in the work.
struct Block {
    char* s_bytes;
    uint64_t *x_full, *x_empty;   // by stage
    uint64_t *w_full, *w_empty;   // by slot
    unsigned *s_tap, *s_where;    // where each tap is in the staged tile; and the loaders' table
    int* s_k;                     // the block's first output channel; and how many it has
    int warp, lane;
    int k_tile, group;            // k_tile: of all groups
    int first_tile;
};

__device__ __forceinline__ Block block_of(const ConvProblem& conv, const Tiling& tiling,
                                          float4* s_mem) {
    Block b;
    b.s_bytes = reinterpret_cast<char*>(s_mem);
    b.x_full = reinterpret_cast<uint64_t*>(s_mem);
    b.x_empty = b.x_full + tiling.stages;
    b.w_full = b.x_empty + tiling.stages;
    b.w_empty = b.w_full + tiling.slots;
    b.s_k = reinterpret_cast<int*>(b.s_bytes + tiling.x_at) - 2;
    b.s_tap = reinterpret_cast<unsigned*>(b.s_bytes + tiling.table_at);
    b.s_where = b.s_tap + conv.R * conv.S;
    b.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);   // known to be a warp's
    b.lane = threadIdx.x % 32;
    b.k_tile = blockIdx.x / tiling.lanes;
    b.group = b.k_tile / tiling.k_tiles;
    b.first_tile = blockIdx.x % tiling.lanes;
    return b;
}

// What is made before the barrier that all warps of a block pass.
__device__ __forceinline__ void set_up(const ConvProblem& conv, const Tiling& tiling,
                                       const Block& b) {
    for (int i = threadIdx.x; i < conv.R * conv.S; i += kThreads)
        b.s_tap[i] = tap_at(conv, tiling, i / conv.S, i % conv.S);
    if (threadIdx.x != 0) return;
    const int K_group = conv.K / conv.groups;
    const int k0 = b.k_tile % tiling.k_tiles * tiling.halves * kKTile;
    b.s_k[0] = b.group * K_group + k0;
    b.s_k[1] = K_group - k0;
    for (int i = 0; i < tiling.stages; ++i) {
        mbarrier_init(&b.x_full[i], kLoaders);
        mbarrier_init(&b.x_empty[i], 8);                     // the consumers' warps
    }
    for (int i = 0; i < tiling.slots; ++i) {
        mbarrier_init(&b.w_full[i], 1);
        mbarrier_init(&b.w_empty[i], 8);
    }
    mbarrier_fence_init();
}

// Four channels of a pixel, for a tensor core to truncate.
__device__ __forceinline__ float4 ready(float x, float y, float z, float w) {
    return make_float4(before_truncation(x), before_truncation(y), before_truncation(z),
                       before_truncation(w));
}

// For loaders that take x pixel by pixel: where each pixel of the staged tile is in x, from the
// tile's first: rows down, columns on.
__device__ __forceinline__ void find_pixels(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b) {
    for (int i = threadIdx.x; i < tiling.quad; i += kThreads) {
        const int plane = i / tiling.plane, row = i % tiling.plane / tiling.pitch;
        const int column = i % tiling.plane % tiling.pitch;
        const bool used = plane < conv.stride_h * conv.stride_w;   // else nobody minds the value
        b.s_where[i] = used ? unsigned(row * conv.stride_h + plane / conv.stride_w) << 16 |
                                  unsigned(column * conv.stride_w + plane % conv.stride_w)
                            : 0;
    }
}
struct Pixel {
    int64_t at;    // from the tile's first image on, in one channel
    bool inside;   // of x
};
__device__ __forceinline__ Pixel pixel_at(const ConvProblem& conv, const Tiling& tiling,
                                          const Block& b, const Tile& tile, int i) {
    const unsigned where = b.s_where[min_of(i, tiling.quad - 1)];
    const int image = divide(int(where >> 16), tiling.by_image_span);
    const int h = tile.p * conv.stride_h - conv.pad_h + int(where >> 16) -   // may be negative
                  image * tiling.image_rows * conv.stride_h;
    const int w = tile.q * conv.stride_w - conv.pad_w + int(where & 0xffff);
    return {(int64_t(image) * conv.C * conv.H + h) * conv.W + w,
            unsigned(h) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W) &&
                tile.n + image < conv.N};
}

// For loaders that take x by rows: how many each of the staged tile's rows is from the first.
__device__ __forceinline__ void find_rows(const ConvProblem& conv, const Tiling& tiling,
                                          const Block& b) {
    const int plane_rows = tiling.plane / tiling.pitch;
    for (int i = threadIdx.x; i < plane_rows * conv.stride_h; i += kThreads)
        b.s_where[i] = i % plane_rows * conv.stride_h + i / plane_rows;
    // Between the rows, and behind the last, is what no valid output needs, but wgmma reads.
    float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at);
    for (int i = threadIdx.x; i < tiling.stages * 2 * tiling.quad; i += kThreads) s_x[i] = {};
    fence_proxy_async();
}

// The filter's warp: slice by slice, [tap][term][quad][64 channels][4], for each of the block's k
// tiles. Of a filter that stays, slices are announced for each tile, but fetched for the first only.
__device__ __forceinline__ void load_filter(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const void* g_packed, int terms) {
    if (b.lane != 0) return;
    griddepcontrol_wait();   // the filter is laid out by the grid ahead
    const int taps = conv.R * conv.S, tap_bytes = terms * kTapBytes;
    const int64_t k_tile_bytes = int64_t(tiling.chunks) * taps * tap_bytes;
    const char* packed =
        static_cast<const char*>(g_packed) + b.k_tile * tiling.halves * k_tile_bytes;
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
                    bulk_load(
                        b.s_bytes + tiling.w_at + 16 * terms * tiling.slot_at(slot, half),
                        from + half * k_tile_bytes, bytes, &b.w_full[slot]);
                from += bytes;
                if (++slot == tiling.slots) slot = 0, parity ^= 1;
            }
        }
    }
}

// The 16 output channels of a consumer's warp, or as many as there are. Of the bias a lane has that
// of its two rows in d.
struct Channels {
    int first, count;
    float bias[2];
};
template <typename Tiles>
__device__ __forceinline__ Channels channels_of(const Tiles& tiling, const Block& b,
                                                const float* g_bias) {
    const int first = tiling.first_channel(b.warp / 4);   // of this consumer, in the block's
    Channels mine = {b.s_k[0] + first + b.warp % 4 * 16, b.s_k[1] - first - b.warp % 4 * 16, {}};
    for (int half = 0; half < 2; ++half) {
        const int k = 8 * half + b.lane / 4;
        mine.bias[half] = g_bias && k < mine.count ? g_bias[mine.first + k] : 0.0f;
    }
    return mine;
}

// What differs by the type of y: a sum made y (by one instruction, where tiles pass so fast that
// two cost a tenth; with floats ptxas does no better by it), neighbours in shared memory, whose
// address is even or not, and one number to where nobody reads it soon.
__device__ __forceinline__ float y_of(const ConvProblem& conv, float sum, const float*) {
    return activated(conv, sum);
}
template <typename T>
__device__ __forceinline__ float y_of(const ConvProblem& conv, float sum, const T*) {
    return max_nan(sum, conv.relu ? 0.0f : -INFINITY);
}
template <bool even>
__device__ __forceinline__ void put(float* s_to, float x, float y) {
    if constexpr (even) {
        *reinterpret_cast<float2*>(s_to) = {x, y};
    } else {
        s_to[0] = x, s_to[1] = y;
    }
}
__device__ __forceinline__ uint32_t rounded(float low, float high, const bf16*) {
    return round_bf16(low, high);
}
__device__ __forceinline__ uint32_t rounded(float low, float high, const fp16*) {
    return round_fp16(low, high);
}
template <bool even, typename T>
__device__ __forceinline__ void put(T* s_to, float x, float y) {
    const uint32_t pair = rounded(x, y, s_to);
    if constexpr (even) {
        *reinterpret_cast<uint32_t*>(s_to) = pair;
    } else {
        s_to[0].bits = uint16_t(pair), s_to[1].bits = uint16_t(pair >> 16);
    }
}
__device__ __forceinline__ void stream(float* to, float value) { __stcs(to, value); }
template <typename T>
__device__ __forceinline__ void stream(T* to, float value) {
    __stcs(&to->bits, uint16_t(rounded(value, 0.0f, to)));
}

// A consumer's sums, laid out as wgmma's d, to y.
template <int positions, typename T>
__device__ __forceinline__ void store_tile(const ConvProblem& conv, const Tiling& tiling,
                                           const Block& b, int tile, const Channels& mine,
                                           const float (&r_sum)[positions / 2], T* g_y) {
    const int consumer = b.warp / 4, lane = b.lane, g = lane / 4, t = lane % 4;
    const Tile at = tile_at(tiling, tile);
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    T* y_k = g_y + (int64_t(at.n) * conv.K + mine.first) * PQ;
    if (tiling.rows_out) {
        // Each consumer has one row of the tile. The copy engine moves its 16-byte multiples;
        // what remains at the two ends is stored by hand.
        constexpr int kMultiple = 16 / sizeof(T);
        T* s_y = reinterpret_cast<T*>(b.s_bytes + tiling.y_at) +
                 b.warp * 8 * row_pitch(positions);
        const int p = at.p + consumer;
        const int length = p < conv.P ? min_of(tiling.columns, conv.Q - at.q) : 0;
        T* y_row = y_k + int64_t(p) * conv.Q + at.q;
        auto shift_of = [&](int k) {   // of a row in s_y, as in y: numbers past a multiple of 16
            const unsigned first = unsigned(reinterpret_cast<uintptr_t>(y_row) / sizeof(T));
            return int((first + unsigned(k) * unsigned(PQ)) % kMultiple);
        };
        // Whether all rows begin at even numbers. Asked of each lane's own, ptxas makes words of
        // pairs.
        const bool even = (reinterpret_cast<uintptr_t>(y_row) / sizeof(T) | PQ) % 2 == 0;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const bool by_warps = half == 0 && sizeof(T) == 2 && tiling.by_warps;
            bulk_wait_read<0>();           // of what this lane had stored from here
            __syncwarp();
            const int shift = shift_of(8 * half + g);
            T* s_row = s_y + g * row_pitch(positions) + shift + 2 * t;
            auto put_row = [&](auto is_even) {
                #pragma unroll
                for (int j = 0; j < positions / 8; ++j)
                    put<is_even.value>(
                        s_row + 8 * j,
                        y_of(conv, r_sum[4 * j + 2 * half] + mine.bias[half], g_y),
                        y_of(conv, r_sum[4 * j + 2 * half + 1] + mine.bias[half], g_y));
            };
            if (even) {
                put_row(std::true_type());
            } else {
                put_row(std::false_type());
            }
            fence_proxy_async();
            __syncwarp();
            const int k = 8 * half + lane % 8, part = lane / 8;   // four lanes for a row
            if (k < mine.count) {
                const int row_shift = shift_of(k);
                const int head = min_of((kMultiple - row_shift) % kMultiple, length);
                const int tail = head + (length - head) / kMultiple * kMultiple;
                T* to = y_row + k * PQ;
                const T* from = s_y + lane % 8 * row_pitch(positions) + row_shift;
                if (!by_warps && part == 0 && tail > head)
                    bulk_store(to + head, from + head, int(sizeof(T)) * (tail - head));
                #pragma unroll
                for (int i = part; i < kMultiple; i += 4) {   // neither end is longer
                    if (i < head) to[i] = from[i];
                    if (tail + i < length) to[tail + i] = from[tail + i];
                }
            }
            bulk_commit();
            if (by_warps) {
                #pragma unroll
                for (int i = 0; i < 8; ++i) {   // 16 bytes of a row for each lane
                    const int row_shift = shift_of(8 * half + i);
                    const int at = (kMultiple - row_shift) % kMultiple + kMultiple * lane;
                    if (8 * half + i < mine.count && at + kMultiple <= length)
                        __stcs(reinterpret_cast<uint4*>(y_row + (8 * half + i) * PQ + at),
                               *reinterpret_cast<const uint4*>(
                                   s_y + i * row_pitch(positions) + row_shift + at));
                }
            }
        }
        return;
    }
    float* s_y = reinterpret_cast<float*>(b.s_bytes + tiling.y_at) + b.warp * 8 * kPitch;
    #pragma unroll
    for (int part = 0; part < positions / 32; ++part) {
        const int position = consumer * tiling.step + 32 * part + lane;
        const int row = divide(position, tiling.by_pitch);
        const int column = position - row * tiling.pitch;
        const int image = divide(row, tiling.by_image_rows);
        const int p = at.p + row - image * tiling.image_rows;
        const bool inside = row < tiling.rows && p < conv.P && at.n + image < conv.N &&
                            column < tiling.columns && at.q + column < conv.Q;
        T* y_pixel = y_k + int64_t(image) * conv.K * PQ + int64_t(p) * conv.Q + at.q + column;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            __syncwarp();                  // all have read what was there
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float* d = &r_sum[4 * (4 * part + j) + 2 * half];
                *reinterpret_cast<float2*>(s_y + g * kPitch + 8 * j + 2 * t) =
                    make_float2(y_of(conv, d[0] + mine.bias[half], g_y),
                                y_of(conv, d[1] + mine.bias[half], g_y));
            }
            __syncwarp();
            #pragma unroll 4
            for (int k = 0; k < 8; ++k) {
                if (inside && 8 * half + k < mine.count) stream(y_pixel, s_y[k * kPitch + lane]);
                y_pixel += PQ;
            }
        }
    }
}

// One tap of a chunk; what is multiplied is of the type of y.
__device__ __forceinline__ void product(float (&d)[128], uint64_t w, uint64_t x, int accumulate,
                                        const float*) {
    wgmma_m64n256k8_tf32(d, w, x, accumulate);
}
__device__ __forceinline__ void product(float (&d)[128], uint64_t w, uint64_t x, int accumulate,
                                        const bf16*) {
    wgmma_m64n256k16_bf16(d, w, x, accumulate);
}
__device__ __forceinline__ void product(float (&d)[128], uint64_t w, uint64_t x, int accumulate,
                                        const fp16*) {
    wgmma_m64n256k16_fp16(d, w, x, accumulate);
}

// A consumer. Both share the stages; each has 64 channels x 256 positions.
template <typename T, typename Tiles>
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Tiles& tiling,
                                         const Block& b, const float* g_bias, T* g_y) {
    const int consumer = b.warp / 4, taps = conv.R * conv.S;
    const uint64_t x_first = wgmma_moved(
        wgmma_descriptor(b.s_bytes + tiling.x_at, 16 * tiling.quad, 128), consumer * tiling.step);
    const uint64_t w_first = wgmma_descriptor(b.s_bytes + tiling.w_at, 16 * kKTile, 128);
    float r_acc[128] = {};   // wgmma's d: 64 channels x 256 positions
    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;

    auto before = [](int place, int places) { return (place == 0 ? places : place) - 1; };
    auto release = [&](bool whole_chunk) {   // the slice before this one has been read
        if (b.lane != 0) return;
        mbarrier_arrive(&b.w_empty[before(slot, tiling.slots)]);
        if (whole_chunk) mbarrier_arrive(&b.x_empty[before(stage, tiling.stages)]);
    };
    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            mbarrier_wait(&b.x_full[stage], stage_parity);
            const uint64_t x_stage = wgmma_moved(x_first, stage * 2 * tiling.quad);
            for (int first = 0; first < taps; first += tiling.taps) {
                mbarrier_wait(&b.w_full[slot], slot_parity);
                const uint64_t w_slot = wgmma_moved(w_first, tiling.slot_at(slot, consumer));
                const int count = min_of(tiling.taps, taps - first);
                auto tap = [&](int i) {
                    product(r_acc, wgmma_moved(w_slot, i * (kTapBytes / 16)),
                            wgmma_moved(x_stage, b.s_tap[first + i]), chunk + first + i > 0, g_y);
                };
                // One group of products runs while the next is issued. Groups of three keep the
                // tensor cores busier than single ones.
                #pragma unroll 1
                for (int i = 0; i < count;) {
                    if (i + 3 <= count) {
                        wgmma_fence();
                        tap(i), tap(i + 1), tap(i + 2);
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (i == 0 && chunk + first > 0) release(first == 0);
                        i += 3;
                    } else {
                        wgmma_fence();
                        tap(i);
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
    bulk_wait_read<0>();   // the copy engine still reads this block's shared memory
}
