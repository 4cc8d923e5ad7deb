// What the cuBLAS rungs share: a handle, and one GEMM on row-major matrices.
#pragma once

#include <cublas_v2.h>
#include "convlab.cuh"

// One matrix, or a batch of them: row-major, `ld` elements from one row to the next,
// `stride` elements from one matrix to the next (0: one matrix shared by the whole batch).
struct RowMajor {
    const float* data;
    int ld;
    int64_t stride;
};

// Sets *handle to this thread's cuBLAS handle for the current device. It is created once and kept,
// because creating one is slow.
// `static`, not `inline`: another build of a file, or another engine, must not share a handle.
static cublasStatus_t cublas_handle(cublasHandle_t* handle) {
    constexpr int kMaxDevices = 64;
    static thread_local cublasHandle_t handles[kMaxDevices] = {};
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (handles[device] == nullptr) {
        cublasStatus_t status = cublasCreate(&handles[device]);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    *handle = handles[device];
    return cublasSetMathMode(*handle, CUBLAS_DEFAULT_MATH);   // fp32 stays fp32: no TF32
}

// c[i] = a[i] * b[i] for each i of the batch; a: (rows, inner) b: (inner, cols) c: (rows, cols).
// Returns null, or an error text.
//
// cuBLAS expects column-major matrices. The bytes of a row-major (rows, cols) matrix, read as
// column-major, are its transpose, a (cols, rows) matrix. Its leading dimension is the distance
// between two rows, `ld` >= cols. So nothing has to be moved: cuBLAS computes c^T = b^T * a^T. We
// pass b first and a second, neither marked as transposed, the result as (cols, rows), and each
// `ld` unchanged.
static const char* sgemm_row_major(cudaStream_t stream, int rows, int cols, int inner,
                                   RowMajor a, RowMajor b, float* c, int ldc, int64_t stride_c,
                                   int batch) {
    cublasHandle_t handle = nullptr;
    cublasStatus_t status = cublas_handle(&handle);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(handle, stream);

    const float one = 1.0f, zero = 0.0f;
    constexpr int64_t kMaxBatch = 65535;   // of a grid in z, in case cuBLAS uses z for the batch
    for (int64_t i = 0; i < batch && status == CUBLAS_STATUS_SUCCESS; i += kMaxBatch) {
        status = cublasSgemmStridedBatched(
            handle, CUBLAS_OP_N, CUBLAS_OP_N, cols, rows, inner,
            &one, b.data + i * b.stride, b.ld, b.stride,
            a.data + i * a.stride, a.ld, a.stride,
            &zero, c + i * stride_c, ldc, stride_c, int(min_of(batch - i, kMaxBatch)));
    }
    return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasGetStatusString(status);
}
