import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Simple model that performs a Softmax activation.
    """
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


batch_size = 16
dim = 16384


def get_inputs():
    x = torch.randn(batch_size, dim)
    return [x]


def get_init_inputs():
    return []


softmax_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <ATen/cuda/CUDAContext.h>

struct MS { float m; float s; };   // running maximum, running sum of exp(x - m)

__device__ __forceinline__ MS merge(MS a, MS b)
{
    const float m = fmaxf(a.m, b.m);
    MS r;
    r.m = m;
    // a side that holds nothing has m = -inf and s = 0
    r.s = (a.s != 0.f ? a.s * __expf(a.m - m) : 0.f) + (b.s != 0.f ? b.s * __expf(b.m - m) : 0.f);
    return r;
}

__device__ __forceinline__ MS warp_merge(MS v)
{
    #pragma unroll
    for (int off = 16; off > 0; off >>= 1) {
        MS o;
        o.m = __shfl_xor_sync(0xffffffff, v.m, off);
        o.s = __shfl_xor_sync(0xffffffff, v.s, off);
        v = merge(v, o);
    }
    return v;
}

template <int THREADS>
__global__ __launch_bounds__(THREADS)
void softmax_online(const float* __restrict__ x, float* __restrict__ y, int cols)
{
    __shared__ MS sh[THREADS / 32];
    const float* xr = x + (size_t)blockIdx.x * cols;
    float* yr = y + (size_t)blockIdx.x * cols;

    MS v;
    v.m = -CUDART_INF_F;
    v.s = 0.f;
    for (int i = threadIdx.x; i < cols; i += THREADS) {
        const float t = xr[i];
        if (t > v.m) {
            v.s = v.s * __expf(v.m - t) + 1.f;
            v.m = t;
        } else if (t != -CUDART_INF_F) {
            v.s += __expf(t - v.m);
        }
    }

    v = warp_merge(v);
    const int lane = threadIdx.x % 32;
    const int wid = threadIdx.x / 32;
    if (lane == 0) sh[wid] = v;
    __syncthreads();
    if (lane < THREADS / 32) {
        v = sh[lane];
    } else {
        v.m = -CUDART_INF_F;
        v.s = 0.f;
    }
    v = warp_merge(v);     // every warp ends with the whole row's values

    const float inv = 1.f / v.s;
    for (int i = threadIdx.x; i < cols; i += THREADS)
        yr[i] = __expf(xr[i] - v.m) * inv;
}

torch::Tensor softmax_rows(torch::Tensor x)
{
    TORCH_CHECK(x.is_cuda(), "x must be on CUDA");
    TORCH_CHECK(x.dim() == 2, "x must be 2-D");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x must be float32");
    auto xc = x.contiguous();
    auto y = torch::empty_like(xc);
    const int rows = xc.size(0);
    const int cols = xc.size(1);
    softmax_online<1024><<<rows, 1024, 0, at::cuda::getCurrentCUDAStream()>>>(
        xc.data_ptr<float>(), y.data_ptr<float>(), cols);
    return y;
}
"""

softmax_mod = load_inline(
    name="softmax_rows_ext",
    cpp_sources="torch::Tensor softmax_rows(torch::Tensor x);",
    cuda_sources=softmax_source,
    functions=["softmax_rows"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()
        self.softmax_mod = softmax_mod

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.softmax_mod.softmax_rows(x)
