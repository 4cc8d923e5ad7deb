// title: x by 16-byte reads on Hopper's tensor cores
// idea: Four neighbouring pixels of four channels are four reads of 16 bytes, 16 registers and four
//       stores of 16 bytes: the transposition costs no instruction. Tiles begin at multiples of 4
//       columns; wgmma may start anywhere, so the surplus on the left costs nothing either.
// change: Against 11: a loader's item is 4 pixels of a quad instead of one pixel of 8 channels, a
//       quarter of the instructions. The eight lanes whose stores share a turn take 2 rows and 2
//       quads, or they would meet in two of eight banks' groups.
// mapping: as 11; a loader warp takes items of 2 rows x 2 quads x 8 groups of 4 columns.
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, W % 4 == 0, stride_w == 1,
//       64 * (512 * stride_h + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (264 + (S - 1) * dilation_w))
//       + 4 * (R + 1) * (dilation_h + 512) + 4096 + 4 * R * S + 11264 <= smem
// best: tf32 == 1, groups == 1, C >= 32, stride_h == 1, stride_w == 1, R * S >= 9, K >= 64,
//       N * P * Q * K >= 6000000
// limits: as 11, with a shorter wait for x: wgmma reads 80 of the 128 bytes that shared memory has
//       for a cycle, and staging x and y takes much of the rest. It pays where there are many
//       channels; with few, as in `square`, 11 is the quicker one.
#include "convlab.cuh"
#include "tensor.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_roles.cuh"

constexpr Style kStyle = {256, 1, 0, true};
constexpr int kBatch = 6;   // items that a loader has under way at a time

// A loader: in batches of items, through registers.
__device__ __forceinline__ void load(const ConvProblem& conv, const Tiling& tiling, const Block& b,
                                     const float* g_x) {
    const int C_group = conv.C / conv.groups;
    const int rows = tiling.plane / tiling.pitch * conv.stride_h;   // of x, in a tile
    float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at);   // [stage][quad][pixel]
    // A lane's part of an item: bit 1 is the quad, bit 2 the row, the others the column group.
    const int quad = b.lane / 2 % 2, odd_row = b.lane / 4 % 2;
    const int column = 4 * (b.lane % 2 + b.lane / 8 * 2);
    const int across = ceil_div(tiling.pitch - 1, 32);   // no row's last pixel is read
    const int items = across * ceil_div(rows, 2);
    const int64_t HW = int64_t(conv.H) * conv.W;
    const float* r_from[kBatch];       // in the quad's first channel,
    bool inside[kBatch];               // if it is inside of x
    int r_to[kBatch];                  // in the staged quad; or -1
    float4 r_x[kBatch][4];             // four pixels of each of the quad's channels
    auto find = [&](int number, int first, int chunk) {
        const Tile tile = tile_at(tiling, number);
        const int h0 = tile.p * conv.stride_h - conv.pad_h;                 // may be negative
        const int w0 = tile.q * conv.stride_w - conv.pad_w - tiling.left;   // a multiple of 4
        const int c = b.group * C_group + chunk * kChunk + 4 * quad;
        const float* x_quad = g_x + (int64_t(tile.n) * conv.C + c) * HW;
        #pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int item = first + i * kLoaders + b.warp - 8;
            const int row = item / across * 2 + odd_row, w = item % across * 32 + column;
            const int where = int(b.s_where[min_of(row, rows - 1)]);
            const int image = divide(where, tiling.by_image_span);
            const int h = h0 + where - image * tiling.image_rows * conv.stride_h;
            r_from[i] = x_quad + int64_t(image) * conv.C * HW + (int64_t(h) * conv.W + w0 + w);
            inside[i] = row < rows && unsigned(h) < unsigned(conv.H) &&
                        unsigned(w0 + w) < unsigned(conv.W) && tile.n + image < conv.N;
            r_to[i] = row < rows && w < tiling.pitch - 1 ? row * tiling.pitch + w : -1;
        }
    };
    const int batch = kLoaders * kBatch;   // items of all loaders
    int stage = 0, parity = 0;
    for (int tile = b.first_tile; tile < tiling.tiles; tile += tiling.lanes) {
        for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
            const int channels = C_group - chunk * kChunk - 4 * quad;
            float4* s_quad = s_x + (2 * stage + quad) * tiling.quad;
            for (int first = 0; first < items; first += batch) {
                // Under way while the stage is still in use. Not two batches at a time: ptxas
                // has the stores of one wait for the loads of the other too.
                if (chunk == 0 || items > batch) find(tile, first, chunk);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int limit = inside[i] ? channels : 0;
                    #pragma unroll
                    for (int c = 0; c < 4; ++c)
                        r_x[i][c] = c < limit ? *reinterpret_cast<const float4*>(
                                                    r_from[i] + c * HW)
                                              : float4{};
                    r_from[i] += kChunk * HW;
                }
                if (first == 0) mbarrier_wait(&b.x_empty[stage], parity ^ 1);
                #pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    if (r_to[i] < 0) continue;
                    const float4 (&x)[4] = r_x[i];
                    s_quad[r_to[i]] = ready(x[0].x, x[1].x, x[2].x, x[3].x);
                    s_quad[r_to[i] + 1] = ready(x[0].y, x[1].y, x[2].y, x[3].y);
                    s_quad[r_to[i] + 2] = ready(x[0].z, x[1].z, x[2].z, x[3].z);
                    s_quad[r_to[i] + 3] = ready(x[0].w, x[1].w, x[2].w, x[3].w);
                }
            }
            fence_proxy_async();
            __syncwarp();
            if (b.lane == 0) mbarrier_arrive(&b.x_full[stage]);
            if (++stage == tiling.stages) stage = 0, parity ^= 1;
        }
    }
}

__global__ void __launch_bounds__(kThreads, 1)
conv2d_wgmma(ConvProblem conv, Tiling tiling, const float* __restrict__ g_x,
             const float* __restrict__ g_packed, const float* __restrict__ g_bias,
             float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    const Block b = block_of(conv, tiling, s_mem);
    set_up(conv, tiling, b);
    find_rows(conv, tiling, b);
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
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0)
        return "x does not begin at a multiple of 16 bytes; pass a copy, x.clone()";
    return launch_wgmma(conv2d_wgmma, kThreads, kStyle, *problem, x, w, bias, y, workspace,
                        workspace_bytes, stream);
}
