// title: NHWC on Hopper's tensor cores
// idea: In NHWC, 8 channels of a pixel are 16 contiguous bytes, one row of wgmma's operand, so
//       cp.async copies x directly into the stage. In return, sums must be transposed before they
//       are stored; stmatrix does this.
// change: Against 15: channels come last in x, w and y. A filter that fits stays in shared memory.
//       With an even number of k tiles, both consumers then share 256 positions, so x is staged
//       half as often.
// mapping: as 15; a loader's item is 16 pixels of a row, two lanes each. A warp stores 64 channels
//       of 4 pixels at a time.
// parent: 15_wgmma_bf16
// precision: bf16
// epilogue: bias, relu
// arch: sm_90a
// tensors: x bf16 NHWC, w bf16 KRSC, y bf16 NHWC, bias f32
// supports: sm >= 90, C % (8 * groups) == 0,
//       68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (256 * stride_w + (S - 1) * dilation_w))
//       + 4 * R * S + 16384 <= smem
//       or Q < 256 and 68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (Q * stride_w + (S - 1) * dilation_w))
//       + 4 * R * S + 16384 <= smem
// limits: A block's two consumers store at the same time, and nothing is multiplied meanwhile. On
//       `wide`, about a quarter of the time goes to stores and a seventh to waits for x; on
//       `square`, with one chunk per tile, 70% goes to stores.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

#if !defined(NUMBER)
#define NUMBER bf16   // or fp16, for 16b
#endif
using Number = NUMBER;

constexpr int kOctet = 8;          // channels in 16 bytes; a stage has two octets of each pixel
constexpr int kBatch = 18;         // items that a loader warp copies at a time
constexpr int kPart = 32;          // positions of y that a consumer transposes at a time
constexpr int kPixelPitch = 2 * kKTile + 16;   // bytes: stores of 8 pixels have no bank conflict

// d += a b^T in the number's format.
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b,
                                                 int accumulate) {
    if constexpr (std::is_same_v<Number, bf16>) {
        wgmma_m64n256k16_bf16(d, a, b, accumulate);
    } else {
        wgmma_m64n256k16_fp16(d, a, b, accumulate);
    }
}

// The mbarrier with which a consumer's four warps synchronise.
__device__ __forceinline__ uint64_t* meeting_of(const Tiling& tiling, const Block& b,
                                                int consumer) {
    return b.w_empty + tiling.slots + consumer;
}
__device__ __forceinline__ void meet(uint64_t* meeting, int lane, int parity) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(meeting);
    mbarrier_wait(meeting, parity);
}

// Fills the loaders' table: for each staged row of each plane, its distance in rows and columns
// from the tile's first pixel in x.
__device__ __forceinline__ void find_plane_rows(const ConvProblem& conv,
                                                const Tiling& tiling, const Block& b) {
    const int plane_rows = tiling.plane / tiling.pitch;
    for (int i = threadIdx.x; i < plane_rows * conv.stride_h * conv.stride_w; i += kThreads) {
        const int plane = i / plane_rows;
        b.s_where[i] = unsigned(i % plane_rows * conv.stride_h + plane / conv.stride_w) << 16 |
                       unsigned(plane % conv.stride_w);
    }
    // wgmma also reads past the last row. No valid output uses these pixels, which are zeros.
    uint4* s_x = reinterpret_cast<uint4*>(b.s_bytes + tiling.x_at);
    const int staged = tiling.plane * conv.stride_h * conv.stride_w;
    for (int i = staged + threadIdx.x; i < tiling.quad; i += kThreads)
        for (int octet = 0; octet < 2 * tiling.stages; ++octet) s_x[octet * tiling.quad + i] = {};
    fence_proxy_async();
}

