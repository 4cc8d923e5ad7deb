#include "convlab.cuh"
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

// case block_sum:
//     cudaMemsetAsync(y, 0, sizeof(float), stream);
//     block_sum<<<2, 128, 0, stream>>>(x, y, n);
// x: 400; expect: x.sum()
__global__ void block_sum(const float* in, float* out, int count) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ float partial[32];
    float sum = 0;
    for (int i = blockIdx.x * block.size() + block.thread_rank(); i < count;
         i += gridDim.x * block.num_threads())
        sum += in[i];
    for (int offset = warp.size() / 2; offset > 0; offset /= 2) sum += warp.shfl_down(sum, offset);
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = sum;
    cg::sync(block);
    if (block.thread_index().x == 0 && block.group_index().x < 2) {
        float total = 0;
        for (unsigned i = 0; i < warp.meta_group_size(); ++i) total += partial[i];
        atomicAdd(out, total);
    }
}

// case softmax: softmax_rows<<<4, 64, 0, stream>>>(x, y, 48);
// note: a block has two rows, one for each warp
// x: 384; expect: torch.softmax(x.double().reshape(8, 48), 1)
__global__ void softmax_rows(const float* in, float* out, int columns) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    const float* r = in + row * columns;
    float most = -INFINITY, sum = 0.0f;
    for (int i = warp.thread_rank(); i < columns; i += warp.num_threads()) most = fmaxf(most, r[i]);
    most = cg::reduce(warp, most, cg::greater<float>{});
    for (int i = warp.thread_rank(); i < columns; i += warp.size()) sum += expf(r[i] - most);
    sum = cg::reduce(warp, sum, cg::plus<float>());
    for (int i = warp.thread_rank(); i < columns; i += warp.size())
        __stcs(out + row * columns + i, expf(r[i] - most) / sum);
}

// case transpose: transpose_tile<<<dim3(2, 2), dim3(16, 8), 0, stream>>>(y, x, 32);
// x: 1024; expect: x.reshape(32, 32).T
template <int T>
__device__ void copy_tile(cg::thread_block& block, float (&tile)[T][T + 1], const float* in,
                          int width) {
    dim3 t = block.thread_index(), b = block.group_index(), size = block.group_dim();
    for (int j = 0; j < T; j += size.y)
        tile[t.y + j][t.x] = in[(b.y * T + t.y + j) * width + b.x * T + t.x];
    block.sync();
}
__global__ void transpose_tile(float* out, const float* in, int width) {
    cg::thread_block block = cg::this_thread_block();
    __shared__ float tile[16][17];
    copy_tile<16>(block, tile, in, width);
    int x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
    for (int j = 0; j < 16; j += blockDim.y)
        out[(y + j) * width + x] = tile[threadIdx.x][threadIdx.y + j];
}

// case generic: sum_by_groups<<<1, 64, 256, stream>>>(x, y);
// note: one function for a block, and for tiles with a size that is known only at run time
// expect: torch.cat([x.sum().reshape(1), x.reshape(4, 16).sum(1)])
__device__ float reduce_sum(cg::thread_group g, float* temp, float v) {
    int lane = g.thread_rank();
    for (int i = g.size() / 2; i > 0; i /= 2) {
        temp[lane] = v;
        g.sync();
        if (lane < i) v += temp[lane + i];
        g.sync();
    }
    return v;
}
__global__ void sum_by_groups(const float* in, float* out) {
    extern __shared__ float temp[];
    auto block = cg::this_thread_block();
    float all = reduce_sum(block, temp, in[block.thread_rank()]);
    if (block.thread_rank() == 0) out[0] = all;
    cg::thread_group tile = cg::tiled_partition(block, 16);
    int which = block.thread_rank() / tile.size();
    float part = reduce_sum(tile, temp + which * 16, in[block.thread_rank()]);
    if (tile.thread_rank() == 0) out[1 + which] = part;
}

// case votes_of_tiles: tile_votes<<<1, 64, 0, stream>>>(x, y);
// expect: [8 * (t > 40).any() + 4 * (t > -45).all() + (t > 0).sum() * 16 + t[3] + t[i ^ 5]
//     + (t[i - 1] if i else t[0]) + (t.int() & 1 == int(t[i]) & 1).sum() * 1000
//     for t in x.reshape(8, 8) for i in range(8)]
__global__ void tile_votes(const float* in, float* out) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int i = tile.meta_group_rank() * tile.size() + tile.thread_rank();
    float v = in[i];
    float r = 8 * (tile.any(v > 40) != 0) + 4 * (tile.all(v > -45) != 0);
    r += __popc(tile.ballot(v > 0)) * 16 + tile.shfl(v, 3);
    r += tile.shfl_xor(v, 5) + tile.shfl_up(v, 1);
    out[i] = r + __popc(tile.match_any(int(v) & 1)) * 1000;
}

