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

extern "C" void launch_tanh(const float* x, float* y, int n) {
    tanh_kernel<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""

binding = """
#include <torch/extension.h>

void launch_tanh(const float* x, float* y, int n);

torch::Tensor tanh_forward(torch::Tensor x) {
    auto y = torch::empty_like(x);
    launch_tanh(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""

tanh = load_inline(name="tanh_ext", cpp_sources=binding, cuda_sources=source, functions=["tanh_forward"])


class ModelNew(nn.Module):
    def forward(self, x):
        return tanh.tanh_forward(x)
