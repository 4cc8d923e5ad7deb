// title: Fragments gathered from x as it lies, in bf16
// idea: wgmma can take one operand from registers. So x is staged nearly in its own order, and lanes
//       gather the pixels of a tap, at any stride. A tile is 192 flattened pixels, so that small
//       images waste none.
// change: Against 17: x, w and y are bf16. A word of the stage is two channels of a pixel, which
//       loaders pair up in registers: a tap may begin at an odd pixel.
// mapping: as 17.
// parent: 17_wgmma_gather_tf32
// precision: bf16
// tensors: x bf16, w bf16, y bf16, bias f32
// epilogue: bias, relu
// arch: sm_90a
// supports: sm >= 90, N * P * Q < 2147483000,
//       R * S == 1 or 8 * R * S + 40960
//       + 80 * (Q + (S - 1) * dilation_w // stride_w) * stride_w
//             * ((1 + 190 // Q) * stride_h
//                + ((P + 190 // Q) // P + 1) * ((R - 1) * dilation_h + 1)) <= smem
// limits: A lane of a loader waits for its loads once or more for each stage.
#define NUMBER bf16
#include "17_wgmma_gather_tf32.cu"
