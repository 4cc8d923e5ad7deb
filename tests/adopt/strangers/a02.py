import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs a pointwise 2D convolution operation.
    """
    def __init__(self, in_channels: int, out_channels: int, bias: bool = False):
        super(Model, self).__init__()
        self.conv1d = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=1, padding=0, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d(x)


# Test code
batch_size = 16
in_channels = 3
out_channels = 64
width = 256
height = 256


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]


cuda_src = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

#define TILE 16

// out[n][oc][p] = sum_c w[oc][c] * x[n][c][p]
__global__ void pointwise_tiled(const float* __restrict__ x,
                                const float* __restrict__ w,
                                const float* __restrict__ b,
                                float* __restrict__ out,
                                int C, int OC, int P, bool has_bias)
{
    __shared__ float ws[TILE][TILE];
    __shared__ float xs[TILE][TILE];

    const int n  = blockIdx.z;
    const int oc = blockIdx.y * TILE + threadIdx.y;
    const int p  = blockIdx.x * TILE + threadIdx.x;
    const float* xn = x + (size_t)n * C * P;

    float acc = 0.f;
    const int tiles = (C + TILE - 1) / TILE;
    for (int t = 0; t < tiles; ++t) {
        const int cw = t * TILE + threadIdx.x;
        const int cx = t * TILE + threadIdx.y;
        ws[threadIdx.y][threadIdx.x] = (oc < OC) ? w[oc * C + cw] : 0.f;
        xs[threadIdx.y][threadIdx.x] = (p < P) ? xn[(size_t)cx * P + p] : 0.f;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k)
            acc += ws[threadIdx.y][k] * xs[k][threadIdx.x];
        __syncthreads();
    }

    if (oc < OC && p < P) {
        if (has_bias) acc += b[oc];
        out[((size_t)n * OC + oc) * P + p] = acc;
    }
}

torch::Tensor pointwise_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b)
{
    TORCH_CHECK(x.is_cuda() && w.is_cuda(), "inputs must be on CUDA");
    TORCH_CHECK(x.is_contiguous() && w.is_contiguous(), "inputs must be contiguous");
    const int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const int OC = w.size(0);
    const int P = H * W;
    auto out = torch::empty({N, OC, H, W}, x.options());
    dim3 block(TILE, TILE);
    dim3 grid((P + TILE - 1) / TILE, (OC + TILE - 1) / TILE, N);
    const bool has_bias = b.numel() > 0;
    pointwise_tiled<<<grid, block>>>(x.data_ptr<float>(), w.data_ptr<float>(),
                                     has_bias ? b.data_ptr<float>() : nullptr,
                                     out.data_ptr<float>(), C, OC, P, has_bias);
    return out;
}
"""

cpp_src = "torch::Tensor pointwise_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b);"

pointwise_ext = load_inline(
    name="pointwise_ext",
    cpp_sources=[cpp_src],
    cuda_sources=[cuda_src],
    functions=["pointwise_forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv1d = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=1, padding=0, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.conv1d.bias
        if bias is None:
            bias = torch.empty(0, device=x.device, dtype=x.dtype)
        return pointwise_ext.pointwise_forward(x.contiguous(), self.conv1d.weight.contiguous(), bias)
