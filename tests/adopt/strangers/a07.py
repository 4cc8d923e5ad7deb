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
in_channels = 64
out_channels = 128
width = 256
height = 256


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]


cuda_sources = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define CHECK_CUDA(x) TORCH_CHECK((x).is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK((x).is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) do { CHECK_CUDA(x); CHECK_CONTIGUOUS(x); } while (0)

namespace {

template <typename scalar_t, int BLOCK>
__global__ void conv1x1_kernel(const scalar_t* __restrict__ input,
                               const scalar_t* __restrict__ weight,
                               const scalar_t* __restrict__ bias,
                               scalar_t* __restrict__ output,
                               const int cin, const int cout, const int pixels)
{
    __shared__ scalar_t sw[BLOCK][BLOCK + 1];
    __shared__ scalar_t sx[BLOCK][BLOCK + 1];

    const int col = blockIdx.x * BLOCK + threadIdx.x;   // pixel
    const int row = blockIdx.y * BLOCK + threadIdx.y;   // output channel
    const int64_t in_base  = (int64_t)blockIdx.z * cin * pixels;
    const int64_t out_base = (int64_t)blockIdx.z * cout * pixels;

    scalar_t sum = 0;
    for (int c0 = 0; c0 < cin; c0 += BLOCK) {
        const int cw = c0 + threadIdx.x;
        const int cx = c0 + threadIdx.y;
        sw[threadIdx.y][threadIdx.x] = (row < cout && cw < cin) ? weight[(int64_t)row * cin + cw] : scalar_t(0);
        sx[threadIdx.y][threadIdx.x] = (cx < cin && col < pixels) ? input[in_base + (int64_t)cx * pixels + col] : scalar_t(0);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK; ++k)
            sum += sw[threadIdx.y][k] * sx[k][threadIdx.x];
        __syncthreads();
    }
    if (row < cout && col < pixels)
        output[out_base + (int64_t)row * pixels + col] = bias ? sum + bias[row] : sum;
}

}  // namespace

at::Tensor conv1x1(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
{
    CHECK_INPUT(input);
    CHECK_INPUT(weight);
    const auto n = input.size(0);
    const auto cin = input.size(1);
    const auto cout = weight.size(0);
    const auto pixels = input.size(2) * input.size(3);
    TORCH_CHECK(weight.size(1) == cin, "channel mismatch");
    const bool has_bias = bias.defined() && bias.numel() > 0;

    auto output = at::empty({n, cout, input.size(2), input.size(3)}, input.options());
    constexpr int B = 16;
    const dim3 threads(B, B);
    const dim3 blocks((unsigned)((pixels + B - 1) / B), (unsigned)((cout + B - 1) / B), (unsigned)n);

    AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "conv1x1", [&] {
        conv1x1_kernel<scalar_t, B><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
            input.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(),
            has_bias ? bias.data_ptr<scalar_t>() : nullptr,
            output.data_ptr<scalar_t>(), (int)cin, (int)cout, (int)pixels);
    });
    return output;
}
"""

cpp_sources = "at::Tensor conv1x1(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);"


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv1d = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=1, padding=0, bias=bias)
        self.ext = load_inline(
            name="conv1x1_ext",
            cpp_sources=cpp_sources,
            cuda_sources=cuda_sources,
            functions={"conv1x1": "1x1 convolution"},
            extra_cuda_cflags=["-O3"],
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b = self.conv1d.bias
        if b is None:
            b = torch.empty((0,), dtype=x.dtype, device=x.device)
        return self.ext.conv1x1(x.contiguous(), self.conv1d.weight.contiguous(), b)
