// The CUDA runtime API for host code.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstring>

#include "sim.h"
#include "sim_device.h"

enum cudaError_t : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorAssert = 710,
    cudaErrorLaunchFailure = 719,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorNotSupported = 801,
    cudaErrorInvalidClusterSize = 912,
    cudaErrorUnknown = 999,
};
typedef cudaError_t cudaError;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                      cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
                         cudaFuncAttributePreferredSharedMemoryCarveout = 9,
                         cudaFuncAttributeClusterDimMustBeSet = 10,
                         cudaFuncAttributeRequiredClusterWidth = 11,
                         cudaFuncAttributeRequiredClusterHeight = 12,
                         cudaFuncAttributeRequiredClusterDepth = 13,
                         cudaFuncAttributeNonPortableClusterSizeAllowed = 14 };
enum cudaSharedCarveout { cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxL1 = 0,
                          cudaSharedmemCarveoutMaxShared = 100 };
extern "C" {
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t);
const char* cudaGetErrorName(cudaError_t);
cudaError_t sim_error(cudaError_t);  // sets the last error, and returns it
cudaError_t sim_set_attribute(const void* kernel, cudaFuncAttribute, int value);
cudaError_t sim_malloc(void** pointer, size_t bytes, int access);
cudaError_t cudaFree(void* pointer);
cudaError_t sim_fill(void* to, size_t pitch, int value, size_t width, size_t rows, cudaStream_t);
// `waits`: the host waits until a copy from or to host memory is complete.
cudaError_t sim_copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                     size_t rows, cudaStream_t, int waits = 0);
cudaStream_t sim_stream(unsigned flags);
unsigned sim_event_record(cudaStream_t);
void sim_stream_wait(cudaStream_t, unsigned event);
void sim_event_synchronize(unsigned event);
void sim_stream_synchronize(cudaStream_t);
void sim_device_synchronize();
// Of CUDA graphs: see sim_graph.h.
int sim_capture_event(cudaStream_t, unsigned* event);
int sim_capture_wait(cudaStream_t, unsigned event);
void sim_host_call(cudaStream_t, void (*call)(void*), void* with);
void sim_free_async(void* pointer, cudaStream_t);
}
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* is) { return *is = CUDART_VERSION, cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* is) { return *is = CUDART_VERSION, cudaSuccess; }

// ---- streams and events: the runtime performs each operation at its call, and checks the order
// that events, streams and the host give it (../runtime/streams.h). Times are those of this machine.
typedef struct CUevent_st { double milliseconds; unsigned number; }* cudaEvent_t;
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
enum { cudaComputeModeDefault, cudaComputeModeProhibited = 2, cudaComputeModeExclusiveProcess };
enum { cudaHostAllocDefault, cudaHostAllocPortable, cudaHostAllocMapped,
       cudaHostAllocWriteCombined = 4 };
enum { cudaHostRegisterDefault, cudaHostRegisterPortable, cudaHostRegisterMapped };
enum { cudaCpuDeviceId = -1, cudaMemAttachGlobal = 1, cudaMemAttachHost, cudaMemAttachSingle = 4 };
enum { cudaDeviceScheduleAuto, cudaDeviceBlockingSync = 4, cudaDeviceMapHost = 8 };
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize,
                 cudaLimitDevRuntimeSyncDepth, cudaLimitDevRuntimePendingLaunchCount,
                 cudaLimitMaxL2FetchGranularity, cudaLimitPersistingL2CacheSize };
enum { cudaStreamDefault, cudaStreamNonBlocking };
enum { cudaEventDefault, cudaEventBlockingSync, cudaEventDisableTiming };
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1,
                     cudaFuncCachePreferEqual };
