%(header)s
#include "convlab.cuh"
// the index of the element of x in a product; the bytes of the filter
#define AT ((((long long)img * d.C + g * icg + ic) * d.H + ih) * d.W + iw)
#define W_BYTES (sizeof(float) * d.K * (d.C / d.groups) * d.R * d.S)
%(before)s
__global__ void conv_kernel(const float* in, const float* filt, const float* b, float* out,
                            ConvProblem d, void* ws) {
    long long total = (long long)d.N * d.K * d.P * d.Q;
    long long idx = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    %(first)s
    if (idx >= total) return;
    int ow = idx %% d.Q, oh = idx / d.Q %% d.P, oc = idx / d.Q / d.P %% d.K;
    int img = idx / d.Q / d.P / d.K, icg = d.C / d.groups, g = oc / (d.K / d.groups);
    float sum = b ? b[oc] : 0.f;
    for (int ic = 0; ic < icg; ic++)
        for (int kh = 0; kh < d.R; kh++)
            for (int kw = 0; kw < d.S; kw++) {
                int ih = oh * d.stride_h - d.pad_h + kh * d.dilation_h;
                int iw = ow * d.stride_w - d.pad_w + kw * d.dilation_w;
                long long wi = (((long long)oc * icg + ic) * d.R + kh) * d.S + kw;
                bool ok = ih >= 0 && ih < d.H && iw >= 0 && iw < d.W;
                %(product)s
            }
    %(last)s
    out[idx] = sum;
}
%(workspace)s
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace, size_t size,
                                 cudaStream_t stream) {
    const ConvProblem& d = *problem;
    long long total = (long long)d.N * d.K * d.P * d.Q;
    const float* filt = w;
    %(host)s
    if (total) conv_kernel<<<(total + 255) / 256, 256, 0, stream>>>(x, filt, bias, y, d, workspace);
    return launch_error();
}
