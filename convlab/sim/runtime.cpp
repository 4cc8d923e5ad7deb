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
//   warp      each lane logs its accesses; when no lane of the warp can go on, the k-th execution
//             of one instruction by the lanes is one warp request, and its 32-byte sectors (global)
//             or wavefronts (shared: 32 banks of 4 bytes, equal words broadcast) are counted.
//   fault     the first one is written to the report and ends the process: it runs one launch.
#define SIM_RUNTIME
#include "cublas_v2.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <mutex>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;
extern "C" { __thread char* sim_dynamic_array; }  // an `extern __shared__` at file scope is this

namespace {

constexpr size_t kStack = 64 << 10;          // bytes of stack a CUDA thread has
constexpr size_t kPage = 4096;
constexpr size_t kGuard = 1 << 20;           // unmapped bytes below each stack
constexpr size_t kGap = size_t(1) << 30;     // unmapped bytes between two buffers
constexpr size_t kRegion = size_t(1) << 40;  // address space for all buffers
constexpr size_t kSharedSpan = 512 << 10;    // address space for one block's shared arrays
constexpr size_t kRedZone = 128;             // poisoned bytes after each shared array
constexpr int kLog = 1024;                   // accesses a lane logs before its warp is counted
constexpr int kPatience = 64;                // accesses before a switch, at most (schedule > 0)

// ---- the simulated GPU: an H200's limits ---------------------------------------------------
constexpr int kMaxThreads = 1024, kSharedDefault = 48 << 10, kSharedOptIn = 227 << 10;

struct Buffer {
    std::string name;
    uintptr_t base;
    size_t bytes;
    bool writable;
};

struct Counters {  // see COUNTERS in __init__.py: the same order
    uint64_t global_load_requests, global_load_sectors, global_store_requests,
        global_store_sectors, shared_requests, shared_wavefronts, atomics, barriers, launches,
        library_bytes;
    void add(const Counters& other) {
        auto* to = reinterpret_cast<uint64_t*>(this);
        auto* from = reinterpret_cast<const uint64_t*>(&other);
        for (size_t i = 0; i < sizeof(Counters) / 8; ++i) to[i] += from[i];
    }
};

struct Site {  // one load or store instruction of the kernel
    uintptr_t pc = 0;
    uintptr_t low = 0;  // the buffer or array it touched last
    size_t span = 0;
    uint16_t bytes = 0;
    bool write = false;
};

struct Access {
    uint64_t address : 48, site : 16;
};

struct Array {  // a __shared__ array of the block
    const char* name;
    const void* declaration;
    size_t bytes;
    char* base;
};

enum class State : uint8_t { fresh, ready, at_barrier, at_warp, asks_active, log_full, done };

struct Fiber {
    State state;
    void* stack_pointer;
    char* stack;
    uint3 index;
    int logged;
    uintptr_t waits_at;  // the code address of what it waits for
    unsigned active;     // __activemask's answer
};

struct Group {  // lanes of a warp that gather for one warp operation
    unsigned mask, arrived;
    void (*step)(void**, unsigned);
};
struct Warp {
    void* arguments[32];
    std::vector<Group> gathering;  // their masks name different lanes
};

struct Launch {
    dim3 grid, block;
    size_t shared_bytes;
    int shared_limit;
    void (*body)(void*);
    void* context;
    uint64_t blocks;
    std::atomic<uint64_t> next{0};
};

uintptr_t g_region = 0;
size_t g_region_used = kGap;
std::vector<Buffer> g_buffers;
Counters g_counters;
std::mutex g_lock;
int g_threads = 1, g_report = 2;
bool g_trace = true;
unsigned g_schedule = 0;
cudaError_t g_error = cudaSuccess;
std::unordered_map<const void*, int> g_shared_opt_in;

struct Worker;
__thread Worker* t_worker = nullptr;  // set while a fiber of this OS thread runs

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
    std::vector<Site> sites;
    std::vector<uint16_t> site_of;  // hash of a pc -> index into sites, plus one
    struct Execution {  // of one instruction by a divergent warp: [k][lane that got there]
        size_t next;
        std::vector<uint8_t> lanes;
        std::vector<uint64_t> addresses;
    };
    std::vector<Execution> executions;
    static constexpr int kMaxDepth = 128;  // 32 lanes of 16 bytes, all in one group of banks
    uint32_t seen_words[32][kMaxDepth];
    std::vector<Array> arrays;
    char* shared = nullptr;
    size_t shared_used = 0;
    char* dynamic = nullptr;
    Counters counters{};

