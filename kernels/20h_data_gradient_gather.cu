// title: Data gradient of small images on tensor cores
// idea: 17's tiles are flattened pixels, so small images and 1x1 filters waste none. With stride 1, 17
//       computes dx from dy. With stride 2, a pixel of dy has four elements of dx, which share its
//       fragments.
// change: Against 17: the filter is laid out anew in each call, turned. With a stride of 2, all four phases
//       of dx are computed at once, and stored as 16-byte vectors.
// mapping: stride 1: as 17. Stride 2: block -> every n-th item: 128 pixels of dy (192 if 1x1) x 64 channels
//       of dx (128 if 1x1) x a part of the filters; a consumer warpgroup -> 64 pixels.
// computes: data gradient
// parent: 17_wgmma_gather_tf32
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, N * H * W < 2147483000,
//       stride_h == 1 and stride_w == 1
//             and pad_h <= dilation_h * (R - 1) and pad_w <= dilation_w * (S - 1)
//       or stride_h == 2 and stride_w == 2 and R * S == 1 and pad_h + pad_w == 0
//       or stride_h == 2 and stride_w == 2 and R == 3 and S == 3 and pad_h == 1 and pad_w == 1
//             and dilation_h == 1 and dilation_w == 1,
//       R * S == 1 or stride_w == 2
//       or 80 * (Q + 2 * dilation_w * (S - 1) - 2 * pad_w + 6) * (2 + 190 // W
//             + (R - 1) * dilation_h * ((H + 190 // W) // H + 1)) + 8196 * (R * S + 3) <= smem
//       or (R * S > 12 or C // groups <= 64)
//             and 80 * (Q + 2 * dilation_w * (S - 1) - 2 * pad_w + 6) * (2 + 190 // W
//             + (R - 1) * dilation_h * ((H + 190 // W) // H + 1)) + 4100 * (R * S + 4) <= smem,
//       R * S == 1 or stride_w == 1
//       or 80 * (Q + 4) * (3 + 126 // Q + (P + 126 // Q) // P) + 44032 <= smem
// best: tf32 == 1, groups == 1, C >= 64, K >= 64, W <= 64, N * C * H * W >= 800000,
//       R == 3 and S == 3 and dilation_h == 1 and dilation_w == 1
//             and (stride_h == 1 or N * P * Q >= 6000)
//       or R * S == 1 and stride_h == 2 and N * P * Q >= 6000
// limits: The filter is laid out anew in each call, and a small layer waits for that. 1x1 filters wait
//       for the L2 cache. Wide images do not fit.
#include "turned.cuh"
// The rung's own entry points, under other names.
#define conv2d forward_convolution
#define conv2d_workspace forward_workspace
#define conv2d_plan forward_plan
#define conv2d_prepare forward_prepare
#include "17_wgmma_gather_tf32.cu"
#undef conv2d
#undef conv2d_workspace
#undef conv2d_plan
#undef conv2d_prepare

// ---- stride 2 ------------------------------------------------------------------------------------
// Pixel (u, v) of dy has the elements (2u + a, 2v + b) of dx: a and b are 0 or 1. A 3x3 filter with
// padding 1 brings 2u + a to dy's row (2u + a + 1 - r) / 2: u for a = 0, r = 1, and for a = 1, r = 2;
// u + 1 for a = 1, r = 0. Columns alike. So the phase 2a + b reads a shift 2i + j of dy, by i rows and
// j columns, if it has all bits of the shift. Four phases read four shifts by nine taps.
constexpr int kPhases = 4;
__host__ __device__ constexpr int tap_of(int phase, int shift) {   // 3 r + s
    return 3 * (phase / 2 ? 2 - shift / 2 * 2 : 1) + (phase % 2 ? 2 - shift % 2 * 2 : 1);
}

// A 1x1 filter reaches only the elements (2u, 2v); the others are zeros.
__host__ __device__ constexpr int phases_of(int mode) { return mode == kFlat ? 1 : kPhases; }
__host__ __device__ constexpr int tile_of(int mode) { return mode == kFlat ? 192 : 128; }
__host__ __device__ constexpr int channels_of(int mode) { return mode == kFlat ? 128 : 64; }

