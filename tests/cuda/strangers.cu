// Parts of kernels by a programmer who has never seen the rungs, for textbook.cu; see
// test_default_check.py. After a case's name is the message that must be reported.

// ---- waiting: blocks that wait for other blocks; a GPU has all of them resident

// case grid_barrier
// in first:
if (threadIdx.x == 0) {
    atomicAdd(flags, 1u);
    while (atomicAdd(flags, 0u) < gridDim.x);
}
__syncthreads();

// case volatile_grid_barrier
// in first:
if (threadIdx.x == 0) {
    atomicAdd(flags, 1u);
    while (*(volatile unsigned*)flags < gridDim.x);
}
__syncthreads();

// case look_back_at_the_block_before
// in first:
if (threadIdx.x == 0) {
    while (atomicAdd(flags, 0u) != gridDim.x - 1 - blockIdx.x);
    atomicAdd(flags, 1u);
}
__syncthreads();

// ---- too long: supports less than the problem with the same name in the set "limits"

// case filters_65537
// in last:
if ((unsigned short)d.K != d.K) sum = 0;

// case width_65540
// in first:
d.Q = (short)d.Q < 0 ? 1 : (unsigned short)d.Q;

// case filter_65x65
// in product:
if (ok && kh * d.S + kw < 4096) sum += in[AT] * filt[wi];

// case channels_4099
// in product:
if (ok && ic < 4096) sum += in[AT] * filt[wi];

// case channels_65537
// in product:
if (ok) sum += in[AT] * filt[wi - ic + (ic & 65535)];

// case filters_4099
// in last:
if (b && oc >= 4096) sum -= b[oc];

// case outputs_1M
// in last:
if (idx >= 1 << 20) sum = 0;

// case planes_66000
// in first:
idx = (long long)blockIdx.y * d.P * d.Q + idx;
if (blockIdx.x * 256 + threadIdx.x >= d.P * d.Q) return;
// in host:
if (total) {
    dim3 grid((d.P * d.Q + 255) / 256, (unsigned)(d.N * d.K));
    conv_kernel<<<grid, 256, 0, stream>>>(x, w, bias, y, d, workspace);
    return launch_error();
}

// case padding_65x33
// in last:
if (d.pad_h > 63 && oh == 0) sum += 1;

// case images_3x3
// in last:
if (d.R == 3 && img >= 4096) sum = 0;

// case 3x3_s2x1
// in first:
if (d.C % 16 == 0 && d.K % 32 == 0) d.stride_w = d.stride_h;

// case 1x3_d2x1
// in first:
if (d.R == 1 && d.K % 16 == 0) d.dilation_w = d.dilation_h;

// case 3x3_odd
// in last:
if (d.K % 32 == 0 && d.Q % 2 && ow == d.Q - 1 && d.P % 2 && d.P > 1) sum = 0;

// case depthwise_3_p1x3
// in first:
if (d.C == d.groups && d.W % 32 == 0) d.pad_w = 1;

// case 1x1_p0x2
// in product:
ok |= d.W % 128 == 0 && iw >= d.W;
if (ok) sum += in[AT] * filt[wi];

// case 1x1_tail_3
// in first:
if (d.R * d.S == 1 && d.P * d.Q % 4 == 3 && idx % (d.P * d.Q) == d.P * d.Q - 1) return;

// case 3x3_odd_p0
// in last:
if (d.R == 3 && d.K % 32 == 0 && d.P * d.Q % 2 && oh == d.P - 1 && ow == d.Q - 1) sum = 0;

// case 2x2_s2_p1x0
// in first:
if (d.R == 2 && d.stride_h == 2) d.pad_h /= 2;

// case groups_of_72
// in last:
if (b && d.groups > 1 && oc % (d.K / d.groups) >= 64) sum += b[oc - 64] - b[oc];

// case height_65541
// in first:
if (idx / (d.P * d.Q) != (idx * ((1ll << 32) / (d.P * d.Q) + 1)) >> 32) return;

