// Runs one launch: all of its blocks, or some, on one worker per core. Then adds up the counts.
#pragma once
#include "findings.h"
#include "signals.h"

#include <link.h>
#include <system_error>

namespace {
Worker::Worker(size_t number)
    : number(number), crowded(g_os_threads > kCrowd), sites(1), site_of(kSites) {
    shared_cells = static_cast<Cell*>(reserve(kSharedSpan / 4 * sizeof(Cell)));
    good_loads = static_cast<uint64_t*>(reserve(kSharedSpan / 4 * sizeof *good_loads));
    shared = static_cast<char*>(reserve(kSharedSpan));
    steps = static_cast<uint64_t*>(calloc(g_code_bytes / 4 + 1, sizeof(uint64_t)));
    if (!shared_cells || !good_loads || !shared || !steps)
        fault("memory", 0, "not enough memory for the counts of a block");
}

Worker::~Worker() {
    free(steps);
    for (Seen& seen : block_seen) free(seen.owner);
    for (Stored& stored : block_stored) free(stored.by.owner), free(stored.parts);
}

// Adds the counts of `sites`, times a weight.
void add_sites(std::vector<Site>& to, const std::vector<Site>& sites, double weight) {
    to.resize(std::max(to.size(), g_pcs.size()));
    for (size_t i = 1; i < sites.size(); ++i) {
        const Site& s = sites[i];
        if (!s.pc) continue;
        to[i].before_atomic |= s.before_atomic;
        to[i].before_swap |= s.before_swap;
        to[i].pc = s.pc, to[i].bytes = s.bytes, to[i].kind = s.kind;
        for (int space : {0, 1}) to[i].stats[space].add(s.stats[space].times(weight));
    }
}

// Adds the counts of all workers of a launch to the totals. They are scaled only here, so that the
// rounding does not depend on which worker ran which block.
void add_totals(const Launch& launch) {
    for (const std::string& reach : launch.reaches) write_report(reach);
    add_sites(g_sites, launch.sites, launch.weight);
    g_steps.resize(g_code_bytes / 4 + 1);
    for (size_t i = 0; i < launch.steps.size(); ++i)
        g_steps[i] += uint64_t(double(launch.steps[i]) * launch.weight + 0.5);
}

void start_workers(Launch& launch);
bool is_over_the_limit(uint64_t times = 1);
// Far beyond the limit of a sample, one block of a launch runs, not two.
constexpr uint64_t kFar = 8;
void watch_in_part(Launch& launch, uint64_t accesses);

void Worker::run(Launch* l) {
    launch = l;
    Counters before{};
    uint64_t logged_before = 0;
    for (uint64_t i; (i = l->next.fetch_add(1)) < l->runs;) {
        uint64_t cluster = i / l->cluster_blocks();
        bool begins_cluster = i % l->cluster_blocks() == 0;
        if (cluster > 0 && begins_cluster && l->weight > 1 && is_over_the_limit(cluster > 1 ? 1 : kFar)) {
            l->next = l->runs;
            break;
        }
        if (g_schedule & 1) i = l->runs - 1 - i;
        run_block(l->chosen.empty() ? i : l->chosen[i]);
        ++g_blocks_ended;
        if (g_sample) g_sampled += logged - std::exchange(logged_before, logged);
        if (std::exchange(l->undecided, false)) {
            watch_in_part(*l, is_counted ? logged : work());
            start_workers(*l);
        }
        if (l->chosen.empty()) continue;
        if (l->weight > 1) report_reach(l->reaches[i], l->chosen[i]);
        Counters now = totals();
        l->counted[i] = now;
        l->counted[i].add(before, -1);
        before = now;
    }
    return_stacks();
    munmap(shared, kSharedSpan);
    munmap(shared_cells, kSharedSpan / 4 * sizeof(Cell));
    munmap(good_loads, kSharedSpan / 4 * sizeof *good_loads);
    std::lock_guard<std::mutex> hold(g_lock);
    add_sites(l->sites, sites, 1);
    if (l->chosen.empty()) g_counters.add(totals());
    if (!g_counts) return;  // basic blocks have no hooks
    l->steps.resize(g_code_bytes / 4 + 1);
    for (size_t i = 0; i < l->steps.size(); ++i) l->steps[i] += steps[i];
}

// Returns the counters so far, including those that are counted for each site.
Counters Worker::totals() const {
    Counters all = counters;
    for (const Site& s : sites) {
        if (!s.pc) continue;
        const Stats &global = s.stats[0], &on_shared = s.stats[1];
        bool load = s.kind == Kind::load;
        (load ? all.global_load_requests : all.global_store_requests) += global.requests;
        (load ? all.global_load_sectors : all.global_store_sectors) += global.units;
        all.shared_requests += on_shared.requests;
        all.shared_wavefronts += on_shared.units;
    }
    return all;
}

// Runs a worker, from its first turn until no block is left; then the next worker has its turn.
void run_worker(Launch& launch, size_t number) {
    if (launch.serial) launch.turns.wait(number);
    Worker(number).run(&launch);
    if (!launch.serial) return;
    launch.turns.place(number).ended = true;
    launch.turns.pass(number);
}

// Returns how many blocks with so many bytes of shared memory the GPU holds at the same time at most; registers may
// allow fewer.
uint64_t blocks_at_once(const dim3& block, size_t shared_bytes) {
    int64_t threads = (int64_t(block.x) * block.y * block.z + 31) / 32 * 32;
    int64_t shared = int64_t(shared_bytes) + g_device.shared_reserved;
    int64_t each = std::min(g_device.blocks, g_device.threads / threads);
    if (shared) each = std::min(each, g_device.shared_bytes / shared);
    return uint64_t(each * g_device.sms);
}

// Returns how many blocks of a launch run at the same time at most. The GPU begins them in the order of their
// numbers, so its limit holds in no other order.
int resident_blocks(const Launch& launch) {
    uint64_t at_once = blocks_at_once(launch.block, launch.static_bytes + launch.shared_bytes);
    return g_schedule & 1 ? kOthers : int(std::clamp<uint64_t>(at_once, 1, kOthers));
}

// Starts one more worker if some blocks have not begun, because running blocks may wait for them.
// On a GPU they would be resident at the same time, unless there are too many.
void start_worker(Launch& launch) {
    std::lock_guard<std::mutex> hold(launch.lock);
    if (launch.next >= launch.runs || g_os_threads + 1 >= resident_blocks(launch)) return;
    size_t number = launch.turns.add();
    try {
        launch.others.emplace_back([&launch, number] {
            catch_signals_here();
            run_worker(launch, number);
        });
    } catch (const std::system_error&) {
        out_of_stacks();
    }
    g_os_thread[g_os_threads] = launch.others.back().native_handle();
    ++g_os_threads;
}

// Starts a worker for each core but one, if blocks may run in parallel.
void start_workers(Launch& launch) {
    for (int i = 1; i < g_threads && !launch.serial; ++i) start_worker(launch);
}

// Finds the library that contains a code address: sets g_code and g_code_bytes.
void find_code(uintptr_t inside) {
    dl_iterate_phdr([](dl_phdr_info* info, size_t, void* inside) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD ||
                *static_cast<uintptr_t*>(inside) - info->dlpi_addr - part.p_vaddr >= part.p_memsz)
                continue;
            g_code = info->dlpi_addr, g_code_bytes = part.p_vaddr + part.p_memsz;
            return 1;
        }
        return 0;
    }, &inside);
}

