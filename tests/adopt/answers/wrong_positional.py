import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

TILE = 16

source = f"#define TILE {TILE}\n" + """
template <int T>
__global__ void matmul_kernel(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float As[T][T];
    __shared__ float Bs[T][T];
    int row = blockIdx.y * T + threadIdx.y;
    int col = blockIdx.x * T + threadIdx.x;
    float acc = 0.0f;
    for (int t = 0; t < (K + T - 1) / T; ++t) {
        int k = t * T;
        As[threadIdx.y][threadIdx.x] = (row < M && k + threadIdx.x < K) ? A[row * K + k + threadIdx.x] : 0.0f;
        Bs[threadIdx.y][threadIdx.x] = (col < N && k + threadIdx.y < K) ? B[(k + threadIdx.y) * N + col] : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < T; ++i) acc += As[threadIdx.y][i] * Bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = acc;
}

torch::Tensor matmul(torch::Tensor A, torch::Tensor B) {
    const auto M = A.size(0);
    const auto K = A.size(1);
    const auto N = B.size(1);
    auto C = torch::zeros({M, N}, torch::TensorOptions().dtype(torch::kFloat32).device(A.device()));
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    matmul_kernel<TILE><<<grid, block>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) {
        printf("CUDA error: %s\\n", cudaGetErrorString(err));
    }
    return C;
}
"""

ext = load_inline("matmul_tiled", "torch::Tensor matmul(torch::Tensor A, torch::Tensor B);", source, ["matmul"])


class Model(nn.Module):
    def forward(self, A, B):
        return torch.matmul(A, B)


class ModelNew(nn.Module):
    def forward(self, A, B):
        return ext.matmul(A, B)


M = 1024
K = 4096
N = 2048


def get_inputs():
    A = torch.rand(M, K)
    B = torch.rand(K, N)
    return [A, B]


def get_init_inputs():
    return []
