import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)


def get_inputs():
    return [torch.rand(64, 1000)]


def get_init_inputs():
    return []


mean_ext = load_inline(
    name="mean_ext",
    cpp_sources="torch::Tensor mean_cuda(torch::Tensor x);",
    cuda_sources="""
#include <torch/extension.h>

__global__ void mean_kernel(const float* x, float* y, int cols) {
    __shared__ float part[256];
    int t = threadIdx.x;
    float sum = 0.f;
    for (int i = t; i < cols; i += 256) sum += x[blockIdx.x * cols + i];
    part[t] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half >>= 1) {
        if (t < half) part[t] += part[t + half];
    }
    if (t == 0) y[blockIdx.x] = part[0] / cols;
}

torch::Tensor mean_cuda(torch::Tensor x) {
    auto y = torch::empty({x.size(0)}, x.options());
    mean_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
""",
    functions=["mean_cuda"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return mean_ext.mean_cuda(x)
