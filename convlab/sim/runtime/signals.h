// Handles signals: crashes and the time limit.
#pragma once
#include "memory.h"

#include <dlfcn.h>
#include <exception>
#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>

namespace {
// Returns the code address of a signal in the hooks' form: like a return address, past the start.
uintptr_t code_address(const mcontext_t& machine) {
#if defined(__x86_64__)
    return uintptr_t(machine.gregs[REG_RIP]) + 1;
#else
    return uintptr_t(machine.pc) + 1;
#endif
}

// Returns whether a code address is in the kernel's file, not in a library or a C++ header.
bool of_kernel(uintptr_t pc) {
    Dl_info f{};
    if (pc - g_code >= g_code_bytes) return false;
    const char* name = dladdr(reinterpret_cast<void*>(pc), &f) ? f.dli_sname : nullptr;
    const char* std = name ? strstr(name, "St") : nullptr;  // _ZSt, _ZNSt, _ZNKSt
    return !std || std - name > 4;
}

// Returns the code address in the kernel's file from which the crashing function was called.
uintptr_t called_from(uintptr_t pc) {
    void* frames[64];
    int n = of_kernel(pc) ? 0 : backtrace(frames, int(std::size(frames)));
    for (int i = 0; i < n; ++i)
        if (of_kernel(uintptr_t(frames[i]))) return uintptr_t(frames[i]);
    return pc;
}

[[noreturn]] void abandon() { t_worker->leave(true); }

// Reports that the kernel's file ends the process, by exit() or an exception.
[[noreturn]] void stopped(const std::string& how) {
    fault("abort", called_from(0), "%s", how);
}
void on_exit() {
    if (getpid() == g_process) stopped("exit() was called");  // not in a process that it forked
}
void on_terminate() {
    std::string how = "std::terminate() was called";
    try {
        if (auto thrown = std::current_exception()) {
            how = "an exception was thrown and not caught";
            std::rethrow_exception(thrown);
        }
    } catch (const std::exception& error) {
        how += text(": %s", error.what());
    } catch (...) {
    }
    stopped(how);
}

std::atomic<bool> g_time_is_up{false};

void on_signal(int number, siginfo_t* info, void* context) {
    // The time limit stopped the run wherever it was, so what happens then is no mistake of the kernel.
    if (g_time_is_up) end(78);
    auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
    uintptr_t pc = code_address(machine);
    auto address = uintptr_t(info->si_addr);
    Worker* w = t_worker;
    bool in_kernel = w && w->current >= 0;
    const Buffer* near = buffer_near(address);
    bool inside = near && address - near->base < near->bytes;
    if (!in_kernel || number == SIGABRT) pc = g_library_call ? g_library_call : called_from(pc);
    auto report_here = [&](const char* kind, const char* format, const auto&... arguments) {
        report(true, kind, pc, {}, format, arguments...);
    };
    if (number == SIGFPE) report_here("arithmetic", "integer division by zero");
    else if (number == SIGABRT) report_here("abort", "abort() was called");
    else if (number == SIGILL) report_here("abort", "illegal instruction");
    else if (in_kernel && uintptr_t(w->fibers[w->current].stack) - address - 1 < kGuard)
        report_here("stack overflow", "a thread's local variables need more than %zu bytes",
                    kStack);
    // x86 reports address 0 with SI_KERNEL for an address that is not canonical.
    else if (address < 1 << 24 && info->si_code != SI_KERNEL)  // null, plus an index
        report_here("null pointer", "access through a null pointer%s", g_null);
    else if (inside && in_kernel)
        report_here("store to an input", "store to %s: %s is an input, which a kernel may not "
                    "write", place_of(address), near->name);
    else if (inside)
        report_here("host access", "host code accesses %s, which is device memory",
                    place_of(address));
    else if (near)
        report_here("global out of bounds", "access%s at %s", g_library_call ? " by a library" : "",
                    place_outside(near->name, long(address - near->base), near->bytes, nullptr));
    else report_here("illegal address", "access to memory that belongs to no buffer");
    if (!in_kernel || number == SIGABRT) end(77);
    // When this handler returns, the thread runs `abandon` on its emptied stack, and ends.
    auto top = uintptr_t(w->fibers[w->current].stack) + kStack - 256;
#if defined(__x86_64__)
    machine.gregs[REG_RSP] = greg_t(top - 8);
    machine.gregs[REG_RIP] = greg_t(uintptr_t(abandon));
#else
    machine.sp = top;
    machine.pc = uintptr_t(abandon);
#endif
}

double clock_seconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return double(now.tv_sec) + double(now.tv_nsec) / 1e9;
}

