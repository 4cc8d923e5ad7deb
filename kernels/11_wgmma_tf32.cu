// title: Taps as moved starts on Hopper's tensor cores
// idea: wgmma reads both operands from shared memory, wherever a descriptor points. With x staged
//       as [channel quad][pixel][4], a filter tap is the same tile at another start: im2col costs
//       one addition. Producer warps transpose NCHW into that layout while consumer warps multiply.
// change: Against 10: operands are never gathered by taps nor read into registers; loading,
//       multiplying and storing overlap, handed on through mbarriers; blocks stay for many tiles.
// mapping: block -> 64 output channels of one group, for every so-manieth tile of pixels; two
//       consumer warpgroups -> 64 channels x 256 positions of the tile each; producer warps ->
//       three stage x, one the filter.
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90,
//       68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (256 * stride_w + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 10496 <= smem
//       or Q < 256 and 68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (Q * stride_w + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 10496 <= smem
// best: tf32 == 1, groups == 1, C >= 16, stride_h == 1, stride_w == 1, R * S >= 9, K >= 64,
//       N * P * Q * K >= 6000000
// limits: y leaves in runs of 1 KB, and a consumer stands still until the copy engine has taken
//       them: on `square`, on an H200, storing is half of a tile's 13,000 cycles. Tiles are of 64
//       channels and 512 positions, and reads of 8 channels, whether a problem has them or not.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_roles.cuh"

constexpr Style kStyle = {256, 1, 0, false};
constexpr int kBatch = 11;   // pixels that a loader has under way at a time

// A loader: in batches of pixels, through registers.
__device__ __forceinline__ void load(const ConvProblem& conv, const Tiling& tiling, const Block& b,
                                     const float* g_x) {
    struct Place {   // in the sequence of batches
        int tile, chunk, first;
    };
    struct Batch {
        float x[kBatch][kChunk];
    };
    const int thread = threadIdx.x - 256;
    const int C_group = conv.C / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W;
    auto advance = [&](Place& at) {
        at.first += 32 * kLoaders * kBatch;
        if (at.first < tiling.quad) return;
        at.first = 0;
        if (++at.chunk < tiling.chunks) return;
        at.chunk = 0;
        at.tile += tiling.lanes;
    };
    Tile tile = {};
    const float* x_c0 = nullptr;       // the chunk's first channel of the tile's first image
    auto load = [&](Batch& batch, const Place& at) {
        if (at.first == 0 && at.chunk == 0) {
            tile = tile_at(tiling, at.tile);
            x_c0 = g_x + (int64_t(tile.n) * conv.C + b.group * C_group) * HW;
        } else if (at.first == 0) {
            x_c0 += kChunk * HW;
        }
        const int channels = C_group - at.chunk * kChunk;
        #pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const Pixel pixel =
                pixel_at(conv, tiling, b, tile, at.first + i * 32 * kLoaders + thread);
            const float* x_pixel = x_c0 + pixel.at;
            #pragma unroll
            for (int c = 0; c < kChunk; ++c) {
                batch.x[i][c] = pixel.inside && c < channels ? *x_pixel : 0.0f;
                x_pixel += HW;
            }
        }
    };
    int stage = 0, parity = 0;
    auto store = [&](const Batch& batch, const Place& at) {
        if (at.first == 0) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
        float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at) + stage * 2 * tiling.quad;
        #pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int pixel = at.first + i * 32 * kLoaders + thread;
            if (pixel >= tiling.quad) break;
            const float (&x)[kChunk] = batch.x[i];
            s_x[pixel] = ready(x[0], x[1], x[2], x[3]);
            s_x[tiling.quad + pixel] = ready(x[4], x[5], x[6], x[7]);
        }
        if (at.first + 32 * kLoaders * kBatch < tiling.quad) return;
        fence_proxy_async();
        __syncwarp();
        if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
        if (++stage == tiling.stages) stage = 0, parity ^= 1;
    };
    // One batch at a time: with two, ptxas has stores of one wait for loads of the other too.
    // Its loads are under way while the stage that it is for is still in use.
    Batch batch;
    for (Place at{b.first_tile, 0, 0}; at.tile < tiling.tiles; advance(at)) {
        load(batch, at);
        store(batch, at);
    }
}

__global__ void __launch_bounds__(kThreads, 1)
conv2d_wgmma(ConvProblem conv, Tiling tiling, const float* __restrict__ g_x,
             const float* __restrict__ g_packed, const float* __restrict__ g_bias,
             float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, s_mem);
    set_up(conv, tiling, b);
    find_pixels(conv, tiling, b);
    __syncthreads();
    if (b.warp == 11) {
        load_filter(conv, tiling, b, g_packed, kStyle.terms);
    } else if (b.warp >= 8) {
        load(conv, tiling, b, g_x);
    } else {
        multiply(conv, tiling, b, g_bias, g_y);
    }
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t /*limit*/) {
    return size_t(packed_bytes(*problem, kStyle));
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    return launch_wgmma(conv2d_wgmma, kThreads, kStyle, *problem, x, w, bias, y, workspace,
                        workspace_bytes, stream);
}
