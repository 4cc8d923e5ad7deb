// cuBLAS on the CPU, column-major, in the least precise arithmetic that the handle's math mode, the
// compute type and the algorithm allow. Its traffic is a model: C has tiles of 128 x 128, and each
// tile reads its panels of A and B once.
#pragma once
#include "host.h"
#include "streams.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <thread>

struct cublasContext {
    cudaStream_t stream = nullptr;
    cublasMath_t math = CUBLAS_DEFAULT_MATH;
    cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

namespace {
enum class Rounds { no, tf32, bf16, fp16 };  // what the inputs are rounded to

struct Matrix {  // the matrices of a batch, in memory
    const void* data;
    cudaDataType type;
    int ld;
    long long stride;
    bool transposed = false;
};

size_t bytes_of(cudaDataType type) {
    switch (type) {
        case CUDA_R_64F: return 8;
        case CUDA_R_32F: case CUDA_R_32I: return 4;
        case CUDA_R_16F: case CUDA_R_16BF: return 2;
        case CUDA_R_8I: return 1;
        default: return 0;
    }
}
double number_at(const void* data, cudaDataType type, long long i) {
    switch (type) {
        case CUDA_R_64F: return static_cast<const double*>(data)[i];
        case CUDA_R_32I: return static_cast<const int*>(data)[i];
        case CUDA_R_16F: return sim::Half::widen(static_cast<const uint16_t*>(data)[i]);
        case CUDA_R_16BF: return sim::Bfloat16::widen(static_cast<const uint16_t*>(data)[i]);
        case CUDA_R_8I: return static_cast<const signed char*>(data)[i];
        default: return static_cast<const float*>(data)[i];
    }
}
void store_at(void* data, cudaDataType type, long long i, double value) {
    switch (type) {
        case CUDA_R_64F: static_cast<double*>(data)[i] = value; break;
        case CUDA_R_32I: static_cast<int*>(data)[i] = int(value); break;
        case CUDA_R_16F: static_cast<uint16_t*>(data)[i] = sim::Half::narrow(float(value)); break;
        case CUDA_R_16BF:
            static_cast<uint16_t*>(data)[i] = sim::Bfloat16::narrow(float(value));
            break;
        case CUDA_R_8I: static_cast<signed char*>(data)[i] = (signed char)value; break;
        default: static_cast<float*>(data)[i] = float(value);
    }
}
float rounded_half(float value) { return sim::Half::widen(sim::Half::narrow(value)); }
float rounded(float value, Rounds to) {
    switch (to) {
        case Rounds::bf16: return sim::Bfloat16::widen(sim::Bfloat16::narrow(value));
        case Rounds::fp16: return rounded_half(value);
        case Rounds::tf32: {
            auto bits = sim::bits<unsigned>(value);
            bool finite = (bits & 0x7f800000) != 0x7f800000;
            return finite ? sim::bits<float>((bits + 0x1000) & 0xffffe000) : value;
        }
        default: return value;
    }
}

// What fp32 inputs are rounded to before they are multiplied. The compute type decides, then the
// algorithm (the deprecated ..._TENSOR_OP allow fp16), then the handle's math mode.
Rounds rounding(cublasMath_t mode, cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    switch (compute) {
        case CUBLAS_COMPUTE_32F_FAST_16F: return Rounds::fp16;
        case CUBLAS_COMPUTE_32F_FAST_16BF: return Rounds::bf16;
        case CUBLAS_COMPUTE_32F_FAST_TF32: return Rounds::tf32;
        case CUBLAS_COMPUTE_32F: break;
        default: return Rounds::no;
    }
    int base = mode & 15;
    if (base == CUBLAS_PEDANTIC_MATH) return Rounds::no;
    if (algorithm >= CUBLAS_GEMM_DEFAULT_TENSOR_OP || base == CUBLAS_TENSOR_OP_MATH)
        return Rounds::fp16;
    return base == CUBLAS_TF32_TENSOR_OP_MATH ? Rounds::tf32 : Rounds::no;
}

// Copies op(matrix) of a batch's i-th product to `to`, column-major without gaps.
template <typename T>
void read_matrix(const Matrix& from, long long batch, int rows, int columns, Rounds to_type,
                 std::vector<T>& to) {
    to.resize(size_t(rows) * size_t(columns));
    long long start = batch * from.stride;
    bool plain = std::is_same_v<T, float> && from.type == CUDA_R_32F && to_type == Rounds::no;
    for (long long j = 0; j < columns; ++j)
        if (plain && !from.transposed)
            std::memcpy(&to[size_t(j * rows)],
                        static_cast<const float*>(from.data) + start + j * from.ld, size_t(rows) * 4);
        else for (long long i = 0; i < rows; ++i) {
            long long at = from.transposed ? j + i * from.ld : i + j * from.ld;
            T value = T(number_at(from.data, from.type, start + at));
            if (from.type == CUDA_R_32F) value = T(rounded(float(value), to_type));
            to[size_t(i + j * rows)] = value;
        }
}

// Computes columns of C, one after the other. T is the type of the sums.
template <typename T>
void multiply(int m, int k, const T* a, const T* b, T* sum, bool in_half) {
    std::fill(sum, sum + m, T(0));
    for (long long l = 0; l < k; ++l)
        if (in_half)
            for (int i = 0; i < m; ++i)
                sum[i] = T(rounded_half(float(sum[i]) + float(a[i + l * m]) * float(b[l])));
        else
            for (int i = 0; i < m; ++i) sum[i] += a[i + l * m] * b[l];
}

// Checks one matrix of a product that is not computed: all of it must be in one buffer.
void in_one_buffer(const char* start, long long columns, long long ld, size_t column_bytes,
                   uintptr_t pc) {
    auto at = uintptr_t(start);
    const Buffer* b = in_buffers(at) ? buffer_near(at) : nullptr;
    if (!b) fault("global out of bounds", pc, "a matrix of a cuBLAS product is far outside all buffers");
    auto end = at + uintptr_t(columns - 1) * uintptr_t(ld) + column_bytes;
    if (at < b->base || end > b->base + b->bytes)
        fault("global out of bounds", pc, "a matrix of a cuBLAS product of %lu bytes at %s",
              end - at, place_outside(b->name, long(at - b->base), b->bytes, b->shape));
}

cublasStatus_t gemm(cublasHandle_t handle, int m, int n, int k, const void* alpha, Matrix a,
                    Matrix b, const void* beta, Matrix c, int batch, cublasComputeType_t compute,
                    cublasGemmAlgo_t algorithm, uintptr_t pc) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    g_library_call = pc;
    struct Call { ~Call() { g_library_call = 0; } } call;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || a.ld < std::max(1, a.transposed ? k : m) ||
        b.ld < std::max(1, b.transposed ? n : k) || c.ld < std::max(1, m)) {
        report_refusal(pc, "cuBLAS product of m = %d, n = %d, k = %d: a leading dimension is less "
                       "than the rows of its matrix (lda = %d, ldb = %d, ldc = %d), or a size is "
                       "negative", m, n, k, a.ld, b.ld, c.ld);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    bool whole = compute == CUBLAS_COMPUTE_32I || compute == CUBLAS_COMPUTE_32I_PEDANTIC;
    bool half = compute == CUBLAS_COMPUTE_16F || compute == CUBLAS_COMPUTE_16F_PEDANTIC;
    bool wide = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
    cudaDataType scalars = wide ? CUDA_R_64F : half ? CUDA_R_16F : whole ? CUDA_R_32I : CUDA_R_32F;
    bool sizes = bytes_of(a.type) && a.type == b.type && bytes_of(c.type);
    bool fits = wide    ? a.type == CUDA_R_64F && c.type == CUDA_R_64F
                : half  ? a.type == CUDA_R_16F && c.type == CUDA_R_16F
                : whole ? a.type == CUDA_R_8I && c.type == CUDA_R_32I
                        : a.type != CUDA_R_64F && c.type != CUDA_R_64F && c.type != CUDA_R_32I &&
                              (a.type != CUDA_R_32F || c.type == CUDA_R_32F);
    if (!sizes || !fits) {
        report_refusal(pc, "cuBLAS product of the types %d, %d and %d (A, B, C) with compute type "
                       "%d: cuBLAS does not support this combination", int(a.type), int(b.type),
                       int(c.type), int(compute));
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    Opened memory;
    Issued issued = issue(handle->stream, pc, "cuBLAS call");
    const Rounds rounds = rounding(handle->math, compute, algorithm);
    const double by = number_at(alpha, scalars, 0), keep = number_at(beta, scalars, 0);
    bool partly = g_sample || g_record.on;  // some blocks do not run, so no result is needed
    auto enter = [&](const Matrix& x, int rows, int columns, Kind kind, long long i) {
        size_t each = bytes_of(x.type);
        auto* start = static_cast<const char*>(x.data) + i * x.stride * (long long)each;
        if (partly && columns)
            in_one_buffer(start, columns, x.ld * (long long)each, size_t(rows) * each, pc);
        for (long long j = 0; j < columns; ++j)
            enter_range(issued, start + j * x.ld * (long long)each, size_t(rows) * each, kind, pc);
    };
    auto product = [&](auto zero, long long i) {
        using T = decltype(zero);
        std::vector<T> of_a, of_b;
        read_matrix(a, i, m, k, rounds, of_a);
        read_matrix(b, i, k, n, rounds, of_b);
        std::atomic<long long> next{0};
        auto work = [&] {
            std::vector<T> sum(static_cast<size_t>(m));
            for (long long j; (j = next.fetch_add(1)) < n;) {
                multiply(m, k, of_a.data(), of_b.data() + j * k, sum.data(), half);
                for (long long r = 0; r < m; ++r) {
                    long long at = i * c.stride + j * c.ld + r;
                    double old = keep == 0 ? 0 : keep * number_at(c.data, c.type, at);
                    double value = T(by) * sum[size_t(r)];
                    if constexpr (sizeof(T) == 4) value = float(value), old = float(old);
                    store_at(const_cast<void*>(c.data), c.type, at, value + old);
                }
            }
        };
        std::vector<std::thread> others;
        for (int t = 1; t < g_threads && (long long)m * n * k > 100000; ++t)
            others.emplace_back(work);
        work();
        for (auto& other : others) other.join();
    };
    for (int i = 0; i < batch && n && m; ++i) {
        if (!i || a.stride) enter(a, a.transposed ? k : m, a.transposed ? m : k, Kind::load, i);
        if (!i || b.stride) enter(b, b.transposed ? n : k, b.transposed ? k : n, Kind::load, i);
        enter(c, m, n, Kind::store, i);
        if (!partly) wide || whole ? product(0.0, i) : product(0.0f, i);
        // From the first to the last element, gaps included.
        size_t each = bytes_of(c.type);
        sim_host_wrote(static_cast<const char*>(c.data) + i * c.stride * (long long)each,
                       (size_t(n - 1) * size_t(c.ld) + size_t(m)) * each);
    }
    uint64_t tiles_m = uint64_t(m + 127) / 128, tiles_n = uint64_t(n + 127) / 128;
    uint64_t in = bytes_of(a.type), out = bytes_of(c.type);
    g_counters.library_bytes += uint64_t(batch) *
                                (in * (tiles_n * m * k + tiles_m * n * k) + out * uint64_t(m) * n);
    g_counters.library_once += uint64_t(batch) * (in * (uint64_t(m) * k + uint64_t(k) * n) +
                                                  out * uint64_t(m) * n);
    g_counters.library_flops += 2 * uint64_t(batch) * m * n * k;
    ++g_counters.launches;
    return CUBLAS_STATUS_SUCCESS;
}
}  // namespace

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    *handle = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    sim_device_synchronize();
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
// Sets or gets one field of a handle.
#define SIM_FIELD(set, get, T, field)                                                           \
    cublasStatus_t set(cublasHandle_t handle, T value) {                                        \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                      \
        return handle->field = value, CUBLAS_STATUS_SUCCESS;                                    \
    }                                                                                           \
    cublasStatus_t get(cublasHandle_t handle, T* value) {                                       \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                      \
        return *value = handle->field, CUBLAS_STATUS_SUCCESS;                                   \
    }
SIM_FIELD(cublasSetStream_v2, cublasGetStream_v2, cudaStream_t, stream)
SIM_FIELD(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math)
SIM_FIELD(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointers)
size_t cublasGetCudartVersion() { return CUDART_VERSION; }
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    return *version = CUDART_VERSION * 10, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t status) { return cublasGetStatusString(status); }
const char* cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "an argument is out of range: check the "
                                                     "leading dimensions"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "cuBLAS does not support these types"
                                                   : "cuBLAS failed";
}
#define SIM_GEMM(name, T, type, compute)                                                        \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,      \
                        int m, int n, int k, const T* alpha, const T* a, int lda, const T* b,   \
                        int ldb, const T* beta, T* c, int ldc) {                                \
        return gemm(handle, m, n, k, alpha, {a, type, lda, 0, ta != CUBLAS_OP_N},               \
                    {b, type, ldb, 0, tb != CUBLAS_OP_N}, beta, {c, type, ldc, 0}, 1, compute,  \
                    CUBLAS_GEMM_DEFAULT, CALLER);                                               \
    }
