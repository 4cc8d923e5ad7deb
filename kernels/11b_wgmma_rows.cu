// title: A block walks down the image on Hopper's tensor cores
// idea: The next output row needs only one more input row. So a block walks down a strip of columns
//       and loads each row once. Strips overlap, so that a block stores whole 32-byte sectors.
// change: Against 11: a ring of input rows replaces the stages, and the filter stays in shared memory.
//       The consumers have different channels and multiply in turns. The last strip also computes
//       the next row's first columns.
// mapping: block -> 128 output channels of one group, up to PART consecutive output rows of a strip
//       of columns, then other such parts; two consumer warpgroups -> 64 channels each; four
//       producer warps -> x. If the filter of 128 channels does not fit, a block has 64, and each
//       consumer has every other row.
// parent: 11_wgmma_tf32
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1, Q >= 4, (R - 1) * dilation_h <= 15,
//       35328 + (C // groups + 7) // 8 * (2048 * R * S
//             + 32 * ((R - 1) * dilation_h + 1) * (128 + (S - 1) * dilation_w)) <= smem
// best: tf32 == 1, groups == 1, C >= 16, C <= 24, K >= 128, R == 3, S == 3, dilation_h == 1,
//       dilation_w == 1, Q >= 512, N * P * Q * K >= 1000000000
// limits: Memory. Storing y takes most of the time, and loading x slows it down. With many channels
//       the filter leaves no room for the rows of x. A tile is 128 to 256 columns of one row, so
//       narrow images waste it.
#include "rows.cuh"

// Puts four channels of a pixel where wgmma expects them. With two terms, the low parts are `low` further.
__device__ __forceinline__ void put_quad(float4* s_to, int low, float x, float y, float z, float w) {
    if constexpr (kSplit) {
        const Parts a = parts_of(x), b = parts_of(y), c = parts_of(z), d = parts_of(w);
        s_to[0] = make_float4(a.high, b.high, c.high, d.high);
        s_to[low] = make_float4(a.low, b.low, c.low, d.low);
    } else {
        s_to[0] = ready(x, y, z, w);
    }
}

// Loads a number, and puts eight (or sixteen) channels of a pixel where wgmma expects them.
__device__ __forceinline__ float raw(const float* from) { return *from; }
__device__ __forceinline__ unsigned raw(const bf16* from) { return from->bits; }
__device__ __forceinline__ unsigned raw(const fp16* from) { return from->bits; }
__device__ __forceinline__ void put_pixel(float4* s_to, int pitch, int low, const float (&r_x)[8]) {
    put_quad(s_to, low, r_x[0], r_x[1], r_x[2], r_x[3]);
    put_quad(s_to + pitch, low, r_x[4], r_x[5], r_x[6], r_x[7]);
}
__device__ __forceinline__ void put_pixel(float4* s_to, int pitch, int, const unsigned (&r_x)[16]) {
    #pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
        const unsigned* x = r_x + 8 * octet;
        reinterpret_cast<uint4*>(s_to)[octet * pitch] = make_uint4(
            x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
    }
}
using Raw = decltype(raw(static_cast<const Number*>(nullptr)));