    Worker() : sites(1), site_of(1 << 13) {
        shared = static_cast<char*>(mmap(nullptr, kSharedSpan, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }

    // -- shared memory: arrays in the order in which the block first meets them --
    char* allot(const char* name, const void* declaration, size_t bytes) {
        char* base = shared + shared_used;
        shared_used += (bytes + kRedZone + 127) / 128 * 128;
        if (shared_used > kSharedSpan) fault("shared memory", 0, "%s needs %zu bytes", name, bytes);
        std::memset(base, 0xff, bytes + kRedZone);  // NaN to floats
        arrays.push_back({name, declaration, bytes, base});
        return base;
    }
    void* array(const char* name, const void* declaration, size_t bytes) {
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
        return allot(name, declaration, bytes);
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
        threadIdx = f.index;
        sim_switch(save, f.stack_pointer);
    }

    bool can_run(int i) const {
        return fibers[i].state == State::ready || fibers[i].state == State::fresh;
    }

    // Leaves the current fiber for the next that can run; back to the scheduler if none is left.
    void yield() {
        int from = current;
        void** save = from < 0 ? &scheduler : &fibers[from].stack_pointer;
        bool backwards = g_schedule & 1;
        for (;;) {
            for (int i = 1; i <= threads; ++i) {
                int next = backwards ? (from < 0 ? threads : from) - i : from + i;
                if (next >= threads) next -= threads;
                if (next < 0) next += threads;
                if (!can_run(next)) continue;
                if (next == from) return;
                return enter(next, save);
            }
            if (live == 0) {
                current = -1;
                sim_switch(save, scheduler);
                return;
            }
            if (!release()) deadlock();
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
                if (fibers[i].state == State::log_full) fibers[i].state = State::ready;
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
        if (group.step) group.step(warp.arguments, group.arrived);
        for (int lane = 0; lane < 32; ++lane)
            if (group.arrived >> lane & 1) fibers[w * 32 + lane].state = State::ready;
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

    [[noreturn]] void deadlock() {
        int at_barrier = 0, at_warp = 0, example = -1;
        for (int i = threads; i-- > 0;) {
            at_barrier += fibers[i].state == State::at_barrier;
            if (fibers[i].state == State::at_warp) ++at_warp, example = i;
        }
        current = example;
        Group g{};
        for (auto& group : warps[example / 32].gathering)
            if (group.arrived >> example % 32 & 1) g = group;
        fault("deadlock", fibers[example].waits_at,
              "%d threads wait at __syncthreads and %d in warp operations; one of mask 0x%08x waits "
              "for lanes 0x%08x, which never come",
              at_barrier, at_warp, g.mask, g.mask & ~g.arrived);
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
        blockIdx = {unsigned(number % g.x), unsigned(number / g.x % g.y),
                    unsigned(number / g.x / g.y)};
        threads = live = int(b.x * b.y * b.z);
        waiting = votes = 0;
        arrays.clear();
        shared_used = kRedZone;
        dynamic = nullptr;
        if (launch->shared_bytes)
            dynamic = allot("extern __shared__", nullptr, launch->shared_bytes);
        sim_dynamic_array = dynamic ? dynamic : shared;
        fibers.resize(threads);
        warps.assign((threads + 31) / 32, Warp{});
        if (g_trace) log.resize(size_t(threads) * kLog);
        for (int i = 0; i < threads; ++i) {
            fibers[i] = {State::fresh, nullptr, nullptr, {}, 0, 0, 0};
            fibers[i].index = {unsigned(i % b.x), unsigned(i / b.x % b.y), unsigned(i / b.x / b.y)};
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
        for (uint64_t i; (i = l->next.fetch_add(1)) < l->blocks;) 
            run_block(g_schedule & 1 ? l->blocks - 1 - i : i);
        if (dead_stack) free_stacks.push_back(dead_stack);
        for (char* stack : free_stacks) munmap(stack - kGuard, kGuard + kStack);
        munmap(shared, kSharedSpan);
        std::lock_guard<std::mutex> hold(g_lock);
        g_counters.add(counters);
    }

    // -- accesses --
    Site& site(uintptr_t pc, unsigned bytes, bool write, uint16_t& index) {
        size_t h = (pc ^ pc >> 13) & (site_of.size() - 1);
        for (;; h = (h + 1) & (site_of.size() - 1)) {
            index = site_of[h];
            if (!index) break;
            if (sites[index].pc == pc) return sites[index];
        }
        if (sites.size() == 0xffff || sites.size() * 2 > site_of.size())
            fault("too many instructions", pc, "the kernel has more memory instructions than the "
                  "simulator can tell apart");
        site_of[h] = index = uint16_t(sites.size());
        Site s;
        s.pc = pc, s.bytes = uint16_t(bytes), s.write = write;
        sites.push_back(s);
        return sites.back();
    }

    void access(uintptr_t address, unsigned bytes, bool write, uintptr_t pc,
                bool aligned = true) {
        bool global = address - g_region < kRegion;
        if (!global && address - uintptr_t(shared) >= kSharedSpan) return;  // its stack, a constant
        uint16_t index;
        Site& s = site(pc, bytes, write, index);
        if (address - s.low > s.span - bytes || s.span < bytes) locate(s, address, bytes, global);
        if (aligned && address % bytes)
            fault("misaligned access", pc, "%s of %u bytes at an address that is not a multiple of "
                  "%u", write ? "store" : "load", bytes, bytes);
        if (g_schedule && --patience == 0) {
            patience = draw();
            yield();
        }
        if (!g_trace) return;
        Fiber& f = fibers[current];
        if (f.logged == kLog) {
            f.state = State::log_full;
            yield();
        }
        log[size_t(current) * kLog + fibers[current].logged++] = {address, index};
    }

    void locate(Site& s, uintptr_t address, unsigned bytes, bool global) {
        const char* verb = s.write ? "store" : "load";
        if (global) {
            const Buffer* near = nullptr;
            for (auto& b : g_buffers) {
                if (address + bytes > b.base - kGap / 2 && address < b.base + b.bytes + kGap / 2)
                    near = &b;
                if (address < b.base || address + bytes > b.base + b.bytes) continue;
                if (s.write && !b.writable)
                    fault("store to an input", s.pc, "store to %s, which is an input",
                          b.name.c_str());
                s.low = b.base, s.span = b.bytes;
                return;
            }
            if (!near) fault("global out of bounds", s.pc, "%s far outside every buffer", verb);
            fault("global out of bounds", s.pc, "%s of %u bytes at %s[%lld], which has %zu elements",
                  verb, bytes, near->name.c_str(), (long long)(int64_t(address - near->base) >> 2),
                  near->bytes / 4);
        }
        const Array* near = nullptr;
        for (auto& a : arrays) {
            uintptr_t base = uintptr_t(a.base);
            if (address >= base && address + bytes <= base + a.bytes) {
                s.low = base, s.span = a.bytes;
                return;
            }
            if (!near || address >= base) near = &a;
        }
        if (!near) fault("shared out of bounds", s.pc, "%s, though the block has no array", verb);
        fault("shared out of bounds", s.pc, "%s of %u bytes at byte %lld of %s, which has %zu", verb,
              bytes, (long long)(address - uintptr_t(near->base)), near->name, near->bytes);
    }

    // -- counting: the log of a warp, turned into requests --
    void flush(int w) {
        if (!g_trace) return;
        int first = w * 32, lanes = std::min(32, threads - first);
        const Access* rows[32];
        int length = 0;
        bool uniform = true;
        for (int l = 0; l < lanes; ++l) {
            rows[l] = &log[size_t(first + l) * kLog];
            int n = fibers[first + l].logged;
            uniform &= n == fibers[first].logged;
            length = std::max(length, n);
        }
        for (int i = 0; uniform && i < length; ++i)
            for (int l = 1; l < lanes; ++l) uniform &= rows[l][i].site == rows[0][i].site;
        uintptr_t addresses[32];
        if (uniform) {
            for (int i = 0; i < length; ++i) {
                for (int l = 0; l < lanes; ++l) addresses[l] = rows[l][i].address;
                request(sites[rows[0][i].site], addresses, lanes);
            }
        } else {  // lanes went different ways: match the k-th execution of each instruction
            executions.resize(sites.size());
            for (int l = 0; l < lanes; ++l) {
                for (auto& e : executions) e.next = 0;
                for (int i = 0; i < fibers[first + l].logged; ++i) {
                    Execution& e = executions[rows[l][i].site];
                    size_t k = e.next++;
                    if (k == e.lanes.size()) {
                        e.lanes.push_back(0);
                        if (e.addresses.size() < 32 * (k + 1)) e.addresses.resize(32 * (k + 1));
                    }
                    e.addresses[32 * k + e.lanes[k]++] = rows[l][i].address;
                }
            }
            for (size_t s = 1; s < sites.size(); ++s) {
                Execution& e = executions[s];
                for (size_t k = 0; k < e.lanes.size(); ++k)
                    request(sites[s], &e.addresses[32 * k], e.lanes[k]);
                e.lanes.clear();
            }
        }
        for (int l = 0; l < lanes; ++l) fibers[first + l].logged = 0;
    }

    void request(const Site& s, const uint64_t* addresses, int lanes) {
        if (addresses[0] - g_region < kRegion) {
            uint64_t seen[64], last = ~uint64_t(0);
            int n = 0;
            auto add = [&](uint64_t sector) {
                if (sector == last) return;
                last = sector;
                for (int i = n; i-- > 0;)
                    if (seen[i] == sector) return;
                seen[n++] = sector;
            };
            for (int l = 0; l < lanes; ++l) {
                add(addresses[l] >> 5);
                add((addresses[l] + s.bytes - 1) >> 5);
            }
            (s.write ? counters.global_store_requests : counters.global_load_requests) += 1;
            (s.write ? counters.global_store_sectors : counters.global_load_sectors) += n;
            return;
        }
        // Shared: each bank serves one 4-byte word a wavefront, to all lanes that want that word.
        int words = std::max(1, s.bytes / 4), worst = 0;
        uint8_t depth[32] = {};
        for (int l = 0; l < lanes; ++l)
            for (int j = 0; j < words; ++j) {
                auto word = uint32_t((addresses[l] - uintptr_t(shared)) >> 2) + j;
                int bank = word & 31, d = depth[bank], i = 0;
                while (i < d && seen_words[bank][i] != word) ++i;
                if (i < d || d == kMaxDepth) continue;
                seen_words[bank][d] = word;
                depth[bank] = uint8_t(d + 1);
                worst = std::max(worst, d + 1);
            }
        counters.shared_requests += 1;
        counters.shared_wavefronts += worst;
    }
};

// ---- faults ---------------------------------------------------------------------------------
// One line to the report: kind, code address, block, thread, text, tab-separated.
[[noreturn]] void fault(const char* kind, uintptr_t pc, const char* format, ...) {
    char text[512], line[1024];
    va_list more;
    va_start(more, format);
    vsnprintf(text, sizeof text, format, more);
    va_end(more);
    Worker* w = t_worker;
    bool in_kernel = w && w->current >= 0;
    uint3 t = in_kernel ? w->fibers[w->current].index : uint3{};
    int n = snprintf(line, sizeof line, "fault\t%s\t%lx\t%d\t%u,%u,%u\t%u,%u,%u\t%s\n", kind,
                     (unsigned long)pc, in_kernel, blockIdx.x, blockIdx.y, blockIdx.z, t.x, t.y,
                     t.z, text);
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
        if (write(g_report, line, size_t(std::min(n, int(sizeof line) - 1))) < 0) _exit(76);
        fflush(stdout);
        _exit(77);
    }
    for (;;) pause();  // another thread is already reporting
}

// One line to the report that says more than an error code does.
void note(const char* format, ...) {
    char line[512] = "note\t";
    va_list more;
    va_start(more, format);
    int n = 5 + vsnprintf(line + 5, sizeof line - 6, format, more);
    va_end(more);
    line[n = std::min(n, int(sizeof line) - 2)] = '\n';
    if (write(g_report, line, size_t(n) + 1) < 0) _exit(76);
}

void on_signal(int number, siginfo_t* info, void* context) {
    auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    auto pc = uintptr_t(machine.gregs[REG_RIP]) + 1;  // hooks pass return addresses: one past
#else
    auto pc = uintptr_t(machine.pc) + 1;
#endif
    auto address = uintptr_t(info->si_addr);
    Worker* w = t_worker;
    if (number == SIGFPE) fault("arithmetic", pc, "integer division by zero");
    if (number == SIGABRT) fault("abort", 0, "abort() was called");
    if (number == SIGILL) fault("abort", pc, "illegal instruction");
    if (w && w->current >= 0 && uintptr_t(w->fibers[w->current].stack) - address - 1 < kGuard)
        fault("stack overflow", pc, "a thread's local variables need more than %zu bytes", kStack);
    // x86 gives no address (SI_KERNEL, 0) for one that is not canonical
    if (address < 1 << 16 && info->si_code != SI_KERNEL)
        fault("null pointer", pc, "access through a null pointer");
    fault("illegal address", pc, "access to memory that belongs to no buffer");
}

void catch_signals_here() {  // on a stack of their own: the fiber's may be what overflowed
    stack_t stack{malloc(kStack), 0, kStack};
    sigaltstack(&stack, nullptr);
}

}  // namespace

extern "C" void sim_fiber_start() {
    Worker* w = t_worker;
    w->launch->body(w->launch->context);
    Fiber& f = w->fibers[w->current];
    f.state = State::done;
    --w->live;
    if (w->dead_stack) w->free_stacks.push_back(w->dead_stack);
    w->dead_stack = f.stack;
    w->yield();
    abort();  // a finished fiber is never entered again
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
    catch_signals_here();
}

void sim_schedule(unsigned number) { g_schedule = number; }

// Maps a buffer with unmapped memory on both sides; fd < 0: private memory, poisoned (all ones).
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int writable) {
    size_t pages = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    if (g_region_used + pages + kGap > kRegion) return nullptr;
    void* at = reinterpret_cast<void*>(g_region + g_region_used);
    g_region_used += (pages + kGap + kPage - 1) / kPage * kPage;
    int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
    int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    if (mmap(at, pages, protection, flags, fd, off_t(offset)) == MAP_FAILED) return nullptr;
    if (fd < 0) std::memset(at, 0xff, bytes);
    std::lock_guard<std::mutex> hold(g_lock);
    g_buffers.push_back({name, uintptr_t(at), bytes, bool(writable)});
    return at;
}

const uint64_t* sim_counters(int* how_many) {
    *how_many = sizeof(Counters) / 8;
    return reinterpret_cast<const uint64_t*>(&g_counters);
}

// ---- what a kernel calls (see include/sim.h) ------------------------------------------------
void sim_launch(dim3 grid, dim3 block, size_t shared_bytes, const void* kernel,
                void (*body)(void*), void* context) {
    int limit = kSharedDefault;
    for (auto& [which, bytes] : g_shared_opt_in)  // null: a template, and which is not known here
        if (which == kernel || !kernel) limit = std::max(limit, bytes);
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (!threads || threads > kMaxThreads || block.z > 64 || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        note("grid (%u, %u, %u) of blocks of (%u, %u, %u) threads: a block has 1 to %d threads, at "
             "most 64 in z; a grid has 1 to 2147483647 blocks in x, 65535 in y and in z",
             grid.x, grid.y, grid.z, block.x, block.y, block.z, kMaxThreads);
        g_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (shared_bytes > size_t(limit)) {
        note("%zu bytes of dynamic shared memory, and the kernel may have %d; ask for up to %d with "
             "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)",
             shared_bytes, limit, kSharedOptIn);
        g_error = cudaErrorInvalidValue;
        return;
    }
    Launch launch;
    launch.grid = grid, launch.block = block;
    launch.shared_bytes = shared_bytes, launch.shared_limit = limit;
    launch.body = body, launch.context = context;
    launch.blocks = uint64_t(grid.x) * grid.y * grid.z;
    ++g_counters.launches;
    int workers = int(std::min<uint64_t>(uint64_t(g_threads), launch.blocks));
    std::vector<std::thread> others;
    for (int i = 1; i < workers; ++i)
        others.emplace_back([&] {
            catch_signals_here();
            Worker().run(&launch);
        });
    Worker().run(&launch);
    for (auto& other : others) other.join();
}

void* sim_shared(const char* name, const void* declaration, size_t bytes) {
    return t_worker->array(name, declaration, bytes);
}
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
    ++w->counters.atomics;
    w->access(uintptr_t(address), bytes, true, uintptr_t(__builtin_return_address(0)));
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
    if (value < 0 || value > kSharedOptIn) return g_error = cudaErrorInvalidValue;
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
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(1, na ? m : k) ||
        ldb < std::max(1, nb ? k : n) || ldc < std::max(1, m))
        return CUBLAS_STATUS_INVALID_VALUE;
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
    for (int i = 1; i < g_threads && (long long)m * n * k * batch > 100000; ++i)
        others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
    uint64_t tiles_m = uint64_t(m + 127) / 128, tiles_n = uint64_t(n + 127) / 128;
    g_counters.library_bytes += 4 * uint64_t(batch) *
                                (tiles_n * m * k + tiles_m * n * k + uint64_t(m) * n);
    ++g_counters.launches;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- the hooks: what -fsanitize=thread calls before each access -----------------------------
// What is copied whole moves in pieces of the largest power of two that its size and its
// alignment allow; where that is not known, of 4 bytes.
static inline void pieces(void* address, size_t bytes, size_t piece, bool write, void* pc) {
    Worker* w = t_worker;
    for (size_t at = 0; w && at < bytes; at += piece)
        w->access(uintptr_t(address) + at, unsigned(piece), write, uintptr_t(pc), false);
}
static inline size_t piece_of(size_t bytes) { return std::min<size_t>(bytes & -bytes, 16); }
#define HOOK(name, bytes, write)                                                                \
    void __tsan_##name(void* address) {                                                         \
        if (Worker* w = t_worker)                                                               \
            w->access(uintptr_t(address), bytes, write,                                         \
                      uintptr_t(__builtin_return_address(0)));                                  \
    }
#define HOOKS(n)                                                                                \
    HOOK(read##n, n, false)                                                                     \
    HOOK(write##n, n, true)                                                                     \
    HOOK(volatile_write##n, n, true)                                                            \
    void __tsan_volatile_read##n(void* address) {                                               \
        if (Worker* w = t_worker) {                                                             \
            w->spin();                                                                          \
            w->access(uintptr_t(address), n, false, uintptr_t(__builtin_return_address(0)));    \
        }                                                                                       \
    }                                                                                           \
    void __tsan_unaligned_read##n(void* address) {                                              \
        pieces(address, n, std::min(n, 4), false, __builtin_return_address(0));                 \
    }                                                                                           \
    void __tsan_unaligned_write##n(void* address) {                                             \
        pieces(address, n, std::min(n, 4), true, __builtin_return_address(0));                  \
    }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* address, size_t bytes) {
    pieces(address, bytes, piece_of(bytes), false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
    pieces(address, bytes, piece_of(bytes), true, __builtin_return_address(0));
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
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

}  // extern "C"
