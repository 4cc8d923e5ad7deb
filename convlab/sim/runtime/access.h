// Logs every access and every backward jump, call and return; checks the accesses that need it.
#pragma once
#include "memory.h"

namespace {
// Called when the current thread enters a basic block. g++ keeps basic blocks in the order in which
// they run, so a step to a lower address ends an iteration of a loop. The log has an entry for it:
// so lanes that accessed nothing in the iteration reconverge there too. A step forward needs no
// entry, because lanes that are ahead wait for lanes that are behind.
inline void Worker::step(uintptr_t pc) {
    if (!is_counted) return;
    size_t at = pc - code;
    if (at < code_bytes) ++steps[at / 4];
    if (in_collective) return;
    if (pc <= step_at && next_entry == step_log) return log_backward_jump(pc);
    step_at = pc, step_log = next_entry;
}

void Worker::log_backward_jump(uintptr_t pc) {
    uint64_t from = uint32_t(step_at - code);
    uint64_t last = next_entry == row_of(current) ? ~uint64_t(0) : next_entry[-1].bits;
    if ((last & ~(kLeaves - kAgain)) == from && last < kLeaves - kAgain)
        next_entry[-1].bits += kAgain;
    else
        log_control_flow(from);
    step_at = pc, step_log = next_entry;
}

void Worker::log_control_flow(uintptr_t what) {
    if (next_entry == log_end) {
        fibers[current].state = State::log_full;
        yield();
    }
    *next_entry++ = {what, 0};
}

inline void Worker::function_entry(uintptr_t from) {
    if (in_collective || !is_counted) return;
    Fiber& f = fibers[current];
    if (f.calls < int(std::size(f.called_from))) f.called_from[f.calls] = from;
    ++f.calls;
    log_control_flow(uint32_t(from - code) | kEnters);
    step_log = next_entry;
}

inline void Worker::function_exit() {
    if (in_collective || !is_counted) return;
    log_control_flow(kLeaves);
    Fiber& f = fibers[current];
    --f.calls;
    step_at = f.calls < int(std::size(f.called_from)) ? f.called_from[f.calls] : 0;
    step_log = nullptr;
}

inline size_t Worker::first_slot(uintptr_t pc) { return (pc ^ pc >> 13) & (kSites - 1); }

inline Site& Worker::site(uintptr_t pc, unsigned bytes, Kind kind, uint16_t& index, unsigned how) {
    size_t h = first_slot(pc);
    for (; site_of[h].pc != pc; h = (h + 1) & (kSites - 1))
        if (!site_of[h].pc) return new_site(h, pc, bytes, kind, index, how);
    return sites[index = site_of[h].index];
}

Site& Worker::new_site(size_t h, uintptr_t pc, unsigned bytes, Kind kind, uint16_t& index,
                       unsigned how) {
    std::lock_guard<std::mutex> hold(g_lock);
    auto [at, is_new] = g_site_of.try_emplace(pc, uint16_t(g_pcs.size()));
    if (is_new) g_pcs.push_back(pc);
    if (g_pcs.size() * 2 > kSites) {
        fprintf(stderr, "the kernel has more than %zu load and store instructions, the simulator's "
                "limit\n", kSites / 2);
        _exit(76);
    }
    site_of[h] = {pc, index = at->second};
    g_site_kind[index] = {kind, bool(how & kVolatile), bool(how & kOfBlock)};
    if (sites.size() <= index) sites.resize(index + 1);
    Site& s = sites[index];
    s.pc = pc, s.bytes = uint16_t(bytes), s.kind = kind;
    return s;
}

inline void Worker::log_access(uintptr_t address, uint16_t index) {
    *next_entry = {address, index};
    next_entry += is_counted;
}

// The fast path: the instruction ran before, its address is in the same buffer as then, and there
// is nothing to check.
inline void Worker::access(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc, bool aligned,
                           unsigned how) {
    if (!is_watched) {
        // Of a block that is not watched, only the bounds of global memory are checked.
        if (!in_buffers(address) && address >= 1 << 16) return;
        const Slot& slot = site_of[first_slot(pc)];
        const Site& s = sites[slot.index];
        bool known = slot.pc == pc && address - s.low <= s.reach;
        if (known && !(aligned && (address & (bytes - 1)))) return;
        return access_slow_path(address, bytes, kind, pc, aligned, how);
    }
    bool placed = in_buffers(address) || address - uintptr_t(shared) < kSharedSpan;
    if (!placed && address >= 1 << 16 && !pending.address) return;
    const Slot& slot = site_of[first_slot(pc)];
    if (slot.pc == pc && until_switch != 1 && next_entry != log_end && !pending.address) {
        const Site& s = sites[slot.index];
        uintptr_t at = address - s.low;
        if (at <= s.reach && !(aligned && (address & (bytes - 1))) &&
            (!s.cells || (kind == Kind::load && address - uintptr_t(shared) < kSharedSpan &&
                          is_good_load(address, bytes)))) {
            --until_switch;
            return log_access(address, slot.index);
        }
    }
    access_slow_path(address, bytes, kind, pc, aligned, how);
}

void Worker::access_slow_path(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc,
                                bool aligned, unsigned how) {
    if (__builtin_expect(pending.address != nullptr, 0)) resolve_pending();
    bool global = address - g_region < kRegion;
    if (!global && address - uintptr_t(shared) >= kSharedSpan) {
        if (__builtin_expect(address < 1 << 16, 0)) invalid_address(address, bytes, kind, pc);
        if (!in_buffers(address)) return;  // the thread's stack, or a constant of the file
    }
    uint16_t index;
    Site& s = site(pc, bytes, kind, index, how);
    if (address - s.low > s.reach) locate(s, address, bytes, in_buffers(address));
    if (s.cells == kUncounted) return;
    if (__builtin_expect(aligned && (address & (bytes - 1)), 0))
        invalid_address(address, bytes, kind, pc);
    Cell* cell = s.cells ? s.cells + ((address - s.low) >> 2) : nullptr;
    bool fresh = s.fresh, output = s.output;
    if (--until_switch == 0) {
        until_switch = draw();
        yield();
    }
    if (!is_watched) return;
    if (next_entry == log_end) {
        fibers[current].state = State::log_full;
        yield();
    }
    log_access(address, index);
    if (!cell) return;
    if (kind == Kind::load) {
        Fiber& f = fibers[current];
        unsigned i = f.loads++ % Fiber::kLoads;
        f.loaded[i] = address, f.loaded_by[i] = index;
        if (!global && is_good_load(address, bytes)) return;
    }
    bool sync = synchronizes(kind, how, index);
    check_access(cell, {address, bytes, kind, sync, global, fresh, output, index});
    if (!sync && !(how & kVolatile && has_signalled_volatile())) return;
    if (kind != Kind::store) observe(address, how & kOfBlock, how & sim::kSwaps);
    if (kind != Kind::load && !(how & sim::kKeeps)) signal(address, how & kOfBlock);
}

inline bool Worker::is_good_load(uintptr_t address, unsigned bytes) const {
    if (bytes > 4 && address & 3) return false;
    const uint64_t* good = good_loads + ((address - uintptr_t(shared)) >> 2);
    unsigned warp = unsigned(current) / 32;
    uint64_t by_any = good_load(era, kAnyWarp, 0), mine = good_load(era, warp, warps[warp].stamp);
    for (unsigned i = 0; i * 4 < bytes; ++i)
        if (good[i] != by_any && good[i] != mine) return false;
    return true;
}

void Worker::locate(Site& s, uintptr_t address, unsigned bytes, bool global) {
    const char* how = s.kind == Kind::load ? "load" : "store";
    if (global) {
        for (size_t i = 0; i < g_buffers.size(); ++i) {
            const Buffer& b = g_buffers[i];
            if (address < b.base || address + bytes > b.base + b.bytes) continue;
            if (s.kind != Kind::load && !b.writable())
                fault("store to an input", s.pc, "store to %s: %s is %s, which a kernel may not "
                      "write", place(address), b.name,
                      b.use == kInput ? "an input" : "__constant__");
            s.low = b.base, s.reach = b.bytes - bytes, s.buffer = uint16_t(i), s.cells = b.cells;
            s.fresh = b.use == kFresh, s.output = s.fresh && is_output(b);
            std::lock_guard<std::mutex> hold(g_lock);
            s.stats[0].touch(g_names.insert(b.name).first->c_str());
            return;
        }
        const Buffer* near = buffer_near(address);
        if (!near)
            fault("global out of bounds", s.pc, "%s far outside all buffers", verb(s.kind));
        fault("global out of bounds", s.pc, "%s of %u bytes at %s", how, bytes,
              place_outside(near->name, long(address - near->base), near->bytes, near->shape));
    }
    for (auto& a : arrays) {
        uintptr_t base = uintptr_t(a.base);
        if (address < base || address + bytes > base + a.bytes) continue;
        s.low = base, s.reach = a.bytes - bytes, s.fresh = true, s.output = false;
        s.cells = shared_cells + (a.base - shared) / 4;
        if (!s.stats[1].array || strcmp(s.stats[1].array, a.name)) {
            std::lock_guard<std::mutex> hold(g_lock);
            s.stats[1].touch(g_names.insert(a.name).first->c_str());
        }
        return;
    }
    const Array* near = array_near(address);
    if (!near)
        fault("shared out of bounds", s.pc, "%s, but the block has no shared array: the launch "
              "requests 0 bytes of dynamic shared memory", how);
    long byte = long(address - uintptr_t(near->base));
    if (near->shape)
        fault("shared out of bounds", s.pc, "%s of %u bytes at %s", how, bytes,
              place_outside(near->name, byte, near->bytes, near->shape));
    fault("shared out of bounds", s.pc, "%s of %u bytes at byte %ld of %s, which has %zu bytes",
          how, bytes, byte, near->name, near->bytes);
}

void Worker::invalid_address(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc) {
    if (address < 1 << 16)
        fault("null pointer", pc, "%s of %u bytes through a null pointer%s", verb(kind), bytes,
              g_null);
    fault("misaligned access", pc, "%s of %u bytes at %s, which is not aligned to %u bytes",
          verb(kind), bytes, place(address), bytes);
}
}  // namespace
