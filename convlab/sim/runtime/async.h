// Mbarriers, bulk copies and wgmma. Bulk copies and wgmmas run at once here; on a GPU they may run
// at any time until their wait. So the runtime reports accesses to their data before that wait.
#pragma once
#include "order.h"
#include "requests.h"
#include "shadow.h"

#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <utility>

namespace {
// Checks an access without logging or counting it: its bounds, order and initialisation.
void Worker::check_uncounted(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc) {
    bool global = address - g_region < kRegion;
    if (!global && address - uintptr_t(shared) >= kSharedSpan)
        fault("illegal address", pc, "%s of memory that is neither global nor shared", verb(kind));
    uint16_t index;
    Site& s = site(pc - (kind == Kind::store), 4, kind, index);
    locate(s, address, bytes, global);
    if (!is_watched || !s.cells) return;
    words_checked += bytes / 4;
    check_access(s.cells + (address - s.low) / 4,
                {address, bytes, kind, false, global, s.fresh, s.output, index});
}

// Checks a read of shared memory through the asynchronous proxy: also, is there a proxy fence?
void Worker::check_proxy_read(uintptr_t address, unsigned bytes, uintptr_t pc, const char* who) {
    check_uncounted(address, bytes, Kind::load, pc);
    if (!is_watched) return;
    for (uintptr_t at = address; at < address + bytes; at += 4) {
        const Mark& w = cell_of(at).writer;
        if (!w.launch || w.bulk || w.block != uint32_t(block) || w.launch != launch->number)
            continue;
        const Fiber& f = fibers[w.thread];
        if (w.phase < f.proxy_phase || (w.phase == f.proxy_phase && w.stamp <= f.proxy_stamp))
            continue;
        Other other{g_pcs[w.site], blockIdx, f.index};
        report(true, "no proxy fence", pc, other,
               "%s reads %s through the asynchronous proxy, but the thread that stored it has not "
               "called fence_proxy_async since", who, place(at));
        return;
    }
}

// Checks 128 bytes of a wgmma's operand, unless the warp has checked them since the last store.
void Worker::check_operand(uintptr_t core, uintptr_t pc) {
    if (async.operand_of.empty()) async.operand_of.resize(kSharedSpan / kQuad);
    size_t first = (core - uintptr_t(shared)) / kQuad;
    uint32_t warp = 1u << current / 32, all = warp;
    bool inside = first + 128 / kQuad <= async.operand_of.size();
    for (size_t i = 0; inside && i < 128 / kQuad; ++i) all &= async.operand_of[first + i];
    if (inside && all) return;
    check_proxy_read(core, 128, pc, "wgmma");
    for (size_t i = 0; inside && i < 128 / kQuad; ++i) async.operand_of[first + i] |= warp;
}

void Worker::next_stamp(int thread) {
    uint16_t& stamp = warps[thread / 32].stamp;
    if (stamp < 0xffff) ++stamp;
}

void join_clocks(Clock& into, const Clock& other) {
    for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

// A release: joins the current thread's clock into the mbarrier's, with what the thread itself did.
void Worker::publish(Mbarrier& barrier) {
    if (learned) {
        const Knowledge& mine = fibers[current].knows;
        join(barrier.knows.fenced, mine.fenced);
        join(barrier.knows.polled, mine.polled);
        join(barrier.knows.locked, mine.locked);
    }
    Clock& clock = barrier.gathering;
    join_clocks(clock, async.clocks[current]);
    clock[current] = warps[current / 32].stamp;
    next_stamp(current);
}

// Synchronizes lanes of a warp: each of them gets the join of all their clocks.
void Worker::share_clocks(int w, unsigned mask) {
    Clock all(threads, 0);
    for (int lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) {
            join_clocks(all, async.clocks[w * 32 + lane]);
            all[w * 32 + lane] = warps[w].stamp;
        }
    for (int lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) async.clocks[w * 32 + lane] = all;
}

// Resets all clocks at a barrier of the whole block, because stamps begin again there.
void Worker::reset_clocks() {
    for (Clock& clock : async.clocks) std::fill(clock.begin(), clock.end(), 0);
    for (auto& [_, barrier] : async.barriers) {
        std::fill(barrier.gathering.begin(), barrier.gathering.end(), 0);
        std::fill(barrier.known.begin(), barrier.known.end(), 0);
    }
    for (auto& [_, barrier] : async.named) {
        std::fill(barrier.gathering.begin(), barrier.gathering.end(), 0);
        std::fill(barrier.known.begin(), barrier.known.end(), 0);
    }
}

// Begins to keep clocks, with what the lanes of each warp have synchronized so far.
void Worker::start_clocks() {
    if (!async.clocks.empty()) return;
    ++era;  // good loads by any warp hold only without clocks
    async.clocks.assign(threads, Clock(threads, 0));
    for (int t = 0; t < threads; ++t) {
        const Warp& warp = warps[t / 32];
        for (int lane = 0; lane < lanes_of(t / 32); ++lane) {
            uint16_t known = warp.known.empty() ? 0 : warp.known[t % 32 * 32 + lane];
            async.clocks[t][t / 32 * 32 + lane] = std::max(warp.all_known, known);
        }
    }
}

// An acquire: the current thread is ordered after the completed phases of a barrier.
void Worker::learn_from(const Mbarrier& barrier) {
    join_clocks(async.clocks[current], barrier.known);
    if (!learned) return;
    Knowledge& mine = fibers[current].knows;
    join(mine.fenced, barrier.knows.fenced);
    join(mine.polled, barrier.knows.polled);
    join(mine.locked, barrier.knows.locked);
}

// ---- named barriers

// bar.sync (`waits`) or bar.arrive: completes a phase when `count` threads have come.
void Worker::named_barrier(int id, int count, bool waits, uintptr_t pc) {
    if (id < 0 || count <= 0 || (id < 16 && count % 32))
        fault("divergent barrier", pc, "named barrier %d for %d threads: numbers are 0 to 15, and the "
              "threads are a multiple of 32", id, count);
    start_clocks();
    Mbarrier& b = async.named[id];
    if (b.known.empty()) b.known.assign(threads, 0), b.gathering.assign(threads, 0);
    if (b.missing && b.missing != b.arrivals && b.arrivals != count)
        fault("divergent barrier", pc, "named barrier %d for %d threads, but other threads came for "
              "%d", id, count, b.arrivals);
    if (!b.missing || b.missing == b.arrivals) b.arrivals = b.missing = count;
    publish(b);
    if (takes_notes())
        note(waits ? "bar.sync" : "bar.arrive", pc, text("id=%d;threads=%d", id, count));
    unsigned before = b.phase;
    --b.missing;
    complete_if_done(b);
    if (!waits) return;
    while (async.named[id].phase == before) {
        fibers[current].mbarrier = uintptr_t(id) + 1;
        wait_as(State::at_mbarrier, pc);
    }
    learn_from(async.named[id]);
}

// ---- mbarrier

Mbarrier& Worker::mbarrier_at(uintptr_t address, uintptr_t pc) {
    if (address & 7) invalid_address(address, 8, Kind::load, pc);
    auto at = async.barriers.find(address);
    if (at == async.barriers.end())
        fault("mbarrier", pc, "mbarrier_init was not called for the mbarrier at %s",
              place(address));
    check_uncounted(address, 8, Kind::load, pc);  // is it ordered after mbarrier_init?
    return at->second;
}

void Worker::mbarrier_init(uintptr_t address, int arrivals, uintptr_t pc) {
    if (address & 7) invalid_address(address, 8, Kind::store, pc);
    check_uncounted(address, 8, Kind::store, pc);
    std::memset(reinterpret_cast<void*>(address), 0, 8);
    if (arrivals < 1)
        fault("mbarrier", pc, "mbarrier_init for %d arrivals per phase: at least 1 is needed",
              arrivals);
    start_clocks();
    async.barriers[address] = {arrivals, arrivals, 0, 0, 0, Clock(threads), Clock(threads), {}, {}};
    note_barrier("mbarrier init", address, pc);
}

void Worker::mbarrier_arrive(uintptr_t address, int64_t bytes, uintptr_t pc) {
    Mbarrier& barrier = mbarrier_at(address, pc);
    if (barrier.missing == 0)
        fault("mbarrier", pc, "one arrival more than the %d that a phase of the mbarrier at %s "
              "expects", barrier.arrivals, place(address));
    --barrier.missing;
    barrier.bytes += bytes;
    barrier.expected += bytes;
    publish(barrier);
    complete_if_done(barrier);
    note_barrier(bytes ? "mbarrier expect" : "mbarrier arrive", address, pc);
}

// Changes the transaction bytes that the phase expects, without an arrival.
void Worker::mbarrier_expect(uintptr_t address, int bytes, uintptr_t pc) {
    Mbarrier& barrier = mbarrier_at(address, pc);
    barrier.bytes += bytes;
    if (bytes > 0) barrier.expected += bytes;
    complete_if_done(barrier);
    note_barrier("mbarrier expect", address, pc);
}

// Arrives, and takes part in no later phase.
void Worker::mbarrier_drop(uintptr_t address, uintptr_t pc) {
    Mbarrier& barrier = mbarrier_at(address, pc);
    if (barrier.arrivals > 1) --barrier.arrivals;
    mbarrier_arrive(address, 0, pc);
}

// Completes the phase if no arrival and no transaction byte is missing: the phase's copies have
// arrived, and the threads that block on it go on.
void Worker::complete_if_done(Mbarrier& barrier) {
    if (barrier.missing || barrier.bytes) return;
    for (const Span& span : barrier.copies)
        for (uintptr_t at = span.from; at < span.to; at += 4)
            cell_of(at).in_flight = 0;
    barrier.copies.clear();
    ++barrier.phase;
    barrier.missing = barrier.arrivals;
    barrier.expected = 0;
    join_clocks(barrier.known, barrier.gathering);
    std::fill(barrier.gathering.begin(), barrier.gathering.end(), 0);
    ++era;
    for (auto& f : fibers)
        if (f.state == State::at_mbarrier) f.state = State::ready;
    if (is_watched_enough()) watch_no_more();
}

void Worker::mbarrier_wait(uintptr_t address, int parity, uintptr_t pc) {
    if (parity & ~1)
        fault("mbarrier", pc, "mbarrier_wait with phase parity %d: it must be 0 or 1", parity);
    while (mbarrier_at(address, pc).phase % 2 == unsigned(parity)) {
        fibers[current].mbarrier = address;
        wait_as(State::at_mbarrier, pc);
    }
    learn_from(async.barriers[address]);
    note_barrier("mbarrier wait", address, pc);
}

// ---- bulk copies

void Worker::bulk_aligned(uintptr_t to, uintptr_t from, int bytes, uintptr_t pc) {
    if (bytes <= 0 || ((to | from | unsigned(bytes)) & 15))
        fault("misaligned access", pc,
              "bulk copy of %d bytes from %s to %s: the size and both addresses must be multiples "
              "of 16 bytes", bytes, place(from), place(to));
}

void Worker::count_bulk(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
    uint16_t index;
    Site& s = site(pc - (kind == Kind::store), 4, kind, index);
    Stats& stats = s.stats[0];
    ++stats.requests, ++stats.lanes;
    stats.units += ((address + unsigned(bytes) - 1) >> 5) - (address >> 5) + 1;
    stats.ideal_units += unsigned(bytes + 31) / 32;
    if (kind == Kind::store) count_stored(s, address, unsigned(bytes));
}

void Worker::bulk_load(char* to, const char* from, int bytes, uintptr_t address, uintptr_t pc) {
    needs_sm(g_device.sm >= 90, "a bulk copy", "sm_90 or later");
    bulk_aligned(uintptr_t(to), uintptr_t(from), bytes, pc);
    Mbarrier& barrier = mbarrier_at(address, pc);
    check_uncounted(uintptr_t(from), unsigned(bytes), Kind::load, pc);
    count_bulk(uintptr_t(from), bytes, Kind::load, pc);
    check_uncounted(uintptr_t(to), unsigned(bytes), Kind::store, pc);
    std::memcpy(to, from, size_t(bytes));
    uint16_t index;
    site(pc - 1, 4, Kind::store, index);
    for (uintptr_t at = uintptr_t(to); is_watched && at < uintptr_t(to) + unsigned(bytes); at += 4) {
        Cell& cell = cell_of(at);
        cell.writer.bulk = 1, cell.in_flight = index;
    }
    barrier.copies.push_back({uintptr_t(to), uintptr_t(to) + unsigned(bytes), pc});
    publish(barrier);
    const unsigned phase = barrier.phase;
    barrier.bytes -= bytes;
    complete_if_done(barrier);
    if (takes_notes())
        note("bulk load", pc, text("to=%s;from=%s;bytes=%d;barrier=%s;phase=%u;now=%u;missing=%d;missing_bytes=%ld",
             note_place(uintptr_t(to)), note_place(uintptr_t(from)), bytes, note_place(address),
             phase, barrier.phase, barrier.missing, barrier.bytes));
}

// A copy of a thread that completes with the current phase of an mbarrier (cuda::memcpy_async).
void Worker::copy_on_barrier(void* to, const void* from, size_t bytes, uintptr_t address,
                             uintptr_t pc) {
    Mbarrier& barrier = mbarrier_at(address, pc);
    auto* source = static_cast<const char*>(from);
    auto* target = static_cast<char*>(to);
    for (size_t at = 0; at < bytes; at += 16) {
        unsigned piece = unsigned(std::min<size_t>(16, bytes - at));
        access(uintptr_t(source + at), piece, Kind::load, pc, false);
        access(uintptr_t(target + at), piece, Kind::store, pc - 1, false);
        std::memcpy(target + at, source + at, piece);
        resolve_pending();
    }
    if (uintptr_t(to) - uintptr_t(shared) >= kSharedSpan) return;
    uint16_t index;
    site(pc - 1, 4, Kind::store, index);
    for (uintptr_t at = uintptr_t(to); g_trace && at < uintptr_t(to) + bytes; at += 4) {
        Cell& cell = cell_of(at);
        cell.writer.bulk = 1, cell.in_flight = index;
        forget_loads(at);
    }
    barrier.copies.push_back({uintptr_t(to), uintptr_t(to) + bytes, pc});
    publish(barrier);
}

void Worker::bulk_store(char* to, const char* from, int bytes, uintptr_t pc) {
    needs_sm(g_device.sm >= 90, "a bulk copy", "sm_90 or later");
    bulk_aligned(uintptr_t(to), uintptr_t(from), bytes, pc);
    check_proxy_read(uintptr_t(from), unsigned(bytes), pc, "a bulk copy");
    check_uncounted(uintptr_t(to), unsigned(bytes), Kind::store, pc);
    count_bulk(uintptr_t(to), bytes, Kind::store, pc);
    std::memcpy(to, from, size_t(bytes));
    async.stores.resize(threads);
    Span span{uintptr_t(from), uintptr_t(from) + unsigned(bytes), pc};
    async.stores[current].reading.push_back(span);
    ++async.reads;
    count_reads(span.from, span.to, 1);
    if (takes_notes())
        note("bulk store", pc, text("to=%s;from=%s;bytes=%d", note_place(uintptr_t(to)),
             note_place(uintptr_t(from)), bytes));
}

void Worker::bulk_commit(uintptr_t pc) {
    note("bulk commit", pc);
    if (!async.stores.empty()) async.stores[current].commit();
}

void Worker::bulk_wait_read(unsigned newest, uintptr_t pc) {
    if (takes_notes()) note("bulk wait", pc, text("newest=%u", newest));
    if (!async.stores.empty()) reads_done(async.stores[current], newest);
}

// Ends the asynchronous reads of all groups but the newest. It enters them as loads of this thread,
// so a store that is not ordered after this moment is a race.
void Worker::reads_done(Reads& of, unsigned newest) {
    for (; of.groups.size() > newest; of.groups.erase(of.groups.begin())) {
        std::vector<Span>& spans = of.groups.front();
        for (const Span& span : spans) count_reads(span.from, span.to, -1);
        async.reads -= spans.size();
        // Several operations often read the same words.
        std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return a.from < b.from; });
        for (size_t i = 0; i < spans.size();) {
            Span all = spans[i];
            for (++i; i < spans.size() && spans[i].from <= all.to; ++i) all.to = std::max(all.to, spans[i].to);
            check_uncounted(all.from, unsigned(all.to - all.from), Kind::load, all.pc);
        }
    }
}