// A consumer's sums: wgmma's d of each phase, 64 pixels of dy x channels of dx.
template <int mode>
using Sums = float[phases_of(mode)][channels_of(mode) / 2];

// The convolution of dy that stages it. Shifts reach the next row and column, which may be zeros.
static ConvProblem staged(const ConvProblem& conv) {
    ConvProblem part = turned(conv);
    part.P = conv.P, part.Q = conv.Q;
    part.R = conv.R > 1 ? 2 : 1, part.S = part.R;
    part.stride_h = 1, part.stride_w = 1;
    part.pad_h = 0, part.pad_w = 0;
    return part;
}

// Stores a consumer's sums: lanes have pixels g and g + 8 of their warp's 16.
template <int mode>
__device__ __forceinline__ void store_phases(const ConvProblem& conv, const Work& work, const Block& b,
                                             const Item& item, const Sums<mode>& r_sum, float* g_dx) {
    constexpr int channels = channels_of(mode);
    const int g = b.lane / 4, t = b.lane % 4, odd = g % 2;
    const int C_group = conv.C / conv.groups, PQ = conv.P * conv.Q;
    const int c0 = item.k_tile % (work.k_tiles / conv.groups) * channels + 2 * t;   // in the group
    const int count = C_group - c0;
    const int64_t HW = int64_t(conv.H) * conv.W;
    auto at = [&](int pixel) {
        const int n = pixel / PQ, row = pixel % PQ / conv.Q, column = pixel % conv.Q;
        return g_dx + (int64_t(n) * conv.C + item.group * C_group + c0) * HW +
               2 * (int64_t(row) * conv.W + column);
    };
    auto height_at = [&](int pixel) { return conv.H - 2 * (pixel % PQ / conv.Q); };   // 1: one row
    const int m = item.m0 + 16 * b.warp;
    if (conv.W % 4 == 0) {
        // Lanes g and g ^ 1 exchange halves, so that each has two neighbouring pixels of dy: four
        // neighbours of dx.
        const int pixel = m + (odd ? 7 + g : g);
        const bool inside = pixel < work.pixels, two_rows = height_at(pixel) > 1;
        float* dx_c = at(pixel);
        #pragma unroll
        for (int j = 0; j < channels / 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                float r_row[4];   // the row of a phase: left and right phase of both pixels
                #pragma unroll
                for (int phase = 0; phase < kPhases; ++phase) {
                    const int right = phase % 2;
                    if (phase < phases_of(mode)) {
                        const int own = phase < phases_of(mode) ? phase : 0;
                        const float low = r_sum[own][4 * j + i], high = r_sum[own][4 * j + 2 + i];
                        const float other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 4);
                        r_row[right] = odd ? other : low;
                        r_row[2 + right] = odd ? high : other;
                    } else {
                        r_row[right] = r_row[2 + right] = 0.0f;
                    }
                    if (right == 0 || !inside || 8 * j + i >= count) continue;
                    if (phase == 1 || two_rows)
                        *reinterpret_cast<float4*>(dx_c + i * HW + phase / 2 * conv.W) =
                            make_float4(r_row[0], r_row[1], r_row[2], r_row[3]);
                }
            }
            dx_c += 8 * HW;
        }
        return;
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int pixel = m + 8 * half + g;
        if (pixel >= work.pixels) continue;
        const int height = height_at(pixel), width = conv.W - 2 * (pixel % conv.Q);
        float* dx_c = at(pixel);
        #pragma unroll
        for (int j = 0; j < channels / 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                #pragma unroll
                for (int phase = 0; phase < kPhases; ++phase) {
                    const int own = phase < phases_of(mode) ? phase : 0;
                    if (8 * j + i < count && phase / 2 < height && phase % 2 < width)
                        dx_c[i * HW + phase / 2 * conv.W + phase % 2] =
                            phase == own ? r_sum[own][4 * j + 2 * half + i] : 0.0f;
                }
            dx_c += 8 * HW;
        }
    }
}

