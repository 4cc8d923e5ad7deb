// Fences, and what synchronizes threads: atomics and volatile accesses. Which accesses do they order?
//
// A thread releases what it did by a __threadfence and, after it, an atomic or volatile store of a
// word. Another thread that reads this word by an atomic or a volatile load, and then calls
// __threadfence, is ordered after all that. So the runtime keeps for each word its releases (Word),
// and for each thread the releases that it has seen (Knowledge), as PTX's memory model has it.
//
// Two things are accepted that PTX's memory model does not order, because NVIDIA's own examples rely
// on them. A poll without a fence after it orders too; a lock taken by atomicCAS without a fence
// orders only loads and atomics. And if each thread calls __threadfence before a barrier, one
// thread's atomic after that barrier releases what all did.
#pragma once
#include "findings.h"

namespace {
// Returns whether an access by the current thread synchronizes: atomics and volatile loads do. A
// volatile store does if it is the first signal after a fence; otherwise it stores data.
inline bool Worker::synchronizes(Kind kind, unsigned how, uint16_t index) {
    if (!(how & kVolatile) && kind != Kind::atomic) return false;
    if (kind == Kind::load) return true;
    Fiber& f = fibers[current];
    if (kind == Kind::atomic) return f.signals_by = kByAtomic, true;
    if (!f.fence) return false;
    if (!f.signals_by) f.signals_by = index;
    return f.signals_by == index;
}

// Returns whether the current thread signalled by a volatile store since its last fence. Another
// volatile store may be a second signal then; it is not certain that it stores data.
inline bool Worker::has_signalled_volatile() const {
    const Fiber& f = fibers[current];
    return f.fence && f.signals_by && f.signals_by != kByAtomic;
}

inline Synchronization& Worker::words_of(uintptr_t at) {
    return launch->serial && in_buffers(at) ? launch->synchronization : words;
}

inline BlockOrder& Worker::order_of(uint32_t number) {
    return launch->serial ? launch->orders[number] : own_order;
}

void join(KnownPointer& into, const KnownPointer& other) {
    if (!other || into == other) return;
    if (!into) return void(into = other);
    auto all = std::make_shared<Known>(*into);
    all->join(*other);
    into = all;
}

// Adds to the current thread's knowledge the releases of the word that it reads now.
void Worker::observe(uintptr_t at, bool of_block, bool by_swap) {
    auto& all = words_of(at);
    auto found = all.find(at);
    if (found == all.end() || !found->second.written) return;
    const Word& word = found->second;
    Knowledge& knows = fibers[current].knows;
    KnownPointer& into = by_swap ? knows.locked : knows.polled;
    uint64_t mine = block + 1;
    if (into && into->time(at, of_block ? mine : 0) >= word.written) return;
    auto next = std::make_shared<Known>(into ? *into : Known{});
    auto in_block = word.of_blocks.find(mine);
    Known seen;
    if (!of_block) seen.entries.push_back({at, 0, word.written});
    if (of_block || in_block != word.of_blocks.end()) seen.entries.push_back({at, mine, word.written});
    next->join(seen);
    if (!of_block) next->join(word.all);
    if (in_block != word.of_blocks.end()) next->join(in_block->second);
    into = next;
    learned = true;
}

// Enters a store or atomic by which the current thread signals others: a release, if it or its
// block called __threadfence before.
void Worker::signal(uintptr_t at, bool of_block) {
    Word& word = words_of(at)[at];
    word.written = ++g_clock;
    BlockOrder& order = order_of(uint32_t(block));
    if (order.fences.empty()) return;
    const Fiber& f = fibers[current];
    const Fence* fence = f.fence.get();
    bool narrow = of_block || (fence && fence->of_block);
    auto& last = f.released;
    bool again = last.word == at && last.fence == fence && last.phase == phase;
    if (!again || !fence)
        order.releases.push_back({word.written, at, narrow, uint16_t(current), phase,
                                  warps[current / 32].all_known, f.fence});
    fibers[current].released = {at, fence, phase};
    const Known* passes = fence && fence->knows ? fence->knows.get() : nullptr;
    if (narrow || passes) {
        Known& in_block = word.of_blocks[block + 1];
        if (passes) in_block.join(*passes);
    }
    if (passes && !narrow) word.all.join(*passes);
}

// __threadfence, or __threadfence_block: releases by later signals, and acquires by earlier reads.
void Worker::fence(bool of_block) {
    if (!g_trace) return;
    Fiber& f = fibers[current];
    const Warp& warp = warps[current / 32];
    KnownPointer seen = f.knows.polled;
    join(seen, f.knows.locked);
    if (seen && of_block) {
        // It orders only threads of this block.
        auto here = std::make_shared<Known>();
        for (auto e : seen->entries) {
            if (e.of && e.of != block + 1) continue;
            e.of = block + 1;
            Known one;
            one.entries.push_back(e);
            here->join(one);
        }
        seen = here;
    }
    join(f.knows.fenced, seen);
    if (!of_block) f.knows.polled = f.knows.locked = nullptr;
    auto mine = std::make_shared<Fence>();
    mine->phase = phase, mine->stamp = warp.stamp, mine->of_block = of_block;
    mine->all_known = warp.all_known, mine->knows = f.knows.fenced;
    if (!warp.known.empty()) {
        auto row = warp.known.begin() + current % 32 * 32;
        mine->lanes.assign(row, row + 32);
    }
    if (!async.clocks.empty()) mine->clock = async.clocks[current];
    f.fence = mine, f.signals_by = 0;
    auto& fences = order_of(uint32_t(block)).fences;
    fences.resize(size_t(threads));
    auto& points = fences[current];
    bool again = !points.empty() && points.back().phase == phase &&
                 points.back().of_block == of_block;
    if (again) points.back().stamp = warp.stamp;
    else points.push_back({phase, warp.stamp, of_block});
    next_stamp(current);
}

// Returns whether an access was ordered before a release of its block.
bool covers(const Release& r, const Mark& m, const BlockOrder& order) {
    bool same_warp = m.thread / 32 == r.thread / 32;
    if (const Fence* f = r.fence.get()) {
        if (m.phase < f->phase) return true;
        if (m.phase == f->phase) {
            if (m.thread == r.thread ? m.stamp <= f->stamp : same_warp && m.stamp <= f->all_known)
                return true;
            if (same_warp && !f->lanes.empty() && m.stamp <= f->lanes[m.thread % 32]) return true;
            if (!f->clock.empty() && m.stamp <= f->clock[m.thread]) return true;
        }
    }
    // The thread called __threadfence itself, before a barrier of its block or its warp.
    for (const auto& p : order.fences[m.thread]) {
        if (p.of_block && !r.of_block) continue;
        if (p.phase < m.phase || (p.phase == m.phase && p.stamp < m.stamp)) continue;
        if (p.phase < r.phase || (p.phase == r.phase && same_warp && p.stamp <= r.all_known))
            return true;
    }
    return false;
}

// Returns whether an access was ordered before a release that a thread knows of.
bool Worker::is_released(const Mark& m, const KnownPointer& known) {
    if (!known) return false;
    const BlockOrder& order = order_of(m.block);
    auto earlier = [](const Release& r, uint32_t phase) { return r.phase < phase; };
    auto r = std::lower_bound(order.releases.begin(), order.releases.end(), m.phase, earlier);
    for (; r != order.releases.end(); ++r) {
        uint32_t time = known->time(r->word, m.block + uint64_t(1));
        if (!r->of_block) time = std::max(time, known->time(r->word, 0));
        if (r->time <= time && covers(*r, m, order)) return true;
    }
    return false;
}

// Returns whether fences order an earlier access of this launch before the current thread's.
bool Worker::is_ordered_by_fences(const Mark& m, const CheckedAccess* checked) {
    const Knowledge& knows = fibers[current].knows;
    if (is_released(m, knows.fenced)) return true;
    if (!checked) return false;
    if (is_released(m, knows.polled)) return true;
    if (checked->kind != Kind::store && is_released(m, knows.locked)) return true;
    if (!m.sync) return false;
    // The thread has read this very word since: then its accesses to it come later in any case.
    auto& all = words_of(checked->address);
    auto word = all.find(checked->address);
    if (word == all.end()) return false;
    for (const auto& known : {knows.fenced, knows.polled, knows.locked})
        if (known && std::max(known->time(checked->address, 0),
                              known->time(checked->address, block + 1)) >= word->second.written)
            return true;
    return false;
}

// Returns why fences and signals do not order an earlier access of another block, or of another
// warp, before the current thread's: the end of a sentence.
std::string Worker::why_unordered(const Mark& m) {
    const Knowledge& knows = fibers[current].knows;
    if (is_released(m, knows.locked))
        return ": this thread has taken the lock, but called no __threadfence() since";
    const BlockOrder& order = order_of(m.block);
    bool is_covered = false, is_narrow = false;
    for (const Release& r : order.releases) {
        if (r.phase < m.phase || !covers(r, m, order)) continue;
        is_covered = true, is_narrow |= r.of_block;
    }
    if (is_covered && is_narrow && m.block != uint32_t(block))
        return ": the other's fence or signal has block scope, so it orders only its own block";
    if (is_covered || order.releases.empty()) return "";
    return ": the other thread called no __threadfence() between this access and its signal";
}

// Threads that meet at a barrier know what each of them knew.
void Worker::share_knowledge(int first, int count, unsigned mask) {
    if (!learned) return;
    Knowledge all;
    for (int pass : {0, 1})
        for (int i = 0; i < count; ++i) {
            if (count <= 32 && !(mask >> i & 1)) continue;
            Knowledge& one = fibers[first + i].knows;
            if (pass) {
                one = all;
                continue;
            }
            join(all.fenced, one.fenced);
            join(all.polled, one.polled);
            join(all.locked, one.locked);
        }
}
}  // namespace

