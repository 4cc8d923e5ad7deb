// Barriers of several blocks: of the whole grid, in a cooperative launch, and of a cluster. Each block
// of them needs a worker of its own, because a worker runs one block to its end.
#pragma once
#include "fibers.h"
#include "tensor.h"

namespace {
// Waits until `blocks` blocks have come to a barrier. `which` is 0 for the grid, else a cluster.
// As many blocks begin as are needed for that.
void Worker::meet(uint64_t which, uint64_t blocks, uintptr_t pc) {
    auto block_barrier = [&] {
        ++waiting;
        wait_as(State::at_barrier, pc);
    };
    if (!launch->serial) needs_serial();
    // An address in front of all buffers stands for the barrier's word.
    uintptr_t word = g_region + 8 * (which + 1);
    fence(false);
    block_barrier();
    int leader = 0;
    while (fibers[leader].state == State::done) ++leader;
    if (current == leader) {
        signal(word, false);
        Launch::Meeting& meeting = launch->meetings[which];
        uint64_t now = meeting.phase;
        if (++meeting.arrived == blocks) meeting.arrived = 0, ++meeting.phase;
        uint64_t together = which ? launch->blocks_with_a_cluster() : blocks;
        while (meeting.phase == now) wait_for_blocks(together);
        observe(word, false, false);
        fence(false);
    }
    block_barrier();
}

// Lets other blocks run, and starts one that has not begun if there are fewer than `together` of them.
void Worker::wait_for_blocks(uint64_t together) {
    if (uint64_t(g_os_threads) + 1 < together) start_worker(*launch);
    launch->turns.pass(number);
    launch->turns.wait(number);
}

uint3 cluster_of(const Launch& l) {
    return {blockIdx.x / l.cluster_x, blockIdx.y / l.cluster_y, blockIdx.z / l.cluster_z};
}
uint3 place_in_cluster(const Launch& l) {
    return {blockIdx.x % l.cluster_x, blockIdx.y % l.cluster_y, blockIdx.z % l.cluster_z};
}
uint3 cluster_shape(const Launch& l) { return {l.cluster_x, l.cluster_y, l.cluster_z}; }
uint3 clusters_of(const Launch& l) {
    return {l.grid.x / l.cluster_x, l.grid.y / l.cluster_y, l.grid.z / l.cluster_z};
}
}  // namespace

extern "C" {
// A barrier of the `size` threads of this thread's tile, in a block that is divided into such tiles.
void sim_tile_sync(unsigned size) {
    Worker& w = *t_worker;
    unsigned tile = unsigned(w.current) / size;
    unsigned members = std::min(size, unsigned(w.threads) - tile * size);
    w.named_barrier(int(16 + __builtin_ctz(size) * 1024 + tile), int(members), true, CALLER);
}
// Memory of the tile, with 16 bytes for each of its threads.
void* sim_tile_memory(unsigned size) {
    Worker& w = *t_worker;
    auto& memory = w.async.tiles[int(__builtin_ctz(size) * 1024 + unsigned(w.current) / size)];
    memory.resize(size * 16);
    return memory.data();
}
void sim_launch_cooperative() { g_cooperative = true; }
void sim_launch_cluster(unsigned x, unsigned y, unsigned z) { g_cluster = {x, y, z}; }
void sim_grid_sync() {
    Worker& w = *t_worker;
    if (!w.launch->cooperative)
        fault("deadlock", CALLER, "grid.sync() in a kernel that was not launched cooperatively: "
              "launch it with cudaLaunchCooperativeKernel");
    w.meet(0, w.launch->runs, CALLER);
}
// Called before all kernels, once for each that has __cluster_dims__.
int sim_has_cluster_dims(const char* kernel) { return g_with_cluster_dims.insert(kernel).second; }
// The first statement of a kernel with __cluster_dims__.
void sim_cluster_dims(unsigned x, unsigned y, unsigned z) {
    Launch& l = *t_worker->launch;
    if (l.grid.x % x || l.grid.y % y || l.grid.z % z)
        fault("launch configuration", CALLER, "clusters of (%u, %u, %u) blocks: the grid (%u, %u, %u) "
              "is not a multiple", x, y, z, l.grid.x, l.grid.y, l.grid.z);
    // The chosen blocks are whole clusters only if the size was known.
    if (l.runs < l.blocks && (l.cluster_x != x || l.cluster_y != y || l.cluster_z != z)) l.has_whole_clusters = false;
    l.cluster_x = x, l.cluster_y = y, l.cluster_z = z;
    if (l.asks_cluster) t_worker->leave(false);
    std::lock_guard<std::mutex> hold(l.lock);
    l.shared_of[t_worker->block] = t_worker->shared;
}
// 0 to 2: the blocks of a cluster; 3 to 5: the cluster's index; 6 to 8: the block's place in it.
unsigned sim_cluster(int what) {
    const Launch& l = *t_worker->launch;
    uint3 v = what < 3 ? uint3{l.cluster_x, l.cluster_y, l.cluster_z}
              : what < 6 ? cluster_of(l) : place_in_cluster(l);
    return what % 3 == 0 ? v.x : what % 3 == 1 ? v.y : v.z;
}
void sim_cluster_sync() {
    Worker& w = *t_worker;
    const Launch& l = *w.launch;
    uint3 c = cluster_of(l);
    uint64_t across = l.grid.x / l.cluster_x, down = l.grid.y / l.cluster_y;
    uint64_t number = c.x + across * (c.y + down * c.z);
    if (!l.has_whole_clusters) not_simulated(CALLER, "a part of the blocks of a cluster");
    w.meet(number + 1, l.cluster_blocks(), CALLER);
}
// The address of a shared variable in another block of the cluster. Its accesses are not checked.
void* sim_map_shared(const void* pointer, unsigned rank) {
    Worker& w = *t_worker;
    Launch& l = *w.launch;
    if (rank >= l.cluster_blocks())
        fault("illegal address", CALLER, "block %u of a cluster of %lu blocks", rank,
              l.cluster_blocks());
    if (!l.has_whole_clusters) not_simulated(CALLER, "a part of the blocks of a cluster");
    uint64_t number = l.block_in(cluster_of(l), rank);
    if (number == w.block) return const_cast<void*>(pointer);
    if (!l.serial) needs_serial();
    while (!l.shared_of.count(number)) w.wait_for_blocks(l.blocks_with_a_cluster());
    return l.shared_of[number] + (static_cast<const char*>(pointer) - w.shared);
}
}
