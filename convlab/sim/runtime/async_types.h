// What the runtime knows of a block's mbarriers, bulk copies and wgmmas.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {
struct Span {  // of shared memory, with the operation that uses it
    uintptr_t from, to, pc;
};

// A vector clock (F. Mattern, 1989) of one thread, with a stamp for each thread of the block. What
// that thread did up to the stamp is ordered before what this thread does now.
using Clock = std::vector<uint16_t>;

struct Mbarrier {
    int arrivals, missing;    // of a phase; and those still missing
    int64_t bytes = 0;        // that copies must still bring
    unsigned phase = 0;
    Clock gathering, known;   // what arriving threads knew: in this phase, in completed ones
    std::vector<Span> copies; // in flight to shared memory
};

struct Wgmma {  // a chain of products on one set of accumulators, as one warp sees it
    float* d[32];
    std::vector<float> sums;  // (16 rows, n)
    int n;
    float& sum(int lane, int i) {  // what a lane has as d[i]
        int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        return sums[size_t(row * n + column)];
    }
};
struct Reads {  // by a thread's bulk stores, or by a warp's wgmmas
    std::vector<Span> reading;              // since the last commit
    std::vector<std::vector<Span>> groups;  // committed, the oldest first
    void commit() { groups.push_back(std::exchange(reading, {})); }
};
struct Warpgroup : Reads {  // a warp's part in it
    void* arguments[32];                    // of the lanes that met last
    bool met = false, fenced = false;
    std::vector<Wgmma> chains;              // whose sums the registers do not hold
};

struct Operands {  // of one wgmma: (16 rows, k), (n, k), (k, n)
    float a[16][16], b[256][16], transposed[16][256];
};

struct Async {
    std::unordered_map<uintptr_t, Mbarrier> barriers;
    std::vector<Clock> clocks;         // by thread; none before the first mbarrier
    std::vector<Warpgroup> warps;
    std::vector<Reads> stores;         // by thread
    size_t reads = 0;                  // spans that copies or wgmmas may still read
    bool previous_ended = false;          // a thread has waited for the previous grid
};
}  // namespace
