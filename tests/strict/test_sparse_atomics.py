"""A sample of the blocks on a tensor of over 2^31 elements: which outputs are compared, and which are never written."""

from functools import partial

import convlab
from convlab.core.correctness.check import Checker
from convlab.strict.sparse import SPARSE, sparse_problems
from tests.strangers import PARTS, SOURCE

# Two blocks, far apart, add half of each output.
HALVES = {
    "header": "// atomics: yes",
    "host": "cudaMemsetAsync(y, 0, sizeof(float) * total, stream); total *= 2;",
    "first": "total *= 2; long long half = idx >= total / 2; if (idx < total) idx -= half * (total / 2);",
    "last": "atomicAdd(&out[idx], sum / 2); return;",
}


def test_outputs_that_blocks_add_to_are_not_compared_in_a_sample() -> None:
    kernel = convlab.compile(SOURCE % (PARTS | HALVES), name="halves", engine="sim")
    assert convlab.check(kernel, "N2 C3 H9 W9 K4 R3 S3 p1").ok
    checker = Checker.of(kernel, 0, False)
    problem = next(each for each in sparse_problems(kernel) if each.N == 70_000)
    report = checker.attempt(partial(checker.run, setting=SPARSE), problem, SPARSE)
    assert not isinstance(report, str) and report.ok, report
    assert "bounds" in report.unwatched


# 1024 blocks take at most 512 tiles each, so of a large output most elements are never written.
CAPPED = {
    "host": "conv_kernel<<<total > 1024 * 256 ? 1024 : unsigned((total + 255) / 256), 256, 0, stream>>>("
    "x, filt, bias, y, d, workspace); total = 0;",
    "first": "long long stride = gridDim.x * 256LL; for (int tile = 0; tile < 512 && idx < total; ++tile, idx += stride) {"
    "long long q0 = idx % d.Q, p0 = idx / d.Q % d.P; out[idx] = in[p0 * d.W + q0] * filt[0]; } return;",
}


def test_outputs_that_no_block_takes_are_found() -> None:
    kernel = convlab.compile(SOURCE % (PARTS | CAPPED), name="capped", engine="sim")
    checker = Checker.of(kernel, 0, False)
    problem = next(each for each in sparse_problems(kernel) if each.H == 65_600)
    report = checker.attempt(partial(checker.run, setting=SPARSE), problem, SPARSE)
    assert not isinstance(report, str) and not report.ok
    assert report.findings[0].kind == "never written", report


def test_a_crash_of_a_block_that_is_not_in_the_sample_is_an_error() -> None:
    crash = {"first": "if (blockIdx.x == 17) out = nullptr; " + CAPPED["first"]}
    kernel = convlab.compile(SOURCE % (PARTS | CAPPED | crash), name="crash", engine="sim")
    checker = Checker.of(kernel, 0, False)
    problem = next(each for each in sparse_problems(kernel) if each.H == 65_600)
    report = checker.attempt(partial(checker.run, setting=SPARSE), problem, SPARSE)
    assert not isinstance(report, str) and report.outcome == "incorrect"
    assert report.fault, report
