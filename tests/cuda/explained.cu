// A textbook's kernel with one mistake, which tests/strict/test_explanations.py picks by its number:
// the workspace limit. After a case's name are the problem and the sentence that must describe it.
#include "convlab.cuh"

// The indices of one product, and those of its output. A mistake changes some of them.
struct Indices {
    int n, k, p, q, c, r, s;
    int group, channel, row, column;
    int filter;
    bool inside;
};

__device__ void exchange(int& a, int& b) {
    const int kept = a;
    a = b;
    b = kept;
}

// Changes the problem: strides, dilations and paddings.
__device__ void change_problem(int mistake, ConvProblem& d) {
    switch (mistake) {
        // case stride: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if the stride were 1 (it is ignored)
        case 1: d.stride_h = d.stride_w = 1; break;
        // case stride_h: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if stride_h were 1 (it is ignored)
        case 2: d.stride_h = 1; break;
        // case stride_w: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if stride_w were 1 (it is ignored)
        case 3: d.stride_w = 1; break;
        // case stride_h_twice: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if stride_h were used for both dim
        case 4: d.stride_w = d.stride_h; break;
        // case strides: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if stride_h and stride_w were exchanged
        case 5: exchange(d.stride_h, d.stride_w); break;
        // case dilation: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if the dilation were 1 (it is ignored)
        case 6: d.dilation_h = d.dilation_w = 1; break;
        // case dilation_w: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if dilation_w were 1 (it is ignored)
        case 7: d.dilation_w = 1; break;
        // case dilation_w_twice: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if dilation_w were used for both
        case 8: d.dilation_h = d.dilation_w; break;
        // case padding: N2 C3 H13 W15 K4 R3 S3 p2x3 | as if the padding were 0 (it is ignored)
        case 9: d.pad_h = d.pad_w = 0; break;
        // case pad_h: N2 C3 H13 W15 K4 R3 S3 p2x3 | as if pad_h were 0 (it is ignored)
        case 10: d.pad_h = 0; break;
        // case pad_h_twice: N2 C3 H13 W15 K4 R3 S3 p2x5 | as if pad_h were used for both dimensions
        case 11: d.pad_w = d.pad_h; break;
        // case padding_less: N2 C3 H13 W15 K4 R3 S3 p2x4 | as if the padding were one less than it is
        case 12: --d.pad_h, --d.pad_w; break;
        // case pad_w_more: N2 C3 H13 W15 K4 R3 S3 p2x4 | as if pad_w were one more than it is
        case 13: ++d.pad_w; break;
    }
}

// Changes which output a thread computes.
__device__ void change_output(int mistake, const ConvProblem& d, int& n, int& k, int& p, int& q) {
    const int pixel = p * d.Q + q;
    switch (mistake) {
        // case image_0: N3 C4 H9 W10 K16 R3 S3 p1 | each output is computed from image 0
        case 14: n = 0; break;
        // case tile_before: N2 C3 H9 W32 K16 R3 S3 p1 | outputs have the value of the tile before the
        case 15: if (q >= 8) q -= 8; break;
        // case first_tile_of_k: N2 C3 H9 W10 K16 R3 S3 p1 | outputs have the value of the first tile
        case 16: k %= 8; break;
        // case rows_of_8: N2 C3 H9 W10 K16 R3 S3 p1 | rows of 8 are exchanged (the halves of a fragme
        case 17: k ^= 8; break;
        // case pairs_of_columns: N2 C3 H9 W10 K16 R3 S3 p1 | neighbours are exchanged pairwise
        case 18: q ^= 1; break;
        // case accumulator: N1 C3 H4 W8 K16 R3 S3 p1 | numbers 1 and 2 of the accumulator's fragment
        case 19:
            if ((k >> 3 & 1) != (q & 1)) k ^= 8, q ^= 1;
            break;
        // case tile_transposed: N1 C3 H4 W8 K16 R3 S3 p1 | each tile of 8 x 8 of (k, q) is transposed
        case 20: {
            const int of_k = k % 8;
            k = k / 8 * 8 + q % 8;
            q = q / 8 * 8 + of_k;
            break;
        }
        // case column_major: N2 C3 H9 W10 K4 R3 S3 p1 | n and k exchanged in memory
        case 21: {
            const int index = n * d.K + k;
            n = index % d.N;
            k = index / d.N;
            break;
        }
        // case transposed_y: N2 C3 H9 W10 K4 R3 S3 p1 | p and q exchanged in memory
        case 22: p = pixel % d.P, q = pixel / d.P; break;
    }
}

