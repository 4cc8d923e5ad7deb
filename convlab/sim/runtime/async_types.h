// The state of a block's mbarriers, bulk copies and wgmmas.
#pragma once
#include "order_types.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {
struct Span {  // a range of shared memory, and the code address of the operation that uses it
    uintptr_t from, to, pc;
};

// A vector clock (F. Mattern, 1989) of one thread: a stamp for each thread of the block. What the
// other thread did up to that stamp is ordered before what this thread does now.
using Clock = std::vector<uint16_t>;

struct Mbarrier {
    int arrivals, missing;    // expected arrivals of a phase, and how many of them are missing
    int64_t bytes = 0;        // transaction bytes that are missing
    int64_t expected = 0;     // transaction bytes that this phase's arrivals expect
    unsigned phase = 0;
    Clock gathering, known;   // the arrivals' clocks, joined: of this phase, of completed phases
    std::vector<Span> copies; // bulk copies in flight
    Knowledge knows;          // the arrivals' knowledge, joined
};

// The value of accumulators until the wait: a NaN that the operations on floats keep.
constexpr uint32_t kIncomplete = 0x7fea0000;
std::atomic<uintptr_t> g_incomplete{0};  // the code address of the last wgmma on such accumulators

struct Wgmma {  // a warp's part of a chain of wgmmas on one set of accumulators
    float* d[32];
    std::vector<float> sums;  // (16 rows, n)
    int n;
    size_t group = 0;         // of its newest wgmma, see Reads::committed
    float& sum(int lane, int i) {  // element d[i] of a lane
        int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        return sums[size_t(row * n + column)];
    }
};
struct Reads {  // what a thread's bulk stores read, or a warp's wgmmas
    std::vector<Span> reading;              // since the last commit
    std::vector<std::vector<Span>> groups;  // of each commit, the oldest first
    size_t committed = 0;                   // groups so far, so the number of the next one
    void commit() {
        groups.push_back(std::exchange(reading, {}));
        ++committed;
    }
    size_t oldest() const { return committed - groups.size(); }   // group that is not complete
};
struct WgmmaStep {  // an operation that all four warps of a warpgroup must execute together
    uintptr_t pc;
    const char* what;
    uint64_t a, b;  // the descriptors of a wgmma
    bool operator==(const WgmmaStep& s) const {
        return what == s.what && a == s.a && b == s.b;
    }
};
struct Warpgroup : Reads {  // one warp of a warpgroup
    std::vector<WgmmaStep> steps;           // that the warp has executed
    void* arguments[32];                    // of the lanes in the last collective
    bool met = false, fenced = false;
    std::vector<Wgmma> chains;              // wgmmas that no wait has completed
};

struct Operands {  // of one wgmma: a (16 rows, k), b (n, k), and b transposed (k, n)
    float a[16][16], b[256][16], transposed[16][256];
};

constexpr size_t kPiece = 128;
constexpr size_t kQuad = 16;  // bytes of shared memory that share an entry of `operand_of`

struct Async {
    std::unordered_map<uintptr_t, Mbarrier> barriers;
    std::unordered_map<int, Mbarrier> named;  // bar.sync 0 to 15; from 16 on, of tiles of several warps
    std::unordered_map<int, std::vector<char>> tiles;  // what the threads of such a tile exchange
    std::vector<Clock> clocks;         // of each thread; empty before the first mbarrier_init
    std::vector<Warpgroup> warps;
    std::vector<Reads> stores;         // bulk stores of each thread
    size_t reads = 0;                  // spans that bulk stores or wgmmas may still read
    std::vector<uint32_t> reads_of;    // the same, of each piece of kPiece bytes of shared memory
    // For each kQuad bytes of shared memory the warps, as bits, that checked them as an operand of a wgmma since
    // the last store there. A further check of the same warp would find the same.
    std::vector<uint32_t> operand_of;
    bool previous_ended = false;       // a thread has called griddepcontrol_wait
};
}  // namespace