SIM_GEMM(cublasSgemm_v2, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
SIM_GEMM(cublasDgemm_v2, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
SIM_GEMM(cublasHgemm, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F)
#define SIM_STRIDED(name, T, type, compute)                                                     \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,      \
                        int m, int n, int k, const T* alpha, const T* a, int lda,               \
                        long long stride_a, const T* b, int ldb, long long stride_b,            \
                        const T* beta, T* c, int ldc, long long stride_c, int batch) {          \
        return gemm(handle, m, n, k, alpha, {a, type, lda, stride_a, ta != CUBLAS_OP_N},        \
                    {b, type, ldb, stride_b, tb != CUBLAS_OP_N}, beta,                          \
                    {c, type, ldc, stride_c}, batch, compute, CUBLAS_GEMM_DEFAULT, CALLER);     \
    }
SIM_STRIDED(cublasSgemmStridedBatched, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
SIM_STRIDED(cublasHgemmStridedBatched, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F)
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                            int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    return gemm(handle, m, n, k, alpha, {a, a_type, lda, 0, ta != CUBLAS_OP_N},
                {b, b_type, ldb, 0, tb != CUBLAS_OP_N}, beta, {c, c_type, ldc, 0}, 1, compute,
                algorithm, CALLER);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta,
                                          cublasOperation_t tb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType a_type,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    return gemm(handle, m, n, k, alpha, {a, a_type, lda, stride_a, ta != CUBLAS_OP_N},
                {b, b_type, ldb, stride_b, tb != CUBLAS_OP_N}, beta, {c, c_type, ldc, stride_c},
                batch, compute, algorithm, CALLER);
}
// y is a matrix of one row, so that its stride is the leading dimension.
#define SIM_GEMV(name, T, type, compute)                                                        \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t t, int m, int n,               \
                        const T* alpha, const T* a, int lda, const T* x, int incx,              \
                        const T* beta, T* y, int incy) {                                        \
        bool plain = t == CUBLAS_OP_N;                                                          \
        return gemm(handle, 1, plain ? m : n, plain ? n : m, alpha, {x, type, incx, 0, false},  \
                    {a, type, lda, 0, plain}, beta, {y, type, incy, 0}, 1, compute,             \
                    CUBLAS_GEMM_DEFAULT, CALLER);                                               \
    }
SIM_GEMV(cublasSgemv_v2, float, CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC)
SIM_GEMV(cublasDgemv_v2, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
}  // extern "C"