extern "C" {
void sim_fence(bool of_block) {
    g_synchronizes = true;
    if (t_worker) t_worker->fence(of_block);
}

// An atomic by the current thread; `pc` is its code address.
static void atomic_access(const volatile void* address, unsigned bytes, unsigned how,
                          uintptr_t pc) {
    Worker& w = *t_worker;
    auto at = uintptr_t(address);
    ++w.counters.atomics;
    g_synchronizes = true;
    w.count_poll(at);
    if (!g_trace && !w.launch->serial && in_buffers(at)) needs_serial();
    if (how & sim::kReleases) w.fence(how & sim::kOfBlock);
    w.replaces = how & sim::kReplaces;
    Kind kind = how & sim::kLoads ? Kind::load : Kind::atomic;
    if (kind == Kind::load) how |= kVolatile;
    w.access(at, bytes, kind, pc, true, how);
    w.replaces = false;
    Fiber& f = w.fibers[w.current];
    for (unsigned i = 0; i < Fiber::kLoads; ++i) {
        if (f.loaded[i] != at) continue;
        Site& loaded_by = w.sites[f.loaded_by[i]];
        (how & sim::kSwaps ? loaded_by.before_swap : loaded_by.before_atomic) = true;
    }
    if (how & sim::kAcquires) w.fence(how & sim::kOfBlock);
}

void sim_atomic(const volatile void* address, unsigned bytes, unsigned how) {
    if (t_worker) atomic_access(address, bytes, how, CALLER);
}
}
