// The problem, the entry points and small helpers that every rung needs. Every kernels/*.cu
// includes this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>  // printf, also in a kernel
#include <cuda_runtime.h>

// A 2-D convolution, forward, cross-correlation, as in torch.nn.functional.conv2d:
//   y[n,k,p,q] = bias[k] + sum over c,r,s of  x[n, group(k)*C/groups + c, h, w] * w[k,c,r,s]
//   h = p*stride_h - pad_h + r*dilation_h,   w = q*stride_w - pad_w + s*dilation_w
// then, if relu is 1, max(y, 0), where NaN stays NaN as in torch.relu.
// Its gradients are two more sums of the same products, with dx, dw and dy shaped as x, w and y:
//   dx[n,c,h,w] = sum over k,r,s and the p,q that read h,w of  dy[n,k,p,q] * w[k,c,r,s]
//   dw[k,c,r,s] = sum over n,p,q of  dy[n,k,p,q] * x[n, group(k)*C/groups + c, h, w]
// x: (N, C, H, W)   w: (K, C/groups, R, S)   y: (N, K, P, Q), in this memory order and in float32
// unless the header's `tensors:` says otherwise. Each dimension fits an int; products of them need
// int64_t.
struct ConvProblem {
    int N, C, H, W;
    int K, R, S;
    int P, Q;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int dilation_h, dilation_w;
    int groups;
    int relu;   // 1: y is max(y, 0), and NaN stays NaN; 0 unless the header has relu in `epilogue:`
};

// The entry points of a kernel file. convlab finds them by name. CONTRACT.md says more.
//
//   CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem,
//       const float* x, const float* w, const float* bias,        // bias may be null
//       float* y, void* workspace, size_t workspace_bytes, cudaStream_t stream);
//     Launches on `stream` and allocates nothing. Returns null, or an error text. Workspace and
//     plan are 256-byte aligned, y is 16-byte aligned; x, w and bias are aligned to their type.
//
//   CONVLAB_ENTRY const char* conv2d_data_gradient(const ConvProblem* problem,
//       const float* dy, const float* w, float* dx,
//       void* workspace, size_t workspace_bytes, cudaStream_t stream);
//   CONVLAB_ENTRY const char* conv2d_weight_gradient(const ConvProblem* problem,
//       const float* x, const float* dy, float* dw,
//       void* workspace, size_t workspace_bytes, cudaStream_t stream);
//     In place of conv2d, in a file whose header says `computes: data gradient` or `computes:
//     weight gradient`. `problem` is the forward convolution, without bias and ReLU.
//
//   CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t limit);
//     Optional. Returns the bytes of workspace that the problem needs, at most `limit`. If `limit`
//     is too little to work at all, it returns the least that is enough.
//
//   CONVLAB_ENTRY size_t conv2d_plan(const ConvProblem* problem);
//   CONVLAB_ENTRY const char* conv2d_prepare(const ConvProblem* problem, const float* w,
//                                            void* plan, cudaStream_t stream);
//     Optional, both or none. conv2d_plan returns a number of bytes, and conv2d_prepare lays out a
//     filter in as many bytes, once. conv2d then gets `plan` in place of w. If conv2d_plan returns
//     0, conv2d gets w itself.
#define CONVLAB_ENTRY extern "C" __attribute__((visibility("default")))

// a / b rounded up, for a >= 0 and b > 0. It cannot overflow, unlike (a + b - 1) / b.
template <typename T>
__host__ __device__ constexpr T ceil_div(T a, T b) { return a / b + (a % b != 0); }

template <typename T>
__host__ __device__ constexpr T min_of(T a, T b) { return a < b ? a : b; }

template <typename T>
__host__ __device__ constexpr T max_of(T a, T b) { return a < b ? b : a; }

// Applies the ReLU, if any, to a sum. fmaxf(sum, 0) would turn NaN into 0.
__device__ __forceinline__ float activated(const ConvProblem& conv, float sum) {
    return conv.relu && sum < 0.0f ? 0.0f : sum;
}

// Returns the error text of the last launch, or null. Every entry point ends with it.
inline const char* launch_error() {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// The largest grid: 2^31 - 1 blocks along x, 65535 along y and z.
constexpr int kMaxGrid = 65535;

// Returns an error text if a grid's x cannot hold that many blocks, else null.
inline const char* too_many(int64_t blocks) {
    return blocks > INT32_MAX ? "more blocks than a grid has (2^31); use 02_im2col_gemm" : nullptr;
}

// Returns a grid of `blocks` blocks for each image. x counts the blocks, y and z the images; see
// image_of_block.
inline dim3 grid_of_images(int64_t blocks, int images) {
    const int rows = min_of(images, kMaxGrid);
    return dim3(unsigned(blocks), rows, ceil_div(images, rows));
}

// Returns the image n of a block of such a grid. It may be past the last image.
__device__ inline int64_t image_of_block() {
    return int64_t(blockIdx.z) * gridDim.y + blockIdx.y;
}

// The current device.
struct ThisDevice {
    int smem, smem_sm;   // bytes of shared memory: of a block at most; of a multiprocessor
    int sms;             // multiprocessors
    const char* error;   // an error text, or null
};
inline ThisDevice this_device() {
    ThisDevice here = {};
    int device = 0;
    cudaError_t status = cudaGetDevice(&device);
    auto ask = [&](int* value, cudaDeviceAttr attribute) {
        if (status == cudaSuccess) status = cudaDeviceGetAttribute(value, attribute, device);
    };
    ask(&here.smem, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    ask(&here.smem_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ask(&here.sms, cudaDevAttrMultiProcessorCount);
    if (status != cudaSuccess) here.error = cudaGetErrorString(status);
    return here;
}

// Allows a kernel this much dynamic shared memory, which is required above 48 KB. Returns null, or
// an error text if the device has less.
template <typename Kernel>
const char* ask_for_shared_memory(Kernel* kernel, int bytes) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) ==
        cudaSuccess) return nullptr;
    cudaGetLastError();   // so that the next launch does not report it
    return "a block's tiles do not fit into shared memory; make them smaller, or use 01_direct";
}
