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
    """One problem stands for the fixed ones."""
    monkeypatch.setattr(checking, "named_problems", lambda name: [PLAIN][: name == "awkward"])
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


# ---- sizes -------------------------------------------------------------------------------------

# A kernel that is written for less, and the problem of the set "limits" that shows it.
TOO_LONG = {
    "filters_65537": {"last": "if ((unsigned short)d.K != d.K) sum = 0;"},
    "width_65540": {"first": "d.Q = (short)d.Q < 0 ? 1 : (unsigned short)d.Q;"},
    "filter_65x65": {"product": f"if (ok && kh * d.S + kw < 4096) sum += {AT} * filt[wi];"},
    "channels_4099": {"product": f"if (ok && ic < 4096) sum += {AT} * filt[wi];"},
    "channels_65537": {"product": f"if (ok) sum += {AT} * filt[wi - ic + (ic & 65535)];"},
    "filters_4099": {"last": "if (b && oc >= 4096) sum -= b[oc];"},
    "planes_66000": {
        "first": "idx = (long long)blockIdx.y * d.P * d.Q + idx; "
                 "if (blockIdx.x * 256 + threadIdx.x >= d.P * d.Q) return;",
        "host": "if (total) { conv_kernel<<<dim3((d.P * d.Q + 255) / 256, (unsigned)(d.N * d.K)), "
                "256, 0, stream>>>(x, w, bias, y, d, workspace); return launch_error(); }"},
    "padding_65x33": {"last": "if (d.pad_h > 63 && oh == 0) sum += 1;"},
}  # fmt: skip


@pytest.mark.parametrize(("name", "parts"), TOO_LONG.items(), ids=TOO_LONG)
def test_a_size_that_it_is_not_written_for_is_met(
    name: str, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_SHRINK_SECONDS", 0.0)
    kernel = stranger("short_sighted", **parts)
    ordinary = check(kernel, ["awkward.everything", "awkward.primes"], progress=False)
    assert ordinary.ok, ordinary
    assert not check(kernel.untraced(), [f"limits.{name}"], progress=False).ok


def test_long_problems_are_run_once_and_untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    long = convlab.problem("limits.width_4100")
    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": [long]}.get)
    short, other = default(stranger("good"))
    assert short.counters["global_load_bytes"] and not short.notes
    assert not other.counters["global_load_bytes"] and "untraced" in other.notes[0]


def test_a_few_outputs_that_cancel_are_judged_by_their_terms() -> None:
    """With this seed its one output is 0.013, where a sum of such terms is of order 1."""
    one = Problem(N=1, C=1, H=40, W=40, K=1, R=40, S=40)
    assert check(convlab.load("10_mma_tf32", engine="sim"), one, seed=35).ok
