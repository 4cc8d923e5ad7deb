// title: Two tiles of sums in turns, in bf16
// idea: wgmma runs while its warps do something else. A consumer has the sums of two rows of y: it
//       starts one row's products, and stores the other row meanwhile.
// change: Against 15c: strips of 128 columns leave the filter of 128 channels and four rows of x in
//       shared memory. A lane loads four pixels of 8 channels, as in 15. Warps store y themselves,
//       16 bytes a lane. Strips do not overlap.
// mapping: block -> 128 output channels of one group, consecutive rows of strips of 128 columns; two
//       consumer warpgroups -> 64 channels each; four producer warps -> x.
// parent: 15c_wgmma_rows_bf16
// precision: bf16
// tensors: x bf16, w bf16, y bf16, bias f32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1, W % 4 == 0, (R - 1) * dilation_h <= 14,
//       17920 + (C // groups + 15) // 16 * (4096 * R * S
//             + 32 * ((R - 1) * dilation_h + 2) * ((128 + (S - 1) * dilation_w) // 2 * 2 + 1)) <= smem
// limits: Shared memory: a wgmma of 128 columns reads 96 of its 128 bytes in each cycle.
#ifndef NUMBER
#define NUMBER bf16
#endif
#include "convlab.cuh"
#include "tensor.cuh"

using Number = NUMBER;

#include "strips.cuh"
#include "wgmma_n.cuh"

constexpr int kOctet = 8;         // channels of 16 bytes
constexpr int kRowLoaders = 4;    // warps that stage x
constexpr int kItems = 3;         // items that a loader's lane has in flight

// A producer warp: stages rows of x. An item is four pixels of an octet of channels. In NCHW a 32-bit
// word holds two pixels of one channel; in the stage it holds two channels of one pixel.
__device__ __forceinline__ void load(const ConvProblem& conv, const Strips& strips, char* s_bytes,
                                     uint64_t* x_full, uint64_t* x_empty, int group, int64_t first_row,
                                     int64_t end_row, const Number* g_x) {
    const int warp = threadIdx.x / 32 % kRowLoaders, lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups, octets = 2 * strips.chunks;
    const int64_t HW = int64_t(conv.H) * conv.W;
    // A warp's item is 8 groups of four pixels x 4 octets: bits 1 and 2 of the lane select the octet.
    // The pitch is odd, so eight lanes store to different banks.
    const int across = ceil_div(3 + strips.pitch, 32), items = across * ceil_div(octets, 4);
    const int o_lane = lane / 2 % 4, column = 4 * (lane % 2 + lane / 8 * 2);
    int slot = 0, parity = 0;
    for (int64_t row = first_row; row < end_row;) {
        const Part part = part_at(conv, strips, row, end_row);
        row += part.rows;
        const int h0 = part.p0 - conv.pad_h;
        const int left = (part.q0 - conv.pad_w) & 3;   // columns that are read but not staged
        const int w0 = part.q0 - conv.pad_w - left;    // a multiple of 4
        const Number* x_n = g_x + (int64_t(part.n) * conv.C + group * C_group) * HW;
        for (int h = h0; h < h0 + part.rows - 1 + strips.window; ++h) {
            uint4* s_row = reinterpret_cast<uint4*>(s_bytes + strips.x_at) + slot * strips.row_units;
            for (int first = 0; first < items; first += kItems * kRowLoaders) {
                uint2 r_x[kItems][kOctet];   // four pixels of each of the octet's channels
                #pragma unroll
                for (int i = 0; i < kItems; ++i) {
                    const int item = first + i * kRowLoaders + warp;
                    const int octet = item / across * 4 + o_lane;
                    const int w = w0 + item % across * 32 + column;
                    const bool inside =
                        unsigned(h) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W) &&
                        w - w0 < left + strips.pitch;
                    const int channels = inside ? C_group - octet * kOctet : 0;
                    const Number* from =
                        x_n + octet * kOctet * HW + (int64_t(h) * conv.W + w);
                    #pragma unroll
                    for (int c = 0; c < kOctet; ++c)
                        r_x[i][c] = c < channels ? *reinterpret_cast<const uint2*>(from + c * HW)
                                                 : uint2{};
                }
                if (first == 0) mbarrier_wait(&x_empty[slot], parity ^ 1);   // loads are in flight
                #pragma unroll
                for (int i = 0; i < kItems; ++i) {
                    const int item = first + i * kRowLoaders + warp;
                    const int octet = item / across * 4 + o_lane;
                    const int pixel = item % across * 32 + column - left;
                    const uint2 (&x)[kOctet] = r_x[i];
                    uint4* s_to = s_row + octet * strips.pitch + pixel;
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        // Of two words, take the lower halves for the even pixel, the upper halves
                        // for the odd one.
                        const unsigned halves = j % 2 ? 0x7632 : 0x5410;
                        auto two = [=](uint2 a, uint2 b) {
                            return j < 2 ? __byte_perm(a.x, b.x, halves)
                                         : __byte_perm(a.y, b.y, halves);
                        };
                        if (octet < octets && unsigned(pixel + j) < unsigned(strips.pitch))
                            s_to[j] = make_uint4(two(x[0], x[1]), two(x[2], x[3]), two(x[4], x[5]),
                                                 two(x[6], x[7]));
                    }
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&x_full[slot]);
            if (++slot == strips.ring) slot = 0, parity ^= 1;
        }
    }
}

