import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Simple model that performs Layer Normalization.
    """
    def __init__(self, normalized_shape: tuple):
        super(Model, self).__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ln(x)


batch_size = 16
features = 64
dim1 = 256
dim2 = 256


def get_inputs():
    x = torch.rand(batch_size, features, dim1, dim2)
    return [x]


def get_init_inputs():
    return [(features, dim1, dim2)]


# A row holds features*dim1*dim2 values (about 4.2 million), so one block per
# row would leave most of the GPU idle.  Three launches instead:
#   1. partial sums, many blocks per row
#   2. mean and rstd of each row
#   3. the normalisation, elementwise
cuda_src = r'''
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

static constexpr int THREADS = 256;

__inline__ __device__ double warp_sum(double v) {
    for (int off = 16; off > 0; off >>= 1)
        v += __shfl_down_sync(0xffffffffu, v, off);
    return v;
}

__device__ double block_sum(double v, double* sh) {
    const int lane = threadIdx.x & 31;
    const int wid  = threadIdx.x >> 5;
    v = warp_sum(v);
    __syncthreads();               // sh may still be in use by the previous call
    if (lane == 0) sh[wid] = v;
    __syncthreads();
    const int nw = blockDim.x >> 5;
    v = (threadIdx.x < nw) ? sh[lane] : 0.0;
    if (wid == 0) v = warp_sum(v);
    return v;                      // valid in thread 0
}

__global__ void ln_partial(const float* __restrict__ x, double* __restrict__ part,
                           int64_t len, int chunks)
{
    __shared__ double sh[32];
    const int row = blockIdx.y;
    const float* xr = x + (int64_t)row * len;
    double s = 0.0, q = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < len;
         i += (int64_t)gridDim.x * blockDim.x) {
        const double v = xr[i];
        s += v;
        q += v * v;
    }
    s = block_sum(s, sh);
    q = block_sum(q, sh);
    if (threadIdx.x == 0) {
        part[((int64_t)row * chunks + blockIdx.x) * 2 + 0] = s;
        part[((int64_t)row * chunks + blockIdx.x) * 2 + 1] = q;
    }
}

__global__ void ln_stats(const double* __restrict__ part, float* __restrict__ stats,
                         int64_t len, int chunks, float eps)
{
    __shared__ double sh[32];
    const int row = blockIdx.x;
    double s = 0.0, q = 0.0;
    for (int i = threadIdx.x; i < chunks; i += blockDim.x) {
        s += part[((int64_t)row * chunks + i) * 2 + 0];
        q += part[((int64_t)row * chunks + i) * 2 + 1];
    }
    s = block_sum(s, sh);
    q = block_sum(q, sh);
    if (threadIdx.x == 0) {
        const double mean = s / (double)len;
        double var = q / (double)len - mean * mean;
        if (var < 0.0) var = 0.0;
        stats[row * 2 + 0] = (float)mean;
        stats[row * 2 + 1] = (float)(1.0 / sqrt(var + (double)eps));
    }
}

__global__ void ln_apply(const float* __restrict__ x, const float* __restrict__ stats,
                         const float* __restrict__ gamma, const float* __restrict__ beta,
                         float* __restrict__ y, int64_t len)
{
    const int row = blockIdx.y;
    const float mean = stats[row * 2 + 0];
    const float rstd = stats[row * 2 + 1];
    const float* xr = x + (int64_t)row * len;
    float* yr = y + (int64_t)row * len;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < len;
         i += (int64_t)gridDim.x * blockDim.x)
        yr[i] = (xr[i] - mean) * rstd * gamma[i] + beta[i];
}

torch::Tensor layer_norm_fwd(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps)
{
    TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x must be float32");
    auto xc = x.contiguous();
    const int64_t len = gamma.numel();
    TORCH_CHECK(len > 0 && xc.numel() % len == 0, "normalized shape does not fit");
    const int64_t rows = xc.numel() / len;
    TORCH_CHECK(rows <= 65535, "too many rows for the grid");

    const int chunks = (int)std::min<int64_t>((len + THREADS - 1) / THREADS, 256);
    auto y = at::empty_like(xc);
    auto part = at::empty({rows, chunks, 2}, xc.options().dtype(torch::kFloat64));
    auto stats = at::empty({rows, 2}, xc.options());

    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    dim3 grid(chunks, (unsigned)rows);
    ln_partial<<<grid, THREADS, 0, stream>>>(xc.data_ptr<float>(), part.data_ptr<double>(), len, chunks);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    ln_stats<<<(unsigned)rows, THREADS, 0, stream>>>(part.data_ptr<double>(), stats.data_ptr<float>(),
                                                     len, chunks, (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    ln_apply<<<grid, THREADS, 0, stream>>>(xc.data_ptr<float>(), stats.data_ptr<float>(),
                                           gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                           y.data_ptr<float>(), len);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
'''

cpp_src = '''
torch::Tensor layer_norm_fwd(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);
'''

ln_module = load_inline(
    name="layer_norm_three_pass",
    cpp_sources=[cpp_src],
    cuda_sources=[cuda_src],
    functions=["layer_norm_fwd"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super(ModelNew, self).__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ln_module.layer_norm_fwd(x, self.ln.weight.contiguous(), self.ln.bias.contiguous(), self.ln.eps)
