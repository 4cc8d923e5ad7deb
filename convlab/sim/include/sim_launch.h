// Launches by a call: cudaLaunchKernel, cudaLaunchKernelEx, cudaLaunchCooperativeKernel. rewrite.py
// removes a cast to void* from the kernel, so that its parameters' types are known.
#pragma once

#include "sim_api.h"

// ---- configuration ------------------------------------------------------------------------
enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeAccessPolicyWindow = 1,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeSynchronizationPolicy = 3,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributeProgrammaticEvent = 7,
    cudaLaunchAttributePriority = 8
};
typedef cudaLaunchAttributeID cudaStreamAttrID;
#define cudaStreamAttributeAccessPolicyWindow cudaLaunchAttributeAccessPolicyWindow
enum cudaAccessProperty { cudaAccessPropertyNormal, cudaAccessPropertyStreaming,
                          cudaAccessPropertyPersisting };
enum cudaClusterSchedulingPolicy { cudaClusterSchedulingPolicyDefault,
                                   cudaClusterSchedulingPolicySpread,
                                   cudaClusterSchedulingPolicyLoadBalancing };
struct cudaAccessPolicyWindow {
    void* base_ptr;
    size_t num_bytes;
    float hitRatio;
    cudaAccessProperty hitProp, missProp;
};
union cudaLaunchAttributeValue {
    char pad[64];
    cudaAccessPolicyWindow accessPolicyWindow;
    int cooperative, priority, programmaticStreamSerializationAllowed;
    struct { unsigned x, y, z; } clusterDim;
    cudaClusterSchedulingPolicy clusterSchedulingPolicyPreference;
};
typedef cudaLaunchAttributeValue cudaStreamAttrValue;
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
};
typedef cudaLaunchConfig_t cudaLaunchConfig_st;
SIM_NOTHING_TO_DO(cudaStreamSetAttribute, cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*)
SIM_NOTHING_TO_DO(cudaStreamGetAttribute, cudaStream_t, cudaStreamAttrID, cudaStreamAttrValue*)
SIM_NOTHING_TO_DO(cudaCtxResetPersistingL2Cache)

extern "C" {
void sim_launch_dependent();
void sim_launch_cooperative();
void sim_launch_cluster(unsigned x, unsigned y, unsigned z);
void sim_cluster_dims(unsigned x, unsigned y = 1, unsigned z = 1);
int sim_has_cluster_dims(const char* kernel);
}
#define SIM_JOINED(a, b) a##b
#define SIM_NAMED(counter, kernel) static const int SIM_JOINED(sim_cluster_dims_, counter) = sim_has_cluster_dims(kernel)
#define SIM_HAS_CLUSTER_DIMS(kernel) SIM_NAMED(__COUNTER__, kernel)
namespace sim {
inline void apply(const cudaLaunchConfig_t& config) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const cudaLaunchAttribute& a = config.attrs[i];
        if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
            if (a.val.programmaticStreamSerializationAllowed) sim_launch_dependent();
        } else if (a.id == cudaLaunchAttributeCooperative) {
            if (a.val.cooperative) sim_launch_cooperative();
        } else if (a.id == cudaLaunchAttributeClusterDimension) {
            sim_launch_cluster(a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z);
        }
    }
}
template <typename... P, size_t... i>
__forceinline__ cudaError_t launch_with(void (*kernel)(P...), const Config& config, void** arguments,
                                        std::index_sequence<i...>) {
    Typed<int, P...>{config, kernel, 0}(*static_cast<std::decay_t<P>*>(arguments[i])...);
    return cudaPeekAtLastError();
}
}  // namespace sim

template <typename... P>
__forceinline__ cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block,
                                             void** arguments, size_t shared_bytes = 0,
                                             cudaStream_t stream = nullptr) {
    return sim::launch_with(kernel, {grid, block, shared_bytes, stream, "a kernel"}, arguments,
                            std::make_index_sequence<sizeof...(P)>());
}
SIM_REFUSED("this launches a kernel through a pointer to void, so that its parameters are unknown")
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t = 0, cudaStream_t = nullptr);
template <typename... P>
__forceinline__ cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(P...), dim3 grid, dim3 block,
                                                        void** arguments, size_t shared_bytes = 0,
                                                        cudaStream_t stream = nullptr) {
    sim_launch_cooperative();
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
SIM_REFUSED("this launches a kernel through a pointer to void, so that its parameters are unknown")
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t = 0,
                                        cudaStream_t = nullptr);
template <typename... P>
__forceinline__ cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                                void (*kernel)(P...), void** arguments) {
    sim::apply(*config);
    return cudaLaunchKernel(kernel, config->gridDim, config->blockDim, arguments,
                            config->dynamicSmemBytes, config->stream);
}
template <typename... P, typename... A>
__forceinline__ cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                                               void (*kernel)(P...), A&&... arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "cudaLaunchKernelEx: one argument per parameter");
    sim::apply(*config);
    sim::Typed<int, P...>{{config->gridDim, config->blockDim, config->dynamicSmemBytes,
                           config->stream, "a kernel"}, kernel, 0}(
        static_cast<P>(std::forward<A>(arguments))...);
    return cudaPeekAtLastError();
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, F, const cudaLaunchConfig_t*) {
    return *clusters = 132 / 8, cudaSuccess;
}
template <typename F>
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, F, const cudaLaunchConfig_t*) {
    return *size = 8, cudaSuccess;
}
// ---- stream-ordered memory: pools have no size of their own here
typedef struct CUmemPoolHandle_st* cudaMemPool_t;
enum cudaMemPoolAttr {
    cudaMemPoolReuseFollowEventDependencies = 1,
    cudaMemPoolReuseAllowOpportunistic = 2,
    cudaMemPoolReuseAllowInternalDependencies = 3,
    cudaMemPoolAttrReleaseThreshold = 4,
    cudaMemPoolAttrReservedMemCurrent = 5,
    cudaMemPoolAttrReservedMemHigh = 6,
    cudaMemPoolAttrUsedMemCurrent = 7,
    cudaMemPoolAttrUsedMemHigh = 8
};
inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
    return *pool = nullptr, cudaSuccess;
}
inline cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int) {
    return *pool = nullptr, cudaSuccess;
}
SIM_NOTHING_TO_DO(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
SIM_NOTHING_TO_DO(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
template <typename T>
cudaError_t cudaMallocFromPoolAsync(T** pointer, size_t bytes, cudaMemPool_t, cudaStream_t stream) {
    return cudaMallocAsync(pointer, bytes, stream);
}
// Programmatic dependent launch in CUDA C++.
extern "C" void sim_griddepcontrol_launch_dependents();
extern "C" void sim_griddepcontrol_wait();
__forceinline__ void cudaGridDependencySynchronize() { sim_griddepcontrol_wait(); }
__forceinline__ void cudaTriggerProgrammaticLaunchCompletion() { sim_griddepcontrol_launch_dependents(); }
