// title: 1x1 on tensor cores
// idea: One product instead of three; then only moving x and y takes time.
// change: Against 09: numbers are rounded to TF32 as fragments are made, and multiplied once.
// mapping: as 09.
// parent: 09_pointwise_3xtf32
// precision: tf32
// epilogue: bias, relu
// supports: sm >= 80, R == 1, S == 1, N * P * Q < 2147483000
// limits: KernelBench's 87 in 4.1 ms of an H200, where cuDNN takes 3.4 and its bytes 3.05.
//       With many channels, cuDNN's own layout pays off: cuDNN is up to twice as fast.
#define TERMS 1
#include "09_pointwise_3xtf32.cu"
