// title: A block walks down the image, in bf16
// idea: The next output row needs only one more input row. So a block walks down a strip of columns
//       and loads each row once. Strips overlap, so that a block stores whole 32-byte sectors.
// change: Against 11b: x, w and y are bf16, and sums are fp32. A sector holds 16 numbers, and a wgmma
//       reduces over 16 channels.
// mapping: block -> 128 output channels of one group, up to PART consecutive output rows of a strip
//       of columns, then other such parts; two consumer warpgroups -> 64 channels each; four
//       producer warps -> x. If the filter of 128 channels does not fit, a block has 64, and each
//       consumer has every other row.
// parent: 11b_wgmma_rows
// precision: bf16
// tensors: x bf16, w bf16, y bf16, bias f32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1, Q >= 4, (R - 1) * dilation_h <= 15,
//       17920 + (C // groups + 15) // 16 * (2048 * R * S
//             + 32 * ((R - 1) * dilation_h + 1) * (128 + (S - 1) * dilation_w)) <= smem
// limits: Memory, as 11b.
#define NUMBER bf16
#define WIDTHS 256, 224, 192, 176, 128
#include "11b_wgmma_rows.cu"
