// The simulator's runtime: CUDA threads as fibers, blocks over the cores, memory traffic counted.
//
//   launch    blocks are handed to one OS thread per core; a block runs to its end on one of them.
//   fiber     each thread of a block has a stack of its own and runs until it must wait: at a
//             barrier, at a warp operation, or because its access log is full. Then the next one
//             that can go on does. Nothing is preemptive.
//   schedule  number 0 is that order. In a higher one, threads also lose their turn before an access
//             now and then (where, the number decides), and in an odd one the last block and the
//             last thread come first. What a kernel computes may not depend on it.
//   hooks     the kernel is compiled with -fsanitize=thread, and the __tsan_* functions it calls
//             before each load and store are the ones at the end of this file.
//   warp      each lane logs its accesses, and where it jumped back; when no lane of the warp can
//             go on, the logs are walked in the order in which a GPU would run the lanes: those
//             that are least far in the code first, until the others are met. What lanes do at one
//             instruction at one time is one warp request, and its 32-byte sectors (global) or
//             wavefronts (shared: 32 banks of 4 bytes, equal words broadcast) are counted.
//   shadow    each word of shared memory, and of the buffers that a kernel may write, has a cell
//             that knows who wrote and read it last, and when: in which phase of the block (between
//             which barriers) and after which operation of the warp. Two accesses that nothing
//             orders are a race, whichever order they happened to come in.
//   finding   what a GPU would not forgive is written to the report, once for each line of source.
//             The thread ends there and the others go on, so that one run tells all.
#define SIM_RUNTIME
#include "cublas_v2.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <dlfcn.h>
#include <link.h>
#include <mutex>
#include <pthread.h>
#include <set>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/time.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#define SIM_TLS __attribute__((tls_model("initial-exec")))  // read without a call
__thread uint3 threadIdx SIM_TLS, blockIdx SIM_TLS;
__thread dim3 blockDim SIM_TLS, gridDim SIM_TLS;
extern "C" { __thread char* sim_dynamic_array; }  // an `extern __shared__` at file scope is this

