// title: Stems on tensor cores
// idea: A stem has few channels and a large stride, so the filter and the input tile both fit into
//       shared memory. Rows of im2col's matrix are read directly from that tile, without bank
//       conflicts at stride 4.
// change: Against 10: x is staged once, not R*S times, and a tap is an offset into the stage. The
//       filter is staged once, in the order of fragments. A block computes many tiles; it
//       multiplies nothing while it stores.
// mapping: block -> k_parts * 16 output channels of one group, every n-th tile of up to 8 rows x 56
//       columns of y; warp -> a row of it, all channels; lane -> fragments of 16 x 8.
// precision: tf32
// epilogue: bias, relu
// supports: sm >= 80,
//       4 * ((C // groups * 32 + 1) * ((R * S + 7) // 8 * 8) + 944 + 2 * ((R - 1) * dilation_h + 2)
//       * (55 * stride_w + (S - 1) * dilation_w + 32)) <= smem
// best: tf32 == 1, groups == 1, C <= 4, stride_h >= 2
// limits: mma.sync, which has half of wgmma's rate on Hopper; and nothing is multiplied while a
//       block stores y. A tile always has 56 columns and 32, 64 or 96 channels, even if the problem
//       has fewer.
#include "convlab.cuh"
#include "tensor.cuh"
#include "stem_tile.cuh"

constexpr Shape kLarge = {6, 8, 1}, kMiddle = {4, 4, 3}, kSmall = {2, 8, 2};

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
conv2d_stem(ConvProblem conv, Tiling tiling, const float* __restrict__ g_x,
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
    for (int i = threadIdx.x; i < tiling.chunks * tiling.steps * kKParts * 32; i += 32 * b.warps) {
        const float4 w = b.s_w[i];
        b.s_w[i] =
            make_float4(round_tf32(w.x), round_tf32(w.y), round_tf32(w.z), round_tf32(w.w));
    }

    const int g = b.lane / 4, t = b.lane % 4;
    const int stride_w = kStride ? kStride : conv.stride_w;
    // x at h = p*stride_h - pad_h + r*dilation_h, w = q*stride_w - pad_w + s*dilation_w is, for a
    // warp's row p and a lane's columns q = g + 8 j, in a stage at lane_at + 8*j*stride_w + tap.
    // In a row of x, 4 taps and 8 outputs at stride 4 are 32 consecutive words. So the 32 lanes
    // that read a fragment use 32 different banks.
    const int lane_at = b.warp * conv.stride_h * tiling.pitch + g * stride_w;
    int stage = 0;
    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        float r_acc[kKParts][kParts][4];
        #pragma unroll
        for (int i = 0; i < kKParts; ++i)
            for (int j = 0; j < kParts; ++j)
                for (int e = 0; e < 4; ++e) r_acc[i][j][e] = b.s_bias[16 * i + g + e / 2 * 8];
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const float* s_lane = b.s_x + stage * tiling.stage_words + lane_at;
            stage ^= 1;
            if (++next.chunk == tiling.chunks) next.chunk = 0, next.tile += tiling.lanes;
            begin_stage(conv, tiling, b, g_x, next, b.s_x + stage * tiling.stage_words);
            __pipeline_wait_prior(0);
            __syncthreads();   // all have copied their part of this stage, and have read the other
            const float4* s_w = b.s_w + chunk * tiling.steps * kKParts * 32 + b.lane;
            // A step's fragments of x are read during the previous step, some with each part of 16
            // channels.
            int2 tap = b.s_tap[t];
            const float *s_low = nullptr, *s_high = nullptr;
            float r_x[kParts][2], r_next[kParts][2];
            auto find = [&]() {
                s_low = s_lane + max_of(tap.x, 0), s_high = s_lane + max_of(tap.y, 0);
            };
            auto read = [&](int j) {
                r_next[j][0] = s_low[8 * j * stride_w], r_next[j][1] = s_high[8 * j * stride_w];
            };
            auto take = [&]() {
                #pragma unroll
                for (int j = 0; j < kParts; ++j) {
                    r_x[j][0] = tap.x >= 0 ? before_truncation(r_next[j][0]) : 0.0f;
                    r_x[j][1] = tap.y >= 0 ? before_truncation(r_next[j][1]) : 0.0f;
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
                    const float r_w[4] = {w_next.x, w_next.y, w_next.z, w_next.w};
                    const int fragment = step * kKParts + i + 1;
                    w_next = s_w[(i + 1 < kKParts ? fragment : min_of(fragment, last)) * 32];
                    if (i == 1) find();
                    #pragma unroll
                    for (int j = (i - 1) * kReads; i > 0 && j < min_of(kParts, i * kReads); ++j)
                        read(j);
                    #pragma unroll
                    for (int j = 0; j < kParts; ++j) mma_m16n8k8_tf32(r_acc[i][j], r_w, r_x[j]);
                }
                take();
                if (next.row < next.rows) copy_row(conv, tiling, b, next);
            }
            while (next.row < next.rows) copy_row(conv, tiling, b, next);
            __pipeline_commit();
        }
        __syncthreads();   // all have read this stage; the next copies to it follow a barrier
        store_row(conv, tiling, b, tile_at(tiling, tile), r_acc,
                  b.s_x + (stage ^ 1) * tiling.stage_words + b.warp * kYWords, g_y);
    }
}

template <int kStride>
static const char* launch(const ConvProblem& conv, const float* x, const float* w,
                          const float* bias, float* y, cudaStream_t stream) {
    const Choice choices[] = {
        {kLarge, conv2d_stem<kStride, kLarge.k_parts, kLarge.warps, kLarge.blocks>},
        {kMiddle, conv2d_stem<kStride, kMiddle.k_parts, kMiddle.warps, kMiddle.blocks>},
        {kSmall, conv2d_stem<kStride, kSmall.k_parts, kSmall.warps, kSmall.blocks>}};
    return launch_stem(choices, conv, x, w, bias, y, stream);
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {
    if (problem->stride_w == 4) return launch<4>(*problem, x, w, bias, y, stream);
    if (problem->stride_w == 2) return launch<2>(*problem, x, w, bias, y, stream);
    return launch<0>(*problem, x, w, bias, y, stream);
}
