// title: fp16 on Hopper's tensor cores
// idea: 16 bits divided otherwise: 11 significant ones, as TF32 has, where bf16 has 8, at the
//       price of the range. Tensor cores take both at one rate, so results eight times as accurate
//       cost nothing, as long as they stay below 65504; beyond it they are infinite.
// change: Against 15: the type of a number.
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
