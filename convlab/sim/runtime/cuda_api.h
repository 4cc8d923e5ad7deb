// The functions that a kernel calls (../include/sim.h), and the CUDA runtime API.
#pragma once
#include "graphs.h"
#include "host.h"
#include "launch.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <thread>

namespace {
// Returns a kernel's demangled name, with its template arguments; `name` if it is not known.
std::string instance(const char* name, const void* kernel) {
    Dl_info found;
    if (!kernel || !dladdr(kernel, &found) || found.dli_saddr != kernel) return name;
    char* text = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, nullptr);
    std::string whole = text ? text : found.dli_sname;
    free(text);
    if (!whole.rfind("void ", 0)) whole.erase(0, 5);
    size_t end = 0;
    for (int depth = 0; end < whole.size() && (depth || whole[end] != '('); ++end)
        depth += (whole[end] == '<') - (whole[end] == '>');
    return whole.substr(0, end);
}

// Checks a copy or fill of the runtime API. One that begins in a buffer must end in it.
void inside(const void* pointer, size_t bytes, bool store, uintptr_t pc) {
    auto at = uintptr_t(pointer);
    const Buffer* b = in_buffers(at) && bytes ? buffer_near(at) : nullptr;
    if (b && (at < b->base || at + bytes > b->base + b->bytes))
        fault("global out of bounds", pc, "copy or fill of %zu bytes at %s", bytes,
              place_outside(b->name, long(at - b->base), b->bytes, b->shape));
    if (b && store && b->use == kInput)
        fault("store to an input", pc, "copy or fill of %s: %s is an input, which conv2d may not "
              "write", place_of(at), b->name);
    if (b && store) sim_host_wrote(pointer, bytes);
}

void launch_at(uintptr_t pc, const sim::Config& config, const void* kernel, void (*body)(void*),
               void* context);
void fill_at(uintptr_t pc, void* to, size_t pitch, int value, size_t width, size_t rows,
             cudaStream_t stream);
void copy_at(uintptr_t pc, void* to, size_t to_pitch, const void* from, size_t from_pitch,
             size_t width, size_t rows, cudaStream_t stream, int waits);
}  // namespace

extern "C" {
void sim_launch(const sim::Config& config, const void* kernel, void (*body)(void*), void* context,
                size_t context_bytes) {
    uintptr_t pc = CALLER;
    auto later = [&] {
        std::string arguments(static_cast<char*>(context), context_bytes);
        return [=, dependent = std::exchange(g_dependent, false),
                cooperative = std::exchange(g_cooperative, false),
                cluster = std::exchange(g_cluster, dim3())](cudaStream_t stream) {
            sim::Config here = config;
            here.stream = stream;
            std::vector<std::max_align_t> copy(context_bytes / sizeof(std::max_align_t) + 1);
            std::memcpy(copy.data(), arguments.data(), context_bytes);
            g_dependent = dependent, g_cooperative = cooperative, g_cluster = cluster;
            launch_at(pc, here, kernel, body, copy.data());
        };
    };
    bool becomes_node = g_recorded || g_capture.graph;
    if (becomes_node && !t_worker && recorded(config.stream, later())) return;
    launch_at(pc, config, kernel, body, context);
}
}  // extern "C"