// Changes the indices of a product. `filter` is the index of its element in memory.
__device__ void change_product(int mistake, const ConvProblem& d, Indices& i) {
    const int C = d.C / d.groups, K = d.K / d.groups, R = d.R, S = d.S;
    auto filter = [&](int k, int c, int r, int s) { return ((k * C + c) * R + r) * S + s; };
    switch (mistake) {
        // case group_0: N2 C6 H9 W10 K12 R3 S3 p1 g3 | every group reads the channels of group 0
        case 23: i.channel = i.c; break;
        // case group_by_remainder: N2 C6 H9 W10 K12 R3 S3 p1 g3 | the group is k % groups, not
        case 24: i.channel = i.k % d.groups * C + i.c; break;
        // case interleaved: N2 C6 H9 W10 K12 R3 S3 p1 g3 | a group's channels are c * groups + group
        case 25: i.channel = i.c * d.groups + i.group; break;
        // case filters_of_group_0: N2 C6 H9 W10 K12 R3 S3 p1 g3 | every group uses the filters of gro
        case 26: i.filter = filter(i.k % K, i.c, i.r, i.s); break;
        // case flipped: N2 C4 H9 W10 K6 R3 S3 p1 | the filter is flipped in both dimensions
        case 27: i.filter = filter(i.k, i.c, R - 1 - i.r, S - 1 - i.s); break;
        // case flipped_r: N2 C4 H9 W10 K6 R3 S2 p1 | the filter is flipped in R
        case 28: i.filter = filter(i.k, i.c, R - 1 - i.r, i.s); break;
        // case flipped_s: N2 C4 H9 W10 K6 R2 S3 p1 | the filter is flipped in S
        case 29: i.filter = filter(i.k, i.c, i.r, S - 1 - i.s); break;
        // case filter_of_s_r: N2 C4 H9 W10 K6 R3 S2 p1 | R and S of the filter are exchanged
        case 30: i.filter = ((i.k * C + i.c) * S + i.s) * R + i.r; break;
        // case filter_ckrs: N2 C4 H9 W10 K6 R3 S2 p1 | the filter is read as if its order in memory were CKRS
        case 31: i.filter = ((i.c * d.K + i.k) * R + i.r) * S + i.s; break;
        // case filter_krsc: N2 C4 H9 W10 K6 R3 S2 p1 | the filter is read as if its order in memory were KRSC
        case 32: i.filter = ((i.k * R + i.r) * S + i.s) * C + i.c; break;
        // case filter_crsk: N2 C4 H9 W10 K6 R3 S2 p1 | the filter is read as if its order in memory were CRSK
        case 33: i.filter = ((i.c * R + i.r) * S + i.s) * d.K + i.k; break;
        // case last_channel: N2 C5 H9 W10 K6 R3 S2 p1 | the last channel is left out
        case 34: if (i.c == C - 1) i.inside = false; break;
        // case last_column: N2 C5 H9 W10 K6 R3 S2 p1 | the last column of the filter is left out
        case 35: if (i.s == S - 1) i.inside = false; break;
        // case last_row: N2 C5 H9 W10 K6 R3 S2 p1 | the last row of the filter is left out
        case 36: if (i.r == R - 1) i.inside = false; break;
        // case last_tile_of_channels: N2 C7 H9 W10 K6 R3 S2 p1 | the channels past the last whole tile of 4 are left out
        case 37: if (i.c >= C / 4 * 4) i.inside = false; break;
        // case last_tile_of_products: N2 C5 H9 W10 K6 R3 S3 p1 | the products past the last whole tile of 8 are left out, in the order (c
        case 38: if (((i.c * R) + i.r) * S + i.s >= C * R * S / 8 * 8) i.inside = false; break;
        // case last_tile_channels_last: N2 C5 H9 W10 K6 R3 S3 p1 | the products past the last whole tile of 8 are left out, in the order (r
        case 39: if (((i.r * S) + i.s) * C + i.c >= C * R * S / 8 * 8) i.inside = false; break;
        // case neighbouring_row: N2 C4 H9 W10 K6 R3 S3 p1 | the columns of the padding are not 0, but
        case 40:
            i.inside = i.row >= 0 && i.row < d.H;
            if (i.row * d.W + i.column < 0 || i.row * d.W + i.column >= d.H * d.W) i.inside = false;
            break;
        // case border: N2 C4 H9 W10 K6 R3 S3 p1 | the padding is not 0, but repeats the image's border
        case 41:
            i.row = min_of(max_of(i.row, 0), d.H - 1);
            i.column = min_of(max_of(i.column, 0), d.W - 1);
            i.inside = true;
            break;
        // case other_channel: N2 C8 H9 W10 K6 R3 S3 p1 | x at channel c is multiplied with the filter at channel c ^ 1
        case 42: i.filter = filter(i.k, i.c ^ 1, i.r, i.s); break;
        // case other_product: N2 C4 H9 W10 K6 R3 S3 p1 | x at j is multiplied with the filter at j ^ 2
        case 43: i.filter = (i.k * C * R * S) + (((i.c * R + i.r) * S + i.s) ^ 2); break;
        // case fragment: N2 C8 H9 W10 K16 R1 S1 | numbers 1 and 2 of the filter's fragment are exchanged
        case 44:
            if ((i.k >> 3 & 1) != (i.c >> 2 & 1)) i.filter = filter(i.k ^ 8, i.c ^ 4, i.r, i.s);
            break;
    }
}