// Notes that one more, or one less, asynchronous operation may read this part of shared memory.
void Worker::count_reads(uintptr_t from, uintptr_t to, int change) {
    if (async.reads_of.empty()) async.reads_of.resize(kSharedSpan / kPiece);
    size_t first = (from - uintptr_t(shared)) / kPiece, last = (to - 1 - uintptr_t(shared)) / kPiece;
    for (size_t i = first; i <= last && i < async.reads_of.size(); ++i)
        async.reads_of[i] += unsigned(change);
}

// Checks a store to shared memory: may a bulk copy or a wgmma still read there?
void Worker::check_overwrite(const CheckedAccess& checked) {
    size_t first = (checked.address - uintptr_t(shared)) / kPiece;
    size_t last = (checked.address + checked.bytes - 1 - uintptr_t(shared)) / kPiece;
    bool any = false;
    for (size_t i = first; i <= last; ++i) any |= async.reads_of[i] != 0;
    if (!any) return;
    auto meets = [&](const std::vector<Span>& spans, int thread) {
        for (const Span& span : spans) {
            if (checked.address >= span.to || checked.address + checked.bytes <= span.from)
                continue;
            Other other{span.pc, blockIdx, fibers[thread].index};
            report(true, "overwritten too early", sites[checked.site].pc, other,
                   "store to %s, which a bulk copy or wgmma may still read: no thread has waited "
                   "for it", place(std::max(checked.address, span.from)));
        }
    };
    auto all = [&](const Reads& of, size_t thread) {
        meets(of.reading, int(thread));
        for (auto& group : of.groups) meets(group, int(thread));
    };
    for (size_t t = 0; t < async.stores.size(); ++t) all(async.stores[t], t);
    for (size_t w = 0; w < async.warps.size(); ++w) all(async.warps[w], w * 32);
}

