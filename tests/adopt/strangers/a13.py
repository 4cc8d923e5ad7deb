import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs a standard 1D convolution operation with asymmetric input and a square kernel, potentially dilated and strided.
    """
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, dilation: int = 1, bias: bool = False):
        super(Model, self).__init__()
        self.conv1d = nn.Conv1d(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d(x)


# Test code
batch_size = 16
in_channels = 3
out_channels = 64
kernel_size = 3
length = 256
stride = 3
dilation = 4


def get_inputs():
    return [torch.randn(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, dilation]


cpp = r"""
#include <torch/extension.h>

void conv1d_launch(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                   at::Tensor& y, int stride, int dilation);

at::Tensor forward(at::Tensor x, at::Tensor w, py::object bias, int stride, int dilation)
{
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.dim() == 3, "x must be [N, C, L], got ", x.dim(), " dims");
    TORCH_CHECK(w.size(1) == x.size(1), "channels differ");
    x = x.contiguous();
    w = w.contiguous();
    at::Tensor b;
    if (!bias.is_none())
        b = bias.cast<at::Tensor>().contiguous();

    const int64_t L = x.size(2), K = w.size(2);
    const int64_t reach = (int64_t)dilation * (K - 1) + 1;
    TORCH_CHECK(L >= reach, "the input is shorter than the dilated kernel");
    const int64_t OL = (L - reach) / stride + 1;
    at::Tensor y = at::empty({x.size(0), w.size(0), OL}, x.options());
    conv1d_launch(x, w, b, y, stride, dilation);
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("forward", &forward, "strided and dilated conv1d",
          py::arg("x"), py::arg("w"), py::arg("bias") = py::none(),
          py::arg("stride") = 1, py::arg("dilation") = 1);
}
"""

cuda = r"""
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>

#define OC_TILE 8

template <typename T>
__global__ void __launch_bounds__(128)
conv1d_kernel(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ b, T* __restrict__ y,
              int C, int L, int OC, int OL, int K, int stride, int dilation)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x;
    const int oc0 = blockIdx.y * OC_TILE;
    const int n = blockIdx.z;
    if (o >= OL) return;

    T acc[OC_TILE];
#pragma unroll
    for (int j = 0; j < OC_TILE; ++j)
        acc[j] = (b != nullptr && oc0 + j < OC) ? b[oc0 + j] : T(0);

    const T* xn = x + (long)n * C * L + (long)o * stride;
    for (int c = 0; c < C; ++c) {
        for (int k = 0; k < K; ++k) {
            const T v = xn[(long)c * L + (long)k * dilation];
#pragma unroll
            for (int j = 0; j < OC_TILE; ++j) {
                const int oc = oc0 + j < OC ? oc0 + j : OC - 1;
                acc[j] += v * w[((long)oc * C + c) * K + k];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < OC_TILE; ++j)
        if (oc0 + j < OC)
            y[((long)n * OC + oc0 + j) * OL + o] = acc[j];
}

void conv1d_launch(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                   at::Tensor& y, int stride, int dilation)
{
    const int N = x.size(0), C = x.size(1), L = x.size(2);
    const int OC = w.size(0), K = w.size(2), OL = y.size(2);
    dim3 block(128);
    dim3 grid((OL + 127) / 128, (OC + OC_TILE - 1) / OC_TILE, N);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "conv1d", [&] {
        conv1d_kernel<scalar_t><<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), w.data_ptr<scalar_t>(),
            b.defined() ? b.data_ptr<scalar_t>() : nullptr,
            y.data_ptr<scalar_t>(), C, L, OC, OL, K, stride, dilation);
    });
    AT_CUDA_CHECK(cudaGetLastError());
}
"""

_mod = load_inline(name="conv1d_own_module", cpp_sources=[cpp], cuda_sources=[cuda], with_cuda=True,
                   extra_cuda_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, dilation: int = 1, bias: bool = False):
        super(ModelNew, self).__init__()
        self.conv1d = nn.Conv1d(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _mod.forward(x, self.conv1d.weight, self.conv1d.bias,
                            stride=self.conv1d.stride[0], dilation=self.conv1d.dilation[0])
