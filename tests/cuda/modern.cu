// CUDA beyond kernels in <<<>>>: launches by a call, clusters, textures, cuda::barrier, wmma.
#include "convlab.cuh"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <mma.h>
namespace cg = cooperative_groups;
using namespace nvcuda;

__global__ void scaled(const float* x, float* y, float by) { y[threadIdx.x] = by * x[threadIdx.x]; }

// case launch_kernel: float by = 2; void* all[] = {&x, &y, &by};
//     cudaLaunchKernel((void*)scaled, dim3(1), dim3(64), all, 0, stream);
// expect: 2 * x
// case launch_kernel_ex: cudaLaunchConfig_t c = {}; c.gridDim = 1, c.blockDim = 64, c.stream = stream;
//     cudaLaunchAttribute a[1]; a[0].id = cudaLaunchAttributeClusterDimension;
//     a[0].val.clusterDim.x = 1, a[0].val.clusterDim.y = 1, a[0].val.clusterDim.z = 1;
//     c.attrs = a, c.numAttrs = 1; cudaLaunchKernelEx(&c, scaled, x, y, 3);
// expect: 3 * x

// A barrier of the grid: each block reads what the next one stored.
__global__ void around(const float* x, float* y, float* between) {
    int i = blockIdx.x * 32 + threadIdx.x;
    between[i] = x[i];
    cg::this_grid().sync();
    y[i] = between[(i + 32) % 64];  // here
}
// case grid_barrier: float* between = (float*)workspace; void* all[] = {&x, &y, &between};
//     cudaLaunchCooperativeKernel(around, dim3(2), dim3(32), all, 0, stream);
// expect: torch.cat([x[32:], x[:32]])
// case not_cooperative: around<<<2, 32, 0, stream>>>(x, y, (float*)workspace);
// fault: deadlock: grid.sync\(\) in a kernel that was not launched cooperatively
__global__ void no_grid_barrier(const float* x, float* y, float* between) {
    int i = blockIdx.x * 32 + threadIdx.x;
    between[i] = x[i];
    __syncthreads();
    y[i] = between[(i + 32) % 64];
}
// case no_grid_barrier: float* between = (float*)workspace; void* all[] = {&x, &y, &between};
//     cudaLaunchCooperativeKernel(no_grid_barrier, dim3(2), dim3(32), all, 0, stream);
// fault: race: .*by another thread of another block|uninitialised read: load of workspace

__global__ void __cluster_dims__(2, 1, 1) neighbours(const float* x, float* y) {
    __shared__ float s[32];
    cg::cluster_group cluster = cg::this_cluster();
    s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
    cluster.sync();
    float* other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    y[blockIdx.x * 32 + threadIdx.x] = other[threadIdx.x];
    cluster.sync();
}
// case cluster: neighbours<<<4, 32, 0, stream>>>(x, y);
// x: 128; expect: torch.cat([x[32:64], x[:32], x[96:], x[64:96]])
// case odd_grid: neighbours<<<3, 32, 0, stream>>>(x, y);
// x: 128; fault: launch configuration: clusters of \(2, 1, 1\) blocks: the grid \(3, 1, 1\)

// A texture of 8 x 8 texels of x: point sampling, then halfway between two texels.
__global__ void textured(cudaTextureObject_t texture, float* y, float by) {
    int i = threadIdx.x;
    y[i] = tex2D<float>(texture, float(i % 8) + by, float(i / 8) + 0.5f);
}
struct Texture {
    cudaArray_t array;
    cudaTextureObject_t object = 0;
    Texture(const float* x, cudaTextureFilterMode filter, cudaStream_t stream) {
        cudaChannelFormatDesc channels = cudaCreateChannelDesc<float>();
        cudaMallocArray(&array, &channels, 8, 8);
        cudaMemcpy2DToArrayAsync(array, 0, 0, x, 32, 32, 8, cudaMemcpyDeviceToDevice, stream);
        cudaResourceDesc from = {};
        from.resType = cudaResourceTypeArray, from.res.array.array = array;
        cudaTextureDesc how = {};
        how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
        how.filterMode = filter;
        cudaCreateTextureObject(&object, &from, &how, nullptr);
    }
    ~Texture() { cudaDestroyTextureObject(object), cudaFreeArray(array); }
};
// case texture: Texture t(x, cudaFilterModePoint, stream);
//     textured<<<1, 64, 0, stream>>>(t.object, y, 1.5f);
// expect: x.reshape(8, 8)[:, [1, 2, 3, 4, 5, 6, 7, 7]]
// case filtered: Texture t(x, cudaFilterModeLinear, stream);
//     textured<<<1, 64, 0, stream>>>(t.object, y, 1.0f);
// expect: 0.5 * (x.reshape(8, 8) + x.reshape(8, 8)[:, [1, 2, 3, 4, 5, 6, 7, 7]])
__global__ void fetched(cudaTextureObject_t texture, float* y) {
    y[threadIdx.x] = tex1Dfetch<float>(texture, int(threadIdx.x) - 1);
}
// case fetch: cudaResourceDesc from = {}; from.resType = cudaResourceTypeLinear;
//     from.res.linear.devPtr = (void*)x, from.res.linear.sizeInBytes = 256;
//     from.res.linear.desc = cudaCreateChannelDesc<float>(); cudaTextureDesc how = {};
//     cudaTextureObject_t t; cudaCreateTextureObject(&t, &from, &how, nullptr);
//     fetched<<<1, 64, 0, stream>>>(t, y);
// expect: torch.cat([torch.zeros(1), x[:63]])

