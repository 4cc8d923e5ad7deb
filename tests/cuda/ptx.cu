// Inline PTX. Each case is one thread block; y has k * 64 floats, x has 64 whole numbers.
#include "convlab.cuh"
#include <cuda_fp16.h>

#define PER_THREAD int t = threadIdx.x; int a = int(x[t % 64]), b = int(x[(t + 7) % 64]), r = 0; (void)b;
#define INT_KERNEL(name, ...) __global__ void name(const float* x, float* y) { PER_THREAD __VA_ARGS__ y[t] = float(r); }

// case lane: lane<<<1, 64, 0, stream>>>(x, y);
// expect: [i % 32 + 100 * (i // 32) for i in range(64)]
INT_KERNEL(lane, unsigned l, w; asm volatile("mov.u32 %0, %%laneid;" : "=r"(l));
           asm("mov.u32 %0, %%tid.x;" : "=r"(w)); r = int(l + 100 * (w / 32)); (void)a;)

// case arithmetic: arithmetic<<<1, 64, 0, stream>>>(x, y);
// expect: [int(x[i]) * 3 + int(x[(i + 7) % 64]) - 5 for i in range(64)]
INT_KERNEL(arithmetic,
           asm("{\n"
               "  .reg .s32 t<2>;  // two registers\n"
               "  mad.lo.s32 t0, %1, 3, %2;\n"
               "  sub.s32 t1, t0, 5;\n"
               "  mov.b32 %0, t1;\n"
               "}" : "=r"(r) : "r"(a), "r"(b));)

// case predicated: predicated<<<1, 64, 0, stream>>>(x, y);
// expect: [max(int(x[i]), int(x[(i + 7) % 64])) for i in range(64)]
INT_KERNEL(predicated,
           asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, %2; mov.s32 %0, %2; @p mov.s32 %0, %1; }"
                        : "=r"(r) : "r"(a), "r"(b));)

// case loops: loops<<<1, 64, 0, stream>>>(x, y);
// expect: [sum(range(i % 8)) for i in range(64)]
INT_KERNEL(loops, int n = t % 8; (void)a;
           asm volatile("{ .reg .pred p; .reg .s32 i; mov.s32 i, 0; mov.s32 %0, 0;\n"
                        "AGAIN: setp.ge.s32 p, i, %1; @p bra DONE;\n"
                        "add.s32 %0, %0, i; add.s32 i, i, 1; bra AGAIN;\n"
                        "DONE: }" : "=r"(r) : "r"(n));)

// case bits: bits<<<1, 64, 0, stream>>>(x, y);
// expect: [(i & 5) ^ (i >> 1) for i in range(64)]
INT_KERNEL(bits, (void)a; asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(t), "r"(5), "r"(t >> 1));)

// case permuted: permuted<<<1, 64, 0, stream>>>(x, y);
// expect: [i << 8 for i in range(64)]
INT_KERNEL(permuted, (void)a; asm("prmt.b32 %0, %1, 0, 0x4404;" : "=r"(r) : "r"(t));)

// case memory: memory<<<1, 16, 0, stream>>>(x, y);
// expect: x
__global__ void memory(const float* x, float* y) {
    float a, b, c, d;
    const float* from = x + 4 * threadIdx.x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(from));
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(y + 4 * threadIdx.x), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// case shared: shared<<<1, 64, 0, stream>>>(x, y);
// expect: x.flip(0)
__global__ void shared(const float* x, float* y) {
    __shared__ float s[64];
    unsigned at = unsigned(__cvta_generic_to_shared(&s[threadIdx.x]));
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(at), "f"(x[threadIdx.x]) : "memory");
    asm volatile("bar.sync 0;");
    float v;
    asm volatile("{ .reg .u64 g; .reg .u32 a; cvta.to.shared.u64 g, %1; cvt.u32.u64 a, g;\n"
                 "  ld.shared.f32 %0, [a+4]; }" : "=f"(v) : "l"(&s[62 - int(threadIdx.x % 63)]));
    y[threadIdx.x] = threadIdx.x < 63 ? v : s[0];
}

// case copied: copied<<<1, 16, 0, stream>>>(x, y);
// expect: torch.cat([x[:60], torch.zeros(4)])
__global__ void copied(const float* x, float* y) {
    __shared__ alignas(16) float s[64];
    unsigned at = unsigned(__cvta_generic_to_shared(&s[4 * threadIdx.x]));
    int bytes = threadIdx.x < 15 ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :: "r"(at), "l"(x + 4 * threadIdx.x), "r"(bytes) : "memory");
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    asm volatile("cp.async.wait_group %0;\n" :: "n"(0) : "memory");
    __syncthreads();
    for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = s[4 * threadIdx.x + i];
}

// case shuffled_down: shuffled_down<<<1, 32, 0, stream>>>(x, y);
// expect: torch.cat([x[2:32], x[30:32]])
__global__ void shuffled_down(const float* x, float* y) {
    float v;
    asm volatile("shfl.sync.down.b32 %0, %1, 2, 31, 0xffffffff;" : "=f"(v) : "f"(x[threadIdx.x]));
    y[threadIdx.x] = v;
}