// A sample may have a limit of accesses. From then on two blocks run of a launch, and few launches:
// with the numbers 2^k and 2^k + 1, so that some are among the last half of all.
bool is_over_the_limit(uint64_t times) {
    return g_most_watched && (g_unnumbered || g_sampled > times * g_most_watched);
}
bool is_spaced(uint64_t number) { return !(number & (number - 1)) || !((number - 1) & (number - 2)); }

// Finds the size of the clusters of a kernel with __cluster_dims__: its first statement says it, and then a block
// of this launch ends.
void ask_cluster(Launch& launch) {
    std::string name = launch.name;  // such as space::kernel<8>
    name.resize(std::min(name.find('<'), name.size()));
    if (size_t colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
    if (!g_with_cluster_dims.count(name)) return;
    Launch asking;
    asking.name = launch.name, asking.number = launch.number;
    asking.grid = launch.grid, asking.block = launch.block;
    asking.shared_bytes = launch.shared_bytes, asking.shared_limit = launch.shared_limit;
    asking.body = launch.body, asking.context = launch.context;
    asking.blocks = launch.blocks, asking.runs = 1, asking.chosen = {0};
    asking.counted.resize(1);
    asking.serial = asking.asks_cluster = true;
    asking.turns.add();
    g_running = &asking;
    run_worker(asking, 0);
    g_running = nullptr;
    launch.cluster_x = asking.cluster_x.load();
    launch.cluster_y = asking.cluster_y.load();
    launch.cluster_z = asking.cluster_z.load();
}

// Chooses the blocks of a launch to simulate: all; or the recorded one; or a random sample of its clusters, most of
// which are single blocks. Each sample of that size is equally likely (R. Floyd's algorithm; random numbers by
// splitmix64).
void choose(Launch& launch) {
    if (g_record.on) {
        const uint3& b = g_record.block;
        launch.runs = b.x < launch.grid.x && b.y < launch.grid.y && b.z < launch.grid.z &&
                      g_record.kernels.insert(launch.name).second;
        launch.chosen = {b.x + uint64_t(launch.grid.x) * (b.y + uint64_t(launch.grid.y) * b.z)};
        launch.has_whole_clusters = launch.blocks == 1;
    } else if (g_sample && is_over_the_limit() && !is_spaced(launch.number)) {
        launch.runs = 0;
    } else if (g_sample && g_sample < launch.blocks) {
        ask_cluster(launch);
        uint64_t size = launch.cluster_blocks(), clusters = launch.blocks / size;
        uint64_t wanted = (g_sample + size - 1) / size;
        if (wanted >= clusters) return;
        uint64_t state = g_sample_seed << 20 ^ launch.number;
        auto draw = [&] {
            uint64_t z = state += 0x9e3779b97f4a7c15;
            z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
            z = (z ^ z >> 27) * 0x94d049bb133111eb;
            return z ^ z >> 31;
        };
        std::set<uint64_t> numbers;
        for (uint64_t last = clusters - wanted; last < clusters; ++last)
            if (!numbers.insert(draw() % (last + 1)).second) numbers.insert(last);
        // A sample that looks for errors has the last one.
        if (g_most_watched && numbers.insert(clusters - 1).second) numbers.erase(numbers.begin());
        std::vector<uint64_t> order(numbers.begin(), numbers.end());
        // With a limit of accesses the first and the last one come first: the others may not run.
        if (g_most_watched && wanted > 1) std::swap(order[1], order.back());
        dim3 across{launch.grid.x / launch.cluster_x, launch.grid.y / launch.cluster_y, launch.grid.z / launch.cluster_z};
        for (uint64_t cluster : order)
            for (uint64_t rank = 0; rank < size; ++rank)
                launch.chosen.push_back(launch.block_in(Launch::index(cluster, across), rank));
        launch.runs = launch.chosen.size();
        launch.weight = double(launch.blocks) / double(launch.runs);
    }
}

// Of a launch of few blocks, so many accesses of each are watched at least.
constexpr uint64_t kLeastOfBlock = 200'000;

// Blocks are watched in runs of so many neighbours.
constexpr uint64_t kRun = 8;

// Decides which blocks of a launch with very many accesses are watched: some runs of neighbours.
// `accesses` are those of the first block. Other blocks begin after the decision, so it does not
// depend on their order.
void watch_in_part(Launch& launch, uint64_t accesses) {
    accesses *= launch.blocks;
    if (accesses <= g_most_watched) return;
    uint64_t times = accesses / g_most_watched + 1;
    g_in_part = true;
    launch.watched_run = kRun;
    launch.watched_of = kRun * times;
    write_report(text("in part\t%u\t%lu\n", launch.number, times));
}

// Estimates the totals of all N blocks of a launch from the n that were simulated: N/n times their
// sum. The variance of this estimate is N^2 (1 - n/N) s^2 / n, with the variance s^2 between the
// blocks (W. G. Cochran, Sampling Techniques, third edition, 1977, section 2.5). A sample can miss
// a few unusual blocks, such as those at a border. To allow for them, mean^2 / n is added to s^2:
// as if one block in n that the sample missed did nothing. Reports the variance of each counter.
void extrapolate(const Launch& launch) {
    std::string line = text("sample\t%lu\t%lu\t[", launch.blocks, launch.runs);
    double n = double(launch.runs), all = double(launch.blocks);
    for (size_t i = 0; i < kCounters; ++i) {
        double sum = 0, squares = 0;
        for (auto& block : launch.counted) sum += double(block[i]);
        for (auto& block : launch.counted) squares += std::pow(double(block[i]) - sum / n, 2);
        double spread = squares / (n - 1) + sum * sum / n / n / n;
        double variance = launch.counted.empty() ? 0 : all * (all - n) * spread / n;
        g_counters[i] += uint64_t(sum * launch.weight + 0.5);
        line += text("%s%.9g", i ? "," : "", variance);
    }
    write_report(line + "]\n");
}
}  // namespace

extern "C" void sim_code(const void* inside) { find_code(uintptr_t(inside)); }
