import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class Model(nn.Module):
    """
    Simple model that performs a matrix multiplication, adds a bias term, and applies ReLU.
    """
    def __init__(self, in_features, out_features, bias_shape):
        super(Model, self).__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = self.gemm(x)
        x = x + self.bias
        x = torch.relu(x)
        return x


batch_size = 128
in_features = 1024
out_features = 512
bias_shape = (out_features,)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, bias_shape]


gemm_src = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__((BM / TM) * (BN / TN))
linear_bias_relu_kernel(const float* __restrict__ X,    // [M, K]
                        const float* __restrict__ Wt,   // [N, K]
                        const float* __restrict__ bias, // [N]
                        float* __restrict__ Y,          // [M, N]
                        int M, int N, int K)
{
    constexpr int NT = (BM / TM) * (BN / TN);
    static_assert((BM * BK) % NT == 0 && (BN * BK) % NT == 0, "tiles must split evenly");

    __shared__ float xs[BK][BM + 1];
    __shared__ float ws[BK][BN + 1];

    const int m0 = blockIdx.y * BM;
    const int n0 = blockIdx.x * BN;
    const int tid = threadIdx.x;
    const int tr = tid / (BN / TN);
    const int tc = tid % (BN / TN);

    float acc[TM][TN] = {};

    for (int k0 = 0; k0 < K; k0 += BK) {
        #pragma unroll
        for (int i = tid; i < BM * BK; i += NT) {
            const int m = i / BK, k = i % BK;
            xs[k][m] = (m0 + m < M && k0 + k < K) ? X[(size_t)(m0 + m) * K + k0 + k] : 0.f;
        }
        #pragma unroll
        for (int i = tid; i < BN * BK; i += NT) {
            const int n = i / BK, k = i % BK;
            ws[k][n] = (n0 + n < N && k0 + k < K) ? Wt[(size_t)(n0 + n) * K + k0 + k] : 0.f;
        }
        __syncthreads();

        #pragma unroll
        for (int k = 0; k < BK; ++k) {
            float rx[TM], rw[TN];
            #pragma unroll
            for (int i = 0; i < TM; ++i) rx[i] = xs[k][tr * TM + i];
            #pragma unroll
            for (int j = 0; j < TN; ++j) rw[j] = ws[k][tc * TN + j];
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                #pragma unroll
                for (int j = 0; j < TN; ++j)
                    acc[i][j] = fmaf(rx[i], rw[j], acc[i][j]);
        }
        __syncthreads();
    }

    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = m0 + tr * TM + i;
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int n = n0 + tc * TN + j;
            if (m < M && n < N)
            {
                const float v = acc[i][j] + bias[n];
                Y[(size_t)m * N + n] = v < 0.f ? 0.f : v;
            }
        }
    }
}

torch::Tensor linear_bias_relu(torch::Tensor x, torch::Tensor w, torch::Tensor bias)
{
    TORCH_CHECK(x.is_cuda(), "x is not on the GPU");
    TORCH_CHECK(x.dim() == 2 && w.dim() == 2, "2-D tensors expected");
    TORCH_CHECK(x.size(1) == w.size(1), "in_features differ: ", x.size(1), " and ", w.size(1));
    TORCH_CHECK(bias.numel() == w.size(0), "bias must hold one value per output feature");

    x = x.contiguous();
    w = w.contiguous();
    bias = bias.contiguous();
    const int M = x.size(0), K = x.size(1), N = w.size(0);
    auto y = at::empty({M, N}, x.options());

    constexpr int BM = 32, BN = 32, BK = 32, TM = 2, TN = 2;
    dim3 grid((N + BN - 1) / BN, (M + BM - 1) / BM);
    dim3 block((BM / TM) * (BN / TN));
    linear_bias_relu_kernel<BM, BN, BK, TM, TN><<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), M, N, K);
    return y;
}
"""

gemm_decl = "torch::Tensor linear_bias_relu(torch::Tensor x, torch::Tensor w, torch::Tensor bias);"

gemm_ext = load_inline(
    name="linear_bias_relu_ext",
    cpp_sources=gemm_decl,
    cuda_sources=gemm_src,
    functions=["linear_bias_relu"],
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, bias_shape):
        super(ModelNew, self).__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        return gemm_ext.linear_bias_relu(x, self.gemm.weight, self.bias)
