// The functions that the host process calls (../host.py): start, settings, buffers, end.
#pragma once
#include "async.h"
#include "signals.h"
#include "streams.h"

#include <sys/time.h>

extern "C" {
void sim_begin(int threads, int trace, int report) {
    g_threads = threads, g_trace = trace, g_report = report;
    g_region = uintptr_t(reserve(kRegion + kConstants, PROT_NONE));
    if (!g_region)
        fault("memory", 0, "cannot reserve 1.25 TiB of address space: raise `ulimit -v`");
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(s, &action, nullptr);
    action.sa_sigaction = on_alarm;
    action.sa_flags |= SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    catch_signals_here();
    g_process = getpid();
    std::set_terminate(on_terminate);
    std::atexit(on_exit);
    std::at_quick_exit(on_exit);
}

void sim_null(const char* note) { g_null = note; }
void sim_host(cudaStream_t stream) {
    if (stream) begin_call(stream);
    else end_call(g_stream);
    host_runs(g_stream = stream);
}
// The launches so far are of a call that runs at the same time as the next one.
void sim_other_call() { g_other_call = g_launch; }
// The next call of conv2d comes directly after the last one on its stream.
void sim_follows() { g_follows = true; }
// Sets the GPU that the simulator is; the numbers are those of SimDevice, in its order.
void sim_set_device(const int64_t* numbers, const char* name) {
    std::memcpy(&g_device, numbers, offsetof(SimDevice, name));
    std::snprintf(g_device.name, sizeof g_device.name, "%s", name);
}
const SimDevice* sim_device() { return &g_device; }
// Limits for about how many accesses of a launch races are looked for; bounds are checked for all.
void sim_watch(uint64_t accesses) { g_most_watched = accesses; }
// The run ends before its launches start more threads than this.
void sim_most_threads(uint64_t threads) { g_most_threads = threads; }
void sim_schedule(unsigned number) { g_schedule = number; }
// Looks for errors only: nothing is logged or counted.
void sim_uncounted() { g_counts = false; }
void sim_forgives() { g_forgives = true; }
void sim_serial() { g_serial = true; }
void sim_sample(uint64_t blocks, uint64_t seed) { g_sample = blocks, g_sample_seed = seed; }
void sim_record(unsigned x, unsigned y, unsigned z, int warp, size_t limit) {
    g_record.on = true, g_record.block = {x, y, z}, g_record.warp = warp, g_record.left = limit;
}

// Ends the process after `seconds`, or after `stall` seconds without a finished block.
void sim_time_limit(double seconds, double stall) {
    g_deadline.until = clock_seconds(CLOCK_MONOTONIC) + seconds;
    g_deadline.used = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    double tick = std::min(seconds, stall / kTicks) + 1e-3;
    g_deadline.tick = tick, g_deadline.stall = stall;
    itimerval timer{};
    timer.it_value.tv_sec = time_t(tick);
    timer.it_value.tv_usec = suseconds_t((tick - double(time_t(tick))) * 1e6);
    timer.it_interval = timer.it_value;
    setitimer(ITIMER_REAL, &timer, nullptr);
}

// Maps a buffer with unmapped memory on both sides. Its memory is that of a file descriptor, or
// private: filled with poison (all bits one) for fd -1, and with zeros for fd -2.
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int use) {
    size_t shift = offset % kPage;  // offset in the first page
    size_t pages = (std::max<size_t>(shift + bytes, 1) + kPage - 1) / kPage * kPage;
    size_t& used = use == kConstant ? g_constants_used : g_region_used;
    if (used + pages + kGap > kRegion + (use == kConstant ? kConstants : 0)) return nullptr;
    void* at = reinterpret_cast<void*>(g_region + used);
    used += (pages + kGap + kPage - 1) / kPage * kPage;
    int flags = MAP_FIXED | (fd < 0 ? kPrivate : MAP_SHARED);
    int protection = PROT_READ | (use ? PROT_WRITE : 0);
    if (mmap(at, pages, protection, flags, fd, off_t(offset - shift)) == MAP_FAILED) return nullptr;
    at = static_cast<char*>(at) + shift;
    if (fd == -1 && !g_sample && !g_record.on) std::memset(at, 0xff, bytes);
    std::lock_guard<std::mutex> hold(g_lock);
    Cell* cells = use == kConstant ? kUncounted : nullptr;
    size_t need = (bytes / 4 + 1) * sizeof(Cell);
    if (use && !cells && g_trace && g_shadow_used + need <= kShadow) {
        cells = static_cast<Cell*>(reserve(need));
        g_shadow_used += need;
    }
    g_unwatched |= use && !cells;
    auto* seen = static_cast<uint16_t*>(reserve((bytes / 32 + 2) * 2));
    auto* split = static_cast<uint16_t*>(use ? reserve((bytes / 32 + 2) * 2) : nullptr);
    g_buffers.push_back({name, uintptr_t(at), bytes, use, nullptr, cells, seen, split, {}, 0});
    if (g_host) protect(g_buffers.back(), PROT_NONE);
    return at;
}

