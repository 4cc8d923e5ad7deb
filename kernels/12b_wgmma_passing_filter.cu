// title: The filter streams past rows of x
// idea: If x is staged row by row for all channels, each row is loaded once, and the filter passes
//       by in slices instead. A slice serves two rows of y, so it is used as often as a slice in 12.
// change: Against 12: a ring of rows of x, as in 11b, replaces the stages. A block has 128 channels and
//       two rows of 128 columns. Warps store y themselves, 16 bytes a lane.
// mapping: block -> 128 output channels of one group, consecutive pairs of rows of strips of 128
//       columns; two consumer warpgroups -> 64 channels each; three producer warps -> x, one -> the
//       filter.
// parent: 12_wgmma_vector_reads
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1, W % 4 == 0, (R - 1) * dilation_h <= 14,
//       35328 + 12288 * 2 + (C // groups + 7) // 8
//             * 32 * ((R - 1) * dilation_h + 2) * ((128 + (S - 1) * dilation_w) // 2 * 2 + 1) <= smem
// limits: Shared memory: a wgmma of 128 columns reads 96 of its 128 bytes in each cycle.
#include "convlab.cuh"
#include "tensor.cuh"

using Number = float;

#include "strips.cuh"

constexpr int kQuad = 4;          // channels of 16 bytes
constexpr int kItems = 4;         // items that a loader's lane has in flight
constexpr int kSlice = 3;         // taps of a slice of the filter, at most
constexpr int kMaxSlots = 8;

// A producer warp: stages rows of x. An item is four pixels of a quad of channels.
__device__ __forceinline__ void load(const ConvProblem& conv, const Strips& strips, char* s_bytes,
                                     uint64_t* x_full, uint64_t* x_empty, int group, int64_t first_row,
                                     int64_t end_row, const Number* g_x) {
    const int warp = threadIdx.x / 32 - 8, lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups, quads = 2 * strips.chunks;
    const int64_t HW = int64_t(conv.H) * conv.W;
    // A warp's item is 8 groups of four pixels x 4 quads: bits 1 and 2 of the lane select the quad.
    // The pitch is odd, so eight lanes store to different banks.
    const int across = ceil_div(3 + strips.pitch, 32), items = across * ceil_div(quads, 4);
    const int q_lane = lane / 2 % 4, column = 4 * (lane % 2 + lane / 8 * 2);
    int slot = 0, parity = 0;
    for (int64_t row = first_row; row < end_row;) {
        const Part part = part_at(conv, strips, row, end_row);
        row += part.rows;
        const int h0 = part.p0 - conv.pad_h;
        const int left = (part.q0 - conv.pad_w) & 3;   // columns that are read but not staged
        const int w0 = part.q0 - conv.pad_w - left;    // a multiple of 4
        const Number* x_n = g_x + (int64_t(part.n) * conv.C + group * C_group) * HW;
        const int h_end = h0 + (part.rows + 1) / 2 * 2 - 2 + strips.window;
        for (int h = h0; h < h_end; ++h) {
            float4* s_row =
                reinterpret_cast<float4*>(s_bytes + strips.x_at) + slot * strips.row_units;
            for (int first = 0; first < items; first += kItems * kLoaders) {
                float4 r_x[kItems][kQuad];   // four pixels of each of the quad's channels
                #pragma unroll
                for (int i = 0; i < kItems; ++i) {
                    const int item = first + i * kLoaders + warp;
                    const int quad = item / across * 4 + q_lane;
                    const int w = w0 + item % across * 32 + column;
                    const bool inside =
                        unsigned(h) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W) &&
                        w - w0 < left + strips.pitch;
                    const int channels = inside ? C_group - quad * kQuad : 0;
                    const Number* from = x_n + quad * kQuad * HW + (int64_t(h) * conv.W + w);
                    #pragma unroll
                    for (int c = 0; c < kQuad; ++c)
                        r_x[i][c] = c < channels ? *reinterpret_cast<const float4*>(from + c * HW)
                                                 : float4{};
                }
                if (first == 0) mbarrier_wait(&x_empty[slot], parity ^ 1);   // loads are in flight
                #pragma unroll
                for (int i = 0; i < kItems; ++i) {
                    const int item = first + i * kLoaders + warp;
                    const int quad = item / across * 4 + q_lane;
                    const int pixel = item % across * 32 + column - left;
                    const float4 (&x)[kQuad] = r_x[i];
                    float4* s_to = s_row + quad * strips.pitch + pixel;
                    auto put_pixel = [&](int j, float4 value) {
                        if (quad < quads && unsigned(pixel + j) < unsigned(strips.pitch))
                            s_to[j] = value;
                    };
                    put_pixel(0, ready(x[0].x, x[1].x, x[2].x, x[3].x));
                    put_pixel(1, ready(x[0].y, x[1].y, x[2].y, x[3].y));
                    put_pixel(2, ready(x[0].z, x[1].z, x[2].z, x[3].z));
                    put_pixel(3, ready(x[0].w, x[1].w, x[2].w, x[3].w));
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&x_full[slot]);
            if (++slot == strips.ring) slot = 0, parity ^= 1;
        }
    }
}