// A loader warp: copies x into the stages, in batches of items, by cp.async. An item is 16 pixels
// of a staged row.
__device__ __forceinline__ void load(const ConvProblem& conv, const Tiling& tiling,
                                     const Block& b, const Number* g_x) {
    const int C_group = conv.C / conv.groups;
    const int rows = tiling.plane / tiling.pitch * conv.stride_h * conv.stride_w;
    const int octet = b.lane % 2, across = ceil_div(tiling.pitch, 16), items = across * rows;
    const int c_lane = b.group * C_group + octet * kOctet;
    uint4* s_x = reinterpret_cast<uint4*>(b.s_bytes + tiling.x_at);   // [stage][octet][pixel]
    const Number* r_from[kBatch];   // an item's pixel of this lane, at the lane's channels of x
    unsigned inside = 0;            // a bit for each item: whether that pixel is inside x
    int r_to[kBatch];               // its pixel in the staged octet; or -1
    // cp.async writes through the generic proxy, wgmma reads through the asynchronous proxy. So a
    // loader waits for its own copies and executes the proxy fence before it arrives on x_full. All
    // stages but two can have copies in flight.
    const int lead = tiling.stages - 2, batch = kLoaders * kBatch;
    int stage = 0, parity = 0;
    int done = -lead;   // the next stage to complete; negative: none yet
    auto announce = [&] {
        if (done >= 0) {
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[done]);
        }
        if (++done == tiling.stages) done = 0;
    };
    for (int number = b.first_tile; number < tiling.tiles; number += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const bool has_channels = (chunk * 2 + octet) * kOctet < C_group;
            uint4* s_octet = s_x + (2 * stage + octet) * tiling.quad;
            for (int first = 0; first < items; first += batch) {
                if (chunk == 0 || items > batch) {   // else only the channels differ
                    const Tile tile = tile_at(tiling, number);
                    const int h0 = tile.p * conv.stride_h - conv.pad_h;   // may be negative
                    const int w0 = tile.q * conv.stride_w - conv.pad_w;
                    inside = 0;
                    #pragma unroll
                    for (int i = 0; i < kBatch; ++i) {
                        const int item = first + i * kLoaders + b.warp - 8;
                        const int row = item / across, column = item % across * 16 + b.lane / 2;
                        const unsigned where = b.s_where[min_of(row, rows - 1)];
                        const int image = divide(int(where >> 16), tiling.by_image_span);
                        const int n = tile.n + image;
                        const int h =
                            h0 + int(where >> 16) - image * tiling.image_rows * conv.stride_h;
                        const int w = w0 + int(where & 0xffff) + column * conv.stride_w;
                        r_from[i] = g_x + ((int64_t(n) * conv.H + h) * conv.W + w) * conv.C +
                                    c_lane + chunk * 2 * kOctet;
                        inside |= unsigned(unsigned(h) < unsigned(conv.H) &&
                                           unsigned(w) < unsigned(conv.W) && n < conv.N) << i;
                        r_to[i] =
                            row < rows && column < tiling.pitch ? row * tiling.pitch + column : -1;
                    }
                }
                if (first == 0) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    if (r_to[i] >= 0)
                        copy_async16(s_octet + r_to[i], r_from[i],
                                     has_channels && (inside >> i & 1));
                    r_from[i] += 2 * kOctet;
                }
            }
            __pipeline_commit();
            if (lead == 0) __pipeline_wait_prior(0);
            if (lead == 1) __pipeline_wait_prior(1);
            if (lead == 2) __pipeline_wait_prior(2);
            announce();
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
        }
    }
    __pipeline_wait_prior(0);
    for (int i = 0; i < lead; ++i) announce();
}

