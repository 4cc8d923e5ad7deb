// title: A block walks down the image, with fp32 accuracy
// idea: An fp32 number is the sum of two TF32 numbers. Three products, high high + high low + low high,
//       keep the accuracy of fp32. A block loads each row of x once, and stores whole 32-byte sectors.
// change: Against 11b: both parts are staged, and a tap takes three products. Tensor cores truncate sums,
//       so after 9 taps the next products go to another set of sums. Consumers take registers from loaders
//       for it.
// mapping: block -> 128 output channels of one group, up to PART consecutive output rows of a strip
//       of columns, then other such parts; two consumer warpgroups -> 64 channels each; four
//       producer warps -> x. If the filter of 128 channels does not fit, a block has 64, and each
//       consumer has every other row.
// parent: 11b_wgmma_rows
// precision: fp32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1, Q >= 4, (R - 1) * dilation_h <= 15,
//       35328 + (C // groups + 7) // 8 * (4096 * R * S
//             + 64 * ((R - 1) * dilation_h + 1) * (128 + (S - 1) * dilation_w)) <= smem
// limits: The tensor cores, with three products where TF32 has one. The filter and the rows of x take twice
//       the shared memory of 11b, so there is room for fewer channels. An infinity times an infinity is NaN.
#define TERMS 2
#define WIDTHS 184, 176, 128
#include "11b_wgmma_rows.cu"
