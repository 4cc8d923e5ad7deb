#include "convlab.cuh"
__global__ void idle() {}

// case shared: too_much<<<1, 32, 48 * 1024 + 4, stream>>>(y);
// fault: invalid argument
// why: 49156 bytes of dynamic shared memory, but the kernel may use 49152 ...
//     cudaFuncAttributeMaxDynamicSharedMemorySize
__global__ void too_much(float* y) {
    extern __shared__ float s[];
    s[0] = *y;
}

// case opt_in:
//     cudaFuncSetAttribute(too_much, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 18);
// fault: invalid argument

// case threads: idle<<<1, dim3(32, 33), 0, stream>>>();
// fault: invalid( configuration)? argument
// why: blocks of (32, 33, 1) threads: a block has 1 to 1024

// case no_threads: idle<<<1, 0, 0, stream>>>();
// fault: invalid( configuration)? argument

// case no_blocks: idle<<<dim3(3, 0), 32, 0, stream>>>();
// fault: invalid( configuration)? argument

// case grid_y: idle<<<dim3(1, 65536), 32, 0, stream>>>();
// fault: invalid( configuration)? argument

// case text: return "only even widths";
// fault: only even widths

// case symbol: cudaMemcpyToSymbol(c_small, x, 12);
// fault: invalid argument
__constant__ float c_small[2];

// case ignored: idle<<<1, 1025>>>(); cudaGetLastError(); idle<<<1, 1>>>();
// note: cudaGetLastError resets the error

// case freed_twice: float* own; cudaMalloc(&own, 4); cudaFree(own); cudaFree(own);
// fault: invalid argument
