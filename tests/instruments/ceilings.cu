// Peak rates that the rungs on Hopper depend on: products, copies to shared memory, stores, and the
// error of sums. ceilings.py launches these kernels. Every launch fills the GPU, one block per SM.
#include "convlab.cuh"
#include "convlab_async.cuh"
#include "tensor.cuh"

#define ENTRY CONVLAB_ENTRY const char*

// A pseudo-random number in [-1, 1). The operands decide the power, and the power decides the clock.
__device__ __forceinline__ float noise(uint32_t i) {
    i = (i ^ i >> 16) * 0x7feb352du;
    i = (i ^ i >> 15) * 0x846ca68bu;
    return float(int32_t(i ^ i >> 16)) * 0x1p-31f;
}

// ---- products: 9 taps of a staged tile, from shifted descriptors (moved = 1) or aligned ones -----
constexpr int kRows = 4, kPitch = 264, kTile = 2 * kRows * kPitch * 4, kTap = 2 * 64 * 4;   // words

template <bool is_bf16>
__global__ void __launch_bounds__(256) products(float* out, int moved, int groups) {
    extern __shared__ __align__(128) uint32_t s_words[];   // x: [quad][row][pixel][4]; w: [tap][quad][64][4]
    for (int i = threadIdx.x; i < kTile + 9 * kTap; i += 256)
        s_words[i] = is_bf16 ? round_bf16(noise(2 * i), noise(2 * i + 1))
                             : __float_as_uint(round_tf32(noise(i)));
    fence_proxy_async();
    __syncthreads();
    const int row = threadIdx.x / 128;   // each four warps have an output row
    const uint64_t x = wgmma_descriptor(s_words + row * kPitch * 4, kTile / 2 * 4, 128);
    const uint64_t w = wgmma_descriptor(s_words + kTile, kTap / 2 * 4, 128);
    float d[128] = {};
    for (int group = 0; group < groups; ++group) {
        wgmma_fence();
        #pragma unroll
        for (int tap = 0; tap < 9; ++tap) {
            const uint64_t a = wgmma_moved(w, tap * kTap / 4);
            const uint64_t b = wgmma_moved(x, tap / 3 * kPitch + moved * (tap % 3));
            if constexpr (is_bf16) wgmma_m64n256k16_bf16(d, a, b, 1);
            else wgmma_m64n256k8_tf32(d, a, b, 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 128; ++i) sum += d[i];
    out[blockIdx.x * 256 + threadIdx.x] = sum;
}

ENTRY run_products(int is_bf16, int moved, int groups, int blocks, float* out, cudaStream_t stream) {
    constexpr int bytes = (kTile + 9 * kTap) * 4;
    auto kernel = is_bf16 ? products<true> : products<false>;
    if (const char* error = ask_for_shared_memory(kernel, bytes)) return error;
    kernel<<<blocks, 256, bytes, stream>>>(out, moved, groups);
    return launch_error();
}

// ---- copies: rows of 8 channels, NCHW, into pixels of 16 bytes; x is in the L2 -------------------
enum Feed { kAsync4, kLoad4Store16, kAsync16, kBulk };
// Each block copies 8 tiles of its own in turn: too many for the L1, few enough for the L2.
constexpr int kFeedTiles = 8;
constexpr int kPixels = kRows * kPitch, kFeedStages = 3;

template <int feed>
__global__ void __launch_bounds__(512) feeding(const float* g_x, float* out, int rounds) {
    extern __shared__ __align__(128) float s_x[];   // [stage][quad][pixel][4]
    __shared__ uint64_t s_full[kFeedStages];
    const float* g_block = g_x + int64_t(blockIdx.x) * kFeedTiles * kTile;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kFeedStages; ++i) mbarrier_init(&s_full[i], 1);
        mbarrier_fence_init();
    }
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
        const float* g_tile = g_block + round % kFeedTiles * kTile;   // [channel][pixel]
        float* s_tile = s_x + round % kFeedStages * kTile;
        if constexpr (feed == kAsync4) {
            for (int i = threadIdx.x; i < kTile; i += blockDim.x) {
                const int c = i / kPixels, pixel = i % kPixels;
                copy_async<4>(s_tile + ((c / 4) * kPixels + pixel) * 4 + c % 4, g_tile + i, true);
            }
        } else if constexpr (feed == kLoad4Store16) {
            for (int i = threadIdx.x; i < 2 * kPixels; i += blockDim.x) {
                const float* from = g_tile + i / kPixels * 4 * kPixels + i % kPixels;
                reinterpret_cast<float4*>(s_tile)[i] =
                    make_float4(from[0], from[kPixels], from[2 * kPixels], from[3 * kPixels]);
            }
        } else if constexpr (feed == kAsync16) {   // not transposed
            for (int i = threadIdx.x; i < kTile / 4; i += blockDim.x)
                copy_async<16>(s_tile + 4 * i, g_tile + 4 * i, true);
        } else if (threadIdx.x == 0) {
            const int stage = round % kFeedStages;
            if (round >= kFeedStages) mbarrier_wait(&s_full[stage], (round / kFeedStages - 1) & 1);
            mbarrier_arrive_expect(&s_full[stage], kTile * 4);
            for (int c = 0; c < 8; ++c)
                bulk_load(s_tile + c * kPixels, g_tile + c * kPixels, kPixels * 4, &s_full[stage]);
        }
        if constexpr (feed == kAsync4 || feed == kAsync16) {
            __pipeline_commit();
            __pipeline_wait_prior(kFeedStages - 2);
        }
        if constexpr (feed != kBulk) __syncthreads();
    }
    if constexpr (feed == kBulk) {
        const int last = rounds - 1;
        for (int i = max_of(0, last - kFeedStages + 1); i <= last; ++i)
            mbarrier_wait(&s_full[i % kFeedStages], i / kFeedStages & 1);
    } else {
        __pipeline_wait_prior(0);
    }
    __syncthreads();
    out[int64_t(blockIdx.x) * blockDim.x + threadIdx.x] = s_x[threadIdx.x];
}

