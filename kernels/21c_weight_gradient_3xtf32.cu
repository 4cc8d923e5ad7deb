// title: Weight gradient with fp32's accuracy on Hopper's tensor cores
// idea: An fp32 number is the sum of two TF32 numbers. High is what a tensor core truncates a number to.
//       Three products, high high + high low + low high, keep the accuracy of fp32.
// change: Against 21: lanes split x, loaders split dy, and a step takes three products. Sums are added in
//       fp32 after each stage. Two sets of sums leave room for 64 filters.
// mapping: block -> 192 rows (c, r, s) x 64 filters of one group, every n-th tile of pixels; a consumer
//       warpgroup -> 64 rows; four loader warps -> x and dy.
// computes: weight gradient
// parent: 21_weight_gradient_wgmma
// precision: fp32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000, C // groups * R * S < 2147483000,
//       72000 + 8 * (191 // (R * S) + 2) * ((R - 1) * dilation_h + 1)
//             * (63 * stride_w + (S - 1) * dilation_w + 24) <= smem
//       or 72000 + 8 * (C // groups) * ((R - 1) * dilation_h + 1)
//             * (63 * stride_w + (S - 1) * dilation_w + 24) <= smem
//       or Q <= 64 and 72000 + 8 * (191 // (R * S) + 2) * ((R - 1) * dilation_h + 1)
//             * ((Q + 6) * stride_w + (S - 1) * dilation_w + 24) <= smem
//       or Q <= 64 and 72000 + 8 * (C // groups) * ((R - 1) * dilation_h + 1)
//             * ((Q + 6) * stride_w + (S - 1) * dilation_w + 24) <= smem
// limits: The tensor cores, with three products where TF32 has one. An infinity times an infinity is NaN.
#define TERMS 2
#include "21_weight_gradient_wgmma.cu"
