// title: Data gradient, implicit GEMM by phases
// idea: With stride 2, dx has four phases: even or odd rows, even or odd columns. The same taps reach
//       all elements of a phase. So it is a convolution of dy with stride 1: a product in tiles.
// change: Against 18: tiles in shared memory and registers, copied while the tile before is multiplied.
//       No tap misses because of the stride. The cost: dx is stored every stride-th element.
// mapping: block -> kBN channels of one group x kBM elements (n, h, w) of one phase, end to end; thread
//       -> two runs of 4 elements x two runs of kTN/2 channels.
// computes: data gradient
// precision: fp32
// epilogue: none
// supports: everything
// limits: The multipliers, if there are many filters. With a stride, a warp stores parts of sectors,
//       and phases with few taps have little to multiply for each store.
// Along one dimension: p*stride = h + pad - r*dilation. All h of a phase leave the same remainder, so
// the same taps r divide evenly, and p grows by 1 from an h of the phase to the next.
#include "convlab_async.cuh"

#ifndef BK
#define BK 16     // rows of the matrix that are staged at a time
#endif
constexpr int kBK = BK, kTM = 8;
constexpr int kStages = 2;   // tiles in shared memory: one in use, the other being copied
static_assert(kBK == 8 || kBK == 16, "BK: 8 or 16");

// A phase, along one dimension. Its elements are first + j*stride. Its taps are
// tap + i*tap_step, for i < taps. They meet dy at base + j - i*step.
struct Phase {
    int tap, tap_step, taps;
    int base, step;
};

__device__ Phase phase_of(int first, int stride, int pad, int dilation, int filter) {
    Phase phase = {0, 1, 0, 0, 0};
    for (int r = 0; r < filter; ++r) {
        if ((first + pad - r * dilation) % stride != 0) continue;
        if (phase.taps == 0) phase.tap = r;
        if (phase.taps == 1) phase.tap_step = r - phase.tap;   // the others are as far apart
        ++phase.taps;
    }
    phase.base = (first + pad - phase.tap * dilation) / stride;
    phase.step = phase.tap_step * dilation / stride;
    return phase;
}

// Drops taps that meet nothing but padding for all elements j0 to j1: those at both ends.
__device__ Phase within(Phase phase, int j0, int j1, int outputs) {
    for (; phase.taps > 0 && phase.base + j0 >= outputs; --phase.taps) {
        phase.tap += phase.tap_step;
        phase.base -= phase.step;
    }
    while (phase.taps > 0 && phase.base + j1 - (phase.taps - 1) * phase.step < 0) --phase.taps;
    return phase;
}

// A row (k, tap) of the matrix, for all elements of the phase: dy is read at offset_dy from the
// element's pixel, which is p rows further up and q columns further left.
struct alignas(16) Row {
    int64_t offset_dy;
    int p, q;
};

template <int n>
struct alignas(n * sizeof(float)) Floats {   // read by one instruction
    float v[n];
};

template <int kBM, int kBN, int kTN>
constexpr int threads_of = (kBM / kTM) * (kBN / kTN);

