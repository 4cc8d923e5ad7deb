// Tensor cores, asynchronous copies and their barriers: one thin function for each PTX instruction.
// Every rung that uses them includes this file, after convlab.cuh. The simulator has its own.
//
// The names are PTX's; "PTX ISA", chapter 9.7, describes them. Addresses in shared memory are
// 32-bit numbers here (`shared_address`), as the instructions require.
#pragma once

#include <cuda_pipeline_primitives.h>   // __pipeline_commit, __pipeline_wait_prior

struct bf16 {   // the upper half of a float
    uint16_t bits;
};
struct fp16 {   // 5 bits of exponent, 10 of fraction
    uint16_t bits;
};

#ifdef CONVLAB_SIMULATOR
#include <sim_tensor.h>
#else

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

// ---- numbers --------------------------------------------------------------------------------
// Returns the nearest number of 11 significant bits, ties away from zero; its other 13 bits are
// zero. Without rounding, a tensor core truncates its operands.
__device__ __forceinline__ float round_tf32(float value) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return __uint_as_float(bits);
}
// Rounds two numbers to 8 significant bits, ties to even, into one word: `low` in its lower half.
__device__ __forceinline__ uint32_t round_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// The same with 11 significant bits; from 65520 on the result is infinity.
__device__ __forceinline__ uint32_t round_fp16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Returns the larger of two numbers; NaN if one is NaN, unlike fmaxf.
__device__ __forceinline__ float max_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// ---- mma.sync: a warp multiplies, fragments in registers (sm_80 and later) --------------------
// d (16, 8) += a (16, 8) b (8, 8). With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, t) (g+8, t) (g, t+4) (g+8, t+4)   b: (t, g) (t+4, g)
//   d: (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4],
                                                 const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// ---- stmatrix: a warp stores 8 x 8 matrices of 16-bit numbers (sm_90) --------------------------
// Stores four matrices in mma's layout: of matrix i a lane has (g, 2t) and (g, 2t+1), in one word.
// They are stored transposed: lane 8 i + j passes the address for column j of matrix i, 16 bytes.
__device__ __forceinline__ void stmatrix_x4_trans(void* to_shared, const uint32_t (&pairs)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::
                 "r"(shared_address(to_shared)), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]),
                 "r"(pairs[3]) : "memory");
}

// ---- cp.async: 16 bytes to shared memory (sm_80) ----------------------------------------------
// The copy bypasses L1, and L2 prefetches the whole 128-byte line for the copies that follow. If
// `inside` is false, it reads nothing and writes zeros. This thread may read what it copied after
// __pipeline_commit and __pipeline_wait_prior.
__device__ __forceinline__ void copy_async16(void* to_shared, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::
                 "r"(shared_address(to_shared)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// ---- mbarrier: a barrier in shared memory; arriving does not block (sm_80, here sm_90) ---------
// It counts pending arrivals and pending bytes of copies. When both counts reach zero its phase
// completes, and the next phase begins with the same count of arrivals. A phase is known by its
// parity; the first has parity 0.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::
                 "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes the inits visible to the copy engine; call it before the __syncthreads() that follows them.
__device__ __forceinline__ void mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier))
                 : "memory");
}
// Arrives, and adds the bytes of copies that must also complete before the phase does.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::
                 "r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Blocks until the phase of this parity has completed.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over_%=;\n"
        "bra again_%=;\n"
        "over_%=:\n"
        "}" :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}

// ---- cp.async.bulk: the copy engine copies a run of bytes (sm_90) -----------------------------
// Both addresses and the size are multiples of 16. A load reports its bytes to an mbarrier.
__device__ __forceinline__ void bulk_load(void* to_shared, const void* from, int bytes,
                                          uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::
                 "r"(shared_address(to_shared)), "l"(from), "r"(bytes),
                 "r"(shared_address(barrier)) : "memory");
}
// A store belongs to the group that its thread commits next.
__device__ __forceinline__ void bulk_store(void* to, const void* from_shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::
                 "l"(to), "r"(shared_address(from_shared)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Blocks until all but the `newest` groups of this thread have read their shared memory.
template <int newest>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(newest) : "memory");
}
// The copy engine and wgmma access shared memory through another path, the asynchronous proxy. What
// a thread stored is visible to them only after that thread has executed this fence.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- griddepcontrol: programmatic dependent launch (sm_90) ------------------------------------
// For `launch_dependent`, below. When all blocks of a kernel have executed this or ended, the next
// kernel in the stream may begin.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Blocks until the previous kernel in the stream has finished and its writes are visible.
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- setmaxnreg: warps give up registers, and others get them (sm_90a) -------------------------
// All warps of a warpgroup execute it. `count` is the new number of registers of a thread, a multiple of 8
// from 24 to 256. `inc` blocks until other warps of the block have given up enough.
template <int count>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count));
}
template <int count>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count));
}