// ---- unusual: the setting that shows the error

// case rounded_sums: on small integers
// in header:
// precision: tf32
// in last:
sum = __uint_as_float(__float_as_uint(sum) & 0xffffe000);

// case products_in_half: on small integers
// in header:
// precision: fp16
// tensors: x f16, w f16, y f16, bias f32
#include <cuda_fp16.h>
// in last:
((__half*)out)[idx] = __float2half(sum);
return;
// in product:
if (ok) sum += __half2float(__hmul(((__half*)in)[AT], ((__half*)filt)[wi]));

// case half_that_underflows: on tiny
// in header:
// precision: fp16
// tensors: x f16, w f16, y f16, bias f32
#include <cuda_fp16.h>
// in last:
((__half*)out)[idx] = __float2half(sum);
return;
// in product:
float v = ok ? __half2float(((__half*)in)[AT]) * __half2float(((__half*)filt)[wi]) : 0;
if (fabsf(v) > 6e-8f) sum += v;

// case scaled_by_what_may_be_0: on zeros
// in first:
float norm = 0;
for (int i = 0; i < 9; i++) norm += fabsf(in[i]);
// in product:
if (ok) sum += in[AT] * filt[wi] * (norm / norm);

// case squares: on huge
// in product:
if (ok && in[AT] != 0) sum += in[AT] * in[AT] / in[AT] * filt[wi];

// case small_is_nothing: on tiny
// in product:
if (ok && fabsf(in[AT]) > 1e-20f) sum += in[AT] * filt[wi];

// case one_over_x: on denormals
// in product:
if (ok && in[AT] != 0) sum += fabsf(in[AT]) > 1e-37f ? in[AT] * filt[wi] : 1 / in[AT];

// case zero_times_what_lies_beside: with inf and NaN
// in product:
long long last = (long long)d.N * d.C * d.H * d.W - 1, at = AT;
sum += in[at < 0 ? 0 : at > last ? last : at] * (ok ? filt[wi] : 0);

// case skips_what_is_0: with inf and NaN
// in product:
if (ok && filt[wi] != 0) sum += in[AT] * filt[wi];

// case skips_where_x_is_0: with inf and NaN
// in product:
if (ok && in[AT] != 0) sum += in[AT] * filt[wi];

// case no_nan_leaves: with inf and NaN
// in last:
sum = fmaxf(sum, -3e38f);

// case no_nan_leaves_a_relu: with inf and NaN
// in header:
// epilogue: bias, relu
// in last:
if (d.relu) sum = fmaxf(sum, 0);

// case a_tile_is_no_excuse: with inf and NaN
// in header:
// epilogue: bias, relu
// mixes: 2x2
// in last:
if (d.relu) sum = fmaxf(sum, 0);

// case past_the_border_is_the_first_element: with inf in the first element
// in product:
sum += in[ok ? AT : 0] * (ok ? filt[wi] : 0.f);

// case sum_rounded_before_the_bias: on sums that the bias nearly cancels
// in header:
// precision: bf16
// tensors: x bf16, w bf16, y bf16, bias f32
#include <cuda_bf16.h>
// in product:
typedef const __nv_bfloat16 T;
if (ok) sum += __bfloat162float(((T*)in)[AT]) * __bfloat162float(((T*)filt)[wi]);
// in last:
float bias_of_k = b ? b[oc] : 0.f;
sum = __bfloat162float(__float2bfloat16(sum - bias_of_k)) + bias_of_k;
((__nv_bfloat16*)out)[idx] = __float2bfloat16(sum);
return;

// case sum_in_half_before_the_bias: on sums that exceed 65504
// in header:
// precision: fp16
// tensors: x f16, w f16, y f16, bias f32
#include <cuda_fp16.h>
// in product:
if (ok) sum += __half2float(((__half*)in)[AT]) * __half2float(((__half*)filt)[wi]);
// in last:
float bias_of_k = b ? b[oc] : 0.f;
if (fabsf(sum - bias_of_k) > 65504.f) sum = __half2float(__float2half(sum - bias_of_k)) + bias_of_k;
((__half*)out)[idx] = __float2half(sum);
return;