#define SIM_NOTHING_TO_DO(name, ...) inline cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
SIM_NOTHING_TO_DO(cudaSetDevice, int) SIM_NOTHING_TO_DO(cudaDeviceReset)
SIM_NOTHING_TO_DO(cudaSetDeviceFlags, unsigned) SIM_NOTHING_TO_DO(cudaProfilerStart)
SIM_NOTHING_TO_DO(cudaProfilerStop) SIM_NOTHING_TO_DO(cudaDeviceSetLimit, cudaLimit, size_t)
SIM_NOTHING_TO_DO(cudaDeviceSetCacheConfig, cudaFuncCache) SIM_NOTHING_TO_DO(cudaStreamDestroy, cudaStream_t)
template <typename F>
SIM_NOTHING_TO_DO(cudaFuncSetCacheConfig, F*, cudaFuncCache)
template <typename... A>
SIM_NOTHING_TO_DO(cudaMemPrefetchAsync, const A&...)
template <typename... A>
SIM_NOTHING_TO_DO(cudaStreamAttachMemAsync, const A&...)
inline cudaError_t cudaDeviceSynchronize() { return sim_device_synchronize(), cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    return sim_stream_synchronize(s), cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaStreamSynchronize(s); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned = 0) {
    if (!sim_capture_wait(s, e->number)) sim_stream_wait(s, e->number);
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    return sim_event_synchronize(e->number), cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaEventSynchronize(e); }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    return *s = sim_stream(flags), cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, 0); }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) {
    return cudaStreamCreateWithFlags(s, flags);
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = *greatest = 0, cudaSuccess;
}
inline cudaError_t cudaStreamAddCallback(cudaStream_t s,
                                         void (*call)(cudaStream_t, cudaError_t, void*),
                                         void* with, unsigned) {
    return call(s, cudaPeekAtLastError(), with), cudaSuccess;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*call)(void*), void* with) {
    return sim_host_call(stream, call, with), cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return *e = new CUevent_st{}, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream = nullptr) {
    timespec now;
    if (!sim_capture_event(stream, &e->number)) e->number = sim_event_record(stream);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return e->milliseconds = now.tv_sec * 1e3 + now.tv_nsec * 1e-6, cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    return *ms = float(to->milliseconds - from->milliseconds), cudaSuccess;
}

// ---- device properties and occupancy; the registers of a kernel are not known --------------
// The values that differ between GPUs are set in sim_properties.
struct cudaDeviceProp {
    char name[256] = "";
    size_t totalGlobalMem = 0, totalConstMem = 64 << 10,
           sharedMemPerBlock = 48 << 10, sharedMemPerBlockOptin = 0,
           sharedMemPerMultiprocessor = 0, reservedSharedMemPerBlock = 0;
    int regsPerBlock = 65536, regsPerMultiprocessor = 65536, warpSize = 32,
        maxThreadsPerBlock = 1024, maxThreadsDim[3] = {1024, 1024, 64},
        maxGridSize[3] = {0x7fffffff, 65535, 65535}, maxThreadsPerMultiProcessor = 0,
        maxBlocksPerMultiProcessor = 0, major = 0, minor = 0, multiProcessorCount = 0,
        l2CacheSize = 0, clockRate = 0, memoryClockRate = 0, memoryBusWidth = 0,
        concurrentKernels = 1, managedMemory = 1, cooperativeLaunch = 1,
        computeMode = cudaComputeModeDefault, integrated = 0, canMapHostMemory = 1, ECCEnabled = 1,
        unifiedAddressing = 1, asyncEngineCount = 1, deviceOverlap = 1, pageableMemoryAccess = 0,
        concurrentManagedAccess = 1, kernelExecTimeoutEnabled = 0, isMultiGpuBoard = 0,
        persistingL2CacheMaxSize = 37 << 20, accessPolicyMaxWindowSize = 128 << 20,
        memoryPoolsSupported = 0, clusterLaunch = 1, pciBusID = 0, pciDeviceID = 0, pciDomainID = 0,
        tccDriver = 0, streamPrioritiesSupported = 1, globalL1CacheSupported = 1,
        localL1CacheSupported = 1, hostNativeAtomicSupported = 0, computePreemptionSupported = 1,
        directManagedMemAccessFromHost = 0, cooperativeMultiDeviceLaunch = 0,
        canUseHostPointerForRegisteredMem = 0, singleToDoublePrecisionPerfRatio = 2,
        maxTexture1D = 131072, maxTexture2D[2] = {131072, 65536},
        maxTexture3D[3] = {16384, 16384, 16384}, maxTexture1DLayered[2] = {32768, 2048},
        maxTexture2DLayered[3] = {32768, 32768, 2048};
    size_t memPitch = 0x7fffffff, textureAlignment = 512, texturePitchAlignment = 32,
           surfaceAlignment = 512;
};
inline cudaDeviceProp sim_properties() {
    const SimDevice& gpu = *sim_device();
    cudaDeviceProp is;
    strcpy(is.name, gpu.name);
    is.totalGlobalMem = size_t(gpu.memory_bytes);
    is.sharedMemPerBlockOptin = size_t(gpu.shared_optin);
    is.sharedMemPerMultiprocessor = size_t(gpu.shared_bytes);
    is.reservedSharedMemPerBlock = size_t(gpu.shared_reserved);
    is.regsPerBlock = is.regsPerMultiprocessor = int(gpu.registers);
    is.maxThreadsPerMultiProcessor = int(gpu.threads);
    is.maxBlocksPerMultiProcessor = int(gpu.blocks);
    is.major = int(gpu.sm / 10), is.minor = int(gpu.sm % 10);
    is.multiProcessorCount = int(gpu.sms);
    is.l2CacheSize = int(gpu.l2_bytes);
    is.clockRate = int(gpu.clock_khz), is.memoryClockRate = int(gpu.memory_clock_khz);
    is.memoryBusWidth = int(gpu.bus_bits);
    return is;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int device) {
    if (device) return sim_error(cudaErrorInvalidDevice);
    return *of = sim_properties(), cudaSuccess;
}
// The properties for cudaDeviceGetAttribute: name, CUDA's number, field of cudaDeviceProp.
#define SIM_ATTRIBUTES(USE)                                                                     \
    USE(MaxThreadsPerBlock, 1, maxThreadsPerBlock)                                              \
    USE(MaxSharedMemoryPerBlock, 8, sharedMemPerBlock)                                          \
    USE(WarpSize, 10, warpSize) USE(ClockRate, 13, clockRate)                                   \
    USE(MultiProcessorCount, 16, multiProcessorCount) USE(Integrated, 18, integrated)           \
    USE(ComputeMode, 20, computeMode) USE(L2CacheSize, 38, l2CacheSize)                         \
    USE(MaxThreadsPerMultiProcessor, 39, maxThreadsPerMultiProcessor)                           \
    USE(CooperativeLaunch, 95, cooperativeLaunch)                                              \
    USE(MaxPersistingL2CacheSize, 108, persistingL2CacheMaxSize)                                \
    USE(ConcurrentManagedAccess, 89, concurrentManagedAccess)                                   \
    USE(ManagedMemory, 83, managedMemory) USE(MemoryPoolsSupported, 115, memoryPoolsSupported)  \
    USE(ClusterLaunch, 120, clusterLaunch) USE(MaxBlockDimX, 2, maxThreadsPerBlock)             \
    USE(MaxRegistersPerBlock, 12, regsPerBlock) USE(MemoryClockRate, 36, memoryClockRate)       \
    USE(GlobalMemoryBusWidth, 37, memoryBusWidth) USE(TotalConstantMemory, 9, totalConstMem)    \
    USE(MaxRegistersPerMultiprocessor, 82, regsPerMultiprocessor)                               \
    USE(MaxBlocksPerMultiprocessor, 106, maxBlocksPerMultiProcessor)                            \
    USE(ComputeCapabilityMajor, 75, major) USE(ComputeCapabilityMinor, 76, minor)               \
    USE(MaxSharedMemoryPerMultiprocessor, 81, sharedMemPerMultiprocessor)                       \
    USE(MaxSharedMemoryPerBlockOptin, 97, sharedMemPerBlockOptin)
