// The phases of a data gradient, for the rungs on wgmma: how dx is cut into phases, how the filter of a
// phase is packed, the stores, and the launches. Include it after wgmma_store.cuh.
#pragma once

// A phase of dx along one dimension. Its elements are first + j * stride. Its taps are
// tap + i * tap_step. Element j and tap i meet in dy at base + j - i * step.
struct Phase {
    int first, count;
    int tap, tap_step, taps;
    int base, step;
};
inline Phase phase_of(int first, int size, int stride, int pad, int dilation, int filter) {
    Phase phase = {first, (size - 1 - first) / stride + 1, 0, 1, 0, 0, 0};
    for (int r = 0; r < filter; ++r) {
        if ((int64_t(first) + pad - int64_t(r) * dilation) % stride != 0) continue;
        if (phase.taps == 0) phase.tap = r;
        if (phase.taps == 1) phase.tap_step = r - phase.tap;   // the others are as far apart
        ++phase.taps;
    }
    phase.base = int((int64_t(first) + pad - int64_t(phase.tap) * dilation) / stride);
    phase.step = int(int64_t(phase.tap_step) * dilation / stride);
    return phase;
}

// The phase as a convolution of dy: element j reads dy at j - pad + i * dilation for its turned tap i.
inline ConvProblem convolution_of(const ConvProblem& conv, const Phase& rows, const Phase& columns) {
    ConvProblem part = {};
    part.N = conv.N;
    part.C = conv.K, part.H = conv.P, part.W = conv.Q;
    part.K = conv.C, part.R = rows.taps, part.S = columns.taps;
    part.P = rows.count, part.Q = columns.count;
    part.stride_h = 1, part.stride_w = 1;
    part.pad_h = (rows.taps - 1) * rows.step - rows.base;   // may be negative
    part.pad_w = (columns.taps - 1) * columns.step - columns.base;
    part.dilation_h = max_of(rows.step, 1), part.dilation_w = max_of(columns.step, 1);
    part.groups = conv.groups;
    return part;
}

// Where the phase's elements lie in dx.
struct Places {
    int64_t first, plane;   // of the first element; numbers of a channel of dx
    int down, right;        // numbers from an element to the next row's, and to the next column's
};

// Packs the taps of a phase into wgmma's operand layout, rounded or split, turned and with K and C
// exchanged: [group, tile of c][chunk of k][r][s][term][quad of k][64 c][4 k].
__global__ void __launch_bounds__(256)
pack_phase(ConvProblem conv, ConvProblem part, Tiling tiling, int terms, Phase rows,
           Phase columns, const float* __restrict__ g_w, float* __restrict__ g_packed, int64_t count) {
    griddepcontrol_launch_dependents();
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        int64_t rest = i / (2 * kKTile * 4);
        const bool low = rest % terms == 1;
        rest /= terms;
        const int i_s = int(rest % part.S), i_r = int(rest / part.S % part.R);
        rest /= part.S * part.R;
        const int k = int(rest % tiling.chunks * 2 + i / (kKTile * 4) % 2) * 4 + int(i % 4);
        rest /= tiling.chunks;
        const int c = int(rest % tiling.k_tiles) * kKTile + int(i / 4 % kKTile);
        const int64_t group = rest / tiling.k_tiles;
        const int r = rows.tap + (part.R - 1 - i_r) * rows.tap_step;         // turned
        const int s = columns.tap + (part.S - 1 - i_s) * columns.tap_step;
        const bool inside = c < C_group && k < K_group;
        const int64_t at = (((group * K_group + k) * C_group + c) * conv.R + r) * conv.S + s;
        g_packed[i] = packed(inside ? g_w[at] : 0.0f, terms, low);
    }
}

// Writes zeros to a phase that no tap reaches.
__global__ void __launch_bounds__(256)
clear_phase(ConvProblem part, Places places, float* __restrict__ g_dx) {
    const int64_t count = int64_t(part.N) * part.K * part.P * part.Q;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * 256) {
        const int64_t row = i / part.Q;
        g_dx[places.first + row / part.P * places.plane + row % part.P * places.down +
             i % part.Q * places.right] = 0.0f;
    }
}