// Four pixels of a channel, as they are in NCHW, and where wgmma expects them: pixel j of four (or
// eight) channels, side by side.
using Vector = std::conditional_t<kSize == 4, float4, uint2>;
__device__ __forceinline__ void put_pixels(float4* s_to, int low, const float4 (&x)[4], int first,
                                           int end) {
    if (first <= 0 && end > 0) put_quad(s_to, low, x[0].x, x[1].x, x[2].x, x[3].x);
    if (first <= 1 && end > 1) put_quad(s_to + 1, low, x[0].y, x[1].y, x[2].y, x[3].y);
    if (first <= 2 && end > 2) put_quad(s_to + 2, low, x[0].z, x[1].z, x[2].z, x[3].z);
    if (first <= 3 && end > 3) put_quad(s_to + 3, low, x[0].w, x[1].w, x[2].w, x[3].w);
}
__device__ __forceinline__ void put_pixels(float4* s_to, int, const uint2 (&x)[8], int first,
                                           int end) {
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        // A word has two pixels. The even one is in its lower half, the odd one in the upper half.
        auto pair = [&](int c) {
            return j < 2 ? __byte_perm(x[c].x, x[c + 1].x, j % 2 ? 0x7632 : 0x5410)
                         : __byte_perm(x[c].y, x[c + 1].y, j % 2 ? 0x7632 : 0x5410);
        };
        if (first <= j && end > j)
            reinterpret_cast<uint4*>(s_to)[j] = make_uint4(pair(0), pair(2), pair(4), pair(6));
    }
}

struct Part {
    int n, q0, p0, rows;
};

