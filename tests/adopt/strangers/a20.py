import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Convolution followed by bias, GELU and a scale.
    """
    def __init__(self, in_channels, out_channels, kernel_size, scale):
        super(Model, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.scale = scale

    def forward(self, x):
        x = self.conv(x)
        x = torch.nn.functional.gelu(x)
        return x * self.scale


batch_size = 64
in_channels = 8
out_channels = 32
height, width = 64, 64
kernel_size = 3
scale = 1.5


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, scale]


source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void conv_gelu_scale_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                       const float* __restrict__ b, float* __restrict__ y,
                                       int C, int H, int W, int OC, int K, float scale, int total)
{
    const int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < total) return;

    const int ox = idx % W;
    const int oy = (idx / W) % H;
    const int oc = (idx / (W * H)) % OC;
    const int n  = idx / (W * H * OC);
    const int pad = K / 2;

    float acc = b[oc];
    for (int c = 0; c < C; ++c)
        for (int ky = 0; ky < K; ++ky) {
            const int iy = oy + ky - pad;
            if (iy < 0 || iy >= H) continue;
            for (int kx = 0; kx < K; ++kx) {
                const int ix = ox + kx - pad;
                if (ix < 0 || ix >= W) continue;
                acc += x[((n * C + c) * H + iy) * W + ix] * w[((oc * C + c) * K + ky) * K + kx];
            }
        }
    acc = 0.5f * acc * (1.0f + erff(acc * 0.7071067811865476f));
    y[idx] = acc * scale;
}

torch::Tensor conv_gelu_scale(torch::Tensor x, torch::Tensor w, torch::Tensor b, double scale)
{
    TORCH_CHECK(x.is_contiguous() && w.is_contiguous(), "contiguous tensors expected");
    const int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const int OC = w.size(0), K = w.size(2);
    auto y = torch::empty({N, OC, H, W}, x.options());
    const int total = N * OC * H * W;
    conv_gelu_scale_kernel<<<(total + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
        C, H, W, OC, K, (float)scale, total);
    return y;
}
"""

fused = load_inline(
    name="conv_gelu_scale_ext",
    cpp_sources="torch::Tensor conv_gelu_scale(torch::Tensor x, torch::Tensor w, torch::Tensor b, double scale);",
    cuda_sources=source,
    functions=["conv_gelu_scale"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, scale):
        super(ModelNew, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.scale = scale

    def forward(self, x):
        return fused.conv_gelu_scale(x, self.conv.weight, self.conv.bias, self.scale)
