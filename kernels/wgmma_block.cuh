// The setup of a block in the rungs on wgmma, from 11 on: which warp has which role, where
// everything is in shared memory, and what the block writes there before the roles begin: the
// mbarriers, the table of taps and the loaders' table of pixels or rows of x. Include it after
// wgmma_tile.cuh.
#pragma once

constexpr int kLoaders = 3;     // warps that stage x
constexpr int kThreads = 384;   // two warpgroups of consumers, one of producers

// The parts of a block's shared memory, and which tiles and channels the block computes.
struct Block {
    char* s_bytes;
    uint64_t *x_full, *x_empty;   // mbarriers of each stage of x
    uint64_t *w_full, *w_empty;   // mbarriers of each slot of the filter
    unsigned *s_tap, *s_where;    // each tap's shift in the staged tile; the loaders' table
    int* s_k;                     // the block's first output channel; how many it has
    int warp, lane;
    int k_tile, group;            // k_tile: of all groups
    int first_tile;
};

__device__ __forceinline__ Block block_of(const ConvProblem& conv, const Tiling& tiling,
                                          float4* s_mem) {
    Block b;
    b.s_bytes = reinterpret_cast<char*>(s_mem);
    b.x_full = reinterpret_cast<uint64_t*>(s_mem);
    b.x_empty = b.x_full + tiling.stages;
    b.w_full = b.x_empty + tiling.stages;
    b.w_empty = b.w_full + tiling.slots;
    b.s_k = reinterpret_cast<int*>(b.s_bytes + tiling.x_at) - 2;
    b.s_tap = reinterpret_cast<unsigned*>(b.s_bytes + tiling.table_at);
    b.s_where = b.s_tap + conv.R * conv.S;
    // By a shuffle, so that the compiler treats it as uniform in the warp.
    b.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    b.lane = threadIdx.x % 32;
    b.k_tile = blockIdx.x / tiling.lanes;
    b.group = b.k_tile / tiling.k_tiles;
    b.first_tile = blockIdx.x % tiling.lanes;
    return b;
}

// Fills the table of taps and initialises the mbarriers. A __syncthreads() must follow.
__device__ __forceinline__ void set_up(const ConvProblem& conv, const Tiling& tiling,
                                       const Block& b) {
    for (int i = threadIdx.x; i < conv.R * conv.S; i += kThreads)
        b.s_tap[i] = tap_at(conv, tiling, i / conv.S, i % conv.S);
    if (threadIdx.x != 0) return;
    const int K_group = conv.K / conv.groups;
    const int k0 = b.k_tile % tiling.k_tiles * tiling.halves * kKTile;
    b.s_k[0] = b.group * K_group + k0;
    b.s_k[1] = K_group - k0;
    for (int i = 0; i < tiling.stages; ++i) {
        mbarrier_init(&b.x_full[i], kLoaders);
        mbarrier_init(&b.x_empty[i], 8);                     // the consumers' warps
    }
    for (int i = 0; i < tiling.slots; ++i) {
        mbarrier_init(&b.w_full[i], 1);
        mbarrier_init(&b.w_empty[i], 8);
    }
    mbarrier_fence_init();
}

// Four channels of a pixel, prepared for the tensor core's truncation to TF32.
__device__ __forceinline__ float4 ready(float x, float y, float z, float w) {
    return make_float4(before_truncation(x), before_truncation(y), before_truncation(z),
                       before_truncation(w));
}

// For loaders that read x pixel by pixel: fills s_where with each staged pixel's offset from the
// tile's first pixel in x, rows in the upper half, columns in the lower half.
__device__ __forceinline__ void find_pixels(const ConvProblem& conv, const Tiling& tiling,
                                            const Block& b) {
    for (int i = threadIdx.x; i < tiling.quad; i += kThreads) {
        const int plane = i / tiling.plane, row = i % tiling.plane / tiling.pitch;
        const int column = i % tiling.plane % tiling.pitch;
        const bool used = plane < conv.stride_h * conv.stride_w;   // else the value is never used
        b.s_where[i] = used ? unsigned(row * conv.stride_h + plane / conv.stride_w) << 16 |
                                  unsigned(column * conv.stride_w + plane % conv.stride_w)
                            : 0;
    }
}
// Staged pixel i of a tile: its offset from the tile's first image, in one channel; and whether it
// is inside x.
struct Pixel {
    int64_t at;
    bool inside;
};
__device__ __forceinline__ Pixel pixel_at(const ConvProblem& conv, const Tiling& tiling,
                                          const Block& b, const Tile& tile, int i) {
    const unsigned where = b.s_where[min_of(i, tiling.quad - 1)];
    const int image = divide(int(where >> 16), tiling.by_image_span);
    const int h = tile.p * conv.stride_h - conv.pad_h + int(where >> 16) -   // may be negative
                  image * tiling.image_rows * conv.stride_h;
    const int w = tile.q * conv.stride_w - conv.pad_w + int(where & 0xffff);
    return {(int64_t(image) * conv.C * conv.H + h) * conv.W + w,
            unsigned(h) < unsigned(conv.H) && unsigned(w) < unsigned(conv.W) &&
                tile.n + image < conv.N};
}

// For loaders that read x row by row: fills s_where with each staged row's distance, in rows of x,
// from the tile's first row.
__device__ __forceinline__ void find_rows(const ConvProblem& conv, const Tiling& tiling,
                                          const Block& b) {
    const int plane_rows = tiling.plane / tiling.pitch;
    for (int i = threadIdx.x; i < plane_rows * conv.stride_h; i += kThreads)
        b.s_where[i] = i % plane_rows * conv.stride_h + i / plane_rows;
    // wgmma also reads the padding between the rows and past the last row. No valid output uses
    // these pixels, which are zeros.
    float4* s_x = reinterpret_cast<float4*>(b.s_bytes + tiling.x_at);
    for (int i = threadIdx.x; i < tiling.stages * 2 * tiling.quad; i += kThreads) s_x[i] = {};
    fence_proxy_async();
}
