#include "convlab.cuh"
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <cfloat>
#include <device_launch_parameters.h>
#include <math_constants.h>

// case array_form: array_form<<<1, 64, 256, stream>>>(x, y);
// note: __shared__ in the middle of the declaration
// expect: x.flip(0) + 3
__global__ void array_form(const float* x, float* y) {
    float __shared__ tile[64];
    extern float __shared__ dynamic[];
    static int __shared__ three, *pointer;
    const int n = 64;
    unsigned long long __shared__ wide[2], last[2];
    tile[threadIdx.x] = x[threadIdx.x], dynamic[threadIdx.x] = tile[threadIdx.x];
    if (threadIdx.x == 0) three = 3, pointer = &three, wide[1] = last[0] = n;
    __syncthreads();
    y[threadIdx.x] = dynamic[wide[1] - 1 - threadIdx.x] + *pointer + (last[0] - wide[1]);
}

// case architecture: architecture<<<1, 64, 0, stream>>>(y);
// note: the device's branch, not the host's
// expect: [7] * 64
#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#else
#define HD inline
#endif
HD int where() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    return 4;
#else
    return 1000;
#endif
}
__global__ void architecture(float* y) {
    int v = where();
#ifdef __CUDACC__
    v += 2;
#endif
#if CUDART_VERSION >= 11000 && CUDA_VERSION >= 11000
    v += 1;
#endif
    y[threadIdx.x] = v;
}

// case integers: integers<<<1, 64, 0, stream>>>(x, y);
// expect: [11] * 64
__global__ void integers(const float* x, float* y) {
    int a = 0x01020304, b = 0xff02fe01, good = 0;  // of four signed bytes
    unsigned u = 0x80000001u;
    good += __dp4a(a, b, 5) == -1 + 4 + -6 + 4 + 5;
    good += __dp4a(0xffffffffu, 0x01010101u, 1u) == 4 * 255 + 1;
    good += __byte_perm(0x33221100, 0x77665544, 0x7530) == 0x77553300u;
    good += __funnelshift_l(0x80000000u, 1u, 1) == 3u && __funnelshift_r(1u, 1u, 1) == 0x80000000u;
    good += __brev(u) == u && __brevll(1ull) == 1ull << 63 && __popc(u) == 2 && __ffs(u) == 1;
    good += __clz(1) == 31 && __clzll(1) == 63 && __popcll(~0ull) == 64;
    good += __umul24(3, 4) == 12 && __mul24(-3, 4) == -12 && __umul64hi(1ull << 63, 4) == 2;
    good += __sad(3, 7, 1u) == 5 && __usad(7, 3, 1) == 5 && __hadd(3, 6) == 4 && __rhadd(3, 6) == 5;
    good += umin(3u, 4u) == 3 && umax(3u, 4u) == 4 && abs(-3) == 3;
    good += __float2uint_rn(2.5f) == 2 && __float2uint_rz(2.9f) == 2 && __double2int_rz(-2.9) == -2;
    good += __double2float_rn(0.1) == 0.1f && __hiloint2double(__double2hiint(3.5),
                                                               __double2loint(3.5)) == 3.5;
    y[threadIdx.x] = good;
}

// case reals: reals<<<1, 64, 0, stream>>>(x, y);
// expect: (lambda v: 2 * v + 1 + v.exp() + v.sin() + v.cos() + 2 / v.sqrt() + 10
//     + v ** (-1 / 3))(x.double().abs() / 50 + 0.1)
__global__ void reals(const float* x, float* y) {
    float v = fabsf(__ldg(&x[threadIdx.x])) / 50 + 0.1f, s, c;
    __sincosf(v, &s, &c);
    float r = __fmaf_rn(v, 2.0f, 1.0f) + __expf(v) + s + c;
    r += __frsqrt_rn(v) + __fdividef(1, sqrtf(v));
    sincospif(0.5f, &s, &c);
    r += __fmul_rn(__fadd_rn(4, 1), __fsub_rn(3, s)) + (float)__dmul_rn(0.0, v) + c;
    r += __double2float_rn(__fma_rn(0.0, 1.0, 0.0)) + rcbrtf(v);
    if (v < CUDART_INF_F && v > -FLT_MAX) y[threadIdx.x] = r;
}