// A producer warp: stages rows of x, and reads four pixels at a time. An item is four pixels of a
// quad (or octet) of channels, for each lane; a warp has eight such groups of pixels and four quads.
template <typename PartAt>
__device__ __forceinline__ void stage_vectors(const ConvProblem& conv, const Walk& walk,
                                              char* s_bytes, uint64_t* x_full, uint64_t* x_empty,
                                              int group, int first_part, const PartAt& part_at,
                                              const Number* g_x) {
    const int warp = threadIdx.x / 32 % kRowLoaders, lane = threadIdx.x % 32;
    const int C_group = conv.C / conv.groups, quads = 2 * walk.chunks;
    const int64_t HW = int64_t(conv.H) * conv.W;
    const int across = ceil_div(3 + walk.pitch, 32), items = across * ceil_div(quads, 4);
    const int my_quad = lane / 2 % 4, my_pixel = 4 * (lane % 2 + lane / 8 * 2);
    int slot = 0, parity = 0;
    for (int64_t i_part = first_part; i_part < walk.parts; i_part += walk.lanes) {
        const Part part = part_at(i_part);
        const Number* x_n = g_x + (int64_t(part.n) * conv.C + group * C_group) * HW;
        const int left = (part.q0 - conv.pad_w) & 3;   // pixels that are read but not staged
        // From this pixel on, a staged row holds the first columns of the next row. Both rows have only
        // zeros around this pixel, so four pixels never come from two rows.
        const bool last_strip = part.q0 + walk.columns >= conv.Q;
        const int next_at = walk.wraps && last_strip ? conv.Q - part.q0 + walk.gap : 1 << 30;
        const int h0 = part.p0 - conv.pad_h;
        for (int h = h0; h < h0 + part.rows - 1 + walk.window; ++h) {
            float4* s_row = reinterpret_cast<float4*>(s_bytes + walk.x_at) + slot * walk.row_units;
            for (int first = 0; first < items; first += kVectorItems * kRowLoaders) {
                Vector r_x[kVectorItems][kVector];
                #pragma unroll
                for (int i = 0; i < kVectorItems; ++i) {
                    const int item = first + i * kRowLoaders + warp;
                    const int quad = item / across * 4 + my_quad;
                    const int pixel = item % across * 32 + my_pixel - left;
                    const bool next = pixel >= next_at;
                    const int row = h + next;
                    const int w = (next ? pixel - next_at : part.q0 + pixel) - conv.pad_w;
                    const bool inside = unsigned(row) < unsigned(conv.H) &&
                                        unsigned(w) < unsigned(conv.W) && pixel < walk.pitch;
                    const int channels = inside ? C_group - quad * kVector : 0;
                    const Number* from = x_n + quad * kVector * HW + (int64_t(row) * conv.W + w);
                    #pragma unroll
                    for (int c = 0; c < kVector; ++c)
                        r_x[i][c] = c < channels ? *reinterpret_cast<const Vector*>(from + c * HW)
                                                 : Vector{};
                }
                if (first == 0) mbarrier_wait(&x_empty[slot], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kVectorItems; ++i) {
                    const int item = first + i * kRowLoaders + warp;
                    const int quad = item / across * 4 + my_quad;
                    const int pixel = item % across * 32 + my_pixel - left;
                    const int end = quad < quads ? walk.pitch - pixel : 0;
                    put_pixels(s_row + quad * walk.pitch + pixel, walk.row_units / 2, r_x[i],
                               -pixel, end);
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&x_full[slot]);
            if (++slot == walk.ring) {
                slot = 0;
                parity ^= 1;
            }
        }
    }
}

template <int kN>
__global__ void __launch_bounds__(kThreads, 1)
conv2d_rows(ConvProblem conv, Walk walk, const Number* __restrict__ g_x,
            const Number* __restrict__ g_packed, const float* __restrict__ g_bias,
            Number* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    char* s_bytes = reinterpret_cast<char*>(s_mem);
    uint64_t* x_full = reinterpret_cast<uint64_t*>(s_mem);
    uint64_t* x_empty = x_full + kMaxRing;
    uint64_t* w_full = x_empty + kMaxRing;
    uint64_t* turn = w_full + 1;   // one for each consumer
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int k_block = blockIdx.x / walk.lanes, first_part = blockIdx.x % walk.lanes;
    const int group = k_block / walk.k_blocks;
    const int k_tile = k_block % walk.k_blocks * (walk.alternate ? 1 : 2);
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;

    auto part_at = [&](int64_t i) {
        const int64_t row = i / walk.tiles_q;   // of parts
        Part part;
        part.n = int(row / walk.parts_p);
        part.q0 = int(i % walk.tiles_q) * walk.columns;
        part.p0 = int(row % walk.parts_p) * walk.part;
        part.rows = min_of(walk.part, conv.P - part.p0);
        return part;
    };

    if (threadIdx.x == 0) {
        for (int i = 0; i < walk.ring; ++i) {
            mbarrier_init(&x_full[i], kRowLoaders);
            mbarrier_init(&x_empty[i], 8);
        }
        mbarrier_init(w_full, 1);
        mbarrier_init(&turn[0], 4);
        mbarrier_init(&turn[1], 4);
        mbarrier_fence_init();
    }
    __syncthreads();

    if (warp >= 8) {   // a producer: stages the filter once, then the rows of x
        if constexpr (kSplit) setmaxnreg_dec<kLoaderRegisters>();
        if (threadIdx.x == 256) {
            griddepcontrol_wait();
            const int bytes = walk.filter_units * 16, copies = walk.alternate ? 1 : 2;
            mbarrier_arrive_expect(w_full, copies * bytes);
            for (int i = 0; i < copies; ++i) {
                const int tile = min_of(k_tile + i, walk.k_tiles - 1);   // if there is no second tile
                bulk_load(s_bytes + walk.w_at + i * bytes,
                          reinterpret_cast<const char*>(g_packed) +
                              (int64_t(group) * walk.k_tiles + tile) * bytes,
                          bytes, w_full);
            }
        }
        if (walk.vectors) {
            stage_vectors(conv, walk, s_bytes, x_full, x_empty, group, first_part, part_at, g_x);
            return;
        }
        const int thread = threadIdx.x - 256, items = walk.chunks * walk.pitch;
        const int64_t HW = int64_t(conv.H) * conv.W;
        int slot = 0, parity = 0;
        for (int64_t i_part = first_part; i_part < walk.parts; i_part += walk.lanes) {
            const Part part = part_at(i_part);
            const Number* x_n = g_x + (int64_t(part.n) * conv.C + group * C_group) * HW;
            // From this pixel on, a staged row holds the first columns of the next row.
            const bool last_strip = part.q0 + walk.columns >= conv.Q;
            const int next_at = walk.wraps && last_strip ? conv.Q - part.q0 + walk.gap : 1 << 30;
            const int h0 = part.p0 - conv.pad_h;
            for (int h = h0; h < h0 + part.rows - 1 + walk.window; ++h) {
                float4* s_row =
                    reinterpret_cast<float4*>(s_bytes + walk.x_at) + slot * walk.row_units;
                for (int first = 0; first < items; first += kItems * 32 * kRowLoaders) {
                    Raw r_x[kItems][kChannels];
                    #pragma unroll
                    for (int i = 0; i < kItems; ++i) {
                        const int item = first + i * 32 * kRowLoaders + thread;
                        const int chunk = item / walk.pitch, pixel = item - chunk * walk.pitch;
                        const bool next = pixel >= next_at;
                        const int row = h + next;
                        const int w = (next ? pixel - next_at : part.q0 + pixel) - conv.pad_w;
                        const bool inside =
                            unsigned(row) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W);
                        const Number* from =
                            x_n + chunk * kChannels * HW + int64_t(row) * conv.W + w;
                        const int channels = C_group - chunk * kChannels;
                        #pragma unroll
                        for (int c = 0; c < kChannels; ++c)
                            r_x[i][c] = inside && c < channels ? raw(from + c * HW) : Raw(0);
                    }
                    if (first == 0) mbarrier_wait(&x_empty[slot], parity ^ 1);
                    #pragma unroll
                    for (int i = 0; i < kItems; ++i) {
                        const int item = first + i * 32 * kRowLoaders + thread;
                        if (item >= items) break;
                        const int chunk = item / walk.pitch, pixel = item - chunk * walk.pitch;
                        put_pixel(s_row + 2 * chunk * walk.pitch + pixel, walk.pitch,
                                  walk.row_units / 2, r_x[i]);
                    }
                }
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(&x_full[slot]);
                if (++slot == walk.ring) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
        return;
    }

    // A consumer: multiplies and stores.
    if constexpr (kSplit) setmaxnreg_inc<kConsumerRegisters>();
    const int consumer = warp / 4, g = lane / 4, t = lane % 4;
    const uint64_t x_first = wgmma_descriptor(s_bytes + walk.x_at, 16 * walk.pitch, 128);
    const uint64_t w_first = wgmma_moved(wgmma_descriptor(s_bytes + walk.w_at, 16 * kKTile, 128),
                                         walk.alternate ? 0 : consumer * walk.filter_units);
    const int64_t PQ_once = int64_t(conv.P) * conv.Q;
    const unsigned plane_once = unsigned(PQ_once);
    // This warp's 16 channels, counted within the group.
    const int k_first = (k_tile + (walk.alternate ? 0 : consumer)) * kKTile + warp % 4 * 16;
    const int k_count = K_group - k_first;
    float r_bias[2];
    for (int half = 0; half < 2; ++half)
        r_bias[half] = g_bias && 8 * half + g < k_count
                           ? g_bias[group * K_group + k_first + 8 * half + g] : 0.0f;
    const float least = conv.relu ? 0.0f : -INFINITY;
    Number* s_y = reinterpret_cast<Number*>(s_bytes + walk.y_at) + warp * 8 * y_pitch(kN);
    float r_acc[kN / 2] = {};
    float r_more[kSplit ? kN / 2 : 1];       // with two terms: sums that are added to r_acc later
    int slot = 0;                            // of the oldest row of x that is needed
    int ready_slot = 0, ready_parity = 0;    // of the next row of x to wait for
    int rows_done = 0;                       // of earlier parts
    int turn_parity = consumer ^ 1;          // consumer 0 begins
    mbarrier_wait(w_full, 0);
    for (int64_t i_part = first_part; i_part < walk.parts; i_part += walk.lanes) {
        const Part part = part_at(i_part);
        const bool last_strip = part.q0 + walk.columns >= conv.Q;
        // Rows of x of this part, counted from 0: those that are staged, those that are freed.
        int ready_rows = 0, freed = 0;
        auto wait_until = [&](int rows) {
            for (; ready_rows < rows; ++ready_rows) {
                mbarrier_wait(&x_full[ready_slot], ready_parity);
                if (++ready_slot == walk.ring) {
                    ready_slot = 0;
                    ready_parity ^= 1;
                }
            }
        };
        auto free_until = [&](int rows) {
            wait_until(rows);
            for (; freed < rows; ++freed) {
                if (lane == 0) mbarrier_arrive(&x_empty[slot]);
                if (++slot == walk.ring) slot = 0;
            }
        };
        const int step = walk.alternate ? 2 : 1;
        const int first_row = walk.alternate ? (rows_done + consumer) & 1 : 0;
        rows_done += part.rows;
        for (int row = first_row; row < part.rows; row += step) {
            const int p = part.p0 + row;
            free_until(row);
            wait_until(row + walk.window);

            // One consumer multiplies while the other stores.
            mbarrier_wait(&turn[consumer], turn_parity);
            turn_parity ^= 1;
            auto row_of = [&](int chunk, int r) {   // where the taps (r, 0) begin
                int at = slot + r * conv.dilation_h;
                if (at >= walk.ring) at -= walk.ring;
                return wgmma_moved(x_first, at * walk.row_units + 2 * chunk * walk.pitch);
            };
            bool more = false;   // whether r_more has sums
            if constexpr (kSplit) {
                more = multiply_split(conv, walk, w_first, row_of, r_acc, r_more);
            } else if (conv.R == 3 && conv.S == 3) {   // without loops over the taps
                wgmma_fence();
                #pragma unroll 1
                for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                    const uint64_t w_chunk = wgmma_moved(w_first, chunk * (9 * kTapBytes / 16));
                    #pragma unroll
                    for (int r = 0; r < 3; ++r) {
                        const uint64_t x_row = row_of(chunk, r);
                        #pragma unroll
                        for (int s = 0; s < 3; ++s)
                            wgmma_n(r_acc, wgmma_moved(w_chunk, (3 * r + s) * (kTapBytes / 16)),
                                    wgmma_moved(x_row, s * conv.dilation_w), chunk + r + s > 0);
                    }
                }
                wgmma_commit();
            } else {
                uint64_t w_tap = w_first;
                for (int chunk = 0; chunk < walk.chunks; ++chunk) {
                    #pragma unroll 1
                    for (int r = 0; r < conv.R; ++r) {
                        uint64_t x_tap = row_of(chunk, r);
                        #pragma unroll 1
                        for (int s = 0; s < conv.S; ++s) {
                            wgmma_fence();
                            wgmma_n(r_acc, w_tap, x_tap, chunk + r + s > 0);
                            wgmma_commit();
                            wgmma_wait<1>();
                            w_tap = wgmma_moved(w_tap, kTapBytes / 16);
                            x_tap = wgmma_moved(x_tap, conv.dilation_w);
                        }
                    }
                }
            }
            if (lane == 0) mbarrier_arrive(&turn[consumer ^ 1]);
            wgmma_wait<0>();
            free_until(min_of(row + step, ready_rows));
            if constexpr (kSplit) {
                if (more) add(r_acc, r_more);
            }

            // What follows from PQ needs many registers: with two terms, only after the products.
            const int64_t PQ = kSplit ? int64_t(computed_late(conv.P)) * conv.Q : PQ_once;
            const unsigned plane = kSplit ? unsigned(PQ) : plane_once;
            // Which columns this block stores: `own` ones, plus what completes the last sector, minus
            // what is before the first whole sector. A plane's first and last sector may be in parts.
            const int n = computed_late(part.n);
            Number* y_row = g_y + ((int64_t(n) * conv.K + group * K_group + k_first) * conv.P +
                                   p) * conv.Q + part.q0;
            const unsigned offset = unsigned(reinterpret_cast<uintptr_t>(y_row) / kSize);
            const bool pairs = (offset | plane) % 2 == 0;
            const bool wrapped = walk.wraps && last_strip && p + 1 < conv.P;
            const bool from_start = part.q0 == 0 && !(walk.wraps && p > 0);
            const bool to_end = last_strip && !wrapped;
            const int own = last_strip ? conv.Q - part.q0 : walk.columns;
            // Where channel k's first column lies in its sector.
            auto phase_of = [&](int k) { return int((offset + unsigned(k) * plane) % kSector); };
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                bulk_wait_read<0>();
                __syncwarp();
                Number* s_put = s_y + g * y_pitch(kN) + phase_of(8 * half + g) % kVector + 2 * t;
                auto put_row = [&](auto in_pairs) {
                    #pragma unroll
                    for (int j = 0; j < kN / 8; ++j)
                        put<in_pairs.value>(
                            s_put + 8 * j,
                            max_nan(r_acc[4 * j + 2 * half] + r_bias[half], least),
                            max_nan(r_acc[4 * j + 2 * half + 1] + r_bias[half], least));
                };
                if (pairs) {
                    put_row(std::true_type());
                } else {
                    put_row(std::false_type());
                }
                if (wrapped) {
                    // The sums between two rows belong to no output. Close the gap.
                    __syncwarp();
                    Number* s_end = s_y + lane % 8 * y_pitch(kN) +
                                    phase_of(8 * half + lane % 8) % kVector + own + lane / 8;
                    Number r_next[kSector / 4];
                    #pragma unroll
                    for (int j = 0; j < kSector / 4; ++j) r_next[j] = s_end[walk.gap + 4 * j];
                    __syncwarp();
                    #pragma unroll
                    for (int j = 0; j < kSector / 4; ++j) s_end[4 * j] = r_next[j];
                }
                fence_proxy_async();
                __syncwarp();

                // One lane starts the copies, of eight channels. All lanes compute the same addresses,
                // so these lie in uniform registers, which a copy needs.
                const int channels = min_of(8, k_count - 8 * half);
                if (lane == 0) {
                    char* to = reinterpret_cast<char*>(y_row + 8 * half * PQ);
                    const char* from = reinterpret_cast<const char*>(s_y);
                    const int up = to_end ? 0 : 31;
                    #pragma unroll 1
                    for (int i = 0; i < channels; ++i) {
                        const int in_sector = int(reinterpret_cast<uintptr_t>(to) % 32);
                        const int head = (32 - in_sector) % 32;
                        const int tail = (in_sector + own * kSize + up) / 32 * 32 - in_sector;
                        if (tail > head)
                            bulk_store(to + head, from + in_sector % 16 + head, tail - head);
                        to += PQ * kSize;
                        from += y_pitch(kN) * kSize;
                    }
                    bulk_commit();
                }

                const int i = lane % 8, k = 8 * half + i;
                if ((from_start || to_end) && i < channels) {   // the parts of sectors
                    const int phase = phase_of(k), whole = (kSector - phase) % kSector;
                    const int begin = from_start ? 0 : whole;
                    const int first_end = min_of(own, whole);
                    const int last_begin = max_of(first_end, own - (phase + own) % kSector);
                    const Number* s_from = s_y + i * y_pitch(kN) + phase % kVector;
                    Number* y_k = y_row + k * PQ;
                    #pragma unroll
                    for (int j = 0; j < kSector / 4; ++j) {
                        const int column = lane / 8 + 4 * j;
                        if (begin + column < first_end)
                            y_k[begin + column] = s_from[begin + column];
                        if (to_end && last_begin + column < own)
                            y_k[last_begin + column] = s_from[last_begin + column];
                    }
                }
            }
        }
        free_until(part.rows - 1 + walk.window);
    }
    bulk_wait_read<0>();
}