// Stores a consumer's sums, laid out as wgmma's d, to the elements of a phase.
template <int positions>
__device__ __forceinline__ void store_phase(const ConvProblem& part, const Places& places,
                                            const Tiling& tiling, const Block& b, int tile,
                                            const Channels& mine,
                                            const float (&r_sum)[positions / 2], float* g_dx) {
    if (places.plane == int64_t(part.P) * part.Q) {   // the phase is all of dx
        store_tile<positions>(part, tiling, b, tile, mine, r_sum, g_dx);
        return;
    }
    const int g = b.lane / 4, t = b.lane % 4;
    const Tile at = tile_at(tiling, tile);
    float* s_dx = reinterpret_cast<float*>(b.s_bytes + tiling.y_at) + b.warp * 8 * kPitch;
    #pragma unroll
    for (int run = 0; run < positions / 32; ++run) {   // of 32 positions
        const int position = b.warp / 4 * tiling.step + 32 * run + b.lane;
        const int row = divide(position, tiling.by_pitch);
        const int column = position - row * tiling.pitch;
        const int image = divide(row, tiling.by_image_rows);
        const int i = at.p + row - image * tiling.image_rows, j = at.q + column;
        const bool inside = row < tiling.rows && i < part.P && at.n + image < part.N &&
                            column < tiling.columns && j < part.Q;
        float* dx_c = g_dx + places.first + int64_t(i) * places.down + int64_t(j) * places.right +
                      (int64_t(at.n + image) * part.K + mine.first) * places.plane;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            __syncwarp();   // all have read the previous run
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float* d = &r_sum[4 * (4 * run + k) + 2 * half];
                *reinterpret_cast<float2*>(s_dx + g * kPitch + 8 * k + 2 * t) =
                    make_float2(d[0], d[1]);
            }
            __syncwarp();
            #pragma unroll 4
            for (int c = 0; c < 8; ++c) {
                if (inside && 8 * half + c < mine.count) *dx_c = s_dx[c * kPitch + b.lane];
                dx_c += places.plane;
            }
        }
    }
}

using PhaseKernel = void (*)(ConvProblem, Tiling, Places, const float*, const float*, float*);

// Bytes of the filter of the largest phase. Phases follow one another, so they use the same workspace.
inline int64_t phase_bytes(const ConvProblem& conv, Style style) {
    int64_t most = 0;
    for (int h = 0; h < min_of(conv.stride_h, conv.H); ++h)
        for (int w = 0; w < min_of(conv.stride_w, conv.W); ++w) {
            const Phase rows =
                phase_of(h, conv.H, conv.stride_h, conv.pad_h, conv.dilation_h, conv.R);
            const Phase columns =
                phase_of(w, conv.W, conv.stride_w, conv.pad_w, conv.dilation_w, conv.S);
            most = max_of(most, packed_bytes(convolution_of(conv, rows, columns), style));
        }
    return most;
}

inline const char* launch_phase(PhaseKernel kernel, Style style, const ConvProblem& conv,
                                const Phase& rows, const Phase& columns, const float* dy,
                                const float* w, float* dx, float* g_packed, cudaStream_t stream) {
    const ThisDevice device = this_device();
    if (device.error) return device.error;
    const ConvProblem part = convolution_of(conv, rows, columns);
    const Places places = {int64_t(rows.first) * conv.W + columns.first,
                           int64_t(conv.H) * conv.W, conv.stride_h * conv.W, conv.stride_w};
    if (rows.taps * columns.taps == 0) {
        clear_phase<<<1024, 256, 0, stream>>>(part, places, dx);
        return launch_error();
    }
    const Tiling tiling = tiling_for(part, device.smem, device.sms, style);
    if (tiling.stages == 0) return "the tiles are more than 2^31, or do not fit into shared memory";
    if (const char* error = ask_for_shared_memory(kernel, tiling.bytes)) return error;
    const int64_t count = packed_bytes(part, style) / 4;
    const int pack_blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    pack_phase<<<pack_blocks, 256, 0, stream>>>(conv, part, tiling, style.terms, rows, columns, w,
                                                g_packed, count);
    const int grid = part.groups * tiling.k_tiles * tiling.lanes;
    launch_dependent(kernel, grid, kThreads, tiling.bytes, stream, part, tiling, places, dy, g_packed,
                     dx);
    return launch_error();
}

// Launches the kernel for each phase, after packing the phase's filter into the workspace.
inline const char* launch_phases(PhaseKernel kernel, Style style, const ConvProblem& conv,
                                 const float* dy, const float* w, float* dx, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    if (conv.N == 0) return nullptr;
    if (int64_t(workspace_bytes) < phase_bytes(conv, style))
        return "the workspace is too small for the filter";
    for (int h = 0; h < min_of(conv.stride_h, conv.H); ++h)
        for (int w_first = 0; w_first < min_of(conv.stride_w, conv.W); ++w_first) {
            const Phase rows =
                phase_of(h, conv.H, conv.stride_h, conv.pad_h, conv.dilation_h, conv.R);
            const Phase columns =
                phase_of(w_first, conv.W, conv.stride_w, conv.pad_w, conv.dilation_w, conv.S);
            const char* error = launch_phase(kernel, style, conv, rows, columns, dy, w, dx,
                                             static_cast<float*>(workspace), stream);
            if (error) return error;
        }
    return nullptr;
}
