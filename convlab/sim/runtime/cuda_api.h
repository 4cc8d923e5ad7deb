// What a kernel calls (see ../include/sim.h), and the CUDA runtime API.
extern "C" {
void* sim_shared(const char* name, const void* declaration, size_t bytes, const unsigned* shape) {
    return t_worker->array(name, declaration, bytes, shape);
}
void sim_fence() {
    if (t_worker) t_worker->fibers[t_worker->current].fenced = true;
}
void sim_copy_async(void* to, const void* from, size_t bytes, size_t zeros) {
    t_worker->copy(static_cast<char*>(to), static_cast<char*>(const_cast<void*>(from)),
                   unsigned(bytes), unsigned(zeros), uintptr_t(__builtin_return_address(0)));
}
void sim_copy_commit() { ++t_worker->fibers[t_worker->current].batch; }
void sim_copy_wait(unsigned newest) { t_worker->wait(newest); }
void* sim_dynamic_shared() { return sim_dynamic_array; }
int sim_barrier(int predicate, int* how_many) {
    return t_worker->barrier(predicate, how_many, uintptr_t(__builtin_return_address(0)));
}
void sim_collective(unsigned mask, void (*step)(void**, unsigned), void* argument) {
    t_worker->collective(mask, step, argument, uintptr_t(__builtin_return_address(0)));
}
void sim_stray_shuffle(int source, unsigned came) {
    report(false, "shuffle outside the mask", uintptr_t(__builtin_return_address(0)), {},
           "lane %d reads from lane %d, which takes no part (lanes 0x%08x do): undefined on a GPU",
           t_worker->current % 32, source, came);
}
unsigned sim_active_lanes() { return t_worker->active(uintptr_t(__builtin_return_address(0))); }
void sim_spin() {
    if (t_worker) t_worker->spin();
}
unsigned sim_lane() { return unsigned(t_worker->current % 32); }
void sim_atomic(const volatile void* address, unsigned bytes) {
    Worker* w = t_worker;
    if (!w) return;
    w->atomic(uintptr_t(address), bytes, uintptr_t(__builtin_return_address(0)));
}
void sim_trap() { fault("trap", uintptr_t(__builtin_return_address(0)), "__trap() was called"); }
void sim_assert_fail(const char* expression, const char*, unsigned line, const char*) noexcept {
    fault("assert", uintptr_t(__builtin_return_address(0)), "assert(%s) failed on line %u",
          expression, line);
}

// ---- the runtime API ------------------------------------------------------------------------
cudaError_t cudaGetLastError() { return std::exchange(g_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return g_error; }
cudaError_t sim_error(cudaError_t error) { return g_error = error; }
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        default: return "operation not supported on the simulator";
    }
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = kMaxThreads; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = kSharedDefault; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedOptIn; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrL2CacheSize: *value = 60 << 20; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        default: return g_error = cudaErrorNotSupported;
    }
    return cudaSuccess;
}
cudaError_t sim_set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > kSharedOptIn) {
        note(uintptr_t(__builtin_return_address(0)), "cudaFuncSetAttribute asks for %d bytes of "
             "dynamic shared memory: a block has at most %d", value, kSharedOptIn);
        return g_error = cudaErrorInvalidValue;
    }
    g_shared_opt_in[kernel] = value;
    return cudaSuccess;
}
cudaError_t sim_malloc(void** pointer, size_t bytes) {
    *pointer = sim_map("cudaMalloc", -1, 0, bytes, 1);
    return *pointer ? cudaSuccess : g_error = cudaErrorMemoryAllocation;
}
}
