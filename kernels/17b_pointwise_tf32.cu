// title: 1x1 on tensor cores
// idea: Where a single product is enough, x and y are all that takes time.
// change: Against 17: numbers are rounded to TF32 as fragments are made, and multiplied once.
// mapping: as 17.
// parent: 17_pointwise_3xtf32
// precision: tf32
// epilogue: bias, relu
// supports: sm >= 80, R == 1, S == 1, N * P * Q < 2147483000
// limits: Not measured.
#define TERMS 1
#include "17_pointwise_3xtf32.cu"
