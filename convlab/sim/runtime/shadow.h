// The shadow: is an access ordered after all conflicting ones, and was the word ever written?
#pragma once
#include "access.h"

namespace {
inline Mark Worker::mark(unsigned mask, bool ordered, uint16_t index) const {
    Mark m{};
    m.block = uint32_t(block), m.launch = launch->number, m.site = index, m.phase = phase;
    m.stamp = warps[current / 32].stamp;
    m.thread = uint16_t(current), m.mask = uint16_t(mask), m.atomic = ordered;
    return m;
}

// Returns whether an earlier access is ordered before what the current thread does now. Accesses of
// earlier launches, and of earlier blocks in shared memory, are.
inline bool Worker::is_ordered_before(const Mark& m, bool global) const {
    if (m.launch != launch->number)
        return !global || m.launch != launch->previous || async.previous_ended;
    const Fiber& f = fibers[current];
    if (m.block != uint32_t(block)) {
        if (!global) return true;
        uint32_t acquired = std::max(f.acquired, all_acquired);
        if (!acquired) return false;
        std::lock_guard<std::mutex> hold(launch->lock);
        auto& all = launch->released[m.block];
        // The block's first release in the access's phase or later.
        auto r = std::lower_bound(all.begin(), all.end(), std::pair(m.phase, 0u));
        return r != all.end() && r->second <= acquired;
    }
    if (m.phase != phase || m.thread == current) return true;
    if (m.thread / 32 == current / 32) {
        const Warp& warp = warps[current / 32];
        if (m.stamp <= warp.all_known) return true;
        if (!warp.known.empty() && m.stamp <= warp.known[current % 32 * 32 + m.thread % 32])
            return true;
    }
    if (!async.clocks.empty() && m.stamp <= async.clocks[current][m.thread]) return true;
    uint32_t released = fibers[m.thread].released;
    return released && released <= f.acquired;
}

inline void Worker::check_access(Cell* cell, const CheckedAccess& checked) {
    if (async.reads && checked.kind != Kind::load && !checked.global) check_overwrite(checked);
    for (unsigned done = 0; done < checked.bytes; ++cell) {
        unsigned at = (checked.address + done) & 3, n = std::min(4 - at, checked.bytes - done);
        if (checked.global)
            while (__atomic_exchange_n(&cell->lock, 1, __ATOMIC_ACQUIRE)) {}
        check_word(*cell, checked, checked.address + done, ((1u << n) - 1) << at);
        if (checked.global) __atomic_store_n(&cell->lock, 0, __ATOMIC_RELEASE);
        done += n;
    }
}

inline void Worker::check_word(Cell& cell, const CheckedAccess& checked, uintptr_t address,
                               unsigned mask) {
    bool global = checked.global, ordered = checked.ordered;
    uint32_t me = global ? 1 : owner;
    unsigned written = cell.owner == me ? cell.written : 0;
    if (checked.kind != Kind::store && checked.fresh && (mask & ~written))
        report_uninitialised(cell, checked, address);
    if (cell.in_flight && written) report_in_flight(cell, checked, address);
    auto conflicts = [&](const Mark& m) {
        return m.launch && (m.mask & mask) && !(m.atomic && ordered && global) &&
               !is_ordered_before(m, global);
    };
    if (conflicts(cell.writer)) report_race(cell.writer, checked, address, Kind::store);
    if (checked.kind == Kind::load) {
        Mark mine = mark(mask, ordered, checked.site);
        Mark* r = cell.reader;
        for (int i : {0, 1}) {
            if (r[i].launch && !is_ordered_before(r[i], global)) continue;
            if (r[i].launch == mine.launch && r[i].block == mine.block &&
                r[i].phase == mine.phase && r[i].thread == mine.thread)
                mine.mask |= r[i].mask, mine.atomic &= r[i].atomic;
            r[i] = mine;
            return;
        }
        bool same = r[0].block == r[1].block && r[0].thread / 32 == r[1].thread / 32;
        if (same) r[1] = mine;  // readers in two warps or two blocks detect most races
        if (!global && written == 15 && !cell.in_flight && !r[0].atomic && !r[1].atomic) {
            same = r[0].thread / 32 == r[1].thread / 32;
            cell.good_era = era;
            cell.good_warp = same ? uint16_t(current / 32) : kAnyWarp;
            cell.good_stamp = mine.stamp;
        }
        return;
    }
    for (const Mark& r : cell.reader)
        if (conflicts(r)) report_race(r, checked, address, Kind::load);
    cell.writer = mark(mask, ordered, checked.site);
    if (mask == 15) cell.reader[0].launch = cell.reader[1].launch = 0;
    if (checked.output && written != 15 && (written | mask) == 15) ++counters.fresh_outputs;
    if (cell.owner != me) cell.in_flight = 0;
    cell.owner = me, cell.written = uint8_t(written | mask), cell.good_era = 0;
}

void Worker::report_uninitialised(Cell& cell, const CheckedAccess& checked, uintptr_t address) {
    // The thread that writes the word may have ended at an error.
    if (abandoned || g_faulted || replaces) return;
    if (checked.global) {
        // The block that writes it may not be simulated, or not be watched.
        if (g_sample || g_record.on || g_in_part) return;
        if (auto* b = buffer_near(address); b && b->host_wrote(address)) return;
    }
    if (cell.in_flight) return report_in_flight(cell, checked, address);
    report(true, "uninitialised read", sites[checked.site].pc, {},
           "%s %s, which nothing has written", access_to(checked.kind), place(address));
}

void Worker::report_in_flight(Cell& cell, const CheckedAccess& checked, uintptr_t address) {
    Other other{g_pcs[cell.in_flight], blockIdx, fibers[cell.writer.thread].index};
    report(true, "copy not waited for", sites[checked.site].pc, other,
           "%s %s while an asynchronous copy to it is in flight", access_to(checked.kind),
           place(address));
}

void Worker::report_race(const Mark& m, const CheckedAccess& checked, uintptr_t address,
                         Kind theirs) {
    const Site& mine = sites[checked.site];
    bool known = m.site < sites.size() && sites[m.site].pc;  // else only another worker ran it
    if (m.atomic && (!known || sites[m.site].kind == Kind::atomic)) theirs = Kind::atomic;
    bool previous = m.launch != launch->number;
    // A block that is not watched may have ordered the two.
    if (g_in_part && g_synchronizes && m.block != uint32_t(block)) return;
    Other other{
        g_pcs[m.site],
        Launch::index(m.block, previous ? launch->previous_grid : launch->grid),
        Launch::index(m.thread, previous ? launch->previous_block : launch->block)};
    const char* what = theirs == Kind::atomic ? "an atomic"
                       : theirs == Kind::load ? "a load" : "a store";
    if (previous) {
        report(true, "race", mine.pc, other, "%s %s and %s by the previous grid, which may still "
               "run (programmatic dependent launch): the block has not called griddepcontrol_wait",
               access_to(checked.kind), place(address), what);
        return;
    }
    if (m.atomic && checked.ordered) {  // lanes that rely on lockstep
        bool atomic = checked.kind == Kind::atomic || theirs == Kind::atomic;
        if (m.thread / 32 == current / 32 && !atomic)
            report(false, "race", mine.pc, other, "%s %s and %s by another lane of the warp, both "
                   "volatile, with no __syncwarp between them", access_to(checked.kind),
                   place(address), what);
        return;
    }
    // Two stores are a race only if their values differ: resolve_pending compares them.
    if (checked.kind == Kind::store && theirs == Kind::store && !m.atomic) {
        if (pending.address) return;
        pending.address = reinterpret_cast<uint8_t*>(checked.address);
        std::memcpy(pending.before, pending.address, pending.bytes = std::min(checked.bytes, 16u));
        pending.pc = mine.pc, pending.other = other, pending.what = place(address);
        return;
    }
    const char* hazard = checked.kind == Kind::load ? "read-after-write"
                         : theirs == Kind::load ? "write-after-read" : "write-after-write";
    report(true, "race", mine.pc, other,
           "%s %s and %s by another thread%s, with no synchronization between them (%s in this "
           "run; either may come first)", access_to(checked.kind), place(address), what,
           m.block == uint32_t(block) ? "" : " of another block", hazard);
}

// Called after the racing store: did both threads store the same value?
inline void Worker::resolve_pending() {
    if (!pending.address) return;
    bool same = !std::memcmp(pending.before, pending.address, pending.bytes);
    pending.address = nullptr;
    if (same)
        report(false, "written twice", pending.pc, pending.other,
               "store to %s of the value that another thread stored too, with no synchronization "
               "between them", pending.what);
    else
        report(true, "race", pending.pc, pending.other,
               "store to %s and a store by another thread, with no synchronization between them "
               "(write-after-write; either may come first)", pending.what);
}

}  // namespace

