// computes: data gradient
// A textbook's data gradient with one mistake, which tests/strict/test_gradient_explanations.py picks by
// its number: the workspace limit. After a case's name are the problem and the sentence for it.
#include "convlab.cuh"

// The indices of one product, and those of the element of dx. A mistake changes some of them.
struct Indices {
    int n, c, h, w, j, r, s;
    int group, k, p, q;
    int filter, channel, row_tap, column_tap;
    bool exists;
};

// Changes the problem: strides, dilations and paddings.
__device__ void change_problem(int mistake, ConvProblem& d) {
    switch (mistake) {
        // case stride: N2 C3 H13 W16 K4 R3 S3 s2x3 p1 | as if the stride were 1 (it is ignored)
        case 1: d.stride_h = d.stride_w = 1; break;
        // case stride_w: N2 C3 H13 W16 K4 R3 S3 s2x3 p1 | as if stride_w were 1 (it is ignored)
        case 2: d.stride_w = 1; break;
        // case strides: N2 C3 H13 W16 K4 R3 S3 s2x3 p1 | as if stride_h and stride_w were exchanged
        case 3: d.stride_h = 3, d.stride_w = 2; break;
        // case dilation: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if the dilation were 1 (it is ignored)
        case 4: d.dilation_h = d.dilation_w = 1; break;
        // case dilation_w: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if dilation_w were 1 (it is ignored)
        case 5: d.dilation_w = 1; break;
        // case padding: N2 C3 H13 W15 K4 R3 S3 p2x3 | as if the padding were 0 (it is ignored)
        case 6: d.pad_h = d.pad_w = 0; break;
        // case pad_h_twice: N2 C3 H13 W15 K4 R3 S3 p2x5 | as if pad_h were used for both dimensions
        case 7: d.pad_w = d.pad_h; break;
        // case pad_less: N2 C3 H13 W15 K4 R3 S3 p2x4 | as if the padding were one less than it is
        case 8: --d.pad_h, --d.pad_w; break;
    }
}

// Changes the indices of a product.
__device__ void change_product(int mistake, const ConvProblem& d, Indices& i) {
    const int K = d.K / d.groups, C = d.C / d.groups;
    switch (mistake) {
        // case turned: N2 C3 H13 W15 K4 R3 S3 p1 | the filter is turned by 180 degrees once too often
        case 9: i.row_tap = d.R - 1 - i.r, i.column_tap = d.S - 1 - i.s; break;
        // case flipped_r: N2 C3 H13 W15 K4 R3 S3 p1 | the filter is flipped in R
        case 10: i.row_tap = d.R - 1 - i.r; break;
        // case flipped_s: N2 C3 H13 W15 K4 R3 S3 p1 | the filter is flipped in S
        case 11: i.column_tap = d.S - 1 - i.s; break;
        // case taps: N2 C3 H13 W15 K4 R3 S2 p1 | R and S of the filter are exchanged
        case 12: {
            const int flat = i.s * d.R + i.r;
            i.row_tap = flat / d.S, i.column_tap = flat % d.S;
            break;
        }
        // case channels: N2 C3 H13 W15 K4 R3 S3 p1 | C and K of the filter are exchanged
        case 13: {
            const int flat = i.channel * K + i.j;
            i.filter = i.group * K + flat / C, i.channel = flat % C;
            break;
        }
        // case krsc: N2 C3 H13 W15 K4 R3 S2 p1 | the filter is read as if its order in memory were KRSC
        case 14: {
            const int flat = (i.r * d.S + i.s) * C + i.channel;
            i.channel = flat / (d.R * d.S), i.row_tap = flat / d.S % d.R, i.column_tap = flat % d.S;
            break;
        }
        // case group_0: N2 C6 H9 W10 K12 R3 S3 p1 g3 | every group reads dy's channels of group 0
        case 15: i.k = i.j; break;
        // case filters_0: N2 C6 H9 W10 K12 R3 S3 p1 g3 | every group uses the filters of group 0
        case 16: i.filter = i.j; break;
        // case group_rest: N2 C6 H9 W10 K12 R3 S3 p1 g3 | the group is c % groups, not c / (C / groups)
        case 17: i.k = i.filter = i.c % d.groups * K + i.j, i.channel = i.c / d.groups; break;
        // case last_filter: N2 C3 H13 W15 K5 R3 S3 p1 | the last filter is left out
        case 18: i.exists = i.exists && i.j < K - 1; break;
        // case tile: N2 C3 H13 W15 K22 R3 S3 p1 | the filters past the last whole tile of 8 are left
        case 19: i.exists = i.exists && i.j < K / 8 * 8; break;
        // case last_row: N2 C3 H13 W15 K4 R3 S3 p1 | the last row of the filter is left out
        case 20: i.exists = i.exists && i.r < d.R - 1; break;
        // case image: N3 C3 H13 W15 K4 R3 S3 p1 | each element is computed from image 0
        case 21: i.n = 0; break;
        // case dy_npqk: N2 C3 H9 W10 K4 R3 S3 | dy is read as if its order in memory were NPQK
        case 22: {
            const int flat = (i.p * d.Q + i.q) * d.K + i.k;
            i.k = flat / (d.P * d.Q), i.p = flat / d.Q % d.P, i.q = flat % d.Q;
            break;
        }
    }
}

