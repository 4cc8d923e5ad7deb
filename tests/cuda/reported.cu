%(header)s
#include "convlab.cuh"
__global__ void k(ConvProblem c, const float* x, const float* w, const float* bias, float* y) {
    __shared__ float s[2][32];
    int t = threadIdx.x, end = c.N * c.K * c.P * c.Q;
    %(device)s
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* c, const float* x, const float* w,
                                 const float* bias, float* y, void*, size_t, cudaStream_t stream) {
    %(host)s
    k<<<1, %(launch)s, stream>>>(*c, x, w, bias, y);
    return launch_error();
}

// ---- broken: reported at the line with "here"; verdict, kind of fault, array, index, thread

// case wrong: "incorrect", "wrong result", "y", [0, 0, 0, 0], null
// in device:
if (t < end) y[t] = 1; // here

// case stored twice: "incorrect", "wrong result", "y", [0, 0, 0, 0], null
// in device:
if (t < end) y[t] = 0;
if (t < 16) y[t] = 1; // here

// case unwritten: "incorrect", "never written", "y", [0, 1, 3, 1], null
// in device:
if (t < end - 3) y[t] = 1; // here

// case race: "failed", "race", "s", [1, 0], [32, 0, 0]
// in device:
s[t / 32][t % 32] = 1; // here
y[t % 32] = s[1 - t / 32][t % 32];
if (t < end) y[t] = 1;
// in launch:
64, 0

// case out of bounds: "failed", "global out of bounds", "y", [0, 1, 4, 0], [31, 0, 0]
// in device:
y[t + 1] = 1; // here

// case uninitialised: "failed", "uninitialised read", "s", [1, 0], [0, 0, 0]
// in device:
y[t] = s[1][t]; // here

// case dynamic: "failed", "uninitialised read", "extern __shared__", [4], [0, 0, 0]
// in device:
extern __shared__ float d[];
y[t] = d[t + 1]; // here
// in launch:
32, 256

// case barrier in a branch: "failed", "divergent barrier", null, null, [16, 0, 0]
// in device:
if (t < 16)
    __syncthreads();
else {
    if (t < end) y[t] = 1;
    __syncthreads(); // here
}

// case endless: "failed", "endless loop", null, null, "any"
// in device:
volatile int on = 1;
while (on) {} // here

// case host's crash: "failed", "null pointer", null, null, null
// in host:
*(volatile int*)8 = 3; // here

// case host's exit: "failed", "abort", null, null, null
// in host:
exit(3); // here

// case no C++: "does not build", "does not build", null, null, null
// in device:
y[t] = undeclared; // here

// case not rewritten: "does not build", "does not build", null, null, null
// in device:
__shared__ auto v = 3; // here

// case refused launch: "failed", "refused launch", null, null, null
// in launch:
2048, 0 /* // here */

// case refused: "failed", "refused", null, null, null
// in host:
return "not today";

// case declined: "unsupported", "unsupported", null, null, null
// in header:
// supports: R == 7
