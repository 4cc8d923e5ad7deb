import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Simple model that performs a convolution, applies ReLU, and adds a bias term.
    """
    def __init__(self, in_channels, out_channels, kernel_size, bias_shape):
        super(Model, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = self.conv(x)
        x = torch.relu(x)
        x = x + self.bias
        return x


batch_size = 128
in_channels = 3
out_channels = 16
height, width = 32, 32
kernel_size = 3
bias_shape = (out_channels, 1, 1)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, bias_shape]


cuda_source = """
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>

template <typename scalar_t>
__global__ void conv_relu_bias_kernel(
    const scalar_t* __restrict__ x,
    const scalar_t* __restrict__ w,
    const scalar_t* __restrict__ conv_b,
    const scalar_t* __restrict__ extra_b,
    scalar_t* __restrict__ y,
    int N, int C, int H, int W,
    int OC, int KH, int KW, int OH, int OW)
{
    const int64_t total = (int64_t)N * OC * OH * OW;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int ow = i % OW;
        const int oh = (i / OW) % OH;
        const int oc = (i / ((int64_t)OW * OH)) % OC;
        const int n  = i / ((int64_t)OW * OH * OC);

        scalar_t acc = conv_b[oc];
        for (int c = 0; c < C; ++c) {
            const scalar_t* xp = x + ((int64_t)(n * C + c) * H + oh) * W + ow;
            const scalar_t* wp = w + (int64_t)(oc * C + c) * KH * KW;
            for (int kh = 0; kh < KH; ++kh) {
                for (int kw = 0; kw < KW; ++kw) {
                    acc += xp[kh * W + kw] * wp[kh * KW + kw];
                }
            }
        }
        acc = acc < scalar_t(0) ? scalar_t(0) : acc;
        y[i] = acc + extra_b[oc];
    }
}

torch::Tensor conv_relu_bias_cuda(torch::Tensor x, torch::Tensor w,
                                  torch::Tensor conv_b, torch::Tensor extra_b)
{
    const int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const int OC = w.size(0), KH = w.size(2), KW = w.size(3);
    const int OH = H - KH + 1, OW = W - KW + 1;

    auto y = torch::empty({N, OC, OH, OW}, x.options());
    const int64_t total = y.numel();
    const int threads = 256;
    const int blocks = (int)std::min<int64_t>((total + threads - 1) / threads, 65535);

    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "conv_relu_bias_cuda", ([&] {
        conv_relu_bias_kernel<scalar_t><<<blocks, threads>>>(
            x.data_ptr<scalar_t>(), w.data_ptr<scalar_t>(),
            conv_b.data_ptr<scalar_t>(), extra_b.data_ptr<scalar_t>(),
            y.data_ptr<scalar_t>(), N, C, H, W, OC, KH, KW, OH, OW);
    }));
    return y;
}
"""

cpp_source = """
torch::Tensor conv_relu_bias_cuda(torch::Tensor x, torch::Tensor w, torch::Tensor conv_b, torch::Tensor extra_b);
"""

conv_relu_bias = load_inline(
    name="conv_relu_bias",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["conv_relu_bias_cuda"],
    verbose=False,
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, bias_shape):
        super(ModelNew, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.op = conv_relu_bias

    def forward(self, x):
        return self.op.conv_relu_bias_cuda(
            x.contiguous(),
            self.conv.weight.contiguous(),
            self.conv.bias.contiguous(),
            self.bias.contiguous(),
        )