// case blocktiled:
//     cudaMemsetAsync(y, 0, 64 * 64 * sizeof(float), stream);
//     sgemm_blocktiled<32, 32, 8, 4, 4>
//         <<<dim3(2, 2), 64, 0, stream>>>(64, 64, 64, 2.0f, x, x + 4096, 0.5f, y);
// note: a 2-D tile per thread, transposed A, float4 loads: the sixth rung of other ladders
// x: 8192; expect: 2 * x[:4096].reshape(64, 64) @ x[4096:].reshape(64, 64)
#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN), 1)
    sgemm_blocktiled(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                     float *C) {
  const uint cRow = blockIdx.y, cCol = blockIdx.x;
  const int threadCol = threadIdx.x % (BN / TN), threadRow = threadIdx.x / (BN / TN);
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];
  A += cRow * BM * K;
  B += cCol * BN;
  C += cRow * BM * N + cCol * BN;
  const uint innerRowA = threadIdx.x / (BK / 4), innerColA = threadIdx.x % (BK / 4);
  const uint innerRowB = threadIdx.x / (BN / 4), innerColB = threadIdx.x % (BN / 4);
  float threadResults[TM * TN] = {0.0}, regM[TM] = {0.0}, regN[TN] = {0.0};
  for (uint bkIdx = 0; bkIdx < CEIL_DIV(K, BK); ++bkIdx) {
    float4 tmp = reinterpret_cast<const float4 *>(&A[innerRowA * K + innerColA * 4])[0];
    As[(innerColA * 4 + 0) * BM + innerRowA] = tmp.x;
    As[(innerColA * 4 + 1) * BM + innerRowA] = tmp.y;
    As[(innerColA * 4 + 2) * BM + innerRowA] = tmp.z;
    As[(innerColA * 4 + 3) * BM + innerRowA] = tmp.w;
    reinterpret_cast<float4 *>(&Bs[innerRowB * BN + innerColB * 4])[0] =
        reinterpret_cast<const float4 *>(&B[innerRowB * N + innerColB * 4])[0];
    __syncthreads();
    A += BK;
    B += BK * N;
    for (uint dotIdx = 0; dotIdx < BK; ++dotIdx) {
#pragma unroll
      for (uint i = 0; i < TM; ++i) regM[i] = As[dotIdx * BM + threadRow * TM + i];
      for (uint i = 0; i < TN; ++i) regN[i] = Bs[dotIdx * BN + threadCol * TN + i];
      for (uint m = 0; m < TM; ++m)
        for (uint n = 0; n < TN; ++n) threadResults[m * TN + n] += regM[m] * regN[n];
    }
    __syncthreads();
  }
  for (uint m = 0; m < TM; m += 1)
    for (uint n = 0; n < TN; n += 4) {
      float4 tmp = reinterpret_cast<float4 *>(&C[(threadRow * TM + m) * N + threadCol * TN + n])[0];
      tmp.x = alpha * threadResults[m * TN + n] + beta * tmp.x;
      tmp.y = alpha * threadResults[m * TN + n + 1] + beta * tmp.y;
      tmp.z = alpha * threadResults[m * TN + n + 2] + beta * tmp.z;
      tmp.w = alpha * threadResults[m * TN + n + 3] + beta * tmp.w;
      reinterpret_cast<float4 *>(&C[(threadRow * TM + m) * N + threadCol * TN + n])[0] = tmp;
    }
}

// case online: online_softmax<<<4, 32, 0, stream>>>(y, x, 16);
// note: maximum and sum in one pass, one 8-byte shuffle for both
// expect: torch.softmax(x.double().reshape(4, 16), 1)
struct __align__(8) MD { float m; float d; };
__device__ __forceinline__ MD reduce_md_op(MD a, MD b) {
    bool a_bigger = (a.m > b.m);
    MD big = a_bigger ? a : b, small = a_bigger ? b : a, res;
    res.d = big.d + small.d * __expf(small.m - big.m);
    res.m = big.m;
    return res;
}
__global__ void online_softmax(float* __restrict__ y, const float* __restrict__ x, int V) {
    x += (size_t)blockIdx.x * V;
    y += size_t(blockIdx.x) * V;
    MD p = {-FLT_MAX, 0.0f};
    for (int i = threadIdx.x; i < V; i += blockDim.x) p = reduce_md_op(p, MD{x[i], 1.0f});
    for (int offset = warpSize / 2; offset > 0; offset >>= 1) {
        MD other;
        other.m = __shfl_xor_sync(0xFFFFFFFF, p.m, offset);
        other.d = __shfl_xor_sync(0xFFFFFFFF, p.d, offset);
        p = reduce_md_op(p, other);
    }
    for (int i = threadIdx.x; i < V; i += blockDim.x) y[i] = __expf(x[i] - p.m) / p.d;
}