// A consumer warpgroup: multiplies 64 pixels of dy of each item with the filter, and stores dx. `part`
// stages dy; `conv` is the problem.
template <int mode>
__device__ __forceinline__ void multiply_phases(const ConvProblem& conv, const ConvProblem& part,
                                                const Work& work, const Block& b, float* g_dx,
                                                float* g_parts) {
    constexpr int channels = channels_of(mode);
    const int plane = mode == kFlat ? tile_of(mode) + 8 : work.plane;   // the same, as a constant
    const uint64_t w_first = wgmma_descriptor(b.s_stages + work.x_bytes, 16 * channels, 128);
    Sums<mode> r_acc;
    int stage = 0, parity = 0;
    for (int number = blockIdx.x; number < work.items; number += gridDim.x) {
        const Item item = item_at(part, work, number);
        // A lane gathers two pixels, rows g and g + 8 of its warp's 16, and words t and t + 4.
        int at[2];
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            at[half] = 16 * b.warp + 8 * half + b.lane / 4;
            if (mode != kFlat) {
                const Pixel first = pixel_at(part, item.m0);
                const Pixel pixel = pixel_at(part, min_of(item.m0 + at[half], work.pixels - 1));
                at[half] = row_at(work, pixel.n - first.n, pixel.p, first.p) * work.pitch + pixel.q;
            }
            at[half] += b.lane % 4 * plane;
        }
        int added = 0;   // 1: the sums hold something
        for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
            mbarrier_wait(&b.full[stage], parity);
            const Number* s_dy =
                reinterpret_cast<const Number*>(b.s_stages + stage * work.stage_bytes);
            const uint64_t w_stage = wgmma_moved(w_first, stage * (work.stage_bytes / 16));
            // A shift of dy is gathered while the one before it is multiplied. 1x1: steps of 8 filters.
            uint32_t r_both[2][4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint32_t (&r_dy)[4] = r_both[i % 2];
                if (i > 1) wgmma_wait<1>();
                const int shift = mode == kFlat ? i * 8 * plane : i / 2 * work.pitch + i % 2;
                const Number* s_0 = s_dy + at[0] + shift;
                const Number* s_1 = s_dy + at[1] + shift;
                r_dy[0] = operand(s_0, plane);
                r_dy[1] = operand(s_1, plane);
                r_dy[2] = operand(s_0 + 4 * plane, plane);
                r_dy[3] = operand(s_1 + 4 * plane, plane);
                wgmma_fence();
                if (mode == kFlat) {
                    wgmma_n(r_acc[0], r_dy, wgmma_moved(w_stage, i * 2 * channels), added);
                    added = 1;
                } else {
                    // A shift of dy is gathered once, for all phases that it reaches.
                    #pragma unroll
                    for (int phase = 0; phase < phases_of(mode); ++phase)
                        if ((phase & i) == i)
                            wgmma_n(r_acc[phase], r_dy,
                                    wgmma_moved(w_stage, tap_of(phase, i) * 2 * channels),
                                    added || i > 0);
                }
                wgmma_commit();
            }
            added = 1;
            wgmma_wait<0>();
            if (b.lane == 0) mbarrier_arrive(&b.empty[stage]);
            if (++stage == work.stages) stage = 0, parity ^= 1;
        }
        float* g_to = g_dx;
        if (work.splits > 1)
            g_to = g_parts + item.split * (int64_t(conv.N) * conv.C * conv.H * conv.W);
        store_phases<mode>(conv, work, b, item, r_acc, g_to);
    }
}

template <int mode>
__global__ void __launch_bounds__(2 * tile_of(mode) + kLoaders, 1)
data_gradient_phases(ConvProblem conv, ConvProblem part, Work work, const float* __restrict__ g_dy,
                     const char* __restrict__ g_packed, float* __restrict__ g_dx,
                     float* __restrict__ g_parts) {
    extern __shared__ float4 s_mem[];
    griddepcontrol_launch_dependents();   // add_parts may be launched when blocks end
    const Block b = set_up<mode, tile_of(mode)>(part, work, s_mem);
    if (b.warp >= 2 * tile_of(mode) / 32) {
        griddepcontrol_wait();   // until the filter is packed
        load_any<mode, tile_of(mode), channels_of(mode)>(part, work, b, g_dy, g_packed);
    } else {
        multiply_phases<mode>(conv, part, work, b, g_dx, g_parts);
    }
}

