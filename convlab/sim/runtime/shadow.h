// The shadow: is an access ordered after all conflicting ones, and was the word ever written?
#pragma once
#include "access.h"
#include "streams.h"

namespace {
inline Mark Worker::mark(unsigned mask, bool sync, uint16_t index) const {
    Mark m{};
    m.block = uint32_t(block), m.launch = launch->number, m.site = index, m.phase = phase;
    m.stamp = warps[current / 32].stamp;
    m.thread = uint16_t(current), m.mask = uint16_t(mask), m.sync = sync;
    return m;
}

// griddepcontrol.launch_dependents, and griddepcontrol.wait.
void Worker::lets_next_start() {
    __atomic_store_n(&g_operations[launch->number].triggered, true, __ATOMIC_RELAXED);
}
void Worker::waits_for_previous() {
    async.previous_ended = true;
    __atomic_store_n(&g_operations[launch->number].waited, true, __ATOMIC_RELAXED);
}

// Returns whether an earlier launch of this stream may still run, although the block has waited for the previous one.
inline bool Worker::may_still_run(uint16_t number) const {
    const std::vector<uint16_t>& all = g_operations[launch->number].still_runs;
    return !all.empty() && std::find(all.begin(), all.end(), number) != all.end();
}

// Returns whether an earlier access is ordered before what the current thread does now: before
// `checked`, or before everything that follows. Accesses of earlier launches, and of earlier blocks
// in shared memory, are.
inline bool Worker::is_ordered_before(const Mark& m, bool global, const CheckedAccess* checked) {
    if (m.launch != launch->number)
        return !global ||
               ((launch->after_all || is_before(g_operations[m.launch], launch->before)) &&
                (m.launch != launch->previous || async.previous_ended) && !may_still_run(m.launch));
    if (m.block != uint32_t(block)) return !global || is_ordered_by_fences(m, checked);
    if (m.phase != phase || m.thread == current) return true;
    if (m.thread / 32 == current / 32) {
        const Warp& warp = warps[current / 32];
        if (m.stamp <= warp.all_known) return true;
        if (!warp.known.empty() && m.stamp <= warp.known[current % 32 * 32 + m.thread % 32])
            return true;
    }
    if (!async.clocks.empty() && m.stamp <= async.clocks[current][m.thread]) return true;
    return learned && is_ordered_by_fences(m, checked);
}

// Returns whether two accesses are no race in any order: both synchronize threads, not both are
// plain stores to a volatile, and each has a scope that includes the other's thread.
inline bool Worker::are_compatible(const Mark& m, const CheckedAccess& checked) const {
    if (!m.sync || !checked.sync) return false;
    // Two calls that run at the same time share no counters: they would take each other's numbers.
    if (m.launch <= g_other_call && launch->number > g_other_call) return false;
    if (checked.kind == Kind::store && g_site_kind[m.site].kind == Kind::store) return false;
    if (m.block == uint32_t(block) && m.launch == launch->number) return true;
    return !g_site_kind[m.site].of_block && !g_site_kind[checked.site].of_block;
}

// Notes which block accesses a word of a buffer, while blocks run in parallel. Ends the run if
// several do, and one of them stores: which of them is first is not known then.
inline void Worker::note_block(Cell& cell, Kind kind) const {
    bool stores = kind != Kind::load;
    if (cell.by_launch != launch->number) {
        cell.by_launch = launch->number, cell.by_block = uint32_t(block);
        cell.by_several = false, cell.stored = stores;
        return;
    }
    cell.by_several |= cell.by_block != uint32_t(block);
    cell.stored |= stores;
    if (cell.by_several && cell.stored) needs_serial();
}

// Returns whether an access to all of a word of shared memory is no race with an earlier one.
inline bool Worker::follows(const Mark& earlier, const CheckedAccess& checked) {
    return !earlier.launch || !earlier.mask || are_compatible(earlier, checked) ||
           is_ordered_before(earlier, false, &checked);
}

inline bool are_equal(const Mark& a, const Mark& b) { return !std::memcmp(&a, &b, sizeof a); }

// Checks a bulk copy or an operand of a tensor core in shared memory. Neighbouring words were often written and read
// by the same operations, so the check of one of them holds for the next one too.
void Worker::check_shared_words(Cell* cell, const CheckedAccess& checked) {
    bool loads = checked.kind == Kind::load;
    Mark mine = mark(15, checked.sync, checked.site);
    Mark writer{}, readers[2] = {};  // of the last word that was checked
    bool known = false;
    int entered = -1;                // the reader that this load replaced; -1: none
    uint64_t good = 0;               // the word's entry in good_loads, if this load changed it; or 0
    for (unsigned done = 0; done < checked.bytes; done += 4, ++cell) {
        uintptr_t word = checked.address + done;
        bool plain = cell->owner == owner && cell->written == 15 && !cell->in_flight;
        if (known && plain && are_equal(cell->reader[0], readers[0]) && are_equal(cell->reader[1], readers[1]) &&
            (are_equal(cell->writer, writer) || (loads && follows(cell->writer, checked)))) {
            if (!loads) {
                cell->writer = mine;
                cell->reader[0].launch = cell->reader[1].launch = 0;
                forget_loads(word);
            } else if (entered >= 0) {
                cell->reader[entered] = mine;
            } else if (good) {
                good_load_of(word) = good;
            }
            continue;
        }
        writer = cell->writer, readers[0] = cell->reader[0], readers[1] = cell->reader[1];
        uint64_t before = good_load_of(word);
        bool reported = check_word(*cell, checked, word, 15);
        known = plain && !reported;
        entered = !are_equal(cell->reader[0], readers[0]) ? 0 : !are_equal(cell->reader[1], readers[1]) ? 1 : -1;
        if (loads && entered >= 0) mine = cell->reader[entered];
        good = good_load_of(word) == before ? 0 : good_load_of(word);
    }
}

inline void Worker::check_access(Cell* cell, const CheckedAccess& checked) {
    if (async.reads && checked.kind != Kind::load && !checked.global) check_overwrite(checked);
    if (!checked.global && checked.bytes > 16 && !((checked.address | checked.bytes) & 3) &&
        checked.kind != Kind::atomic)
        return check_shared_words(cell, checked);
    // In a serial launch one block runs at a time.
    bool locks = checked.global && !launch->serial;
    // Neighbouring words of shared memory often have equal cells. If the word before this one had an
    // equal cell, and nothing was reported, then this cell changes in the same way.
    bool repeats = false;
    Cell last;
    for (unsigned done = 0; done < checked.bytes; ++cell) {
        unsigned at = (checked.address + done) & 3, n = std::min(4 - at, checked.bytes - done);
        uintptr_t word = checked.address + done;
        if (repeats && n == 4 && !std::memcmp(cell, &last, sizeof last)) {
            std::memcpy(cell, cell - 1, sizeof *cell);
            good_load_of(word) = good_load_of(word - 4);
            if (checked.kind != Kind::load) forget_loads(word);
            done += 4;
            continue;
        }
        bool may_repeat = !checked.global && n == 4 && done + n < checked.bytes;
        if (may_repeat) std::memcpy(&last, cell, sizeof last);
        if (locks)
            while (__atomic_exchange_n(&cell->lock, 1, __ATOMIC_ACQUIRE)) {}
        bool reported = check_word(*cell, checked, word, ((1u << n) - 1) << at);
        if (locks) __atomic_store_n(&cell->lock, 0, __ATOMIC_RELEASE);
        repeats = may_repeat && !reported;
        done += n;
    }
}

// Checks an access to one word, and enters it in the word's cell. Returns whether there was
// something to report.
inline bool Worker::check_word(Cell& cell, const CheckedAccess& checked, uintptr_t address,
                               unsigned mask) {
    bool global = checked.global, sync = checked.sync;
    if (global && !launch->serial) note_block(cell, checked.kind);
    uint32_t me = global ? 1 : owner;
    unsigned written = cell.owner == me ? cell.written : 0;
    bool reported = false;
    if (checked.kind != Kind::store && checked.fresh && (mask & ~written)) {
        report_uninitialised(cell, checked, address, mask & ~written);
        reported = true;
    }
    if (cell.in_flight && written) {
        report_in_flight(cell, checked, address);
        reported = true;
    }
    auto conflicts = [&](const Mark& m) {
        return m.launch && (m.mask & mask) && !are_compatible(m, checked) &&
               !is_ordered_before(m, global, &checked);
    };
    if (conflicts(cell.writer)) {
        report_race(cell.writer, checked, address, Kind::store);
        reported = true;
    }
    if (checked.kind == Kind::load) {
        Mark mine = mark(mask, sync, checked.site);
        Mark* r = cell.reader;
        for (int i : {0, 1}) {
            if (r[i].launch && !is_ordered_before(r[i], global)) continue;
            if (r[i].launch == mine.launch && r[i].block == mine.block &&
                r[i].phase == mine.phase && r[i].thread == mine.thread)
                mine.mask |= r[i].mask, mine.sync &= r[i].sync;
            r[i] = mine;
            return reported;
        }
        bool same = r[0].block == r[1].block && r[0].thread / 32 == r[1].thread / 32;
        if (same) r[1] = mine;  // readers in two warps or two blocks detect most races
        if (!global && written == 15 && !cell.in_flight && !r[0].sync && !r[1].sync) {
            same = r[0].thread / 32 == r[1].thread / 32;
            // With mbarriers the two readers do not stand for a third one: a thread that refills the
            // word may wait for arrivals of some warps only.
            if (!same && !async.clocks.empty()) return reported;
            unsigned warp = same ? unsigned(current) / 32 : kAnyWarp;
            good_load_of(address) = good_load(era, warp, mine.stamp);
        }
        return reported;
    }
    for (const Mark& r : cell.reader) {
        if (!conflicts(r)) continue;
        report_race(r, checked, address, Kind::load);
        reported = true;
    }
    cell.writer = mark(mask, sync, checked.site);
    if (global) cell.writer.bulk = !sync && has_signalled_volatile();
    if (mask == 15) cell.reader[0].launch = cell.reader[1].launch = 0;
    if (checked.output && written != 15 && (written | mask) == 15) ++counters.fresh_outputs;
    if (cell.owner != me) cell.in_flight = 0;
    cell.owner = me, cell.written = uint8_t(written | mask);
    if (!global) forget_loads(address);
    return reported;
}

void Worker::report_uninitialised(Cell& cell, const CheckedAccess& checked, uintptr_t address,
                                  unsigned mask) {
    // The thread that writes the word may have ended at an error.
    if (abandoned || g_faulted || replaces) return;
    if (checked.global) {
        // The block that writes it may not be simulated, or not be watched.
        if (g_sample || g_record.on || in_part()) return;
        if (auto* b = buffer_near(address); b && b->host_wrote(address)) return;
    }
    if (cell.in_flight) return report_in_flight(cell, checked, address);
    // Shared memory is filled before the block begins. Another value was stored by code without hooks,
    // such as the return of a struct.
    if (!checked.global) {
        auto* bytes = reinterpret_cast<const uint8_t*>(address & ~uintptr_t(3));
        bool stored = false;
        for (unsigned i = 0; i < 4; ++i) stored |= mask >> i & 1 && bytes[i] != g_fill();
        if (stored) return;
    }
    bool error = checked.global || !g_forgives;
    report(error, "uninitialised read", sites[checked.site].pc, {},
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
    // A block that is not watched may have ordered the two.
    if (in_part() && g_synchronizes && m.block != uint32_t(block) && m.launch == launch->number) return;
    const SiteKind &my_kind = g_site_kind[checked.site], &their_kind = g_site_kind[m.site];
    if (theirs == Kind::store) theirs = their_kind.kind == Kind::atomic ? Kind::atomic : theirs;
    const Operation& theirs_is_in = g_operations[m.launch];
    Other other{g_pcs[m.site], Launch::index(m.block, theirs_is_in.grid),
                Launch::index(m.thread, theirs_is_in.block)};
    const char* what = theirs == Kind::atomic ? "an atomic"
                       : theirs == Kind::load ? "a load" : "a store";
    if (m.launch != launch->number && may_still_run(m.launch)) {
        report(true, "race", mine.pc, other, "%s %s and %s by an earlier grid, which may still run: the grid "
               "between the two (programmatic dependent launch) did not call griddepcontrol_wait, so it may "
               "have ended first", access_to(checked.kind), place(address), what);
        return;
    }
    if (m.launch != launch->number && m.launch != launch->previous)
        return report_unordered(mine.pc, access_to(checked.kind), place(address), m, what);
    if (m.launch != launch->number) {
        report(true, "race", mine.pc, other, "%s %s and %s by the previous grid, which may still "
               "run (programmatic dependent launch): the block has not called griddepcontrol_wait",
               access_to(checked.kind), place(address), what);
        return;
    }
    bool same_block = m.block == uint32_t(block);
    const char* whose = same_block ? "" : " of another block";
    bool both_volatile = my_kind.is_volatile && their_kind.is_volatile;
    bool any_atomic = checked.kind == Kind::atomic || theirs == Kind::atomic;
    if (both_volatile && !any_atomic && same_block && m.thread / 32 == current / 32) {
        report(false, "race", mine.pc, other, "%s %s and %s by another lane of the warp, both "
               "volatile, with no __syncwarp between them", access_to(checked.kind),
               place(address), what);
        return;
    }
    if (m.sync && checked.sync) {
        report(true, "race", mine.pc, other, "%s %s and %s by another thread of another block: one "
               "of them has block scope, so it is atomic only among the threads of its block",
               access_to(checked.kind), place(address), what);
        return;
    }
    std::string why = why_unordered(m);
    // Two stores are a race only if their values differ: resolve_pending compares them.
    if (checked.kind == Kind::store && theirs == Kind::store) {
        if (pending.address) return;
        pending.address = reinterpret_cast<uint8_t*>(checked.address);
        std::memcpy(pending.before, pending.address, pending.bytes = std::min(checked.bytes, 16u));
        pending.pc = mine.pc, pending.other = other, pending.what = place(address);
        pending.why = why + describe_iterations(m, checked);
        return;
    }
    const char* hazard = checked.kind == Kind::load ? "read-after-write"
                         : theirs == Kind::load ? "write-after-read" : "write-after-write";
    if (both_volatile || (any_atomic && (my_kind.is_volatile || their_kind.is_volatile))) {
        // One of them is a volatile store that does not follow a fence.
        bool fenced = checked.kind == Kind::store ? has_signalled_volatile()
                                                  : checked.global && m.bulk;
        report(!fenced, "race", mine.pc, other, "%s %s and %s by another thread%s: volatile orders "
               "nothing; a store that signals other threads needs a __threadfence() before it%s",
               access_to(checked.kind), place(address), what, whose, why);
        return;
    }
    report(true, "race", mine.pc, other,
           "%s %s and %s by another thread%s, with no synchronization between them (%s in this "
           "run; either may come first)%s%s", access_to(checked.kind), place(address), what, whose,
           hazard, why, describe_iterations(m, checked));
}

// Returns the end of a sentence about a race in a loop, or "". The barrier that began this phase is
// between the two lines, and yet no barrier is between the two accesses: so the line above it was
// executed in the next iteration.
const char* Worker::describe_iterations(const Mark& m, const CheckedAccess& checked) const {
    if (m.block != uint32_t(block)) return "";
    uintptr_t mine = sites[checked.site].pc, other = g_pcs[m.site];
    if (std::min(mine, other) > barrier_at || barrier_at > std::max(mine, other)) return "";
    return mine < other ? "; the other access is of the loop's previous iteration: a "
                          "__syncthreads() is missing at the end of the loop"
                        : "; the other access is of the loop's next iteration: a __syncthreads() "
                          "is missing at the end of the loop";
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
               "(write-after-write; either may come first)%s", pending.what, pending.why);
}

}  // namespace

extern "C" {
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

void copy_async(void* to, const void* from, size_t bytes, size_t zeros, uintptr_t pc) {
    Worker& w = *t_worker;
    uintptr_t at = uintptr_t(to);
    unsigned size = unsigned(bytes), batch = w.fibers[w.current].batch;
    if (w.takes_notes())
        w.note("cp.async", pc, text("bytes=%zu;zeros=%zu", bytes, zeros));
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

void sim_copy_async(void* to, const void* from, size_t bytes, size_t zeros) {
    copy_async(to, from, bytes, zeros, CALLER);
}
void copy_commit(uintptr_t pc) {
    t_worker->note("cp.async commit", pc);
    ++t_worker->fibers[t_worker->current].batch;
}
void sim_copy_commit() { copy_commit(CALLER); }

void copy_wait(unsigned newest, uintptr_t pc) {
    Worker& w = *t_worker;
    if (w.takes_notes()) w.note("cp.async wait", pc, text("newest=%u", newest));
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
            w.forget_loads(uintptr_t(c.to) + at);
        }
    }
    mine.erase(std::remove_if(mine.begin(), mine.end(), due), mine.end());
}
void sim_copy_wait(unsigned newest) { copy_wait(newest, CALLER); }
}
