// title: A row of dy is multiplied once, in bf16
// idea: With few channels, a tap's product is too narrow for the tensor cores. A row of dy meets 3 rows
//       of dx, so one wgmma computes 3 rows of taps.
// change: Against 20b: dy, w and dx are bf16, and sums are fp32. A step multiplies 16 filters.
// mapping: as 20b_data_gradient_rows.
// computes: data gradient
// parent: 20b_data_gradient_rows
// precision: bf16
// tensors: dy bf16, w bf16, dx bf16
// epilogue: none
// arch: sm_90a
// supports: sm >= 90, R == 3, C // groups <= 32, stride_h == 1, stride_w == 1, dilation_h == 1,
//       C // groups <= 16 and (K // groups + 15) // 16 * S * 1536
//             + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
//       or (K // groups + 15) // 16 * S * 3072 + 128 * (128 + (S - 1) * dilation_w) + 1152 <= smem
// limits: Memory: dy is read once, two bytes at a time. Runs of 16 bytes of dx are stored.
#define NUMBER bf16
#include "20b_data_gradient_rows.cu"
