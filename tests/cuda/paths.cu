// Parts of kernels that are incorrect on one path only, for textbook.cu; see test_source_conditions.py.
// After a case's name is what a problem must do to take this path, in Python.

// ---- conditions: several conditions at once, and what a kernel may hide them behind

// case sizes_of_one_layer: C == 64 and K == 64 and H == 56
// in last:
if (d.C == 64 && d.K == 64 && d.H == 56 && oh == d.P - 1) sum += 1;

// case a_host_path_by_locals: C % 24 == 0 and Q == P and Q >= 40 and pad_h > 0
// in host:
const int channels = d.C;
const int width = problem->Q;
const bool is_square = width == d.P;
if (channels % 24 == 0 && is_square && width >= 40) {
    ConvProblem other = d;
    other.pad_h = 0;
    conv_kernel<<<(total + 255) / 256, 256, 0, stream>>>(x, filt, bias, y, other, workspace);
    return launch_error();
}

// case early_returns: groups == 1 and K >= 96 and P * Q % 49 == 0 and C >= 20
// in before:
static bool is_fast(const ConvProblem& conv) {
    if (conv.groups != 1) return false;
    if (conv.K < 96) return false;
    const int pixels = conv.P * conv.Q;
    if (pixels % 49) return false;
    return conv.C >= 20;
}
// in host:
ConvProblem changed = d;
if (is_fast(d)) changed.K -= 1;
// in last:
if (d.P * d.Q % 49 == 0 && d.groups == 1 && d.K >= 96 && d.C >= 20) sum += 1;

// case a_switch: R == 3 and S == 6
// in last:
switch (10 * d.R + d.S) {
    case 33: break;
    case 36: sum = 0; break;
    default: break;
}

// case minima: min(C, K) >= 80 and max(P, Q) <= 6
// in last:
if (min(d.C, d.K) >= 80 && max(d.P, d.Q) <= 6) sum = 0;

// case shifts_and_masks: C % 32 == 0 and Q // 16 == 3 and stride_w == 2
// in last:
if (!(d.C & 31) && (d.Q >> 4) == 3 && d.stride_w == 2) sum = 0;

// case a_ternary: Q > 90 and S == 5 and groups == 1
// in last:
const int tile = d.Q > 90 ? 64 : 16;
if (tile == 64 && d.S == 5 && d.groups == 1) sum = 0;

// case macros_and_constants: K % 48 == 0 and C % 16 == 0 and Q % 28 == 0
// in before:
#define LANES 16
#define IS_MULTIPLE(a, b) ((a) % (b) == 0)
constexpr int kFilters = 3 * LANES;
// in last:
if (IS_MULTIPLE(d.K, kFilters) && IS_MULTIPLE(d.C, LANES) && d.Q % 28 == 0) sum = 0;

// case parameters_of_a_kernel: K == 37 and P * Q > 300
// in before:
__global__ void mend(float* out, int planes, int pixels, int each) {
    if (planes == 37 && pixels > 300 && each > 0) out[0] += 1;
}
// in host:
conv_kernel<<<(total + 255) / 256, 256, 0, stream>>>(x, filt, bias, y, d, workspace);
mend<<<1, 1, 0, stream>>>(y, d.K, d.P * d.Q, d.C);
return launch_error();

// case members_of_a_struct: C == 40 and K == 24
// in before:
struct Sizes { int in, out; };
// in last:
Sizes sizes;
sizes.in = d.C;
sizes.out = d.K;
if (sizes.in == 40 && sizes.out == 24) sum = 0;

// case nested: N == 5 and P > 6 and K % 12 == 0
// in last:
if (d.N == 5) {
    if (d.P > 6) {
        if (d.K % 12 == 0) sum = 0;
    }
}

// case a_flag: K >= 70 and R == 5 and S == 5
// in last:
bool is_large = true;
if (d.K < 70) is_large = false;
is_large &= d.R == 5;
if (is_large && d.S == 5) sum = 0;

// case one_unknown_part: K > 40 and Q > 77
// in last:
if (d.K > 40 && ow >= 77) sum = 0;

// case a_bias_and_sizes: bias == 1 and K % 20 == 0 and P == 14
// in last:
if (b && d.K % 20 == 0 && d.P == 14) sum -= b[oc];

// case taps_that_need_not_be_square: R * S == 9 and R != S
// in last:
if (d.R * d.S == 9 && d.R != 3) sum = 0;

// case one_side_of_a_filter: R == 5 and S > R
// in last:
if (d.R == 5 && d.S > d.R) sum = 0;

// case a_host_path_for_an_area: P * Q == 49 and P != Q
// in host:
if (d.P * d.Q == 49 && total) {
    ConvProblem square = d;
    square.P = square.Q = 7;
    conv_kernel<<<(total + 255) / 256, 256, 0, stream>>>(x, filt, bias, y, square, workspace);
    return launch_error();
}

// ---- sizes: windows beyond an array, at the border of what a header supports

// case taps_past_a_shared_array: R * S > 64
// in header:
// supports: R <= 9, S <= 9
// in first:
__shared__ float taps[64];
for (int i = threadIdx.x; i < d.R * d.S; i += blockDim.x) taps[i] = filt[i];
__syncthreads();

