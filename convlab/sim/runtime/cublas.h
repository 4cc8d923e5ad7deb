// cuBLAS on the CPU, column-major. Its traffic is a model: C has tiles of 128 x 128, and each tile
// reads its panels of A and B once.
#pragma once
#include "host.h"

#include <thread>

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    static int one;
    *handle = reinterpret_cast<cublasHandle_t>(&one);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t stream) {
    return g_library_stream = stream, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t status) { return cublasGetStatusString(status); }
const char* cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "an argument is out of range: check the "
                                                     "leading dimensions"
                                                   : "cuBLAS failed";
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                              int m, int n, int k, const float* alpha, const float* a, int lda,
                              const float* b, int ldb, const float* beta, float* c, int ldc) {
    g_library_call = CALLER;
    return cublasSgemmStridedBatched(handle, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c,
                                     ldc, 0, 1);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k,
                                         const float* alpha, const float* a, int lda,
                                         long long stride_a, const float* b, int ldb,
                                         long long stride_b, const float* beta, float* c, int ldc,
                                         long long stride_c, int batch) {
    bool na = ta == CUBLAS_OP_N, nb = tb == CUBLAS_OP_N;
    if (!g_library_call) g_library_call = CALLER;
    struct Call { ~Call() { g_library_call = 0; } } call;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(1, na ? m : k) ||
        ldb < std::max(1, nb ? k : n) || ldc < std::max(1, m)) {
        report_refusal(g_library_call, "cublasSgemm of m = %d, n = %d, k = %d: a leading dimension "
                       "is less than the rows of its matrix (lda = %d, ldb = %d, ldc = %d), or a "
                       "size is negative", m, n, k, lda, ldb, ldc);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    on_stream(g_library_stream, g_library_call);
    Opened memory;
    std::atomic<long long> next{0};
    auto work = [&] {  // computes one column of C after the other
        for (long long t; (t = next.fetch_add(1)) < (long long)n * batch;) {
            long long j = t % n;
            const float *ba = a + t / n * stride_a, *bb = b + t / n * stride_b;
            float* to = c + t / n * stride_c + j * ldc;
            std::vector<float> sum(size_t(m), 0.f);
            for (long long l = 0; l < k; ++l) {
                float y = nb ? bb[l + j * ldb] : bb[j + l * ldb];
                if (na)
                    for (int i = 0; i < m; ++i) sum[i] += ba[i + l * lda] * y;
                else
                    for (int i = 0; i < m; ++i) sum[i] += ba[l + size_t(i) * lda] * y;
            }
            for (int i = 0; i < m; ++i)
                to[i] = *alpha * sum[i] + (*beta == 0 ? 0 : *beta * to[i]);
        }
    };
    std::vector<std::thread> others;
    bool partly = g_sample || g_record.on;  // some blocks do not run, so no result is needed
    for (int i = 1; i < g_threads && (long long)m * n * k * batch > 100000 && !partly; ++i)
        others.emplace_back(work);
    if (!partly) work();
    for (auto& other : others) other.join();
    for (int i = 0; i < batch && n; ++i)  // from the first to the last element, gaps included
        sim_host_wrote(c + i * stride_c, (size_t(n - 1) * ldc + m) * 4);
    uint64_t tiles_m = uint64_t(m + 127) / 128, tiles_n = uint64_t(n + 127) / 128;
    g_counters.library_bytes += 4 * uint64_t(batch) *
                                (tiles_n * m * k + tiles_m * n * k + uint64_t(m) * n);
    g_counters.library_once += 4 * uint64_t(batch) *
                               (uint64_t(m) * k + uint64_t(k) * n + uint64_t(m) * n);
    g_counters.library_flops += 2 * uint64_t(batch) * m * n * k;
    ++g_counters.launches;
    return CUBLAS_STATUS_SUCCESS;
}
}  // extern "C"