// ---- the filter in wgmma's order, rounded to TF32 --------------------------------------------------
// As in 17's plan, but its input channels are dy's, k, and its output channels are dx's, c. A thread
// packs all taps of one w[k][c], which are neighbours in memory.
struct Packing {
    int mode, channels, c_tiles, chunks, steps;   // c_tiles: of a group; steps: of a stage
    bool phases;
};
static Packing packing_of(const ConvProblem& conv) {
    const ConvProblem other = turned(conv);
    Packing packing = {};
    packing.phases = conv.stride_w == 2;
    packing.mode = !packing.phases ? mode_of(other) : conv.R == 1 ? kFlat : kSquare;
    packing.channels = packing.phases ? channels_of(packing.mode) : channels_of(other);
    packing.c_tiles = ceil_div(conv.C / conv.groups, packing.channels);
    packing.chunks = ceil_div(conv.K / conv.groups, depth_of(packing.mode));
    packing.steps = packing.mode == kFlat ? 4 : ceil_div(conv.R * conv.S, 3) * 3;
    return packing;
}
static int64_t pairs_of(const ConvProblem& conv, const Packing& packing) {   // of k and c
    return int64_t(conv.groups) * packing.c_tiles * packing.channels * packing.chunks *
           depth_of(packing.mode);
}
static int64_t packed_bytes(const ConvProblem& conv) {
    const Packing packing = packing_of(conv);
    const int steps = packing.mode == kFlat ? 1 : packing.steps;   // that hold a pair
    return ceil_div(pairs_of(conv, packing) * steps * 4, int64_t(256)) * 256;
}

// Int holds the number of pairs: a division of 64 bits takes as long as many additions.
template <typename Int>
__global__ void __launch_bounds__(256)
pack_turned(ConvProblem conv, Packing packing, Int pairs, const float* __restrict__ g_w,
            float* __restrict__ g_packed) {
    griddepcontrol_launch_dependents();
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int taps = conv.R * conv.S, depth = packing.mode == kFlat ? 32 : 8;
    const Int pair = Int(blockIdx.x) * 256 + threadIdx.x;
    if (pair >= pairs) return;
    Int rest = pair / 4;
    const int number = int(pair % 4), c_in = int(rest % packing.channels);
    rest /= packing.channels;
    const int quad = int(rest % (depth / 4));   // of the stage's filters
    rest /= depth / 4;
    const int chunk = int(rest % packing.chunks), c_tile = int(rest / packing.chunks);
    const int group = c_tile / packing.c_tiles;
    const int c = c_tile % packing.c_tiles * packing.channels + c_in;
    const int k = chunk * depth + quad * 4 + number;
    const bool inside = k < K_group && c < C_group;
    const float* w = g_w + ((int64_t(group) * K_group + k) * C_group + c) * taps;
    const bool flat = packing.mode == kFlat;
    float* to = g_packed + ((((int64_t(c_tile) * packing.chunks + chunk) * packing.steps +
                              (flat ? quad / 2 : 0)) * 2 + quad % 2) * packing.channels + c_in) * 4 +
                number;
    for (int step = 0; step < (flat ? 1 : packing.steps); ++step) {
        const int tap = packing.phases ? step : taps - 1 - step;   // turned, with stride 1
        *to = inside && tap >= 0 ? round_tf32(w[tap]) : 0.0f;
        to += 8 * packing.channels;
    }
}

