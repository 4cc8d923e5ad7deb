// Records operations that are no accesses: barriers, asynchronous copies, products of tensor cores.
#pragma once
#include "requests.h"

namespace {
// Returns whether the operations of the current thread are recorded.
inline bool Worker::takes_notes() const {
    if (__builtin_expect(!g_record.on, 1) || !is_counted || in_collective) return false;
    return g_record.left && (g_record.warp < 0 || current / 32 == g_record.warp);
}

// Enters an operation into the current thread's log, so that it is recorded in its place among the
// thread's accesses. `what` describes it as "key=value;key=value".
void Worker::note(const char* operation, uintptr_t pc, const std::string& what) {
    if (!takes_notes()) return;
    if (next_entry == log_end) {
        fibers[current].state = State::log_full;
        yield();
    }
    // A load at this place has the address itself, a store the address less one.
    uint16_t index;
    Site& s = site(pc - 2, 0, Kind::load, index);
    s.operation = operation;
    s.cells = kUncounted;
    g_record.notes.push_back(what);
    log_access(g_record.notes.size() - 1, index);
}

// Returns an address as "array:byte".
std::string Worker::note_place(uintptr_t address) const {
    if (const Buffer* b = in_buffers(address) ? buffer_near(address) : nullptr)
        return text("%s:%ld", b->name, address - b->base);
    const Array* a = array_near(address);
    return a ? text("%s:%ld", a->name, long(address - uintptr_t(a->base))) : "shared memory:0";
}

// Enters an operation on an mbarrier, with the barrier's state after it.
void Worker::note_barrier(const char* operation, uintptr_t address, uintptr_t pc) {
    if (!takes_notes()) return;
    const Mbarrier& b = async.barriers[address];
    note(operation, pc, text("barrier=%s;phase=%u;arrivals=%d;missing=%d;expected=%ld;missing_bytes=%ld",
         note_place(address), b.phase, b.arrivals, b.missing, b.expected, b.bytes));
}

// Records an operation of the lanes in `mask`: as an access without a space. Instead of the lanes'
// bytes, it has the number of the last lane's note: operations of all warps are numbered in the
// order in which they ran.
void Worker::record_note(const Site& s, const uint64_t* numbers, int lanes, unsigned mask) {
    if (!recorded || !g_record.left) return;
    --g_record.left;
    uint64_t last = *std::max_element(numbers, numbers + lanes);
    g_record.text += text("access\t%u\t%lx\t\t%s\t%.400s\t0\t0\t%u\t%d\t%lu\n", launch->number, s.pc,
                          s.operation, g_record.notes[last], mask, recorded_warp, last);
}
}  // namespace