// dx[m, c] = sum over kk of dy[m, kk] * w[kk, c]. m -> (n, j_h, j_w) of a phase, kk -> (k, i_r, i_s).
template <int kBM, int kBN, int kTN>
__global__ void __launch_bounds__(threads_of<kBM, kBN, kTN>, 512 / threads_of<kBM, kBN, kTN>)
data_gradient_gemm(ConvProblem conv, bool vectors, const float* __restrict__ g_dy,
                   const float* __restrict__ g_w, float* __restrict__ g_dx) {
    constexpr int kThreads = threads_of<kBM, kBN, kTN>;
    static_assert(kThreads % kBM == 0, "a thread copies one element of dy in each row");
    constexpr int kPitchW = kBN + 4;   // stores down a column go to 8 banks, not 1
    __shared__ __align__(16) float s_dy[kStages][kBK][kBM];
    __shared__ __align__(16) float s_w[kStages][kBK][kPitchW];
    __shared__ Phase s_phase[2];   // this block's: along h, along w
    __shared__ Row s_rows[2][kBK];
    __shared__ int64_t s_offsets_w[2][kBK];   // of the same rows, in w

    const int K_group = conv.K / conv.groups, C_group = conv.C / conv.groups;
    const int64_t PQ = int64_t(conv.P) * conv.Q, RS = int64_t(conv.R) * conv.S;
    // Tiles of channels vary fastest, then phases: blocks that share pixels of dy run together.
    const int c_tiles = ceil_div(C_group, kBN);
    const int slices = c_tiles * conv.groups;
    const int group = blockIdx.x % slices / c_tiles;
    const int c0 = blockIdx.x % c_tiles * kBN;        // within the group
    const int phases_h = min_of(conv.stride_h, conv.H), phases_w = min_of(conv.stride_w, conv.W);
    const int64_t block = blockIdx.x / slices;
    const int first_h = int(block / phases_w % phases_h), first_w = int(block % phases_w);
    const int count_h = (conv.H - 1 - first_h) / conv.stride_h + 1;   // rows of the phase
    const int count_w = (conv.W - 1 - first_w) / conv.stride_w + 1;
    const int64_t m0 = block / phases_w / phases_h * kBM;
    const int64_t plane = int64_t(count_h) * count_w;   // elements of a plane of dx
    const int64_t elements = conv.N * plane;
    if (m0 >= elements) return;   // this phase has fewer elements than the first one
    if (threadIdx.x == 0) {
        const int64_t m1 = min_of(m0 + kBM, elements) - 1;
        const bool one_image = m0 / plane == m1 / plane;
        const Phase rows =
            phase_of(first_h, conv.stride_h, conv.pad_h, conv.dilation_h, conv.R);
        s_phase[0] = within(rows, one_image ? int(m0 % plane / count_w) : 0,
                            one_image ? int(m1 % plane / count_w) : count_h - 1, conv.P);
        s_phase[1] = within(phase_of(first_w, conv.stride_w, conv.pad_w, conv.dilation_w, conv.S),
                            0, count_w - 1, conv.Q);
    }
    __syncthreads();   // the phase is known
    const int taps = s_phase[0].taps * s_phase[1].taps;
    const int64_t gemm_k = int64_t(K_group) * taps;
    const int tiles = int(ceil_div(gemm_k, int64_t(kBK)));   // 0 if no tap reaches the phase

    // For copying dy: this thread copies one element m, in rows row_dy, row_dy + row_step, ...
    constexpr int row_step = kThreads / kBM;
    const int row_dy = threadIdx.x / kBM, m_dy = threadIdx.x % kBM;
    const int64_t m_own = m0 + m_dy;
    const int p0 = s_phase[0].base + int(m_own % plane / count_w);
    const int q0 = s_phase[1].base + int(m_own % plane % count_w);
    const float* dy_own = g_dy + (m_own / plane * conv.K + int64_t(group) * K_group) * PQ +
                          int64_t(p0) * conv.Q + q0;   // of i_r = i_s = 0: may be outside
    // For copying w: this thread copies row kk_w of the channels c_w, c_w + c_step, ...
    constexpr int c_step = kThreads / kBK;
    const int kk_w = threadIdx.x % kBK, c_w = threadIdx.x / kBK;
    const float* w_own = g_w + (int64_t(group) * K_group * C_group + c0 + c_w) * RS;

    // Thread kk < kBK computes the rows kk, kk + kBK, kk + 2 kBK, ...
    const int divisor = max_of(taps, 1);
    int k = threadIdx.x / divisor, tap = threadIdx.x % divisor;
    const auto write_rows = [&](int tile) {
        if (threadIdx.x >= kBK) return;
        const Phase rows = s_phase[0], columns = s_phase[1];
        const int i_r = tap / max_of(columns.taps, 1), i_s = tap % max_of(columns.taps, 1);
        const int p = i_r * rows.step, q = i_s * columns.step;
        const int r = rows.tap + i_r * rows.tap_step, s = columns.tap + i_s * columns.tap_step;
        s_rows[tile % 2][threadIdx.x] = {k * PQ - int64_t(p) * conv.Q - q, p, q};
        s_offsets_w[tile % 2][threadIdx.x] = int64_t(k) * C_group * RS + int64_t(r) * conv.S + s;
        tap += kBK % divisor;
        k += kBK / divisor + (tap >= divisor);
        tap -= tap >= divisor ? divisor : 0;
    };
    const auto copy_tile = [&](int tile) {
        const int stage = tile % kStages;
        const int there = int(min_of(int64_t(kBK), gemm_k - int64_t(tile) * kBK));   // rows of it
        #pragma unroll
        for (int kk = 0; kk < kBK; kk += row_step) {
            const Row row = s_rows[tile % 2][kk + row_dy];
            const int p = p0 - row.p, q = q0 - row.q;
            const bool inside = kk + row_dy < there && m_own < elements && p >= 0 && p < conv.P &&
                                q >= 0 && q < conv.Q;
            copy_async<4>(&s_dy[stage][kk + row_dy][m_dy], dy_own + row.offset_dy, inside);
        }
        const float* w_row = w_own + s_offsets_w[tile % 2][kk_w];
        #pragma unroll
        for (int c = 0; c < kBN; c += c_step)
            copy_async<4>(&s_w[stage][kk_w][c_w + c], w_row + c * RS,
                          kk_w < there && c0 + c_w + c < C_group);
    };

    write_rows(0);
    __syncthreads();   // the first rows are written
    if (tiles > 0) copy_tile(0);
    __pipeline_commit();
    write_rows(1);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A thread's elements are thread_m + 0 to 3, and the same plus kBM / 2. Its channels: likewise.
    const int thread_m = (warp % (kBM / kTM / 8) * 8 + lane % 8) * 4;
    const int thread_n = (warp / (kBM / kTM / 8) * 4 + lane / 8) * (kTN / 2);
    float r_acc[kTN][kTM] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        __pipeline_wait_prior(0);
        __syncthreads();   // all have copied their part of this tile, and have read the one before
        // These copies run while this tile is multiplied.
        if (tile + 1 < tiles) copy_tile(tile + 1);
        __pipeline_commit();
        write_rows(tile + 2);
        const int stage = tile % kStages;
        #pragma unroll
        for (int kk = 0; kk < kBK; ++kk) {
            Floats<4> r_dy[2];
            Floats<kTN / 2> r_w[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                r_dy[i] = *reinterpret_cast<const Floats<4>*>(
                    &s_dy[stage][kk][thread_m + i * (kBM / 2)]);
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                r_w[i] = *reinterpret_cast<const Floats<kTN / 2>*>(
                    &s_w[stage][kk][thread_n + i * (kBN / 2)]);
            #pragma unroll
            for (int i = 0; i < kTN; ++i)
                #pragma unroll
                for (int j = 0; j < kTM; ++j)
                    r_acc[i][j] += r_w[i / (kTN / 2)].v[i % (kTN / 2)] * r_dy[j / 4].v[j % 4];
        }
    }

    const int64_t HW = int64_t(conv.H) * conv.W;
    #pragma unroll
    for (int j = 0; j < kTM; ++j) {
        const int64_t m = m0 + thread_m + j / 4 * (kBM / 2) + j % 4;
        if (m >= elements || (vectors && j % 4 > 0)) continue;
        const int h = first_h + int(m % plane / count_w) * conv.stride_h;
        const int w = first_w + int(m % plane % count_w) * conv.stride_w;
        float* dx_m = g_dx + (m / plane * conv.C + int64_t(group) * C_group) * HW +
                      int64_t(h) * conv.W + w;   // dx[n, first of the group, h, w]
        #pragma unroll
        for (int i = 0; i < kTN; ++i) {
            const int c = c0 + thread_n + i / (kTN / 2) * (kBN / 2) + i % (kTN / 2);
            if (c >= C_group) continue;
            if (vectors)   // the four elements are neighbours in one plane
                *reinterpret_cast<float4*>(dx_m + c * HW) =
                    make_float4(r_acc[i][j], r_acc[i][(j + 1) % kTM], r_acc[i][(j + 2) % kTM],
                                r_acc[i][(j + 3) % kTM]);
            else
                dx_m[c * HW] = r_acc[i][j];
        }
    }
}

