// Counts the sectors or wavefronts of one warp request.
#pragma once
#include "memory.h"

namespace {
// Counts one request of the lanes in `mask`; their addresses are in the order of the lanes.
inline void Worker::request(Site& s, const uint64_t* addresses, int lanes, unsigned mask) {
    const unsigned bytes = s.bytes;
    if (__builtin_expect(s.operation != nullptr, 0)) return record_note(s, addresses, lanes, mask);
    bool global = addresses[0] - g_region < kRegion;
    if (__builtin_expect(recorded, 0)) record(s, addresses, mask, global);
    Stats& stats = s.stats[!global];
    ++stats.requests;
    stats.lanes += unsigned(lanes);
    if (global) {
        uint64_t seen[64], last = ~uint64_t(0);
        int n = 0, distinct = 1;
        bool rising = true;
        auto add = [&](uint64_t sector) {
            if (sector == last) return;
            last = sector;
            for (int i = n; i-- > 0;)
                if (seen[i] == sector) return;
            seen[n++] = sector;
        };
        for (int l = 0; l < lanes; ++l) {
            add(addresses[l] >> 5);
            add((addresses[l] + bytes - 1) >> 5);
            if (l && addresses[l] != addresses[l - 1]) {
                ++distinct;
                rising &= addresses[l] > addresses[l - 1];
            }
        }
        if (!rising) {
            uint64_t sorted[32];
            std::copy(addresses, addresses + lanes, sorted);
            std::sort(sorted, sorted + lanes);
            distinct = int(std::unique(sorted, sorted + lanes) - sorted);
        }
        stats.units += unsigned(n);
        stats.ideal_units += (unsigned(distinct) * bytes + 31) / 32;
        footprint(s, seen, n);
        if (s.kind == Kind::store)
            for (int l = 0; l < lanes; ++l) count_stored(s, addresses[l], bytes);
        if (launch->weight > 1 && s.buffer < reach.size())
            for (int l = 0; l < lanes; ++l) {
                Reach& r = reach[s.buffer];
                r.low = std::min(r.low, addresses[l]);
                r.high = std::max(r.high, addresses[l] + bytes);
            }
        return;
    }
    // Shared memory: in a wavefront each bank serves one 4-byte word to all lanes that access it.
    // Accesses of 16 bytes are served half a warp at a time. This was measured on an H200: a
    // broadcast of a float4 takes two wavefronts (tests/instruments/ncu_agreement.py).
    int words = std::max(1, int(bytes) / 4), group = bytes > 8 ? 16 : 32;
    for (int from = 0; from < lanes; from += group) {
        int worst = 0, distinct = 0;
        uint8_t depth[32] = {};
        for (int l = from; l < std::min(lanes, from + group); ++l)
            for (int j = 0; j < words; ++j) {
                auto word = uint32_t((addresses[l] - uintptr_t(shared)) >> 2) + j;
                int bank = word & 31, d = depth[bank], i = 0;
                while (i < d && seen_words[bank][i] != word) ++i;
                if (i < d || d == kMaxDepth) continue;
                seen_words[bank][d] = word;
                depth[bank] = uint8_t(d + 1);
                worst = std::max(worst, d + 1);
                ++distinct;
            }
        stats.units += unsigned(worst);
        stats.ideal_units += unsigned(distinct + 31) / 32;
    }
}

// Marks the parts of sectors that this block stores to. `s.buffer` is the buffer of the address.
void Worker::count_stored(Site& s, uint64_t address, unsigned bytes) {
    const Buffer& b = g_buffers[s.buffer];
    if (block_stored.size() <= s.buffer) block_stored.resize(g_buffers.size());
    Stored& stored = block_stored[s.buffer];
    if (!stored.by.owner) {
        stored.by.resize(b.bytes / 32 + 2);
        stored.parts = static_cast<uint16_t*>(calloc(stored.by.size, 2));
        if (!stored.by.owner || !stored.parts)
            fault("memory", 0, "not enough memory to count the stored sectors of %s", b.name);
    }
    for (uint64_t end = address + bytes; address < end;) {
        size_t at = (address >> 5) - (b.base >> 5);
        if (at >= stored.by.size) return;
        uint64_t next = std::min<uint64_t>(end, (address | 31) + 1);
        unsigned first = address / 2 % 16, last = (next - 1) / 2 % 16;
        if (stored.by.owner[at] != uint32_t(owner)) {
            stored.by.owner[at] = uint32_t(owner), stored.parts[at] = 0;
            stored_sectors.push_back({s.buffer, uint16_t(&s - sites.data()), at});
        }
        stored.parts[at] |= uint16_t((2u << last) - (1u << first));
        address = next;
    }
}

// At the end of a block: counts the sectors of which it stored only a part, at the instruction that
// stored to them first. In the whole launch, such a sector is counted once in `split_sectors`.
// Sectors at the ends of a buffer do not count.
void Worker::count_partial() {
    for (const StoredSector& sector : stored_sectors) {
        const Buffer& b = g_buffers[sector.buffer];
        uint64_t from = ((b.base >> 5) + sector.at) << 5;
        if (from < b.base || from + 32 > b.base + b.bytes) continue;
        if (block_stored[sector.buffer].parts[sector.at] == 0xffff) continue;
        ++sites[sector.site].stats[0].partial;
        counters.split_sectors += __atomic_exchange_n(&b.launch_split[sector.at], launch->number,
                                                      __ATOMIC_RELAXED) != launch->number;
    }
    stored_sectors.clear();
}

// Records a request: launch, code address, space, kind, array, bytes of an element (0: unknown),
// bytes of a lane's access, the mask of the lanes, the warp, and each lane's byte in the array.
void Worker::record(const Site& s, const uint64_t* addresses, unsigned mask, bool global) {
    if (!g_record.left) return;
    --g_record.left;
    const Buffer* b = global ? buffer_near(addresses[0]) : nullptr;
    const Array* a = global ? nullptr : array_near(addresses[0]);
    uintptr_t base = global ? b->base : uintptr_t(a->base);
    g_record.text += text("access\t%u\t%lx\t%s\t%s\t%.200s\t%u\t%u\t%u\t%d\t", launch->number, s.pc,
                          global ? "global" : "shared", verb(s.kind),
                          global ? b->name.c_str() : a->name,
                          a && a->shape ? a->shape[0] : 0, s.bytes, mask, recorded_warp);
    for (int l = 0; l < __builtin_popcount(mask); ++l)
        g_record.text += std::to_string(addresses[l] - base) + " ";
    g_record.text += "\n";
}

// Appends to `to` what a sampled block accessed of each buffer: launch, block, array, the first
// byte, the byte after the last, and the number of sectors.
void Worker::report_reach(std::string& to, uint64_t number) {
    for (size_t i = 0; i < reach.size(); ++i) {
        const Buffer& b = g_buffers[i];
        if (reach[i].sectors)
            to += text("reach\t%u\t%lu\t%s\t%lu\t%lu\t%lu\n", launch->number, number,
                       b.name.c_str(), reach[i].low - b.base, reach[i].high - b.base,
                       reach[i].sectors);
        reach[i] = {};
    }
}

// Counts the sectors that this block accesses for the first time, and those of this launch.
void Worker::footprint(Site& s, const uint64_t* sectors, int n) {
    auto inside = [&](const Buffer& b) {
        return sectors[0] >= b.base >> 5 && sectors[0] <= (b.base + b.bytes) >> 5;
    };
    if (!inside(g_buffers[s.buffer])) {
        s.buffer = 0;
        while (s.buffer + 1u < g_buffers.size() && !inside(g_buffers[s.buffer])) ++s.buffer;
    }
    const Buffer& b = g_buffers[s.buffer];
    if (block_seen.size() <= s.buffer) block_seen.resize(g_buffers.size());
    auto& seen = block_seen[s.buffer];
    if (reach.size() <= s.buffer) reach.resize(g_buffers.size());
    if (!seen.owner) seen.resize(b.bytes / 32 + 2);
    if (!seen.owner) fault("memory", 0, "not enough memory to count the sectors of %s", b.name);
    for (int i = 0; i < n; ++i) {
        size_t at = sectors[i] - (b.base >> 5);
        if (at >= seen.size || seen.owner[at] == uint32_t(owner)) continue;
        seen.owner[at] = uint32_t(owner);
        ++counters.block_sectors;
        ++reach[s.buffer].sectors;
        if (__atomic_load_n(&b.launch_seen[at], __ATOMIC_RELAXED) != launch->number &&
            __atomic_exchange_n(&b.launch_seen[at], launch->number, __ATOMIC_RELAXED) !=
                launch->number)
            ++counters.launch_sectors;
    }
}
}  // namespace
