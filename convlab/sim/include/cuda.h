// Of the driver's API only its version: kernels include it beside the runtime's.
#pragma once
#include <cuda_runtime.h>

#define CUDA_VERSION CUDART_VERSION