// Stores a consumer's sums, laid out as wgmma's d, to y. A thread has pixels of one channel, but in
// y the channels of a pixel are neighbours. stmatrix transposes the sums, 8 x 8 numbers at a time.
// Then 8 lanes store 64 channels of a pixel, 128 contiguous bytes.
template <int positions>
__device__ __forceinline__ void store_pixels(const ConvProblem& conv, const Tiling& tiling,
                                           const Block& b, int tile, const Channels& mine,
                                           const float (&r_sum)[positions / 2], Number* g_y) {
    const int consumer = b.warp / 4, warp = b.warp % 4, lane = b.lane;
    const Tile at = tile_at(tiling, tile);
    const int beside = tiling.halves == 1 ? consumer : 0;   // which of the tile's positions
    const int limit = tiling.halves == 1 && consumer == 0 ? tiling.step : positions;
    const int k = lane % 8 * kOctet;                        // of this consumer's 64, in y
    const int channels = mine.count + warp * 16 - k;        // that are there from k on
    Number* y_k = g_y + mine.first - warp * 16 + k;
    const bool vectors = conv.K / conv.groups % kOctet == 0;
    // If a consumer's positions are one row of y, one comparison decides which of them exist.
    const bool one_row = vectors && tiling.images == 1 && tiling.rows == 3 - tiling.halves;
    const int p0 = at.p + beside;
    const int length = p0 < conv.P && channels > 0 ? min_of(tiling.columns, conv.Q - at.q) : 0;
    Number* y_row = y_k + ((int64_t(at.n) * conv.P + p0) * conv.Q + at.q) * conv.K;
    uint64_t* meeting = meeting_of(tiling, b, consumer);
    char* s_y = b.s_bytes + tiling.y_at + consumer * kPart * kPixelPitch;   // [pixel][channel]
    // A lane passes the address of one row, 8 channels, of one of four matrices: 2 along pixels x 2
    // along channels.
    char* s_to = s_y + (lane / 16 * 8 + lane % 8) * kPixelPitch + warp * 32 + lane / 8 % 2 * 16;
    const char* s_from = s_y + (warp * 8 + lane / 8) * kPixelPitch + 2 * k;
    // Transposes one part through shared memory. Afterwards a lane has 8 channels, 16 bytes, of
    // each of kPart / 16 positions.
    auto turn = [&](int part, uint4 (&r_y)[kPart / 16]) {
        #pragma unroll
        for (int i = 0; i < kPart / 16; ++i) {
            uint32_t r_pair[4];   // of neighbouring pixels, in one channel
            #pragma unroll
            for (int m = 0; m < 4; ++m) {
                const float* d = &r_sum[part * kPart / 2 + 8 * i + m / 2 * 4 + m % 2 * 2];
                r_pair[m] = rounded(y_of(conv, d[0] + mine.bias[m % 2], g_y),
                                    y_of(conv, d[1] + mine.bias[m % 2], g_y), g_y);
            }
            stmatrix_x4_trans(s_to + i * 16 * kPixelPitch, r_pair);
        }
        meet(meeting, lane, 0);   // all have stored
        #pragma unroll
        for (int i = 0; i < kPart / 16; ++i)
            r_y[i] = *reinterpret_cast<const uint4*>(s_from + 4 * i * kPixelPitch);
        meet(meeting, lane, 1);   // all have read
    };
    // A loop of its own: the jumps of the general case would slow down every store.
    if (one_row) {
        #pragma unroll
        for (int part = 0; part < positions / kPart; ++part) {
            uint4 r_y[kPart / 16];
            turn(part, r_y);
            #pragma unroll
            for (int i = 0; i < kPart / 16; ++i) {
                const int position = part * kPart + warp * 8 + 4 * i + lane / 8;
                if (length > position)
                    __stcs(reinterpret_cast<uint4*>(y_row + int64_t(position) * conv.K), r_y[i]);
            }
        }
        return;
    }
    #pragma unroll
    for (int part = 0; part < positions / kPart; ++part) {
        uint4 r_y[kPart / 16];
        turn(part, r_y);
        #pragma unroll
        for (int i = 0; i < kPart / 16; ++i) {
            const int mine_at = part * kPart + warp * 8 + 4 * i + lane / 8;
            const int position = beside * tiling.step + mine_at;
            const int row = divide(position, tiling.by_pitch);
            const int column = position - row * tiling.pitch;
            const int image = divide(row, tiling.by_image_rows);
            const int n = at.n + image, p = at.p + row - image * tiling.image_rows;
            const int q = at.q + column;
            if (mine_at >= limit || row >= tiling.rows || p >= conv.P || n >= conv.N ||
                column >= tiling.columns || q >= conv.Q) continue;
            Number* y = y_k + ((int64_t(n) * conv.P + p) * conv.Q + q) * conv.K;
            if (vectors) {
                if (channels > 0) __stcs(reinterpret_cast<uint4*>(y), r_y[i]);
            } else {
                const unsigned words[] = {r_y[i].x, r_y[i].y, r_y[i].z, r_y[i].w};
                #pragma unroll
                for (int c = 0; c < kOctet; ++c)
                    if (c < channels) y[c].bits = uint16_t(words[c / 2] >> c % 2 * 16);
            }
        }
    }
}