// ---- wgmma: each warp computes its 16 rows, when its lanes meet. The warps of a warpgroup need not
// meet here, but they must execute the same operations in the same order.

// Enters an operation of the current warp, and compares it with those of the warpgroup.
void Worker::warpgroup_step(const WgmmaStep& step) {
    size_t w = size_t(current) / 32, first = w / 4 * 4;
    if (async.warps.empty()) async.warps.resize(warps.size());
    if (first + 4 > warps.size())
        fault("wgmma", step.pc, "%s by a warpgroup of %zu warps: it needs four, so the block needs a "
              "multiple of 128 threads", step.what, warps.size() - first);
    std::vector<WgmmaStep>& mine = async.warps[w].steps;
    size_t i = mine.size();
    mine.push_back(step);
    for (size_t other = first; other < first + 4; ++other) {
        const auto& theirs = async.warps[other].steps;
        if (other == w || theirs.size() <= i || theirs[i] == step) continue;
        Other who{theirs[i].pc, blockIdx, fibers[other * 32].index};
        report(true, "wgmma", step.pc, who, theirs[i].what == step.what
               ? "warps %zu and %zu of a warpgroup pass different descriptors to their %s (the %s "
                 "of the other warp is the second place): all four must pass the same"
               : "warps %zu and %zu of a warpgroup execute different operations, %s and %s: all "
                 "four warps must execute each of them together",
               w - first, other - first, step.what, theirs[i].what);
        return;
    }
}

