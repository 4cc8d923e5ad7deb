// title: Data gradient on Hopper's tensor cores
// idea: With stride 1, the data gradient is a convolution of dy: the filter is turned by 180 degrees, and
//       input and output channels change places. So the fastest rung for convolutions computes it.
// change: Against 18: the convolution of rung 11, with a turned filter. Tensor cores compute it, and each
//       element of dy is loaded once for many elements of dx.
// mapping: as 11_wgmma_tf32, with dy in place of x and dx in place of y.
// computes: data gradient
// parent: 18_data_gradient
// precision: tf32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1,
//       pad_h <= dilation_h * (R - 1), pad_w <= dilation_w * (S - 1),
//       68 * (512 + 2 * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (256 + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 10496 <= smem
//       or W < 256 and 68 * (512 + 2 * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (W + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 10496 <= smem
// limits: A tile has 64 channels of dx. With 16, as in `square`, three quarters of the products are of
//       zeros.
#include "turned.cuh"
// The rung's own entry points, under other names.
#define conv2d forward_convolution
#define conv2d_workspace forward_workspace
#include "11_wgmma_tf32.cu"
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