ENTRY run_feeding(int feed, int threads, int rounds, int blocks, const float* x, float* out,
                  cudaStream_t stream) {
    constexpr int bytes = kFeedStages * kTile * 4;
    auto kernel = feed == kAsync4 ? feeding<kAsync4> : feed == kLoad4Store16 ? feeding<kLoad4Store16>
                : feed == kAsync16 ? feeding<kAsync16> : feeding<kBulk>;
    if (const char* error = ask_for_shared_memory(kernel, bytes)) return error;
    kernel<<<blocks, threads, bytes, stream>>>(x, out, rounds);
    return launch_error();
}

// ---- stores: planes of side x side floats, by persistent blocks ----------------------------------
enum Store { kBulkRows, kBulkRuns, kBulkWhole, kFloats, kFragments };

template <int store>
__global__ void __launch_bounds__(256) storing(float* g_y, int side, int planes) {
    extern __shared__ __align__(128) float s_y[];
    const int64_t plane = int64_t(side) * side;
    for (int i = threadIdx.x; i < 2 * side; i += 256) s_y[i] = noise(i);
    fence_proxy_async();
    __syncthreads();
    if constexpr (store == kBulkRows) {   // two whole rows of a plane: their start is a multiple of 16
        if (threadIdx.x) return;
        const int64_t runs = int64_t(planes) * (side / 2);
        for (int64_t i = blockIdx.x; i < runs; i += gridDim.x) {
            bulk_store(g_y + i / (side / 2) * plane + i % (side / 2) * 2 * side, s_y, 8 * side);
            bulk_commit();
            bulk_wait_read<7>();
        }
        bulk_wait_read<0>();
    } else {   // a tile is a run of 256 floats in each of 128 planes
        const int64_t runs = plane / 256, tiles = runs * (planes / 128);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            float* y = g_y + tile / runs * 128 * plane + tile % runs * 256;
            if constexpr (store == kBulkRuns || store == kBulkWhole) {
                if (threadIdx.x < 128) {
                    float* y_run = y + threadIdx.x * plane;
                    // Begin the run at the next multiple of 32 bytes. Then it also ends at one.
                    if constexpr (store == kBulkWhole) y_run = g_y + (y_run - g_y + 7) / 8 * 8;
                    bulk_store(y_run, s_y, 1024);
                    bulk_commit();
                    bulk_wait_read<3>();
                }
            } else if constexpr (store == kFloats) {
                for (int k = 0; k < 128; ++k) y[k * plane + threadIdx.x] = s_y[threadIdx.x];
            } else {   // in the order of wgmma's accumulators: 32 bytes in each of 8 planes
                const float2 value = make_float2(s_y[lane], s_y[lane + 1]);
                float* y_lane = y + (16 * warp + lane / 4) * plane + 2 * (lane % 4);
                for (int j = 0; j < 32; ++j)
                    for (int h = 0; h < 2; ++h)
                        *reinterpret_cast<float2*>(y_lane + 8 * h * plane + 8 * j) = value;
            }
        }
        if constexpr (store == kBulkRuns || store == kBulkWhole) bulk_wait_read<0>();
    }
}