// The filter's warp: the copy engine copies slices of the packed filter, [tap][quad][64 channels][4]
// for each of the block's two k tiles. Slices come row by row of the filter, and of each row chunk by
// chunk.
__device__ __forceinline__ void load_filter(const ConvProblem& conv, const Strips& strips,
                                            char* s_bytes, uint64_t* w_full, uint64_t* w_empty,
                                            int group, int k_tile, int64_t first_row,
                                            int64_t end_row, const Number* g_packed) {
    if (threadIdx.x % 32 != 0) return;
    griddepcontrol_wait();   // until the kernel that packs the filter has finished
    const int64_t tile_bytes = int64_t(strips.chunks) * conv.R * conv.S * kTapBytes;
    const char* packed[2];
    for (int i = 0; i < 2; ++i)   // if there is no second tile, the first one's
        packed[i] = reinterpret_cast<const char*>(g_packed) +
                    (int64_t(group) * strips.k_tiles + min_of(k_tile + i, strips.k_tiles - 1)) *
                        tile_bytes;
    int slot = 0, parity = 0;
    for (int64_t row = first_row; row < end_row;) {
        const Part part = part_at(conv, strips, row, end_row);
        row += part.rows;
        for (int pair = 0; pair < (part.rows + 1) / 2; ++pair)
            for (int r = 0; r < conv.R; ++r)
                for (int chunk = 0; chunk < strips.chunks; ++chunk)
                    for (int s = 0; s < conv.S; s += strips.taps) {
                        const int bytes = min_of(strips.taps, conv.S - s) * kTapBytes;
                        const int64_t from =
                            (int64_t(chunk * conv.R + r) * conv.S + s) * kTapBytes;
                        mbarrier_wait(&w_empty[slot], parity ^ 1);
                        mbarrier_arrive_expect(&w_full[slot], 2 * bytes);
                        for (int i = 0; i < 2; ++i)
                            bulk_load(s_bytes + strips.w_at +
                                          (2 * slot + i) * strips.taps * kTapBytes,
                                      packed[i] + from, bytes, &w_full[slot]);
                        if (++slot == strips.slots) slot = 0, parity ^= 1;
                    }
    }
}

