import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(16, 16384)]


def get_init_inputs():
    return []


source = """
#include <torch/extension.h>

__global__ void tanh_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = tanhf(x[i]);
}

torch::Tensor tanh_forward(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    tanh_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""

tanh = load_inline(
    name="tanh_ext",
    cpp_sources="torch::Tensor tanh_forward(torch::Tensor x);",
    cuda_sources=source,
    functions=["tanh_forward"],
    extra_nvcc_flags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return tanh.tanh_forward(x)
