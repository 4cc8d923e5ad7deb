// title: Sums in parts
// idea: Each part adds a part of the channels and taps; then the parts are added.
// supports: groups == 1
#include "convlab.cuh"

constexpr int kThreads = 256;

static int parts_of(const ConvProblem& conv) {
    return max_of(1, min_of(8, conv.C * conv.R * conv.S / 256));
}

__global__ void one_part(ConvProblem conv, const float* x, const float* w, float* sums) {
    const int64_t outputs = int64_t(conv.N) * conv.K * conv.P * conv.Q;
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= outputs) return;
    const int q = int(i % conv.Q), p = int(i / conv.Q % conv.P);
    const int64_t plane = i / conv.Q / conv.P, n = plane / conv.K;
    const int terms = conv.C * conv.R * conv.S, part = blockIdx.y, parts = gridDim.y;
    const float* w_k = w + plane % conv.K * terms;
    float sum = 0;
    for (int t = int64_t(terms) * part / parts; t < int64_t(terms) * (part + 1) / parts; ++t) {
        const int h = p * conv.stride_h - conv.pad_h + t / conv.S % conv.R * conv.dilation_h;
        const int v = q * conv.stride_w - conv.pad_w + t % conv.S * conv.dilation_w;
        if (h < 0 || h >= conv.H || v < 0 || v >= conv.W) continue;
        sum += x[((n * conv.C + t / conv.S / conv.R) * conv.H + h) * conv.W + v] * w_k[t];
    }
    sums[part * outputs + i] = sum;
}

__global__ void add_parts(ConvProblem conv, const float* sums, const float* bias, float* y,
                          int parts) {
    const int64_t outputs = int64_t(conv.N) * conv.K * conv.P * conv.Q;
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= outputs) return;
    float sum = bias ? bias[i / conv.Q / conv.P % conv.K] : 0;
    for (int part = 0; part < parts; ++part) sum += sums[part * outputs + i];
    y[i] = sum;
}

CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* problem, size_t) {
    const size_t outputs = size_t(problem->N) * problem->K * problem->P * problem->Q;
    return parts_of(*problem) * outputs * 4;
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace, size_t,
                                 cudaStream_t stream) {
    const int64_t outputs = int64_t(problem->N) * problem->K * problem->P * problem->Q;
    const unsigned blocks = unsigned(ceil_div(outputs, int64_t(kThreads)));
    if (blocks == 0) return nullptr;
    const int parts = parts_of(*problem);
    float* sums = static_cast<float*>(workspace);
    one_part<<<dim3(blocks, parts), kThreads, 0, stream>>>(*problem, x, w, sums);
    add_parts<<<blocks, kThreads, 0, stream>>>(*problem, sums, bias, y, parts);
    return launch_error();
}
