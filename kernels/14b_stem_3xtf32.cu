// title: Stems on tensor cores, with fp32 accuracy
// idea: As in 13, each number is split into a high and a low TF32 part, and three products are
//       added. Numbers are split when fragments are read, so shared memory holds no more than in
//       14.
// change: Against 14: three products, the small ones first. After 4 steps of 8 taps, sums move from
//       the tensor cores to ordinary registers, because tensor cores truncate. Two sets of sums
//       halve the channels of a block.
// mapping: as 14; warp -> a row of the tile, 48 or 32 channels.
// parent: 14_stem_tf32
// precision: fp32
// epilogue: bias, relu
// supports: sm >= 80,
//       4 * ((C // groups * 32 + 1) * ((R * S + 7) // 8 * 8) + 944 + 2 * ((R - 1) * dilation_h + 2)
//       * (55 * stride_w + (S - 1) * dilation_w + 32)) <= smem
// best: tf32 == 0, groups == 1, C <= 4, stride_h >= 2
// limits: Three products where TF32 has one. A tile always has 56 columns and 32 or 48 channels,
//       even if the problem has fewer. An infinity times an infinity is NaN.
#include "convlab.cuh"
#include "tensor.cuh"
#include "stem_tile.cuh"

constexpr Shape kLarge = {3, 8, 1}, kSmall = {2, 4, 3};
constexpr int kPeriod = 4;   // after this many steps, sums move from r_acc to r_sum

// A stage that is being copied. Each warp copies every n-th row; n is the number of warps.
struct Stage {
    int tile, chunk;
    const float* x_row;   // this warp's next row, at its first column in x (may be left of x)
    float* s_row;         // the same in the stage
    int i, h;             // the row's number in its channel of the stage; in x
    int w0;               // the first column: may be negative
    int channels;         // channels of x from this row's on
    int row, rows;        // the row's number over all channels; rows to copy
};

__device__ __forceinline__ void begin_stage(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b, const float* g_x, Stage& stage,
                                            float* s_stage) {
    const Tile at = tile_at(tiling, stage.tile);
    const int C_group = conv.C / conv.groups, c0 = stage.chunk * tiling.channels;
    stage.i = b.warp;
    stage.h = at.p * conv.stride_h - conv.pad_h + b.warp;
    stage.w0 = at.q * conv.stride_w - conv.pad_w + b.lane;
    stage.x_row = g_x + stage.w0 +
                  ((int64_t(at.n) * conv.C + b.group * C_group + c0) * conv.H + stage.h) * conv.W;
    stage.s_row = s_stage + b.warp * tiling.pitch + b.lane;
    stage.channels = C_group - c0;
    stage.row = b.warp;
    stage.rows = stage.tile < tiling.tiles ? tiling.channels * tiling.extent_h : 0;
}

// Copies this warp's next row, asynchronously. Channels past the last are zeros, like the padding.
__device__ __forceinline__ void copy_row(const ConvProblem& conv, const Tiling& tiling,
                                         const Block& b, Stage& stage) {
    if (stage.i >= tiling.extent_h) {   // a channel has at least as many rows as there are warps
        stage.i -= tiling.extent_h, stage.h -= tiling.extent_h, --stage.channels;
        stage.x_row += int64_t(conv.H - tiling.extent_h) * conv.W;
        stage.s_row += tiling.plane - tiling.extent_h * tiling.pitch;
    }
    const bool inside = stage.channels > 0 && stage.h >= 0 && stage.h < conv.H;
    const unsigned width = inside ? conv.W : 0;
    #pragma unroll 1
    for (int first = 0; first < tiling.extent_w; first += 128) {
        #pragma unroll
        for (int column = first; column < first + 128; column += 32)
            if (column + b.lane < tiling.extent_w)
                copy_async<4>(stage.s_row + column, stage.x_row + column,
                              unsigned(stage.w0 + column) < width);
    }
    stage.i += b.warps, stage.h += b.warps, stage.row += b.warps;
    stage.x_row += b.warps * int64_t(conv.W);
    stage.s_row += b.warps * tiling.pitch;
}

