// The shadow: is an access ordered after those that it conflicts with, was the word ever written?
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

inline bool Worker::before(const Mark& m, bool global) const {  // or of no interest any more
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
    if (!async.clocks.empty() && m.stamp <= async.clocks[current][m.thread]) return true;
    uint32_t released = fibers[m.thread].released;
    return released && released <= f.acquired;
}

inline void Worker::look_at(Cell* cell, const Look& look) {
    if (async.reads && look.kind != Kind::load && !look.global) overwritten(look);
    for (unsigned done = 0; done < look.bytes; ++cell) {
        unsigned at = (look.address + done) & 3, n = std::min(4 - at, look.bytes - done);
        if (look.global)
            while (__atomic_exchange_n(&cell->lock, 1, __ATOMIC_ACQUIRE)) {}
        look_at_word(*cell, look, look.address + done, ((1u << n) - 1) << at);
        if (look.global) __atomic_store_n(&cell->lock, 0, __ATOMIC_RELEASE);
        done += n;
    }
}

inline void Worker::look_at_word(Cell& cell, const Look& look, uintptr_t address, unsigned mask) {
    bool global = look.global, ordered = look.ordered;
    uint32_t me = global ? 1 : owner;
    unsigned written = cell.owner == me ? cell.written : 0;
    if (look.kind != Kind::store && look.fresh && (mask & ~written))
        uninitialised(cell, look, address);
    if (cell.in_flight && written) in_flight(cell, look, address);
    const Mark& w = cell.writer;
    if (w.launch && (w.mask & mask) && !(w.atomic && ordered) && !before(w, global))
        race(w, look, address);
    if (look.kind == Kind::load) {
        Mark mine = mark(mask, ordered, look.site);
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
            race(r, look, address);
    cell.writer = mark(mask, ordered, look.site);
    if (mask == 15) cell.reader[0].launch = cell.reader[1].launch = 0;
    if (look.output && written != 15 && (written | mask) == 15) ++counters.fresh_outputs;
    if (cell.owner != me) cell.in_flight = 0;
    cell.owner = me, cell.written = uint8_t(written | mask), cell.quiet = 0;
}

void Worker::uninitialised(Cell& cell, const Look& look, uintptr_t address) {
    if (abandoned || g_faulted) return;  // who was to write it may have ended at a fault
    if (look.global) {
        if (g_sample || g_record.on) return;  // or not have been among those that ran
        if (auto* b = buffer_near(address); b && b->host_wrote(address)) return;
    }
    if (cell.in_flight) return in_flight(cell, look, address);
    report(true, "uninitialised read", sites[look.site].pc, {},
           "%s of %s, which nothing has written", verb(look.kind), place(address));
}

void Worker::in_flight(Cell& cell, const Look& look, uintptr_t address) {
    Other other{g_pcs[cell.in_flight], blockIdx, fibers[cell.writer.thread].index};
    report(true, "copy not waited for", sites[look.site].pc, other,
           "%s of %s while an asynchronous copy to it is under way", verb(look.kind),
           place(address));
}

void Worker::race(const Mark& m, const Look& look, uintptr_t address) {
    const Site& mine = sites[look.site];
    const Site& theirs = sites.size() > m.site && sites[m.site].pc ? sites[m.site] : mine;
    Other other{g_pcs[m.site], launch->block_of(m.block), launch->thread_of(m.thread)};
    if (look.kind == Kind::store && !m.atomic && theirs.kind != Kind::load) {  // same value?
        if (pending.address) return;
        pending.address = reinterpret_cast<uint8_t*>(look.address);
        std::memcpy(pending.before, pending.address, pending.bytes = std::min(look.bytes, 16u));
        pending.pc = mine.pc, pending.other = other, pending.what = place(address);
        return;
    }
    report(true, "race", mine.pc, other,
           "%s of %s, and %s by another thread%s, with nothing that orders the two",
           verb(look.kind), place(address),
           m.atomic ? "an atomic" : theirs.kind == Kind::load ? "a load" : "a store",
           m.block == uint32_t(block) ? "" : " of another block");
}

// The store is done by now: were the two of the same value?
inline void Worker::settle() {
    if (!pending.address) return;
    bool same = !std::memcmp(pending.before, pending.address, pending.bytes);
    pending.address = nullptr;
    if (same)
        report(false, "written twice", pending.pc, pending.other,
               "store to %s of the value that another thread stored there, with nothing that "
               "orders the two", pending.what);
    else
        report(true, "race", pending.pc, pending.other,
               "store to %s, and a store by another thread, with nothing that orders the two",
               pending.what);
}

void Worker::atomic(uintptr_t address, unsigned bytes, uintptr_t pc) {
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

void Worker::copy(char* to, char* from, unsigned bytes, unsigned zeros, uintptr_t pc) {
    if (bytes > zeros) access(uintptr_t(from), bytes - zeros, Kind::load, pc);
    access(uintptr_t(to), bytes, Kind::store, pc - 1);
    if (copies.empty()) copies.resize(threads);
    copies[current].push_back({to, from, bytes, zeros, fibers[current].batch, pc});
    uint16_t index;
    site(pc - 1, bytes, Kind::store, index);
    for (unsigned at = 0; at < bytes; at += 4)
        shared_cells[(to - shared + at) / 4].in_flight = index;  // its store made it not quiet
}

void Worker::wait(unsigned newest) {
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
}  // namespace
