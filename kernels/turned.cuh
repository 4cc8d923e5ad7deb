// A data gradient with stride 1 is a convolution of dy, with another filter: 20c and 20d use it.
//
// dx[n,c,h,w] adds dy[n,k,p,q] * w[k,c,r,s] over all k, r, s with p = h + pad_h - r * dilation_h. Count
// the taps backwards, r' = R - 1 - r, and this is p = h - pad' + r' * dilation_h, as in a convolution
// with padding pad' = dilation_h * (R - 1) - pad_h. So three things change: the filter is turned by 180
// degrees, input and output channels change places, and the padding is what remains.
#pragma once
#include "convlab.cuh"
#include "tensor.cuh"

// The convolution of dy that is the data gradient of `conv`, whose strides are 1.
inline ConvProblem turned(const ConvProblem& conv) {
    ConvProblem other = conv;
    other.C = conv.K, other.H = conv.P, other.W = conv.Q;
    other.K = conv.C, other.P = conv.H, other.Q = conv.W;
    other.pad_h = conv.dilation_h * (conv.R - 1) - conv.pad_h;
    other.pad_w = conv.dilation_w * (conv.S - 1) - conv.pad_w;
    return other;
}

// Writes the turned filter, (C, K/groups, R, S), from w, (K, C/groups, R, S). It is small: a few
// microseconds.
template <typename T>
__global__ void __launch_bounds__(256)
turn_filter(ConvProblem conv, const T* __restrict__ g_w, T* __restrict__ g_turned) {
    const int C_group = conv.C / conv.groups, K_group = conv.K / conv.groups;
    const int taps = conv.R * conv.S;
    const int64_t count = int64_t(conv.C) * K_group * taps;
    const int64_t first = int64_t(blockIdx.x) * 256 + threadIdx.x;
    for (int64_t i = first; i < count; i += int64_t(gridDim.x) * 256) {
        const int tap = int(i % taps);
        const int k = int(i / taps % K_group);   // in the group
        const int c = int(i / taps / K_group);
        const int64_t filter = int64_t(c / C_group) * K_group + k;
        g_turned[i] = g_w[(filter * C_group + c % C_group) * taps + taps - 1 - tap];
    }
}

// Bytes of the turned filter in the workspace, a multiple of 256.
template <typename T>
size_t turned_bytes(const ConvProblem& conv) {
    const int64_t count = int64_t(conv.C) * (conv.K / conv.groups) * conv.R * conv.S;
    return size_t(ceil_div(count * int64_t(sizeof(T)), int64_t(256)) * 256);
}

// Turns the filter into the start of the workspace, and computes dx by a rung for convolutions.
template <typename T, typename Forward>
const char* data_gradient_by(Forward* forward, const ConvProblem& conv, const T* dy, const T* w,
                             T* dx, void* workspace, size_t workspace_bytes,
                             cudaStream_t stream) {
    if (conv.N == 0) return nullptr;
    const size_t own = turned_bytes<T>(conv);
    if (workspace_bytes < own) return "the workspace is too small for the turned filter";
    T* g_turned = static_cast<T*>(workspace);
    const int64_t count = int64_t(own / sizeof(T));
    const int blocks = int(min_of(ceil_div(count, int64_t(256)), int64_t(1024)));
    turn_filter<T><<<blocks, 256, 0, stream>>>(conv, w, g_turned);
    const ConvProblem other = turned(conv);
    char* rest = static_cast<char*>(workspace) + own;
    return forward(&other, dy, g_turned, nullptr, dx, rest, workspace_bytes - own, stream);
}