// The block copies 64 floats; all wait for the barrier's phase.
__global__ void awaited(const float* x, float* y, bool waits) {
    __shared__ alignas(16) float s[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) init(&bar, block.size());
    block.sync();
    cuda::memcpy_async(block, s, x, cuda::aligned_size_t<16>(sizeof s), bar);
    if (waits) bar.arrive_and_wait();
    y[threadIdx.x] = s[63 - threadIdx.x];
}
// case barrier: awaited<<<1, 64, 0, stream>>>(x, y, true);
// expect: x.flip(0)
// case barrier_not_waited: awaited<<<1, 64, 0, stream>>>(x, y, false);
// fault: copy not waited for: load of s\[|race: .*s\[|uninitialised read: load of s

// Two stages of a block's pipeline.
__global__ void piped(const float* x, float* y) {
    __shared__ alignas(16) float s[2][16];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    for (int i = 0, ahead = 0; i < 4; ++i) {
        for (; ahead < 4 && ahead < i + 2; ++ahead) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[ahead % 2], x + 16 * ahead, 64, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        y[16 * i + threadIdx.x] = s[i % 2][15 - threadIdx.x];
        pipe.consumer_release();
    }
}
// case pipeline: piped<<<1, 16, 0, stream>>>(x, y);
// expect: x.reshape(4, 16).flip(1)

// 16 x 16 x 16 in fp16: a[i][j] = i % 5, b is twice the identity.
__global__ void fragments(float* y, int lanes) {
    __shared__ alignas(32) __half s_a[256], s_b[256];
    for (int i = threadIdx.x; i < 256; i += 32) {
        s_a[i] = __float2half(float(i % 5));
        s_b[i] = __float2half(i % 17 ? 0.f : 2.f);
    }
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 1.0f);
    wmma::load_matrix_sync(a, s_a, 16);
    wmma::load_matrix_sync(b, s_b, 16);
    if (int(threadIdx.x) < lanes) wmma::mma_sync(c, a, b, c);
    for (int i = 0; i < c.num_elements; ++i) c.x[i] *= 0.5f;
    wmma::store_matrix_sync(y, c, 16, wmma::mem_row_major);
}
// case wmma: fragments<<<1, 32, 0, stream>>>(y, 32);
// k: 4; expect: torch.arange(256).remainder(5).float() + 0.5
// case part_of_wmma: fragments<<<1, 32, 0, stream>>>(y, 16);
// k: 4; fault: warp mask: 

// Two tiles of 64 threads, each of two warps.
__global__ void large_tiles(const float* x, float* y) {
    __shared__ cg::block_tile_memory<128> memory;
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<64>(block);
    y[block.thread_rank()] = cg::reduce(tile, x[block.thread_rank()], cg::plus<float>());
}
// case large_tiles: large_tiles<<<1, 128, 0, stream>>>(x, y);
// x: 128; expect: torch.cat([x[:64].sum().repeat(64), x[64:].sum().repeat(64)])
__global__ void tiles_and_memory(const float* x, float* y, bool syncs) {
    __shared__ float s[128];
    auto tile = cg::tiled_partition<64>(cg::this_thread_block());
    s[threadIdx.x] = x[threadIdx.x];
    if (syncs) tile.sync();
    y[threadIdx.x] = s[threadIdx.x ^ 63];
}
// case tile_sync: tiles_and_memory<<<1, 128, 0, stream>>>(x, y, true);
// x: 128; expect: x.reshape(2, 64).flip(1)
// case no_tile_sync: tiles_and_memory<<<1, 128, 0, stream>>>(x, y, false);
// x: 128; fault: race: |uninitialised read: 