__global__ void data_gradient(const float* dy, const float* w, float* dx, ConvProblem d, int mistake) {
    const int index = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (index >= d.N * d.C * d.H * d.W) return;
    Indices i = {};
    const int H = d.H, W = d.W;
    i.w = index % W;
    i.h = index / W % H;
    i.c = index / W / H % d.C;
    const int n = index / W / H / d.C, K = d.K / d.groups, C = d.C / d.groups;
    ConvProblem changed = d;
    change_problem(mistake, changed);
    float sum = 0;
    for (i.j = 0; i.j < K; ++i.j)
        for (i.r = 0; i.r < d.R; ++i.r)
            for (i.s = 0; i.s < d.S; ++i.s) {
                const int row = i.h + changed.pad_h - i.r * changed.dilation_h;
                const int column = i.w + changed.pad_w - i.s * changed.dilation_w;
                i.n = n, i.group = i.c / C, i.channel = i.c % C;
                i.k = i.filter = i.group * K + i.j;
                i.row_tap = i.r, i.column_tap = i.s;
                i.p = row / changed.stride_h, i.q = column / changed.stride_w;
                i.exists = row >= 0 && column >= 0 && i.p < d.P && i.q < d.Q;
                // case remainder: N2 C3 H13 W16 K4 R3 S3 s2x3 p1 | the remainder of the division by the
                if (mistake != 23)
                    i.exists = i.exists && row % changed.stride_h == 0 && column % changed.stride_w == 0;
                if (i.exists) change_product(mistake, d, i);
                if (i.exists)
                    sum += dy[((i.n * d.K + i.k) * d.P + i.p) * d.Q + i.q] *
                           w[((i.filter * C + i.channel) * d.R + i.row_tap) * d.S + i.column_tap];
            }
    // case unreached: N2 C3 H14 W16 K4 R3 S3 s3 p0 | never written
    const int rows = (d.P - 1) * d.stride_h + d.R - d.pad_h;
    if (mistake == 24 && i.h >= rows) return;
    // case to_whc: N2 C3 H7 W7 K4 R3 S3 p1 | h and w exchanged in memory
    const int turned = ((n * d.C + i.c) * W + i.w) * H + i.h;
    dx[mistake == 25 ? turned : index] = sum;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t limit) { return limit; }

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void*, size_t mistake,
                                               cudaStream_t stream) {
    const int elements = problem->N * problem->C * problem->H * problem->W;
    if (elements)
        data_gradient<<<unsigned(elements + 255) / 256, 256, 0, stream>>>(dy, w, dx, *problem,
                                                                          int(mistake));
    return launch_error();
}