// Called at the end of a block: has each warp of a warpgroup executed as many operations?
void Worker::compare_warpgroups() {
    if (abandoned) return;
    report_unfinished_stores();
    report_unfinished_wgmma();
    for (size_t first = 0; first + 4 <= async.warps.size(); first += 4) {
        size_t most = first, least = first;
        for (size_t w = first; w < first + 4; ++w) {
            if (async.warps[w].steps.size() > async.warps[most].steps.size()) most = w;
            if (async.warps[w].steps.size() < async.warps[least].steps.size()) least = w;
        }
        const auto& steps = async.warps[most].steps;
        if (steps.size() == async.warps[least].steps.size()) continue;
        const WgmmaStep& step = steps[async.warps[least].steps.size()];
        current = int(most) * 32;
        report(true, "wgmma", step.pc, {}, "%s by warp %zu of a warpgroup, but not by warp %zu: all "
               "four warps must execute it together", step.what, most - first, least - first);
        current = -1;
    }
}

// Called at the end of a block, when another block may get its shared memory: reports a bulk copy that
// may still read there.
void Worker::report_unfinished_stores() {
    for (size_t thread = 0; thread < async.stores.size(); ++thread) {
        const Reads& of = async.stores[thread];
        bool committed = of.reading.empty();
        const Span* span = committed ? nullptr : &of.reading.front();
        for (auto& group : of.groups)
            if (!span && !group.empty()) span = &group.front();
        if (!span) continue;
        current = int(thread);
        report(true, "overwritten too early", span->pc, {},
               "the block ended while this bulk copy may still read its shared memory, which another "
               "block may get: %s before the thread returns",
               committed ? "call bulk_wait_read<0>()" : "call bulk_commit() and bulk_wait_read<0>()");
        current = -1;
        return;
    }
}

