// Runs a block's threads as fibers: which thread runs next, and how a thread begins and ends.
#pragma once
#include "findings.h"
#include "switch.h"

namespace {
// Returns a pseudo-random number from 1 to kMostUntilSwitch (a linear congruential generator).
int Worker::draw() {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return 1 + int(random_state >> 33) % kMostUntilSwitch;
}

// Stacks of workers that have ended, each with its guard, for later workers; at most kMostKept. And
// address space for new ones, which is mapped for kAtOnce stacks at once.
constexpr size_t kMostKept = 1024, kAtOnce = 64;
std::vector<char*> g_kept_stacks;
char* g_unused_stacks = nullptr;
size_t g_unused = 0;

// Returns a guard and the stack above it; null without memory.
char* take_stack() {
    std::lock_guard<std::mutex> hold(g_lock);
    if (!g_kept_stacks.empty()) {
        char* kept = g_kept_stacks.back();
        g_kept_stacks.pop_back();
        return kept;
    }
    if (!g_unused) {
        g_unused_stacks = static_cast<char*>(reserve(kAtOnce * (kGuard + kStackRoom), PROT_NONE));
        if (!g_unused_stacks) return nullptr;
        g_unused = kAtOnce;
    }
    --g_unused;
    char* fresh = std::exchange(g_unused_stacks, g_unused_stacks + kGuard + kStackRoom);
    return mprotect(fresh + kGuard, kStackRoom, PROT_READ | PROT_WRITE) ? nullptr : fresh;
}

// Keeps the stacks of a worker that ends, or unmaps them.
void Worker::return_stacks() {
    std::lock_guard<std::mutex> hold(g_lock);
    for (char* stacks : reserved)
        if (!crowded && g_kept_stacks.size() < kMostKept)
            g_kept_stacks.push_back(stacks);
        else
            munmap(stacks, kGuard + stacks_at_once() * kStackRoom);
}

char* Worker::new_stack() {
    if (!free_stacks.empty()) {
        char* stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }
    // The guard pages below a stack stay unmapped, so that a stack overflow faults. With many
    // workers the process would exceed its limit of memory maps, so 32 stacks share one guard.
    int n = stacks_at_once();
    char* stack = n == 1 ? take_stack() : static_cast<char*>(reserve(kGuard + n * kStackRoom, PROT_NONE));
    if (!stack || (n > 1 && mprotect(stack + kGuard, n * kStackRoom, PROT_READ | PROT_WRITE)))
        out_of_stacks();
    reserved.push_back(stack);
    for (stack += kGuard; n-- > 0; stack += kStackRoom) {
        free_stacks.push_back(stack + color);
        color = (color + kColor) % kColors;
    }
    stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

void Worker::release_stack(char* stack, bool in_use) {
    if (!in_use) return free_stacks.push_back(stack);
    if (dead_stack) free_stacks.push_back(dead_stack);
    dead_stack = stack;
}

inline void Worker::enter(int next, void** save) {
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

inline void Worker::find_log(int i) {
    if (!is_counted) return;
    Fiber& f = fibers[i];
    next_entry = row_of(i) + f.logged;
    log_end = row_of(i) + kLog;
    step_at = f.step, step_log = f.still ? next_entry : nullptr;
}

inline void Worker::save_log(int i) {
    if (!is_counted) return;
    Fiber& f = fibers[i];
    f.logged = int(next_entry - row_of(i));
    f.step = step_at, f.still = next_entry == step_log;
}

inline bool Worker::can_run(int i) const {
    return fibers[i].state == State::ready || fibers[i].state == State::fresh;
}

// Switches to the next thread that can run, or to the scheduler if all threads have ended.
void Worker::yield() {
    resolve_pending();
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

// Called in loops that may poll for another thread. Nothing preempts a fiber, so it must yield.
// `at` is the address of a volatile read; 0 after a failed compare-and-swap, which is counted.
void Worker::spin(uintptr_t at) {
    g_synchronizes = true;
    if (++spins % 16 == 0) yield();
    if (at) count_poll(at);
}

void start_worker(Launch& launch);

// Counts the reads of one address by one thread. A thread that reads it this often may wait for a
// block that has not begun, or for one on another worker: this starts one worker more, and yields.
void Worker::count_poll(uintptr_t at) {
    Fiber& f = fibers[current];
    if (at != f.polled_at) f.polls = 0, f.polled_at = at;
    if (++f.polls % kPatience) return;
    if (f.polls % (crowded ? kPatience : kRelief) == 0) start_worker(*launch);
    yield();
    if (!launch->serial) return void(sched_yield());
    launch->turns.pass(number);
    launch->turns.wait(number);
}

// Marks a thread as one that has ended.
void Worker::ends(int thread) {
    fibers[thread].state = State::done;
    warps[thread / 32].ended |= 1u << thread % 32;
}

// Ends the current thread, at its return or at an error.
void Worker::leave(bool at_fault) {
    resolve_pending();
    Fiber& f = fibers[current];
    ends(current);
    abandoned |= at_fault;
    --live;
    release_stack(f.stack, true);
    yield();
    abort();  // never reached: a finished fiber does not run again
}

void Worker::run_block(uint64_t number) {
    const dim3 &g = launch->grid, &b = launch->block;
    blockDim = b;
    gridDim = g;
    blockIdx = launch->block_of(number);
    block = number;
    ++owner;
    ++era;
    phase = 1, barrier_at = 0;
    abandoned = learned = replaces = false;
    words.clear();
    own_order = {};
    threads = live = int(b.x * b.y * b.z);
    waiting = votes = 0;
    words_checked = 0;
    arrays.clear();
    shared_used = kRedZone;
    dynamic = nullptr;
    if (launch->shared_bytes)
        dynamic = allocate_shared("extern __shared__", nullptr, launch->shared_bytes, nullptr);
    if (launch->cluster_blocks() > 1) {
        std::lock_guard<std::mutex> hold(launch->lock);
        launch->shared_of[number] = shared;
    }
    sim_dynamic_array = dynamic ? dynamic : shared;
    fibers.resize(threads);
    warps.assign((threads + 31) / 32, Warp{});
    copies.assign(copies.empty() ? 0 : threads, {});
    async = {};
    is_watched = g_trace && !g_unnumbered && launch->watches(number);
    is_counted = is_watched && g_counts;
    next_entry = &last_access, log_end = nullptr;
    if (is_counted && threads > logs) log.reset(new Access[size_t(logs = threads) * kLogPitch]);
    for (int i = 0; i < threads; ++i) {
        fibers[i] = Fiber{};
        fibers[i].index = launch->thread_of(unsigned(i));
    }
    current = -1;
    random_state = number * 2 + 1 + (uint64_t(g_schedule) << 40);
    until_switch = g_schedule ? draw() : kNever;
    t_worker = this;
    yield();
    compare_warpgroups();
    t_worker = nullptr;
    if (is_counted)
        for (int w = 0; w < int(warps.size()); ++w) flush(w);
    count_partial();
}
}  // namespace