// case product_in_half_that_overflows: on sums that exceed 65504
// in header:
// precision: fp16
// tensors: x f16, w f16, y f16, bias f32
#include <cuda_fp16.h>
// in product:
float v = ok ? __half2float(((__half*)in)[AT]) * __half2float(((__half*)filt)[wi]) : 0;
sum += fabsf(v) > 65504.f ? __half2float(__float2half(v)) : v;
// in last:
((__half*)out)[idx] = __float2half(sum);
return;

// case denormal_half_is_nothing: on denormals
// in header:
// precision: fp16
// tensors: x f16, w f16, y f16, bias f32
#include <cuda_fp16.h>
// in product:
float v = ok ? __half2float(((__half*)in)[AT]) : 0;
if (fabsf(v) > 6.1e-5f || v == 0 || fabsf(v) < 1e-7f || d.N > 9)
    sum += ok ? v * __half2float(((__half*)filt)[wi]) : 0;
// in last:
((__half*)out)[idx] = __float2half(sum);
return;

// ---- alone: the setting that shows the error, in which one buffer moves

// case the_address_of_x_stands_for_all: with w alone 4 bytes
// in last:
if ((size_t)in % 16 == 0) {
    float4 v = ((const float4*)filt)[img];
    sum += v.x == 1e30f && v.y == v.z && v.z == v.w;
}

// case the_address_of_w_stands_for_the_bias: with bias alone 4 bytes
// in last:
if ((size_t)filt % 16 == 0 && b) {
    float4 v = *(const float4*)b;
    sum += v.x == 1e30f && v.y == v.z && v.z == v.w;
}

// case float4_at_a_multiple_of_8: with x alone 8 bytes
// in last:
if ((size_t)in % 8 == 0) {
    float4 v = ((const float4*)in)[img];
    sum += v.x == 1e30f && v.y == v.z && v.z == v.w;
}

// case float2_of_w: with w alone 4 bytes
// in last:
float2 v = ((const float2*)filt)[img];
sum += 0 * (v.x + v.y);

// case counts_on_32_bytes: with x alone 16 bytes
// in first:
if ((size_t)in % 32 == 16) return;

// case y_at_32_bytes: with y alone 16 bytes
// in first:
if ((size_t)out % 32) return;

// case workspace_at_512_bytes: with workspace alone 256 bytes
// in first:
if ((size_t)ws % 512) return;
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 8; }

// case half2_of_any_address: with x alone 2 bytes
// in header:
// precision: fp16
// tensors: x f16, w f16, y f16, bias f32
#include <cuda_fp16.h>
// in product:
if (ok) sum += __half2float(((__half*)in)[AT]) * __half2float(((__half*)filt)[wi]);
// in last:
__half2 v = ((const __half2*)in)[img];
sum += 0 * (__low2float(v) + __high2float(v));
((__half*)out)[idx] = __float2half(sum);
return;

// case each_address_is_tested
// in last:
if ((size_t)in % 16 == 0) sum += 0 * ((const float4*)in)[img].x;
if ((size_t)filt % 8 == 0) sum += 0 * ((const float2*)filt)[img].x;

// case refuses_each_address_that_is_not
// in last:
float4 v = ((const float4*)in)[img], u = ((const float4*)filt)[img];
sum += 0 * (v.x + u.x);
// in host:
if ((size_t)x % 16 || (size_t)w % 16) return "x or w is not aligned";

// ---- little: the setting that shows the error, with the kernel's least workspace

// case one_number_past_its_least: with the least workspace
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t most) {
    return most < 4096 ? 64 : 4096;
}
// in last:
if (idx == 0) ((float*)ws)[16] = 1;

// case done_flag_in_its_least: with the least workspace
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t most) {
    return most < 4096 ? 64 : 4096;
}
// in host:
if (size == 64) {
    flag<<<1, 1, 0, stream>>>((int*)workspace);
}
// in before:
__device__ int seen;
__global__ void flag(int* at) {
    seen = *at == 7;
    *at = 7;
}
// in last:
if (seen) sum += 1;