template <int kTaps>   // of a slice: 3, or 0 for any number
__global__ void __launch_bounds__(kThreads, 1)
conv2d_passing_filter(ConvProblem conv, Strips strips, const Number* __restrict__ g_x,
                      const Number* __restrict__ g_packed, const float* __restrict__ g_bias,
                      Number* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    char* s_bytes = reinterpret_cast<char*>(s_mem);
    uint64_t* x_full = reinterpret_cast<uint64_t*>(s_mem);
    uint64_t* x_empty = x_full + kMaxRing;
    uint64_t* w_full = x_empty + kMaxRing;
    uint64_t* w_empty = w_full + kMaxSlots;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int k_block = blockIdx.x / strips.lanes, my_lane = blockIdx.x % strips.lanes;
    const int group = k_block / strips.k_blocks;
    const int k_tile = k_block % strips.k_blocks * 2;
    const int K_group = conv.K / conv.groups;
    const int64_t first_row = my_lane * strips.rows / strips.lanes;
    const int64_t end_row = (my_lane + 1) * strips.rows / strips.lanes;

    if (threadIdx.x == 0) {
        for (int i = 0; i < strips.ring; ++i) {
            mbarrier_init(&x_full[i], kLoaders);
            mbarrier_init(&x_empty[i], 8);
        }
        for (int i = 0; i < strips.slots; ++i) {
            mbarrier_init(&w_full[i], 1);
            mbarrier_init(&w_empty[i], 8);
        }
        mbarrier_fence_init();
    }
    __syncthreads();

    if (warp == 11) {
        load_filter(conv, strips, s_bytes, w_full, w_empty, group, k_tile, first_row, end_row,
                    g_packed);
        return;
    }
    if (warp >= 8) {
        load(conv, strips, s_bytes, x_full, x_empty, group, first_row, end_row, g_x);
        return;
    }

    // A consumer: multiplies and stores.
    const int consumer = warp / 4;
    const uint64_t x_first = wgmma_descriptor(s_bytes + strips.x_at, 16 * strips.pitch, 128);
    const uint64_t w_first = wgmma_moved(wgmma_descriptor(s_bytes + strips.w_at, 16 * kKTile, 128),
                                         consumer * strips.taps * (kTapBytes / 16));
    const int k_first = (k_tile + consumer) * kKTile + warp % 4 * 16;   // of this warp's 16 channels
    const int k_count = K_group - k_first;
    float r_bias[2];
    for (int half = 0; half < 2; ++half) {
        const int k = 8 * half + lane / 4;
        r_bias[half] = g_bias && k < k_count ? g_bias[group * K_group + k_first + k] : 0.0f;
    }
    Number* s_y = reinterpret_cast<Number*>(s_bytes + strips.y_at) + warp * 8 * kYPitch;
    float r_upper[kN / 2] = {}, r_lower[kN / 2] = {};   // sums of two rows of y
    int base = 0;                            // slot of the pair's first row of x
    int freed = 0;                           // slot of the oldest row of x that is not yet freed
    int ready_slot = 0, ready_parity = 0;    // of the next row of x to wait for
    int slot = 0, slot_parity = 0;           // of the filter's next slice
    auto free_rows = [&](int rows) {
        for (int i = 0; i < rows; ++i) {
            if (lane == 0) mbarrier_arrive(&x_empty[freed]);
            if (++freed == strips.ring) freed = 0;
        }
    };
    const int both = conv.R > 1 && conv.dilation_h == 1 ? 1 : 0;   // r that uses both first rows last
    for (int64_t at = first_row; at < end_row;) {
        const Part part = part_at(conv, strips, at, end_row);
        at += part.rows;
        int ready_rows = 0;
        for (int row = 0; row < part.rows; row += 2) {
            #pragma unroll 1
            for (int r = 0; r < conv.R; ++r) {
                for (; ready_rows < row + r * conv.dilation_h + 2; ++ready_rows) {
                    mbarrier_wait(&x_full[ready_slot], ready_parity);
                    if (++ready_slot == strips.ring) ready_slot = 0, ready_parity ^= 1;
                }
                int upper = base + r * conv.dilation_h;
                if (upper >= strips.ring) upper -= strips.ring;
                const int lower = upper + 1 == strips.ring ? 0 : upper + 1;
                uint64_t x_upper = wgmma_moved(x_first, upper * strips.row_units);
                uint64_t x_lower = wgmma_moved(x_first, lower * strips.row_units);
                #pragma unroll 1
                for (int chunk = 0; chunk < strips.chunks; ++chunk) {
                    #pragma unroll 1
                    for (int s = 0; s < conv.S; s += strips.taps) {
                        mbarrier_wait(&w_full[slot], slot_parity);
                        const uint64_t w_slot =
                            wgmma_moved(w_first, 2 * slot * strips.taps * (kTapBytes / 16));
                        wgmma_fence();
                        if constexpr (kTaps > 0) {
                            #pragma unroll
                            for (int i = 0; i < kTaps; ++i) {
                                const uint64_t w_tap = wgmma_moved(w_slot, i * (kTapBytes / 16));
                                const unsigned right = (s + i) * conv.dilation_w;
                                wgmma_m64n128k8_tf32(r_upper, w_tap, wgmma_moved(x_upper, right),
                                                     r + chunk + s + i > 0);
                                wgmma_m64n128k8_tf32(r_lower, w_tap, wgmma_moved(x_lower, right),
                                                     r + chunk + s + i > 0);
                            }
                        } else {
                            #pragma unroll 1
                            for (int i = 0; i < min_of(strips.taps, conv.S - s); ++i) {
                                const uint64_t w_tap = wgmma_moved(w_slot, i * (kTapBytes / 16));
                                const unsigned right = (s + i) * conv.dilation_w;
                                wgmma_m64n128k8_tf32(r_upper, w_tap, wgmma_moved(x_upper, right),
                                                     r + chunk + s + i > 0);
                                wgmma_m64n128k8_tf32(r_lower, w_tap, wgmma_moved(x_lower, right),
                                                     r + chunk + s + i > 0);
                            }
                        }
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (r + chunk + s > 0) {   // the previous slice's products are complete
                            if (lane == 0)
                                mbarrier_arrive(&w_empty[(slot == 0 ? strips.slots : slot) - 1]);
                            if (chunk + s == 0 && r == 1) free_rows(both ? 1 : 2);
                            if (chunk + s == 0 && r == 2 && both) free_rows(1);
                        }
                        if (++slot == strips.slots) slot = 0, slot_parity ^= 1;
                    }
                    x_upper = wgmma_moved(x_upper, 2 * strips.pitch);
                    x_lower = wgmma_moved(x_lower, 2 * strips.pitch);
                }
            }
            wgmma_wait<0>();
            if (lane == 0) mbarrier_arrive(&w_empty[(slot == 0 ? strips.slots : slot) - 1]);
            if (conv.R == 1) free_rows(2);
            if (conv.R == 2 && both) free_rows(1);
            base += 2;
            if (base >= strips.ring) base -= strips.ring;
            Number* y_row = g_y + ((int64_t(part.n) * conv.K + group * K_group + k_first) * conv.P +
                                   part.p0 + row) * conv.Q + part.q0;
            store_half<0>(conv, strips, part, s_y, lane, k_count, r_bias, r_upper, y_row);
            store_half<1>(conv, strips, part, s_y, lane, k_count, r_bias, r_upper, y_row);
            if (row + 1 < part.rows) {
                y_row += conv.Q;
                store_half<0>(conv, strips, part, s_y, lane, k_count, r_bias, r_lower, y_row);
                store_half<1>(conv, strips, part, s_y, lane, k_count, r_bias, r_lower, y_row);
            }
        }
        free_rows(strips.window - 2);
        base += strips.window - 2;
        if (base >= strips.ring) base -= strips.ring;
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, {kN, 1, 0, true}));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* w,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0) return "x is not 16-byte aligned; pass a copy, x.clone()";
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t packed = int64_t(conv2d_workspace(problem, 0));
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    Strips strips = strips_for(conv, y, device.sms);
    strips.window = (conv.R - 1) * conv.dilation_h + 2;
    strips.taps = min_of(kSlice, conv.S);
    const int slice = 2 * strips.taps * kTapBytes;
    const int64_t row_bytes = 16 * int64_t(strips.row_units);
    const int64_t y_at = kBarrierBytes, x_at = y_at + kYBytes;
    const int64_t rest = device.smem - x_at - strips.window * row_bytes;
    if (rest < 2 * slice) return "the rows do not fit into shared memory";
    // First the slots that the consumers need to be apart, then rows.
    strips.slots = int(min_of(rest / slice, int64_t(kMaxSlots)));
    strips.ring = int(min_of(strips.window + (rest - strips.slots * slice) / row_bytes,
                             int64_t(kMaxRing)));
    strips.y_at = int(y_at), strips.x_at = int(x_at);
    strips.w_at = int(x_at + strips.ring * row_bytes);
    strips.bytes = strips.w_at + strips.slots * slice;
    auto* kernel = conv.S == 3 ? conv2d_passing_filter<3> : conv2d_passing_filter<0>;
    if (const char* error = ask_for_shared_memory(kernel, strips.bytes)) return error;

    Tiling tiling = {};
    tiling.chunks = strips.chunks, tiling.k_tiles = strips.k_tiles;
    Number* g_packed = static_cast<Number*>(workspace);
    const int64_t count = packed / int(sizeof(Number));
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_filter<Number><<<pack_blocks, 256, 0, stream>>>(conv, tiling, 1, w, g_packed, count);
    launch_dependent(kernel, conv.groups * strips.k_blocks * strips.lanes, kThreads,
                     strips.bytes, stream, conv, strips, x, g_packed, bias, y);
    return launch_error();
}
