// A stand-in for the header of this name; see adopt/README.md.
#pragma once
#include <cublas_v2.h>

#include "adopt/tensor.h"

namespace at::cuda {
inline cublasHandle_t getCurrentCUDABlasHandle() {
    static cublasHandle_t handle = nullptr;
    if (!handle) cublasCreate(&handle);
    cublasSetStream(handle, adopt::g_stream);
    return handle;
}
}  // namespace at::cuda
