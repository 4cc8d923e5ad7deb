import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs a 2D transposed convolution operation with asymmetric input and kernel size.
    """
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple, stride: tuple = (1, 1),
                 padding: tuple = (0, 0), bias: bool = False):
        super(Model, self).__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


# Test code
batch_size = 16
in_channels = 32
out_channels = 64
kernel_size = (3, 5)
height_in = 16
width_in = 32


def get_inputs():
    return [torch.randn(batch_size, in_channels, height_in, width_in)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]


ct2d_source = r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void ct2d_kernel(const float* __restrict__ x, const float* __restrict__ w,
                            const float* __restrict__ b, float* __restrict__ y,
                            int N, int C, int H, int W, int OC, int OH, int OW,
                            int KH, int KW, int sh, int sw, int ph, int pw)
{
    const int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= N * OC * OH * OW) return;
    const int ow = idx % OW;
    const int oh = (idx / OW) % OH;
    const int oc = (idx / (OW * OH)) % OC;
    const int n  = idx / (OW * OH * OC);

    float acc = b != nullptr ? b[oc] : 0.0f;
    for (int kh = 0; kh < KH; ++kh) {
        const int th = oh + ph - kh;
        if (th < 0 || th % sh) continue;
        const int ih = th / sh;
        if (ih >= H) continue;
        for (int kw = 0; kw < KW; ++kw) {
            const int tw = ow + pw - kw;
            if (tw < 0 || tw % sw) continue;
            const int iw = tw / sw;
            if (iw >= W) continue;
            for (int c = 0; c < C; ++c)
                acc += x[((n * C + c) * H + ih) * W + iw] * w[((c * OC + oc) * KH + kh) * KW + kw];
        }
    }
    y[idx] = acc;
}

torch::Tensor ct2d_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b,
                           int sh, int sw, int ph, int pw)
{
    CHECK_INPUT(x);
    CHECK_INPUT(w);

    const int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const int OC = w.size(1), KH = w.size(2), KW = w.size(3);
    const int OH = (H - 1) * sh - 2 * ph + KH;
    const int OW = (W - 1) * sw - 2 * pw + KW;
    auto y = torch::empty({N, OC, OH, OW}, x.options());
    const int total = N * OC * OH * OW;
    ct2d_kernel<<<(total + 255) / 256, 256>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.numel() ? b.data_ptr<float>() : nullptr,
        y.data_ptr<float>(), N, C, H, W, OC, OH, OW, KH, KW, sh, sw, ph, pw);
    return y;
}
"""

ct2d_cpp = """
torch::Tensor ct2d_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, int sh, int sw, int ph, int pw);
"""

ct2d = load_inline(
    name="ct2d_ext",
    cpp_sources=ct2d_cpp,
    cuda_sources=ct2d_source,
    functions=["ct2d_forward"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple, stride: tuple = (1, 1),
                 padding: tuple = (0, 0), bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.conv_transpose2d
        b = m.bias if m.bias is not None else x.new_empty(0)
        return ct2d.ct2d_forward(x.contiguous(), m.weight.contiguous(), b,
                                 m.stride[0], m.stride[1], m.padding[0], m.padding[1])