// case summed: summed<<<1, 64, 0, stream>>>(y); 
// expect: [64]
__global__ void summed(float* y) {
    if (threadIdx.x == 0) y[0] = 0;
    __syncthreads();
    asm volatile("red.global.add.f32 [%0], %1;" :: "l"(y), "f"(1.0f) : "memory");
}

// Two halves of a block meet at named barriers: one produces, the other consumes.
// case named: named<<<1, 64, 0, stream>>>(x, y);
// expect: x[:32]
__global__ void named(const float* x, float* y) {
    __shared__ float s[32];
    if (threadIdx.x < 32) {
        s[threadIdx.x] = x[threadIdx.x];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync %0, %1;" :: "r"(1), "n"(64) : "memory");
        y[threadIdx.x - 32] = s[threadIdx.x - 32];
    }
}

// a (16, 16) b (16, 8) in fp16: ldmatrix gets the fragments. b's rows are x[0..7], so that
// y[i][j] = sum_k a[i][k] b[k][j].
// case mma: mma<<<1, 32, 0, stream>>>(x, y);
// k: 2; expect: torch.arange(256).reshape(16, 16).remainder(5).float() @ torch.arange(128).reshape(16, 8).remainder(3).float()
__global__ void mma(const float*, float* y) {
    __shared__ alignas(16) __half s_a[16 * 16], s_b[16 * 8];
    int l = threadIdx.x;
    for (int i = l; i < 256; i += 32) s_a[i] = __float2half(float(i % 5));
    for (int i = l; i < 128; i += 32) s_b[i] = __float2half(float(i % 3));
    __syncwarp();
    unsigned a[4], b[2];
    float c[4] = {};
    unsigned at_a = unsigned(__cvta_generic_to_shared(&s_a[l % 16 * 16 + l / 16 * 8]));
    unsigned at_b = unsigned(__cvta_generic_to_shared(&s_b[l % 16 * 8]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at_a));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1]) : "r"(at_b));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int i = 0; i < 4; ++i) y[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = c[i];
}

// Planted bugs.
// case copy_not_waited: copy_not_waited<<<1, 32, 0, stream>>>(x, y);
// fault: copy not waited for: load of s\[
__global__ void copy_not_waited(const float* x, float* y) {
    __shared__ float s[32];
    unsigned at = unsigned(__cvta_generic_to_shared(&s[threadIdx.x]));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(x + threadIdx.x));
    asm volatile("cp.async.commit_group;");
    y[threadIdx.x] = s[threadIdx.x];  // here
}
// case no_barrier: no_barrier<<<1, 64, 0, stream>>>(x, y);
// fault: race: (load of|store to) s\[
__global__ void no_barrier(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("bar.arrive 1, 64;");
    y[threadIdx.x] = s[(threadIdx.x + 32) % 64];  // here
}
// case three_warps_of_four: three_of_four<<<1, 96, 0, stream>>>(y);
// fault: deadlock: this thread waits at named barrier 2: 96 of 128 threads came
__global__ void three_of_four(float* y) {
    asm volatile("bar.sync 2, 128;");
    y[threadIdx.x % 64] = 1;
}
// case misaligned: misaligned<<<1, 1, 0, stream>>>(x, y);
// fault: misaligned access: load of 16 bytes at x\[
__global__ void misaligned(const float* x, float* y) {
    float a, b, c, d;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(x + 1));
    y[0] = a + b + c + d;
}
// case part_of_a_warp: part_of_a_warp<<<1, 32, 0, stream>>>(y);
// fault: warp mask: ldmatrix.* by lanes 0x0000ffff only
__global__ void part_of_a_warp(float* y) {
    __shared__ alignas(16) __half s[256];
    for (int i = threadIdx.x; i < 256; i += 32) s[i] = __float2half(0);
    __syncwarp();
    unsigned a = 0, at = unsigned(__cvta_generic_to_shared(&s[threadIdx.x % 8 * 8]));
    if (threadIdx.x < 16)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at));
    y[threadIdx.x] = float(a);
}
// case registers: registers_of_a_warpgroup<<<1, 128, 0, stream>>>(y);
// k: 2; fault: wgmma: setmaxnreg by warp 0 of a warpgroup, but not by warp 3
__global__ void registers_of_a_warpgroup(float* y) {
#ifndef __CUDACC_VER_BUILD__
    // nvcc has a build number, the simulator has none: on a GPU this needs sm_90a.
    if (threadIdx.x < 96) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
    y[threadIdx.x] = 1;
}
// case unknown: unknown<<<1, 32, 0, stream>>>(y);
// fault: not simulated: the PTX instruction tcgen05.alloc\S* in inline PTX; the simulator does not
__global__ void unknown(float* y) {
#ifndef __CUDACC_VER_BUILD__
    // On a GPU this needs sm_100a.
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"(0));
#endif
    y[threadIdx.x] = 1;
}