template <bool k3x3>
__global__ void __launch_bounds__(kThreads, 1)
conv2d_two_tiles(ConvProblem conv, Strips strips, const Number* __restrict__ g_x,
                 const Number* __restrict__ g_packed, const float* __restrict__ g_bias,
                 Number* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    char* s_bytes = reinterpret_cast<char*>(s_mem);
    uint64_t* x_full = reinterpret_cast<uint64_t*>(s_mem);
    uint64_t* x_empty = x_full + kMaxRing;
    uint64_t* w_full = x_empty + kMaxRing;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int k_block = blockIdx.x / strips.lanes, my_lane = blockIdx.x % strips.lanes;
    const int group = k_block / strips.k_blocks;
    const int k_tile = k_block % strips.k_blocks * 2;
    const int K_group = conv.K / conv.groups;
    const int64_t first_row = my_lane * strips.rows / strips.lanes;
    const int64_t end_row = (my_lane + 1) * strips.rows / strips.lanes;

    if (threadIdx.x == 0) {
        for (int i = 0; i < strips.ring; ++i) {
            mbarrier_init(&x_full[i], kRowLoaders);
            mbarrier_init(&x_empty[i], 8);
        }
        mbarrier_init(w_full, 1);
        mbarrier_fence_init();
    }
    __syncthreads();

    if (warp >= 8) {
        if (threadIdx.x == 256) {   // the filter stays in shared memory
            griddepcontrol_wait();
            const int bytes = strips.chunks * conv.R * conv.S * kTapBytes;
            mbarrier_arrive_expect(w_full, 2 * bytes);
            for (int i = 0; i < 2; ++i) {
                const int tile = min_of(k_tile + i, strips.k_tiles - 1);   // if there is no second
                bulk_load(s_bytes + strips.w_at + i * bytes,
                          reinterpret_cast<const char*>(g_packed) +
                              (int64_t(group) * strips.k_tiles + tile) * bytes,
                          bytes, w_full);
            }
        }
        load(conv, strips, s_bytes, x_full, x_empty, group, first_row, end_row, g_x);
        return;
    }

    // A consumer: multiplies and stores.
    const int consumer = warp / 4;
    const uint64_t x_first = wgmma_descriptor(s_bytes + strips.x_at, 16 * strips.pitch, 128);
    const uint64_t w_first = wgmma_moved(wgmma_descriptor(s_bytes + strips.w_at, 16 * kKTile, 128),
                                         consumer * strips.chunks * conv.R * conv.S * (kTapBytes / 16));
    const int k_first = (k_tile + consumer) * kKTile + warp % 4 * 16;   // of this warp's 16 channels
    const int k_count = K_group - k_first;
    float r_bias[2];
    for (int half = 0; half < 2; ++half) {
        const int k = 8 * half + lane / 4;
        r_bias[half] = g_bias && k < k_count ? g_bias[group * K_group + k_first + k] : 0.0f;
    }
    Number* s_y = reinterpret_cast<Number*>(s_bytes + strips.y_at) + warp * 8 * kYPitch;
    float r_even[kN / 2] = {}, r_odd[kN / 2] = {};
    int slot = 0;                            // of the next row of y's oldest row of x
    int freed = 0;                           // slot of the oldest row of x that is not yet freed
    int ready_slot = 0, ready_parity = 0;    // of the next row of x to wait for
    auto wait_for = [&](int rows) {
        for (int i = 0; i < rows; ++i) {
            mbarrier_wait(&x_full[ready_slot], ready_parity);
            if (++ready_slot == strips.ring) ready_slot = 0, ready_parity ^= 1;
        }
    };
    auto free_rows = [&](int rows) {
        for (int i = 0; i < rows; ++i) {
            if (lane == 0) mbarrier_arrive(&x_empty[freed]);
            if (++freed == strips.ring) freed = 0;
        }
    };
    mbarrier_wait(w_full, 0);
    for (int64_t at = first_row; at < end_row;) {
        const Part part = part_at(conv, strips, at, end_row);
        at += part.rows;
        // Starts a row's products of these chunks.
        auto start = [&](float (&r_sum)[kN / 2], int chunk, int end) {
            auto row_of = [&](int chunk, int r) {   // where the taps (r, 0) begin
                int from = slot + r * conv.dilation_h;
                if (from >= strips.ring) from -= strips.ring;
                return wgmma_moved(x_first, from * strips.row_units + 2 * chunk * strips.pitch);
            };
            wgmma_fence();
            if constexpr (k3x3) {   // without loops over the taps
                #pragma unroll 1
                for (; chunk < end; ++chunk) {
                    const uint64_t w_chunk = wgmma_moved(w_first, chunk * (9 * kTapBytes / 16));
                    #pragma unroll
                    for (int r = 0; r < 3; ++r) {
                        const uint64_t x_row = row_of(chunk, r);
                        #pragma unroll
                        for (int s = 0; s < 3; ++s)
                            wgmma_n(r_sum, wgmma_moved(w_chunk, (3 * r + s) * (kTapBytes / 16)),
                                    wgmma_moved(x_row, s * conv.dilation_w), chunk + r + s > 0);
                    }
                }
            } else {
                uint64_t w_tap =
                    wgmma_moved(w_first, chunk * conv.R * conv.S * (kTapBytes / 16));
                #pragma unroll 1
                for (; chunk < end; ++chunk) {
                    #pragma unroll 1
                    for (int r = 0; r < conv.R; ++r) {
                        uint64_t x_tap = row_of(chunk, r);
                        #pragma unroll 1
                        for (int s = 0; s < conv.S; ++s) {
                            wgmma_n(r_sum, w_tap, x_tap, chunk + r + s > 0);
                            w_tap = wgmma_moved(w_tap, kTapBytes / 16);
                            x_tap = wgmma_moved(x_tap, conv.dilation_w);
                        }
                    }
                }
            }
            wgmma_commit();
        };
        auto row_at = [&](int row) {   // where this warp's first channel of a row begins
            return g_y + ((int64_t(part.n) * conv.K + group * K_group + k_first) * conv.P + part.p0 +
                          row) * conv.Q + part.q0;
        };
        auto next_row = [&] {
            if (++slot == strips.ring) slot = 0;
        };
        const int some = (strips.chunks + 1) / 2;
        // The tensor cores compute `r_now`, of the next row, while this warp stores `r_done`. It has a
        // buffer for 8 of its 16 channels. The copy engine reads one half while products are started.
        auto turn = [&](int row, const float (&r_done)[kN / 2], float (&r_now)[kN / 2]) {
            wait_for(1);
            start(r_now, 0, some);
            wgmma_wait<1>();
            free_rows(1);
            store_half<0>(conv, strips, part, s_y, lane, k_count, r_bias, r_done, row_at(row));
            start(r_now, some, strips.chunks);
            next_row();
            store_half<1>(conv, strips, part, s_y, lane, k_count, r_bias, r_done, row_at(row));
        };
        auto finish = [&](int row, const float (&r_done)[kN / 2]) {
            wgmma_wait<0>();
            store_half<0>(conv, strips, part, s_y, lane, k_count, r_bias, r_done, row_at(row));
            store_half<1>(conv, strips, part, s_y, lane, k_count, r_bias, r_done, row_at(row));
        };
        wait_for(strips.window);
        start(r_even, 0, strips.chunks);
        next_row();
        int row = 0;
        while (true) {
            if (row + 1 == part.rows) {
                finish(row, r_even);
                break;
            }
            turn(row++, r_even, r_odd);
            if (row + 1 == part.rows) {
                finish(row, r_odd);
                break;
            }
            turn(row++, r_odd, r_even);
        }
        free_rows(strips.window);
        slot += strips.window - 1;
        if (slot >= strips.ring) slot -= strips.ring;
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, {kN, 1, 0, false, int(sizeof(Number))}));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* w,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    if (reinterpret_cast<uintptr_t>(x) % 8 != 0) return "x is not 8-byte aligned; pass a copy, x.clone()";
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t packed = int64_t(conv2d_workspace(problem, 0));
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    Strips strips = strips_for(conv, y, device.sms);
    strips.window = (conv.R - 1) * conv.dilation_h + 1;
    const int64_t filter = int64_t(strips.chunks) * conv.R * conv.S * kTapBytes;
    const int64_t y_at = kBarrierBytes + 2 * filter;
    const int64_t x_at = y_at + kYBytes;
    const int64_t ring = x_at > device.smem ? 0 : (device.smem - x_at) / (16 * int64_t(strips.row_units));
    if (ring <= strips.window) return "the rows do not fit into shared memory";
    strips.ring = int(min_of(ring, int64_t(kMaxRing)));
    strips.w_at = kBarrierBytes, strips.y_at = int(y_at), strips.x_at = int(x_at);
    strips.bytes = strips.x_at + strips.ring * strips.row_units * 16;
    auto* kernel = conv.R == 3 && conv.S == 3 ? conv2d_two_tiles<true> : conv2d_two_tiles<false>;
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