// The filter's warp: the copy engine copies the packed filter into the slots, slice by slice. A
// slice is [tap][octet][64 channels][8] for each of the block's k tiles. A filter that stays in
// shared memory is copied for the first tile only; for later tiles the warp just arrives on the
// barriers.
__device__ __forceinline__ void load_filter(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const Number* g_packed) {
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

// A consumer warpgroup: multiplies 64 channels x 256 positions of each tile, and stores them to y.
__device__ __forceinline__ void multiply(const ConvProblem& conv, const Tiling& tiling,
                                         const Block& b, const float* g_bias, Number* g_y) {
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
                            wgmma_m64n256k16(r_acc, w_tap, x_tap, chunk + first + tap > 0);
                        }
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (i == 0 && chunk + first > 0) release(first == 0);
                        i += 3;
                    } else {
                        wgmma_fence();
                        const uint64_t w_tap = wgmma_moved(w_slot, i * (kTapBytes / 16));
                        const uint64_t x_tap = wgmma_moved(x_stage, b.s_tap[first + i]);
                        wgmma_m64n256k16(r_acc, w_tap, x_tap, chunk + first + i > 0);
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
        store_pixels<256>(conv, tiling, b, tile, mine, r_acc, g_y);
    }
    bulk_wait_read<0>();   // until the copy engine has read this block's shared memory
}

__global__ void __launch_bounds__(kThreads, 1)
conv2d_wgmma_nhwc(ConvProblem conv, Tiling tiling, const Number* __restrict__ g_x,
                  const Number* __restrict__ g_packed, const float* __restrict__ g_bias,
                  Number* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, s_mem);
    if (threadIdx.x == 0)
        for (int consumer = 0; consumer < 2; ++consumer)
            mbarrier_init(meeting_of(tiling, b, consumer), 4);
    set_up(conv, tiling, b);
    find_plane_rows(conv, tiling, b);
    __syncthreads();
    if (b.warp == 11) {
        load_filter(conv, tiling, b, g_packed);
    } else if (b.warp >= 8) {
        load(conv, tiling, b, g_x);
    } else {
        multiply(conv, tiling, b, g_bias, g_y);
    }
}

// Packs the filter into wgmma's operand layout: [group, k tile][chunk][r][s][octet][64
// channels][8].
__global__ void __launch_bounds__(256)
pack_octets(ConvProblem conv, int chunks, const uint4* __restrict__ g_w,
            uint4* __restrict__ g_packed, int64_t count) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int taps = conv.R * conv.S, k_tiles = ceil_div(K_group, kKTile);
    griddepcontrol_launch_dependents();
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / (2 * kKTile);
        const int tap = int(rest % taps);
        rest /= taps;
        const int c = (int(rest % chunks) * 2 + int(i / kKTile % 2)) * kOctet;
        rest /= chunks;
        const int k = int(rest % k_tiles) * kKTile + int(i % kKTile);
        const int64_t row = (rest / k_tiles * K_group + k) * taps + tap;   // of w, C_group long
        g_packed[i] = c < C_group && k < K_group ? g_w[(row * C_group + c) / kOctet] : uint4{};
    }
}