extern "C" {
void sim_atomic(const volatile void* address, unsigned bytes, bool replaces) {
    if (!t_worker) return;
    Worker& w = *t_worker;
    ++w.counters.atomics;
    g_synchronizes = true;
    w.count_poll(uintptr_t(address));
    w.replaces = replaces;
    w.access(uintptr_t(address), bytes, Kind::atomic, CALLER);
    w.replaces = false;
    Fiber& f = w.fibers[w.current];
    if (f.loaded == uintptr_t(address)) w.sites[f.loaded_by].before_atomic = true;
    f.acquires = w.atomics = true;  // at the thread's next access, because the atomic runs now
    if (!std::exchange(f.fenced, false)) return;
    f.released = ++g_clock;
    std::lock_guard<std::mutex> hold(w.launch->lock);
    w.launch->released[uint32_t(w.block)].push_back({w.phase, f.released});
}

void sim_read_only(const void* address, unsigned bytes) {
    auto at = uintptr_t(address);
    const Buffer* b = t_worker && g_trace && in_buffers(at) ? buffer_near(at) : nullptr;
    if (!b || !b->cells || b->cells == kUncounted || at + bytes > b->base + b->bytes) return;
    for (unsigned i = 0; i < bytes; i += 4) {
        Cell& cell = b->cells[(at + i - b->base) / 4];
        while (__atomic_exchange_n(&cell.lock, 1, __ATOMIC_ACQUIRE)) {}
        bool written = cell.owner == 1 && cell.writer.launch == t_worker->launch->number;
        __atomic_store_n(&cell.lock, 0, __ATOMIC_RELEASE);
        if (written)
            return report(true, "stale read", CALLER, {}, "__ldg of %s, which this kernel writes: "
                          "__ldg reads through the read-only cache, which may hold the old value",
                          place_of(at + i));
    }
}

void sim_copy_async(void* to, const void* from, size_t bytes, size_t zeros) {
    Worker& w = *t_worker;
    uintptr_t pc = CALLER, at = uintptr_t(to);
    unsigned size = unsigned(bytes), batch = w.fibers[w.current].batch;
    if (bytes > zeros) w.access(uintptr_t(from), size - unsigned(zeros), Kind::load, pc);
    w.access(at, size, Kind::store, pc - 1);
    if (w.copies.empty()) w.copies.resize(w.threads);
    w.copies[w.current].push_back(
        {static_cast<char*>(to), static_cast<const char*>(from), size, unsigned(zeros), batch, pc});
    uint16_t index;
    w.site(pc - 1, size, Kind::store, index);
    for (unsigned i = 0; i < size; i += 4)
        w.cell_of(at + i).in_flight = index;  // the store above has ended the cell's shortcut
}

void sim_copy_commit() { ++t_worker->fibers[t_worker->current].batch; }

void sim_copy_wait(unsigned newest) {
    Worker& w = *t_worker;
    if (w.copies.empty()) return;
    auto& mine = w.copies[w.current];
    auto due = [&](const Copy& c) { return c.batch + newest < w.fibers[w.current].batch; };
    for (Copy& c : mine) {
        if (!due(c)) continue;
        std::memcpy(c.to, c.from, c.bytes - c.zeros);
        std::memset(c.to + c.bytes - c.zeros, 0, c.zeros);
        uint16_t index;
        w.site(c.pc - 1, c.bytes, Kind::store, index);
        for (unsigned at = 0; at < c.bytes; at += 4) {
            Cell& cell = w.cell_of(uintptr_t(c.to) + at);
            cell.in_flight = 0;
            cell.writer = w.mark(15, false, index);
        }
    }
    mine.erase(std::remove_if(mine.begin(), mine.end(), due), mine.end());
}
}