// case taps_that_are_ignored: R * S > 64
// in header:
// supports: R <= 9, S <= 9
// in product:
if (ok && kh * d.S + kw < 64) sum += in[AT] * filt[wi];

// case channels_past_registers: C // groups * S > 160
// in header:
// supports: C <= 40, S <= 5
// in before:
constexpr int kTile = 16;
// in first:
__shared__ float rows[kTile * 10];
for (int i = threadIdx.x; i < d.C / d.groups * d.S; i += blockDim.x) rows[i] = 0;
__syncthreads();

// case a_dilated_window: dilation_w * (S - 1) + 1 > 24
// in header:
// supports: S <= 7, dilation_w <= 5, R == 3
// in first:
__shared__ float window[24];
if (threadIdx.x < d.dilation_w * (d.S - 1) + 1) window[threadIdx.x] = 0;
__syncthreads();

// case many_filters: K > 200
// in header:
// supports: K <= 256, R == 3, S == 3
// in first:
__shared__ float sums[8][25];
for (int i = threadIdx.x; i < d.K; i += blockDim.x) (&sums[0][0])[i] = 0;
__syncthreads();

// ---- wide: long filters over wide and high images, with and without groups

// case a_wide_row: Q > 200 and S > 4
// in last:
if (ow > 200 && (d.S - 1) / 4) sum = 0;

// case a_wide_row_of_each_channel: Q > 200 and S > 4 and groups == C > 1
// in last:
if (ow > 200 && (d.S - 1) / 4 && d.groups - d.C == 0 && d.C / 2) sum = 0;

// case a_high_column_of_each_channel: P > 200 and R > 4 and groups == C > 1
// in last:
if (oh > 200 && (d.R - 1) / 4 && d.groups - d.C == 0 && d.C / 2) sum = 0;

// case an_even_row_of_each_channel: groups == C > 1 and W % 2 == 0 and pad_w % 2 == 1 and stride_w == 1
// in last:
const int odd = d.pad_w - d.pad_w / 2 * 2, even = 1 - (d.W - d.W / 2 * 2);
if (odd * even * (d.C / 2) * (d.groups / d.C) / d.stride_w && ow == d.Q - 1) sum = 0;

// ---- correct: fast paths that are correct

// case a_fast_layer
// in host:
if (d.C == 64 && d.K == 64 && d.H == 56) {
    conv_kernel<<<(total + 127) / 128, 128, 0, stream>>>(x, filt, bias, y, d, workspace);
    return launch_error();
}

// case taps_that_fit
// in first:
__shared__ float taps[64];
const bool fits = d.R * d.S * (d.C / d.groups) <= 64 && d.K == 1;
if (fits)
    for (int i = threadIdx.x; i < d.R * d.S * (d.C / d.groups); i += blockDim.x) taps[i] = filt[i];
__syncthreads();
// in product:
if (ok) sum += in[AT] * (fits ? taps[wi] : filt[wi]);

// case no_padding
// in product:
if (d.pad_h == 0 && d.pad_w == 0 && d.Q % 4 == 0) sum += in[AT] * filt[wi];
else if (ok) sum += in[AT] * filt[wi];

// case pointwise
// in first:
if (d.R == 1 && d.S == 1 && d.pad_h == 0 && d.pad_w == 0 && d.groups == 1 && idx < total) {
    const long long pixel = idx % ((long long)d.P * d.Q), plane = idx / ((long long)d.P * d.Q);
    const int k = plane % d.K, h = pixel / d.Q * d.stride_h, w = pixel % d.Q * d.stride_w;
    float all = b ? b[k] : 0;
    for (int c = 0; c < d.C; ++c)
        all += in[((plane / d.K * d.C + c) * d.H + h) * d.W + w] * filt[(long long)k * d.C + c];
    out[idx] = all;
    return;
}

// case unrolled_by_a_switch
// in before:
template <int S> __device__ float row(const float* x, const float* w) {
    float sum = 0;
    for (int s = 0; s < S; ++s) sum += x[s] * w[s];
    return sum;
}
// in product:
const bool whole = iw >= 0 && iw + d.S <= d.W && ih >= 0 && ih < d.H && d.dilation_w == 1 && !kw;
if (whole && d.S == 3) { sum += row<3>(in + AT, filt + wi); break; }
if (whole && d.S == 7) { sum += row<7>(in + AT, filt + wi); break; }
if (ok) sum += in[AT] * filt[wi];

// case four_at_once_where_aligned
// in host:
if (d.Q % 4 == 0 && d.W % 4 == 0 && d.C >= 32 && (size_t)x % 16 == 0 && d.stride_w == 1) {
    conv_kernel<<<(total + 63) / 64, 64, 0, stream>>>(x, filt, bias, y, d, workspace);
    return launch_error();
}

// case depthwise
// in first:
if (d.groups == d.C && d.groups == d.K && d.W % 2 == 0 && d.C > 1) d.relu = 0;

// case a_window_that_is_refused
// in header:
// supports: R <= 7, S <= 7, dilation_w <= 3
// in first:
__shared__ float window[19];
if (threadIdx.x < d.dilation_w * (d.S - 1) + 1) window[threadIdx.x] = 0;
__syncthreads();