static int64_t blocks_of(const ConvProblem& conv, int kBM, int kBN) {
    const int64_t phases = int64_t(min_of(conv.stride_h, conv.H)) * min_of(conv.stride_w, conv.W);
    const int64_t elements =   // of the first phase, which has the most
        int64_t(conv.N) * ceil_div(conv.H, conv.stride_h) * ceil_div(conv.W, conv.stride_w);
    return ceil_div(elements, int64_t(kBM)) * phases * conv.groups *
           ceil_div(conv.C / conv.groups, kBN);
}

template <int kBM, int kBN, int kTN>
static const char* launch(const ConvProblem& conv, const float* dy, const float* w, float* dx,
                          cudaStream_t stream) {
    const int64_t blocks = blocks_of(conv, kBM, kBN);
    if (blocks > INT32_MAX)
        return "18b_data_gradient_gemm: more tiles than blocks in a grid (2^31)";
    const bool vectors = conv.stride_h == 1 && conv.stride_w == 1 &&
                         int64_t(conv.H) * conv.W % 4 == 0 &&
                         reinterpret_cast<uintptr_t>(dx) % 16 == 0;
    data_gradient_gemm<kBM, kBN, kTN>
        <<<unsigned(blocks), threads_of<kBM, kBN, kTN>, 0, stream>>>(conv, vectors, dy, w, dx);
    return launch_error();
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* /*workspace*/,
                                               size_t /*workspace_bytes*/, cudaStream_t stream) {
    const ConvProblem conv = *problem;
    if (conv.N == 0) return nullptr;
    const ThisDevice device = this_device();
    if (device.error) return device.error;

    // As in 05: choose the tile shape that gives the busiest SM the least work.
    const auto cost = [&](int kBM, int kBN, int percent) {
        return ceil_div(blocks_of(conv, kBM, kBN), int64_t(device.sms)) * kBM * kBN * percent;
    };
    const int64_t square = cost(128, 128, 100), half = cost(64, 128, 105);
    const int64_t narrow = cost(128, 64, 105), strip = cost(128, 32, 130);
    const int64_t least = min_of(min_of(square, half), min_of(narrow, strip));
    if (least == square) return launch<128, 128, 8>(conv, dy, w, dx, stream);
    if (least == half) return launch<64, 128, 8>(conv, dy, w, dx, stream);
    if (least == narrow) return launch<128, 64, 8>(conv, dy, w, dx, stream);
    return launch<128, 32, 4>(conv, dy, w, dx, stream);
}