// case float_max: atomic_max<<<1, 64, 0, stream>>>(x, y);
// note: a compare-and-swap loop; and floats compared as integers, which have the same order
// expect: [x.max(), x.abs().max()]
__device__ float atomicMaxFloat(float* address, float val) {
    int* address_as_int = (int*)address;
    int old = *address_as_int, assumed;
    do {
        assumed = old;
        old = atomicCAS_system(address_as_int, assumed,
                        __float_as_int(fmaxf(val, __int_as_float(assumed))));
    } while (assumed != old);
    return __int_as_float(old);
}
__global__ void atomic_max(const float* x, float* y) {
    __shared__ float s_most[2];
    if (threadIdx.x < 2) s_most[threadIdx.x] = threadIdx.x ? 0.0f : -CUDART_INF_F;
    __syncthreads();
    atomicMaxFloat(&s_most[0], x[threadIdx.x]);
    atomicMax(reinterpret_cast<unsigned int*>(s_most + 1), __float_as_uint(fabsf(x[threadIdx.x])));
    __syncthreads();
    if (threadIdx.x < 2) y[threadIdx.x] = s_most[threadIdx.x];
}

// case packed_bytes: packed_bytes<<<1, 16, 0, stream>>>(x, y);
// note: an int read as four chars, unsigned chars as a vector
// expect: x.abs().int().reshape(16, 4).sum(1)
__global__ void packed_bytes(const float* x, float* y) {
    __shared__ unsigned bytes[16];
    float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
    uchar4 c = make_uchar4(fabsf(v.x), fabsf(v.y), fabsf(v.z), fabsf(v.w));
    bytes[threadIdx.x] = *reinterpret_cast<unsigned*>(&c);
    __syncwarp(0xffff);
    unsigned word = bytes[threadIdx.x];
    const unsigned char* each = (const unsigned char*)&word;
    y[threadIdx.x] = __dp4a(word, 0x01010101u, 0u) + 0 * each[3];
}

// case unused_ptx: unused_ptx<<<1, 64, 0, stream>>>(x, y);
// note: functions that are never called; a barrier for the compiler only
// expect: x + 1
#define LANE(result) \
    asm volatile("mov.u32 %0, %%laneid;" \
                 : "=r"(result))
__device__ __forceinline__ unsigned lane_by_ptx() {
    unsigned lane;
    LANE(lane);
    return lane;
}
template <typename T> __device__ T relu_by_ptx(T a) {
    T r;
    asm("max.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(a));
    return r;
}
__global__ void unused_ptx(const float* x, float* y) {
    float v = x[threadIdx.x];
    asm volatile("" ::: "memory");
    y[threadIdx.x] = v + 1;
}

// case unrolled: unrolled<float, 64><<<1, 64, 0, stream>>>(x, y, n);
// note: shared memory of a template's type, barriers in branches that the compiler evaluates
// x: 200; expect: x.sum()
template <class T> struct SharedMemory {
    __device__ inline operator T*() { __shared__ T smem[256]; return (T*)smem; }
};
template <class T, unsigned blockSize>
__global__ void unrolled(const T* in, T* out, unsigned n) {
    T* sdata = SharedMemory<T>();
    unsigned tid = threadIdx.x;
    T mySum = 0;
    for (unsigned i = tid; i < n; i += blockSize) mySum += in[i];
    sdata[tid] = mySum;
    __syncthreads();
    if (blockSize >= 128) {
        if (tid < 64) sdata[tid] = mySum = mySum + sdata[tid + 64];
        __syncthreads();
    }
    if (blockSize >= 64) {
        if (tid < 32) sdata[tid] = mySum = mySum + sdata[tid + 32];
        __syncthreads();
    }
    if (tid < 32)
        for (int offset = warpSize / 2; offset > 0; offset /= 2)
            mySum += __shfl_down_sync(0xffffffff, mySum, offset);
    if (tid == 0) *out = mySum;
}
