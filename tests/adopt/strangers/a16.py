import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs batched matrix multiplication (C = A * B) where A, B, and C have the same batch dimension.
    """
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        """
        Args:
            A: Input tensor of shape (batch_size, m, k).
            B: Input tensor of shape (batch_size, k, n).
        """
        return torch.bmm(A, B)


batch_size = 128
m = 128
k = 256
n = 512


def get_inputs():
    A = torch.randn(batch_size, m, k)
    B = torch.randn(batch_size, k, n)
    return [A, B]


def get_init_inputs():
    return []  # No special initialization inputs needed


bmm_cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>

#define TILE_SIZE 16

template <typename scalar_t>
__global__ void bmm_tiled_kernel(
    const scalar_t* __restrict__ A,
    const scalar_t* __restrict__ B,
    scalar_t* __restrict__ C,
    const int M, const int N, const int K)
{
    __shared__ scalar_t a_tile[TILE_SIZE][TILE_SIZE];
    __shared__ scalar_t b_tile[TILE_SIZE][TILE_SIZE];

    const size_t batch = blockIdx.z;
    A += batch * M * K;
    B += batch * K * N;
    C += batch * M * N;

    const int row = blockIdx.y * TILE_SIZE + threadIdx.y;
    const int col = blockIdx.x * TILE_SIZE + threadIdx.x;
    scalar_t sum = 0;

    for (int t = 0; t < (K + TILE_SIZE - 1) / TILE_SIZE; ++t) {
        const int ka = t * TILE_SIZE + threadIdx.x;
        const int kb = t * TILE_SIZE + threadIdx.y;

        if (row < M && ka < K)
            a_tile[threadIdx.y][threadIdx.x] = A[(size_t)row * K + ka];
        else
            a_tile[threadIdx.y][threadIdx.x] = 0;

        if (kb < K && col < N)
            b_tile[threadIdx.y][threadIdx.x] = B[(size_t)kb * N + col];
        else
            b_tile[threadIdx.y][threadIdx.x] = 0;

        __syncthreads();

        #pragma unroll
        for (int i = 0; i < TILE_SIZE; ++i)
            sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];

        __syncthreads();
    }

    if (row < M && col < N)
        C[(size_t)row * N + col] = sum;
}

torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B) {
    TORCH_CHECK(A.dim() == 3 && B.dim() == 3, "A and B must be 3-D");
    TORCH_CHECK(A.size(0) == B.size(0), "batch sizes differ");
    TORCH_CHECK(A.size(2) == B.size(1), "inner sizes differ");

    const int batch = A.size(0);
    const int M = A.size(1);
    const int K = A.size(2);
    const int N = B.size(2);
    auto C = torch::zeros({batch, M, N}, A.options());

    const dim3 threads(TILE_SIZE, TILE_SIZE);
    const dim3 blocks((N + TILE_SIZE - 1) / TILE_SIZE, (M + TILE_SIZE - 1) / TILE_SIZE, batch);

    AT_DISPATCH_FLOATING_TYPES(A.scalar_type(), "bmm_cuda", ([&] {
        bmm_tiled_kernel<scalar_t><<<blocks, threads>>>(
            A.data_ptr<scalar_t>(), B.data_ptr<scalar_t>(), C.data_ptr<scalar_t>(), M, N, K);
    }));

    cudaError_t err = cudaGetLastError();
    TORCH_CHECK(err == cudaSuccess, "bmm_cuda launch failed: ", cudaGetErrorString(err));
    return C;
}
"""

bmm_cpp_source = "torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B);"

# Compile the inline CUDA code
bmm = load_inline(
    name="bmm_tiled",
    cpp_sources=bmm_cpp_source,
    cuda_sources=bmm_cuda_source,
    functions=["bmm_cuda"],
    verbose=True,
    extra_cflags=["-O3"],
    extra_ldflags=[""],
)


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()
        self.bmm = bmm

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return self.bmm.bmm_cuda(A.contiguous(), B.contiguous())
