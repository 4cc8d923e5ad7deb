// The runtime's data types: limits of the simulated GPU, buffers, cells, fibers, launches.
#pragma once
#define SIM_RUNTIME
#include "cublas_v2.h"
#include "order_types.h"
#include "sim_device.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#define SIM_TLS __attribute__((tls_model("initial-exec")))  // a read needs no function call
#define CALLER uintptr_t(__builtin_return_address(0))  // an address in the kernel or in host code
__thread uint3 threadIdx SIM_TLS, blockIdx SIM_TLS;
__thread dim3 blockDim SIM_TLS, gridDim SIM_TLS;
extern "C" { __thread char* sim_dynamic_array; }  // of an `extern __shared__` outside functions

namespace {
constexpr size_t kStack = 64 << 10;          // bytes of a CUDA thread's stack
// Stacks begin at different cache lines of a page: at the same ones, they would displace one another
// from the cache. `kColors` bytes are the room for that, and from one stack to the next are kColor.
constexpr size_t kColors = 4 << 10, kColor = 7 * 64, kStackRoom = kStack + kColors;
const size_t kPage = size_t(sysconf(_SC_PAGESIZE));
constexpr size_t kGuard = 1 << 20;           // unmapped bytes below each stack
constexpr size_t kGap = size_t(1) << 30;     // unmapped bytes between two buffers
constexpr size_t kRegion = size_t(1) << 40;  // address space for all buffers
constexpr size_t kConstants = kRegion / 4;   // after it: address space for `__constant__` variables
constexpr size_t kSharedSpan = 512 << 10;    // address space for one block's shared arrays
constexpr size_t kRedZone = 128;             // poisoned bytes after each shared array
constexpr int kLog = 1024;                   // entries of a lane's log
// From one lane's log to the next, in entries: one cache line more than a log. At a distance of a power
// of two, the same entries of all lanes would be in one set of the cache, and displace one another.
constexpr size_t kLogPitch = kLog + 64 / 8;
constexpr int kHeld = 256;                   // full logs for which a lane waits for lanes behind it
constexpr unsigned kRelief = 1 << 11;        // polls of one address before another block is started
constexpr unsigned kPatience = 1 << 7;       // polls of one address before another worker's turn
constexpr int kMostUntilSwitch = 64;         // most accesses between two switches (schedule > 0)
constexpr size_t kShadow = size_t(2) << 30;  // most bytes of cells for all buffers together
constexpr size_t kFindings = 200;            // most findings that are reported
constexpr int kTicks = 4;                    // clock ticks in the time of a stall

// The limits of the simulated GPU, an H200.
constexpr int kMaxThreads = 1024, kSharedDefault = 48 << 10;

enum class Kind : uint8_t { load, store, atomic };
// How an access is made, in a set of bits; the others are in ../include/sim.h.
constexpr unsigned kVolatile = sim::kVolatile, kOfBlock = sim::kOfBlock;
const char* verb(Kind kind) {
    return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
}

// The same as the start of a sentence about an access.
const char* access_to(Kind kind) {
    return kind == Kind::load ? "load of" : kind == Kind::store ? "store to" : "atomic on";
}

struct Mark {  // one access, as a cell stores it
    uint32_t block;   // the block's number, modulo 2^32
    uint16_t launch;  // 0: there was no access yet
    uint16_t site;
    uint32_t phase;   // how many barriers the block had passed
    uint16_t stamp;   // how many warp operations the warp had executed in this phase
    // `sync`: the access may synchronize threads (see Worker::synchronizes). `bulk`: by a bulk copy.
    uint16_t thread : 10, mask : 4, sync : 1, bulk : 1;
};
struct alignas(64) Cell {  // the shadow of one 4-byte word; each bit of a mask is a byte
    Mark writer, reader[2];
    uint32_t owner;  // the block that uses the cell; stores of earlier blocks do not count
    uint8_t written, lock;
    uint16_t in_flight;  // the site of an asynchronous copy that has not completed
    // For a buffer, while blocks run in parallel: the block that accessed the word in this launch,
    // whether several did, and whether one of them stored.
    uint32_t by_block;
    uint16_t by_launch;
    bool by_several, stored;
};
// A shortcut for a word of shared memory: in this era, its cell has already checked a load by this
// warp at this stamp (or by any warp). Another such load is correct and would not change the cell.
// 0: no load is good.
constexpr unsigned kAnyWarp = 0xffff;
inline uint64_t good_load(uint32_t era, unsigned warp, unsigned stamp) {
    return uint64_t(era) << 32 | warp << 16 | (warp == kAnyWarp ? 0 : stamp);
}

// How a buffer is used: only read; not written yet; written; accessed by the host too (managed or
// pinned memory); a `__constant__` variable.
enum Use : int { kInput, kFresh, kFilled, kHosts, kConstant };
struct Buffer {
    std::string name;
    uintptr_t base;
    size_t bytes;
    int use;
    const unsigned* shape;   // see Array
    Cell* cells;             // one for each word; null if the buffer is not checked for races
    uint16_t* launch_seen;   // for each 32-byte sector, the launch that accessed it last
    uint16_t* launch_split;  // ... and the launch in which a block last stored a part of it
    std::vector<std::pair<uintptr_t, uintptr_t>> by_host;  // ranges that the host wrote
    size_t hidden = 0;       // its size in bytes while sim_hide hides it
    bool writable() const { return use != kInput && use != kConstant; }
    bool host_wrote(uintptr_t address) const {
        for (auto& [from, to] : by_host)
            if (address >= from && address < to) return true;
        return false;
    }
};
// Whether a buffer is what the kernel computes: y, or a gradient.
inline bool is_output(const Buffer& b) {
    return b.name == "y" || b.name == "dx" || b.name == "dw";
}

struct Counters {  // in the order of COUNTERS and _MORE_COUNTERS in ../trace.py
    uint64_t global_load_requests, global_load_sectors, global_store_requests,
        global_store_sectors, shared_requests, shared_wavefronts, atomics, barriers, launches,
        library_bytes, block_sectors, launch_sectors, fresh_outputs, library_flops, library_once,
        split_sectors, tensor_flops;
    uint64_t& operator[](size_t i) { return reinterpret_cast<uint64_t*>(this)[i]; }
    uint64_t operator[](size_t i) const { return reinterpret_cast<const uint64_t*>(this)[i]; }
    void add(const Counters& other, uint64_t times = 1);
};

constexpr size_t kCounters = sizeof(Counters) / 8;
void Counters::add(const Counters& other, uint64_t times) {
    for (size_t i = 0; i < kCounters; ++i) (*this)[i] += other[i] * times;
}

struct Stats {  // the counts of one instruction in global or in shared memory
    uint64_t requests, units, ideal_units, lanes;
    uint64_t partial;   // sectors of which a block stored only a part (see count_stored)
    const char* array;  // the array that it accessed; "" if there are several
    void add(const Stats& s) {
        requests += s.requests, units += s.units, ideal_units += s.ideal_units, lanes += s.lanes;
        partial += s.partial;
        touch(s.array);
    }
    Stats times(double weight) const {
        auto scale = [&](uint64_t n) { return uint64_t(double(n) * weight + 0.5); };
        return {scale(requests), scale(units), scale(ideal_units), scale(lanes), scale(partial),
                array};
    }
    void touch(const char* name) {
        if (name) array = !array || !strcmp(array, name) ? name : "";
    }
};
// What the whole process keeps about an instruction; index: Site's.
struct SiteKind {
    Kind kind;
    bool is_volatile;
    bool of_block;  // an atomic of block scope
};

struct Site {  // one load or store instruction of the kernel
    uintptr_t pc = 0;
    uintptr_t low = 0;  // the start of the buffer or array that it accessed last
    size_t reach = 0;   // the largest valid offset from there
    Cell* cells = nullptr;  // the cells of that buffer or array
    bool fresh = false, output = false;  // is it uninitialised at first? is it y?
    bool before_atomic = false;  // it loads the word that the thread's next atomic updates
    bool before_swap = false;    // ... and that atomic is a compare-and-swap
    const char* operation = nullptr;  // no access, but this operation, as `note` enters it
    uint16_t bytes = 0, buffer = 0;
    Kind kind = Kind::load;
    Stats stats[2] = {};  // global, shared
};

struct Access {  // an entry of a lane's log
    uint64_t bits;
    Access() = default;
    Access(uintptr_t address, uint16_t site) : bits(address | uint64_t(site) << 48) {}
    uintptr_t address() const { return bits & 0xffffffffffff; }
    uint16_t site() const { return uint16_t(bits >> 48); }
};
// An entry with site 0 is a step of the control flow. Its "address" is one of these:
//   the code offset (from g_code) of a backward jump, plus kAgain for each repetition;
//   the code offset of a function call, plus kEnters;
//   kLeaves, a return.
constexpr uintptr_t kEnters = uintptr_t(1) << 47, kLeaves = uintptr_t(1) << 46;
constexpr uintptr_t kAgain = uintptr_t(1) << 32;

struct Array {  // a __shared__ array of the block
    const char* name;
    const void* declaration;
    size_t bytes;
    char* base;
    const unsigned* shape;  // bytes of an element, extents, 0; null: unknown
};

struct CheckedAccess {  // one access that the shadow checks
    uintptr_t address;
    unsigned bytes;
    Kind kind;
    bool sync, global;  // sync: see Mark. If not global, it is in shared memory
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
    int logged;          // entries in its log
    int depth;           // depth of function calls at the start of its log
    int calls;           // depth of function calls now
    uintptr_t called_from[8];  // return addresses of the outermost calls
    uintptr_t step;      // the basic block that it executes
    bool still;          // it has accessed nothing in that basic block yet
    uintptr_t waits_at;  // the code address of the operation that blocks it
    uintptr_t mbarrier;  // the mbarrier that blocks it
    unsigned active;     // the result of its __activemask
    unsigned batch;      // the open batch of asynchronous copies
    // The addresses (with a cell) that it loaded last, and the sites of these loads.
    static constexpr unsigned kLoads = 4;
    uintptr_t loaded[kLoads];
    uint16_t loaded_by[kLoads];
    unsigned loads;
    std::shared_ptr<const Fence> fence;  // its last __threadfence
    uint16_t signals_by;  // the site of the first volatile store or atomic after it; 0: none
    struct {
        uintptr_t word;
        const Fence* fence;
        uint32_t phase;
    } released;          // its last release
    Knowledge knows;     // which releases are ordered before what it does now
    uintptr_t polled_at;  // the address that it polls
    unsigned polls;       // how often in a row it has read it
    uint32_t proxy_phase;  // phase and stamp of its last fence_proxy_async
    uint16_t proxy_stamp;
};

struct Group {  // lanes of a warp that wait in one warp operation
    unsigned mask, arrived;
    void (*step)(void**, unsigned);
};
struct Warp {
    void* arguments[32];
    std::vector<Group> gathering;  // with disjoint masks
    // Everything up to stamp `all_known` is ordered before what any lane does now. What lane m did
    // up to stamp known[l][m] is ordered before what lane l does now.
    uint16_t stamp = 1, all_known = 0;
    std::vector<uint16_t> known;  // 32 x 32; empty until some lanes synchronize without the others
    unsigned ended = 0;  // the lanes that have ended
    int held = 0;  // how often in a row a lane waited with a full log for lanes behind it
};

struct Launch {
    const char* name;
    uint16_t number;
    uint16_t previous = 0;  // the launch that may still run when this one begins; 0: none
    dim3 grid, block;
    bool after_all = true;         // all earlier operations are ordered before this launch
    std::vector<uint32_t> before;  // else, of each stream, how many are; see streams.h
    size_t shared_bytes;
    int shared_limit;
    void (*body)(void*);
    void* context;
    uint64_t blocks, runs;  // blocks of the grid, and how many of them are simulated
    std::vector<uint64_t> chosen;  // the numbers of the simulated blocks; empty: all of them
    double weight = 1;             // how many blocks each simulated block represents
    std::vector<Counters> counted;     // for each of the chosen blocks
    std::vector<std::string> reaches;  // the same; see Worker::report_reach
    std::vector<Site> sites;           // the totals of its simulated blocks; see add_totals
    std::vector<uint64_t> steps;       // the same; see Worker::steps
    std::atomic<uint64_t> next{0};
    bool cooperative = false;          // all blocks run at the same time
    std::atomic<unsigned> cluster_x{1}, cluster_y{1}, cluster_z{1};  // blocks of a cluster
    uint64_t cluster_blocks() const { return uint64_t(cluster_x) * cluster_y * cluster_z; }
    // The number of the block that has a rank in a cluster.
    uint64_t block_in(const uint3& cluster, uint64_t rank) const {
        dim3 size{cluster_x, cluster_y, cluster_z};
        uint3 in = index(rank, size);
        uint64_t x = cluster.x * size.x + in.x, y = cluster.y * size.y + in.y, z = cluster.z * size.z + in.z;
        return x + grid.x * (y + grid.y * z);
    }
    // How many blocks, in the order in which they begin, contain a whole cluster.
    uint64_t blocks_with_a_cluster() const {
        if (!chosen.empty()) return cluster_blocks();
        return cluster_x + uint64_t(grid.x) * (cluster_y - 1 + uint64_t(grid.y) * (cluster_z - 1));
    }
    bool has_whole_clusters = true;  // whether all blocks of a cluster run, if one of them does
    bool asks_cluster = false;       // its block ends once the size of the clusters is known
    // Barriers of the whole grid (0) and of clusters (their number + 1): arrivals and the phase.
    struct Meeting { uint64_t arrived = 0, phase = 0; };
    std::unordered_map<uint64_t, Meeting> meetings;
    std::unordered_map<uint64_t, char*> shared_of;  // of the blocks of a cluster that run now
    uint64_t ended_before = 0;  // blocks that had ended before this launch
    bool undecided = false;     // the first block shows whether all blocks are watched
    uint64_t watched_run = 0;   // of `watched_of` blocks, so many are watched; 0: all blocks
    uint64_t watched_of = 0;
    uint64_t most_of_block = 0;  // after so many accesses a block is watched no more; 0: no limit
    // Runs of neighbouring blocks are watched, at equal distances. The first and the last blocks of
    // the grid are, and those next to number 65535.
    bool watches(uint64_t number) const {
        if (!watched_run || number % watched_of < watched_run) return true;
        return number + watched_run >= blocks || number - 0xfffe < 4;
    }
    std::atomic<size_t> static_bytes{0};
    std::mutex lock;
    bool serial = false;    // one block runs at a time; see Turns
    Turns turns;
    Synchronization synchronization;  // by words of buffers
    std::unordered_map<uint32_t, BlockOrder> orders;  // of each block
    std::vector<std::thread> others;  // workers other than the first
    uint3 block_of(uint64_t number) const { return index(number, grid); }
    uint3 thread_of(unsigned i) const { return index(i, block); }
    static uint3 index(uint64_t i, const dim3& in) {
        return {unsigned(i % in.x), unsigned(i / in.x % in.y), unsigned(i / in.x / in.y)};
    }
};

// Returns private memory, or null. Pages take no space until they are accessed.
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
SimDevice g_device{};                // the GPU that the simulator is
bool g_trace = true, g_faulted = false;
bool g_counts = true;                // with g_trace: are requests and operations counted?
std::atomic<uint64_t> g_sampled{0};  // how many accesses the blocks of a sample have made
uint64_t g_most_watched = 0;         // how many accesses of a launch are watched, about; 0: all
uint64_t g_most_threads = 0;         // the run ends before its launches start more threads; 0: no limit
uint64_t g_asked_threads = 0;        // how many threads the launches of this run have
bool g_in_part = false;              // some earlier launch, or this one, was watched in part
std::atomic<bool> g_cut{false};      // a block was watched only at its beginning
std::atomic<bool> g_synchronizes{false};  // in such a launch, threads executed atomics or fences
bool g_host = false;                 // host code runs (see Opened)
cudaStream_t g_stream = nullptr;     // the stream that conv2d was given
unsigned g_schedule = 0;
bool g_forgives = false;  // a read of shared memory that nothing wrote is a warning
// Each byte of new shared memory. As floats: NaN, or 3.4e38 in odd schedules.
int g_fill() { return g_schedule & 1 ? 0x7f : 0xff; }
uint16_t g_launch = 0;               // the number of the latest launch
bool g_unnumbered = false;           // there were more launches than numbers: no more are watched
bool g_cooperative = false;          // the next launch is cooperative
dim3 g_cluster;                      // the blocks of a cluster of the next launch
std::set<std::string> g_with_cluster_dims;  // the names of kernels with __cluster_dims__
bool g_dependent = false;            // the next launch may begin before the latest one ends
std::atomic<uint32_t> g_clock{0};    // the time of the last operation that synchronizes, a count
bool g_serial = false;               // in each launch one block runs at a time
bool g_unwatched = false;            // a buffer that kernels may write has no cells
size_t g_shadow_used = 0;
Cell* const kUncounted = reinterpret_cast<Cell*>(64);  // marks constants: traffic is not counted
bool in_buffers(uintptr_t address) { return address - g_region < kRegion + kConstants; }
uint64_t g_sample = 0;               // how many blocks of each launch are simulated; 0: all
uint64_t g_sample_seed = 0;
struct {                             // records the requests of one block, and simulates no other
    bool on = false;
    uint3 block{};
    int warp = 0;                    // of the block; -1: all warps
    size_t left = 0;                 // requests that may still be recorded
    std::set<std::string> kernels;   // kernels launched so far; only their first launch is recorded
    std::vector<std::string> notes;  // what the recorded operations other than accesses did
    std::string text;
} g_record;
std::vector<uintptr_t> g_pcs(1);     // code addresses of the sites; all workers number them alike
std::unordered_map<uintptr_t, uint16_t> g_site_of;
SiteKind g_site_kind[1 << 13];       // as many as Worker::kSites
std::vector<Site> g_sites;           // the totals of all workers
std::set<std::string> g_names;       // names of arrays
uintptr_t g_code = 0;                // where the kernel's library was loaded
size_t g_code_bytes = 0;             // the size of its code
std::vector<uint64_t> g_steps;       // how often threads entered each basic block (Worker::steps)
std::atomic<uint64_t> g_blocks_ended{0};  // of all launches
std::atomic<const Launch*> g_running{nullptr};
struct {                             // see time_is_up
    double until = 0;                // seconds of the monotonic clock
    double tick = 0, stall = 0;      // seconds between ticks, and without a finished block
    uint64_t ended = 0;              // g_blocks_ended at the last tick
    double used = 0;                 // CPU seconds of this process at the last tick
    double quiet = 0, total = 0;     // seconds at work: without a finished block, and in all
} g_deadline;
std::atomic<int> g_os_threads{0};
// The most additional workers of any GPU (see resident_blocks). With more than kCrowd of them, stacks share guard pages (see new_stack).
constexpr int kOthers = kSimMostBlocks, kCrowd = 16;
pthread_t g_os_thread[kOthers];
cudaError_t g_error = cudaSuccess;
pid_t g_process = 0;                 // this process; the kernel's file may fork another one
std::string g_null;                  // text: which arguments of conv2d are null
std::unordered_map<const void*, int> g_shared_opt_in;
uintptr_t g_library_call = 0;        // where the host called the library that runs now

struct Worker;
__thread Worker* t_worker SIM_TLS = nullptr;  // set while a fiber of this OS thread runs

struct Other {  // the second access of a race
    uintptr_t pc = 0;
    uint3 block{}, thread{};
};
}  // namespace
