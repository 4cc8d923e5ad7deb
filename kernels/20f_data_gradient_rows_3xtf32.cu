// title: A row of dy is multiplied once, with fp32's accuracy
// idea: An fp32 number is the sum of two TF32 numbers. Three products, high high + high low + low high,
//       keep the accuracy of fp32. Few channels leave the tensor cores time for three.
// change: Against 20b: loaders split dy, the filter is split, and a tap takes three products. After 9 taps
//       the sums move to ordinary registers, because tensor cores truncate.
// mapping: as 20b_data_gradient_rows.
// computes: data gradient
// parent: 20b_data_gradient_rows
// precision: fp32
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, R == 3, C // groups <= 32, stride_h == 1, stride_w == 1, dilation_h == 1,
//       C // groups <= 16 and (K // groups + 7) // 8 * S * 3072
//             + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
//       or (K // groups + 7) // 8 * S * 6144 + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
// best: tf32 == 0, groups == 1, C >= 8, C <= 16, N * C * H * W >= 6000000,
//       N * P * Q * K * C * R * S >= 20000000000
// limits: The tensor cores' reads of shared memory: dy is read there three times for each tap. An infinity
//       times an infinity is NaN.
#define TERMS 2
#include "20b_data_gradient_rows.cu"
