// The parts of 08b_winograd_4x4 besides its loop: the transform of the filter, the tiles of a
// block, their loads, and the stores of outputs. Include it after the rung's constants.
#pragma once

// G of three numbers: the values of w[0] + w[1] t + w[2] t^2 at the points, divided by the scale of
// B'.
__device__ __forceinline__ void transform_w(const float (&w)[3], float (&u)[6]) {
    constexpr float at_a = 1 / (2 * kA2 * (kA2 - kB2)), at_b = 1 / (2 * kB2 * (kB2 - kA2));
    const float even_a = at_a * (w[0] + kA2 * w[2]), odd_a = at_a * kA * w[1];
    const float even_b = at_b * (w[0] + kB2 * w[2]), odd_b = at_b * kB * w[1];
    u[0] = w[0] / (kA2 * kB2);
    u[1] = even_a + odd_a;
    u[2] = even_a - odd_a;
    u[3] = even_b + odd_b;
    u[4] = even_b - odd_b;
    u[5] = w[2];
}

// g_u: (groups, k_tiles, C_group, 36, 32), with u = G w G'. Channels past K are zeros.
__global__ void __launch_bounds__(256)
transform_filter(ConvProblem conv, int first_group, int groups, const float* __restrict__ g_w,
                 float* __restrict__ g_u) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int k_tiles = ceil_div(K_group, kTile);
    const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
    const int c = int(i / kTile % C_group);
    const int k = int(i / kTile / C_group % k_tiles) * kTile + int(i % kTile);
    const int64_t group = i / kTile / C_group / k_tiles;   // in the workspace
    if (group >= groups) return;
    const float* w_kc = g_w + (((first_group + group) * K_group + k) * C_group + c) * 9;   // (3, 3)
    float r_half[6][3];   // G w
    #pragma unroll
    for (int s = 0; s < 3; ++s) {
        float r_w[3], r_u[6];
        #pragma unroll
        for (int r = 0; r < 3; ++r) r_w[r] = k < K_group ? w_kc[r * 3 + s] : 0.0f;
        transform_w(r_w, r_u);
        #pragma unroll
        for (int e = 0; e < 6; ++e) r_half[e][s] = r_u[e];
    }
    float* u = g_u + i / kTile * kRow + i % kTile;
    #pragma unroll
    for (int e = 0; e < 6; ++e) {
        float r_u[6];
        transform_w(r_half[e], r_u);
        #pragma unroll
        for (int f = 0; f < 6; ++f) u[(6 * e + f) * kTile] = r_u[f];
    }
}

// The tiles of 4 x 4 outputs, and how x and y may be accessed.
struct Tiling {
    int64_t HW, PQ;
    int tiles_q, per_image;
    int C_group, k_tiles;   // of a group
    int slices;             // k_tiles of all groups: items that share tiles follow each other
    bool quads;    // four columns of a tile are 16-byte aligned in x, and all inside or all outside
    int aligned;   // alignment of a tile's rows in y, in floats: 4, 2 or 1
};

struct alignas(16) Quad {
    float v[4];
};

// An item of work: 32 channels x 32 tiles, and the tile of this lane.
struct Item {
    int group, k_tile;   // the group in the workspace
    int n, p, q;         // the first output of the tile; n >= N if the tile does not exist
};

__device__ __forceinline__ Item item_at(const Tiling& tiling, unsigned item, unsigned lane) {
    const unsigned slice = item % unsigned(tiling.slices), k_tiles = tiling.k_tiles;
    const unsigned t = item / unsigned(tiling.slices) * kTile + lane;
    const unsigned per_image = tiling.per_image, tiles_q = tiling.tiles_q, rest = t % per_image;
    return {int(slice / k_tiles), int(slice % k_tiles), int(t / per_image),
            int(rest / tiles_q) * 4, int(rest % tiles_q) * 4};
}

// A lane's tile of x, which it loads and transforms.
struct Pixels {
    const float* x;   // the first of the tile's 6 x 6 pixels; may be outside the image
    unsigned mask;    // bit i: row i is inside x; bit 6 + j: column j is
    bool inside;      // the whole tile is inside x, in all lanes
};

__device__ __forceinline__ Pixels pixels_of(const ConvProblem& conv, const Tiling& tiling,
                                            const Item& item, int first_group, const float* g_x) {
    const int h0 = item.p - conv.pad_h, w0 = item.q - conv.pad_w;
    const int64_t plane =
        int64_t(item.n) * conv.C + int64_t(first_group + item.group) * (conv.C / conv.groups);
    unsigned mask = 0;
    #pragma unroll
    for (int i = 0; i < 6; ++i) {
        if (item.n < conv.N && h0 + i >= 0 && h0 + i < conv.H) mask |= 1u << i;
        if (w0 + i >= 0 && w0 + i < conv.W) mask |= 64u << i;
    }
    return {g_x + plane * tiling.HW + int64_t(h0) * conv.W + w0, mask,
            __all_sync(0xffffffffu, mask == 0xfff) != 0};
}

