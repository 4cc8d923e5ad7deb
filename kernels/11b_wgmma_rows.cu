// title: A block walks down the image on Hopper's tensor cores
// idea: The next output row needs only one more input row. So a block walks down a strip of columns
//       and loads each row once. Strips overlap, so that a block stores whole 32-byte sectors.
// change: Against 11: a ring of input rows replaces the stages, and the filter stays in shared memory.
//       The consumers have different channels and multiply in turns. The last strip also computes
//       the next row's first columns.
// mapping: block -> 128 output channels of one group, up to PART consecutive output rows of a strip
//       of columns, then other such parts; two consumer warpgroups -> 64 channels each; four
//       producer warps -> x. If the filter of 128 channels does not fit, a block has 64, and each
//       consumer has every other row.
// parent: 11_wgmma_tf32
// precision: tf32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, stride_h == 1, stride_w == 1, Q >= 4, (R - 1) * dilation_h <= 15,
//       35328 + (C // groups + 7) // 8 * (2048 * R * S
//             + 32 * ((R - 1) * dilation_h + 1) * (128 + (S - 1) * dilation_w)) <= smem
// best: tf32 == 1, groups == 1, C >= 16, C <= 24, K >= 128, R == 3, S == 3, dilation_h == 1,
//       dilation_w == 1, Q >= 512, N * P * Q * K >= 1000000000
// limits: Memory. Storing y takes most of the time, and loading x slows it down. With many channels
//       the filter leaves no room for the rows of x. A tile is 128 to 256 columns of one row, so
//       narrow images waste it.
#include "rows.cuh"
