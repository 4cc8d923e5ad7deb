// title: Data gradient with fp32 accuracy on tensor cores
// idea: With stride 1, the data gradient is a convolution of dy: the filter is turned by 180 degrees, and
//       input and output channels change places. So the fastest rung for convolutions computes it.
// change: Against 20: each number is split into two TF32 numbers, as in 13. Only stride 1: the whole filter
//       is turned in memory, and rung 13 does the rest.
// mapping: as 13_wgmma_3xtf32, with dy in place of x and dx in place of y.
// computes: data gradient
// parent: 20_data_gradient_wgmma
// precision: fp32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1,
//       pad_h <= dilation_h * (R - 1), pad_w <= dilation_w * (S - 1),
//       132 * (256 + 2 * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (128 + (S - 1) * dilation_w))
//       + 8192 + 4 * R * S + 10496 <= smem
//       or W < 128 and 132 * (256 + 2 * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (W + (S - 1) * dilation_w))
//       + 8192 + 4 * R * S + 10496 <= smem
// best: tf32 == 0, groups == 1, stride_h == 1, stride_w == 1, C >= 16, R * S >= 9,
//       N * C * H * W >= 60000000,
//       N * P * Q * K * C * R * S >= 20000000000
// limits: Three products where TF32 has one; and as 20.
#include "turned.cuh"
// The rung's own entry points, under other names.
#define conv2d forward_convolution
#define conv2d_workspace forward_workspace
#include "13_wgmma_3xtf32.cu"
#undef conv2d
#undef conv2d_workspace

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const ConvProblem other = turned(*problem);
    return turned_bytes<float>(*problem) + forward_workspace(&other, limit);
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const float* dy,
                                               const float* w, float* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    return data_gradient_by(forward_convolution, *problem, dy, w, dx, workspace, workspace_bytes,
                            stream);
}
