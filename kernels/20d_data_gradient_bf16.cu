// title: Data gradient in bf16
// idea: With stride 1, the data gradient is a convolution of dy: the filter is turned by 180 degrees, and
//       input and output channels change places. So the fastest rung for convolutions computes it.
// change: Against 20: dy, w and dx are bf16, as x, w and y are in 15. Only stride 1: the whole filter is
//       turned in memory, and rung 15 does the rest.
// mapping: as 15_wgmma_bf16, with dy in place of x and dx in place of y.
// computes: data gradient
// parent: 20_data_gradient_wgmma
// precision: bf16
// tensors: dy bf16, w bf16, dx bf16
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1,
//       pad_h <= dilation_h * (R - 1), pad_w <= dilation_w * (S - 1),
//       68 * (512 + 2 * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (264 + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 11264 <= smem
//       or W < 256 and 68 * (512 + 2 * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (W + 8 + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 11264 <= smem
// limits: As 20: with few channels of dx, most products are of zeros.
#include "turned.cuh"
// The rung's own entry points, under other names.
#define conv2d forward_convolution
#define conv2d_workspace forward_workspace
#include "15_wgmma_bf16.cu"
#undef conv2d
#undef conv2d_workspace

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit) {
    const ConvProblem other = turned(*problem);
    return turned_bytes<bf16>(*problem) + forward_workspace(&other, limit);
}

CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem, const bf16* dy,
                                               const bf16* w, bf16* dx, void* workspace,
                                               size_t workspace_bytes, cudaStream_t stream) {
    return data_gradient_by(forward_convolution, *problem, dy, w, dx, workspace, workspace_bytes,
                            stream);
}
