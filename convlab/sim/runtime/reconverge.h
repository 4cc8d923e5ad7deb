// Walks the logs of a warp's lanes, and finds which lanes execute an instruction together.
#pragma once
#include "requests.h"

namespace {
void Worker::flush(int w) {
    if (!is_counted) return;
    recorded = g_record.on && (w == g_record.warp || g_record.warp < 0);
    recorded_warp = w;
    int first = w * 32, lanes = lanes_of(w), length = fibers[first].logged;
    Access* rows[32];
    bool uniform = true;
    for (int l = 0; l < lanes; ++l) {
        rows[l] = row_of(first + l);
        uniform &= fibers[first + l].logged == length;
        logged += unsigned(fibers[first + l].logged);
    }
    for (int i = 0; uniform && i < length; ++i) {
        uint64_t one = rows[0][i].bits, other = 0;
        for (int l = 1; l < lanes; ++l) other |= one ^ rows[l][i].bits;
        uniform = one >> 48 ? !(other >> 48) : !other;
    }
    if (!uniform) return match(w, rows, lanes);
    uintptr_t addresses[32];
    unsigned all = 0xffffffffu >> (32 - lanes);
    for (int i = 0; i < length; ++i) {
        if (!rows[0][i].site()) {
            for (int l = 0; l < lanes; ++l) count_call(fibers[first + l], rows[0][i]);
            continue;
        }
        for (int l = 0; l < lanes; ++l) addresses[l] = rows[l][i].address();
        request(sites[rows[0][i].site()], addresses, lanes, all);
    }
    for (int l = 0; l < lanes; ++l) fibers[first + l].logged = 0;
    warps[w].held = 0;
}

// Follows a call or a return in the depth of function calls.
inline void Worker::count_call(Fiber& f, Access entry) {
    if (entry.address() & kEnters) ++f.depth;
    else if (entry.address() & kLeaves) --f.depth;
}

// Finds the requests of lanes that diverged. At each step the lanes deepest in function calls go
// on; of these, the lanes at the lowest code address. So lanes reconverge after an `if`, and at the
// end of each iteration of a loop, as on a GPU (S. Collange, "Stack-less SIMT reconvergence at low
// cost", 2011). If a lane's log ends because it is full, the others wait and keep their logs.
void Worker::match(int w, Access* const* rows, int lanes, bool patient) {
    constexpr uint64_t kUnknown = 0, kOver = ~uint64_t(0);
    int first = w * 32, at[32] = {};
    uint64_t place[32], addresses[32];
    auto find = [&](int l) {
        const Fiber& f = fibers[first + l];
        if (at[l] == f.logged) {
            place[l] = patient && f.state == State::log_full ? kUnknown : kOver;
            return;
        }
        Access a = rows[l][at[l]];
        uintptr_t code = a.site() ? sites[a.site()].pc - g_code
                         : a.address() & kLeaves ? 0 : a.address() & (kAgain - 1);
        place[l] = uint64_t(0x7fff - f.depth) << 48 | (code & 0xffffffffffff);
    };
    for (int l = 0; l < lanes; ++l) find(l);
    for (;;) {
        uint64_t least = kOver;
        for (int l = 0; l < lanes; ++l) least = std::min(least, place[l]);
        if (least == kOver || least == kUnknown) break;
        int n = 0;
        unsigned mask = 0;
        uint16_t site = 0;
        for (int l = 0; l < lanes; ++l) {
            if (place[l] != least) continue;
            Access& a = rows[l][at[l]];
            site = a.site();
            if (!site && a.bits < kLeaves && a.bits >= kAgain) {
                a.bits -= kAgain;
                continue;
            }
            ++at[l];
            if (site) addresses[n++] = a.address(), mask |= 1u << l;
            else count_call(fibers[first + l], a);
            find(l);
        }
        if (site) request(sites[site], addresses, n, mask);
    }
    bool stuck = false;
    for (int l = 0; l < lanes; ++l) {
        Fiber& f = fibers[first + l];
        stuck |= f.logged && !at[l] && f.state == State::log_full;
        std::copy(rows[l] + at[l], rows[l] + f.logged, rows[l]);
        f.logged -= at[l];
    }
    warps[w].held = stuck ? warps[w].held + 1 : 0;
    // Lanes that are behind may wait for a lane that is ahead, as for a lock. So no lane waits.
    if (warps[w].held > kHeld) match(w, rows, lanes, false);
}
}  // namespace
