"""The default check finds what a few ordinary problems do not show, in kernels of strangers.

Each is written as somebody would who has never seen the rungs; none of the wrong ones is wrong on
an ordinary problem with ordinary data.
"""

from __future__ import annotations

import sys

import pytest

import convlab
from convlab.right.check import check
from convlab.words.problem import Problem

checking = sys.modules["convlab.right.check"]  # convlab.check is the function
PLAIN = Problem(N=2, C=4, H=11, W=12, K=6, R=3, S=3, padding=1, groups=2, bias=True)

# A thread for each output, as a textbook has it. What can be spliced in: declarations before the
# kernel; what a thread does first, and to its sum; the host's code before the launch.
SOURCE = """
%(header)s
#include "convlab.cuh"
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
"""
AT = "in[(((long long)img * d.C + g * icg + ic) * d.H + ih) * d.W + iw]"
PARTS = {
    "header": "", "before": "", "first": "", "last": "", "workspace": "", "host": "",
    "product": f"if (ok) sum += {AT} * filt[wi];",
}  # fmt: skip


def stranger(name: str, engine: str = "sim", **parts: str) -> convlab.Kernel:
    """The textbook's kernel with some of its parts replaced."""
    return convlab.compile(SOURCE % (PARTS | parts), name=name, engine=engine)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem stands for all sets."""
    monkeypatch.setattr(checking, "named_problems", lambda name: [PLAIN])
    monkeypatch.setattr(checking, "_IN_CHUNKS", (PLAIN,))


def default(kernel: convlab.Kernel) -> convlab.right.report.Reports:
    """What `check` does when it is told nothing, without generated problems."""
    return check(kernel, count=0, progress=False)


# ---- no false alarm ----------------------------------------------------------------------------


def test_a_kernel_that_needs_more_workspace_than_it_is_offered_is_declined(few: None) -> None:
    greedy = stranger("greedy", workspace="""
        CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 100000; }""",
        host='if (size < 100000) return "too little";')  # fmt: skip
    found = default(greedy)
    assert found.ok, found
    assert [why for _, why in found.skipped] == [
        "greedy needs 100,000 bytes of workspace for this problem, more than the limit of 40,000"
    ]
