import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Performs a transposed 1D convolution operation.
    """
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 output_padding: int = 0, groups: int = 1, bias: bool = False):
        super(Model, self).__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, output_padding=output_padding,
                                                   groups=groups, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d_transpose(x)


# Test code
batch_size = 16
in_channels = 64
out_channels = 32
kernel_size = 3
length = 128


def get_inputs():
    return [torch.randn(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]


cuda_code = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void conv_transpose1d_kernel(
    const float* __restrict__ input,   // [N, IC, L]
    const float* __restrict__ weight,  // [OC, IC, K]
    const float* __restrict__ bias,
    float* __restrict__ output,        // [N, OC, OL]
    int N, int IC, int L, int OC, int OL, int K, int stride, int padding)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= N * OC * OL) return;
    int ol = idx % OL;
    int oc = (idx / OL) % OC;
    int n  = idx / (OL * OC);

    float value = bias ? bias[oc] : 0.0f;
    for (int ic = 0; ic < IC; ++ic) {
        for (int k = 0; k < K; ++k) {
            int pos = ol + padding - k;
            if (pos >= 0 && pos % stride == 0) {
                int il = pos / stride;
                if (il < L) {
                    value += input[(n * IC + ic) * L + il] * weight[(oc * IC + ic) * K + k];
                }
            }
        }
    }
    output[idx] = value;
}

torch::Tensor conv_transpose1d_cuda(torch::Tensor input, torch::Tensor weight, torch::Tensor bias, int oc,
                                    int stride, int padding, int output_padding)
{
    int N = input.size(0);
    int IC = input.size(1);
    int L = input.size(2);
    int K = weight.size(2);
    int OL = (L - 1) * stride - 2 * padding + K + output_padding;
    auto output = torch::zeros({N, oc, OL}, input.options());
    int total = N * oc * OL;
    conv_transpose1d_kernel<<<(total + 255) / 256, 256>>>(
        input.data_ptr<float>(), weight.data_ptr<float>(),
        bias.numel() ? bias.data_ptr<float>() : nullptr,
        output.data_ptr<float>(), N, IC, L, oc, OL, K, stride, padding);
    return output;
}
"""

cpp_code = """
torch::Tensor conv_transpose1d_cuda(torch::Tensor input, torch::Tensor weight, torch::Tensor bias, int oc,
                                    int stride, int padding, int output_padding);
"""

ct1d = load_inline(
    name="conv_transpose1d_ext",
    cpp_sources=cpp_code,
    cuda_sources=cuda_code,
    functions=["conv_transpose1d_cuda"],
    verbose=True,
    extra_cflags=[""],
    extra_ldflags=[""],
)


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 output_padding: int = 0, groups: int = 1, bias: bool = False):
        super(ModelNew, self).__init__()
        assert groups == 1, "only groups=1 is implemented"
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, output_padding=output_padding,
                                                   groups=groups, bias=bias)
        self.out_channels = out_channels
        self.stride = stride
        self.padding = padding
        self.output_padding = output_padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.conv1d_transpose
        bias = m.bias if m.bias is not None else torch.empty(0, device=x.device)
        return ct1d.conv_transpose1d_cuda(x.contiguous(), m.weight.contiguous(), bias, self.out_channels,
                                          self.stride, self.padding, self.output_padding)
