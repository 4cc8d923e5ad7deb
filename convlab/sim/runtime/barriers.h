// Barriers and warp operations: how threads wait for one another, and how a deadlock is found.
#pragma once
#include "findings.h"

namespace {
void Worker::wait_as(State state, uintptr_t pc) {
    fibers[current].state = state;
    fibers[current].waits_at = pc;
    yield();
}

void Worker::collective(unsigned mask, void (*step)(void**, unsigned), void* argument,
                        uintptr_t pc) {
    int w = current / 32, lane = current % 32;
    mask &= 0xffffffffu >> (32 - lanes_of(w));
    Warp& warp = warps[w];
    if (!(mask >> lane & 1))
        fault("warp mask", pc, "lane %d calls a warp operation with mask 0x%08x, which does not "
              "include this lane", lane, mask);
    size_t g = 0;
    while (g < warp.gathering.size() && warp.gathering[g].mask != mask) ++g;
    if (g == warp.gathering.size()) warp.gathering.push_back({mask, 0, step});
    if (warp.gathering[g].step != step)
        fault("warp mask", pc, "lane %d calls a different warp operation than the lanes of mask "
              "0x%08x, which wait for it", lane, mask);
    warp.arguments[lane] = argument;
    warp.gathering[g].arrived |= 1u << lane;
    if (warp.gathering[g].arrived == mask) return complete(w, g);
    wait_as(State::at_warp, pc);
}

// Called when no fiber can run. Completes a barrier or warp operations, or counts full logs.
// Returns false if nothing can be completed: a deadlock.
bool Worker::release() {
    bool any = false;
    for (int w = 0; w < int(warps.size()); ++w) any |= release_warp(w);
    if (any || waiting != live) return any;
    last_arrived = waiting;
    last_votes = votes;
    waiting = votes = 0;
    ++counters.barriers;
    compare_barriers();
    share_knowledge(0, threads, ~0u);
    for (int w = 0; w < int(warps.size()); ++w) flush(w);  // all lanes are at the barrier
    ++phase;
    ++era;
    barrier_at = 0;
    for (auto& f : fibers)
        if (f.state == State::at_barrier) barrier_at = f.waits_at;
    for (auto& warp : warps) {
        warp.stamp = 1, warp.all_known = 0;
        warp.known.clear();
    }
    reset_clocks();
    for (auto& f : fibers)
        if (f.state == State::at_barrier) f.state = State::ready;
    if (is_watched_enough()) watch_no_more();
    return true;
}

// Is a part of the blocks or of their accesses unwatched, so that some stores are unknown? While
// blocks run in parallel, the answer does not depend on how far the others are: a finding that it
// could have prevented makes the blocks run one at a time.
bool Worker::in_part() const { return g_in_part || (launch->serial && g_cut); }

bool Worker::is_watched_enough() const {
    return is_watched && launch->most_of_block && work() > launch->most_of_block;
}

// Ends the search for races in this block: at a barrier of the block, or when an mbarrier completes a phase.
void Worker::watch_no_more() {
    resolve_pending();
    is_watched = false;
    g_cut = true;
}

int Worker::lanes_of(int w) const { return std::min(32, threads - w * 32); }

unsigned Worker::lanes_present(int w) const {  // the lanes that have not ended
    return (lanes_of(w) < 32 ? (1u << lanes_of(w)) - 1 : ~0u) & ~warps[w].ended;
}

// Ends the thread without a finding if lanes that its operation needs have ended at an error: that is
// reported, and without them the operation has no result.
void Worker::leave_after(unsigned missing) {
    if (abandoned && missing & ~lanes_present(current / 32)) leave(true);
}

bool Worker::release_warp(int w) {
    Warp& warp = warps[w];
    Fiber* lanes = &fibers[w * 32];
    bool full = false, met = false;
    for (int lane = 0; lane < lanes_of(w); ++lane) full |= lanes[lane].state == State::log_full;
    if (full) {
        flush(w);
        for (int lane = 0; lane < lanes_of(w); ++lane)
            if (lanes[lane].state == State::log_full && lanes[lane].logged < kLog)
                lanes[lane].state = State::ready;
    }
    unsigned present = lanes_present(w);
    for (size_t g = 0; g < warp.gathering.size() && !met; ++g)  // the missing lanes have ended
        if ((met = !(warp.gathering[g].mask & ~warp.gathering[g].arrived & present)))
            complete(w, g);
    return full || met || complete_activemask(w);
}

void Worker::complete(int w, size_t g) {
    Warp& warp = warps[w];
    Group group = warp.gathering[g];
    warp.gathering.erase(warp.gathering.begin() + long(g));
    in_collective = true;
    if (group.step) group.step(warp.arguments, group.arrived);
    in_collective = false;
    order(w, group.arrived);
    for (int lane = 0; lane < 32; ++lane)
        if (group.arrived >> lane & 1) fibers[w * 32 + lane].state = State::ready;
}

// Synchronizes the lanes of a mask: what is ordered before one of them is ordered before all.
void Worker::order(int w, unsigned mask) {
    Warp& warp = warps[w];
    share_knowledge(w * 32, lanes_of(w), mask);
    // Stamps and clocks order accesses that are watched.
    if (!is_watched) return;
    if (!async.clocks.empty()) share_clocks(w, mask);
    if (!(lanes_present(w) & ~mask)) {
        warp.all_known = warp.stamp;
    } else {
        if (warp.known.empty()) warp.known.assign(32 * 32, 0);
        uint16_t all[32] = {};
        for (int lane = 0; lane < 32; ++lane)
            for (int other = 0; mask >> lane & 1 && other < 32; ++other)
                all[other] = std::max(all[other], warp.known[lane * 32 + other]);
        for (int lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) all[lane] = warp.stamp;
        for (int lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) std::copy(all, all + 32, &warp.known[lane * 32]);
    }
    if (warp.stamp < 0xffff) ++warp.stamp;
}

// Checks a barrier of the block: do all threads wait at the same call, and has none returned?
void Worker::compare_barriers() {
    int first = -1, running = current;
    for (int i = 0; i < threads; ++i) {
        if (fibers[i].state != State::at_barrier) continue;
        if (first < 0) first = i;
        if (fibers[i].waits_at == fibers[first].waits_at) continue;
        current = i;  // findings.py drops the finding if both addresses are on one line
        report(true, "divergent barrier", fibers[i].waits_at,
               {fibers[first].waits_at, blockIdx, fibers[first].index},
               "threads of the block wait at different __syncthreads() calls (barrier divergence)");
    }
    if (last_arrived < threads && !abandoned) {
        current = first;
        report(false, "barrier after exit", fibers[first].waits_at, {},
               "%d of the block's %d threads returned before this barrier",
               threads - last_arrived, threads);
    }
    current = running;
}

// Completes __activemask when no other lane can run: its result is the lanes at the same call. In
// odd schedules each lane gets only itself, because CUDA guarantees no more.
bool Worker::complete_activemask(int w) {
    unsigned mask = 0;
    uintptr_t where = 0;
    auto each = [&](auto use) {
        for (int lane = 0; lane < lanes_of(w); ++lane)
            if (Fiber& f = fibers[w * 32 + lane];
                f.state == State::at_activemask && (!where || f.waits_at == where))
                use(f, lane);
    };
    each([&](Fiber& f, int lane) { where = f.waits_at, mask |= 1u << lane; });
    each([&](Fiber& f, int lane) {
        f.active = g_schedule & 1 ? 1u << lane : mask, f.state = State::ready;
    });
    return mask != 0;
}

// Returns what an mbarrier lacks that blocks a thread, and which of its numbers may be wrong.
std::string Worker::describe_mbarrier(int thread) const {
    if (uintptr_t id = fibers[thread].mbarrier; id && id < 1 << 16) {
        const Mbarrier& b = async.named.at(int(id) - 1);
        std::string what = id > 16 ? "for its tile" : text("at named barrier %d", int(id) - 1);
        return text("waits %s: %d of %d threads came", what,
                    b.arrivals - b.missing, b.arrivals);
    }
    auto found = async.barriers.find(fibers[thread].mbarrier);
    if (found == async.barriers.end()) return "";
    const Mbarrier& b = found->second;
    int came = b.arrivals - b.missing;
    std::string state = text("waits for phase %u (parity %u) of the mbarrier at %s: %d of %d "
                             "arrivals came", b.phase, b.phase % 2, place(found->first), came,
                             b.arrivals);
    if (b.expected || b.bytes)
        state += text(", %ld of %ld expected bytes", long(b.expected - b.bytes), long(b.expected));
    if (!came && !b.expected && !b.bytes)
        return state + (b.phase ? text("; nothing has arrived since phase %u completed, so the wait's "
                                       "parity is wrong or a thread does not arrive", b.phase - 1)
                                : ", so the wait's parity is wrong or a thread does not arrive");
    if (b.missing && b.bytes)
        return state + "; a thread that arrives and expects bytes is missing, or its count";
    if (b.missing)
        return state + "; the count of mbarrier_init is too large, or a thread does not arrive";
    if (b.bytes < 0)
        return state + "; the expected bytes are too few for the copies";
    return state + "; the expected bytes are too many, or a copy is missing";
}

// Reports why no thread can go on, and ends the block. The stack of fiber `from` is in use.
void Worker::deadlock(int from) {
    int at_barrier = 0, at_warp = 0, at_mbarrier = 0, example = -1, mbarrier = -1;
    for (int i = threads; i-- > 0;) {
        at_barrier += fibers[i].state == State::at_barrier;
        if (fibers[i].state == State::at_warp) ++at_warp, example = i;
        if (fibers[i].state == State::at_mbarrier) ++at_mbarrier, mbarrier = i;
    }
    current = at_mbarrier ? mbarrier : example;
    std::string others = at_mbarrier ? text(" and %d on an mbarrier", at_mbarrier) : "";
    others = text("%d threads wait at __syncthreads and %d in warp operations", at_barrier,
                  at_warp) + others;
    if (at_mbarrier) {
        report(true, "deadlock", fibers[mbarrier].waits_at, {},
               "this thread %s (%s)", describe_mbarrier(mbarrier), others);
    } else {
        Group g{};
        for (auto& group : warps[example / 32].gathering)
            if (group.arrived >> example % 32 & 1) g = group;
        report(true, "deadlock", fibers[example].waits_at, {},
               "%s; one with mask 0x%08x waits for lanes 0x%08x, which never arrive", others,
               g.mask, g.mask & ~g.arrived);
    }
    for (int i = 0; i < threads; ++i) {
        if (fibers[i].state == State::done) continue;
        ends(i);
        if (fibers[i].stack) release_stack(fibers[i].stack, i == from);
    }
    live = waiting = 0;
    abandoned = true;
}
}  // namespace

extern "C" {
int sim_barrier(int predicate, int* how_many) {
    Worker& w = *t_worker;
    w.note("__syncthreads", CALLER);
    ++w.waiting;
    w.votes += predicate;
    w.wait_as(State::at_barrier, CALLER);
    if (how_many) *how_many = w.last_votes;
    return w.last_arrived;
}
void sim_collective(unsigned mask, void (*step)(void**, unsigned), void* argument) {
    t_worker->collective(mask, step, argument, CALLER);
}
unsigned sim_active_lanes() {
    t_worker->wait_as(State::at_activemask, CALLER);
    return t_worker->fibers[t_worker->current].active;
}
}