// Called at the end of a block: reports a wgmma for which no wait came, so that its sums were read as
// NaN.
void Worker::report_unfinished_wgmma() {
    for (size_t w = 0; w < async.warps.size(); ++w) {
        const Warpgroup& group = async.warps[w];
        if (group.chains.empty()) continue;
        g_incomplete = 0;
        uintptr_t pc = 0;
        for (const WgmmaStep& step : group.steps)
            if (!strcmp(step.what, "wgmma")) pc = step.pc;
        const char* missing = group.reading.empty()
            ? "no wgmma_wait(0) came after this wgmma"
            : "no wgmma_commit came after this wgmma, so no wgmma_wait waited for it";
        current = int(w) * 32;
        report(true, "copy not waited for", pc, {},
               "the block ended, and %s: its accumulators were never complete, and read as NaN here",
               missing);
        current = -1;
        return;
    }
}

// Returns the first word of a range that has the NaN of incomplete accumulators; null if there is none.
const uint32_t* find_incomplete(const uint32_t* from, const uint32_t* to) {
    // The upper half of a float, or a whole bf16, with either sign.
    for (; from < to; ++from)
        if ((*from & 0x7fff0000) == kIncomplete) return from;
    return nullptr;
}

// Returns the same of a whole buffer. Most of a large one may never have been accessed. A read of such a page would
// allocate it, so only pages that are in memory are read.
const uint32_t* find_incomplete(const Buffer& b) {
    constexpr size_t kPages = 1 << 14;
    unsigned char present[kPages];
    for (uintptr_t page = b.base / kPage * kPage; page < b.base + b.bytes; page += kPages * kPage) {
        size_t bytes = std::min(kPages * kPage, b.base + b.bytes - page);
        if (mincore(reinterpret_cast<void*>(page), bytes, present)) std::memset(present, 1, kPages);
        for (size_t i = 0; i * kPage < bytes; ++i) {
            if (!(present[i] & 1)) continue;
            uintptr_t from = std::max(page + i * kPage, b.base);
            uintptr_t to = std::min(page + (i + 1) * kPage, b.base + b.bytes / 4 * 4);
            const auto* words = reinterpret_cast<const uint32_t*>(from);
            if (auto* found = find_incomplete(words, reinterpret_cast<const uint32_t*>(to))) return found;
        }
    }
    return nullptr;
}

