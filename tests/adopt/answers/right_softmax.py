import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    def forward(self, x):
        return F.softmax(x, dim=1)


batch_size = 4096
dim = 16384


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return []


softmax_source = '''
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cfloat>

__inline__ __device__ float warp_max(float v) {
    for (int offset = 16; offset > 0; offset >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
    return v;
}

__inline__ __device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset >>= 1)
        v += __shfl_xor_sync(0xffffffff, v, offset);
    return v;
}

__global__ void softmax_kernel(const float* __restrict__ in, float* __restrict__ out, int cols) {
    extern __shared__ float scratch[];
    const float* row = in + (size_t)blockIdx.x * cols;
    float* result = out + (size_t)blockIdx.x * cols;
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int warps = blockDim.x >> 5;
    float biggest = -FLT_MAX;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) biggest = fmaxf(biggest, row[i]);
    biggest = warp_max(biggest);
    if (lane == 0) scratch[warp] = biggest;
    __syncthreads();
    biggest = scratch[0];
    for (int i = 1; i < warps; ++i) biggest = fmaxf(biggest, scratch[i]);
    __syncthreads();
    float sum = 0.f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += expf(row[i] - biggest);
    sum = warp_sum(sum);
    if (lane == 0) scratch[warp] = sum;
    __syncthreads();
    sum = 0.f;
    for (int i = 0; i < warps; ++i) sum += scratch[i];
    for (int i = threadIdx.x; i < cols; i += blockDim.x) result[i] = expf(row[i] - biggest) / sum;
}

torch::Tensor softmax_cuda(torch::Tensor input) {
    auto output = torch::empty_like(input);
    int rows = input.size(0);
    int cols = input.size(1);
    int threads = 256;
    softmax_kernel<<<rows, threads, threads / 32 * sizeof(float)>>>(
        input.data_ptr<float>(), output.data_ptr<float>(), cols);
    return output;
}
'''

softmax_ext = load_inline(
    name='softmax_ext',
    cpp_sources='torch::Tensor softmax_cuda(torch::Tensor input);',
    cuda_sources=softmax_source,
    functions=['softmax_cuda'],
    verbose=True,
)


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()
        self.softmax = softmax_ext

    def forward(self, x):
        return self.softmax.softmax_cuda(x)