// case aggregated: keep_positive<<<1, 64, 0, stream>>>(x, reinterpret_cast<int*>(y));
// note: one atomic for all coalesced lanes of a warp
// view: int32; expect: [int((x > 0).sum()), sum(range(int((x > 0).sum())))]
__device__ int increment(int* counter) {
    cg::coalesced_group active = cg::coalesced_threads();
    int before = 0;
    if (active.thread_rank() == 0) before = atomicAdd(counter, active.size());
    return active.shfl(before, 0) + active.thread_rank();
}
__global__ void keep_positive(const float* in, int* out) {
    if (threadIdx.x < 2) out[threadIdx.x] = 0;
    __syncthreads();
    if (in[threadIdx.x] > 0) atomicAdd(out + 1, increment(out));
    cg::coalesced_group rest = cg::coalesced_threads();
    rest.sync();
}

// case reduce_kinds: reduce_kinds<<<1, 32, 0, stream>>>(x, reinterpret_cast<int*>(y));
// x: 32; view: int32
// expect: [v for t in x.int().reshape(2, 16) for v in (t.sum(), t.min(), t.max(),
//     reduce(int.__or__, t.tolist()), reduce(int.__xor__, t.tolist()))]
__global__ void reduce_kinds(const float* in, int* out) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int v = int(in[threadIdx.x]);
    int sum = cg::reduce(tile, v, cg::plus<int>()), least = cg::reduce(tile, v, cg::less<int>());
    int most = cg::reduce(tile, v, cg::greater<int>());
    int any = cg::reduce(tile, v, cg::bit_or<int>());
    int odd = cg::reduce(tile, v, [](int a, int b) { return a ^ b; });
    int results[] = {sum, least, most, any, odd};
    if (tile.thread_rank() < 5)
        out[tile.meta_group_rank() * 5 + tile.thread_rank()] = results[tile.thread_rank()];
}

// case scans: scans<<<1, 32, 0, stream>>>(x, y);
// x: 32; k: 2; expect: torch.cat([x.cumsum(0), x.cumsum(0) - x])
__global__ void scans(const float* in, float* out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    float v = in[warp.thread_rank()];
    out[warp.thread_rank()] = cg::inclusive_scan(warp, v, cg::plus<float>());
    out[32 + warp.thread_rank()] = cg::exclusive_scan(warp, v);
}

// case staged: staged<<<2, 32, 128, stream>>>(x, y);
// expect: torch.cat([x[:32].flip(0), x[32:].flip(0)])
__global__ void staged(const float* in, float* out) {
    extern __shared__ float s_in[];
    cg::thread_block block = cg::this_thread_block();
    cg::memcpy_async(block, s_in, in + blockIdx.x * 32, sizeof(float) * 32);
    cg::wait(block);
    out[cg::this_grid().thread_rank()] = s_in[block.size() - 1 - block.thread_rank()];
}

// case grid_stride: grid_stride<<<3, 32, 0, stream>>>(x, y, n);
// x: 200; expect: 2 * x
__global__ void grid_stride(const float* in, float* out, int count) {
    cg::grid_group grid = cg::this_grid();
    for (unsigned long long i = grid.thread_rank(); i < count; i += grid.size()) out[i] = 2 * in[i];
}

// case wide_shuffles: wide_shuffles<<<1, 32, 0, stream>>>(x, y);
// note: groups also exchange values that are wider than a register
// x: 128; expect: x.reshape(32, 4)[[l ^ 3 for l in range(32)]].sum(1) + x.reshape(32, 4)[5, 2]
__global__ void wide_shuffles(const float* x, float* y) {
    auto tile = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
    float4 mine = reinterpret_cast<const float4*>(x)[threadIdx.x];
    float4 other = tile.shfl_xor(mine, 3), fifth = tile.shfl(mine, 5);
    y[threadIdx.x] = other.x + other.y + other.z + other.w + fifth.z;
}

// case two_parts: two_parts<<<1, 32, 0, stream>>>(x, y);
// expect: [32 - n if v else n for n in [int((x[:32] > 0).logical_not().sum())] for v in x[:32] > 0]
__global__ void two_parts(const float* x, float* y) {
    auto tile = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
    y[threadIdx.x] = cooperative_groups::binary_partition(tile, x[threadIdx.x] > 0).size();
}
