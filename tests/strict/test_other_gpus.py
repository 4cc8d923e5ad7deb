"""The simulator as another GPU: persistent kernels on 2 SMs, cards with less shared memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import convlab
from convlab.core.correctness.check import Checker, check
from convlab.core.correctness.setting import Setting
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.kernel.kernel import compile
from convlab.core.kernel.runnable import Runnable
from convlab.core.machine.gpus import GPUS
from convlab.strict.other_gpus import CARDS, HALF_OF_AN_SM, OTHER_GPUS, TWO_SMS, trials_on_other_gpus
from tests.fakes import Fake

# A persistent kernel: each block computes several tiles, and keeps their outputs in two stages. It
# stores a tile one turn later, and the last one after the loop.
SOURCE = """
// title: persistent
// supports: groups == 1
#include "convlab.cuh"

constexpr int kTile = 64, kStages = 2;

__global__ void persistent(ConvProblem conv, const float* g_x, const float* g_w,
                           const float* g_bias, float* g_y, int tiles, int step) {
    extern __shared__ float s_out[];
    const int outputs = conv.N * conv.K * conv.P * conv.Q;
    int turn = 0, waiting = -1;
    for (int tile = blockIdx.x; tile < tiles; tile += step, ++turn) {
        float* s_stage = s_out + (%(stage)s) * kTile;
        const int i = tile * kTile + threadIdx.x;
        float sum = 0.0f;
        if (i < outputs) {
            const int q = i %% conv.Q, p = i / conv.Q %% conv.P;
            const int k = i / (conv.P * conv.Q) %% conv.K, n = i / (conv.P * conv.Q * conv.K);
            for (int c = 0; c < conv.C; ++c)
                for (int r = 0; r < conv.R; ++r)
                    for (int s = 0; s < conv.S; ++s) {
                        const int h = p * conv.stride_h - conv.pad_h + r * conv.dilation_h;
                        const int w = q * conv.stride_w - conv.pad_w + s * conv.dilation_w;
                        if (h < 0 || h >= conv.H || w < 0 || w >= conv.W) continue;
                        sum += g_x[((n * conv.C + c) * conv.H + h) * conv.W + w] *
                               g_w[((k * conv.C + c) * conv.R + r) * conv.S + s];
                    }
            if (g_bias) sum += g_bias[k];
        }
        s_stage[threadIdx.x] = sum;
        // The tile before this one is stored now, and the last one after the loop.
        if (waiting >= 0 && waiting * kTile + threadIdx.x < outputs)
            g_y[waiting * kTile + threadIdx.x] =
                s_out[(turn + kStages - 1) %% kStages * kTile + threadIdx.x];
        waiting = tile;
    }
    --turn;
    if (%(drain)s && waiting * kTile + threadIdx.x < outputs)
        g_y[waiting * kTile + threadIdx.x] = s_out[turn %% kStages * kTile + threadIdx.x];
}

CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void*, size_t,
                                 cudaStream_t stream) {
    const ConvProblem conv = *problem;
    cudaDeviceProp gpu;
    cudaGetDeviceProperties(&gpu, 0);
    const int outputs = conv.N * conv.K * conv.P * conv.Q;
    const int tiles = (outputs + kTile - 1) / kTile;
    const int blocks = min(tiles, %(blocks)s);
    const size_t bytes = %(bytes)s;
    %(request)s
    persistent<<<blocks, kTile, bytes, stream>>>(conv, x, w, bias, y, tiles, %(step)s);
    return %(error)s;
}
"""
PARTS = {
    "stage": "turn % kStages",
    "drain": "waiting >= 0",
    "blocks": "gpu.multiProcessorCount",
    "step": "blocks",
    "bytes": "kStages * kTile * sizeof(float)",
    "request": "",
    "error": "launch_error()",
}
# A request for all of an H200's shared memory.
GREEDY = {
    "bytes": "227 << 10",
    "request": "cudaFuncSetAttribute(persistent, cudaFuncAttributeMaxDynamicSharedMemorySize, "
    "227 << 10);",
}


def persistent(**parts: str) -> convlab.Kernel:
    return compile(SOURCE % (PARTS | parts), name="persistent", engine="sim")


def on_other_gpus(kernel: convlab.Kernel) -> dict[str, bool]:
    """Return for each setting of the default check whether the kernel is correct in it."""
    verdicts = {}
    for problem, setting in trials_on_other_gpus(kernel):
        verdict = in_setting(kernel, problem, setting)
        verdicts[setting.name] = verdicts.get(setting.name, True) and verdict
    return verdicts


def in_setting(kernel: convlab.Kernel, problem: convlab.Problem, setting: Setting) -> bool | None:
    """Return whether the kernel is correct; None if it does not support the problem there."""
    checker = Checker.of(kernel, 0, False)
    report = checker.attempt(partial(checker.run_briefly, setting=setting), problem, setting)
    return None if isinstance(report, str) else report.ok


def test_a_correct_persistent_kernel_is_correct_on_all_gpus() -> None:
    assert set(on_other_gpus(persistent()).values()) == {True}


@pytest.mark.parametrize(
    "parts",
    [
        # The second tile of a block overwrites the first, which is stored one turn later.
        {"stage": "0"},
        {"drain": "waiting >= 0 && turn == 0"},
        {"step": "132"},
    ],
    ids=["no wrap of stages", "drain lost", "132 SMs assumed"],
)
def test_a_mistake_of_persistent_kernels_needs_two_sms(parts: dict[str, str]) -> None:
    kernel = persistent(**parts)
    few = "N1 C3 H9 W9 K4 R3 S3"
    assert check(kernel, few, progress=False).ok
    on_two = [each for each in trials_on_other_gpus(kernel) if each[1] is TWO_SMS]
    assert False in [in_setting(kernel, problem, setting) for problem, setting in on_two]


def test_a_path_for_large_tiles_is_taken_on_two_sms() -> None:
    """05 copies four pixels of a plane at once, in its largest tiles, if the filter is 1x1."""
    rung = convlab.load("05_async_gemm", engine="sim")
    condition = "conv.P == conv.H && conv.Q == conv.W &&"
    assert condition in rung.source
    spoilt = convlab.compile(rung.source.replace(condition, ""), name="spoilt", engine="sim")
    on_two = [each for each in trials_on_other_gpus(rung) if each[1] is TWO_SMS]
    assert {in_setting(rung, problem, setting) for problem, setting in on_two} == {True}
    assert False in [in_setting(spoilt, problem, setting) for problem, setting in on_two]


def test_an_ignored_error_of_shared_memory_is_incorrect_where_it_is_refused() -> None:
    ignores = persistent(**GREEDY, error="nullptr")
    found = on_other_gpus(ignores)
    assert found.pop("two_sms") is True
    assert set(found) == {setting.name for setting in CARDS} and not any(found.values())
    assert False in found.values() and None not in found.values()
    # A kernel that returns the error does not support that GPU.
    returned = on_other_gpus(persistent(**GREEDY))
    assert returned.pop("two_sms") is True and set(returned.values()) == {None}


def test_a_setting_is_for_users_too() -> None:
    problem = "N1 C3 H9 W9 K4 R3 S3"
    report = check(persistent(), problem, setting="sm_86", progress=False)
    assert report.ok and "on a GPU of sm_86 with 2 SMs, 99 KB" in str(report)
    with pytest.raises(ProblemError, match="only the simulator can be another GPU"):
        Runnable.on_gpu(Fake(), GPUS["L4"])


def test_rungs_for_one_architecture_are_unsupported_elsewhere() -> None:
    rung = convlab.load("11_wgmma_tf32", engine="sim")
    problem = convlab.problem("N1 C8 H9 W9 K8 R3 S3")
    assert rung.unsupported(problem) is None
    assert "sm_90a" in rung.on_gpu(GPUS["A100"]).unsupported(problem)
    assert {setting for _, setting in trials_on_other_gpus(rung)} == {TWO_SMS}


HOST = """
// title: properties
#include "convlab.cuh"
__global__ void nothing() {}
CONVLAB_ENTRY const char* conv2d(const ConvProblem*, const float*, const float*, const float*,
                                 float* y, void*, size_t, cudaStream_t) {
    cudaDeviceProp gpu;
    int sms, optin, major, fit, limit;
    cudaGetDeviceProperties(&gpu, 0);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
    cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, nothing, 1024, 40 << 10);
    limit = cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, optin);
    limit += 10 * (cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        optin + 1) != cudaSuccess);
    static char text[200];
    snprintf(text, sizeof text, "%d %d %d %d %d %d %d", sms - gpu.multiProcessorCount, sms,
             optin >> 10, major, fit, limit, __CUDA_ARCH__);
    return text;
}
"""


@pytest.mark.parametrize("name", ["H200", "A100", "L4", "RTX 5090"])
def test_all_that_a_kernel_asks_agrees_with_the_table(name: str) -> None:
    gpu = GPUS[name]
    kernel = compile(HOST, name="properties", engine="sim").on_gpu(gpu)
    with pytest.raises(LaunchError) as raised:
        kernel.prepare(
            convlab.problem("N1 C1 H3 W3 K1 R1 S1"), torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
        )()
    limits = gpu.limits
    fit = min(limits.threads // 1024, limits.shared_bytes // (41 << 10))
    expected = f"0 {gpu.sms} {limits.shared_optin_bytes >> 10} {gpu.sm // 10} {fit} 10 {gpu.sm}0"
    assert expected in str(raised.value)


def test_names_are_different_and_sms_few() -> None:
    assert len({setting.name for setting in OTHER_GPUS}) == len(OTHER_GPUS)
    assert {setting.gpu.sms for setting in OTHER_GPUS if setting is not HALF_OF_AN_SM} == {2}