namespace {
void launch_at(uintptr_t pc, const sim::Config& config, const void* kernel, void (*body)(void*),
               void* context) {
    auto [grid, block, shared_bytes, stream, name] = config;
    bool dependent = std::exchange(g_dependent, false);
    bool cooperative = std::exchange(g_cooperative, false);
    dim3 cluster = std::exchange(g_cluster, dim3());
    if (t_worker)
        fault("launch in a kernel", pc, "a thread of a kernel launches %s; convlab supports "
              "launches from the host only, on the simulator and on a GPU", name);
    int limit = kSharedDefault;
    bool requested = false;
    // `kernel` is null for a template, because its instance is not known here.
    for (auto& [which, bytes] : g_shared_opt_in)
        if (which == kernel || !kernel) limit = std::max(limit, bytes), requested = true;
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (!threads || threads > kMaxThreads || block.z > 64 || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        report_refusal(pc, "grid (%u, %u, %u) of blocks of (%u, %u, %u) threads: a block has 1 to "
                       "%d threads, at most 64 in z; a grid has 1 to 2147483647 blocks in x, and "
                       "1 to 65535 in y and in z",
                       grid.x, grid.y, grid.z, block.x, block.y, block.z, kMaxThreads);
        g_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (shared_bytes > size_t(limit)) {
        report_refusal(pc, "%zu bytes of dynamic shared memory, but the kernel may use %d bytes: "
                       "request up to %d bytes with cudaFuncSetAttribute(kernel, "
                       "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)",
                       shared_bytes, limit, int(g_device.shared_optin));
        g_error = cudaErrorInvalidValue;
        return;
    }
    uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
    uint64_t resident = blocks_at_once(block, shared_bytes);
    if (cooperative && blocks > resident) {
        report_refusal(pc, "a cooperative launch of %lu blocks: all must run at the same time, and at most %lu do, with "
                       "%lu threads and %zu bytes of dynamic shared memory each", blocks, resident, threads,
                       shared_bytes);
        g_error = cudaErrorCooperativeLaunchTooLarge;
        return;
    }
    if (cooperative && blocks > kOthers && !(g_sample && g_sample < blocks))
        not_simulated(pc, text("a cooperative launch of more than %d blocks", kOthers));
    if (!cluster.x || !cluster.y || !cluster.z || grid.x % cluster.x || grid.y % cluster.y ||
        grid.z % cluster.z || uint64_t(cluster.x) * cluster.y * cluster.z > 16) {
        report_refusal(pc, "clusters of (%u, %u, %u) blocks in a grid of (%u, %u, %u): the grid must "
                       "be a multiple, and a cluster has 1 to 16 blocks", cluster.x, cluster.y,
                       cluster.z, grid.x, grid.y, grid.z);
        g_error = cudaErrorInvalidClusterSize;
        return;
    }
    g_asked_threads += blocks * block.x * block.y * block.z;
    if (g_most_threads && g_asked_threads > g_most_threads) {
        write_report(text("too many threads\t%lu\n", g_asked_threads));
        _exit(0);
    }
    if (!g_code) find_code(uintptr_t(body));
    Issued issued = issue(stream, pc, "launch", true, grid, block);
    Launch launch;
    launch.name = name, launch.number = issued.number;
    launch.grid = grid, launch.block = block;
    launch.before = issued.before, launch.after_all = issued.after_all;
    if (dependent && issued.previous) {
        launch.previous = issued.previous;
        Operation& mine = g_operations[launch.number];
        mine.previous = issued.previous;
        mine.still_runs = still_running(issued.previous);
    }
    launch.cooperative = cooperative;
    launch.cluster_x = cluster.x, launch.cluster_y = cluster.y, launch.cluster_z = cluster.z;
    launch.shared_bytes = shared_bytes;
    // A request is for dynamic memory: static arrays come on top, up to what a block may have.
    launch.shared_limit = requested ? int(g_device.shared_optin) : limit;
    launch.body = body, launch.context = context;
    launch.runs = launch.blocks = uint64_t(grid.x) * grid.y * grid.z;
    launch.ended_before = g_blocks_ended;
    choose(launch);
    if (!launch.runs && g_sample) return;
    Opened memory;
    launch.undecided = g_trace && g_most_watched && !g_sample && launch.runs >= 64;
    bool together = launch.cooperative || launch.cluster_blocks() > 1;
    if (g_trace && g_most_watched && !g_counts && launch.chosen.empty() && !together)
        launch.most_of_block = std::max(g_most_watched / launch.runs, kLeastOfBlock);
    g_running = &launch;
    ++g_counters.launches;
    launch.serial = g_serial || g_threads == 1 || launch.runs == 1 || (g_trace && g_unwatched);
    launch.counted.resize(launch.chosen.empty() ? 0 : launch.runs);
    launch.reaches.resize(launch.counted.size());
    launch.turns.add();
    if (!launch.undecided) start_workers(launch);
    run_worker(launch, 0);
    for (size_t i = 0;; ++i) {  // a running worker may start another one
        std::unique_lock<std::mutex> hold(launch.lock);
        if (i == launch.others.size()) break;
        std::thread other = std::move(launch.others[i]);
        hold.unlock();
        other.join();
    }
    g_os_threads = 0;
    g_running = nullptr;
    if (g_cut && !g_in_part) {
        g_in_part = true;
        write_report(text("in part\t%u\t1\n", launch.number));
    }
    add_totals(launch);
    if (g_sample) extrapolate(launch);
    write_report(text("launch\t%u,%u,%u\t%u,%u,%u\t%zu\t%zu\t%.400s\n", grid.x, grid.y, grid.z,
                      block.x, block.y, block.z, launch.static_bytes.load(), shared_bytes,
                      instance(name, kernel).c_str()));
}
}  // namespace

extern "C" {
void sim_fiber_start() {
    t_worker->launch->body(t_worker->launch->context);
    t_worker->leave(false);
}

void* sim_dynamic_shared() { return sim_dynamic_array; }
// Reports a shuffle from a lane that does not participate. Returns whether the lane gets the bits
// of a NaN (in odd schedules) instead of its own value.
bool sim_stray_shuffle(int source, unsigned participants) {
    if (!t_worker->abandoned)  // else the source lane ended at an error, which is reported
        report(false, "shuffle outside the mask", CALLER, {},
               "lane %d reads from lane %d, which does not participate (lanes 0x%08x do): the "
               "value is undefined on a GPU", t_worker->current % 32, source, participants);
    return g_schedule & 1;
}
void sim_spin() {
    if (t_worker) t_worker->spin(0);
}
unsigned sim_lane() { return unsigned(t_worker->current % 32); }
void sim_trap() { fault("trap", CALLER, "__trap() was called"); }
void sim_assert_fail(const char* expression, const char*, unsigned line, const char*) noexcept {
    fault("assert", CALLER, "assert(%s) failed on line %u", expression, line);
}

// The runtime API.
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
        case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
        case cudaErrorInvalidClusterSize: return "cluster misconfiguration";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        default: return "operation not supported on the simulator";
    }
}
cudaError_t sim_set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > g_device.shared_optin) {
        report_refusal(CALLER, "cudaFuncSetAttribute requests %d bytes of dynamic shared memory, "
                       "but a block has at most %d bytes on this GPU (%s)", value,
                       int(g_device.shared_optin), g_device.name);
        return g_error = cudaErrorInvalidValue;
    }
    g_shared_opt_in[kernel] = value;
    return cudaSuccess;
}
cudaError_t sim_fill(void* to, size_t pitch, int value, size_t width, size_t rows,
                     cudaStream_t stream) {
    uintptr_t pc = CALLER;
    auto work = [=](cudaStream_t s) { fill_at(pc, to, pitch, value, width, rows, s); };
    if (!recorded(stream, work)) work(stream);
    return cudaSuccess;
}
cudaError_t sim_copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                     size_t rows, cudaStream_t stream, int waits) {
    uintptr_t pc = CALLER;
    auto work = [=](cudaStream_t s) {
        copy_at(pc, to, to_pitch, from, from_pitch, width, rows, s, waits);
    };
    if (!recorded(stream, work)) work(stream);
    return cudaSuccess;
}
cudaError_t sim_malloc(void** pointer, size_t bytes, int access) {
    if (g_stream)
        report(false, "allocation", CALLER, {}, "conv2d allocates %zu bytes: a CUDA graph cannot "
               "capture an allocation, and each call takes a long time; request memory in conv2d_workspace",
               bytes);
    *pointer = sim_map("cudaMalloc", -1, 0, bytes, access);
    return *pointer ? cudaSuccess : g_error = cudaErrorMemoryAllocation;
}
void* sim_variable(const char* name, const void* image, size_t bytes, const unsigned* shape,
                   int use) {
    void* at = sim_map(name, -2, 0, bytes, use);
    if (!at) fault("memory", CALLER, "not enough memory for the variable %s", name);
    auto* from = static_cast<const char*>(image);
    bool all_zero = !*from && !memcmp(from, from + 1, bytes - 1);
    if (!all_zero) std::memcpy(at, from, bytes);
    g_buffers.back().shape = shape;
    return at;
}
cudaError_t cudaFree(void* pointer) {
    if (!pointer) return cudaSuccess;
    sim_device_synchronize();
    for (Buffer& b : g_buffers) {
        if (b.base != uintptr_t(pointer) || b.name != "cudaMalloc") continue;
        mmap(pointer, b.bytes, PROT_NONE, kPrivate | MAP_FIXED, -1, 0);
        b.name = "freed memory", b.bytes = 0;
        return cudaSuccess;
    }
    return g_error = cudaErrorInvalidValue;
}
}  // extern "C"