// ---- the launch --------------------------------------------------------------------------------
static int64_t dx_bytes(const ConvProblem& conv) {
    return int64_t(conv.N) * conv.C * conv.H * conv.W * 4;
}
// How many blocks share the filters, with stride 2. See 17's cut_of.
static Cut cut_of_phases(const ConvProblem& conv, int sms, int64_t limit) {
    const Packing packing = packing_of(conv);
    const int tile = packing.mode == kFlat ? tile_of(kFlat) : tile_of(kSquare);
    const int64_t tiles = ceil_div(int64_t(conv.N) * conv.P * conv.Q, int64_t(tile)) *
                          packing.c_tiles * conv.groups;
    const double megabytes = double(dx_bytes(conv)) / 1e6;
    const double chunk = packing.mode == kFlat ? 0.58 : 0.45;   // microseconds
    Cut best = {tile, 1};
    double least = 0;
    for (int splits = 1; splits <= 8 && splits <= packing.chunks; ++splits) {
        if (splits > 1 && splits * dx_bytes(conv) > limit) break;
        const double time = double(ceil_div(tiles * splits, int64_t(sms))) *
                                (ceil_div(packing.chunks, splits) * chunk + 6) +
                            (splits > 1 ? 2 + 0.55 * (splits + 1) * megabytes : 0);
        if (least == 0 || time < least) {
            best = {tile, splits};
            least = time;
        }
    }
    return best;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const ConvProblem& conv = *problem;
    const size_t packed = size_t(packed_bytes(conv)), rest = limit > packed ? limit - packed : 0;
    if (conv.stride_w == 1) {
        const ConvProblem other = turned(conv);
        return packed + forward_workspace(&other, rest);
    }
    const int64_t most = int64_t(min_of(rest, size_t(INT64_MAX)));
    const int splits = cut_of_phases(conv, this_device().sms, most).splits;
    return packed + (splits == 1 ? 0 : size_t(splits * dx_bytes(conv)));
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem& conv = *problem;
    if (conv.N == 0) return nullptr;
    const size_t own = size_t(packed_bytes(conv));
    if (workspace_bytes < own) return "the workspace is too small for the filter";
    const Packing packing = packing_of(conv);
    const int64_t pairs = pairs_of(conv, packing);
    const int64_t blocks = ceil_div(pairs, int64_t(256));
    if (const char* error = too_many(blocks)) return error;
    float* g_packed = static_cast<float*>(workspace);
    if (pairs < INT32_MAX) {
        pack_turned<unsigned><<<unsigned(blocks), 256, 0, stream>>>(conv, packing, unsigned(pairs), w,
                                                                    g_packed);
    } else {
        pack_turned<int64_t><<<unsigned(blocks), 256, 0, stream>>>(conv, packing, pairs, w, g_packed);
    }
    char* rest = static_cast<char*>(workspace) + own;
    if (!packing.phases) {
        const ConvProblem other = turned(conv);
        return forward_convolution(&other, dy, g_packed, nullptr, dx, rest, workspace_bytes - own,
                                   stream);
    }
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const ConvProblem part = staged(conv);
    const Cut cut = cut_of_phases(conv, device.sms, int64_t(workspace_bytes - own));
    Work work;
    const char* refused = work_of(part, packing.mode, packing.channels, conv.R * conv.S, cut, device,
                                  dy, work);
    if (refused) return refused;
    float* parts = reinterpret_cast<float*>(rest);
    auto launch = [&](auto kernel) -> const char* {
        if (const char* error = ask_for_shared_memory(kernel, work.bytes)) return error;
        launch_dependent(kernel, min_of(work.items, device.sms), 2 * work.tile + kLoaders, work.bytes,
                         stream, conv, part, work, dy, reinterpret_cast<const char*>(g_packed), dx,
                         parts);
        return launch_error();
    };
    const char* error = packing.mode == kFlat ? launch(data_gradient_phases<kFlat>)
                                              : launch(data_gradient_phases<kSquare>);
    if (error || work.splits == 1) return error;
    ConvProblem output = turned(conv);   // dx in place of y
    const int64_t elements = dx_bytes(conv) / 4;
    const bool vectors = int64_t(conv.H) * conv.W % 4 == 0;
    const int adding = int(ceil_div(elements, int64_t(vectors ? 1024 : 256)));
    launch_dependent(add_parts, adding, 256, 0, stream, output, work.splits, vectors, parts,
                     static_cast<const float*>(nullptr), dx);
    return launch_error();
}
