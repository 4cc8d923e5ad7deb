// The runtime's data: the simulated GPU's limits, buffers, cells, fibers, launches.
#pragma once
#define SIM_RUNTIME
#include "cublas_v2.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#define SIM_TLS __attribute__((tls_model("initial-exec")))  // read it without a call
#define CALLER uintptr_t(__builtin_return_address(0))  // in the kernel, or in host code
__thread uint3 threadIdx SIM_TLS, blockIdx SIM_TLS;
__thread dim3 blockDim SIM_TLS, gridDim SIM_TLS;
extern "C" { __thread char* sim_dynamic_array; }  // an `extern __shared__` outside of functions

namespace {
constexpr size_t kStack = 64 << 10;          // bytes of a CUDA thread's stack
const size_t kPage = size_t(sysconf(_SC_PAGESIZE));
constexpr size_t kGuard = 1 << 20;           // unmapped bytes below each stack
constexpr size_t kGap = size_t(1) << 30;     // unmapped bytes between two buffers
constexpr size_t kRegion = size_t(1) << 40;  // address space for all buffers
constexpr size_t kConstants = kRegion / 4;   // and after it, for `__constant__` variables
constexpr size_t kSharedSpan = 512 << 10;    // address space for one block's shared arrays
constexpr size_t kRedZone = 128;             // poisoned bytes after each shared array
constexpr int kLog = 1024;                   // entries that a lane logs before its warp is counted
constexpr int kHeld = 256;                   // full logs for which a lane waits for lanes behind it
constexpr unsigned kRelief = 1 << 11;        // reads of one place after which a block seems to wait
constexpr int kMostUntilSwitch = 64;                // accesses before a switch, at most (schedule > 0)
constexpr size_t kShadow = size_t(2) << 30;  // bytes of cells that all buffers may have
constexpr size_t kFindings = 200;            // distinct findings that are kept
constexpr int kTicks = 4;                    // clock ticks without a finished block: a stall

// The simulated GPU's limits are an H200's.
constexpr int kMaxThreads = 1024, kSharedDefault = 48 << 10, kSharedOptIn = 227 << 10;

enum class Kind : uint8_t { load, store, atomic };
const char* verb(Kind kind) {
    return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
}

struct Mark {  // one access, as a cell stores it
    uint32_t block;   // its number, modulo 2^32
    uint16_t launch;  // 0: no access yet
    uint16_t site;
    uint32_t phase;   // how many barriers the block had passed
    uint16_t stamp;   // how many warp operations the warp had passed since
    uint16_t thread : 10, mask : 4, atomic : 1, bulk : 1;  // bulk: by the copy engine
};
struct alignas(64) Cell {  // the shadow of one 4-byte word; masks stand for its bytes
    Mark writer, reader[2];
    uint32_t owner;  // the block that the cell belongs to: what an older block stored is ignored
    uint8_t written, lock;
    uint16_t in_flight;  // the site of an asynchronous copy that has not completed
    // A shortcut for shared memory: in this era, a load by that warp at that stamp (or by any warp)
    // is correct, and would change nothing here.
    uint32_t good_era;
    uint16_t good_warp, good_stamp;
};
constexpr uint16_t kAnyWarp = 0xffff;

// The use of a buffer: read only; not written yet; written; shared with the host, like managed and
// pinned memory; a `__constant__` variable.
enum Use : int { kInput, kFresh, kFilled, kHosts, kConstant };
struct Buffer {
    std::string name;
    uintptr_t base;
    size_t bytes;
    int use;
    const unsigned* shape;   // see Array
    Cell* cells;             // of its words; null if it is only read
    uint16_t* launch_seen;   // by 32-byte sector: the launch that accessed it last
    std::vector<std::pair<uintptr_t, uintptr_t>> by_host;  // ranges that the host wrote
    size_t hidden = 0;       // its bytes while it is hidden, see sim_hide
    bool writable() const { return use != kInput && use != kConstant; }
    bool host_wrote(uintptr_t address) const {
        for (auto& [from, to] : by_host)
            if (address >= from && address < to) return true;
        return false;
    }
};

struct Counters {  // in the order of COUNTERS, and then _MORE_COUNTERS, of ../trace.py
    uint64_t global_load_requests, global_load_sectors, global_store_requests,
        global_store_sectors, shared_requests, shared_wavefronts, atomics, barriers, launches,
        library_bytes, block_sectors, launch_sectors, fresh_outputs, library_flops, library_once;
    uint64_t& operator[](size_t i) { return reinterpret_cast<uint64_t*>(this)[i]; }
    uint64_t operator[](size_t i) const { return reinterpret_cast<const uint64_t*>(this)[i]; }
    void add(const Counters& other, uint64_t times = 1);
};

constexpr size_t kCounters = sizeof(Counters) / 8;
void Counters::add(const Counters& other, uint64_t times) {
    for (size_t i = 0; i < kCounters; ++i) (*this)[i] += other[i] * times;
}

struct Stats {  // the counts of one instruction in one of the two memories
    uint64_t requests, units, ideal_units, lanes;
    const char* array;  // the one it accessed; several: ""
    void add(const Stats& s) {
        requests += s.requests, units += s.units, ideal_units += s.ideal_units, lanes += s.lanes;
        touch(s.array);
    }
    Stats times(double weight) const {
        auto scale = [&](uint64_t n) { return uint64_t(double(n) * weight + 0.5); };
        return {scale(requests), scale(units), scale(ideal_units), scale(lanes), array};
    }
    void touch(const char* name) {
        if (name) array = !array || !strcmp(array, name) ? name : "";
    }
};
struct Site {  // one load or store instruction of the kernel
    uintptr_t pc = 0;
    uintptr_t low = 0;  // the buffer or array that it accessed last
    size_t reach = 0;   // from there to the last valid address
    Cell* cells = nullptr;  // of that buffer or array
    bool fresh = false, output = false;  // is it uninitialised at first? is it y?
    bool before_atomic = false;  // a load that precedes an atomic on the same address
    uint16_t bytes = 0, buffer = 0;
    Kind kind = Kind::load;
    Stats stats[2] = {};  // global, shared
};

struct Access {
    uint64_t bits;
    Access() = default;
    Access(uintptr_t address, uint16_t site) : bits(address | uint64_t(site) << 48) {}
    uintptr_t address() const { return bits & 0xffffffffffff; }
    uint16_t site() const { return uint16_t(bits >> 48); }
};
// Site 0 is no instruction. Its "address" is where in the code (from g_code) the thread jumped
// back, and how many more times (times kAgain); or called a function (+ kEnters); or kLeaves, a return.
constexpr uintptr_t kEnters = uintptr_t(1) << 47, kLeaves = uintptr_t(1) << 46;
constexpr uintptr_t kAgain = uintptr_t(1) << 32;

struct Array {  // a __shared__ array of the block
    const char* name;
    const void* declaration;
    size_t bytes;
    char* base;
    const unsigned* shape;  // bytes of an element, extents, 0; null: unknown
};

struct CheckedAccess {  // one access, as the shadow checks it
    uintptr_t address;
    unsigned bytes;
    Kind kind;
    bool ordered, global;  // ordered: atomic or volatile; not global: shared memory
    bool fresh, output;    // see Site
    uint16_t site;
};

struct Copy {  // an asynchronous copy of one thread
    char* to;
    const char* from;
    unsigned bytes, zeros, batch;
    uintptr_t pc;
};

enum class State : uint8_t {
    fresh, ready, at_barrier, at_warp, at_mbarrier, at_activemask, log_full, done
};

struct Fiber {
    State state;
    void* stack_pointer;
    char* stack;
    uint3 index;
    int logged;
    int depth;           // depth of function calls at the start of its log
    int calls;           // the same now
    uintptr_t called_from[8];  // return addresses of the outermost calls
    uintptr_t step;      // the current basic block of code,
    bool still;          // in which it has accessed nothing yet
    uintptr_t waits_at;  // the code address of the operation that it waits at
    unsigned active;     // __activemask's answer
    unsigned batch;      // the open batch of asynchronous copies
    uintptr_t loaded;    // the address with a cell that it loaded last,
    uint16_t loaded_by;  // and the site of that load
    bool fenced;         // it called __threadfence: the next atomic publishes
    uint32_t released;   // when it published its accesses by an atomic
    uint32_t acquired;   // when it last read, by an atomic, what others published
    bool acquires;       // it performs the atomic now
    uint32_t proxy_phase;  // when it last fenced its stores for the asynchronous proxy
    uint16_t proxy_stamp;
};

struct Group {  // lanes of a warp that wait for one warp operation
    unsigned mask, arrived;
    void (*step)(void**, unsigned);
};
struct Warp {
    void* arguments[32];
    std::vector<Group> gathering;  // their masks are disjoint
    // What happened up to stamp `all_known` is ordered before what any lane does now; up to
    // known[l][m], of lane m, before what lane l does.
    uint16_t stamp = 1, all_known = 0;
    std::vector<uint16_t> known;  // 32 x 32, after some lanes synchronized without others
    int held = 0;  // how often in a row a lane could not be counted because others were behind
};

struct Launch {
    const char* name;
    uint16_t number;
    uint16_t previous = 0;  // the previous launch, if this one may begin before that one ends
    dim3 grid, block, previous_grid, previous_block;
    size_t shared_bytes;
    int shared_limit;
    void (*body)(void*);
    void* context;
    uint64_t blocks, runs;  // blocks of the grid, and how many of them run
    std::vector<uint64_t> chosen;  // their numbers, if not all run
    double weight = 1;             // how many blocks each of them stands for
    std::vector<Counters> counted;  // by block, if not all run
    std::atomic<uint64_t> next{0};
    uint64_t ended_before = 0;  // blocks that had ended before this launch
    std::atomic<size_t> static_bytes{0};
    std::mutex lock;
    // By blocks: in which phase, and when, one of its threads published; see Fiber.
    std::unordered_map<uint32_t, std::vector<std::pair<uint32_t, uint32_t>>> released;
    std::vector<std::thread> others;  // workers other than the first
    uint3 block_of(uint64_t number) const { return index(number, grid); }
    uint3 thread_of(unsigned i) const { return index(i, block); }
    static uint3 index(uint64_t i, const dim3& in) {
        return {unsigned(i % in.x), unsigned(i / in.x % in.y), unsigned(i / in.x / in.y)};
    }
};

// Returns private memory that costs nothing until it is accessed; null if there is none.
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
void* reserve(size_t bytes, int protection = PROT_READ | PROT_WRITE) {
    void* memory = mmap(nullptr, bytes, protection, kPrivate, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

uintptr_t g_region = 0;
size_t g_region_used = kGap, g_constants_used = kRegion + kGap / 2;
std::vector<Buffer> g_buffers;
Counters g_counters;
std::mutex g_lock;
int g_threads = 1, g_report = 2;
bool g_trace = true, g_faulted = false;
bool g_host = false;                 // host code runs, see Opened; and
cudaStream_t g_stream = nullptr;     // the stream that it was given
unsigned g_schedule = 0;
uint16_t g_launch = 0;               // the number of the latest launch
bool g_dependent = false;            // the next launch may begin before it ends
std::atomic<uint32_t> g_clock{0};    // of fences
size_t g_shadow_used = 0;
Cell* const kUncounted = reinterpret_cast<Cell*>(64);  // of constants, whose traffic is not counted
bool in_buffers(uintptr_t address) { return address - g_region < kRegion + kConstants; }
uint64_t g_sample = 0;               // blocks of a launch that run; 0: all
uint64_t g_sample_seed = 0;
struct {                             // the requests of one warp (-1: all of its block) are written
    bool on = false;                 // to the report, and only that block runs
    uint3 block{};
    int warp = 0;
    size_t left = 0;                 // requests that may still be written
    std::set<std::string> kernels;   // kernels seen: only the first launch of each counts
    std::string text;
} g_record;
std::vector<uintptr_t> g_pcs(1);     // of the sites, which have the same numbers in all workers
std::unordered_map<uintptr_t, uint16_t> g_site_of;
std::vector<Site> g_sites;           // their totals
std::set<std::string> g_names;       // of arrays
uintptr_t g_code = 0;                // where the kernel's library was loaded, and
size_t g_code_bytes = 0;             // how many bytes its code has
std::vector<uint64_t> g_steps;       // how often threads entered each basic block: see steps
std::atomic<uint64_t> g_blocks_ended{0};  // of all launches
std::atomic<const Launch*> g_running{nullptr};
struct {                             // see time_is_up
    double until = 0;                // by the monotonic clock
    uint64_t ended = 0;              // g_blocks_ended at the last tick, and
    int still = 0;                   // how many ticks ago that was
} g_deadline;
std::atomic<int> g_os_threads{0};
constexpr int kOthers = 4 * 132, kCrowd = 16;  // more workers: as if an SM held four blocks
pthread_t g_os_thread[kOthers];
cudaError_t g_error = cudaSuccess;
pid_t g_process = 0;                 // this one; the kernel's file may have forked it
std::string g_null;                  // a text: which arguments of conv2d are null
std::unordered_map<const void*, int> g_shared_opt_in;
uintptr_t g_library_call = 0;        // where the host called the library that runs now, on
cudaStream_t g_library_stream = nullptr;

struct Worker;
__thread Worker* t_worker SIM_TLS = nullptr;  // set while a fiber of this OS thread runs

struct Other {  // the second access of a race
    uintptr_t pc = 0;
    uint3 block{}, thread{};
};
}  // namespace
