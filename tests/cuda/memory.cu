#include "convlab.cuh"
#include <new>

// case lock: lock<<<1, 64, 0, stream>>>(y);
// note: a spin lock held across a barrier of the warp
// expect: [64 * 63 / 2] * 64
__global__ void lock(float* y) {
    __shared__ int s_lock;
    __shared__ volatile float s_sum;
    if (threadIdx.x == 0) s_lock = 0, s_sum = 0;
    __syncthreads();
    bool done = false;
    while (!done) {
        if (atomicCAS(&s_lock, 0, 1) == 0) {
            s_sum = s_sum + threadIdx.x;
            __threadfence_block();
            atomicExch(&s_lock, 0);
            done = true;
        }
    }
    __syncthreads();
    y[threadIdx.x] = s_sum;
}

// case flag: flag<<<1, 64, 0, stream>>>(x, y);
// note: one warp waits for another by looking, not at a barrier
// expect: x[32:].flip(0)
__global__ void flag(const float* x, float* y) {
    __shared__ volatile int s_ready;
    __shared__ volatile float s_x[32];
    if (threadIdx.x == 0) s_ready = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        while (s_ready < 32) {}
        y[threadIdx.x] = s_x[31 - threadIdx.x];
    } else {
        s_x[threadIdx.x - 32] = x[threadIdx.x];
        __threadfence_block();
        atomicAdd((int*)&s_ready, 1);
    }
}

