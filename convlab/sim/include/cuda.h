// Only the version of the driver's API: some kernels include this header too.
#pragma once
#include <cuda_runtime.h>

#define CUDA_VERSION CUDART_VERSION