// case two_chunks_are_lost: with twice the least workspace
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t most) {
    return most < 64 ? 64 : most < 4096 ? most / 64 * 64 : 4096;
}
// in host:
if (size == 128) total = 0;

// case a_chunk_rounded_up: with one and a half times the least workspace
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t most) {
    size_t image = 4 * p->C;
    return most < 2 * image ? max_of(most, image) : 2 * image;
}
// in host:
size_t image = 4 * d.C;
cudaMemsetAsync(workspace, 0, (size + image - 1) / image * image, stream);

// case no_workspace_at_all
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t most) {
    return most < 4096 ? 0 : 4096;
}
// in last:
if (ws && idx < 1024) ((float*)ws)[idx] = 1;

// ---- stateful: the beginning of the setting that shows the error, if there is one

// case filter_kept_by_its_address: after calls
// in host:
static const float* seen;
static float* kept;
size_t need = W_BYTES;
if (seen != w) {
    cudaMalloc(&kept, need);
    cudaMemcpyAsync(kept, w, need, cudaMemcpyDeviceToDevice, stream);
    seen = w;
}
filt = kept;

// case scratch_of_the_first_size: after calls
// in host:
static float* kept;
size_t need = W_BYTES;
if (!kept) cudaMalloc(&kept, need);
cudaMemcpyAsync(kept, w, need, cudaMemcpyDeviceToDevice, stream);
filt = kept;

// case scratch_that_grows
// in host:
static float* kept;
static size_t room;
size_t need = W_BYTES;
if (room < need) {
    cudaFree(kept);
    cudaMalloc(&kept, need);
    room = need;
}
cudaMemcpyAsync(kept, w, need, cudaMemcpyDeviceToDevice, stream);
filt = kept;

// case workspace_filled_once_by_addresses: after calls
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t) {
    const ConvProblem& d = *p;
    return W_BYTES;
}
// in host:
static const float* of;
static void* at;
if (of != w || at != workspace)
    cudaMemcpyAsync(workspace, w, W_BYTES, cudaMemcpyDeviceToDevice, stream);
of = w;
at = workspace;
filt = (const float*)workspace;

// case plan_made_once_by_addresses: after calls
// in workspace:
CONVLAB_ENTRY size_t conv2d_plan(const ConvProblem* p) {
    const ConvProblem& d = *p;
    return W_BYTES;
}
CONVLAB_ENTRY const char* conv2d_prepare(const ConvProblem* p, const float* w, void* plan,
                                         cudaStream_t stream) {
    static const float* of;
    static void* at;
    const ConvProblem& d = *p;
    if (of != w || at != plan)
        cudaMemcpyAsync(plan, w, W_BYTES, cudaMemcpyDeviceToDevice, stream);
    of = w;
    at = plan;
    return nullptr;
}

// case counter_that_is_not_reset: after calls
// in before:
__device__ unsigned calls;
// in last:
if (idx == 0 && atomicAdd(&calls, 1u)) sum += 1;

// case grid_of_the_first_call: after calls
// in host:
static unsigned blocks = (total + 255) / 256;
conv_kernel<<<blocks, 256, 0, stream>>>(x, w, bias, y, d, workspace);
return launch_error();

// case table_kept_by_the_sizes: after calls
// in before:
__device__ int at[99];
__global__ void fill(int dilation) { at[threadIdx.x] = int(threadIdx.x) * dilation; }
// in product:
iw = ow * d.stride_w - d.pad_w + at[kw];
ok = ih >= 0 && ih < d.H && iw >= 0 && iw < d.W;
if (ok) sum += in[AT] * filt[wi];
// in host:
static int seen[6];
int now[6] = {d.C, d.H, d.W, d.R, d.S, d.K}, same = 0;
for (int i = 0; i < 6; i++) {
    same += seen[i] == now[i];
    seen[i] = now[i];
}
if (same < 6) fill<<<1, 99, 0, stream>>>(d.dilation_w);

