// kernels/tensor.cuh on the simulator: functions with the same names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <string_view>

extern "C" {  // see ../runtime/tensor.h
void sim_launch_dependent();  // the next launch may begin before the latest one ends
void sim_partial_stmatrix(unsigned participants);
void sim_bulk_wait_read(unsigned newest);
void sim_wgmma_wait(unsigned newest);
void sim_wgmma(float* d, uint64_t a, uint64_t b, int n, char type, int accumulate);
void sim_wgmma_gathered(float* d, const uint32_t* a, uint64_t b, int n, char type, int accumulate);
void sim_mma(float* d, const float* a, const float* b);
}

// A function declared with this is a function of the runtime.
#define SIM_RUNTIMES(name) __asm__("sim_" #name)
uint32_t shared_address(const void* pointer) SIM_RUNTIMES(shared_address);

// ---- numbers ------------------------------------------------------------------------------
__forceinline__ float round_tf32(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;  // infinity, NaN
    return __uint_as_float((bits + 0x1000) & 0xffffe000);
}
__forceinline__ float max_nan(float a, float b) { return b > a || b != b ? b : a; }
__forceinline__ uint32_t round_bf16(float low, float high) {
    return sim::Bfloat16::narrow(low) | uint32_t(sim::Bfloat16::narrow(high)) << 16;
}
__forceinline__ uint32_t round_fp16(float low, float high) {
    return sim::Half::narrow(low) | uint32_t(sim::Half::narrow(high)) << 16;
}

// ---- mma.sync -----------------------------------------------------------------------------
__forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
    sim_mma(d, a, b);
}

// ---- stmatrix, cp.async -------------------------------------------------------------------
namespace sim {
struct Matrices {
    const uint32_t* pairs;
    uint16_t column[8];
    unsigned participants;  // a mask of lanes
};
inline void stmatrix_step(void** arguments, unsigned participants) {
    for (int l = 0; l < 32; ++l) {
        if (!(participants >> l & 1)) continue;
        auto& mine = *static_cast<Matrices*>(arguments[l]);
        mine.participants = participants;
        for (int g = 0; g < 8 && !~participants; ++g) {
            auto& other = *static_cast<Matrices*>(arguments[4 * g + l % 8 / 2]);
            mine.column[g] = uint16_t(other.pairs[l / 8] >> l % 2 * 16);
        }
    }
}
}  // namespace sim
__forceinline__ void stmatrix_x4_trans(void* to_shared, const uint32_t (&pairs)[4]) {
    sim::Matrices mine{pairs, {}, 0};
    sim_collective(0xffffffffu, sim::stmatrix_step, &mine);
    if (~mine.participants) sim_partial_stmatrix(mine.participants);
    shared_address(to_shared);
    uint4 column;
    std::memcpy(&column, mine.column, 16);
    *static_cast<uint4*>(to_shared) = column;
}
__forceinline__ void copy_async16(void* to_shared, const void* from, bool inside) {
    __pipeline_memcpy_async(to_shared, from, 16, inside ? 0 : 16);
}

// ---- mbarrier, bulk copies ----------------------------------------------------------------
void mbarrier_init(uint64_t* barrier, int arrivals) SIM_RUNTIMES(mbarrier_init);
__forceinline__ void mbarrier_fence_init() {}
void mbarrier_arrive_expect(uint64_t* barrier, int bytes) SIM_RUNTIMES(mbarrier_arrive);
__forceinline__ void mbarrier_arrive(uint64_t* barrier) { mbarrier_arrive_expect(barrier, 0); }
void mbarrier_wait(uint64_t* barrier, int parity) SIM_RUNTIMES(mbarrier_wait);
void bulk_load(void* to_shared, const void* from, int bytes, uint64_t*) SIM_RUNTIMES(bulk_load);
void bulk_store(void* to, const void* from_shared, int bytes) SIM_RUNTIMES(bulk_store);
void bulk_commit() SIM_RUNTIMES(bulk_commit);
template <int newest>
__forceinline__ void bulk_wait_read() { sim_bulk_wait_read(newest); }
void fence_proxy_async() SIM_RUNTIMES(fence_proxy_async);

// ---- griddepcontrol -----------------------------------------------------------------------
// The simulator runs a grid after the previous one has ended. It reports a block that accesses data
// of the previous grid before one of its threads has called griddepcontrol_wait. It does not check
// that the accessing thread is synchronized with the one that waited.
void griddepcontrol_launch_dependents() SIM_RUNTIMES(griddepcontrol_launch_dependents);
void griddepcontrol_wait() SIM_RUNTIMES(griddepcontrol_wait);

// ---- wgmma --------------------------------------------------------------------------------
// Each warp computes its 16 rows. Nothing checks that the four warps of a group execute together.
void wgmma_fence() SIM_RUNTIMES(wgmma_fence);
void wgmma_commit() SIM_RUNTIMES(wgmma_commit);
template <int newest>
__forceinline__ void wgmma_wait() { sim_wgmma_wait(newest); }
#define SIM_WGMMA(name, n, type)                                                           \
    __forceinline__ void name(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate) { \
        sim_wgmma(d, a, b, n, type, accumulate);                                           \
    }
SIM_WGMMA(wgmma_m64n256k8_tf32, 256, 't') SIM_WGMMA(wgmma_m64n128k8_tf32, 128, 't')
SIM_WGMMA(wgmma_m64n256k16_bf16, 256, 'b') SIM_WGMMA(wgmma_m64n256k16_fp16, 256, 'f')

namespace sim {
// The name that an instruction of this size and type has in the kernel's own text, as
// "m64n128k8.f32.tf32.tf32"; see kernels/wgmma_n.cuh. d has `count` registers.
template <typename T, int count>
struct WgmmaName;

struct WgmmaShape {
    int n = 0;
    char type = 0;  // as sim_wgmma's; 0: none that the simulator computes
};
constexpr WgmmaShape wgmma_shape(std::string_view name) {
    if (name.substr(0, 4) != "m64n") return {};
    WgmmaShape shape;
    size_t at = 4;
    for (; at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at)
        shape.n = 10 * shape.n + (name[at] - '0');
    std::string_view rest = name.substr(at);
    if (rest == "k8.f32.tf32.tf32") shape.type = 't';
    if (rest == "k16.f32.bf16.bf16") shape.type = 'b';
    if (rest == "k16.f32.f16.f16") shape.type = 'f';
    return shape;
}
// Multiplies as the instruction's name says, which need not be what T says.
template <typename T, int count>
__forceinline__ void wgmma_by_name(float (&d)[count], uint64_t a, uint64_t b, int accumulate) {
    constexpr WgmmaShape shape = wgmma_shape(WgmmaName<T, count>::text);
    static_assert(shape.type, "the simulator does not compute a wgmma of these types");
    static_assert(shape.n == 2 * count, "wgmma: a thread has n / 2 elements of d");
    sim_wgmma(d, a, b, shape.n, shape.type, accumulate);
}
template <typename T, int count>
__forceinline__ void wgmma_by_name(float (&d)[count], const uint32_t (&a)[4], uint64_t b,
                                   int accumulate) {
    constexpr WgmmaShape shape = wgmma_shape(WgmmaName<T, count>::text);
    static_assert(shape.type, "the simulator does not compute a wgmma of these types");
    static_assert(shape.n == 2 * count, "wgmma: a thread has n / 2 elements of d");
    sim_wgmma_gathered(d, a, b, shape.n, shape.type, accumulate);
}
}  // namespace sim
