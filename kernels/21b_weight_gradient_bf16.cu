// title: Weight gradient on Hopper's tensor cores, in bf16
// idea: dw's sums run over pixels, which dy and x both hold side by side. dy is an operand in shared
//       memory. A shift by a pixel is not 16 bytes, so lanes gather x into registers.
// change: Against 21: x, dy and dw are bf16, and sums are fp32. A word of wgmma's operands holds two
//       pixels, and a step multiplies 16.
// mapping: block -> 192 rows (c, r, s) x 128 filters (64 if the group has no more) of one group, every
//       n-th tile of pixels; a consumer warpgroup -> 64 rows; four loader warps -> x and dy.
// computes: weight gradient
// parent: 21_weight_gradient_wgmma
// precision: bf16
// tensors: x bf16, dy bf16, dw bf16
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000, C // groups * R * S < 2147483000,
//       72000 + 4 * (191 // (R * S) + 2) * ((R - 1) * dilation_h + 1)
//             * (127 * stride_w + (S - 1) * dilation_w + 48) <= smem
//       or 72000 + 4 * (C // groups) * ((R - 1) * dilation_h + 1)
//             * (127 * stride_w + (S - 1) * dilation_w + 48) <= smem
//       or Q <= 128 and 72000 + 4 * (191 // (R * S) + 2) * ((R - 1) * dilation_h + 1)
//             * ((Q + 14) * stride_w + (S - 1) * dilation_w + 48) <= smem
//       or Q <= 128 and 72000 + 4 * (C // groups) * ((R - 1) * dilation_h + 1)
//             * ((Q + 14) * stride_w + (S - 1) * dilation_w + 48) <= smem
// limits: As 21. A word is gathered by two reads of shared memory, which are as many as in TF32 for
//       half of the products' time.
#define NUMBER bf16
#include "21_weight_gradient_wgmma.cu"