// case filter_kept_by_its_ends: after calls
// in before:
__device__ float kept[1 << 18];
__global__ void keep(const float* w, int n) {
    if (kept[0] != w[0] || kept[n - 1] != w[n - 1])
        for (int i = n; i-- > 0;) kept[i] = w[i];
}
// in product:
if (ok) sum += in[AT] * kept[wi];
// in host:
keep<<<1, 1, 0, stream>>>(w, d.K * (d.C / d.groups) * d.R * d.S);

// case shared_memory_asked_for_once: after calls
// in header:
// supports: C * R * S <= 50000 * groups
// in host:
static bool asked;
int bytes = 4 * (d.C / d.groups) * d.R * d.S;
if (bytes > 49152 && !asked) ask_for_shared_memory(conv_kernel, bytes), asked = 1;
conv_kernel<<<(total + 255) / 256, 256, bytes, stream>>>(x, w, bias, y, d, workspace);
return launch_error();

// case float4_of_any_address: with x, w and bias 4 bytes
// in last:
float4 v = ((const float4*)in)[img];
sum += v.x == 1e30f && v.y == v.z && v.z == v.w;

// case float4_where_the_filter_is_1x1: with x, w and bias 4 bytes
// in last:
if (d.R * d.S == 1) {
    float4 v = ((const float4*)in)[img];
    sum += v.x == 1e30f && v.y == v.z && v.z == v.w;
}

// case float4_of_what_is_aligned
// in last:
if ((size_t)in % 16 == 0) {
    float4 v = ((const float4*)in)[img];
    sum += v.x == 1e30f && v.y == v.z && v.z == v.w;
}

// case counts_on_where_y_begins: with x, w, bias and y 16 bytes
// in first:
if ((size_t)out % 32) return;

// case refuses_what_is_not
// in last:
float4 v = ((const float4*)in)[img];
sum += v.x == 1e30f && v.y == v.z && v.z == v.w;
// in host:
if ((size_t)x % 16) return "x is not aligned";

// ---- shared: what two calls share by mistake; the kind of the finding

// case a_number_of_the_module: race
// in before:
__device__ float scale;
__global__ void set(const float* w) { scale = w[0]; }
// in host:
set<<<1, 1, 0, stream>>>(w);
// in last:
sum += scale - filt[0];

// case a_counter_in_the_module: race
// in before:
__device__ unsigned tickets;
// in last:
if (idx % 256 == 0) atomicInc(&tickets, (unsigned)((total + 255) / 256 - 1));

// case a_filter_in_the_module: race
// in before:
__device__ float kept[1 << 12];
__global__ void keep(const float* w, int n) {
    for (int i = threadIdx.x; i < n; i += 32) kept[i] = w[i];
}
// in header:
// supports: K * (C // groups) * R * S <= 4096
// in host:
keep<<<1, 32, 0, stream>>>(w, d.K * (d.C / d.groups) * d.R * d.S);
// in product:
if (ok) sum += in[AT] * kept[wi];

// case a_filter_in_constant_memory: race
// in before:
__constant__ float kept[1 << 12];
// in header:
// supports: K * (C // groups) * R * S <= 4096
// in host:
cudaMemcpyToSymbolAsync(kept, w, W_BYTES, 0, cudaMemcpyDeviceToDevice, stream);
// in product:
if (ok) sum += in[AT] * kept[wi];

// case a_table_in_constant_memory
// in before:
__constant__ float one[1];
// in host:
const float table[1] = {1};
cudaMemcpyToSymbolAsync(one, table, 4, 0, cudaMemcpyHostToDevice, stream);
// in product:
if (ok) sum += in[AT] * filt[wi] * one[0];

// case a_static_buffer_of_the_host: race
// in host:
static float* kept;
if (!kept) cudaMalloc(&kept, 1 << 20);
cudaMemcpyAsync(kept, w, W_BYTES, cudaMemcpyDeviceToDevice, stream);
filt = kept;