// ---- wgmma: four warps multiply, operands in shared memory (sm_90a) ---------------------------
// The first operand may also be in registers; the wrappers here do not offer that.
// The fence is needed before the first wgmma, and after other instructions have accessed registers
// of d.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Blocks until all but the `newest` groups are complete. Until then neither d nor the operands may
// be accessed.
template <int newest>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(newest) : "memory");
}

// d (64, n) = a (64, 8) b (n, 8)^T, added to d if `accumulate`. In TF32 both operands have k
// contiguous. With g = lane / 4 and t = lane % 4, d[4 j + 2 h + i] of a thread is element
// (16 warp + 8 h + g, 8 j + 2 t + i), where warp is 0 to 3.
#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
              "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
__device__ __forceinline__ void wgmma_m64n128k8_tf32(float (&d)[64], uint64_t a, uint64_t b,
                                                     int accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1;\n"
        "}"
        : D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56)
        : "l"(a), "l"(b), "r"(accumulate));
}
#define M64N256(types, transposed)                                                                \
    asm volatile(                                                                                 \
        "{\n"                                                                                     \
        ".reg .pred p;\n"                                                                         \
        "setp.ne.b32 p, %130, 0;\n"                                                               \
        "wgmma.mma_async.sync.aligned." types " {"                                                \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                  \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "        \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "        \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "        \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "        \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "        \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "        \
        "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "    \
        "%124, %125, %126, %127}, %128, %129, p, 1, 1" transposed ";\n"                           \
        "}"                                                                                       \
        : D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56), D8(64), D8(72), D8(80),   \
          D8(88), D8(96), D8(104), D8(112), D8(120)                                               \
        : "l"(a), "l"(b), "r"(accumulate))
__device__ __forceinline__ void wgmma_m64n256k8_tf32(float (&d)[128], uint64_t a, uint64_t b,
                                                     int accumulate) {
    M64N256("m64n256k8.f32.tf32.tf32", "");
}
// The same for d (64, 256), a (64, 16) and b (256, 16)^T in bf16 or fp16.
__device__ __forceinline__ void wgmma_m64n256k16_bf16(float (&d)[128], uint64_t a, uint64_t b,
                                                      int accumulate) {
    M64N256("m64n256k16.f32.bf16.bf16", ", 0, 0");
}
__device__ __forceinline__ void wgmma_m64n256k16_fp16(float (&d)[128], uint64_t a, uint64_t b,
                                                      int accumulate) {
    M64N256("m64n256k16.f32.f16.f16", ", 0, 0");
}
#undef M64N256
#undef D8
#endif

// Launches a kernel with programmatic dependent launch: it may begin before the previous kernel in
// the stream has finished. It must read what that kernel writes only after griddepcontrol_wait().
template <typename... Wanted, typename... Given>
void launch_dependent(void (*kernel)(Wanted...), int grid, int threads, int smem,
                      cudaStream_t stream, Given... given) {
#ifdef CONVLAB_SIMULATOR
    sim_launch_dependent();
    kernel<<<grid, threads, smem, stream>>>(given...);
#else
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = smem;
    config.stream = stream, config.attrs = &early, config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, given...);   // launch_error() reports errors
#endif
}

// Returns the descriptor of an operand in shared memory, without swizzle. The operand consists of
// "core matrices" of 8 rows of 16 bytes, end to end. `k_step` is the distance in bytes from one to
// the next along k, `row_step` along the other dimension; PTX calls them leading and stride
// dimension byte offset. All are multiples of 16 below 2^18.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* start, int k_step, int row_step) {
    return uint64_t(shared_address(start) >> 4) | uint64_t(k_step >> 4) << 16 |
           uint64_t(row_step >> 4) << 32;
}
// Returns the shifted descriptor: its start is 16 n bytes further on.
__device__ __forceinline__ uint64_t wgmma_moved(uint64_t descriptor, unsigned n) {
    return (descriptor >> 32 << 32) | (uint32_t(descriptor) + n);
}

// Prepares an operand that only a tensor core reads. The tensor core truncates the last 13 bits;
// after this multiplication the result is nearly as good as the nearest TF32 number, in one
// instruction where round_tf32 takes three. A number m 2^e, 1 <= m < 2, is raised by ln(2) m / 2
// units in the last remaining place. The rms error is then sqrt(1/12 + mean((ln(2) m / 2 - 1/2)^2))
// = 0.31 units; 0.29 is the best possible. The mean error is 0.
__device__ __forceinline__ float before_truncation(float value) {
    return value * (1.0f + 0.6931472f / 2048);
}

// Splits a number into two TF32 numbers: high, the number rounded to 11 bits, and low, the rest. Of
// an infinity, low is infinity and high is 0: an infinite high would also be multiplied with the
// other operand's low part, which can have the opposite sign.
struct Parts {
    float high, low;
};
__device__ __forceinline__ Parts parts_of(float value) {
    // round_tf32, without its own test for infinities
    const float high = __uint_as_float((__float_as_uint(value) + 0x1000) & 0xffffe000);
    const bool finite = fabsf(high) < INFINITY;
    return {finite ? high : 0.0f, finite ? before_truncation(value - high) : value};
}