// Hides the filter while conv2d runs with a plan: its memory may be freed by then.
void sim_hide(const void* address, int hide) {
    for (auto& b : g_buffers) {
        if (b.base != uintptr_t(address)) continue;
        if (hide) protect(b, PROT_NONE);
        b.name = hide ? "w (not available: conv2d has its plan)" : "w";
        std::swap(b.bytes, b.hidden);
    }
}

// Records a range that the host wrote, by cudaMemset and the like: it is initialised.
void sim_host_wrote(const void* address, size_t bytes) {
    auto from = uintptr_t(address);
    for (auto& b : g_buffers)
        if (from >= b.base && from < b.base + b.bytes) b.by_host.push_back({from, from + bytes});
}

// Reports at the end: unwritten outputs, the number of threads of each finding, and all counts.
void sim_finish() {
    {
        Opened memory;
        report_read_too_early();
    }
    for (auto& b : g_buffers) {
        if (!is_output(b) || !b.cells || b.use != kFresh || g_faulted) continue;
        // Which site stored each word of a small y last: a line wherever the site changes.
        uint16_t last = 0;
        for (size_t i = 0; i < b.bytes / 4 && b.bytes < 1 << 16; ++i)
            if (uint16_t site = b.cells[i].writer.site; site != std::exchange(last, site))
                write_report(text("stored\t%zu\t%lx\n", i, g_pcs[site]));
        // Such a run does not write all of y, or does not see all of its stores.
        if (g_sample || g_record.on || g_in_part) continue;
        if (g_counters.fresh_outputs == b.bytes / 4) continue;
        size_t missing = 0, first = 0;
        for (size_t i = 0; i < b.bytes / 4; ++i) {
            bool there = b.cells[i].written == 15 || b.host_wrote(b.base + 4 * i);
            if (!there && !missing++) first = i;
        }
        if (missing)
            report(false, "never written", 0, {}, "%zu of the %zu \x04%s\x02 of %s, the first is "
                   "\x01%s:%zu\x02", missing, b.bytes / 4, b.name, b.name, b.name, 4 * first);
    }
    if (g_record.on) write_report(g_record.text + (g_record.left ? "" : "recorded\tin part\n"));
    std::string line = "counts\t[";
    for (auto& f : g_findings) line += text("%s%zu", line.back() == '[' ? "" : ",", f.who.size());
    line += "]\n";
    for (auto& s : g_sites) {
        if (s.before_atomic) line += text("before_atomic\t%lx\n", s.pc);
        if (s.before_swap) line += text("before_swap\t%lx\n", s.pc);
        for (int space : {0, 1}) {
            const Stats& t = s.stats[space];
            if (!t.requests) continue;
            line += text("site\t%lx\t%s\t%s\t%s\t%lu\t%lu\t%lu\t%lu\t%lu\t%d\n", s.pc,
                         space ? "shared" : "global", verb(s.kind),
                         t.array && *t.array ? t.array : "several", t.requests, t.units,
                         t.ideal_units, t.lanes, t.partial, s.bytes);
        }
    }
    line += "steps\t[";
    for (size_t i = 0; i < g_steps.size(); ++i)
        if (g_steps[i]) line += text("%s[%zu,%lu]", line.back() == '[' ? "" : ",", i, g_steps[i]);
    line += "]\ncounters\t[";
    for (size_t i = 0; i < kCounters; ++i) line += text("%s%lu", i ? "," : "", g_counters[i]);
    write_report(line + "]\n");
}
}  // extern "C"
