import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def __init__(self, negative_slope: float = 0.01):
        super(Model, self).__init__()
        self.negative_slope = negative_slope

    def forward(self, x):
        return torch.nn.functional.leaky_relu(x, negative_slope=self.negative_slope)


def get_inputs():
    x = torch.randn(16, 16384)
    return [x]


def get_init_inputs():
    return [0.1]


cuda_src = """
#include <torch/extension.h>
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>

template <typename scalar_t>
__global__ void leaky_relu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, scalar_t slope, int64_t n) {
    const int64_t stride = static_cast<int64_t>(blockDim.x) * gridDim.x;
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        scalar_t v = x[i];
        y[i] = v > scalar_t(0) ? v : v * slope;
    }
}

at::Tensor leaky_relu_forward(const at::Tensor& x, double slope) {
    auto input = x.contiguous();
    auto y = at::empty_like(input);
    const int64_t n = input.numel();
    const int threads = 256;
    const int blocks = std::min<int64_t>((n + threads - 1) / threads, 1024);
    auto stream = at::cuda::getCurrentCUDAStream();
    AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "leaky_relu_forward", ([&] {
        leaky_relu_kernel<scalar_t><<<blocks, threads, 0, stream>>>(
            input.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), static_cast<scalar_t>(slope), n);
    }));
    AT_CUDA_CHECK(cudaGetLastError());
    return y;
}
"""

module = load_inline(
    name="leaky_relu_ext",
    cpp_sources=["at::Tensor leaky_relu_forward(const at::Tensor& x, double slope);"],
    cuda_sources=[cuda_src],
    functions=["leaky_relu_forward"],
)


class ModelNew(nn.Module):
    def __init__(self, negative_slope: float = 0.01):
        super(ModelNew, self).__init__()
        self.negative_slope = negative_slope

    def forward(self, x):
        return module.leaky_relu_forward(x, self.negative_slope)