template <int kN>
const char* run(const Walk& walk, const ConvProblem& conv, const Number* x, const Number* g_packed,
                const float* bias, Number* y, cudaStream_t stream) {
    if (const char* error = ask_for_shared_memory(conv2d_rows<kN>, walk.bytes)) return error;
    launch_dependent(conv2d_rows<kN>, conv.groups * walk.k_blocks * walk.lanes, kThreads, walk.bytes,
                     stream, conv, walk, x, g_packed, bias, y);
    return launch_error();
}

constexpr int kWidths[] = {WIDTHS};

template <int kFirst>
const char* run_any(int n, const Walk& walk, const ConvProblem& conv, const Number* x,
                    const Number* g_packed, const float* bias, Number* y, cudaStream_t stream) {
    if constexpr (kFirst < int(sizeof(kWidths) / sizeof(int))) {
        if (n == kWidths[kFirst])
            return run<kWidths[kFirst]>(walk, conv, x, g_packed, bias, y, stream);
        return run_any<kFirst + 1>(n, walk, conv, x, g_packed, bias, y, stream);
    }
    return "no such width";
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, {256, kTerms, 0, false, kSize}));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* w,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int64_t packed = packed_bytes(conv, {256, kTerms, 0, false, kSize});
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    const bool aligned = reinterpret_cast<uintptr_t>(y) % 32 == 0 && conv.Q % kSector == 0;
    const bool wraps = !aligned && conv.Q >= kSector && conv.P > 1;
    const bool in_fours = conv.W % 4 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(Vector) == 0 &&
                          conv.C / conv.groups > kChannels;
    // Take the width that computes the fewest columns.
    Walk best = {};
    int64_t best_cost = 0;
    int best_n = 0;
    auto try_width = [&](int n, bool vectors) {
        Walk walk = {};
        walk.chunks = ceil_div(conv.C / conv.groups, kChannels);
        walk.vectors = vectors;
        walk.k_tiles = ceil_div(conv.K / conv.groups, kKTile);
        walk.alternate = walk.k_tiles == 1;
        const int spare = 2;   // rows, so that the loaders are ahead of the consumers
        if (!walk.alternate && !place(walk, conv, device.smem, n, spare)) walk.alternate = true;
        if (walk.alternate && !place(walk, conv, device.smem, n, spare) &&
            !place(walk, conv, device.smem, n, 0)) return;
        if (!(wraps && cut(walk, conv, n, aligned, true)) && !cut(walk, conv, n, aligned, false))
            return;
        walk.k_blocks = walk.alternate ? walk.k_tiles : ceil_div(walk.k_tiles, 2);
        const int64_t cost = int64_t(walk.tiles_q) * n;
        if (best_n == 0 || cost < best_cost) {
            best = walk;
            best_cost = cost;
            best_n = n;
        }
    };
    if (in_fours)
        for (int n : kWidths) try_width(n, true);
    if (best_n == 0)   // the rows are a little wider if x is read in fours
        for (int n : kWidths) try_width(n, false);
    if (best_n == 0) return "the rows do not fit into shared memory";
    // Enough parts that all blocks have about the same number of them.
    const int64_t strips = int64_t(conv.N) * best.tiles_q;
    const int blocks = max_of(1, device.sms / (conv.groups * best.k_blocks));
    best.part = min_of(conv.P, PART);
    while (best.part > 8 && strips * ceil_div(conv.P, best.part) < 2 * blocks)
        best.part = ceil_div(best.part, 2);
    best.parts_p = ceil_div(conv.P, best.part);
    best.parts = strips * best.parts_p;
    best.lanes = int(min_of(best.parts, int64_t(blocks)));
    Tiling tiling = {};
    tiling.chunks = best.chunks, tiling.k_tiles = best.k_tiles;
    Number* g_packed = static_cast<Number*>(workspace);
    const int64_t count = packed / kSize;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_filter<Number><<<pack_blocks, 256, 0, stream>>>(conv, tiling, kTerms, w, g_packed, count);
    return run_any<0>(best_n, best, conv, x, g_packed, bias, y, stream);
}