// Reports an output that has the NaN of incomplete accumulators: their sums were read before the wait.
void report_read_too_early() {
    if (!g_incomplete) return;
    for (auto& b : g_buffers) {
        const uint32_t* found = is_output(b) ? find_incomplete(b) : nullptr;
        if (!found) continue;
        report(true, "copy not waited for", g_incomplete, {},
               "the accumulators of this wgmma were read before wgmma_wait completed it: %s was "
               "computed from them, and is NaN here", place_of(uintptr_t(found)));
        return;
    }
}

struct WgmmaCall {
    float* d;
    uint64_t a, b;
    int n, accumulate;
    uintptr_t pc;
    const uint32_t* gathered;   // a lane's four words of a, if a is in registers; or null
};

void Worker::warp_collective(void (*step)(void**, unsigned), void* argument, uintptr_t pc) {
    if (async.warps.empty()) async.warps.resize(warps.size());
    const unsigned present = lanes_present(current / 32);
    leave_after(~present);
    if (~present)
        fault("warp mask", pc, "wgmma operation by fewer than 32 lanes: all lanes must execute it");
    collective(0xffffffffu, step, argument, pc);
}

// Waits for all lanes of the warp. Returns true to the last one, which then does the work of all:
// work that may report an error cannot run inside the collective.
bool Worker::is_last_of_warp(void* argument, uintptr_t pc) {
    auto step = [](void** arguments, unsigned) {
        Warpgroup& group = t_worker->async.warps[t_worker->current / 32];
        std::copy(arguments, arguments + 32, group.arguments);
        group.met = true;
    };
    warp_collective(step, argument, pc);
    return std::exchange(async.warps[current / 32].met, false);
}

