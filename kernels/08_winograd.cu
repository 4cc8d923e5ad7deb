// title: Winograd F(2x2, 3x3), fused
// idea: 2 x 2 outputs of a 3 x 3 filter need 16 products instead of 36: y = A'((G w G') * (B' x B))
//       A. Summed over channels, they are 16 matrix products. Transformed inputs stay on chip.
// change: Against 05: the rows of a product are input channels, not taps. A tile of x is
//       transformed in registers, between loading and staging. Another kernel transforms the filter
//       first, into the workspace. Each warp computes two products.
// mapping: block -> kBT tiles of 2 x 2 outputs (n, p, q) end to end x kBN channels k of one group;
//       warp -> 2 elements of the 16; thread -> 8 tiles x 8 channels of each.
// precision: fp32
// epilogue: bias, relu
// supports: R == 3, S == 3, stride_h == 1, stride_w == 1, dilation_h == 1, dilation_w == 1
// best: tf32 == 0, groups == 1, C >= 16, N * P * Q * K >= 500000
// mixes: 2x2
// limits: With few channels, the transforms take a large part of the time. An inf or NaN in x
//       reaches all outputs of its 2 x 2 tile, and inf minus inf is NaN.
#include "convlab_async.cuh"

// The algorithm is F(2x2, 3x3) of Winograd (1980) in the form of Lavin and Gray (arXiv:1509.09308).
// Here ' is the transpose and * the product element by element. G, B and A are constant matrices:
// the code below writes their sums out.

#ifndef BC
#define BC 8       // input channels staged at a time
#endif
#ifndef UNROLL
#define UNROLL 2   // of these channels for each pass of the unrolled loop
#endif
constexpr int kBC = BC, kBT = 32, kBN = 64, kThreads = 256, kElements = 16;
constexpr int kUnroll = UNROLL;
static_assert(kBC == 4 || kBC == 8, "BC: 4 or 8");
static_assert(kUnroll >= 1 && kUnroll <= 8, "UNROLL: 1 to 8");

// The tiles of 2 x 2 outputs: how many there are in a row, in an image and in all; and how memory
// may be accessed.
struct Tiling {
    int tiles_q;
    int64_t per_image, tiles;
    int k_pitch;   // of the transformed filter: K / groups, rounded up to 16 bytes
    bool pairs;    // two neighbouring outputs can be stored as 8 bytes
};

struct alignas(16) Quad {
    float v[4];
};

// g_u: (groups, 16, C_group, k_pitch), with u = G w G'.
__global__ void __launch_bounds__(kThreads)
transform_filter(ConvProblem conv, Tiling tiling, int first_group, int groups,
                 const float* __restrict__ g_w, float* __restrict__ g_u) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    const int k = int(i % tiling.k_pitch);
    const int c = int(i / tiling.k_pitch % C_group);
    const int64_t group = i / tiling.k_pitch / C_group;   // in the workspace
    if (group >= groups) return;
    const float* w_kc = g_w + (((first_group + group) * K_group + k) * C_group + c) * 9;   // (3, 3)

    float r_half[4][3];   // G w
    #pragma unroll
    for (int s = 0; s < 3; ++s) {
        float r_w[3];
        #pragma unroll
        for (int r = 0; r < 3; ++r) r_w[r] = k < K_group ? w_kc[r * 3 + s] : 0.0f;
        r_half[0][s] = r_w[0];
        r_half[1][s] = 0.5f * (r_w[0] + r_w[1] + r_w[2]);
        r_half[2][s] = 0.5f * (r_w[0] - r_w[1] + r_w[2]);
        r_half[3][s] = r_w[2];
    }
    float* u = g_u + (group * kElements * C_group + c) * tiling.k_pitch + k;
    const int64_t element = int64_t(C_group) * tiling.k_pitch;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        u[(4 * i + 0) * element] = r_half[i][0];
        u[(4 * i + 1) * element] = 0.5f * (r_half[i][0] + r_half[i][1] + r_half[i][2]);
        u[(4 * i + 2) * element] = 0.5f * (r_half[i][0] - r_half[i][1] + r_half[i][2]);
        u[(4 * i + 3) * element] = r_half[i][2];
    }
}

