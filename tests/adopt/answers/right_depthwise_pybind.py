import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def __init__(self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, bias: bool = False):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size, stride=stride, padding=padding,
                                groups=in_channels, bias=bias)

    def forward(self, x):
        return self.conv2d(x)


batch_size = 16
in_channels = 64
kernel_size = 3
width = 512
height = 512
stride = 1
padding = 0


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, kernel_size, stride, padding]


DEPTHWISE = r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)

__global__ void depthwise(const float* x, const float* w, const float* b, float* y, int C, int H, int W,
                          int R, int P, int Q, int stride, int pad) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y * blockDim.y + threadIdx.y;
    int nc = blockIdx.z;
    if (p >= P || q >= Q) return;
    int c = nc % C;
    float acc = b != nullptr ? b[c] : 0.f;
    for (int r = 0; r < R; r++) {
        for (int s = 0; s < R; s++) {
            int h = p * stride + r - pad;
            int v = q * stride + s - pad;
            if (h >= 0 && h < H && v >= 0 && v < W)
                acc += x[((long long)nc * H + h) * W + v] * w[(c * R + r) * R + s];
        }
    }
    y[((long long)nc * P + p) * Q + q] = acc;
}

torch::Tensor forward(torch::Tensor x, torch::Tensor w, torch::optional<torch::Tensor> b, int stride, int pad) {
    CHECK_INPUT(x);
    CHECK_INPUT(w);
    int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3), R = w.size(2);
    int P = (H + 2 * pad - R) / stride + 1;
    int Q = (W + 2 * pad - R) / stride + 1;
    auto y = torch::empty({N, C, P, Q}, x.options());
    const float* bias = nullptr;
    if (b.has_value()) bias = b->data_ptr<float>();
    dim3 threads(32, 8);
    dim3 blocks((Q + 31) / 32, (P + 7) / 8, N * C);
    depthwise<<<blocks, threads>>>(x.data_ptr<float>(), w.data_ptr<float>(), bias, y.data_ptr<float>(),
                                   C, H, W, R, P, Q, stride, pad);
    cudaDeviceSynchronize();
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward, "Depthwise convolution (CUDA)", py::arg("x"), py::arg("w"), py::arg("b"),
          py::arg("stride") = 1, py::arg("pad") = 0);
}
"""

depthwise = load_inline(name="depthwise_pybind", cpp_sources="", cuda_sources=DEPTHWISE)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, bias: bool = False):
        super().__init__()
        self.stride = stride
        self.padding = padding
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size, stride=stride, padding=padding,
                                groups=in_channels, bias=bias)

    def forward(self, x):
        return depthwise.forward(x.contiguous(), self.conv2d.weight, self.conv2d.bias, stride=self.stride,
                                 pad=self.padding)