// Returns a number as a tensor core reads it: without the 13 lowest bits of its significand.
inline float seen_as_tf32(float value) {
    return sim::bits<float>(sim::bits<unsigned>(value) & 0xffffe000);
}

// Reads rows of an operand. A row has two times 16 bytes: 8 numbers in TF32 ('t'), 16 in bf16 ('b')
// or fp16 ('f').
void Worker::wgmma_operand(uint64_t descriptor, int first, int rows, char type, float (*to)[16],
                           uintptr_t pc, std::vector<Span>& reading) {
    if (descriptor >> 62)
        not_simulated(pc, "the wgmma descriptor has a swizzle mode");
    uintptr_t start = uintptr_t(shared) + (descriptor & 0x3fff) * 16;
    uintptr_t k_step = (descriptor >> 16 & 0x3fff) * 16, row_step = (descriptor >> 32 & 0x3fff) * 16;
    for (int quad = 0; quad < 2; ++quad)
        for (int row = first; row < first + rows; row += 8) {
            uintptr_t core = start + unsigned(quad) * k_step + unsigned(row / 8) * row_step;
            check_operand(core, pc);
            const auto* halves = reinterpret_cast<const uint16_t*>(core);
            const auto* words = reinterpret_cast<const float*>(core);
            for (int i = 0; i < 8; ++i) {  // 16 bytes of a row
                float* into = &to[row - first + i][quad * (type == 't' ? 4 : 8)];
                if (type == 't')
                    for (int j = 0; j < 4; ++j)
                        into[j] = seen_as_tf32(words[4 * i + j]);
                else if (type == 'b')
                    for (int j = 0; j < 8; ++j) into[j] = sim::Bfloat16::widen(halves[8 * i + j]);
                else
                    for (int j = 0; j < 8; ++j) into[j] = sim::Half::widen(halves[8 * i + j]);
            }
            if (!reading.empty() && reading.back().to == core && reading.back().pc == pc) {
                reading.back().to += 128;
                // The piece with the span's last byte was counted before.
                count_reads((core + kPiece - 1) / kPiece * kPiece, core + 128, 1);
            } else {
                reading.push_back({core, core + 128, pc});
                ++async.reads;
                count_reads(core, core + 128, 1);
            }
        }
}