ENTRY run_storing(int store, int side, int planes, int blocks, float* y, cudaStream_t stream) {
    auto kernel = store == kBulkRows ? storing<kBulkRows> : store == kBulkRuns ? storing<kBulkRuns>
                : store == kBulkWhole ? storing<kBulkWhole> : store == kFloats ? storing<kFloats> : storing<kFragments>;
    kernel<<<blocks, 256, 8 * side, stream>>>(y, side, planes);
    return launch_error();
}

// ---- sums: d (64, 128) = a (64, k) b (128, k)^T in 3xTF32, added to fp32 every so many steps of 8 --
__global__ void __launch_bounds__(128) sums(const float* g_a, const float* g_b, float* g_d, int k,
                                            int promoted) {
    __shared__ __align__(128) float s_a[2][2][64][4], s_b[2][2][128][4];   // [part][quad][row][4]
    const uint64_t a[2] = {wgmma_descriptor(s_a[0], 1024, 128), wgmma_descriptor(s_a[1], 1024, 128)};
    const uint64_t b[2] = {wgmma_descriptor(s_b[0], 2048, 128), wgmma_descriptor(s_b[1], 2048, 128)};
    float sum[64] = {}, d[64] = {};
    for (int step = 0; step < k / 8; ++step) {
        for (int i = threadIdx.x; i < 192 * 8; i += 128) {
            const int row = i / 8, column = i % 8;
            const bool of_a = row < 64;
            const float* from = of_a ? g_a + int64_t(row) * k : g_b + int64_t(row - 64) * k;
            const Parts parts = parts_of(from[step * 8 + column]);
            float* to = of_a ? &s_a[0][column / 4][row][column % 4]
                             : &s_b[0][column / 4][row - 64][column % 4];
            to[0] = parts.high;
            to[of_a ? 2 * 64 * 4 : 2 * 128 * 4] = parts.low;
        }
        fence_proxy_async();
        __syncthreads();
        wgmma_fence();
        wgmma_m64n128k8_tf32(d, a[1], b[0], step % promoted != 0);
        wgmma_m64n128k8_tf32(d, a[0], b[1], 1);
        wgmma_m64n128k8_tf32(d, a[0], b[0], 1);
        wgmma_commit();
        wgmma_wait<0>();
        if ((step + 1) % promoted == 0 || step + 1 == k / 8) {
            #pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] += d[i];
        }
        __syncthreads();
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < 64; ++i)
        g_d[(16 * warp + i % 4 / 2 * 8 + lane / 4) * 128 + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
}

ENTRY run_sums(const float* a, const float* b, float* d, int k, int promoted, cudaStream_t stream) {
    sums<<<1, 128, 0, stream>>>(a, b, d, k, promoted);
    return launch_error();
}

// The same by multiply-adds, in order.
__global__ void in_order(const float* g_a, const float* g_b, float* g_d, int k) {
    const int64_t a = int64_t(blockIdx.x) * k, b = int64_t(threadIdx.x) * k;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum = fmaf(g_a[a + i], g_b[b + i], sum);
    g_d[blockIdx.x * 128 + threadIdx.x] = sum;
}

ENTRY run_in_order(const float* a, const float* b, float* d, int k, cudaStream_t stream) {
    in_order<<<64, 128, 0, stream>>>(a, b, d, k);
    return launch_error();
}
