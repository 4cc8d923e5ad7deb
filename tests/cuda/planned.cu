// title: Planned
#include "convlab.cuh"
__global__ void plus_one(const float* g_w, float* g_plan, int count) {
    if (int(threadIdx.x) < count) g_plan[threadIdx.x] = g_w[threadIdx.x] + 1;
}
__global__ void sum(const float* g_w, float* g_y, int count, int64_t outputs) {
    const int64_t i = int64_t(blockIdx.x) * 32 + threadIdx.x;
    float r_sum = 0;
    for (int j = 0; j < count; ++j) r_sum += g_w[j];
    if (i < outputs) g_y[i] = r_sum;
}
static int count(const ConvProblem* p) { return p->K * (p->C / p->groups) * p->R * p->S; }
CONVLAB_ENTRY size_t conv2d_plan(const ConvProblem* problem) {
    return problem->stride_h == 1 ? count(problem) * sizeof(float) : 0;
}
CONVLAB_ENTRY const char* conv2d_prepare(const ConvProblem* problem, const float* w, void* plan,
                                         cudaStream_t stream) {
    if (count(problem) > 32) return "too many";
    plus_one<<<1, 32, 0, stream>>>(w, static_cast<float*>(plan), count(problem));
    return launch_error();
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int64_t outputs = int64_t(problem->N) * problem->K * problem->P * problem->Q;
    sum<<<ceil_div(outputs, int64_t(32)), 32, 0, stream>>>(w, y, count(problem), outputs);
    return launch_error();
}
