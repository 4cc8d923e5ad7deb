// The handle of cuBLASLt only, which many programs create at their start. Other calls are errors.
#pragma once
#include <cublas_v2.h>

typedef struct cublasLtContext* cublasLtHandle_t;
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    return *handle = nullptr, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
template <typename... A>
SIM_REFUSED("this is cuBLASLt") cublasStatus_t cublasLtMatmul(const A&...);