#define SIM_NUMBER(name, number, property) cudaDevAttr##name = number,
enum cudaDeviceAttr { SIM_ATTRIBUTES(SIM_NUMBER) };
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    const cudaDeviceProp has = sim_properties();
#define SIM_GIVEN(name, number, property) \
    if (attribute == number) return *value = int(has.property), cudaSuccess;
    SIM_ATTRIBUTES(SIM_GIVEN)
    return sim_error(cudaErrorNotSupported);
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F, int threads,
                                                          size_t shared_bytes) {
    if (threads < 1 || threads > 1024) return sim_error(cudaErrorInvalidValue);
    const SimDevice& gpu = *sim_device();
    size_t each = shared_bytes + size_t(gpu.shared_reserved);
    int fit = shared_bytes > size_t(gpu.shared_optin) ? 0 : each ? int(gpu.shared_bytes / each) : 32;
    int by_threads = int(gpu.threads) / ((threads + 31) / 32 * 32);
    // Registers are not known here. A kernel that starts as many blocks as the GPU holds has to get them all.
    if (fit >= by_threads) fit = std::min(by_threads, std::max(1, kSimMostBlocks / int(gpu.sms)));
    return *blocks = std::min(int(gpu.blocks), fit), cudaSuccess;
}
template <typename F>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F kernel,
                                               size_t shared_bytes = 0, int limit = 0) {
    *block = limit > 0 ? std::min(limit, 1024) : 1024;
    auto error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(grid, kernel, *block, shared_bytes);
    return *grid *= int(sim_device()->sms), error;
}
struct cudaFuncAttributes {
    size_t sharedSizeBytes = 0, constSizeBytes = 0, localSizeBytes = 0;
    int maxThreadsPerBlock = 1024, numRegs = 0, maxDynamicSharedSizeBytes = 48 << 10,
        ptxVersion = int(sim_device()->sm), binaryVersion = int(sim_device()->sm);
};
template <typename F>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, F*) { return *of = {}, cudaSuccess; }
template <typename F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute attribute, int value) {
    return sim_set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// ---- memory -------------------------------------------------------------------------------
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
    return sim_malloc((void**)pointer, bytes, 1);
}
// Memory that the host accesses too. Its accesses are not seen, so the memory counts as written.
#define SIM_HOST_MALLOC(name)                                                                   \
    template <typename T>                                                                       \
    cudaError_t name(T** pointer, size_t bytes, unsigned = 0) {                                 \
        return sim_malloc((void**)pointer, bytes, 3);                         \
    }
