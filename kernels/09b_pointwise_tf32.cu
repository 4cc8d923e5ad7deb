// title: 1x1 on tensor cores
// idea: One product instead of three, so that most of the time is spent on moving x and y.
// change: Against 09: numbers are rounded to TF32 when fragments are made, and multiplied once. A
//       third of the products, with the accuracy of TF32.
// mapping: as 09.
// parent: 09_pointwise_3xtf32
// precision: tf32
// epilogue: bias, relu
// supports: sm >= 80, R == 1, S == 1, N * P * Q < 2147483000
// limits: On an H200, KernelBench's 87 takes about a third longer than moving its bytes would;
//       cuDNN takes a tenth longer. With many channels, cuDNN's own memory order pays off: cuDNN is
//       up to twice as fast.
#define TERMS 1
#include "09_pointwise_3xtf32.cu"
