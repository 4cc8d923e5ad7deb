import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, A, B):
        return torch.bmm(A, B)


batch_size = 128
m = 512
k = 1024
n = 2048


def get_inputs():
    A = torch.rand(batch_size, m, k)
    B = torch.rand(batch_size, k, n)
    return [A, B]


def get_init_inputs():
    return []


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()
        self.bmm = load_inline(
            name="bmm_inline",
            cpp_sources="""torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B);""",
            cuda_sources="""
#include <torch/extension.h>

__global__ void bmm_kernel(const float* A, const float* B, float* C, int M, int N, int K) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int b = blockIdx.z;
    if (row < M && col < N) {
        float value = 0;
        for (int i = 0; i < K; ++i) {
            value += A[(size_t)b * M * K + row * K + i] * B[(size_t)b * K * N + i * N + col];
        }
        C[(size_t)b * M * N + row * N + col] = value;
    }
}

torch::Tensor bmm_cuda(torch::Tensor A, torch::Tensor B) {
    TORCH_CHECK(A.size(2) == B.size(1), "inner sizes differ: ", A.size(2), " and ", B.size(1));
    auto C = torch::empty({A.size(0), A.size(1), B.size(2)}, A.options());
    dim3 threads(16, 16);
    dim3 grid((B.size(2) + 15) / 16, (A.size(1) + 15) / 16, A.size(0));
    bmm_kernel<<<grid, threads>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(),
                                  A.size(1), B.size(2), A.size(2));
    return C;
}
""",
            functions=["bmm_cuda"],
        )

    def forward(self, A, B):
        return self.bmm.bmm_cuda(A.contiguous(), B.contiguous())
