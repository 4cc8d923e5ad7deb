// cuBLAS in each precision: y[0] is the product of two 1 x k matrices. 1 + 2^-8 fits neither bf16, nor
// 1 + 2^-11 fp16 or TF32. In a half, 2048 + 1 is 2048.
#include "convlab.cuh"
#include <cublas_v2.h>

__global__ void numbers(float* a, float first, float others) {
    a[threadIdx.x] = threadIdx.x ? others : first;
}
__global__ void halves(__half* a, float first, float others) {
    a[threadIdx.x] = __float2half(threadIdx.x ? others : first);
}
__global__ void widened(const __half* a, float* y) { y[0] = __half2float(a[0]); }

struct Product {
    cublasHandle_t handle;
    float one = 1, zero = 0;
    float *a, *b, *y;
    Product(void* workspace, float* y, cudaStream_t stream, float first) : y(y) {
        cublasCreate(&handle);
        cublasSetStream(handle, stream);
        a = (float*)workspace, b = a + 32;
        numbers<<<1, 1, 0, stream>>>(a, first, 0);
        numbers<<<1, 1, 0, stream>>>(b, 1, 0);
    }
    ~Product() { cublasDestroy(handle); }
    void sgemm() {
        cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, b, 1, &zero, y, 1);
    }
    void ex(cublasComputeType_t compute, cublasGemmAlgo_t algorithm = CUBLAS_GEMM_DEFAULT) {
        cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, CUDA_R_32F, 1, b,
                     CUDA_R_32F, 1, &zero, y, CUDA_R_32F, 1, compute, algorithm);
    }
};
constexpr float kFine = 1 + 1.0f / 4096, kMiddle = 1 + 1.0f / 256;

// case fp32: Product p(workspace, y, stream, kFine); p.sgemm();
// expect: [1 + 2**-12]
// case tf32_mode: Product p(workspace, y, stream, kFine);
//     cublasSetMathMode(p.handle, CUBLAS_TF32_TENSOR_OP_MATH); p.sgemm();
// expect: [1]
// case tf32_mode_keeps_10_bits: Product p(workspace, y, stream, kMiddle);
//     cublasSetMathMode(p.handle, CUBLAS_TF32_TENSOR_OP_MATH); p.sgemm();
// expect: [1 + 2**-8]
// case tf32: Product p(workspace, y, stream, kFine); p.ex(CUBLAS_COMPUTE_32F_FAST_TF32);
// expect: [1]
// case fast_16bf: Product p(workspace, y, stream, kMiddle); p.ex(CUBLAS_COMPUTE_32F_FAST_16BF);
// expect: [1]
// case fast_16f: Product p(workspace, y, stream, kMiddle); p.ex(CUBLAS_COMPUTE_32F_FAST_16F);
// expect: [1 + 2**-8]
// case fast_16f_overflows: Product p(workspace, y, stream, 1e5f);
//     p.ex(CUBLAS_COMPUTE_32F_FAST_16F);
// expect: [float("inf")]
// case algorithm: Product p(workspace, y, stream, kFine);
//     p.ex(CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP);
// expect: [1]
// case pedantic: Product p(workspace, y, stream, kFine);
//     cublasSetMathMode(p.handle, CUBLAS_TF32_TENSOR_OP_MATH); p.ex(CUBLAS_COMPUTE_32F_PEDANTIC);
// expect: [1 + 2**-12]
// case pedantic_mode: Product p(workspace, y, stream, kFine);
//     cublasSetMathMode(p.handle, CUBLAS_PEDANTIC_MATH); p.ex(CUBLAS_COMPUTE_32F);
// expect: [1 + 2**-12]

// case sums_in_half: Product p(workspace, y, stream, 0);
//     __half *a = (__half*)workspace, *b = a + 16, *c = a + 32, one = 1.0f, zero = 0.0f;
//     halves<<<1, 16, 0, stream>>>(a, 2048, 1); halves<<<1, 16, 0, stream>>>(b, 1, 1);
//     cublasGemmStridedBatchedEx(p.handle, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, 16, &one, a,
//                                CUDA_R_16F, 16, 0, b, CUDA_R_16F, 16, 0, &zero, c, CUDA_R_16F, 1,
//                                0, 1, CUBLAS_COMPUTE_16F, CUBLAS_GEMM_DEFAULT);
//     widened<<<1, 1, 0, stream>>>(c, y);
// expect: [2048]
// case sums_in_float: Product p(workspace, y, stream, 0);
//     __half *a = (__half*)workspace, *b = a + 16;
//     halves<<<1, 16, 0, stream>>>(a, 2048, 1); halves<<<1, 16, 0, stream>>>(b, 1, 1);
//     cublasGemmEx(p.handle, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, 16, &p.one, a, CUDA_R_16F, 16, b,
//                  CUDA_R_16F, 16, &p.zero, y, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
//                  CUBLAS_GEMM_DEFAULT);
// expect: [2063]
