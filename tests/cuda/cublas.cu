#include "convlab.cuh"
#include <cublas_v2.h>

// op(a) is 5 x 3, op(b) 3 x 7, c 5 x 7: column-major, with leading dimensions 9, 8, 6. Bits of arg:
// a transposed, b transposed, beta not zero.
struct Operands {
    const float *a, *b;
    cublasOperation_t ta, tb;
    float alpha, beta;
    cublasHandle_t handle;
    Operands(const float* x, float* y, int arg, cudaStream_t stream)
        : a(x), b(x + 200), ta(arg & 1 ? CUBLAS_OP_T : CUBLAS_OP_N),
          tb(arg & 2 ? CUBLAS_OP_T : CUBLAS_OP_N), alpha(0.5f), beta(arg & 4 ? -2.0f : 0.0f) {
        cublasCreate(&handle);
        cublasSetStream(handle, stream);
        cudaMemcpyAsync(y, x + 400, 4 * 400, cudaMemcpyDeviceToDevice, stream);
    }
    ~Operands() { cublasDestroy(handle); }
};

// case sgemm:
//     Operands o(x, y, arg, stream);
//     if (!(arg & 4)) cudaMemsetAsync(y, 0xff, 4 * 5, stream);  // c may hold anything
//     auto status = cublasSgemm(o.handle, o.ta, o.tb, 5, 7, 3, &o.alpha, o.a, 9, o.b, 8, &o.beta,
//                               y, 6);
//     if (status != CUBLAS_STATUS_SUCCESS) return cublasGetStatusString(status);
// x: 800; args: range(8); expect: products(arg, x, 0, 0, 0, 1)

// case batched:
//     Operands o(x, y, arg, stream);
//     auto status = cublasSgemmStridedBatched(o.handle, o.ta, o.tb, 5, 7, 3, &o.alpha, o.a, 9, 0,
//                                             o.b, 8, 56, &o.beta, y, 6, 45, 3);
//     if (status != CUBLAS_STATUS_SUCCESS) return cublasGetStatusString(status);
// note: one filter for all, by stride 0
// x: 800; args: 0, 5; expect: products(arg, x, 0, 56, 45, 3)

// case wrong_ld:
//     Operands o(x, y, arg, stream);
//     auto call = [&](cublasHandle_t handle, int n, int lda, int ldb, int ldc) {
//         return float(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 5, n, 3, &o.alpha, o.a, lda,
//                                  o.b, ldb, &o.beta, y, ldc));
//     };
//     float seen[] = {call(o.handle, 7, 4, 8, 6), call(o.handle, 7, 9, 2, 6),
//                     call(o.handle, 7, 9, 8, 4), call(o.handle, -7, 9, 8, 6),
//                     call(nullptr, 7, 9, 8, 6)};
//     cudaMemcpyAsync(y, seen, sizeof seen, cudaMemcpyHostToDevice, stream);
//     cudaStreamSynchronize(stream);
// note: CUBLAS_STATUS_INVALID_VALUE, and CUBLAS_STATUS_NOT_INITIALIZED
// x: 800; expect: [7, 7, 7, 7, 1]