// Loads kFloats neighbours, aligned to their size, if `inside`; else returns zeros. It uses a
// predicate: if these were branches, ptxas would make jumps, and each load would wait for its jump.
template <int kFloats>
__device__ __forceinline__ void load_if(bool inside, const float* g_from, float* r_to) {
    #pragma unroll
    for (int i = 0; i < kFloats; ++i) r_to[i] = 0.0f;
#ifdef CONVLAB_SIMULATOR
    struct alignas(4 * kFloats) Floats { float v[kFloats]; };
    if (!inside) return;
    const Floats floats = *reinterpret_cast<const Floats*>(g_from);
    for (int i = 0; i < kFloats; ++i) r_to[i] = floats.v[i];
#else
    if constexpr (kFloats == 4)
        asm("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4]; }"
            : "+f"(r_to[0]), "+f"(r_to[1]), "+f"(r_to[2]), "+f"(r_to[3])
            : "l"(g_from), "r"(int(inside)));
    else if constexpr (kFloats == 2)
        asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.nc.v2.f32 {%0, %1}, [%2]; }"
            : "+f"(r_to[0]), "+f"(r_to[1]) : "l"(g_from), "r"(int(inside)));
    else
        asm("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.f32 %0, [%1]; }"
            : "+f"(r_to[0]) : "l"(g_from), "r"(int(inside)));
#endif
}

// Prefetches the cache line of this address into L2. It does not block.
__device__ __forceinline__ void fetch_to_L2([[maybe_unused]] const float* g_from) {
#ifndef CONVLAB_SIMULATOR
    asm volatile("prefetch.global.L2 [%0];" :: "l"(g_from));
#endif
}

template <bool kInside>
__device__ __forceinline__ void load_tile(const float* x, unsigned mask, int W, int pad_w,
                                          bool quads, float (&r_x)[6][6]) {
    #pragma unroll
    for (int i = 0; i < 6; ++i, x += W) {
        const auto inside = [&](int j) { return kInside || (mask >> i & mask >> (6 + j) & 1); };
        if (quads && pad_w == 0) {
            load_if<4>(inside(0), x, r_x[i]);
            load_if<2>(inside(5), x + 4, r_x[i] + 4);
        } else if (quads) {
            load_if<1>(inside(0), x, r_x[i]);
            load_if<4>(inside(1), x + 1, r_x[i] + 1);
            load_if<1>(inside(5), x + 5, r_x[i] + 5);
        } else {
            #pragma unroll
            for (int j = 0; j < 6; ++j) load_if<1>(inside(j), x + j, r_x[i] + j);
        }
    }
}

// Stores a row of a tile's outputs. If the row is only 8-byte aligned, a 16-byte store takes two
// outputs of this tile and two of the tile to the right. The lane of that tile leaves these two
// out. All lanes must call this function.
__device__ __forceinline__ void write_row(const Tiling& tiling, float* y, const float (&r_y)[4],
                                          bool inside, int columns, bool to_left, bool to_right) {
    if (tiling.aligned == 4) {
        if (inside)
            *reinterpret_cast<float4*>(y) = make_float4(r_y[0], r_y[1], r_y[2], r_y[3]);
    } else if (tiling.aligned == 2) {
        const float next_0 = __shfl_down_sync(0xffffffffu, r_y[0], 1);
        const float next_1 = __shfl_down_sync(0xffffffffu, r_y[1], 1);
        if (!inside) return;
        const bool here = reinterpret_cast<uintptr_t>(y) % 16 == 0;
        if (here && columns >= 4)
            *reinterpret_cast<float4*>(y) = make_float4(r_y[0], r_y[1], r_y[2], r_y[3]);
        if (!here && to_right)
            *reinterpret_cast<float4*>(y + 2) = make_float4(r_y[2], r_y[3], next_0, next_1);
        if (here ? columns < 4 : !to_left)
            *reinterpret_cast<float2*>(y) = make_float2(r_y[0], r_y[1]);
        if (!here && !to_right && columns >= 4)
            *reinterpret_cast<float2*>(y + 2) = make_float2(r_y[2], r_y[3]);
    } else {
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            if (inside && i < columns) y[i] = r_y[i];
    }
}

static Tiling tiling_of(const ConvProblem& conv, int groups, const float* x, const float* y) {
    const int tiles_q = ceil_div(conv.Q, 4), per_image = ceil_div(conv.P, 4) * tiles_q;
    const uintptr_t x_address = reinterpret_cast<uintptr_t>(x);
    const uintptr_t address = reinterpret_cast<uintptr_t>(y);
    const bool quads = conv.W % 4 == 0 && conv.pad_w <= 1 && x_address % 16 == 0;
    const int aligned = conv.Q % 4 == 0 && address % 16 == 0  ? 4
                        : conv.Q % 2 == 0 && address % 8 == 0 ? 2
                                                              : 1;
    const int k_tiles = ceil_div(conv.K / conv.groups, kTile);
    return {int64_t(conv.H) * conv.W, int64_t(conv.P) * conv.Q, tiles_q, per_image,
            conv.C / conv.groups, k_tiles, k_tiles * groups, quads, aligned};
}