// The grid has at most one block for each SM, and a block computes one item after another: kBT
// tiles x kBN channels. Items that share tiles follow each other. The next item's first loads run
// while y is written.
template <int kBC>
__global__ void __launch_bounds__(kThreads)
conv2d_winograd(ConvProblem conv, Tiling tiling, int first_group, int groups, int64_t items,
                const float* __restrict__ g_x, const float* __restrict__ g_u,
                const float* __restrict__ g_bias, float* __restrict__ g_y) {
    extern __shared__ float4 s_mem[];
    constexpr int kStage = kElements * kBC * (kBT + kBN);   // floats
    float* s_v = reinterpret_cast<float*>(s_mem);           // 2 x (16, kBC, kBT), kStage apart
    float* s_u = s_v + kElements * kBC * kBT;               // 2 x (16, kBC, kBN), kStage apart

    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t HW = int64_t(conv.H) * conv.W, PQ = int64_t(conv.P) * conv.Q;
    const int k_tiles = ceil_div(K_group, kBN);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // The item: its channels, and the tile of a lane, for which the lane reads x and writes y.
    int k0, group;                 // within the group; in the workspace
    int p, q;
    int64_t n;                     // N or more if there is no such tile
    const float* x_tile;
    unsigned mask;                 // bit 4 i + j: element (i, j) of the tile is inside x
    const auto locate = [&](int64_t item) {
        k0 = int(item % k_tiles) * kBN;
        group = int(item / k_tiles % groups);
        const int64_t t = item / k_tiles / groups * kBT + lane;
        n = t / tiling.per_image;
        p = int(t % tiling.per_image / tiling.tiles_q) * 2;
        q = int(t % tiling.per_image % tiling.tiles_q) * 2;
        const int h0 = p - conv.pad_h, w0 = q - conv.pad_w;
        x_tile = g_x + (n * conv.C + int64_t(first_group + group) * C_group) * HW +
                 int64_t(h0) * conv.W + w0;
        mask = 0;
        #pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int h = h0 + i / 4, w = w0 + i % 4;
            if (n < conv.N && h >= 0 && h < conv.H && w >= 0 && w < conv.W) mask |= 1u << i;
        }
    };
    float r_x[4][4];   // of channel c0 + warp
    const auto load_x = [&](int c0) {
        const unsigned inside = warp < kBC && c0 + warp < C_group ? mask : 0;
        const float* x_c = x_tile + (c0 + warp) * HW;
        if (inside == 0xffff) {   // most tiles; the tests below cost more than the loads
            #pragma unroll
            for (int i = 0; i < 16; ++i) r_x[i / 4][i % 4] = x_c[int64_t(i / 4) * conv.W + i % 4];
        } else {
            #pragma unroll
            for (int i = 0; i < 16; ++i)
                r_x[i / 4][i % 4] = inside >> i & 1 ? x_c[int64_t(i / 4) * conv.W + i % 4] : 0.0f;
        }
    };
    const auto store_v = [&](int stage) {   // v = B' x B
        if (warp >= kBC) return;
        float r_half[4][4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            r_half[0][j] = r_x[0][j] - r_x[2][j];
            r_half[1][j] = r_x[1][j] + r_x[2][j];
            r_half[2][j] = r_x[2][j] - r_x[1][j];
            r_half[3][j] = r_x[1][j] - r_x[3][j];
        }
        float* s_lane = s_v + stage * kStage + warp * kBT + lane;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            s_lane[(4 * i + 0) * kBC * kBT] = r_half[i][0] - r_half[i][2];
            s_lane[(4 * i + 1) * kBC * kBT] = r_half[i][1] + r_half[i][2];
            s_lane[(4 * i + 2) * kBC * kBT] = r_half[i][2] - r_half[i][1];
            s_lane[(4 * i + 3) * kBC * kBT] = r_half[i][1] - r_half[i][3];
        }
    };
    // A row of u is one element and one channel. 16 lanes copy a row, four floats each; a thread
    // copies rows of one channel only.
    constexpr int lanes = kBN / 4, elements = kThreads / lanes / kBC;   // at a time
    const int row_u = threadIdx.x / lanes, column_u = threadIdx.x % lanes * 4;
    const auto copy_u = [&](int c0, int stage) {
        const int c = c0 + row_u % kBC;
        const int64_t element = int64_t(group) * kElements + row_u / kBC;
        const float* u = g_u + (element * C_group + c) * tiling.k_pitch + k0 + column_u;
        const bool inside = c < C_group && k0 + column_u < tiling.k_pitch;
        #pragma unroll
        for (int e = 0; e < kElements; e += elements) {
            copy_async<16>(s_u + stage * kStage + (e * kBC + row_u) * kBN + column_u, u, inside);
            u += int64_t(elements) * C_group * tiling.k_pitch;
        }
        __pipeline_commit();
    };

    const int thread_t = lane % 4 * 4, thread_k = lane / 4 * 4;   // + 0 to 3, and half a tile on
    int stage = 0;
    locate(blockIdx.x);
    copy_u(0, stage);
    load_x(0);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        store_v(stage);
        float r_acc[2][8][8] = {};   // element, k, t
        for (int c0 = 0; c0 < C_group; c0 += kBC, stage ^= 1) {
            __pipeline_wait_prior(0);
            __syncthreads();   // all have filled their part of this stage, and read the other
            if (c0 + kBC < C_group) {
                copy_u(c0 + kBC, stage ^ 1);
                load_x(c0 + kBC);   // arrives while this stage is multiplied
            }
            const float* s_v_thread = s_v + stage * kStage + 2 * warp * kBC * kBT + thread_t;
            const float* s_u_thread = s_u + stage * kStage + 2 * warp * kBC * kBN + thread_k;
            #pragma unroll kUnroll   // more, and early reads need too many registers
            for (int c = 0; c < kBC; ++c) {
                // This warp's two of the 16 matrix products: (k, c) x (c, t) for each element.
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    Quad r_v[2], r_u[2];
                    #pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        r_v[half] = *reinterpret_cast<const Quad*>(
                            s_v_thread + (e * kBC + c) * kBT + half * (kBT / 2));
                        r_u[half] = *reinterpret_cast<const Quad*>(
                            s_u_thread + (e * kBC + c) * kBN + half * (kBN / 2));
                    }
                    #pragma unroll
                    for (int i = 0; i < 8; ++i)
                        #pragma unroll
                        for (int j = 0; j < 8; ++j)
                            r_acc[e][i][j] += r_u[i / 4].v[i % 4] * r_v[j / 4].v[j % 4];
                }
            }
            if (c0 + kBC < C_group) store_v(stage ^ 1);
        }

        const int k0_y = k0, rows_y = n < conv.N ? conv.P - p : 0, columns_y = conv.Q - q;
        const int first_k = (first_group + group) * K_group;
        float* y_tile = g_y + (n * conv.K + first_k) * PQ + int64_t(p) * conv.Q + q;
        if (item + gridDim.x < items) {
            locate(item + gridDim.x);
            copy_u(0, stage);
            load_x(0);
        }
        // The 16 elements of a tile are spread over eight warps. The warps exchange them through
        // the memory of the last stage, some channels at a time. With this pitch, the stores of
        // four floats by 8 lanes have no bank conflict.
        constexpr int kPitch = kBT + 16;
        // Channels of a round, of a thread's 8.
        constexpr int kRound = min_of(8, kStage / (kElements * 8 * kPitch));
        static_assert(kRound >= 1, "BC: room for the exchange");
        float* s_m = s_v + (stage ^ 1) * kStage;   // (16, kRound * 8, kPitch)
        #pragma unroll
        for (int first = 0; first < 8; first += kRound) {
            __syncthreads();   // all have read what is there
            #pragma unroll
            for (int e = 0; e < 2; ++e)
                #pragma unroll
                for (int i = 0; i < kRound * 2; ++i) {
                    const float* r_m = r_acc[e][first + i / 2] + i % 2 * 4;
                    const int row = ((2 * warp + e) * kRound + i / 2) * 8 + lane / 4;
                    *reinterpret_cast<Quad*>(s_m + row * kPitch + thread_t + i % 2 * (kBT / 2)) =
                        {r_m[0], r_m[1], r_m[2], r_m[3]};
                }
            __syncthreads();
            #pragma unroll
            for (int i = 0; i < kRound; ++i) {
                float r_half[2][4];   // A' m
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float r_m[4];
                    #pragma unroll
                    for (int row = 0; row < 4; ++row)
                        r_m[row] = s_m[(((4 * row + j) * kRound + i) * 8 + warp) * kPitch + lane];
                    r_half[0][j] = r_m[0] + r_m[1] + r_m[2];
                    r_half[1][j] = r_m[1] - r_m[2] - r_m[3];
                }
                const int k = k0_y + warp * 4 + (first + i) % 4 + (first + i) / 4 * (kBN / 2);
                if (k >= K_group) continue;
                const float bias = g_bias ? g_bias[first_k + k] : 0.0f;
                float* y = y_tile + k * PQ;
                #pragma unroll
                for (int row = 0; row < 2; ++row) {
                    if (row >= rows_y) continue;
                    const float* r = r_half[row];
                    const float left = activated(conv, r[0] + r[1] + r[2] + bias);
                    const float right = activated(conv, r[1] - r[2] - r[3] + bias);
                    if (tiling.pairs) {
                        *reinterpret_cast<float2*>(y + row * conv.Q) = make_float2(left, right);
                    } else {
                        y[row * conv.Q] = left;
                        if (columns_y > 1) y[row * conv.Q + 1] = right;
                    }
                }
            }
        }
    }
}