namespace {

constexpr size_t kStack = 64 << 10;          // bytes of stack a CUDA thread has
const size_t kPage = size_t(sysconf(_SC_PAGESIZE));
constexpr size_t kGuard = 1 << 20;           // unmapped bytes below each stack
constexpr size_t kGap = size_t(1) << 30;     // unmapped bytes between two buffers
constexpr size_t kRegion = size_t(1) << 40;  // address space for all buffers
constexpr size_t kSharedSpan = 512 << 10;    // address space for one block's shared arrays
constexpr size_t kRedZone = 128;             // poisoned bytes after each shared array
constexpr int kLog = 1024;                   // entries that a lane logs before its warp is counted
constexpr int kHeld = 256;                   // full logs that a lane waits for those behind it
constexpr int kPatience = 64;                // accesses before a switch, at most (schedule > 0)
constexpr size_t kShadow = size_t(2) << 30;  // bytes of cells that all buffers may have
constexpr size_t kFindings = 200;            // lines that are told apart

// ---- the simulated GPU: an H200's limits ---------------------------------------------------
constexpr int kMaxThreads = 1024, kSharedDefault = 48 << 10, kSharedOptIn = 227 << 10;

enum class Kind : uint8_t { load, store, atomic };
const char* verb(Kind kind) {
    return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
}

struct Mark {  // one access, as a cell keeps it
    uint32_t block;   // its number, modulo 2^32
    uint16_t launch;  // 0: there was none
    uint16_t site;
    uint32_t phase;   // how many barriers the block had passed
    uint16_t stamp;   // and the warp operations that the warp had passed since
    uint16_t thread : 10, mask : 4, atomic : 1;
};
struct alignas(64) Cell {  // of one 4-byte word; of its bytes a mask tells
    Mark writer, reader[2];
    uint32_t owner;  // the block whose bytes these are: an older one's count for nothing
    uint8_t written, lock;
    uint16_t in_flight;  // the site of an asynchronous copy that was not waited for
    // A shortcut for shared memory: in this era loads by that warp at that stamp (or by any warp)
    // would find nothing wrong, and change nothing here.
    uint32_t quiet;
    uint16_t quiet_warp, quiet_stamp;
};
constexpr uint16_t kAnyWarp = 0xffff;

struct Buffer {
    std::string name;
    uintptr_t base;
    size_t bytes;
    bool writable, initialised;
    Cell* cells;             // of its words; null where it is only read
    uint16_t* launch_seen;   // of its 32-byte sectors: the launch that touched it last
    std::vector<std::pair<uintptr_t, uintptr_t>> by_host;  // ranges that the host wrote
};

struct Counters {  // see COUNTERS in __init__.py: the same order, and then _MORE_COUNTERS
    uint64_t global_load_requests, global_load_sectors, global_store_requests,
        global_store_sectors, shared_requests, shared_wavefronts, atomics, barriers, launches,
        library_bytes, block_sectors, launch_sectors, fresh_outputs, library_flops;
    void add(const Counters& other) {
        auto* to = reinterpret_cast<uint64_t*>(this);
        auto* from = reinterpret_cast<const uint64_t*>(&other);
        for (size_t i = 0; i < sizeof(Counters) / 8; ++i) to[i] += from[i];
    }
    void subtract(const Counters& other) {
        auto* to = reinterpret_cast<uint64_t*>(this);
        auto* from = reinterpret_cast<const uint64_t*>(&other);
        for (size_t i = 0; i < sizeof(Counters) / 8; ++i) to[i] -= from[i];
    }
};

struct Stats {  // of one instruction in one of the two memories
    uint64_t requests, units, ideal_units, lanes;
    const char* array;  // the one it touched; several: ""
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
    uintptr_t low = 0;  // the buffer or array it touched last
    size_t reach = 0;   // from there to the last address that it may
    Cell* cells = nullptr;  // of that
    bool fresh = false, output = false;  // that began uninitialised; that is y
    bool before_atomic = false;  // a load of what the thread then does an atomic on, as for a CAS
    uint16_t bytes = 0, buffer = 0;
    uint16_t joined = 0;  // bytes that nvcc makes one access of, see join()
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
// Site 0 is none: the "address" is where in the code (from g_code) the thread jumped back, and how
// often more (times kAgain); or called a function (+ kEnters); or kLeaves, for a return.
constexpr uintptr_t kEnters = uintptr_t(1) << 47, kLeaves = uintptr_t(1) << 46;
constexpr uintptr_t kAgain = uintptr_t(1) << 32;

struct Array {  // a __shared__ array of the block
    const char* name;
    const void* declaration;
    size_t bytes;
    char* base;
    const unsigned* shape;  // bytes of an element, extents, 0; null: unknown
};

struct Copy {  // an asynchronous one, of one thread
    char *to, *from;
    unsigned bytes, zeros, batch;
    uintptr_t pc;
};

enum class State : uint8_t { fresh, ready, at_barrier, at_warp, asks_active, log_full, done };

struct Fiber {
    State state;
    void* stack_pointer;
    char* stack;
    uint3 index;
    int logged;
    int depth;           // of function calls, at the start of its log
    int calls;           // the same, where it is now
    uintptr_t called_from[8];  // the outermost of them
    uintptr_t step;      // the basic block of code that it is in,
    bool still;          // in which it has not accessed anything yet
    uintptr_t waits_at;  // the code address of what it waits for
    unsigned active;     // __activemask's answer
    unsigned batch;      // of asynchronous copies: the one being filled
    uintptr_t loaded;    // the address it loaded last, of those that have a cell,
    uint16_t loaded_by;  // and where
    bool fenced;         // it called __threadfence, so that its next atomic
    uint32_t released;   // publishes what it did; when that was
    uint32_t acquired;   // when it last saw, by an atomic, what others had published
    bool acquires;       // it does the atomic now
};

struct Group {  // lanes of a warp that gather for one warp operation
    unsigned mask, arrived;
    void (*step)(void**, unsigned);
};
struct Warp {
    void* arguments[32];
    std::vector<Group> gathering;  // their masks name different lanes
    // What happened up to stamp `all_known` is ordered before what any lane does now; up to
    // known[l][m], of lane m, before what lane l does.
    uint16_t stamp = 1, all_known = 0;
    std::vector<uint16_t> known;  // 32 x 32, once some lanes met without the others
    int held = 0;  // how often in a row a lane could not be counted since others were behind
};

struct Launch {
    const char* name;
    uint16_t number;
    dim3 grid, block;
    size_t shared_bytes;
    int shared_limit;
    void (*body)(void*);
    void* context;
    uint64_t blocks, runs;  // blocks of the grid; and how many of them run
    std::vector<uint64_t> chosen;  // the numbers of those, where not all do
    double weight = 1;             // how many blocks one that runs stands for
    std::vector<Counters> counted;  // by each block that ran, where not all do
    std::atomic<uint64_t> next{0};
    std::atomic<size_t> static_bytes{0};
    std::mutex lock;
    std::unordered_map<uint32_t, uint32_t> released;  // by blocks, see Fiber
    uint3 block_of(uint64_t number) const {
        return {unsigned(number % grid.x), unsigned(number / grid.x % grid.y),
                unsigned(number / grid.x / grid.y)};
    }
    uint3 thread_of(unsigned i) const {
        return {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
};

uintptr_t g_region = 0;
size_t g_region_used = kGap;
std::vector<Buffer> g_buffers;
Counters g_counters;
std::mutex g_lock;
int g_threads = 1, g_report = 2;
bool g_trace = true, g_faulted = false;
unsigned g_schedule = 0;
uint16_t g_launch = 0;               // the number of the latest
std::atomic<uint32_t> g_clock{0};    // of fences
size_t g_shadow_used = 0;
uint64_t g_sample = 0;               // blocks that run of a launch; 0: all
uint64_t g_sample_seed = 0;
struct {                             // of one warp (-1: all of its block) the requests are written
    bool on = false;                 // to the report, and only that block runs
    uint3 block{};
    int warp = 0;
    size_t left = 0;                 // requests that there is still room for
    std::set<std::string> kernels;   // that were launched; of each only the first launch counts
    std::string text;
} g_record;
std::vector<uintptr_t> g_pcs(1);     // of the sites, which have one number in all workers
std::unordered_map<uintptr_t, uint16_t> g_site_of;
std::vector<Site> g_sites;           // their totals
std::set<std::string> g_names;       // of arrays
uintptr_t g_code = 0;                // where the kernel's library was loaded, and up to
size_t g_code_bytes = 0;             // where its code goes
std::vector<uint64_t> g_steps;       // how often threads came to each basic block: see steps
std::unordered_map<uintptr_t, uint16_t> g_joined;  // by code address from g_code: Site::joined
std::atomic<int> g_os_threads{0};
pthread_t g_os_thread[256];
double g_time_limit = 0;
cudaError_t g_error = cudaSuccess;
std::unordered_map<const void*, int> g_shared_opt_in;
uintptr_t g_library_call = 0;        // where the host called a library that is at work

struct Worker;
__thread Worker* t_worker SIM_TLS = nullptr;  // set while a fiber of this OS thread runs

extern "C" void sim_switch(void** save, void* load);
extern "C" void sim_fiber_start();
#if defined(__x86_64__)
asm(R"(
.text
.globl sim_switch
.type sim_switch,@function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
void* first_frame(char* top) {
    auto* sp = reinterpret_cast<void**>(top) - 2;
    *sp = reinterpret_cast<void*>(sim_fiber_start);  // where `ret` goes; 6 registers below it
    return sp - 6;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl sim_switch
.type sim_switch,%function
sim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
void* first_frame(char* top) {
    auto* sp = reinterpret_cast<void**>(top) - 20;
    sp[11] = reinterpret_cast<void*>(sim_fiber_start);  // x30
    return sp;
}
#else
#error "the simulator's fibers know x86-64 and aarch64"
#endif

[[noreturn]] void fault(const char* kind, uintptr_t pc, const char* format, ...);
struct Other {  // the second access of a race
    uintptr_t pc = 0;
    uint3 block{}, thread{};
};
void report(bool error, const char* kind, uintptr_t pc, const Other& other, const char* format, ...);

// ---- one OS thread: the block it runs, its fibers, its counters ----------------------------
struct Worker {
    Launch* launch = nullptr;
    int threads = 0, current = -1, live = 0, waiting = 0;
    int votes = 0, last_votes = 0, last_arrived = 0;
    unsigned spins = 0;
    int patience = 0;  // accesses until the next switch
    uint64_t dice = 0;
    void* scheduler = nullptr;  // its stack pointer while fibers run
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char*> free_stacks;
    char* dead_stack = nullptr;  // of the fiber that ended last: still in use until it is left
    std::vector<Access> log;  // [thread][kLog]
    Access *here = nullptr, *here_end = nullptr;  // the current thread's part of it: used, whole
    std::vector<Site> sites;
    struct Slot {
        uintptr_t pc;
        uint16_t index;
    };
    std::vector<Slot> site_of;  // by hash of the pc
    uintptr_t step_at = 0;             // Fiber::step of the current thread, and
    const Access* step_log = nullptr;  // `here` when it came there
    const uintptr_t code = g_code;
    const size_t code_bytes = g_code_bytes;
    uint64_t* steps;  // by code address (from g_code) / 4: how often threads came to that block
    bool aside = false;  // the code that runs is a warp operation's, not a thread's
    struct Joined {  // successive accesses at one instruction, so far
        unsigned mask = 0, bytes = 0;
        int lanes = 0;
        uint64_t addresses[32];
    };
    std::unordered_map<uint16_t, Joined> joined;  // by site
    static constexpr int kMaxDepth = 128;  // 32 lanes of 16 bytes, all in one group of banks
    uint32_t seen_words[32][kMaxDepth];
    std::vector<Array> arrays;
    char* shared = nullptr;
    size_t shared_used = 0;
    char* dynamic = nullptr;
    Counters counters{};
    Cell* shared_cells = nullptr;
    uint32_t owner = 0;  // the block's number among this worker's, from 1
    uint32_t era = 0;    // counts the phases of all its blocks
    uint64_t block = 0;
    uint32_t phase = 0;
    uint32_t all_acquired = 0;  // what some thread had acquired before the last barrier
    bool atomics = false;       // the block did some
    bool abandoned = false;     // a thread of the block ended at a fault
    std::vector<std::vector<Copy>> copies;  // by thread
    struct Pending {  // a store to where another thread stored: of another value?
        uint8_t *address = nullptr, before[16];
        unsigned bytes;
        uintptr_t pc;
        Other other;
        std::string what;
    } pending;
    struct Seen {  // by sector of a buffer: owner, of who touched it. Untouched, it takes no memory
        uint32_t* owner = nullptr;
        size_t size = 0;
        void resize(size_t n) { owner = static_cast<uint32_t*>(calloc(size = n, sizeof *owner)); }
    };
    std::vector<Seen> block_seen;  // by buffer
    bool recorded = false;         // the warp that is counted is the one whose requests are kept

    static constexpr size_t kSites = 1 << 13;

    Worker() : sites(1), site_of(kSites) {
        shared_cells = static_cast<Cell*>(mmap(nullptr, kSharedSpan / 4 * sizeof(Cell),
                                               PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        shared = static_cast<char*>(mmap(nullptr, kSharedSpan, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        steps = static_cast<uint64_t*>(calloc(g_code_bytes / 4 + 1, sizeof(uint64_t)));
        if (!steps) fault("memory", 0, "no memory for the counts of a block");
    }
    ~Worker() {
        free(steps);
        for (Seen& seen : block_seen) free(seen.owner);
    }

    // -- shared memory: arrays in the order in which the block first meets them --
    char* allot(const char* name, const void* declaration, size_t bytes, const unsigned* shape) {
        char* base = shared + shared_used;
        shared_used += (bytes + kRedZone + 127) / 128 * 128;
        if (shared_used > kSharedSpan) fault("shared memory", 0, "%s needs %zu bytes", name, bytes);
        std::memset(base, 0xff, bytes + kRedZone);  // NaN to floats
        arrays.push_back({name, declaration, bytes, base, shape});
        return base;
    }
    void* array(const char* name, const void* declaration, size_t bytes, const unsigned* shape) {
        size_t fixed = bytes;
        for (auto& a : arrays) {
            if (a.declaration == declaration) return a.base;
            if (a.base != dynamic) fixed += a.bytes;
        }
        if (fixed > kSharedDefault)
            fault("shared memory", 0,
                  "static __shared__ arrays take %zu bytes, over the limit of %d; use dynamic "
                  "shared memory and cudaFuncSetAttribute",
                  fixed, kSharedDefault);
        if (fixed + launch->shared_bytes > size_t(launch->shared_limit))
            fault("shared memory", 0,
                  "static __shared__ arrays of %zu bytes and %zu dynamic ones are over the limit "
                  "of %d; ask for more with cudaFuncSetAttribute",
                  fixed, launch->shared_bytes, launch->shared_limit);
        for (size_t seen = launch->static_bytes;
             seen < fixed && !launch->static_bytes.compare_exchange_weak(seen, fixed);) {}
        return allot(name, declaration, bytes, shape);
    }

    // -- fibers --
    char* new_stack() {
        if (!free_stacks.empty()) {
            char* stack = free_stacks.back();
            free_stacks.pop_back();
            return stack;
        }
        void* stack = mmap(nullptr, kGuard + kStack, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) fault("memory", 0, "no memory for the stacks of a block");
        char* low = static_cast<char*>(stack) + kGuard;  // an overflow faults instead of spreading
        if (mprotect(low, kStack, PROT_READ | PROT_WRITE))
            fault("memory", 0, "no memory for the stacks of a block");
        return low;
    }

    void enter(int next, void** save) {
        Fiber& f = fibers[next];
        if (f.state == State::fresh) {
            f.stack = new_stack();
            f.stack_pointer = first_frame(f.stack + kStack);
        }
        f.state = State::ready;
        current = next;
        find_log(next);
        threadIdx = f.index;
        sim_switch(save, f.stack_pointer);
    }

    void find_log(int i) {
        if (!g_trace) return;
        Fiber& f = fibers[i];
        here = &log[size_t(i) * kLog] + f.logged;
        here_end = &log[size_t(i) * kLog] + kLog;
        step_at = f.step, step_log = f.still ? here : nullptr;
    }
    void save_log(int i) {
        if (!g_trace) return;
        Fiber& f = fibers[i];
        f.logged = int(here - &log[size_t(i) * kLog]);
        f.step = step_at, f.still = here == step_log;
    }

    bool can_run(int i) const {
        return fibers[i].state == State::ready || fibers[i].state == State::fresh;
    }

    // Leaves the current fiber for the next that can run; back to the scheduler if none is left.
    void yield() {
        settle();
        int from = current;
        if (from >= 0) save_log(from);
        void** save = from < 0 ? &scheduler : &fibers[from].stack_pointer;
        bool backwards = g_schedule & 1;
        for (;;) {
            for (int i = 1; i <= threads; ++i) {
                int next = backwards ? (from < 0 ? threads : from) - i : from + i;
                if (next >= threads) next -= threads;
                if (next < 0) next += threads;
                if (!can_run(next)) continue;
                if (next == from) return find_log(from);
                return enter(next, save);
            }
            if (live == 0) {
                current = -1;
                sim_switch(save, scheduler);
                return;
            }
            if (!release()) deadlock(from);
        }
    }

    int draw() {  // 1 to kPatience, of no visible pattern (a linear congruential generator)
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        return 1 + int(dice >> 33) % kPatience;
    }

    // No fiber can run: what are they waiting for, and is it complete?
    bool release() {
        bool any = false;
        for (int w = 0; w < int(warps.size()); ++w) any |= release_warp(w);
        if (!any && waiting == live) {
            last_arrived = waiting;
            last_votes = votes;
            waiting = votes = 0;
            ++counters.barriers;
            compare_barriers();
            if (atomics) all_acquired = g_clock;
            for (int w = 0; w < int(warps.size()); ++w) flush(w);  // lanes are in step again
            ++phase;
            ++era;
            for (auto& warp : warps) {
                warp.stamp = 1, warp.all_known = 0;
                warp.known.clear();
            }
            for (int i = 0; i < threads; ++i)
                if (fibers[i].state == State::at_barrier) fibers[i].state = State::ready;
            any = true;
        }
        return any;
    }

    bool release_warp(int w) {
        bool full = false;
        unsigned gone = 0;
        Warp& warp = warps[w];
        for (int lane = 0; lane < 32; ++lane) {
            int i = w * 32 + lane;
            if (i >= threads || fibers[i].state == State::done) gone |= 1u << lane;
            else if (fibers[i].state == State::log_full) full = true;
        }
        if (full) {
            flush(w);
            for (int i = w * 32; i < std::min(threads, w * 32 + 32); ++i)
                if (fibers[i].state == State::log_full && fibers[i].logged < kLog)
                    fibers[i].state = State::ready;
        }
        bool met = false;
        for (size_t g = 0; g < warp.gathering.size() && !met; ++g)  // who is missing has left
            if ((met = !(warp.gathering[g].mask & ~warp.gathering[g].arrived & ~gone)))
                complete(w, g);
        return full || met || answer_active(w);
    }

    void complete(int w, size_t g) {
        Warp& warp = warps[w];
        Group group = warp.gathering[g];
        warp.gathering.erase(warp.gathering.begin() + long(g));
        aside = true;
        if (group.step) group.step(warp.arguments, group.arrived);
        aside = false;
        order(w, group.arrived);
        for (int lane = 0; lane < 32; ++lane)
            if (group.arrived >> lane & 1) fibers[w * 32 + lane].state = State::ready;
    }

    // The lanes of a mask have met: what each knew, all of them know.
    void order(int w, unsigned mask) {
        Warp& warp = warps[w];
        unsigned present = 0;
        for (int i = w * 32; i < std::min(threads, w * 32 + 32); ++i)
            if (fibers[i].state != State::done) present |= 1u << i % 32;
        if (!(present & ~mask)) {
            warp.all_known = warp.stamp;
        } else {
            if (warp.known.empty()) warp.known.assign(32 * 32, 0);
            uint16_t all[32] = {};
            for (int lane = 0; lane < 32; ++lane)
                for (int other = 0; mask >> lane & 1 && other < 32; ++other)
                    all[other] = std::max(all[other], warp.known[lane * 32 + other]);
            for (int lane = 0; lane < 32; ++lane)
                if (mask >> lane & 1) all[lane] = warp.stamp;
            for (int lane = 0; lane < 32; ++lane)
                if (mask >> lane & 1) std::copy(all, all + 32, &warp.known[lane * 32]);
        }
        if (warp.stamp < 0xffff) ++warp.stamp;
    }

    // The threads of the block wait at barriers: at one, and all of them?
    void compare_barriers() {
        int first = -1, running = current;
        for (int i = 0; i < threads; ++i) {
            if (fibers[i].state != State::at_barrier) continue;
            if (first < 0) first = i;
            if (fibers[i].waits_at == fibers[first].waits_at) continue;
            current = i;  // whether the two addresses are one line, is seen later
            report(true, "divergent barrier", fibers[i].waits_at,
                   {fibers[first].waits_at, blockIdx, fibers[first].index},
                   "threads of the block wait at different __syncthreads");
        }
        if (last_arrived < threads && !abandoned) {
            current = first;
            report(false, "barrier after exit", fibers[first].waits_at, {},
                   "%d of the block's %d threads have left the kernel before this barrier",
                   threads - last_arrived, threads);
        }
        current = running;
    }

    // __activemask: the lanes that have come to the same call by the time no other can move.
    bool answer_active(int w) {
        unsigned mask = 0;
        uintptr_t where = 0;
        auto each = [&](auto use) {
            for (int i = w * 32; i < std::min(threads, w * 32 + 32); ++i)
                if (fibers[i].state == State::asks_active &&
                    (!where || fibers[i].waits_at == where))
                    use(fibers[i], i % 32);
        };
        each([&](Fiber& f, int lane) { where = f.waits_at, mask |= 1u << lane; });
        each([&](Fiber& f, int) { f.active = mask, f.state = State::ready; });
        return mask != 0;
    }
    unsigned active(uintptr_t pc) {
        Fiber& f = fibers[current];
        f.waits_at = pc;
        f.state = State::asks_active;
        yield();
        return fibers[current].active;
    }

    // For loops that wait for another thread: fibers are never interrupted, so let others run.
    void spin() {
        if (++spins % 16 == 0) yield();
    }

    // Nobody can go on: tell why, and give the block up. `from` is whose stack we are on.
    void deadlock(int from) {
        int at_barrier = 0, at_warp = 0, example = -1;
        for (int i = threads; i-- > 0;) {
            at_barrier += fibers[i].state == State::at_barrier;
            if (fibers[i].state == State::at_warp) ++at_warp, example = i;
        }
        current = example;
        Group g{};
        for (auto& group : warps[example / 32].gathering)
            if (group.arrived >> example % 32 & 1) g = group;
        report(true, "deadlock", fibers[example].waits_at, {},
               "%d threads wait at __syncthreads and %d in warp operations; one of mask 0x%08x waits "
               "for lanes 0x%08x, which never come",
               at_barrier, at_warp, g.mask, g.mask & ~g.arrived);
        for (int i = 0; i < threads; ++i) {
            if (fibers[i].state == State::done) continue;
            fibers[i].state = State::done;
            if (fibers[i].stack) bury(fibers[i].stack, i == from);
        }
        live = waiting = 0;
        abandoned = true;
    }

    void bury(char* stack, bool in_use) {
        if (!in_use) return free_stacks.push_back(stack);
        if (dead_stack) free_stacks.push_back(dead_stack);
        dead_stack = stack;
    }

    // The current thread is done, at its end or at a fault.
    [[noreturn]] void leave(bool at_fault) {
        settle();
        Fiber& f = fibers[current];
        f.state = State::done;
        abandoned |= at_fault;
        --live;
        bury(f.stack, true);
        yield();
        abort();  // a finished fiber is never entered again
    }

    int barrier(int predicate, int* how_many, uintptr_t pc) {
        fibers[current].state = State::at_barrier;
        fibers[current].waits_at = pc;
        ++waiting;
        votes += predicate;
        yield();
        if (how_many) *how_many = last_votes;
        return last_arrived;
    }

    void collective(unsigned mask, void (*step)(void**, unsigned), void* argument, uintptr_t pc) {
        int w = current / 32, lane = current % 32;
        Warp& warp = warps[w];
        if (!(mask >> lane & 1))
            fault("warp mask", pc, "lane %d calls a warp operation with mask 0x%08x, which does not "
                  "name it", lane, mask);
        size_t g = 0;
        while (g < warp.gathering.size() && warp.gathering[g].mask != mask) ++g;
        if (g == warp.gathering.size()) warp.gathering.push_back({mask, 0, step});
        if (warp.gathering[g].step != step)
            fault("warp mask", pc, "lane %d comes to another warp operation than the lanes of mask "
                  "0x%08x that wait for it", lane, mask);
        warp.arguments[lane] = argument;
        warp.gathering[g].arrived |= 1u << lane;
        if (warp.gathering[g].arrived == mask) return complete(w, g);
        fibers[current].state = State::at_warp;
        fibers[current].waits_at = pc;
        yield();
    }

    void run_block(uint64_t number) {
        const dim3 &g = launch->grid, &b = launch->block;
        blockDim = b;
        gridDim = g;
        blockIdx = launch->block_of(number);
        block = number;
        ++owner;
        ++era;
        phase = 1;
        all_acquired = 0;
        abandoned = atomics = false;
        threads = live = int(b.x * b.y * b.z);
        waiting = votes = 0;
        arrays.clear();
        shared_used = kRedZone;
        dynamic = nullptr;
        if (launch->shared_bytes)
            dynamic = allot("extern __shared__", nullptr, launch->shared_bytes, nullptr);
        sim_dynamic_array = dynamic ? dynamic : shared;
        fibers.resize(threads);
        warps.assign((threads + 31) / 32, Warp{});
        copies.assign(copies.empty() ? 0 : threads, {});
        if (g_trace) log.resize(size_t(threads) * kLog);
        for (int i = 0; i < threads; ++i) {
            fibers[i] = Fiber{};
            fibers[i].index = launch->thread_of(unsigned(i));
        }
        current = -1;
        dice = number * 2 + 1 + (uint64_t(g_schedule) << 40);
        patience = draw();
        t_worker = this;
        yield();
        t_worker = nullptr;
        if (g_trace)
            for (int w = 0; w < int(warps.size()); ++w) flush(w);
    }

    void run(Launch* l) {
        launch = l;
        Counters before{};
        for (uint64_t i; (i = l->next.fetch_add(1)) < l->runs;) {
            if (g_schedule & 1) i = l->runs - 1 - i;
            run_block(l->chosen.empty() ? i : l->chosen[i]);
            if (l->chosen.empty()) continue;
            Counters now = totals(), own = now;
            own.subtract(before);
            before = now;
            std::lock_guard<std::mutex> hold(l->lock);
            l->counted.push_back(own);
        }
        if (dead_stack) free_stacks.push_back(dead_stack);
        for (char* stack : free_stacks) munmap(stack - kGuard, kGuard + kStack);
        munmap(shared, kSharedSpan);
        munmap(shared_cells, kSharedSpan / 4 * sizeof(Cell));
        std::lock_guard<std::mutex> hold(g_lock);
        g_sites.resize(g_pcs.size());
        for (size_t i = 1; i < sites.size(); ++i) {
            const Site& s = sites[i];
            if (!s.pc) continue;
            g_sites[i].before_atomic |= s.before_atomic;
            g_sites[i].pc = s.pc, g_sites[i].bytes = s.bytes, g_sites[i].kind = s.kind;
            for (int space : {0, 1}) g_sites[i].stats[space].add(s.stats[space].times(l->weight));
        }
        if (l->chosen.empty()) g_counters.add(totals());
        g_steps.resize(g_code_bytes / 4 + 1);
        for (size_t i = 0; i < g_steps.size(); ++i) g_steps[i] += uint64_t(double(steps[i]) * l->weight + 0.5);
    }

    // What was counted until now; what is counted by site too.
    Counters totals() const {
        Counters all = counters;
        for (const Site& s : sites) {
            if (!s.pc) continue;
            const Stats &global = s.stats[0], &on_shared = s.stats[1];
            bool load = s.kind == Kind::load;
            (load ? all.global_load_requests : all.global_store_requests) += global.requests;
            (load ? all.global_load_sectors : all.global_store_sectors) += global.units;
            all.shared_requests += on_shared.requests;
            all.shared_wavefronts += on_shared.units;
        }
        return all;
    }

    // -- the way through the code --
    // The current thread comes to a basic block. Where blocks stand in the order in which they
    // run, as the compiler was asked to leave them, a step to a lower address closes a loop. Lanes
    // that did nothing in the block before it are met there, by the note of it; those that did, by
    // what they did. Steps forward need no note: who has gone on waits for who has not.
    void step(uintptr_t pc) {
        size_t at = pc - code;
        if (at < code_bytes) ++steps[at / 4];
        if (aside) return;
        if (pc <= step_at && here == step_log) return jump(pc);
        step_at = pc, step_log = here;
    }
    __attribute__((noinline)) void jump(uintptr_t pc) {
        uint64_t from = uint32_t(step_at - code);
        uint64_t last = here == &log[size_t(current) * kLog] ? ~uint64_t(0) : here[-1].bits;
        if ((last & ~(kLeaves - kAgain)) == from && last < kLeaves - kAgain)
            here[-1].bits += kAgain;
        else
            note_way(from);
        step_at = pc, step_log = here;
    }
    __attribute__((noinline)) void note_way(uintptr_t what) {
        if (here == here_end) {
            fibers[current].state = State::log_full;
            yield();
        }
        *here++ = {what, 0};
    }
    void function_entry(uintptr_t from) {
        if (aside) return;
        Fiber& f = fibers[current];
        if (f.calls < int(std::size(f.called_from))) f.called_from[f.calls] = from;
        ++f.calls;
        note_way(uint32_t(from - code) | kEnters);
        step_log = here;
    }
    void function_exit() {
        if (aside) return;
        note_way(kLeaves);
        Fiber& f = fibers[current];
        --f.calls;
        step_at = f.calls < int(std::size(f.called_from)) ? f.called_from[f.calls] : 0;
        step_log = nullptr;
    }

    // -- accesses --
    Site& site(uintptr_t pc, unsigned bytes, Kind kind, uint16_t& index) {
        size_t h = first_slot(pc);
        for (; site_of[h].pc != pc; h = (h + 1) & (kSites - 1))
            if (!site_of[h].pc) return new_site(h, pc, bytes, kind, index);
        return sites[index = site_of[h].index];
    }
    __attribute__((noinline)) Site& new_site(size_t h, uintptr_t pc, unsigned bytes, Kind kind,
                                             uint16_t& index) {
        std::lock_guard<std::mutex> hold(g_lock);
        auto [at, is_new] = g_site_of.try_emplace(pc, uint16_t(g_pcs.size()));
        if (is_new) g_pcs.push_back(pc);
        if (g_pcs.size() * 2 > kSites) {
            fprintf(stderr, "the kernel has more memory instructions than the simulator expects\n");
            _exit(76);
        }
        site_of[h] = {pc, index = at->second};
        if (sites.size() <= index) sites.resize(index + 1);
        Site& s = sites[index];
        s.pc = pc, s.bytes = uint16_t(bytes), s.kind = kind;
        if (auto wide = g_joined.find(pc - code); wide != g_joined.end()) s.joined = wide->second;
        return s;
    }

    __attribute__((noinline)) void through_null(unsigned bytes, Kind kind, uintptr_t pc) {
        fault("null pointer", pc, "%s of %u bytes through a null pointer", verb(kind), bytes);
    }
    __attribute__((noinline)) void misaligned(uintptr_t address, unsigned bytes, Kind kind,
                                              uintptr_t pc) {
        fault("misaligned access", pc, "%s of %u bytes at %s, an address that is not a multiple of "
              "%u", verb(kind), bytes, place(address).c_str(), bytes);
    }

    // The short way of what is usual: an instruction that was met before, inside of what it touched
    // then, and nothing to be looked for.
    void access(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc, bool aligned = true,
                bool ordered = false) {
        const Slot& slot = site_of[first_slot(pc)];
        if (slot.pc == pc && !g_schedule && here != here_end && !pending.address) {
            const Site& s = sites[slot.index];
            uintptr_t at = address - s.low;
            if (at <= s.reach && !(aligned && (address & (bytes - 1)))) {
                if (!s.cells) {
                    *here++ = {address, slot.index};
                    return;
                }
                if (kind == Kind::load && address - uintptr_t(shared) < kSharedSpan &&
                    quiet(s.cells + (at >> 2), address, bytes)) {
                    fibers[current].loaded = 0;  // nobody does atomics on it in this era
                    *here++ = {address, slot.index};
                    return;
                }
            }
        }
        access_by_the_book(address, bytes, kind, pc, aligned, ordered);
    }

    static size_t first_slot(uintptr_t pc) { return (pc ^ pc >> 13) & (kSites - 1); }

    __attribute__((noinline)) void access_by_the_book(uintptr_t address, unsigned bytes, Kind kind,
                                                      uintptr_t pc, bool aligned, bool ordered) {
        if (__builtin_expect(pending.address != nullptr, 0)) settle();
        if (__builtin_expect(fibers[current].acquires, 0)) {
            fibers[current].acquires = false;
            fibers[current].acquired = g_clock;
        }
        bool global = address - g_region < kRegion;
        if (!global && address - uintptr_t(shared) >= kSharedSpan) {
            if (__builtin_expect(address < 1 << 16, 0)) through_null(bytes, kind, pc);
            return;  // its stack, a constant
        }
        uint16_t index;
        Site& s = site(pc, bytes, kind, index);
        if (address - s.low > s.reach) locate(s, address, bytes, global);
        if (__builtin_expect(aligned && (address & (bytes - 1)), 0))
            misaligned(address, bytes, kind, pc);
        Cell* cell = s.cells ? s.cells + ((address - s.low) >> 2) : nullptr;
        bool fresh = s.fresh, output = s.output;
        if (g_schedule && --patience == 0) {
            patience = draw();
            yield();
        }
        if (!g_trace) return;
        if (here == here_end) {
            fibers[current].state = State::log_full;
            yield();
        }
        *here++ = {address, index};
        if (!cell) return;
        if (kind == Kind::load) {
            Fiber& f = fibers[current];
            f.loaded = address, f.loaded_by = index;
            if (!global && quiet(cell, address, bytes)) return;
        }
        look(cell, address, bytes, kind, ordered, index, global, fresh, output);
    }

    bool quiet(const Cell* cell, uintptr_t address, unsigned bytes) const {
        if (bytes > 4 && address & 3) return false;
        unsigned stamp = warps[current / 32].stamp;
        for (unsigned i = 0; i * 4 < bytes; ++i)
            if (cell[i].quiet != era || (cell[i].quiet_warp != kAnyWarp &&
                (cell[i].quiet_warp != current / 32 || cell[i].quiet_stamp != stamp)))
                return false;
        return true;
    }

    __attribute__((noinline)) void locate(Site& s, uintptr_t address, unsigned bytes, bool global) {
        if (global) {
            const Buffer* near = nullptr;
            for (size_t i = 0; i < g_buffers.size(); ++i) {
                const Buffer& b = g_buffers[i];
                if (address + bytes > b.base - kGap / 2 && address < b.base + b.bytes + kGap / 2)
                    near = &b;
                if (address < b.base || address + bytes > b.base + b.bytes) continue;
                if (s.kind != Kind::load && !b.writable)
                    fault("store to an input", s.pc, "store to %s, which is an input: %s",
                          b.name.c_str(), place(address).c_str());
                s.low = b.base, s.reach = b.bytes - bytes, s.buffer = uint16_t(i), s.cells = b.cells;
                s.fresh = !b.initialised, s.output = b.name == "y";
                s.stats[0].touch(b.name.c_str());
                return;
            }
            if (!near)
                fault("global out of bounds", s.pc, "%s far outside every buffer", verb(s.kind));
            fault("global out of bounds", s.pc,
                  "%s of %u bytes at %s[%lld], which has %zu elements: %s",
                  s.kind == Kind::load ? "load" : "store", bytes, near->name.c_str(),
                  (long long)(int64_t(address - near->base) >> 2), near->bytes / 4,
                  place(address).c_str());
        }
        const Array* near = nullptr;
        for (auto& a : arrays) {
            uintptr_t base = uintptr_t(a.base);
            if (address >= base && address + bytes <= base + a.bytes) {
                s.low = base, s.reach = a.bytes - bytes, s.fresh = true, s.output = false;
                s.cells = shared_cells + (a.base - shared) / 4;
                if (!s.stats[1].array || strcmp(s.stats[1].array, a.name)) {
                    std::lock_guard<std::mutex> hold(g_lock);
                    s.stats[1].touch(g_names.insert(a.name).first->c_str());
                }
                return;
            }
            if (!near || address >= base) near = &a;
        }
        const char* how = s.kind == Kind::load ? "load" : "store";
        if (!near) fault("shared out of bounds", s.pc, "%s, though the block has no array", how);
        fault("shared out of bounds", s.pc, "%s of %u bytes at byte %lld of %s, which has %zu: %s",
              how, bytes, (long long)(address - uintptr_t(near->base)), near->name, near->bytes,
              place(address).c_str());
    }

    // An address in words: s_tile[0][18]; of a buffer its name and byte, which the host process
    // turns into indices.
    std::string place(uintptr_t address) const {
        char text[160];
        if (address - g_region < kRegion) {
            for (auto& b : g_buffers) {
                if (address < b.base - kGap / 2 || address >= b.base + b.bytes + kGap / 2) continue;
                snprintf(text, sizeof text, "\x01%s:%lld\x02", b.name.c_str(),
                         (long long)(address - b.base));
                return text;
            }
            return "an unknown address";
        }
        const Array* near = nullptr;
        for (auto& a : arrays)
            if (!near || address >= uintptr_t(a.base)) near = &a;
        if (!near) return "shared memory";
        auto byte = (long long)(address - uintptr_t(near->base));
        if (!near->shape) {
            snprintf(text, sizeof text, "byte %lld of %s", byte, near->name);
            return text;
        }
        long long unit = near->shape[0], element = byte < 0 ? -((unit - 1 - byte) / unit) : byte / unit;
        std::string name;
        int rank = 0;
        while (near->shape[1 + rank]) ++rank;
        for (int d = rank - 1; d > 0; --d) {
            long long extent = near->shape[1 + d], i = (element % extent + extent) % extent;
            name = "[" + std::to_string(i) + "]" + name;
            element = (element - i) / extent;
        }
        if (rank) name = "[" + std::to_string(element) + "]" + name;
        return near->name + name;
    }

    // -- the shadow: is this access ordered after those that it conflicts with? --
    Mark mark(unsigned mask, bool ordered, uint16_t index) const {
        Mark m{};
        m.block = uint32_t(block), m.launch = launch->number, m.site = index, m.phase = phase;
        m.stamp = warps[current / 32].stamp;
        m.thread = uint16_t(current), m.mask = uint16_t(mask), m.atomic = ordered;
        return m;
    }

    bool before(const Mark& m, bool global) const {  // or of no interest any more
        if (m.launch != launch->number) return true;
        const Fiber& f = fibers[current];
        if (m.block != uint32_t(block)) {
            if (!global) return true;
            uint32_t acquired = std::max(f.acquired, all_acquired);
            if (!acquired) return false;
            std::lock_guard<std::mutex> hold(launch->lock);
            auto r = launch->released.find(m.block);
            return r != launch->released.end() && r->second <= acquired;
        }
        if (m.phase != phase || m.thread == current) return true;
        if (m.thread / 32 == current / 32) {
            const Warp& warp = warps[current / 32];
            if (m.stamp <= warp.all_known) return true;
            if (!warp.known.empty() && m.stamp <= warp.known[current % 32 * 32 + m.thread % 32])
                return true;
        }
        uint32_t released = fibers[m.thread].released;
        return released && released <= f.acquired;
    }

    void look(Cell* cell, uintptr_t address, unsigned bytes, Kind kind, bool ordered,
              uint16_t index, bool global, bool fresh, bool output) {
        ordered |= kind == Kind::atomic;
        for (unsigned done = 0; done < bytes; ++cell) {
            unsigned at = (address + done) & 3, n = std::min(4 - at, bytes - done);
            unsigned mask = ((1u << n) - 1) << at;
            if (global)
                while (__atomic_exchange_n(&cell->lock, 1, __ATOMIC_ACQUIRE)) {}
            look_at_word(*cell, address, address + done, bytes, mask, kind, ordered, index, global,
                         fresh, output);
            if (global) __atomic_store_n(&cell->lock, 0, __ATOMIC_RELEASE);
            done += n;
        }
    }

    void look_at_word(Cell& cell, uintptr_t whole, uintptr_t address, unsigned bytes, unsigned mask,
                      Kind kind, bool ordered, uint16_t index, bool global, bool fresh,
                      bool output) {
        uint32_t me = global ? 1 : owner;
        unsigned written = cell.owner == me ? cell.written : 0;
        if (kind != Kind::store && fresh && (mask & ~written)) uninitialised(cell, address, index, global);
        if (cell.in_flight && written) in_flight(cell, address, index, kind);
        const Mark& w = cell.writer;
        if (w.launch && (w.mask & mask) && !(w.atomic && ordered) && !before(w, global))
            race(w, whole, address, bytes, kind, index);
        if (kind == Kind::load) {
            Mark mine = mark(mask, ordered, index);
            Mark* r = cell.reader;
            for (int i : {0, 1}) {
                if (r[i].launch && !before(r[i], global)) continue;
                if (r[i].launch == mine.launch && r[i].block == mine.block &&
                    r[i].phase == mine.phase && r[i].thread == mine.thread)
                    mine.mask |= r[i].mask, mine.atomic &= r[i].atomic;
                r[i] = mine;
                return;
            }
            bool same = r[0].block == r[1].block && r[0].thread / 32 == r[1].thread / 32;
            if (same) r[1] = mine;  // two of different warps, or blocks, say most
            if (!global && written == 15 && !cell.in_flight && !r[0].atomic && !r[1].atomic) {
                same = r[0].thread / 32 == r[1].thread / 32;
                cell.quiet = era;
                cell.quiet_warp = same ? uint16_t(current / 32) : kAnyWarp;
                cell.quiet_stamp = mine.stamp;
            }
            return;
        }
        for (const Mark& r : cell.reader)
            if (r.launch && (r.mask & mask) && !(r.atomic && ordered) && !before(r, global))
                race(r, whole, address, bytes, kind, index);
        cell.writer = mark(mask, ordered, index);
        if (mask == 15) cell.reader[0].launch = cell.reader[1].launch = 0;
        if (output && written != 15 && (written | mask) == 15) ++counters.fresh_outputs;
        if (cell.owner != me) cell.in_flight = 0;
        cell.owner = me, cell.written = uint8_t(written | mask), cell.quiet = 0;
    }

    void uninitialised(Cell& cell, uintptr_t address, uint16_t index, bool global) {
        if (abandoned || g_faulted) return;  // who was to write it may have ended at a fault
        if (global && (g_sample || g_record.on)) return;  // or not have been among those that ran
        if (global)
            for (auto& b : g_buffers)
                for (auto& [from, to] : b.by_host)
                    if (address >= from && address < to) return;
        if (cell.in_flight) return in_flight(cell, address, index, Kind::load);
        report(true, "uninitialised read", sites[index].pc, {},
               "%s of %s, which nothing has written", verb(sites[index].kind), place(address).c_str());
    }

    void in_flight(Cell& cell, uintptr_t address, uint16_t index, Kind kind) {
        report(true, "copy not waited for", sites[index].pc, {g_pcs[cell.in_flight], blockIdx,
               fibers[cell.writer.thread].index},
               "%s of %s while an asynchronous copy to it is under way", verb(kind),
               place(address).c_str());
    }

    void race(const Mark& m, uintptr_t whole, uintptr_t address, unsigned bytes, Kind kind,
              uint16_t index) {
        Other other{g_pcs[m.site], launch->block_of(m.block), launch->thread_of(m.thread)};
        auto& theirs = sites.size() > m.site && sites[m.site].pc ? sites[m.site] : sites[index];
        if (kind == Kind::store && !m.atomic && theirs.kind != Kind::load) {  // same value?
            if (pending.address) return;
            pending.address = reinterpret_cast<uint8_t*>(whole);
            std::memcpy(pending.before, pending.address, pending.bytes = std::min(bytes, 16u));
            pending.pc = sites[index].pc, pending.other = other, pending.what = place(address);
            return;
        }
        report(true, "race", sites[index].pc, other,
               "%s of %s, and %s by another thread%s, with nothing that orders the two", verb(kind),
               place(address).c_str(), m.atomic ? "an atomic" : theirs.kind == Kind::load ? "a load"
               : "a store", m.block == uint32_t(block) ? "" : " of another block");
    }

    // The store is done by now: were the two of the same value?
    void settle() {
        if (!pending.address) return;
        bool same = !std::memcmp(pending.before, pending.address, pending.bytes);
        pending.address = nullptr;
        if (same)
            report(false, "written twice", pending.pc, pending.other,
                   "store to %s of the value that another thread stored there, with nothing that "
                   "orders the two", pending.what.c_str());
        else
            report(true, "race", pending.pc, pending.other,
                   "store to %s, and a store by another thread, with nothing that orders the two",
                   pending.what.c_str());
    }

    void fence() { fibers[current].fenced = true; }
    void atomic(uintptr_t address, unsigned bytes, uintptr_t pc) {
        ++counters.atomics;
        access(address, bytes, Kind::atomic, pc);
        Fiber& f = fibers[current];
        if (f.loaded == address) sites[f.loaded_by].before_atomic = true;
        f.acquires = atomics = true;  // once it is done, which is when this thread is back
        if (!f.fenced) return;
        f.released = ++g_clock;
        std::lock_guard<std::mutex> hold(launch->lock);
        launch->released[uint32_t(block)] = f.released;
    }

    // -- asynchronous copies: done when they are waited for --
    void copy(char* to, char* from, unsigned bytes, unsigned zeros, uintptr_t pc) {
        access(uintptr_t(from), bytes - zeros, Kind::load, pc);
        access(uintptr_t(to), bytes, Kind::store, pc - 1);
        if (copies.empty()) copies.resize(threads);
        copies[current].push_back({to, from, bytes, zeros, fibers[current].batch, pc});
        uint16_t index;
        site(pc - 1, bytes, Kind::store, index);
        for (unsigned at = 0; at < bytes; at += 4)
            shared_cells[(to - shared + at) / 4].in_flight = index;  // its store made it not quiet
    }
    void commit() { ++fibers[current].batch; }
    void wait(unsigned newest) {
        if (copies.empty()) return;
        auto& mine = copies[current];
        size_t kept = 0;
        for (Copy& c : mine) {
            if (c.batch + newest >= fibers[current].batch) {
                mine[kept++] = c;
                continue;
            }
            std::memcpy(c.to, c.from, c.bytes - c.zeros);
            std::memset(c.to + c.bytes - c.zeros, 0, c.zeros);
            uint16_t index;
            site(c.pc - 1, c.bytes, Kind::store, index);
            for (unsigned at = 0; at < c.bytes; at += 4) {
                Cell& cell = shared_cells[(c.to - shared + at) / 4];
                cell.in_flight = 0;
                cell.writer = mark(15, false, index);
            }
        }
        mine.resize(kept);
    }

    // -- counting: the log of a warp, turned into requests --
    void flush(int w) {
        if (!g_trace) return;
        recorded = g_record.on && (w == g_record.warp || g_record.warp < 0);
        int first = w * 32, lanes = std::min(32, threads - first), length = fibers[first].logged;
        Access* rows[32];
        bool uniform = true;
        for (int l = 0; l < lanes; ++l) {
            rows[l] = &log[size_t(first + l) * kLog];
            uniform &= fibers[first + l].logged == length;
        }
        for (int i = 0; uniform && i < length; ++i) {
            uint64_t one = rows[0][i].bits, other = 0;
            for (int l = 1; l < lanes; ++l) other |= one ^ rows[l][i].bits;
            uniform = one >> 48 ? !(other >> 48) : !other;
        }
        if (!uniform) return match(w, rows, lanes);
        uintptr_t addresses[32];
        unsigned all = 0xffffffffu >> (32 - lanes);
        for (int i = 0; i < length; ++i) {
            if (!rows[0][i].site()) {
                for (int l = 0; l < lanes; ++l) follow(fibers[first + l], rows[0][i]);
                continue;
            }
            for (int l = 0; l < lanes; ++l) addresses[l] = rows[l][i].address();
            uint16_t site = rows[0][i].site();
            if (sites[site].joined) join(site, addresses, lanes, all);
            else request(sites[site], addresses, lanes, all, sites[site].bytes);
        }
        for (auto& [site, so_far] : joined) part(site, so_far);
        for (int l = 0; l < lanes; ++l) fibers[first + l].logged = 0;
        warps[w].held = 0;
    }

    static void follow(Fiber& f, Access way) {  // a call or a return
        if (way.address() & kEnters) ++f.depth;
        else if (way.address() & kLeaves) --f.depth;
    }

    // Lanes went different ways. Always those go on that are deepest in function calls and, of
    // these, at the lowest address, together: so lanes meet again behind an `if` and at the end of
    // each iteration of a loop, as they do on a GPU (S. Collange, "Stack-less SIMT reconvergence at
    // low cost", 2011). A lane that is at the end of its log and has more to do is waited for: the
    // others keep what they did since.
    void match(int w, Access* const* rows, int lanes, bool patient = true) {
        constexpr uint64_t kUnknown = 0, kOver = ~uint64_t(0);
        int first = w * 32, at[32] = {};
        uint64_t place[32], addresses[32];
        auto find = [&](int l) {
            const Fiber& f = fibers[first + l];
            if (at[l] == f.logged) {
                place[l] = patient && f.state == State::log_full ? kUnknown : kOver;
                return;
            }
            Access a = rows[l][at[l]];
            uintptr_t code = a.site() ? sites[a.site()].pc - g_code
                             : a.address() & kLeaves ? 0 : a.address() & (kAgain - 1);
            place[l] = uint64_t(0x7fff - f.depth) << 48 | (code & 0xffffffffffff);
        };
        for (int l = 0; l < lanes; ++l) find(l);
        for (;;) {
            uint64_t least = kOver;
            for (int l = 0; l < lanes; ++l) least = std::min(least, place[l]);
            if (least == kOver || least == kUnknown) break;
            int n = 0;
            unsigned mask = 0;
            uint16_t site = 0;
            for (int l = 0; l < lanes; ++l) {
                if (place[l] != least) continue;
                Access& a = rows[l][at[l]];
                site = a.site();
                if (!site && a.bits < kLeaves && a.bits >= kAgain) {
                    a.bits -= kAgain;
                    continue;
                }
                ++at[l];
                if (site) addresses[n++] = a.address(), mask |= 1u << l;
                else follow(fibers[first + l], a);
                find(l);
            }
            if (site && sites[site].joined) join(site, addresses, n, mask);
            else if (site) request(sites[site], addresses, n, mask, sites[site].bytes);
        }
        for (auto& [site, so_far] : joined) part(site, so_far);
        bool stuck = false;
        for (int l = 0; l < lanes; ++l) {
            Fiber& f = fibers[first + l];
            stuck |= f.logged && !at[l] && f.state == State::log_full;
            std::copy(rows[l] + at[l], rows[l] + f.logged, rows[l]);
            f.logged -= at[l];
        }
        warps[w].held = stuck ? warps[w].held + 1 : 0;
        if (warps[w].held > kHeld) match(w, rows, lanes, false);  // who is behind may wait for them
    }

    // nvcc makes one 128-bit access of four whose addresses follow each other, where it can prove
    // that the first is a multiple of 16. Whether it did, the caller tells (sim_joined), from SASS.
    void join(uint16_t site, const uint64_t* addresses, int lanes, unsigned mask) {
        Site& s = sites[site];
        Joined& so_far = joined[site];
        bool follows = so_far.mask == mask, aligned = true;
        for (int l = 0; l < lanes; ++l) {
            follows = follows && addresses[l] == so_far.addresses[l] + so_far.bytes;
            aligned &= addresses[l] % s.joined == 0;
        }
        if (!follows) {
            part(site, so_far);
            if (!aligned) return request(s, addresses, lanes, mask, s.bytes);
            so_far.mask = mask, so_far.lanes = lanes, so_far.bytes = 0;
            std::copy(addresses, addresses + lanes, so_far.addresses);
        }
        if ((so_far.bytes += s.bytes) >= s.joined) part(site, so_far);
    }
    void part(uint16_t site, Joined& so_far) {
        if (so_far.mask)
            request(sites[site], so_far.addresses, so_far.lanes, so_far.mask, so_far.bytes);
        so_far.mask = 0;
    }

    // One access of some lanes of a warp, those of `mask` in their order; each of so many bytes.
    void request(Site& s, const uint64_t* addresses, int lanes, unsigned mask, unsigned bytes) {
        bool global = addresses[0] - g_region < kRegion;
        if (__builtin_expect(recorded, 0)) record(s, addresses, mask, bytes, global);
        Stats& stats = s.stats[!global];
        ++stats.requests;
        stats.lanes += unsigned(lanes);
        if (global) {
            uint64_t seen[64], last = ~uint64_t(0);
            int n = 0, distinct = 1;
            bool rising = true;
            auto add = [&](uint64_t sector) {
                if (sector == last) return;
                last = sector;
                for (int i = n; i-- > 0;)
                    if (seen[i] == sector) return;
                seen[n++] = sector;
            };
            for (int l = 0; l < lanes; ++l) {
                add(addresses[l] >> 5);
                add((addresses[l] + bytes - 1) >> 5);
                if (l && addresses[l] != addresses[l - 1]) {
                    ++distinct;
                    rising &= addresses[l] > addresses[l - 1];
                }
            }
            if (!rising) {
                uint64_t sorted[32];
                std::copy(addresses, addresses + lanes, sorted);
                std::sort(sorted, sorted + lanes);
                distinct = int(std::unique(sorted, sorted + lanes) - sorted);
            }
            stats.units += unsigned(n);
            stats.ideal_units += (unsigned(distinct) * bytes + 31) / 32;
            footprint(s, seen, n);
            return;
        }
        // Shared: each bank serves one 4-byte word a wavefront, to all lanes that want that word.
        // Accesses of 16 bytes are served a half warp at a time (measured on an H200: a warp's
        // broadcast of a float4 takes two wavefronts; see tests/ncu_agreement.py).
        int words = std::max(1, int(bytes) / 4), group = bytes > 8 ? 16 : 32;
        for (int from = 0; from < lanes; from += group) {
            int worst = 0, distinct = 0;
            uint8_t depth[32] = {};
            for (int l = from; l < std::min(lanes, from + group); ++l)
                for (int j = 0; j < words; ++j) {
                    auto word = uint32_t((addresses[l] - uintptr_t(shared)) >> 2) + j;
                    int bank = word & 31, d = depth[bank], i = 0;
                    while (i < d && seen_words[bank][i] != word) ++i;
                    if (i < d || d == kMaxDepth) continue;
                    seen_words[bank][d] = word;
                    depth[bank] = uint8_t(d + 1);
                    worst = std::max(worst, d + 1);
                    ++distinct;
                }
            stats.units += unsigned(worst);
            stats.ideal_units += unsigned(distinct + 31) / 32;
        }
    }

    // One line to the report: launch, code address, space, kind, array, bytes of its elements (0:
    // unknown), bytes of the access, lanes (a mask), and each one's byte in the array.
    __attribute__((noinline)) void record(const Site& s, const uint64_t* addresses, unsigned mask,
                                          unsigned bytes, bool global) {
        if (!g_record.left) return;
        --g_record.left;
        uintptr_t base = uintptr_t(shared);
        const char* name = "?";
        unsigned element = 0;
        for (auto& b : g_buffers)
            if (global && addresses[0] - b.base < b.bytes) base = b.base, name = b.name.c_str();
        for (auto& a : arrays)
            if (!global && addresses[0] - uintptr_t(a.base) < a.bytes)
                base = uintptr_t(a.base), name = a.name, element = a.shape ? a.shape[0] : 0;
        char text[400];
        snprintf(text, sizeof text, "access\t%u\t%lx\t%s\t%s\t%.200s\t%u\t%u\t%u\t",
                 unsigned(launch->number), (unsigned long)s.pc, global ? "global" : "shared",
                 verb(s.kind), name, element, bytes, mask);
        g_record.text += text;
        for (int l = 0; l < __builtin_popcount(mask); ++l)
            g_record.text += std::to_string(addresses[l] - base) + " ";
        g_record.text += "\n";
    }

    // The sectors that this block, and this launch, touch for the first time.
    void footprint(Site& s, const uint64_t* sectors, int n) {
        auto inside = [&](const Buffer& b) {
            return sectors[0] >= b.base >> 5 && sectors[0] <= (b.base + b.bytes) >> 5;
        };
        if (!inside(g_buffers[s.buffer])) {
            s.buffer = 0;
            while (s.buffer + 1u < g_buffers.size() && !inside(g_buffers[s.buffer])) ++s.buffer;
        }
        const Buffer& b = g_buffers[s.buffer];
        if (block_seen.size() <= s.buffer) block_seen.resize(g_buffers.size());
        auto& seen = block_seen[s.buffer];
        if (!seen.owner) seen.resize(b.bytes / 32 + 2);
        if (!seen.owner) fault("memory", 0, "no memory for the sectors of a buffer");
        for (int i = 0; i < n; ++i) {
            size_t at = sectors[i] - (b.base >> 5);
            if (at >= seen.size || seen.owner[at] == uint32_t(owner)) continue;
            seen.owner[at] = uint32_t(owner);
            ++counters.block_sectors;
            if (__atomic_load_n(&b.launch_seen[at], __ATOMIC_RELAXED) != launch->number &&
                __atomic_exchange_n(&b.launch_seen[at], launch->number, __ATOMIC_RELAXED) !=
                    launch->number)
                ++counters.launch_sectors;
        }
    }
};

// ---- findings -------------------------------------------------------------------------------
// One line to the report, for the first of its kind at a code address: "fault" or "warning", kind,
// address, whether in a kernel, block, thread, the other address, block and thread, text.
struct Finding {
    std::string kind;
    uintptr_t pc;
    std::set<std::pair<uint64_t, int>> who;  // block and thread
};
std::vector<Finding> g_findings;

void report(bool error, const char* kind, uintptr_t pc, const Other& other, const char* format, ...) {
    Worker* w = t_worker;
    bool in_kernel = w && w->current >= 0;
    std::lock_guard<std::mutex> hold(g_lock);
    g_faulted |= error && strcmp(kind, "race");
    std::pair<uint64_t, int> who(in_kernel ? w->block : 0, in_kernel ? w->current : 0);
    for (auto& f : g_findings)
        if (f.pc == pc && f.kind == kind) {
            if (f.who.size() < 1 << 20) f.who.insert(who);
            return;
        }
    if (g_findings.size() == kFindings) return;
    g_findings.push_back({kind, pc, {who}});
    char text[700], line[1400];
    va_list more;
    va_start(more, format);
    vsnprintf(text, sizeof text, format, more);
    va_end(more);
    uint3 t = in_kernel ? w->fibers[w->current].index : uint3{};
    int n = snprintf(line, sizeof line,
                     "%s\t%s\t%lx\t%d\t%u,%u,%u\t%u,%u,%u\t%lx\t%u,%u,%u\t%u,%u,%u\t%s\n",
                     error ? "fault" : "warning", kind, (unsigned long)pc, in_kernel, blockIdx.x,
                     blockIdx.y, blockIdx.z, t.x, t.y, t.z, (unsigned long)other.pc, other.block.x,
                     other.block.y, other.block.z, other.thread.x, other.thread.y, other.thread.z,
                     text);
    if (write(g_report, line, size_t(std::min(n, int(sizeof line) - 1))) < 0) _exit(76);
}

[[noreturn]] void end(int status) {
    fflush(stdout);
    _exit(status);
}

// A finding that its thread does not survive; outside of a kernel, the process.
[[noreturn]] void fault(const char* kind, uintptr_t pc, const char* format, ...) {
    char text[600];
    va_list more;
    va_start(more, format);
    vsnprintf(text, sizeof text, format, more);
    va_end(more);
    report(true, kind, pc, {}, "%s", text);
    if (t_worker && t_worker->current >= 0) t_worker->leave(true);
    end(77);
}

// One line to the report that says more than an error code does; a warning too, should the code
// go unnoticed.
void note(uintptr_t pc, const char* format, ...) {
    char text[480], line[512];
    va_list more;
    va_start(more, format);
    vsnprintf(text, sizeof text, format, more);
    va_end(more);
    int n = snprintf(line, sizeof line, "note\t%s\n", text);
    if (write(g_report, line, size_t(n)) < 0) _exit(76);
    report(false, "refused launch", pc, {}, "%s", text);
}

[[noreturn]] void abandon() { t_worker->leave(true); }

void on_signal(int number, siginfo_t* info, void* context) {
    auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    auto pc = uintptr_t(machine.gregs[REG_RIP]) + 1;  // hooks pass return addresses: one past
#else
    auto pc = uintptr_t(machine.pc) + 1;
#endif
    auto address = uintptr_t(info->si_addr);
    Worker* w = t_worker;
    bool in_kernel = w && w->current >= 0;
    const Other none;
    const Buffer* near = nullptr;
    for (auto& b : g_buffers)
        if (address > b.base - kGap / 2 && address < b.base + b.bytes + kGap / 2) near = &b;
    if (!in_kernel && g_library_call) pc = g_library_call;
    if (number == SIGFPE) {
        report(true, "arithmetic", pc, none, "integer division by zero");
    } else if (number == SIGABRT) {
        report(true, "abort", 0, none, "abort() was called");
        end(77);
    } else if (number == SIGILL) {
        report(true, "abort", pc, none, "illegal instruction");
    } else if (in_kernel && uintptr_t(w->fibers[w->current].stack) - address - 1 < kGuard) {
        report(true, "stack overflow", pc, none,
               "a thread's local variables need more than %zu bytes", kStack);
    } else if (address < 1 << 16 && info->si_code != SI_KERNEL) {
        // x86 gives no address (SI_KERNEL, 0) for one that is not canonical
        report(true, "null pointer", pc, none, "access through a null pointer");
    } else if (near) {
        report(true, "global out of bounds", pc, none, "access%s at \x01%s:%lld\x02, of %zu elements",
               g_library_call ? " by a library" : "", near->name.c_str(),
               (long long)(address - near->base), near->bytes / 4);
    } else {
        report(true, "illegal address", pc, none, "access to memory that belongs to no buffer");
    }
    if (!in_kernel) end(77);
    // Back from this handler, the thread ends, on its stack emptied.
    auto top = uintptr_t(w->fibers[w->current].stack) + kStack - 256;
#if defined(__x86_64__)
    machine.gregs[REG_RSP] = greg_t(top - 8);
    machine.gregs[REG_RIP] = greg_t(uintptr_t(abandon));
#else
    machine.sp = top;
    machine.pc = uintptr_t(abandon);
#endif
}

// The time is up: where is everybody? Who runs no thread asks those who do.
void on_alarm(int, siginfo_t*, void* context) {
    Worker* w = t_worker;
    if (!w || w->current < 0) {
        for (int i = 0; i < g_os_threads; ++i) pthread_kill(g_os_thread[i], SIGALRM);
        if (g_os_threads == 0) end(78);
        return;
    }
    auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    auto pc = uintptr_t(machine.gregs[REG_RIP]) + 1;
#else
    auto pc = uintptr_t(machine.pc) + 1;
#endif
    Dl_info here{}, kernel{};
    const Access* row = g_trace ? &w->log[size_t(w->current) * kLog] : nullptr;
    uint16_t site = g_trace ? (w->here != row ? w->here[-1] : row[kLog - 1]).site() : 0;
    uintptr_t known = site ? w->sites[site].pc : w->step_at;
    if (known && !(dladdr(reinterpret_cast<void*>(pc), &here) &&
                   dladdr(reinterpret_cast<void*>(known), &kernel) &&
                   here.dli_saddr && here.dli_saddr == kernel.dli_saddr))
        pc = known;  // of the last access, or basic block: the signal came in the runtime
    report(true, "endless loop", pc, {}, "the thread was here when the time limit passed");
    end(78);
}

void catch_signals_here() {  // on a stack of their own: the fiber's may be what overflowed
    stack_t stack{malloc(kStack), 0, kStack};
    sigaltstack(&stack, nullptr);
}

}  // namespace

extern "C" void sim_fiber_start() {
    t_worker->launch->body(t_worker->launch->context);
    t_worker->leave(false);
}

extern "C" {

// ---- what the host process calls (see host.py) ----------------------------------------------
void sim_begin(int threads, int trace, int report) {
    g_threads = threads, g_trace = trace, g_report = report;
    g_region = uintptr_t(mmap(nullptr, kRegion, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (g_region == uintptr_t(MAP_FAILED))
        fault("memory", 0, "cannot reserve 1 TiB of address space: raise `ulimit -v`");
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(s, &action, nullptr);
    action.sa_sigaction = on_alarm;
    sigaction(SIGALRM, &action, nullptr);
    catch_signals_here();
}

void sim_schedule(unsigned number) { g_schedule = number; }
void sim_sample(uint64_t blocks, uint64_t seed) { g_sample = blocks, g_sample_seed = seed; }
void sim_record(unsigned x, unsigned y, unsigned z, int warp, size_t limit) {
    g_record.on = true, g_record.block = {x, y, z}, g_record.warp = warp, g_record.left = limit;
}

void sim_joined(size_t offset, unsigned bytes) { g_joined[offset] = uint16_t(bytes); }

void sim_time_limit(double seconds) {
    g_time_limit = seconds;
    itimerval timer{};
    timer.it_value.tv_sec = time_t(seconds);
    timer.it_value.tv_usec = suseconds_t((seconds - double(time_t(seconds))) * 1e6);
    setitimer(ITIMER_REAL, &timer, nullptr);
}

// Maps a buffer with unmapped memory on both sides; fd < 0: private memory, poisoned (all ones).
// `writable` is 2 where what it holds may be read before it is written.
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int writable) {
    size_t pages = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    if (g_region_used + pages + kGap > kRegion) return nullptr;
    void* at = reinterpret_cast<void*>(g_region + g_region_used);
    g_region_used += (pages + kGap + kPage - 1) / kPage * kPage;
    int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
    int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    if (mmap(at, pages, protection, flags, fd, off_t(offset)) == MAP_FAILED) return nullptr;
    if (fd < 0 && !g_sample && !g_record.on) std::memset(at, 0xff, bytes);
    std::lock_guard<std::mutex> hold(g_lock);
    Cell* cells = nullptr;
    size_t need = (bytes / 4 + 1) * sizeof(Cell);
    auto map = [](size_t size) {
        void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return p == MAP_FAILED ? nullptr : p;
    };
    if (writable && g_trace && g_shadow_used + need <= kShadow) {
        cells = static_cast<Cell*>(map(need));
        g_shadow_used += need;
    }
    auto* seen = static_cast<uint16_t*>(map((bytes / 32 + 2) * 2));
    g_buffers.push_back({name, uintptr_t(at), bytes, bool(writable), !writable || writable == 2,
                         cells, seen, {}});
    return at;
}

// The host has written there, by cudaMemset and the like.
void sim_host_wrote(const void* address, size_t bytes) {
    auto from = uintptr_t(address);
    for (auto& b : g_buffers)
        if (from >= b.base && from < b.base + b.bytes) b.by_host.push_back({from, from + bytes});
}

static void tell(const std::string& line) {
    for (size_t done = 0; done < line.size();) {
        ssize_t n = write(g_report, line.data() + done, line.size() - done);
        if (n < 0) _exit(76);
        done += size_t(n);
    }
}

// What is known when all is over: outputs that nobody wrote, how often findings were met, sites.
void sim_finish() {
    for (auto& b : g_buffers) {
        if (b.name != "y" || !b.cells || b.initialised || g_faulted) continue;
        if (g_sample || g_record.on) continue;  // not all were to be written
        if (g_counters.fresh_outputs == b.bytes / 4) continue;
        size_t missing = 0, first = 0;
        for (size_t i = 0; i < b.bytes / 4; ++i) {
            bool there = b.cells[i].written == 15;
            for (auto& [from, to] : b.by_host)
                there |= b.base + 4 * i >= from && b.base + 4 * i < to;
            if (!there && !missing++) first = i;
        }
        if (missing)
            report(false, "never written", 0, {}, "%zu of the %zu elements of %s, the first of them "
                   "\x01%s:%zu\x02", missing, b.bytes / 4, b.name.c_str(), b.name.c_str(), 4 * first);
    }
    if (g_record.on) tell(g_record.text + (g_record.left ? "" : "recorded\tin part\n"));
    std::string line = "counts\t[";
    for (auto& f : g_findings) line += (line.back() == '[' ? "" : ",") + std::to_string(f.who.size());
    line += "]\n";
    for (auto& s : g_sites) {
        if (s.before_atomic) {
            char text[40];
            snprintf(text, sizeof text, "before_atomic\t%lx\n", (unsigned long)s.pc);
            line += text;
        }
        for (int space : {0, 1}) {
            const Stats& t = s.stats[space];
            if (!t.requests) continue;
            char text[400];
            snprintf(text, sizeof text, "site\t%lx\t%s\t%s\t%s\t%llu\t%llu\t%llu\t%llu\t%d\n",
                     (unsigned long)s.pc, space ? "shared" : "global", verb(s.kind),
                     t.array && *t.array ? t.array : "several", (unsigned long long)t.requests,
                     (unsigned long long)t.units, (unsigned long long)t.ideal_units,
                     (unsigned long long)t.lanes, s.bytes);
            line += text;
        }
    }
    line += "steps\t[";
    for (size_t i = 0; i < g_steps.size(); ++i)
        if (g_steps[i])
            line += (line.back() == '[' ? "[" : ",[") + std::to_string(i) + "," +
                    std::to_string(g_steps[i]) + "]";
    tell(line + "]\n");
}

const uint64_t* sim_counters(int* how_many) {
    *how_many = sizeof(Counters) / 8;
    return reinterpret_cast<const uint64_t*>(&g_counters);
}

// Where the library is that holds a code address.
static void find_code(uintptr_t inside) {
    dl_iterate_phdr([](dl_phdr_info* info, size_t, void* inside) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD ||
                *static_cast<uintptr_t*>(inside) - info->dlpi_addr - part.p_vaddr >= part.p_memsz)
                continue;
            g_code = info->dlpi_addr, g_code_bytes = part.p_vaddr + part.p_memsz;
            return 1;
        }
        return 0;
    }, &inside);
}

// ---- some blocks for all --------------------------------------------------------------------
// Which blocks of a launch run: all; or one; or a sample, each set of that size equally likely
// (R. Floyd's algorithm; the numbers are splitmix64's).
static void choose(Launch& launch) {
    if (g_record.on) {
        const uint3& b = g_record.block;
        launch.runs = b.x < launch.grid.x && b.y < launch.grid.y && b.z < launch.grid.z &&
                      g_record.kernels.insert(launch.name).second;
        launch.chosen = {b.x + uint64_t(launch.grid.x) * (b.y + uint64_t(launch.grid.y) * b.z)};
    } else if (g_sample && g_sample < launch.blocks) {
        uint64_t state = g_sample_seed << 20 ^ launch.number;
        auto draw = [&] {
            uint64_t z = state += 0x9e3779b97f4a7c15;
            z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
            z = (z ^ z >> 27) * 0x94d049bb133111eb;
            return z ^ z >> 31;
        };
        std::set<uint64_t> numbers;
        for (uint64_t last = launch.blocks - g_sample; last < launch.blocks; ++last)
            if (!numbers.insert(draw() % (last + 1)).second) numbers.insert(last);
        launch.chosen.assign(numbers.begin(), numbers.end());
        launch.runs = g_sample;
        launch.weight = double(launch.blocks) / double(g_sample);
    }
}

// The totals of the N blocks of a launch from the n that ran: N/n times their sum. Its variance is
// N^2 (1 - n/N) s^2 / n, where s^2 is that between the blocks (W. G. Cochran, Sampling Techniques,
// third edition, 1977, section 2.5). That is blind to the few blocks that are unlike all of the
// sample, as at a border. So mean^2 / n is added to s^2: as much as if one block in n, which the
// sample happened to miss, did nothing. The report has the variance of each counter.
static void extrapolate(const Launch& launch) {
    constexpr size_t kCounters = sizeof(Counters) / 8;
    std::string line = "sample\t" + std::to_string(launch.blocks) + "\t" +
                       std::to_string(launch.runs) + "\t[";
    double n = double(launch.runs), all = double(launch.blocks);
    for (size_t i = 0; i < kCounters; ++i) {
        auto of = [&](const Counters& c) { return double(reinterpret_cast<const uint64_t*>(&c)[i]); };
        double sum = 0, squares = 0;
        for (auto& block : launch.counted) sum += of(block);
        for (auto& block : launch.counted) squares += (of(block) - sum / n) * (of(block) - sum / n);
        double spread = squares / (n - 1) + sum * sum / n / n / n;
        double variance = launch.counted.empty() ? 0 : all * (all - n) * spread / n;
        reinterpret_cast<uint64_t*>(&g_counters)[i] += uint64_t(sum * launch.weight + 0.5);
        char text[40];
        snprintf(text, sizeof text, "%s%.9g", i ? "," : "", variance);
        line += text;
    }
    tell(line + "]\n");
}

// ---- what a kernel calls (see include/sim.h) ------------------------------------------------
void sim_launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes, const void* kernel,
                void (*body)(void*), void* context) {
    auto pc = uintptr_t(__builtin_return_address(0));
    int limit = kSharedDefault;
    for (auto& [which, bytes] : g_shared_opt_in)  // null: a template, and which is not known here
        if (which == kernel || !kernel) limit = std::max(limit, bytes);
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (!threads || threads > kMaxThreads || block.z > 64 || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        note(pc, "grid (%u, %u, %u) of blocks of (%u, %u, %u) threads: a block has 1 to %d threads, at "
             "most 64 in z; a grid has 1 to 2147483647 blocks in x, 65535 in y and in z",
             grid.x, grid.y, grid.z, block.x, block.y, block.z, kMaxThreads);
        g_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (shared_bytes > size_t(limit)) {
        note(pc, "%zu bytes of dynamic shared memory, and the kernel may have %d; ask for up to %d with "
             "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)",
             shared_bytes, limit, kSharedOptIn);
        g_error = cudaErrorInvalidValue;
        return;
    }
    if (!g_code) find_code(uintptr_t(body));
    if (!++g_launch) ++g_launch;
    Launch launch;
    launch.name = name, launch.number = g_launch;
    launch.grid = grid, launch.block = block;
    launch.shared_bytes = shared_bytes, launch.shared_limit = limit;
    launch.body = body, launch.context = context;
    launch.runs = launch.blocks = uint64_t(grid.x) * grid.y * grid.z;
    choose(launch);
    ++g_counters.launches;
    int workers = int(std::min<uint64_t>(uint64_t(std::min(g_threads, 256)), launch.runs));
    std::vector<std::thread> others;
    for (int i = 1; i < workers; ++i)
        others.emplace_back([&] {
            catch_signals_here();
            Worker().run(&launch);
        });
    g_os_threads = 0;
    for (auto& other : others) g_os_thread[g_os_threads++] = other.native_handle();
    Worker().run(&launch);
    for (auto& other : others) other.join();
    g_os_threads = 0;
    if (g_sample) extrapolate(launch);
    char line[600];
    snprintf(line, sizeof line, "launch\t%u,%u,%u\t%u,%u,%u\t%zu\t%.400s\n", grid.x, grid.y, grid.z,
             block.x, block.y, block.z, shared_bytes + launch.static_bytes, name);
    tell(line);
}

void* sim_shared(const char* name, const void* declaration, size_t bytes, const unsigned* shape) {
    return t_worker->array(name, declaration, bytes, shape);
}
void sim_fence() { if (t_worker) t_worker->fence(); }
void sim_copy_async(void* to, const void* from, size_t bytes, size_t zeros) {
    t_worker->copy(static_cast<char*>(to), static_cast<char*>(const_cast<void*>(from)),
                   unsigned(bytes), unsigned(zeros), uintptr_t(__builtin_return_address(0)));
}
void sim_copy_commit() { t_worker->commit(); }
void sim_copy_wait(unsigned newest) { t_worker->wait(newest); }
void* sim_dynamic_shared() { return sim_dynamic_array; }
int sim_barrier(int predicate, int* how_many) {
    return t_worker->barrier(predicate, how_many, uintptr_t(__builtin_return_address(0)));
}
void sim_collective(unsigned mask, void (*step)(void**, unsigned), void* argument) {
    Worker* w = t_worker;
    int lanes = std::min(32, w->threads - w->current / 32 * 32);
    w->collective(mask & (0xffffffffu >> (32 - lanes)), step, argument,
                  uintptr_t(__builtin_return_address(0)));
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
        note(uintptr_t(__builtin_return_address(0)), "cudaFuncSetAttribute asks for %d bytes of dynamic "
             "shared memory: a block has at most %d", value, kSharedOptIn);
        return g_error = cudaErrorInvalidValue;
    }
    g_shared_opt_in[kernel] = value;
    return cudaSuccess;
}
cudaError_t sim_malloc(void** pointer, size_t bytes) {
    *pointer = sim_map("cudaMalloc", -1, 0, bytes, 1);
    return *pointer ? cudaSuccess : g_error = cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }

// ---- cuBLAS: column-major, on the CPU. Its traffic is a model: 128 x 128 tiles of C, each
// reading its panels of A and B once. --------------------------------------------------------
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    static int one;
    *handle = reinterpret_cast<cublasHandle_t>(&one);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t status) { return cublasGetStatusString(status); }
const char* cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "an argument is out of range: check the "
                                                     "leading dimensions"
                                                   : "cuBLAS failed";
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                              int m, int n, int k, const float* alpha, const float* a, int lda,
                              const float* b, int ldb, const float* beta, float* c, int ldc) {
    g_library_call = uintptr_t(__builtin_return_address(0));
    return cublasSgemmStridedBatched(handle, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c,
                                     ldc, 0, 1);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k,
                                         const float* alpha, const float* a, int lda,
                                         long long stride_a, const float* b, int ldb,
                                         long long stride_b, const float* beta, float* c, int ldc,
                                         long long stride_c, int batch) {
    bool na = ta == CUBLAS_OP_N, nb = tb == CUBLAS_OP_N;
    if (!g_library_call) g_library_call = uintptr_t(__builtin_return_address(0));
    struct Call { ~Call() { g_library_call = 0; } } call;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(1, na ? m : k) ||
        ldb < std::max(1, nb ? k : n) || ldc < std::max(1, m)) {
        note(g_library_call, "cublasSgemm of m = %d, n = %d, k = %d: a leading dimension is less than "
             "its matrix has rows (lda = %d, ldb = %d, ldc = %d), or a size is negative",
             m, n, k, lda, ldb, ldc);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    auto column = [&](const float* ba, const float* bb, float* to, std::vector<float>& sum, int j) {
        std::fill(sum.begin(), sum.end(), 0.f);
        for (int l = 0; l < k; ++l) {
            float y = nb ? bb[l + size_t(j) * ldb] : bb[j + size_t(l) * ldb];
            if (na)
                for (int i = 0; i < m; ++i) sum[i] += ba[i + size_t(l) * lda] * y;
            else
                for (int i = 0; i < m; ++i) sum[i] += ba[l + size_t(i) * lda] * y;
        }
        for (int i = 0; i < m; ++i)
            to[i] = *alpha * sum[i] + (*beta == 0 ? 0 : *beta * to[i]);
    };
    std::atomic<long long> next{0};
    auto work = [&] {
        std::vector<float> sum(size_t(m), 0.f);
        for (long long t; (t = next.fetch_add(1)) < (long long)n * batch;) {
            long long i = t / n, j = t % n;
            column(a + i * stride_a, b + i * stride_b, c + i * stride_c + j * ldc, sum, int(j));
        }
    };
    std::vector<std::thread> others;
    bool partly = g_sample || g_record.on;  // then there is no right result, and no need of one
    for (int i = 1; i < g_threads && (long long)m * n * k * batch > 100000 && !partly; ++i)
        others.emplace_back(work);
    if (!partly) work();
    for (auto& other : others) other.join();
    for (int i = 0; i < batch && n; ++i)  // whole columns, gaps included
        sim_host_wrote(c + i * stride_c, (size_t(n - 1) * ldc + m) * 4);
    uint64_t tiles_m = uint64_t(m + 127) / 128, tiles_n = uint64_t(n + 127) / 128;
    g_counters.library_bytes += 4 * uint64_t(batch) *
                                (tiles_n * m * k + tiles_m * n * k + uint64_t(m) * n);
    g_counters.library_flops += 2 * uint64_t(batch) * m * n * k;
    ++g_counters.launches;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- the hooks: what -fsanitize=thread calls before each access -----------------------------
// What is copied whole moves in pieces of the largest power of two that its size and its
// alignment allow; where that is not known, of 4 bytes.
static inline void pieces(void* address, size_t bytes, size_t piece, Kind kind, void* pc) {
    Worker* w = t_worker;
    for (size_t at = 0; w && at < bytes; at += piece)
        w->access(uintptr_t(address) + at, unsigned(piece), kind, uintptr_t(pc), false);
}
static inline size_t piece_of(size_t bytes) { return std::min<size_t>(bytes & -bytes, 16); }
#define HOOK(name, bytes, kind, before, ordered)                                                \
    void __tsan_##name(void* address) {                                                         \
        if (Worker* w = t_worker) {                                                             \
            before;                                                                             \
            w->access(uintptr_t(address), bytes, kind,                                          \
                      uintptr_t(__builtin_return_address(0)), true, ordered);                   \
        }                                                                                       \
    }
#define HOOKS(n)                                                                                \
    HOOK(read##n, n, Kind::load, , false)                                                       \
    HOOK(write##n, n, Kind::store, , false)                                                     \
    HOOK(volatile_write##n, n, Kind::store, , true)                                             \
    HOOK(volatile_read##n, n, Kind::load, w->spin(), true)                                      \
    void __tsan_unaligned_read##n(void* address) {                                              \
        pieces(address, n, std::min(n, 4), Kind::load, __builtin_return_address(0));            \
    }                                                                                           \
    void __tsan_unaligned_write##n(void* address) {                                             \
        pieces(address, n, std::min(n, 4), Kind::store, __builtin_return_address(0));           \
    }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* address, size_t bytes) {
    pieces(address, bytes, piece_of(bytes), Kind::load, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
    pieces(address, bytes, piece_of(bytes), Kind::store, __builtin_return_address(0));
}
// Atomics of the C++ library in host code (the guard of a local static is one): just done.
#define ATOMICS(n, T)                                                                           \
    T __tsan_atomic##n##_load(const volatile T* p, int) { return __atomic_load_n(p, 5); }       \
    void __tsan_atomic##n##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, 5); }       \
    T __tsan_atomic##n##_exchange(volatile T* p, T v, int) {                                    \
        return __atomic_exchange_n(p, v, 5);                                                    \
    }                                                                                           \
    T __tsan_atomic##n##_fetch_add(volatile T* p, T v, int) {                                   \
        return __atomic_fetch_add(p, v, 5);                                                     \
    }                                                                                           \
    T __tsan_atomic##n##_fetch_sub(volatile T* p, T v, int) {                                   \
        return __atomic_fetch_sub(p, v, 5);                                                     \
    }                                                                                           \
    int __tsan_atomic##n##_compare_exchange_strong(volatile T* p, T* old, T v, int, int) {      \
        return __atomic_compare_exchange_n(p, old, v, false, 5, 5);                             \
    }                                                                                           \
    int __tsan_atomic##n##_compare_exchange_weak(volatile T* p, T* old, T v, int, int) {        \
        return __atomic_compare_exchange_n(p, old, v, false, 5, 5);                             \
    }
ATOMICS(8, uint8_t) ATOMICS(16, uint16_t) ATOMICS(32, uint32_t) ATOMICS(64, uint64_t)
void __tsan_init() {}
void __tsan_func_entry(void* from) {
    if (Worker* w = t_worker) w->function_entry(uintptr_t(from));
}
void __tsan_func_exit() {
    if (Worker* w = t_worker) w->function_exit();
}
// What -fsanitize-coverage=trace-pc calls at the start of each basic block.
void __sanitizer_cov_trace_pc() {
    if (Worker* w = t_worker) w->step(uintptr_t(__builtin_return_address(0)));
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

}  // extern "C"