// Returns the index of an element of x.
__device__ int place_in_x(int mistake, const ConvProblem& d, const Indices& i) {
    switch (mistake) {
        // case x_ncwh: N2 C4 H9 W10 K6 R3 S3 p1 | x is read as if its order in memory were NCWH
        case 45: return ((i.n * d.C + i.channel) * d.W + i.column) * d.H + i.row;
        // case x_nhwc: N2 C4 H9 W10 K6 R3 S3 p1 | x is read as if its order in memory were NHWC
        case 46: return ((i.n * d.H + i.row) * d.W + i.column) * d.C + i.channel;
        // case x_cnhw: N2 C4 H9 W10 K6 R3 S3 p1 | x is read as if its order in memory were CNHW
        case 47: return ((i.channel * d.N + i.n) * d.H + i.row) * d.W + i.column;
    }
    return ((i.n * d.C + i.channel) * d.H + i.row) * d.W + i.column;
}

// Returns the index of the bias.
__device__ int place_in_bias(int mistake, const ConvProblem& d, const Indices& i) {
    switch (mistake) {
        // case bias_n: N2 C4 H9 W10 K12 R3 S3 p1 bias | the bias is read at index n
        case 48: return i.n;
        // case bias_q: N2 C4 H9 W10 K12 R3 S3 p1 bias | the bias is read at index q
        case 49: return i.q;
        // case bias_of_tile: N2 C4 H9 W10 K12 R3 S3 p1 bias | the bias is read at index k % 8
        case 50: return i.k % 8;
        // case bias_of_group: N2 C6 H9 W10 K12 R3 S3 p1 g3 bias | the bias is read at index the group
        case 51: return i.group;
        // case bias_in_group: N2 C6 H9 W10 K12 R3 S3 p1 g3 bias | the bias is read at index k % (K/gr
        case 52: return i.k % (d.K / d.groups);
        // case bias_0: N2 C4 H9 W10 K12 R3 S3 p1 bias | the bias is read at index 0 for every k
        case 53: return 0;
        // case bias_reversed: N2 C4 H9 W10 K12 R3 S3 p1 bias | the bias is read at index K - 1 - k
        case 54: return d.K - 1 - i.k;
    }
    return i.k;
}

__global__ void conv_kernel(const float* x, const float* w, const float* bias, float* y,
                            ConvProblem d, int mistake) {
    const int index = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (index >= d.N * d.K * d.P * d.Q) return;
    Indices i = {};
    i.q = index % d.Q;
    i.p = index / d.Q % d.P;
    i.k = index / d.Q / d.P % d.K;
    i.n = index / d.Q / d.P / d.K;
    change_output(mistake, d, i.n, i.k, i.p, i.q);
    change_problem(mistake, d);
    const int C = d.C / d.groups;
    i.group = i.k / (d.K / d.groups);
    float sum = bias ? bias[place_in_bias(mistake, d, i)] : 0;
    for (i.c = 0; i.c < C; ++i.c)
        for (i.r = 0; i.r < d.R; ++i.r)
            for (i.s = 0; i.s < d.S; ++i.s) {
                i.channel = i.group * C + i.c;
                i.row = i.p * d.stride_h - d.pad_h + i.r * d.dilation_h;
                i.column = i.q * d.stride_w - d.pad_w + i.s * d.dilation_w;
                i.inside = i.row >= 0 && i.row < d.H && i.column >= 0 && i.column < d.W;
                i.filter = ((i.k * C + i.c) * d.R + i.r) * d.S + i.s;
                Indices changed = i;
                change_product(mistake, d, changed);
                if (changed.inside)
                    sum += x[place_in_x(mistake, d, changed)] * w[changed.filter];
            }
    y[index] = sum;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t limit) { return limit; }

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void*, size_t mistake,
                                 cudaStream_t stream) {
    const int outputs = problem->N * problem->K * problem->P * problem->Q;
    if (outputs)
        conv_kernel<<<unsigned(outputs + 255) / 256, 256, 0, stream>>>(x, w, bias, y, *problem,
                                                                       int(mistake));
    return launch_error();
}
