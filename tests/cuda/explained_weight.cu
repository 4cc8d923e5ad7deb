// computes: weight gradient
// A textbook's weight gradient with one mistake, which tests/strict/test_gradient_explanations.py picks by
// its number: the workspace limit. After a case's name are the problem and the sentence for it.
#include "convlab.cuh"

// The indices of one product, and those of the element of dw. A mistake changes some of them.
struct Indices {
    int k, c, r, s, n, p, q;
    int channel, row, column, n_of_x, n_of_dy;
    bool exists;
};

// Changes the problem: strides, dilations and paddings.
__device__ void change_problem(int mistake, ConvProblem& d) {
    switch (mistake) {
        // case stride: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if the stride were 1 (it is ignored)
        case 1: d.stride_h = d.stride_w = 1; break;
        // case stride_h_twice: N2 C3 H13 W15 K4 R3 S3 s2x3 p1 | as if stride_h were used for both dim
        case 2: d.stride_w = d.stride_h; break;
        // case dilation: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if the dilation were 1 (it is ignored)
        case 3: d.dilation_h = d.dilation_w = 1; break;
        // case dilation_w: N2 C3 H13 W15 K4 R3 S3 p2 d2x3 | as if dilation_w were 1 (it is ignored)
        case 4: d.dilation_w = 1; break;
        // case padding: N2 C3 H13 W15 K4 R3 S3 p2x3 | as if the padding were 0 (it is ignored)
        case 5: d.pad_h = d.pad_w = 0; break;
        // case pad_w_more: N2 C3 H13 W15 K4 R3 S3 p2x4 | as if pad_w were one more than it is
        case 6: ++d.pad_w; break;
    }
}

// Changes the indices of a product.
__device__ void change_product(int mistake, const ConvProblem& d, Indices& i) {
    const int C = d.C / d.groups, pixels = d.N * d.P * d.Q;
    const int m = (i.n * d.P + i.p) * d.Q + i.q;
    switch (mistake) {
        // case last_image: N3 C3 H9 W10 K4 R3 S3 p1 | the last image is left out
        case 7: i.exists = i.exists && i.n < d.N - 1; break;
        // case image_0: N4 C3 H9 W10 K4 R3 S3 p1 | only the first image is added
        case 8: i.exists = i.exists && i.n == 0; break;
        // case image_of_x: N3 C3 H9 W10 K4 R3 S3 p1 | each product has image 0 of x
        case 9: i.n_of_x = 0; break;
        // case last_row: N2 C3 H9 W10 K4 R3 S3 p1 | the last row of dy is left out
        case 10: i.exists = i.exists && i.p < d.P - 1; break;
        // case last_column: N2 C3 H9 W10 K4 R3 S3 p1 | the last column of dy is left out
        case 11: i.exists = i.exists && i.q < d.Q - 1; break;
        // case tile: N2 C3 H9 W13 K4 R3 S3 p1 | the columns of dy past the last whole tile of 8 are lef
        case 12: i.exists = i.exists && i.q < d.Q / 8 * 8; break;
        // case image_tile: N2 C3 H9 W11 K4 R3 S3 p1 | the pixels of each image past the last whole tile of
        case 13: i.exists = i.exists && i.p * d.Q + i.q < d.P * d.Q / 64 * 64; break;
        // case pixels: N3 C3 H8 W10 K4 R3 S3 p1 | the pixels of all images past the last whole tile of 32
        case 14: i.exists = i.exists && m < pixels / 32 * 32; break;
        // case last_split: N2 C3 H9 W11 K4 R3 S3 p1 | the last of 5 ranges of pixels is left out
        case 15: i.exists = i.exists && m < (pixels + 4) / 5 * 4; break;
        // case first_split: N2 C3 H9 W11 K4 R3 S3 p1 | only the first of 3 ranges of pixels is added
        case 16: i.exists = i.exists && m < (pixels + 2) / 3; break;
        // case border: N2 C3 H9 W10 K4 R3 S3 p1 | the padding is not 0, but repeats the image's border
        case 17:
            i.row = min_of(max_of(i.row, 0), d.H - 1), i.column = min_of(max_of(i.column, 0), d.W - 1);
            i.exists = true;
            break;
        // case group_0: N2 C6 H9 W10 K12 R3 S3 p1 g3 | every group reads the channels of group 0
        case 18: i.channel = i.c; break;
        // case group_rest: N2 C6 H9 W10 K12 R3 S3 p1 g3 | the group is k % groups, not k / (K / groups)
        case 19: i.channel = i.k % d.groups * C + i.c; break;
        // case last_pixel: N2 C3 H9 W10 K4 R3 S3 p1 | the last pixel of dy is left out
        case 20: i.exists = i.exists && (i.p < d.P - 1 || i.q < d.Q - 1); break;
        // case ranges_of_images: N6 C3 H5 W6 K4 R3 S3 p1 | the last of 3 ranges of images is left out
        case 21: i.exists = i.exists && i.n < 4; break;
    }
}

__global__ void weight_gradient(const float* x, const float* dy, float* dw, ConvProblem d, int mistake) {
    const int index = int(blockIdx.x * blockDim.x + threadIdx.x);
    const int C = d.C / d.groups;
    if (index >= d.K * C * d.R * d.S) return;
    Indices i = {};
    i.s = index % d.S;
    i.r = index / d.S % d.R;
    i.c = index / d.S / d.R % C;
    i.k = index / d.S / d.R / C;
    ConvProblem changed = d;
    change_problem(mistake, changed);
    float sum = 0;
    for (i.n = 0; i.n < d.N; ++i.n)
        for (i.p = 0; i.p < d.P; ++i.p)
            for (i.q = 0; i.q < d.Q; ++i.q) {
                i.channel = i.k / (d.K / d.groups) * C + i.c;
                i.n_of_x = i.n_of_dy = i.n;
                i.row = i.p * changed.stride_h - changed.pad_h + i.r * changed.dilation_h;
                i.column = i.q * changed.stride_w - changed.pad_w + i.s * changed.dilation_w;
                i.exists = i.row >= 0 && i.row < d.H && i.column >= 0 && i.column < d.W;
                change_product(mistake, d, i);
                if (i.exists)
                    sum += dy[((i.n_of_dy * d.K + i.k) * d.P + i.p) * d.Q + i.q] *
                           x[((i.n_of_x * d.C + i.channel) * d.H + i.row) * d.W + i.column];
            }
    const int first = (i.k * C + i.c) * d.R * d.S, taps = d.R * d.S;
    // case mean: N4 C3 H9 W10 K4 R3 S3 p1 | 1/4 times the correct value
    if (mistake == 22) sum /= d.N;
    int place = index;
    // case turned: N2 C3 H9 W10 K4 R3 S3 p1 | dw is turned by 180 degrees
    if (mistake == 23) place = first + taps - 1 - (i.r * d.S + i.s);
    // case ckrs: N2 C3 H9 W10 K4 R3 S3 p1 | k and c exchanged in memory
    if (mistake == 24) place = (i.c * d.K + i.k) * taps + i.r * d.S + i.s;
    dw[place] = sum;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t limit) { return limit; }

CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem, const float* x,
                                                 const float* dy, float* dw, void*, size_t mistake,
                                                 cudaStream_t stream) {
    const int weights = problem->K * (problem->C / problem->groups) * problem->R * problem->S;
    weight_gradient<<<unsigned(weights + 255) / 256, 256, 0, stream>>>(x, dy, dw, *problem,
                                                                       int(mistake));
    return launch_error();
}
