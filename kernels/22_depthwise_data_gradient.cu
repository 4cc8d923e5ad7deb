// title: Depthwise data gradient
// idea: Memory is the limit, as in 06. A thread computes whole units: stride_h x stride_w neighbours of
//       dx, one of each phase. So it needs every tap once, and the compiler knows which.
// change: Against 06: the tile in shared memory is one of dy, and taps run backwards. With a stride, a
//       tile of dy gives stride_h * stride_w times as many elements of dx.
// mapping: block -> some planes (n, c), or a tile of one; lane -> column of units, thread -> kDown units
//       below each other.
// computes: data gradient
// precision: fp32
// epilogue: none
// supports: groups == C
// best: groups == C, dilation_h == 1, dilation_w == 1, N * C * H * W >= 12000000,
//       R == 3 and S == 3 and stride_h == stride_w and stride_h <= 2
//       or R == 3 and S in (1, 7) and stride_h == 1 and stride_w == 1
// limits: Memory: dy is read and dx written once. With stride 2 a store writes every other element of a
//       sector. Filters, strides and dilations that are not listed at the end use a plain gather.
// Write h + pad = stride*u + a with 0 <= a < stride: u is the unit, a the phase. The taps of a phase are
// r = a + stride*t, and they read dy at p = (h + pad - r)/stride = u - t. Dilation is 1.
#include "convlab_async.cuh"

#ifndef DOWN
#define DOWN 4    // units of a thread, below each other
#endif
constexpr int kThreads = 256, kDown = DOWN;
constexpr int kTileW = 32;   // units of a row of a tile, at most
static_assert(kDown == 1 || kDown == 2 || kDown == 4 || kDown == 8, "DOWN: 1, 2, 4 or 8");

// A block's threads: planes x rows x width. Each thread has kDown rows of units.
struct Tile {
    int width, rows, planes;
    int units_h, units_w;   // of a plane of dx
};

// kR x kS: the size of the filter. kStride: in both directions. All are constants for the compiler.
template <int kR, int kS, int kStride>
__global__ void __launch_bounds__(kThreads)
depthwise_data_gradient(ConvProblem conv, Tile tile, const float* __restrict__ g_dy,
                        const float* __restrict__ g_w, float* __restrict__ g_dx) {
    constexpr int kUp = (kR - 1) / kStride, kLeft = (kS - 1) / kStride;   // the largest t
    extern __shared__ float s_dy[];   // (planes, extent_h, extent_w)
    const int extent_h = tile.rows * kDown + kUp, extent_w = tile.width + kLeft;
    const int tiles_w = ceil_div(tile.units_w, tile.width);
    const int tiles = tiles_w * ceil_div(tile.units_h, tile.rows * kDown);
    const int64_t planes = int64_t(conv.N) * conv.C;
    const int64_t plane0 = int64_t(blockIdx.x / tiles) * tile.planes;
    const int u0 = conv.pad_h / kStride + int(blockIdx.x % tiles) / tiles_w * tile.rows * kDown;
    const int v0 = conv.pad_w / kStride + int(blockIdx.x % tiles) % tiles_w * tile.width;

    const int column = threadIdx.x % tile.width;
    const int row = threadIdx.x / tile.width % tile.rows * kDown;
    const int own = threadIdx.x / tile.width / tile.rows;
    const int64_t plane = plane0 + own;   // n * C + c
    const int multiplier = conv.K / conv.C;
    float r_acc[kDown][kStride][kStride] = {};
    for (int i = 0; i < multiplier; ++i) {
        // Filter i of each channel. dy's plane is n*K + c*multiplier + i = plane*multiplier + i.
        const int count = tile.planes * extent_h * extent_w;
        for (int j = threadIdx.x; j < count; j += blockDim.x) {
            const int q = v0 - kLeft + j % extent_w;
            const int p = u0 - kUp + j / extent_w % extent_h;
            const int64_t from = plane0 + j / extent_w / extent_h;
            const bool inside = from < planes && p >= 0 && p < conv.P && q >= 0 && q < conv.Q;
            copy_async<4>(s_dy + j,
                          g_dy + ((from * multiplier + i) * conv.P + p) * conv.Q + q, inside);
        }
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();   // the tile is there
        if (plane < planes) {
            const float* w_k = g_w + (plane % conv.C * multiplier + i) * kR * kS;
            float r_w[kR][kS];
            #pragma unroll
            for (int tap = 0; tap < kR * kS; ++tap) r_w[tap / kS][tap % kS] = w_k[tap];
            const float* s_own = s_dy + (own * extent_h + row) * extent_w + column;
            // Row `down` of the tile is p = u - t for each unit u of this thread, if t is in range.
            #pragma unroll
            for (int down = 0; down < kDown + kUp; ++down)
                #pragma unroll
                for (int right = 0; right <= kLeft; ++right) {
                    const float value = s_own[down * extent_w + right];
                    const int t_s = kLeft - right;
                    #pragma unroll
                    for (int u = 0; u < kDown; ++u) {
                        const int t_r = u + kUp - down;
                        if (t_r < 0 || t_r > kUp) continue;
                        #pragma unroll
                        for (int a = 0; a < kStride; ++a)
                            #pragma unroll
                            for (int b = 0; b < kStride; ++b)
                                if (a + kStride * t_r < kR && b + kStride * t_s < kS)
                                    r_acc[u][a][b] +=
                                        value * r_w[a + kStride * t_r][b + kStride * t_s];
                    }
                }
        }
        __syncthreads();   // all have read the tile before the next one is copied
    }
    if (plane >= planes) return;
    float* dx_plane = g_dx + plane * conv.H * conv.W;
    #pragma unroll
    for (int u = 0; u < kDown; ++u)
        #pragma unroll
        for (int a = 0; a < kStride; ++a) {
            const int h = (u0 + row + u) * kStride + a - conv.pad_h;
            if (h < 0 || h >= conv.H) continue;
            #pragma unroll
            for (int b = 0; b < kStride; ++b) {
                const int w = (v0 + column) * kStride + b - conv.pad_w;
                if (w < 0 || w >= conv.W) continue;
                dx_plane[int64_t(h) * conv.W + w] = r_acc[u][a][b];
            }
        }
}

