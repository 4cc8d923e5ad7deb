"""A sample of blocks adds a part of each sum: such outputs are not compared."""

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
