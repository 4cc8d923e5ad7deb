// title: NHWC in fp16 on Hopper's tensor cores
// idea: The step from 15 to 15b once more: the same kernel, with numbers in fp16. stmatrix
//       transposes 16-bit numbers of any format, and wgmma multiplies both formats at the same
//       rate.
// change: Against 16: the number format.
// mapping: as 16.
// parent: 16_wgmma_nhwc_bf16
// precision: fp16
// epilogue: bias, relu
// arch: sm_90a
// tensors: x f16 NHWC, w f16 KRSC, y f16 NHWC, bias f32
// supports: sm >= 90, C % (8 * groups) == 0,
//       68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (256 * stride_w + (S - 1) * dilation_w))
//       + 4 * R * S + 16384 <= smem
//       or Q < 256 and 68 * (512 * stride_h * stride_w + 2 * stride_h * (S - 1) * dilation_w
//             + (R - 1) * dilation_h * (Q * stride_w + (S - 1) * dilation_w))
//       + 4 * R * S + 16384 <= smem
// limits: as 16.
#define NUMBER fp16
#include "16_wgmma_nhwc_bf16.cu"