// Returns the tiling of a problem; its `stages` is 0 if there are too many tiles or they do not
// fit.
inline Tiling pixel_tiling_for(const ConvProblem& conv, int smem, int multiprocessors) {
    const int all_taps = conv.R * conv.S;
    Tiling t = {};
    auto fits = [&](int stages, int slots) {
        const int rows = t.plane / t.pitch * conv.stride_h * conv.stride_w;
        const int64_t barriers = ceil_div((2 * stages + 2 * slots + 2) * 8, 128) * 128;
        const int64_t table = ceil_div(4 * (all_taps + rows + 2), 128) * 128;
        const int64_t x_bytes = int64_t(stages) * 32 * t.quad;
        const int64_t w_bytes = int64_t(slots) * t.halves * t.taps * kTapBytes;
        const int64_t bytes = barriers + table + x_bytes + w_bytes + 2 * kPart * kPixelPitch;
        if (bytes > smem) return false;
        t.stages = stages, t.slots = slots, t.bytes = int(bytes);
        t.table_at = int(barriers), t.x_at = int(t.table_at + table);
        t.w_at = int(t.x_at + x_bytes), t.y_at = int(t.w_at + w_bytes);
        return true;
    };
    auto cut_for = [&](int halves) {
        t = {};
        t.taps = all_taps;
        if (!cut(t, conv, multiprocessors, {256, 1, 0, false, 2, halves})) return false;
        t.quad += (12 - t.quad % 8) % 8;   // 4 pixels x 2 octets: no bank conflict
        return true;
    };
    auto keeps_filter = [&] { return t.resident = t.chunks <= 64 && fits(3, t.chunks); };
    const bool even = ceil_div(conv.K / conv.groups, kKTile) % 2 == 0;
    if (!(even && cut_for(2) && keeps_filter())) {
        if (!cut_for(1)) return t;
        if (!keeps_filter()) {
            while (!fits(2, 2)) {
                if (t.taps == 1) return t;
                t.taps = ceil_div(t.taps, 3);
            }
            while (t.slots < 4 && fits(t.stages, t.slots + 1)) {}
        }
    }
    while (t.stages < kMaxStages && fits(t.stages + 1, t.slots)) {}
    return t;
}

static int64_t filter_bytes(const ConvProblem& conv) {
    return int64_t(conv.groups) * ceil_div(conv.K / conv.groups, kKTile) *
           ceil_div(conv.C / conv.groups, 2 * kOctet) * conv.R * conv.S * kTapBytes;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(filter_bytes(*problem));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const Number* x, const Number* w,
                                 const float* bias, Number* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0)
        return "x is not 16-byte aligned; pass a copy, x.clone()";
    if (reinterpret_cast<uintptr_t>(w) % 16 != 0)
        return "w is not 16-byte aligned; pass a copy, w.clone()";
    if (reinterpret_cast<uintptr_t>(y) % 16 != 0)
        return "y is not 16-byte aligned";
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const Tiling tiling = pixel_tiling_for(conv, device.smem, device.sms);
    if (tiling.stages == 0) return "the tiles are more than 2^31, or do not fit into shared memory";
    const int64_t packed = filter_bytes(conv);
    if (int64_t(workspace_bytes) < packed) return "the workspace is too small for the filter";
    if (const char* error = ask_for_shared_memory(conv2d_wgmma_nhwc, tiling.bytes)) return error;

    const int64_t count = packed / 16;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_octets<<<pack_blocks, 256, 0, stream>>>(conv, tiling.chunks,
                                                 reinterpret_cast<const uint4*>(w),
                                                 static_cast<uint4*>(workspace), count);
    const int grid = conv.groups * tiling.k_tiles * tiling.lanes;
    launch_dependent(conv2d_wgmma_nhwc, grid, kThreads, tiling.bytes, stream, conv, tiling, x,
                     static_cast<const Number*>(workspace), bias, y);
    return launch_error();
}
