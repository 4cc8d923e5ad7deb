// title: Fragments gathered from x in its memory order, in bf16
// idea: wgmma can take one operand from registers. So x is staged in its own order, by asynchronous
//       copies, and lanes gather a tap's pixels, at any stride. A tile is 192 or 128 flattened
//       pixels: small images waste none.
// change: Against 17: x, w and y are bf16. A word of wgmma's operand is a pixel of two channels,
//       which lanes pair up while they gather: twice as many loads from shared memory.
// mapping: as 17.
// parent: 17_wgmma_gather_tf32
// precision: bf16
// tensors: x bf16, w bf16, y bf16, bias f32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000,
//       R * S > 1 or stride_h == 1 and stride_w == 1 and pad_h == 0 and pad_w == 0
//       or pad_w == 0 and 384 * (2 + 190 // Q) * W + 44032 <= smem
//       or 384 * (2 + 190 // Q) * (W + 2 * pad_w + 14) + 44032 <= smem,
//       R * S == 1 or 80 * (W + 2 * pad_w + 14) * ((1 + 190 // Q) * stride_h + 1
//             + (R - 1) * dilation_h * ((P + 190 // Q) // P + 1)) + 8196 * (R * S + 3) <= smem
//       or W % 4 != 0 and 96 * (W + 2 * pad_w + 2) * ((1 + 190 // Q) * stride_h + 1
//             + (R - 1) * dilation_h * ((P + 190 // Q) // P + 1)) + 8196 * (R * S + 3) <= smem
//       or (R * S > 12 or K // groups <= 64)
//             and 96 * (W + 2 * pad_w + 14) * ((1 + 190 // Q) * stride_h + 1
//             + (R - 1) * dilation_h * ((P + 190 // Q) // P + 1)) + 4100 * (R * S + 4) <= smem
// limits: As 17. Gathering takes as many cycles of shared memory as the products. If a row of x, or
//       a plane under a 1x1 filter, is no multiple of 4 bytes, x is copied number by number.
#define NUMBER bf16
#include "17_wgmma_gather_tf32.cu"
