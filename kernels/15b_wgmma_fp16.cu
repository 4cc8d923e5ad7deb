// title: fp16 on Hopper's tensor cores
// idea: fp16 has 11 significant bits, as TF32 has, where bf16 has 8. So results are eight times as
//       accurate, at the same speed. The cost is the range: from 65520 on, a result is infinite.
// change: Against 15: the number format.
// mapping: as 15.
// parent: 15_wgmma_bf16
// precision: fp16
// epilogue: bias, relu
// arch: sm_90a
// tensors: x f16, w f16, y f16, bias f32
// supports: sm >= 90,
//       68 * (512 * stride_h * stride_w + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * (264 * stride_w + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 11264 <= smem
//       or Q < 256 and 68 * (512 * stride_h * stride_w + 2 * stride_h * ((S - 1) * dilation_w + 7)
//             + (R - 1) * dilation_h * ((Q + 8) * stride_w + (S - 1) * dilation_w))
//       + 4096 + 4 * R * S + 11264 <= smem
// limits: as 15.
#define NUMBER fp16
#include "15_wgmma_bf16.cu"
