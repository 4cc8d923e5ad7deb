// Cooperative groups: the block, tiles of a warp, coalesced threads.
#pragma once

#include <cuda_runtime.h>

extern "C" {
void sim_grid_sync();
void sim_tile_sync(unsigned size);
void* sim_tile_memory(unsigned size);
void sim_cluster_sync();
unsigned sim_cluster(int what);
void* sim_map_shared(const void* pointer, unsigned rank);
}

namespace sim {
SIM_UNSEEN inline int nth_lane(unsigned mask, unsigned rank) {
    while (rank--) mask &= mask - 1;
    return __builtin_ffs(int(mask)) - 1;
}
SIM_UNSEEN inline unsigned pack(unsigned votes, unsigned mask) {  // a bit for each lane of the mask
    unsigned packed = 0;
    for (int rank = 0; mask; mask &= mask - 1, ++rank)
        packed |= (votes & mask & -mask ? 1u : 0u) << rank;
    return packed;
}
template <typename T>
__forceinline__ T shuffle_any(unsigned mask, T value, int source) {  // 8 bytes at a time
    if constexpr (sizeof(T) <= 8) {
        return shuffle(mask, value, source);
    } else {
        uint64_t words[(sizeof(T) + 7) / 8] = {};
        std::memcpy(words, &value, sizeof(T));
        for (auto& word : words) word = shuffle(mask, word, source);
        std::memcpy(&value, words, sizeof(T));
        return value;
    }
}
}  // namespace sim

