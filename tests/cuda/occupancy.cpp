#include <cstddef>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int cc, limits[5], threads, registers, shared;
    while (scanf("%d %d %d %d %d %d %d %d %d", &cc, limits, limits + 1, limits + 2, limits + 3,
                 limits + 4, &threads, &registers, &shared) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = cc / 10, device.computeMinor = cc % 10, device.warpSize = 32;
        device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = limits[0];
        device.regsPerBlock = device.regsPerMultiprocessor = limits[1], device.numSms = 100;
        device.sharedMemPerBlock = 48 << 10, device.sharedMemPerMultiprocessor = limits[2];
        device.sharedMemPerBlockOptin = limits[3], device.reservedSharedMemPerBlock = limits[4];
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.numBlockBarriers = 1;
        kernel.maxDynamicSharedSizeBytes = limits[3];
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result{};
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state,
                                                            threads, shared);
        printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
    }
}