// For any filter, stride and dilation: as 18, a thread for each element of dx.
__global__ void __launch_bounds__(kThreads)
depthwise_gather(ConvProblem conv, const float* __restrict__ g_dy, const float* __restrict__ g_w,
                 float* __restrict__ g_dx) {
    const int64_t element = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (element >= int64_t(conv.N) * conv.C * conv.H * conv.W) return;
    const int w = int(element % conv.W), h = int(element / conv.W % conv.H);
    const int64_t plane = element / conv.W / conv.H;   // n * C + c
    const int multiplier = conv.K / conv.C;
    const float* dy_plane = g_dy + plane * multiplier * conv.P * conv.Q;             // (multiplier, P, Q)
    const float* w_c = g_w + plane % conv.C * multiplier * conv.R * conv.S;          // (multiplier, R, S)
    float r_sum = 0.0f;
    for (int r = 0; r < conv.R; ++r) {
        const int p_times_stride = h + conv.pad_h - r * conv.dilation_h;
        const int p = p_times_stride / conv.stride_h;
        if (p_times_stride < 0 || p_times_stride % conv.stride_h != 0 || p >= conv.P) continue;
        for (int s = 0; s < conv.S; ++s) {
            const int q_times_stride = w + conv.pad_w - s * conv.dilation_w;
            const int q = q_times_stride / conv.stride_w;
            if (q_times_stride < 0 || q_times_stride % conv.stride_w != 0 || q >= conv.Q) continue;
            for (int i = 0; i < multiplier; ++i)
                r_sum += dy_plane[(int64_t(i) * conv.P + p) * conv.Q + q] *
                         w_c[(int64_t(i) * conv.R + r) * conv.S + s];
        }
    }
    g_dx[element] = r_sum;
}

template <int kR, int kS, int kStride>
static const char* launch(const ConvProblem& conv, const float* dy, const float* w, float* dx,
                          cudaStream_t stream) {
    Tile tile = {};
    tile.units_h = (conv.H - 1 + conv.pad_h) / kStride - conv.pad_h / kStride + 1;
    tile.units_w = (conv.W - 1 + conv.pad_w) / kStride - conv.pad_w / kStride + 1;
    // The narrowest tile that holds a row, then as many rows as there are, then planes.
    tile.width = kTileW;
    while (tile.width > 8 && tile.width / 2 >= tile.units_w) tile.width /= 2;
    tile.rows = min_of(kThreads / tile.width, ceil_div(tile.units_h, kDown));
    // Several planes only if a plane is one tile.
    const int64_t tiles = int64_t(ceil_div(tile.units_w, tile.width)) *
                          ceil_div(tile.units_h, tile.rows * kDown);
    const int64_t planes = int64_t(conv.N) * conv.C;
    const int room = tiles == 1 ? kThreads / (tile.width * tile.rows) : 1;
    tile.planes = int(min_of(int64_t(room), planes));
    const int64_t groups = ceil_div(planes, int64_t(tile.planes));
    if (tiles > INT32_MAX / groups)
        return "22_depthwise_data_gradient: more tiles than blocks in a grid (2^31)";
    const int extent_h = tile.rows * kDown + (kR - 1) / kStride;
    const int extent_w = tile.width + (kS - 1) / kStride;
    const int bytes = tile.planes * extent_h * extent_w * int(sizeof(float));
    if (const char* error = ask_for_shared_memory(depthwise_data_gradient<kR, kS, kStride>, bytes))
        return error;
    depthwise_data_gradient<kR, kS, kStride>
        <<<unsigned(tiles * groups), tile.width * tile.rows * tile.planes, bytes, stream>>>(
            conv, tile, dy, w, dx);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* /*workspace*/,
                                               size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const auto is = [&](int height, int width, int stride) {   // the filter's height and width
        return conv.dilation_h == 1 && conv.dilation_w == 1 && conv.R == height && conv.S == width &&
               conv.stride_h == stride && conv.stride_w == stride;
    };
    if (is(3, 3, 1)) return launch<3, 3, 1>(conv, dy, w, dx, stream);
    if (is(3, 3, 2)) return launch<3, 3, 2>(conv, dy, w, dx, stream);
    if (is(5, 5, 1)) return launch<5, 5, 1>(conv, dy, w, dx, stream);
    if (is(5, 5, 2)) return launch<5, 5, 2>(conv, dy, w, dx, stream);
    if (is(7, 7, 1)) return launch<7, 7, 1>(conv, dy, w, dx, stream);
    if (is(3, 1, 1)) return launch<3, 1, 1>(conv, dy, w, dx, stream);
    if (is(3, 7, 1)) return launch<3, 7, 1>(conv, dy, w, dx, stream);
    const int64_t elements = int64_t(conv.N) * conv.C * conv.H * conv.W;
    const int64_t blocks = ceil_div(elements, int64_t(kThreads));
    if (const char* error = too_many(blocks)) return error;
    depthwise_gather<<<unsigned(blocks), kThreads, 0, stream>>>(conv, dy, w, dx);
    return launch_error();
}