SIM_HOST_MALLOC(cudaMallocManaged)
SIM_HOST_MALLOC(cudaMallocHost)
SIM_HOST_MALLOC(cudaHostAlloc)
template <typename T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t) {
    return cudaMalloc(pointer, bytes);
}
template <typename T>
cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width, size_t height) {
    return cudaMalloc(pointer, (*pitch = (width + 511) / 512 * 512) * height);
}
template <typename T>
cudaError_t cudaHostGetDevicePointer(T** pointer, void* host, unsigned) {
    return *pointer = static_cast<T*>(host), cudaSuccess;
}
inline cudaError_t cudaHostRegister(void*, size_t, unsigned) {
    return sim_error(cudaErrorNotSupported);  // kernels cannot access ordinary host memory
}
inline cudaError_t cudaHostUnregister(void*) { return sim_error(cudaErrorNotSupported); }
inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    return sim_free_async(pointer, stream), cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return *free = *total = size_t(sim_device()->memory_bytes), cudaSuccess;
}
// Inlined, so that the runtime's CALLER is a line of the kernel's file.
#define SIM_COPY __forceinline__ cudaError_t
SIM_COPY cudaMemset(void* to, int value, size_t bytes) {
    return sim_fill(to, 0, value, bytes, 1, nullptr);
}
SIM_COPY cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr) {
    return sim_fill(to, 0, value, bytes, 1, stream);
}
SIM_COPY cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
    return sim_fill(to, pitch, value, width, height, nullptr);
}
SIM_COPY cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                         cudaStream_t stream = nullptr) {
    return sim_copy(to, 0, from, 0, bytes, 1, stream);
}
SIM_COPY cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return sim_copy(to, 0, from, 0, bytes, 1, nullptr, 1);
}
SIM_COPY cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                      size_t height, cudaMemcpyKind) {
    return sim_copy(to, to_pitch, from, from_pitch, width, height, nullptr, 1);
}
template <typename T>
SIM_COPY cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                                 cudaStream_t stream = nullptr) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return sim_error(cudaErrorInvalidValue);
    return cudaMemcpyAsync((char*)&symbol + offset, from, bytes, kind, stream);
}
template <typename T, typename... A>
SIM_COPY cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, const A&... more) {
    cudaError_t error = cudaMemcpyToSymbolAsync(symbol, from, bytes, more...);
    return sim_stream_synchronize(nullptr), error;
}
template <typename T>
SIM_COPY cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                              cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return sim_error(cudaErrorInvalidValue);
    return cudaMemcpy(to, (const char*)&symbol + offset, bytes, kind);
}
template <typename T>
cudaError_t cudaGetSymbolAddress(void** pointer, T& symbol) {
    return *pointer = (void*)&symbol, cudaSuccess;
}

// ---- less common functions -----------------------------------------------------------------
SIM_COPY cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                           size_t width, size_t height, cudaMemcpyKind,
                           cudaStream_t stream = nullptr) {
    return sim_copy(to, to_pitch, from, from_pitch, width, height, stream);
}
SIM_COPY cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                           cudaStream_t stream = nullptr) {
    return sim_fill(to, pitch, value, width, height, stream);
}
template <typename T>
SIM_COPY cudaMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                   cudaMemcpyKind kind = cudaMemcpyDeviceToHost,
                                   cudaStream_t stream = nullptr) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return sim_error(cudaErrorInvalidValue);
    return cudaMemcpyAsync(to, (const char*)&symbol + offset, bytes, kind, stream);
}
template <typename T>
cudaError_t cudaGetSymbolSize(size_t* bytes, const T&) { return *bytes = sizeof(T), cudaSuccess; }
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s = nullptr, unsigned = 0) {
    return cudaEventRecord(e, s);
}
inline cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
inline cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) { return *p = 0, cudaSuccess; }
inline cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned* f) { return *f = 0, cudaSuccess; }
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) { return *value = 1024, cudaSuccess; }
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte,
                           cudaSharedMemBankSizeEightByte };
SIM_NOTHING_TO_DO(cudaDeviceSetSharedMemConfig, cudaSharedMemConfig)
template <typename F>
SIM_NOTHING_TO_DO(cudaFuncSetSharedMemConfig, F*, cudaSharedMemConfig)
enum cudaMemoryAdvise { cudaMemAdviseSetReadMostly = 1, cudaMemAdviseUnsetReadMostly,
                        cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation,
                        cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy };
template <typename... A>
SIM_NOTHING_TO_DO(cudaMemAdvise, const A&...)
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, F kernel,
                                                                   int threads, size_t bytes,
                                                                   unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, bytes);
}
