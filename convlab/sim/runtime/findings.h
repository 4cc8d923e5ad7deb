// Writes findings to the report, which the host process reads: a line of text for each.
#pragma once
#include "worker.h"

#include <algorithm>
#include <cstdarg>

namespace {
void write_report(const std::string& line) {
    for (size_t done = 0; done < line.size();) {
        ssize_t n = write(g_report, line.data() + done, line.size() - done);
        if (n < 0) _exit(76);
        done += size_t(n);
    }
}

// As printf. This function and those below are `cold`: the templates that call them are instantiated
// about a hundred times, and g++ would otherwise inline all of a report at each place.
[[gnu::cold, gnu::noinline]] std::string formatted(const char* format, ...) {
    char line[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return line;
}

// The same, but %s takes strings too.
template <typename T> T plain(T value) { return value; }
const char* plain(const std::string& value) { return value.c_str(); }
template <typename... A>
[[gnu::cold]] std::string text(const char* format, const A&... arguments) {
    return formatted(format, plain(arguments)...);
}
std::string text(uint3 v) { return text("%u,%u,%u", v.x, v.y, v.z); }

// Ends the process. The host process then runs the request again, with blocks one after another:
// blocks that run in parallel touch the same word, or there is something to report, so the order of
// the blocks could change the report.
constexpr int kNeedsSerial = 79;
// Ends the run of a kernel that needs a GPU of another compute capability.
void needs_sm(bool there, const char* what, const char* which) {
    if (there) return;
    write_report(text("error\t\"%s needs a GPU of %s, and this one is sm_%d\"\n", what, which,
                      int(g_device.sm)));
    _exit(79);
}

[[noreturn]] void needs_serial() { _exit(kNeedsSerial); }

struct Finding {
    std::string kind;
    uintptr_t pc;
    std::set<std::pair<uint64_t, int>> who;  // block and thread
};
std::vector<Finding> g_findings;

// Enters an error or a warning; returns whether it is the first finding of its kind at this code
// address. Later ones are only counted.
[[gnu::cold, gnu::noinline]] bool enter_finding(bool error, const char* kind, uintptr_t pc) {
    Worker* w = t_worker;
    bool in_kernel = w && w->current >= 0;
    if (in_kernel && !w->launch->serial && strcmp(kind, "endless loop")) needs_serial();
    std::lock_guard<std::mutex> hold(g_lock);
    g_faulted |= error && strcmp(kind, "race");
    std::pair<uint64_t, int> who(in_kernel ? w->block : 0, in_kernel ? w->current : 0);
    for (auto& f : g_findings)
        if (f.pc == pc && f.kind == kind) {
            if (f.who.size() < 1 << 20) f.who.insert(who);
            return false;
        }
    if (g_findings.size() == kFindings) return false;
    g_findings.push_back({kind, pc, {who}});
    return true;
}

// Writes a finding to the report. The line has "fault" or "warning", the kind, the code address,
// whether a kernel runs, block, thread, the code address, block and thread of the other access, and
// the text.
[[gnu::cold, gnu::noinline]] void write_finding(bool error, const char* kind, uintptr_t pc,
                                                const Other& other, std::string what) {
    Worker* w = t_worker;
    bool in_kernel = w && w->current >= 0;
    uint3 thread = in_kernel ? w->fibers[w->current].index : uint3{};
    std::replace(what.begin(), what.end(), '\n', ' ');  // a finding is one line of the report
    std::lock_guard<std::mutex> hold(g_lock);
    write_report(text("%s\t%s\t%lx\t%d\t%s\t%s\t%lx\t%s\t%s\t", error ? "fault" : "warning", kind,
                      pc, in_kernel, text(blockIdx), text(thread), other.pc, text(other.block),
                      text(other.thread)) + what + "\n");
}

// Reports the first finding of a kind at a code address.
template <typename... A>
[[gnu::cold]] void report(bool error, const char* kind, uintptr_t pc, const Other& other,
                          const char* format, const A&... arguments) {
    if (enter_finding(error, kind, pc))
        write_finding(error, kind, pc, other, text(format, arguments...));
}

[[noreturn]] void end(int status) {
    fflush(stdout);
    _exit(status);
}

// Reports an error, and ends the thread; outside a kernel it ends the process.
template <typename... A>
[[noreturn, gnu::cold]] void fault(const char* kind, uintptr_t pc, const char* format, const A&... arguments) {
    report(true, kind, pc, {}, format, arguments...);
    if (t_worker && t_worker->current >= 0) t_worker->leave(true);
    end(77);
}

// Reports a part of CUDA that the simulator lacks, and ends the process: what follows would be
// incorrect for that reason alone.
[[noreturn, gnu::cold]] void not_simulated(uintptr_t pc, const std::string& what) {
    report(true, "not simulated", pc, {}, "%s; the simulator does not support it: use a GPU", what);
    end(77);
}

// Reports that there are no threads to run blocks in, or no memory for stacks. Ends the process.
[[noreturn]] void out_of_stacks() {
    report(true, "memory", 0, {}, "%d blocks wait for one another, and this machine has no memory "
           "maps or threads left to simulate them at the same time: raise `vm.max_map_count` (two "
           "maps for each warp) or `ulimit -u`, or use a smaller problem or a GPU",
           int(g_os_threads) + 1);
    end(77);
}

// Reports why a call of the host failed. The file may ignore the error code.
template <typename... A>
[[gnu::cold]] void report_refusal(uintptr_t pc, const char* format, const A&... arguments) {
    write_report("note\t" + text(format, arguments...) + "\n");
    report(false, "refused launch", pc, {}, format, arguments...);
}
}  // namespace
