import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs a depthwise 2D convolution with a square input and an asymmetric kernel.
    """
    def __init__(self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, dilation: int = 1, bias: bool = False):
        super(Model, self).__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size=(kernel_size, 1), stride=stride,
                                padding=padding, dilation=dilation, groups=in_channels, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


batch_size = 64
in_channels = 8
kernel_size = 3
width = 512
height = 512
stride = 1
padding = 0
dilation = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, kernel_size, stride, padding, dilation]


dw_cuda = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void dw_column_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                 const float* __restrict__ b, float* __restrict__ y,
                                 int N, int C, int H, int W, int OH, int OW,
                                 int K, int stride, int pad, int dil)
{
    long long idx = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    long long total = (long long)N * C * OH * OW;
    if (idx >= total) return;

    int ow = idx % OW;
    long long t = idx / OW;
    int oh = t % OH;
    t /= OH;
    int c = t % C;
    int n = t / C;

    float acc = b ? b[c] : 0.0f;
    int iw = ow * stride - pad;
    if (iw >= 0 && iw < W) {
        for (int k = 0; k < K; ++k) {
            int ih = oh * stride - pad + k * dil;
            if (ih >= 0 && ih < H)
                acc += x[((long long)(n * C + c) * H + ih) * W + iw] * w[c * K + k];
        }
    }
    y[idx] = acc;
}

torch::Tensor dw_column(torch::Tensor x, torch::Tensor w, torch::Tensor b, int stride, int pad, int dil)
{
    int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    int K = w.size(2);
    int OH = (H + 2 * pad - dil * (K - 1) - 1) / stride + 1;
    int OW = (W + 2 * pad - 1) / stride + 1;
    auto y = torch::empty({N, C, OH, OW}, x.options());
    long long total = y.numel();
    int threads = 256;
    int blocks = (total + threads - 1) / threads;
    dw_column_kernel<<<blocks, threads>>>(x.data_ptr<float>(), w.data_ptr<float>(),
        b.numel() ? b.data_ptr<float>() : nullptr, y.data_ptr<float>(),
        N, C, H, W, OH, OW, K, stride, pad, dil);
    return y;
}
"""

dw_cpp = "torch::Tensor dw_column(torch::Tensor x, torch::Tensor w, torch::Tensor b, int stride, int pad, int dil);"

dw_ext = load_inline(
    name="dw_column_ext",
    cpp_sources=dw_cpp,
    cuda_sources=dw_cuda,
    functions=["dw_column"],
    extra_cuda_cflag=["-O3", "-lineinfo"],
    verbose=True,
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, dilation: int = 1, bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size=(kernel_size, 1), stride=stride,
                                padding=padding, dilation=dilation, groups=in_channels, bias=bias)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b = self.conv2d.bias if self.conv2d.bias is not None else x.new_empty(0)
        return dw_ext.dw_column(x.contiguous(), self.conv2d.weight.contiguous(), b,
                                self.stride, self.padding, self.dilation)
