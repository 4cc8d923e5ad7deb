// What a kernel did wrong: one line to the report for the first of its kind at a code address.
namespace {

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

static void tell(const std::string& line) {
    for (size_t done = 0; done < line.size();) {
        ssize_t n = write(g_report, line.data() + done, line.size() - done);
        if (n < 0) _exit(76);
        done += size_t(n);
    }
}

}  // namespace
