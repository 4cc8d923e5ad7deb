import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Simple model that performs a single matrix multiplication (C = A * B)
    """
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B)


M = 1024
K = 4096
N = 2048


def get_inputs():
    A = torch.randn(M, K)
    B = torch.randn(K, N)
    return [A, B]


def get_init_inputs():
    return []  # No special initialization inputs needed


matmul_source = r"""
#include <torch/extension.h>
#include <cuda_fp16.h>
#include <ATen/cuda/CUDAContext.h>

#define TS 32

// Tiles are packed as half2 along k so that one HFMA2 does two multiply-adds.
__global__ void matmul_h2_kernel(const float* __restrict__ A, const float* __restrict__ B,
                                 float* __restrict__ C, int M, int N, int K)
{
    __shared__ __half2 As[TS][TS / 2 + 1];
    __shared__ __half2 Bs[TS / 2][TS + 1];

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.y * TS + ty;
    const int col = blockIdx.x * TS + tx;

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TS) {
        if (tx < TS / 2) {
            const int k = k0 + 2 * tx;
            const float a0 = (row < M && k < K) ? A[(size_t)row * K + k] : 0.0f;
            const float a1 = (row < M && k + 1 < K) ? A[(size_t)row * K + k + 1] : 0.0f;
            As[ty][tx] = __floats2half2_rn(a0, a1);
        }
        if (ty < TS / 2) {
            const int k = k0 + 2 * ty;
            const float b0 = (col < N && k < K) ? B[(size_t)k * N + col] : 0.0f;
            const float b1 = (col < N && k + 1 < K) ? B[(size_t)(k + 1) * N + col] : 0.0f;
            Bs[ty][tx] = __floats2half2_rn(b0, b1);
        }
        __syncthreads();

        __half2 part = __float2half2_rn(0.0f);
        #pragma unroll
        for (int k = 0; k < TS / 2; ++k)
            part = __hfma2(As[ty][k], Bs[k][tx], part);
        acc += __low2float(part) + __high2float(part);
        __syncthreads();
    }

    if (row < M && col < N)
        C[(size_t)row * N + col] = acc;
}

torch::Tensor matmul_h2(torch::Tensor A, torch::Tensor B)
{
    TORCH_CHECK(A.is_cuda() && B.is_cuda(), "A and B must be CUDA tensors");
    TORCH_CHECK(A.scalar_type() == torch::kFloat && B.scalar_type() == torch::kFloat, "float32 only");
    TORCH_CHECK(A.size(1) == B.size(0), "inner dimensions differ");
    A = A.contiguous();
    B = B.contiguous();
    const int M = A.size(0), K = A.size(1), N = B.size(1);
    auto C = torch::empty({M, N}, A.options());
    dim3 block(TS, TS);
    dim3 grid((N + TS - 1) / TS, (M + TS - 1) / TS);
    matmul_h2_kernel<<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
        A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
"""

matmul_ext = load_inline(
    name="matmul_h2_ext",
    cpp_sources="torch::Tensor matmul_h2(torch::Tensor A, torch::Tensor B);",
    cuda_sources=matmul_source,
    functions=["matmul_h2"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return matmul_ext.matmul_h2(A, B)