// Returns whether the time is up, or no block has ended for too long. If so, reports the progress
// of the launch. On a busy machine a stall is one of CPU seconds. A process that sleeps uses none;
// then all seconds count.
bool time_is_up() {
    if (g_time_is_up) return true;
    auto& d = g_deadline;
    double used = clock_seconds(CLOCK_PROCESS_CPUTIME_ID), cpu = used - d.used;
    double at_work = cpu < d.tick / 50 ? d.tick : std::min(cpu, d.tick);
    uint64_t ended = g_blocks_ended;
    d.quiet = ended == d.ended ? d.quiet + at_work : 0;
    d.total += at_work, d.used = used, d.ended = ended;
    bool stalled = d.quiet > 0.9 * d.stall;
    if (!stalled && clock_seconds(CLOCK_MONOTONIC) < d.until) return false;
    if (g_time_is_up.exchange(true)) return true;
    // The signal may have arrived in malloc or in `report`. So nothing is allocated or locked here.
    // If what follows this function blocks, the host process ends this one (host.py).
    char line[600];
    int n = snprintf(line, sizeof line, "%squiet\t%f\t%f\n", stalled ? "stalled\t\n" : "", d.quiet,
                     d.total);
    auto launches = (unsigned long)g_counters.launches;
    if (const Launch* l = g_running)
        n += snprintf(line + n, sizeof line - size_t(n), "progress\t%lu\t%lu\t%lu\t%.400s\n",
                      launches, ended - l->ended_before, l->runs, l->name);
    else n += snprintf(line + n, sizeof line - size_t(n), "launched\t%lu\n", launches);
    if (write(g_report, line, size_t(n)) < 0) _exit(76);
    return true;
}

// Called at each tick of the clock. When the time is up, reports where a thread is, and ends the
// process. An OS thread that runs no fiber passes the signal to the workers that do.
void on_alarm(int, siginfo_t*, void* context) {
    if (!time_is_up()) return;
    Worker* w = t_worker;
    if (!w || w->current < 0) {
        for (int i = 0; i < g_os_threads; ++i) pthread_kill(g_os_thread[i], SIGALRM);
        if (g_os_threads == 0) end(78);
        return;
    }
    uintptr_t pc = code_address(static_cast<ucontext_t*>(context)->uc_mcontext);
    Dl_info at_signal{}, known_function{};
    const Access* row = w->is_counted ? w->row_of(w->current) : nullptr;
    uint16_t site = !w->is_watched ? 0 : !row ? w->last_access.site()
                    : (w->next_entry != row ? w->next_entry[-1] : row[kLog - 1]).site();
    // Before a thread's first access its log may hold anything.
    uintptr_t known = site && site < w->sites.size() ? w->sites[site].pc : w->step_at;
    if (known && !(dladdr(reinterpret_cast<void*>(pc), &at_signal) &&
                   dladdr(reinterpret_cast<void*>(known), &known_function) &&
                   at_signal.dli_saddr && at_signal.dli_saddr == known_function.dli_saddr))
        pc = known;  // the last access or basic block, because the signal arrived in the runtime
    report(true, "endless loop", pc, {}, "the thread was here when the time limit passed");
    end(78);
}

void catch_signals_here() {  // on a separate stack, because the fiber's may have overflowed
    stack_t stack{malloc(kStack), 0, kStack};
    sigaltstack(&stack, nullptr);
}
}  // namespace
