import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

maxpool_cpp_source = (
    "torch::Tensor maxpool_cuda(torch::Tensor x, int kernel_size, int stride, "
    "int padding, int dilation);"
)
maxpool_cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <limits>

__global__ void maxpool_kernel(const float* x, float* y, int planes, int H, int W, int P, int Q,
                               int size, int stride, int pad, int dilation) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= planes * P * Q) return;
    int q = i % Q, p = i / Q % P, plane = i / Q / P;
    float best = -INFINITY;
    for (int r = 0; r < size; ++r)
        for (int s = 0; s < size; ++s) {
            int h = p * stride - pad + r * dilation;
            int w = q * stride - pad + s * dilation;
            if (h >= 0 && h < H && w >= 0 && w < W) best = fmaxf(best, x[(plane * H + h) * W + w]);
        }
    y[i] = best;
}

torch::Tensor maxpool_cuda(torch::Tensor x, int kernel_size, int stride, int padding, int dilation) {
    auto s = x.sizes();
    int P = (s[2] + 2 * padding - dilation * (kernel_size - 1) - 1) / stride + 1;
    int Q = (s[3] + 2 * padding - dilation * (kernel_size - 1) - 1) / stride + 1;
    auto y = torch::empty({s[0], s[1], P, Q}, x.options());
    int n = y.numel();
    maxpool_kernel<<<(n + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), s[0] * s[1],
                                             s[2], s[3], P, Q, kernel_size, stride, padding, dilation);
    return y;
}
"""
maxpool = load_inline(
    name="maxpool", cpp_sources=maxpool_cpp_source, cuda_sources=maxpool_cuda_source,
    functions=["maxpool_cuda"], extra_ldflags=[""],
)


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int):
        super(Model, self).__init__()
        self.maxpool = nn.MaxPool2d(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.maxpool(x)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int):
        super(ModelNew, self).__init__()
        self.sizes = (kernel_size, stride, padding, dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return maxpool.maxpool_cuda(x, *self.sizes)


batch_size = 32
channels = 64
height = 512
width = 512
kernel_size = 4
stride = 1
padding = 1
dilation = 1


def get_inputs():
    x = torch.rand(batch_size, channels, height, width)
    return [x]


def get_init_inputs():
    return [kernel_size, stride, padding, dilation]