// case float4: vectors<<<1, n / 4, 0, stream>>>(x, y);
// expect: torch.stack([x[3::4], -x[2::4], 2 * x[1::4], x[::4] + 1], dim=1)
__global__ void vectors(const float* x, float* y) {
    float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
    v.x += 1, v.y *= 2, v.z = -v.z;
    reinterpret_cast<float4*>(y)[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
}

// case float2_shared: vectors_2<<<1, 32, 0, stream>>>(x, y);
// expect: x.flip(0)
__global__ void vectors_2(const float* x, float* y) {
    __shared__ alignas(16) float s_x[64];
    *reinterpret_cast<float2*>(s_x + 2 * threadIdx.x) =
        *reinterpret_cast<const float2*>(x + 2 * threadIdx.x);
    __syncthreads();
    float2 v = *(float2*)&s_x[62 - 2 * threadIdx.x];
    y[2 * threadIdx.x] = v.y, y[2 * threadIdx.x + 1] = v.x;
}

// case float3: vectors_3<<<1, 20, 0, stream>>>((const float3*)x, (float3*)y);
// note: twelve bytes, aligned to four
// x: 60; expect: x.reshape(20, 3).flip(1)
__global__ void vectors_3(const float3* x, float3* y) {
    float3 v = x[threadIdx.x];
    y[threadIdx.x] = make_float3(v.z, v.y, v.x);
}

// case ldg: ldg<<<1, 32, 0, stream>>>(x, y);
// expect: torch.stack([x.flip(0)[::2] + x[1::2], x[0] + x[::2]], dim=1)
__global__ void ldg(const float* x, float* y) {
    float2 v = __ldg((const float2*)x + threadIdx.x);
    __stcs(y + 2 * threadIdx.x, __ldg(x + 63 - 2 * threadIdx.x) + v.y);
    y[2 * threadIdx.x + 1] = __ldcs(&x[0]) + v.x;
}

// case constant:
//     static float table[8] = {0, 1, 2, 3, 4, 5, 6, 7};
//     static struct { int a; float b; } both = {100, 2.0f};
//     cudaMemcpyToSymbolAsync(c_filter, table, 32, 0, cudaMemcpyHostToDevice, stream);
//     cudaMemcpyToSymbolAsync(c_filter, table, 32, 32, cudaMemcpyHostToDevice, stream);
//     cudaMemcpyToSymbolAsync(c_both, &both, sizeof both, 0, cudaMemcpyHostToDevice, stream);
//     constant<<<1, 64, 0, stream>>>(y);
// expect: 2 * (torch.arange(64) % 8) + 100
__constant__ float c_filter[16];
__constant__ struct { int a; float b; } c_both;
__global__ void constant(float* y) {
    y[threadIdx.x] = c_filter[threadIdx.x % 16] * c_both.b + c_both.a;
}

// case device_global:
//     int zero = 0;
//     cudaMemcpyToSymbol(d_count, &zero, sizeof zero);
//     count<<<3, 40, 0, stream>>>();
//     use_global<<<1, 64, 0, stream>>>(y);
// expect: 120 + 10.0 ** (torch.arange(64) % 4)
__device__ int d_count;
__device__ float d_table[4] = {1, 10, 100, 1000};
__global__ void count() { atomicAdd(&d_count, 1); }
__global__ void use_global(float* y) {
    y[threadIdx.x] = d_count + d_table[threadIdx.x % 4];
}

// case struct_parameter:
//     Scale s{{1, 2, 3}, 5};
//     scale<<<1, 64, 0, stream>>>(s, x, y);
// expect: x.roll(-5) * (torch.arange(64) % 3 + 1)
struct Scale { float factor[3]; int shift; };
__global__ void scale(Scale s, const float* x, float* y) {
    y[threadIdx.x] = x[(threadIdx.x + s.shift) % 64] * s.factor[threadIdx.x % 3];
    s.shift = 0;   // a thread's own copy
}

// case file_scope_shared: file_scope<<<1, 64, 256, stream>>>(x, y);
// expect: x + x.flip(0)
extern __shared__ float s_file[];
__global__ void file_scope(const float* x, float* y) {
    float4* s_four = reinterpret_cast<float4*>(s_file);
    if (threadIdx.x < 16) s_four[threadIdx.x] = ((const float4*)x)[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s_file[63 - threadIdx.x] + *(s_file + threadIdx.x);
}

// case two_instances: two_instances<<<1, 32, 0, stream>>>(x, y);
// note: one declaration, two instances of its function: two arrays
// expect: x[:32].flip(0) + 1000
template <int which>
__device__ float* scratch() {
    __shared__ float s_mine[32];
    return s_mine;
}
__global__ void two_instances(const float* x, float* y) {
    scratch<1>()[threadIdx.x] = x[threadIdx.x];
    scratch<2>()[threadIdx.x] = 1000;
    __syncthreads();
    y[threadIdx.x] = scratch<1>()[31 - threadIdx.x] + scratch<2>()[0];
}

// case shared_struct: shared_struct<<<1, 32, 0, stream>>>(x, y);
// x: 32; expect: (x + 2.5 + torch.arange(32)).flip(0)
struct alignas(16) Cell { float v[3]; int tag; };
__global__ void shared_struct(const float* x, float* y) {
    __shared__ Cell s_cell[2][16], *s_pointer;
    __shared__ __align__(16) double s_double;
    int i = threadIdx.x;
    s_cell[i / 16][i % 16] = {{x[i], 1, 2}, i};
    if (i == 0) s_double = 0.5, s_pointer = &s_cell[1][0];
    __syncthreads();
    Cell c = s_pointer[15 - int(threadIdx.x)];
    y[threadIdx.x] = c.v[0] + c.v[2] + c.tag + s_double;
}

// Every thread of many blocks applies an atomic to one of four words.
template <typename T>
__global__ void fill(T* y, T start) { y[threadIdx.x] = start; }
template <typename T>
void all_apply(void (*kernel)(const float*, T*, int), T start, const float* x, float* y, int n,
               cudaStream_t stream) {
    fill<<<1, 4, 0, stream>>>((T*)y, start);
    kernel<<<8, 64, 0, stream>>>(x, (T*)y, n);
}
#define ATOMIC(name, T, ...)                                                   \
    __global__ void name(const float* x, T* a, int n) {                        \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                         \
        if (i >= n) return;                                                    \
        T v = (T)(int(x[i]) + 50);                                             \
        (void)v;                                                               \
        __VA_ARGS__;                                                           \
    }

// case atomic_add_int: all_apply(all_add_int, 0, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, torch.sum)
ATOMIC(all_add_int, int, atomicAdd(a + i % 4, v))

// case atomic_add_float: all_apply(all_add_float, 0.f, x, y, n, stream);
// x: 512; expect: fours(x, torch.sum)
ATOMIC(all_add_float, float, atomicAdd(&a[i % 4], v))

// case atomic_add_double: all_apply(all_add_double, 0.5, x, y, n, stream);
// x: 512; view: float64; expect: fours(x, lambda v: v.sum() + 0.5)
ATOMIC(all_add_double, double, atomicAdd(&a[i % 4], v))

// case atomic_add_ulonglong: all_apply(all_add_ulonglong, 1ull << 40, x, y, n, stream);
// x: 512; view: int64; expect: fours(x, lambda v: v.sum() + 2**40)
ATOMIC(all_add_ulonglong, unsigned long long, atomicAdd(&a[i % 4], v))

// case atomic_sub: all_apply(all_sub, 7, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, lambda v: 7 - v.sum())
ATOMIC(all_sub, int, atomicSub(&a[i % 4], v))

// case atomic_min: all_apply(all_min, 40, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, lambda v: v.min().clamp(max=40))
ATOMIC(all_min, int, atomicMin(&a[i % 4], v))

// case atomic_max: all_apply(all_max, 5u, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, torch.max)
ATOMIC(all_max, unsigned, atomicMax(&a[i % 4], v))

// case atomic_or: all_apply(all_or, 0u, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, lambda v: sum(1 << b for b in {int(e) % 31 for e in v}))
ATOMIC(all_or, unsigned, atomicOr(&a[i % 4], 1u << (v % 31)))

// case atomic_exch: all_apply(all_exch, 1, x, y, n, stream);
// x: 512; view: int32; expect: [9] * 4
ATOMIC(all_exch, int, atomicExch(&a[i % 4], 9))

// case atomic_inc: all_apply(all_inc, 0u, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, lambda v: len(v) % 10)
ATOMIC(all_inc, unsigned, atomicInc(&a[i % 4], 9))

// case atomic_dec: all_apply(all_dec, 3u, x, y, n, stream);
// x: 512; view: int32; expect: fours(x, lambda v: (3 - len(v)) % 10)
ATOMIC(all_dec, unsigned, atomicDec(&a[i % 4], 9))

// case atomic_cas: all_apply(all_cas, 0, x, y, n, stream);
// note: an addition by compare and swap
// x: 512; view: int32; expect: fours(x, torch.sum)
ATOMIC(all_cas, int, int old = a[i % 4], seen;
       do { seen = old; old = atomicCAS(&a[i % 4], seen, seen + v); } while (old != seen))

template <typename T, bool larger>
__global__ void on_shared(const float* x, T* y, T start) {
    __shared__ T s_a[4];
    if (threadIdx.x < 4) s_a[threadIdx.x] = start;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T v = (T)(int(x[i]) + 50), *a = s_a + i % 4;
    if constexpr (larger) atomicMax(a, v);
    else atomicAdd(a, v);
    __syncthreads();
    if (threadIdx.x < 4) y[blockIdx.x * 4 + threadIdx.x] = s_a[threadIdx.x];
}

// case shared_add_int: on_shared<int, false><<<8, 64, 0, stream>>>(x, (int*)y, 0);
// x: 512; view: int32; expect: [fours(block, torch.sum) for block in x.reshape(8, 64)]

// case shared_add_float: on_shared<float, false><<<8, 64, 0, stream>>>(x, y, 0.0f);
// x: 512; expect: [fours(block, torch.sum) for block in x.reshape(8, 64)]

// case shared_max: on_shared<int, true><<<8, 64, 0, stream>>>(x, (int*)y, 3);
// x: 512; view: int32
// expect: [fours(block, lambda v: v.max().clamp(min=3)) for block in x.reshape(8, 64)]

// case virtual_call: virtual_call<<<1, 64, 0, stream>>>(x, y);
// note: a constructor stores the pointer to the virtual functions
// expect: x + 3
struct Adds {
    float by = 3;
    __device__ virtual float of(float v) const { return v + by; }
};
__global__ void virtual_call(const float* x, float* y) {
    __shared__ __align__(8) unsigned char s_bytes[sizeof(Adds)];
    __shared__ Adds* s_adds;
    if (threadIdx.x == 0) s_adds = new (s_bytes) Adds;
    __syncthreads();
    y[threadIdx.x] = s_adds->of(x[threadIdx.x]);
}

// case rows: rows<<<1, 64, 0, stream>>>(x, y);
// note: rows of a shared array are used as one array: only a warning on the simulator
// expect: x.flip(0)
__global__ void rows(const float* x, float* y) {
    __shared__ float s_rows[8][8];
    s_rows[0][threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s_rows[0][63 - threadIdx.x];
}

// case returned: returned<<<1, 32, 0, stream>>>(x, y);
// note: a call stores the struct that it returns
// expect: x[:32].flip(0) * 3 + 3
struct Three { float a, b, c; };
__device__ __noinline__ Three three(float v) { return {v, v + 1, v + 2}; }
__global__ void returned(const float* x, float* y) {
    __shared__ Three s[32];
    s[threadIdx.x] = three(x[threadIdx.x]);
    Three& mine = s[threadIdx.x];
    if (threadIdx.x % 2) mine = three(x[threadIdx.x]);
    __syncthreads();
    const Three other = s[31 - threadIdx.x];
    y[threadIdx.x] = other.a + other.b + other.c;
}

// case static_beside_requested: cudaFuncSetAttribute(beside_requested,
//     cudaFuncAttributeMaxDynamicSharedMemorySize, 60000);
//     beside_requested<<<1, 64, 60000, stream>>>(y);
// note: static arrays come on top of the dynamic memory that a kernel requests
// expect: [3] * 64
__global__ void beside_requested(float* y) {
    extern __shared__ float s_dynamic[];
    __shared__ float s_fixed[64];
    s_dynamic[15000 - 64 + threadIdx.x] = 1;
    s_fixed[threadIdx.x] = 2;
    y[threadIdx.x] = s_dynamic[15000 - 64 + threadIdx.x] + s_fixed[threadIdx.x];
}