// kStride: the stride along w, as a constant for the compiler; 0: any stride.
template <int kStride, int kKParts, int kWarps, int kBlocks>
__global__ void __launch_bounds__(32 * kWarps, kBlocks)
conv2d_stem_parts(ConvProblem conv, Tiling tiling, const float* __restrict__ g_x,
            const float* __restrict__ g_w, const float* __restrict__ g_bias,
            float* __restrict__ g_y) {
    constexpr int kReads = ceil_div(kParts, kKParts - 1);
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, kKParts, s_mem);
    set_up(conv, tiling, b, kKParts, g_w, g_bias);
    Stage next = {b.first_tile, 0};
    begin_stage(conv, tiling, b, g_x, next, b.s_x);
    while (next.row < next.rows) copy_row(conv, tiling, b, next);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();   // the filter has arrived

    const int g = b.lane / 4, t = b.lane % 4;
    const int stride_w = kStride ? kStride : conv.stride_w;
    // x at h = p*stride_h - pad_h + r*dilation_h, w = q*stride_w - pad_w + s*dilation_w is, for a
    // warp's row p and a lane's columns q = g + 8 j, in a stage at lane_at + 8*j*stride_w + tap.
    const int lane_at = b.warp * conv.stride_h * tiling.pitch + g * stride_w;
    int stage = 0;
    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        float r_sum[kKParts][kParts][4], r_acc[kKParts][kParts][4] = {};
        #pragma unroll
        for (int i = 0; i < kKParts; ++i)
            for (int j = 0; j < kParts; ++j)
                for (int e = 0; e < 4; ++e) r_sum[i][j][e] = b.s_bias[16 * i + g + e / 2 * 8];
        auto add = [&]() {
            #pragma unroll
            for (int i = 0; i < kKParts; ++i)
                for (int j = 0; j < kParts; ++j)
                    for (int e = 0; e < 4; ++e)
                        r_sum[i][j][e] += r_acc[i][j][e], r_acc[i][j][e] = 0;
        };
        int since = 0;   // steps since sums moved to r_sum
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const float* s_lane = b.s_x + stage * tiling.stage_words + lane_at;
            stage ^= 1;
            if (++next.chunk == tiling.chunks) next.chunk = 0, next.tile += tiling.lanes;
            begin_stage(conv, tiling, b, g_x, next, b.s_x + stage * tiling.stage_words);
            __pipeline_wait_prior(0);
            __syncthreads();   // all have copied their part of this stage, and have read the other
            const float4* s_w = b.s_w + chunk * tiling.steps * kKParts * 32 + b.lane;
            int2 tap = b.s_tap[t];
            const float *s_low = nullptr, *s_high = nullptr;
            float r_high[kParts][2], r_low[kParts][2], r_next[kParts][2];
            auto find = [&]() {
                s_low = s_lane + max_of(tap.x, 0), s_high = s_lane + max_of(tap.y, 0);
            };
            auto read = [&](int j) {
                r_next[j][0] = s_low[8 * j * stride_w], r_next[j][1] = s_high[8 * j * stride_w];
            };
            auto take = [&]() {
                #pragma unroll
                for (int j = 0; j < kParts; ++j)
                    for (int e = 0; e < 2; ++e) {
                        const bool inside = (e == 0 ? tap.x : tap.y) >= 0;
                        const Parts x = parts_of(inside ? r_next[j][e] : 0.0f);
                        r_high[j][e] = x.high, r_low[j][e] = x.low;
                    }
            };
            find();
            #pragma unroll
            for (int j = 0; j < kParts; ++j) read(j);
            take();
            float4 w_next = s_w[0];
            const int last = tiling.steps * kKParts - 1;
            #pragma unroll 1
            for (int step = 0; step < tiling.steps; ++step) {
                tap = b.s_tap[4 * step + 4 + t];   // after the last step: no taps
                #pragma unroll
                for (int i = 0; i < kKParts; ++i) {
                    const Parts w[4] = {parts_of(w_next.x), parts_of(w_next.y), parts_of(w_next.z),
                                        parts_of(w_next.w)};
                    const float w_high[4] = {w[0].high, w[1].high, w[2].high, w[3].high};
                    const float w_low[4] = {w[0].low, w[1].low, w[2].low, w[3].low};
                    const int fragment = step * kKParts + i + 1;
                    w_next = s_w[(i + 1 < kKParts ? fragment : min_of(fragment, last)) * 32];
                    if (i == 1) find();
                    #pragma unroll
                    for (int j = (i - 1) * kReads; i > 0 && j < min_of(kParts, i * kReads); ++j)
                        read(j);
                    // The small products come first, while truncating the small sum loses little.
                    #pragma unroll
                    for (int j = 0; j < kParts; ++j)
                        mma_m16n8k8_tf32(r_acc[i][j], w_low, r_high[j]);
                    #pragma unroll
                    for (int j = 0; j < kParts; ++j)
                        mma_m16n8k8_tf32(r_acc[i][j], w_high, r_low[j]);
                    #pragma unroll
                    for (int j = 0; j < kParts; ++j)
                        mma_m16n8k8_tf32(r_acc[i][j], w_high, r_high[j]);
                }
                take();
                if (++since == kPeriod) add(), since = 0;
                if (next.row < next.rows) copy_row(conv, tiling, b, next);
            }
            while (next.row < next.rows) copy_row(conv, tiling, b, next);
            __pipeline_commit();
        }
        add();
        __syncthreads();   // all have read this stage; the next copies to it follow a barrier
        store_row(conv, tiling, b, tile_at(tiling, tile), r_sum,
                  b.s_x + (stage ^ 1) * tiling.stage_words + b.warp * kYWords, g_y);
    }
}

template <int kStride>
static const char* launch(const ConvProblem& conv, const float* x, const float* w,
                          const float* bias, float* y, cudaStream_t stream) {
    const Choice choices[] = {
        {kLarge, conv2d_stem_parts<kStride, kLarge.k_parts, kLarge.warps, kLarge.blocks>},
        {kSmall, conv2d_stem_parts<kStride, kSmall.k_parts, kSmall.warps, kSmall.blocks>}};
    return launch_stem(choices, conv, x, w, bias, y, stream);
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    if (problem->stride_w == 4) return launch<4>(*problem, x, w, bias, y, stream);
    if (problem->stride_w == 2) return launch<2>(*problem, x, w, bias, y, stream);
    return launch<0>(*problem, x, w, bias, y, stream);
}