static Tiling tiling_of(const ConvProblem& conv, const float* y = nullptr) {
    const int tiles_q = ceil_div(conv.Q, 2);
    const int64_t per_image = int64_t(ceil_div(conv.P, 2)) * tiles_q;
    const bool pairs = conv.Q % 2 == 0 && reinterpret_cast<uintptr_t>(y) % 8 == 0;
    return {tiles_q, per_image, conv.N * per_image, ceil_div(conv.K / conv.groups, 4) * 4, pairs};
}

// The bytes of a stage with `channels` input channels: transformed x and filter.
constexpr int stage_bytes(int channels) {
    return kElements * channels * (kBT + kBN) * int(sizeof(float));
}

// Returns the bytes of the transformed filter of one group.
static size_t group_bytes(const ConvProblem& conv) {
    return sizeof(float) * kElements * (conv.C / conv.groups) * size_t(tiling_of(conv).k_pitch);
}

// Groups run one or several at a time, as the workspace allows.
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    if (problem->N == 0) return 0;
    const size_t group = group_bytes(*problem);
    return group * min_of(max_of(limit / group, size_t(1)), size_t(problem->groups));
}

template <int kBC>
static const char* launch(const ConvProblem& conv, int sms, int first_group, int groups,
                          const float* x, const float* u, const float* bias, float* y,
                          cudaStream_t stream) {
    const Tiling tiling = tiling_of(conv, y);
    const int64_t items = ceil_div(tiling.tiles, int64_t(kBT)) * groups *
                          ceil_div(conv.K / conv.groups, kBN);
    // Without this call, a block may have 48 KB of shared memory at most.
    const cudaError_t status = cudaFuncSetAttribute(
        conv2d_winograd<kBC>, cudaFuncAttributeMaxDynamicSharedMemorySize, stage_bytes(kBC) * 2);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    const unsigned blocks = unsigned(min_of(items, int64_t(sms)));
    conv2d_winograd<kBC><<<blocks, kThreads, stage_bytes(kBC) * 2, stream>>>(
        conv, tiling, first_group, groups, items, x, u, bias, y);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const int sms = device.sms;

    const size_t fit = min_of(workspace_bytes / group_bytes(conv), size_t(conv.groups));
    if (fit == 0) return "08_winograd: the workspace is too small for one group's filter";
    float* u = static_cast<float*>(workspace);
    const char* error = nullptr;
    for (int first = 0; first < conv.groups && !error; first += int(fit)) {
        const int groups = min_of(int(fit), conv.groups - first);
        const int64_t filters = int64_t(group_bytes(conv) / sizeof(float) / kElements) * groups;
        if (filters / kThreads >= INT32_MAX) return "08_winograd: too many filters for a grid";
        transform_filter<<<unsigned(ceil_div(filters, int64_t(kThreads))), kThreads, 0, stream>>>(
            conv, tiling_of(conv), first, groups, w, u);
        error = launch_error();
        if (error) break;
        error = stage_bytes(kBC) * 2 <= device.smem
                    ? launch<kBC>(conv, sms, first, groups, x, u, bias, y, stream)
                    : launch<min_of(kBC, 4)>(conv, sms, first, groups, x, u, bias, y, stream);
    }
    return error;
}
