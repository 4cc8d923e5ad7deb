import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Simple model that performs sum reduction over a specified dimension.
    """
    def __init__(self, dim: int):
        super(Model, self).__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sum(x, dim=self.dim, keepdim=True)


batch_size = 16
dim1 = 256
dim2 = 256
reduce_dim = 1


def get_inputs():
    x = torch.randn(batch_size, dim1, dim2)
    return [x]


def get_init_inputs():
    return [reduce_dim]


_cuda = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

// x is seen as [outer, len, inner].

// inner == 1: one warp per row
__global__ void sum_last(const float* __restrict__ x, float* __restrict__ y, int64_t outer, int64_t len)
{
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    const int lane = threadIdx.x & 31;
    if (row >= outer) return;            // whole warps leave together
    float s = 0.f;
    for (int64_t i = lane; i < len; i += 32)
        s += x[row * len + i];
    for (int off = 16; off; off >>= 1)
        s += __shfl_down_sync(0xffffffff, s, off);
    if (lane == 0) y[row] = s;
}

// inner > 1: 32 neighbouring columns per block, 8 slices of the reduced dim
__global__ void sum_middle(const float* __restrict__ x, float* __restrict__ y,
                           int64_t outer, int64_t len, int64_t inner)
{
    __shared__ float sh[8][33];
    const int64_t col_blocks = (inner + 31) / 32;
    const int64_t o = blockIdx.x / col_blocks;
    const int64_t col = (blockIdx.x % col_blocks) * 32 + threadIdx.x;

    float s = 0.f;
    if (col < inner) {
        const float* p = x + o * len * inner + col;
        for (int64_t i = threadIdx.y; i < len; i += 8)
            s += p[i * inner];
    }
    sh[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    for (int h = 4; h > 0; h >>= 1) {
        if (threadIdx.y < h)
            sh[threadIdx.y][threadIdx.x] += sh[threadIdx.y + h][threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && col < inner)
        y[o * inner + col] = sh[0][threadIdx.x];
}

torch::Tensor sum_dim(torch::Tensor x, int64_t dim)
{
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == at::kFloat, "float32 CUDA tensor expected");
    const int64_t nd = x.dim();
    if (dim < 0) dim += nd;
    TORCH_CHECK(dim >= 0 && dim < nd, "dim out of range");
    const at::cuda::OptionalCUDAGuard guard(x.device());
    auto xc = x.contiguous();

    int64_t outer = 1, inner = 1;
    for (int64_t i = 0; i < dim; ++i) outer *= xc.size(i);
    for (int64_t i = dim + 1; i < nd; ++i) inner *= xc.size(i);
    const int64_t len = xc.size(dim);

    auto shape = xc.sizes().vec();
    shape[dim] = 1;
    auto y = at::empty(shape, xc.options());
    if (y.numel() == 0) return y;

    cudaStream_t st = at::cuda::getCurrentCUDAStream().stream();
    if (inner == 1) {
        const int warps = 8;
        sum_last<<<(unsigned)((outer + warps - 1) / warps), warps * 32, 0, st>>>(
            xc.data_ptr<float>(), y.data_ptr<float>(), outer, len);
    } else {
        const int64_t blocks = outer * ((inner + 31) / 32);
        sum_middle<<<(unsigned)blocks, dim3(32, 8), 0, st>>>(
            xc.data_ptr<float>(), y.data_ptr<float>(), outer, len, inner);
    }
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("sum_dim", &sum_dim, "sum over one dimension, keepdim");
}
"""

sum_ext = load_inline(name="sum_dim_ext", cpp_sources="", cuda_sources=_cuda, extra_cuda_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super(ModelNew, self).__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum_ext.sum_dim(x, self.dim)
