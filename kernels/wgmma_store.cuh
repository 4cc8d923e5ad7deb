// How a consumer of the rungs on wgmma stores its sums to y in NCHW: bias and ReLU, rounding to the
// type of y, and the stores. The copy engine stores whole rows, or a warp stores 32 positions at a
// time. Rung 16 stores NHWC by itself. Include it after wgmma_block.cuh.
#pragma once

#include <type_traits>   // std::true_type

// The 16 output channels of a consumer's warp, or as many as exist, and the bias of this lane's two
// rows of wgmma's d.
struct Channels {
    int first, count;
    float bias[2];
};
__device__ __forceinline__ Channels channels_of(const Tiling& tiling, const Block& b,
                                                const float* g_bias) {
    const int first = tiling.first_channel(b.warp / 4);   // this consumer's, in the block
    Channels mine = {b.s_k[0] + first + b.warp % 4 * 16, b.s_k[1] - first - b.warp % 4 * 16, {}};
    for (int half = 0; half < 2; ++half) {
        const int k = 8 * half + b.lane / 4;
        mine.bias[half] = g_bias && k < mine.count ? g_bias[mine.first + k] : 0.0f;
    }
    return mine;
}

// The functions that depend on the type of y.
// y_of: applies the ReLU. A 16-bit tile takes so little time that a second instruction would cost a
// tenth of it, so there it is one instruction.
// put: stores two neighbours to shared memory. `even`: s_to is aligned to a pair.
// stream: stores one number to y, with the cache hint that it is not read again soon.
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

// Stores a consumer's sums, laid out as wgmma's d, to y.
template <int positions, typename T>
__device__ __forceinline__ void store_tile(const ConvProblem& conv, const Tiling& tiling,
                                           const Block& b, int tile, const Channels& mine,
                                           const float (&r_sum)[positions / 2], T* g_y) {
    const int consumer = b.warp / 4, lane = b.lane, g = lane / 4, t = lane % 4;
    const Tile at = tile_at(tiling, tile);
    const int64_t PQ = int64_t(conv.P) * conv.Q;
    T* y_k = g_y + (int64_t(at.n) * conv.K + mine.first) * PQ;
    if (tiling.rows_out) {
        // Each consumer has one row of the tile, or its part of the only row. The copy engine stores
        // the part that is a multiple of 16 bytes; threads store the rest at the two ends.
        constexpr int kMultiple = 16 / sizeof(T);
        T* s_y = reinterpret_cast<T*>(b.s_bytes + tiling.y_at) +
                 b.warp * 8 * row_pitch(positions);
        const int p = at.p + (tiling.rows == 1 ? 0 : consumer);
        const int left = tiling.rows == 1 ? consumer * positions : 0;   // its first column
        const int columns = min_of(tiling.columns, conv.Q - at.q) - left;
        const int length = p < conv.P ? max_of(min_of(columns, positions), 0) : 0;
        T* y_row = y_k + int64_t(p) * conv.Q + at.q + left;
        auto shift_of = [&](int k) {   // a row's numbers past a multiple of 16 bytes
            const unsigned first = unsigned(reinterpret_cast<uintptr_t>(y_row) / sizeof(T));
            return int((first + unsigned(k) * unsigned(PQ)) % kMultiple);
        };
        // Whether all rows are aligned to pairs. (Testing each lane's own row instead makes ptxas
        // build words out of pairs.)
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
            const int k = 8 * half + lane % 8, part = lane / 8;   // four lanes to a row
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
            __syncwarp();                  // all have read the previous part
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