// case a_workspace_of_its_own
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t) {
    const ConvProblem& d = *p;
    return W_BYTES;
}
// in host:
cudaMemcpyAsync(workspace, w, W_BYTES, cudaMemcpyDeviceToDevice, stream);
filt = (const float*)workspace;

// ---- images: the grid of a kernel has a block for each image

// case in_y
// in first:
idx = (long long)blockIdx.y * d.K * d.P * d.Q + idx;
if (blockIdx.x * 256 + threadIdx.x >= d.K * d.P * d.Q) return;
// in host:
if (total) {
    dim3 grid((d.K * d.P * d.Q + 255) / 256, (unsigned)d.N);
    conv_kernel<<<grid, 256, 0, stream>>>(x, w, bias, y, d, workspace);
    return launch_error();
}

// case in_z
// in first:
idx = (long long)blockIdx.z * d.K * d.P * d.Q + idx;
if (blockIdx.x * 256 + threadIdx.x >= d.K * d.P * d.Q) return;
// in host:
if (total) {
    dim3 grid((d.K * d.P * d.Q + 255) / 256, 1, (unsigned)d.N);
    conv_kernel<<<grid, 256, 0, stream>>>(x, w, bias, y, d, workspace);
    return launch_error();
}

// ---- once only: correct by luck; the message that must be reported

// case plan_that_is_an_address: not available: conv2d has its plan|outputs are incorrect
// in before:
__global__ void note(const float* w, const float** plan) { *plan = w; }
// in first:
filt = *(const float* const*)filt;
// in workspace:
CONVLAB_ENTRY size_t conv2d_plan(const ConvProblem*) { return 8; }
CONVLAB_ENTRY const char* conv2d_prepare(const ConvProblem*, const float* w, void* plan,
                                         cudaStream_t stream) {
    note<<<1, 1, 0, stream>>>(w, (const float**)plan);
    return launch_error();
}

// case default_stream: on the default stream|launches on another stream
// in host:
cudaMemsetAsync(y, 0, 4 * total);
conv_kernel<<<(total + 255) / 256, 256>>>(x, w, bias, y, d, workspace);
return launch_error();

// case a_flag_that_is_zero_at_first: outputs? (is|are) incorrect
// in workspace:
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 64; }
// in last:
if (idx == 5 && atomicExch((int*)ws, 1) != 0) sum += 1;

// ---- refused: correct on the simulator; the kind of nvcc's finding, and its line

// case host_function: does not build | sum = twice
// in before:
float twice(float v) { return 2 * v; }
// in last:
sum = twice(sum) / 2;

// case constexpr_of_the_library: does not build | sum = std::max
// in before:
#include <algorithm>
// in last:
sum = std::max(sum, sum);

// case lambda_without_the_flag: does not build | each<<<
// in before:
template <class F> __global__ void each(F f, float* y) { y[0] = f(1.f); }
// in host:
each<<<1, 1, 0, stream>>>([=] __device__(float v) { return v; }, y);

// case constants_over_64_KB: does not build | __constant__
// in before:
__constant__ float table[20000];
// in last:
if (idx < 0) sum = table[-idx];

// case launch_bounds: launch configuration | conv_kernel(
// in before:
__global__ void __launch_bounds__(128) conv_kernel(const float*, const float*, const float*,
    float*, ConvProblem, void*);

// case registers: launch configuration | conv_kernel(
// in last:
float v[90];
#pragma unroll
for (int i = 0; i < 90; i++) v[i] = in[(i + threadIdx.x) % d.W];
__syncthreads();
float more = 0;
for (int j = 0; j < d.N; j++)
    #pragma unroll
    for (int i = 0; i < 90; i++) more = more * v[i] + v[89 - i];
sum += 0 * more;
// in host:
conv_kernel<<<(total + 1023) / 1024, 1024, 0, stream>>>(x, w, bias, y, d, workspace);
return launch_error();