namespace {
void fill_at(uintptr_t pc, void* to, size_t pitch, int value, size_t width, size_t rows,
             cudaStream_t stream) {
    Opened memory(PROT_WRITE);
    Issued issued = issue(stream, pc, "fill", in_buffers(uintptr_t(to)));
    for (auto* row = static_cast<char*>(to); rows-- > 0; row += pitch) {
        inside(row, width, true, pc);
        enter_range(issued, row, width, Kind::store, pc);
        std::memset(row, value, width);
    }
}
void copy_at(uintptr_t pc, void* to, size_t to_pitch, const void* from, size_t from_pitch,
             size_t width, size_t rows, cudaStream_t stream, int waits) {
    bool on_device = in_buffers(uintptr_t(to)) && in_buffers(uintptr_t(from));
    Opened memory(PROT_WRITE);
    Issued issued = issue(stream, pc, "copy", on_device);
    if (waits && !on_device) host_waits_for(stream_of(stream));
    auto* row = static_cast<const char*>(from);
    for (auto* put = static_cast<char*>(to); rows-- > 0; put += to_pitch, row += from_pitch) {
        inside(put, width, true, pc), inside(row, width, false, pc);
        enter_range(issued, row, width, Kind::load, pc);
        enter_range(issued, put, width, Kind::store, pc);
        enter_constant(issued, put, row, width, pc);
        std::memcpy(put, row, width);
    }
}
}  // namespace
