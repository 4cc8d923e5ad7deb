import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=0)


def get_inputs():
    return [torch.rand(50, 96)]


def get_init_inputs():
    return []


ext = load_inline(
    name="column_sums",
    cpp_sources="torch::Tensor column_sums(torch::Tensor x);",
    cuda_sources="""
#include <torch/extension.h>

__global__ void add_rows(const float* x, float* y, int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y;
    if (col < cols) atomicAdd(&y[col], x[row * cols + col]);
}

torch::Tensor column_sums(torch::Tensor x) {
    auto y = torch::empty({x.size(1)}, x.options());
    add_rows<<<dim3((x.size(1) + 63) / 64, x.size(0)), 64>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));
    return y;
}
""",
    functions=["column_sums"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.column_sums(x)
