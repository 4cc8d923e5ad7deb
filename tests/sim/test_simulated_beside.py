"""Beside a GPU that forgives races, the simulator finds them. The GPU here is a simulator, too."""

from __future__ import annotations

import time

import pytest
import torch

import convlab
from convlab.core.builds.build import define_flags
from convlab.core.correctness.check import check
from convlab.core.machine.gpus import DEFAULT_GPU
from convlab.sim import library
from convlab.sim.launch import SimLaunch

SPEC = "N2 C4 H11 W12 K6 R3 S3"
# Thread 0 sums what all threads of the block stored, without a barrier in between.
RACE = """
#include "convlab.cuh"
__global__ void conv2d_of_a_row(ConvProblem conv, const float* x, const float* w, float* y) {
    __shared__ float s_part[32];
    int64_t i = blockIdx.x;
    int q = i % conv.Q, p = i / conv.Q % conv.P, k = i / conv.Q / conv.P % conv.K;
    int n = i / conv.Q / conv.P / conv.K;
    float sum = 0;
    for (int c = threadIdx.x; c < conv.C; c += 32)
        for (int r = 0; r < conv.R; ++r)
            for (int s = 0; s < conv.S; ++s)
                sum += x[((n * conv.C + c) * conv.H + p + r) * conv.W + q + s] *
                       w[((k * conv.C + c) * conv.R + r) * conv.S + s];
    s_part[31 - threadIdx.x] = sum;
    BARRIER
    if (threadIdx.x == 31) {
        float total = 0;
        for (int t = 0; t < 32; ++t) total += s_part[t];
        y[i] = total;
    }
}
CONVLAB_ENTRY const char* conv2d(const ConvProblem* conv, const float* x, const float* w,
                                 const float*, float* y, void*, size_t, cudaStream_t stream) {
    int blocks = conv->N * conv->K * conv->P * conv->Q;
    conv2d_of_a_row<<<blocks, 32, 0, stream>>>(*conv, x, w, y);
    return launch_error();
}
"""


class Forgiving:
    """An engine in the place of a GPU: it runs threads always in one order, and watches nothing."""

    name = "cuda"
    counts = False
    time_limit = 20.0
    at_once = 1
    macs_in_a_second = None
    device = torch.device("cpu")
    gpu = DEFAULT_GPU
    target = (gpu.sm, gpu.limits.shared_optin_bytes)

    def build(self, source, defines, trace, counting):
        return library.build(source, define_flags(defines), trace=False)

    def prepare(self, kernel, problem, inputs, allocate):
        return InOrder(kernel, problem, inputs)

    def interrupt(self):
        """Do nothing."""


class InOrder(SimLaunch):
    """A launch whose threads run in the order of the first call."""

    def __call__(self):
        self._runs = 0
        super().__call__()
        self.counters = None


def on_gpu(text: str, name: str) -> convlab.Kernel:
    kernel = convlab.compile(text, name=name, engine="sim", trace=False)
    kernel.runs_on = Forgiving()
    kernel.engine = "cuda"
    kernel.isolate = False
    return kernel


def text_of(barrier: str) -> str:
    first, _, rest = RACE.partition("__global__")
    return f"{first}__global__{rest}".replace("BARRIER", barrier)


@pytest.fixture(scope="module")
def racing():
    return on_gpu(text_of(""), "racing")


@pytest.fixture(scope="module")
def sound():
    return on_gpu(text_of("__syncthreads();"), "sound")


def test_a_race_that_the_gpu_forgives_is_found_beside_it(racing):
    assert check(racing, SPEC, simulate=False).ok
    report = check(racing, SPEC)
    assert not report.ok and report.fault == "race" and report.error < report.bound
    line = text_of("").splitlines().index("    s_part[31 - threadIdx.x] = sum;") + 1
    assert report.findings[0].line in (line, line + 4) and report.findings[0].kind == "race"
    assert "on the simulator" in report.findings[0].text


def test_a_race_that_the_gpu_forgives_is_found_in_a_set(racing):
    problems = [SPEC, "N1 C3 H7 W9 K2 R3 S3"]
    assert check(racing, problems, simulate=False, progress=False).ok
    found = check(racing, problems, progress=False)
    assert found.sentence == (
        "racing: INCORRECT on 2 of 2 problems on the simulator, correct on 2 of 2 problems"
    )
    assert found.smallest.findings[0].kind == "race"


def test_a_sound_kernel_stays_correct_beside_the_simulator(sound):
    found = check(sound, [SPEC, "N1 C3 H7 W9 K2 R3 S3"], progress=False)
    assert found.ok and found.sentence == "sound: correct in all 4 runs"
    assert "runs: 2 problems, 2 on the simulator" in str(found)


@pytest.mark.gpu
def test_a_race_that_a_real_gpu_forgives():
    """The race of the first test, on a GPU; and what the simulator beside it costs."""
    with pytest.raises(AssertionError):
        assert check(convlab.compile(text_of(""), name="racing", engine="cuda"), SPEC).ok
    kernel = convlab.load("03_smem_tile", engine="cuda")
    assert check(kernel).ok
    started = time.monotonic()
    assert check(kernel).ok
    assert time.monotonic() - started < 8