namespace cooperative_groups {
#define SIM_IS(T, name, expression) __forceinline__ T name() const { return expression; }
struct thread_group {
    unsigned mask;  // of lanes; 0: the block
    SIM_IS(unsigned, size, mask ? __popc(mask) : blockDim.x * blockDim.y * blockDim.z)
    SIM_IS(unsigned, num_threads, size())
    SIM_IS(unsigned, thread_rank,
           mask ? __popc(mask & ((1u << sim_lane()) - 1))
                : (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)
    SIM_IS(void, sync, mask ? __syncwarp(mask) : __syncthreads())
    struct arrival_token {};
    __forceinline__ arrival_token barrier_arrive() const { return {}; }
    __forceinline__ void barrier_wait(arrival_token&&) const { sync(); }
};
struct thread_block : thread_group {
    SIM_IS(dim3, thread_index, threadIdx) SIM_IS(dim3, group_index, blockIdx)
    SIM_IS(dim3, group_dim, blockDim) SIM_IS(dim3, dim_threads, blockDim)
};
__forceinline__ thread_block this_thread_block() { return {}; }

struct grid_group {
    using Count = unsigned long long;
    SIM_IS(Count, num_blocks, Count(gridDim.x) * gridDim.y * gridDim.z)
    SIM_IS(Count, block_rank,
           (Count(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x)
    SIM_IS(Count, size, num_blocks() * thread_block().size()) SIM_IS(Count, num_threads, size())
    SIM_IS(Count, thread_rank,
           block_rank() * thread_block().size() + thread_block().thread_rank())
    SIM_IS(dim3, group_dim, gridDim) SIM_IS(dim3, dim_blocks, gridDim)
    __forceinline__ void sync() const { sim_grid_sync(); }
    SIM_IS(bool, is_valid, true)
};
__forceinline__ grid_group this_grid() { return {}; }

struct cluster_group {
    SIM_IS(dim3, dim_blocks, dim3(sim_cluster(0), sim_cluster(1), sim_cluster(2)))
    SIM_IS(dim3, block_index, dim3(sim_cluster(6), sim_cluster(7), sim_cluster(8)))
    SIM_IS(unsigned, num_blocks, sim_cluster(0) * sim_cluster(1) * sim_cluster(2))
    SIM_IS(unsigned, block_rank,
           sim_cluster(6) + sim_cluster(0) * (sim_cluster(7) + sim_cluster(1) * sim_cluster(8)))
    SIM_IS(unsigned, num_threads, num_blocks() * thread_block().size())
    SIM_IS(unsigned, size, num_threads())
    SIM_IS(unsigned, thread_rank,
           block_rank() * thread_block().size() + thread_block().thread_rank())
    struct arrival_token {};
    __forceinline__ void sync() const { sim_cluster_sync(); }
    __forceinline__ arrival_token barrier_arrive() const { return {}; }
    __forceinline__ void barrier_wait() const { sim_cluster_sync(); }
    __forceinline__ void barrier_wait(arrival_token&&) const { sim_cluster_sync(); }
    template <typename T>
    __forceinline__ T* map_shared_rank(T* pointer, unsigned rank) const {
        return (T*)sim_map_shared((const void*)pointer, rank);
    }
};
__forceinline__ cluster_group this_cluster() { return {}; }

#define SIM_ASK(T, name, argument, lanes)                                                       \
    __forceinline__ T name(argument) const { return sim::pack(lanes, mask); }
struct coalesced_group : thread_group {
    template <typename T>
    __forceinline__ T shfl(T value, int rank) const {
        return sim::shuffle_any(mask, value, sim::nth_lane(mask, unsigned(rank) % size()));
    }
    template <typename T>
    __forceinline__ T shfl_up(T value, int delta) const { return shfl_down(value, -delta); }
    template <typename T>
    __forceinline__ T shfl_down(T value, int delta) const {
        int rank = int(thread_rank()) + delta;
        return shfl(value, rank < 0 || rank >= int(size()) ? rank - delta : rank);
    }
    __forceinline__ int any(int predicate) const { return __any_sync(mask, predicate); }
    __forceinline__ int all(int predicate) const { return __all_sync(mask, predicate); }
    SIM_ASK(unsigned, ballot, int predicate, __ballot_sync(mask, predicate))
    template <typename T>
    SIM_ASK(unsigned, match_any, T value, __match_any_sync(mask, value))
};
__forceinline__ coalesced_group coalesced_threads() { return {{__activemask()}}; }

// A tile of several warps. Its threads exchange values through memory of the simulator.
template <unsigned n>
struct large_tile {
    static constexpr unsigned mask = 0;
    SIM_IS(unsigned, thread_rank, thread_block().thread_rank() % n)
    SIM_IS(unsigned, size, n) SIM_IS(unsigned, num_threads, n)
    SIM_IS(unsigned, meta_group_rank, thread_block().thread_rank() / n)
    SIM_IS(unsigned, meta_group_size, (thread_block().size() + n - 1) / n)
    __forceinline__ void sync() const { sim_tile_sync(n); }
    template <typename T, typename F>  // calls use(values) when all threads have given theirs
    __forceinline__ auto exchanged(T value, F use) const {
        static_assert(sizeof(T) <= 16, "tiles of several warps exchange up to 16 bytes");
        T* values = static_cast<T*>(sim_tile_memory(n));
        values[thread_rank()] = value;
        sync();
        auto result = use(values);
        sync();
        return result;
    }
    template <typename T>
    __forceinline__ T shfl(T value, int rank) const {
        return exchanged(value, [=](T* all) { return all[unsigned(rank) % n]; });
    }
    __forceinline__ int any(int predicate) const {
        return exchanged(predicate, [](int* all) {
            int yes = 0;
            for (unsigned i = 0; i < n; ++i) yes |= all[i] != 0;
            return yes;
        });
    }
    __forceinline__ int all(int predicate) const { return !any(!predicate); }
};
template <unsigned n, typename Parent = thread_block, bool large = (n > 32)>
struct thread_block_tile;
template <unsigned n, typename Parent>
struct thread_block_tile<n, Parent, true> : large_tile<n> {};
template <unsigned n, typename Parent>
struct thread_block_tile<n, Parent, false> : coalesced_group {
    static_assert(n && n <= 32 && !(n & (n - 1)), "tiles: a power of two of threads");
    SIM_IS(unsigned, meta_group_rank, thread_block().thread_rank() / n)
    SIM_IS(unsigned, meta_group_size, (thread_block().size() + n - 1) / n)
    template <typename T>
    __forceinline__ T shfl_xor(T value, unsigned lanes) const {
        return this->shfl(value, int(this->thread_rank() ^ lanes));
    }
};
__forceinline__ thread_group tiled_partition(const thread_group&, unsigned n) {
    return {(n >= 32 ? ~0u : (1u << n) - 1) << sim_lane() / n * n};
}
template <unsigned n, typename Parent>
__forceinline__ thread_block_tile<n, Parent> tiled_partition(const Parent& parent) {
    if constexpr (n > 32) return {};
    else return {{tiled_partition(parent, n)}};
}
// Memory for tiles of several warps, which the simulator does not need.
template <unsigned threads = 1024>
struct block_tile_memory {};
template <unsigned threads>
__forceinline__ thread_block this_thread_block(block_tile_memory<threads>&) { return {}; }
namespace experimental {
using cooperative_groups::block_tile_memory, cooperative_groups::this_thread_block,
    cooperative_groups::thread_block_tile;
template <unsigned n, typename Parent>
__forceinline__ thread_block_tile<n, Parent> tiled_partition(const Parent& parent) {
    return cooperative_groups::tiled_partition<n>(parent);
}
}  // namespace experimental
template <typename Group, typename T>
__forceinline__ coalesced_group labeled_partition(const Group& group, T label) {
    return {{__match_any_sync(group.mask, label)}};
}
template <typename Group>
__forceinline__ coalesced_group binary_partition(const Group& group, bool label) {
    return labeled_partition(group, int(label));
}
template <typename Group>
__forceinline__ void sync(const Group& group) { group.sync(); }
template <typename Group, typename F, typename... A>
__forceinline__ void invoke_one(const Group& group, F&& call, A&&... arguments) {
    if (group.thread_rank() == 0) call(std::forward<A>(arguments)...);
}

// ---- <cooperative_groups/reduce.h>, scan.h, memcpy_async.h --------------------------------
#define SIM_COMBINE(name, expression)                                                           \
    template <typename T>                                                                       \
    struct name {                                                                               \
        __forceinline__ T operator()(T a, T b) const { return expression; }                     \
    };
SIM_COMBINE(plus, a + b) SIM_COMBINE(less, b < a ? b : a) SIM_COMBINE(greater, a < b ? b : a)
SIM_COMBINE(bit_and, a & b) SIM_COMBINE(bit_or, a | b) SIM_COMBINE(bit_xor, a ^ b)
template <unsigned n, typename Parent, typename T, typename F>
__forceinline__ T reduce(const thread_block_tile<n, Parent, true>& tile, T value, F combine) {
    return tile.exchanged(value, [&](T* all) {
        T total = all[0];
        for (unsigned i = 1; i < n; ++i) total = combine(total, all[i]);
        return total;
    });
}
#define SIM_FOLD(name, Combine, result)                                                         \
    template <typename Group, typename T, typename F Combine>                                   \
    __forceinline__ T name(const Group& group, T value, const F& combine = F()) {               \
        return sim::fold(group.mask, value, combine).result;                                    \
    }
SIM_FOLD(reduce, , total) SIM_FOLD(inclusive_scan, = plus<T>, through)
SIM_FOLD(exclusive_scan, = plus<T>, before)

template <typename Group, typename T>
__forceinline__ void memcpy_async(const Group& group, T* to, const T* from, size_t bytes) {
    auto all = uintptr_t(to) | uintptr_t(from) | bytes;
    size_t piece = all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : 4;
    for (size_t at = group.thread_rank() * piece; at < bytes; at += group.size() * piece)
        sim_copy_async((char*)to + at, (const char*)from + at, piece, 0);
    sim_copy_commit();
}
template <unsigned newest, typename Group>
__forceinline__ void wait_prior(const Group& group) {
    sim_copy_wait(newest);
    group.sync();
}
template <typename Group>
__forceinline__ void wait(const Group& group) { wait_prior<0>(group); }
}  // namespace cooperative_groups