void Worker::wgmma(float* d, uint64_t descriptor_a, uint64_t descriptor_b, int n, char type,
                   int accumulate, uintptr_t pc, const uint32_t* gathered) {
    needs_sm(g_device.sm == 90, "wgmma", "sm_90");
    const int k = type == 't' ? 8 : 16;
    if (takes_notes()) {
        auto matrix = [&](uint64_t descriptor) {
            return text("%s+%lu+%lu", note_place(uintptr_t(shared) + (descriptor & 0x3fff) * 16),
                        (descriptor >> 16 & 0x3fff) * 16, (descriptor >> 32 & 0x3fff) * 16);
        };
        note("wgmma", pc, text("m=64;n=%d;k=%d;a=%s;b=%s", n, k,
             gathered ? "registers" : matrix(descriptor_a), matrix(descriptor_b)));
    }
    WgmmaCall mine{d, descriptor_a, descriptor_b, n, accumulate, pc, gathered};
    if (!is_last_of_warp(&mine, pc)) return;
    warpgroup_step({pc, "wgmma", descriptor_a, descriptor_b});
    Warpgroup& group = async.warps[current / 32];
    auto call = [&](int lane) { return static_cast<WgmmaCall*>(group.arguments[lane]); };
    const WgmmaCall first = *call(0);
    counters.tensor_flops += 2 * 16 * uint64_t(first.n) * unsigned(k);
    for (int lane = 1; lane < 32; ++lane)
        if (call(lane)->a != first.a || call(lane)->b != first.b ||
            call(lane)->accumulate != first.accumulate)
            fault("wgmma", first.pc, "lanes 0 and %d pass different descriptors or accumulate "
                  "flags", lane);
    Wgmma* chain = nullptr;
    for (auto& other : group.chains)
        if (other.d[0] == first.d) chain = &other;
    if (!chain) {  // the accumulators are in registers
        if (!group.fenced)
            report(true, "no wgmma fence", first.pc, {},
                   "the accumulators are in registers, and no wgmma_fence precedes this wgmma");
        group.chains.push_back({{}, std::vector<float>(size_t(16 * first.n)), first.n});
        chain = &group.chains.back();
        for (int lane = 0; lane < 32; ++lane) {
            chain->d[lane] = call(lane)->d;
            for (int i = 0; i < first.n / 2; ++i)  // a read before the wait gives NaN
                chain->sum(lane, i) = std::exchange(chain->d[lane][i], sim::bits<float>(kIncomplete));
        }
        g_incomplete = first.pc;
    }
    chain->group = group.committed;
    auto& [a, b, transposed] = *operands;
    if (first.gathered) {
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                const uint32_t word = call(lane)->gathered[i];
                const int row = lane / 4 + i % 2 * 8, at = lane % 4 + i / 2 * 4;
                if (type == 't') {
                    a[row][at] = seen_as_tf32(sim::bits<float>(word));
                    continue;
                }
                for (int half = 0; half < 2; ++half) {
                    const uint16_t number = uint16_t(word >> 16 * half);
                    a[row][2 * at + half] = type == 'b' ? sim::Bfloat16::widen(number)
                                                        : sim::Half::widen(number);
                }
            }
    } else {
        wgmma_operand(first.a, current / 32 % 4 * 16, 16, type, a, first.pc, group.reading);
    }
    wgmma_operand(first.b, 0, first.n, type, b, first.pc, group.reading);
    // NaN if b has an infinity or a NaN. Otherwise zeros in a, as from padding, can be skipped.
    float zero_times_b = 0;
    for (int j = 0; j < first.n; ++j)
        for (int i = 0; i < k; ++i) zero_times_b += 0 * (transposed[i][j] = b[j][i]);
    for (int row = 0; row < 16; ++row) {
        float* sums = &chain->sums[size_t(row * first.n)];
        if (!first.accumulate) std::fill(sums, sums + first.n, 0.0f);
        for (int i = 0; i < k; ++i) {
            if (a[row][i] == 0 && zero_times_b == 0) continue;
            for (int j = 0; j < first.n; ++j) sums[j] += a[row][i] * transposed[i][j];
        }
    }
}

void Worker::wgmma_fence(uintptr_t pc) {
    note("wgmma fence", pc);
    if (!is_last_of_warp(nullptr, pc)) return;
    warpgroup_step({pc, "wgmma_fence", 0, 0});
    async.warps[current / 32].fenced = true;
}

void Worker::wgmma_commit(uintptr_t pc) {
    note("wgmma commit", pc);
    if (!is_last_of_warp(nullptr, pc)) return;
    warpgroup_step({pc, "wgmma_commit", 0, 0});
    async.warps[current / 32].commit();
}

// Ends the reads inside the collective, so that they are ordered before what all lanes do next.
void Worker::wgmma_wait(unsigned newest, uintptr_t pc) {
    if (takes_notes()) note("wgmma wait", pc, text("newest=%u", newest));
    auto step = [](void** arguments, unsigned) {
        t_worker->wgmma_done(*static_cast<unsigned*>(arguments[0]));
    };
    warp_collective(step, &newest, pc);
}

void Worker::wgmma_done(unsigned newest) {
    Warpgroup& group = async.warps[current / 32];
    reads_done(group, newest);
    std::vector<Wgmma> running;
    for (auto& chain : group.chains) {
        if (chain.group >= group.oldest()) {
            running.push_back(std::move(chain));
            continue;
        }
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < chain.n / 2; ++i) chain.d[lane][i] = chain.sum(lane, i);
        group.fenced = false;
    }
    group.chains = std::move(running);
}
}  // namespace
