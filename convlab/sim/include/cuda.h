// The version of the driver API only: some kernels include this header without need.
#pragma once
#include <cuda_runtime.h>

#define CUDA_VERSION CUDART_VERSION
