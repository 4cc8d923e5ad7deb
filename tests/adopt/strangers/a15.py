import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs a standard 2D convolution operation with an asymmetric input and a square kernel.
    """
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = False):
        super(Model, self).__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, (kernel_size, kernel_size), stride=stride,
                                padding=padding, dilation=dilation, groups=groups, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


# Test code
batch_size = 16
in_channels = 3
out_channels = 64
kernel_size = 3
width = 256
height = 128  # Asymmetric input


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]


conv_src = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define IC 3
#define OC 64
#define KS 3
#define IH 128
#define IW 256
#define OH 126
#define OW 254
#define PX 2          // neighbouring outputs of one thread, 254 = 127 * 2

__constant__ float c_w[OC * IC * KS * KS];

__global__ __launch_bounds__(128)
void conv3x3_kernel(const float* __restrict__ x, float* __restrict__ y)
{
    const int t = threadIdx.x;
    if (t >= OW / PX) return;
    const int oy = blockIdx.x;
    const int n = blockIdx.y;
    const int oc0 = blockIdx.z * 8;
    const int ox = t * PX;

    float acc[8][PX];
    #pragma unroll
    for (int o = 0; o < 8; ++o) { acc[o][0] = 0.f; acc[o][1] = 0.f; }

    #pragma unroll
    for (int c = 0; c < IC; ++c) {
        #pragma unroll
        for (int ky = 0; ky < KS; ++ky) {
            const float2* row = reinterpret_cast<const float2*>(
                x + ((size_t)(n * IC + c) * IH + oy + ky) * IW + ox);
            const float2 a = row[0];
            const float2 b = row[1];
            const float v[4] = {a.x, a.y, b.x, b.y};
            #pragma unroll
            for (int o = 0; o < 8; ++o) {
                #pragma unroll
                for (int kx = 0; kx < KS; ++kx) {
                    const float w = c_w[(((oc0 + o) * IC + c) * KS + ky) * KS + kx];
                    acc[o][0] = fmaf(v[kx], w, acc[o][0]);
                    acc[o][1] = fmaf(v[kx + 1], w, acc[o][1]);
                }
            }
        }
    }
    #pragma unroll
    for (int o = 0; o < 8; ++o) {
        float2* out = reinterpret_cast<float2*>(y + ((size_t)(n * OC + oc0 + o) * OH + oy) * OW + ox);
        *out = make_float2(acc[o][0], acc[o][1]);
    }
}

torch::Tensor conv3x3(torch::Tensor x, torch::Tensor w)
{
    const int N = x.size(0);
    auto y = torch::empty({N, OC, OH, OW}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    cudaMemcpyToSymbolAsync(c_w, w.data_ptr<float>(), sizeof(float) * OC * IC * KS * KS, 0,
                            cudaMemcpyDeviceToDevice, stream);
    dim3 grid(OH, N, OC / 8);
    conv3x3_kernel<<<grid, 128, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>());
    return y;
}
"""

conv3x3_ext = load_inline(
    name="conv3x3_const_ext",
    cpp_sources="torch::Tensor conv3x3(torch::Tensor x, torch::Tensor w);",
    cuda_sources=conv_src,
    functions=["conv3x3"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, (kernel_size, kernel_size), stride=stride,
                                padding=padding, dilation=dilation, groups=groups, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return conv3x3_ext.conv3x3(x.contiguous(), self.conv2d.weight.contiguous())
