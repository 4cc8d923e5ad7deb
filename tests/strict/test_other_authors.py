"""Classes of mistakes in kernels of other authors: for each, a kernel of ours with the same mistake."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch

import convlab
from convlab.core.correctness import check as checking
from convlab.core.correctness import reference
from convlab.core.correctness.check import Checker
from convlab.core.correctness.gpu_lines import lines_for_gpus
from convlab.core.correctness.report import Report
from convlab.core.correctness.setting import Setting
from convlab.core.errors import BuildError, LaunchError
from convlab.strict import settings, stricter
from convlab.strict.other_gpus import HALF_OF_AN_SM, trials_on_other_gpus
from convlab.strict.settings import shared_trials
from convlab.strict.sparse import SPARSE, sparse_problems
from tests.strangers import PARTS, SOURCE

SMALL = "N2 C3 H9 W9 K4 R3 S3 p1"


def spoilt(**parts: str) -> convlab.Kernel:
    """Return the textbook's kernel with some parts replaced."""
    return convlab.compile(SOURCE % (PARTS | parts), name="spoilt", engine="sim")


@pytest.mark.parametrize("name", ["same_size_1x1", "same_size_3x3"])
def test_equal_sizes_do_not_mean_equal_pixels(name: str) -> None:
    problem = convlab.problem(f"awkward.{name}")
    assert (problem.P, problem.Q) == (problem.H, problem.W) and problem.stride == (2, 2)
    shortcut = "if (d.P == d.H && d.Q == d.W) d.stride_h = d.stride_w = 1, d.pad_h = d.R / 2, d.pad_w = d.S / 2;"
    assert convlab.check(spoilt(), problem).ok
    assert not convlab.check(spoilt(first=shortcut), problem).ok


# Threads with even numbers read what nobody wrote.
UNWRITTEN = {
    "first": "__shared__ float s_own[256]; if (threadIdx.x % 2) s_own[threadIdx.x] = 1; __syncthreads(); "
    "volatile float r_own = s_own[threadIdx.x];",
    "last": "if (threadIdx.x % 2) sum *= r_own;",
}


def test_a_read_of_unwritten_shared_memory_without_effect_is_a_warning() -> None:
    report = convlab.check(spoilt(**UNWRITTEN), SMALL)
    assert report.ok, report
    assert [finding.kind for finding in report.findings] == ["uninitialised read"]


@pytest.mark.parametrize("last", ["sum *= r_own;", "if (!(threadIdx.x % 2)) sum = fmaxf(sum, r_own);"])
def test_a_read_of_unwritten_shared_memory_with_an_effect_is_an_error(last: str) -> None:
    """The maximum of a number and NaN is the number: a second run has a large number there."""
    found = convlab.check(spoilt(**UNWRITTEN | {"last": last}), [SMALL], progress=False)
    assert not found.ok and found.smallest.findings[0].kind == "uninitialised read"


REQUESTS = (
    "int bytes = 20480 * d.R; %s const char* const refused = ask_for_shared_memory(conv_kernel, bytes); "
    "if (refused) return refused; if (total) conv_kernel<<<unsigned((total + 255) / 256), 256, bytes, stream>>>("
    "x, filt, bias, y, d, workspace); total = 0;"
)


@pytest.mark.parametrize("keyword, is_correct", [("", True), ("static", False)])
def test_a_later_call_may_need_more_shared_memory(keyword: str, is_correct: bool) -> None:
    kernel = spoilt(header="// supports: R <= 11", host=REQUESTS % keyword)
    checker = Checker.of(kernel, 0, False)
    reports = [checker.run(convlab.problem(spec)) for spec in (SMALL, "N1 C2 H9 W9 K2 R5 S5 p2")]
    assert [report.requested_bytes for report in reports] == [3 * 20480, 5 * 20480]
    ((problem, setting),) = shared_trials(kernel, reports)
    assert problem == reports[1].problem
    report = checker.attempt(partial(checker.run, setting=setting), problem, setting)
    assert isinstance(report, Report) and report.ok == is_correct, report


def test_kernels_without_large_requests_have_no_such_trial() -> None:
    kernel = spoilt()
    report = Checker.of(kernel, 0, False).run(convlab.problem(SMALL))
    assert report.requested_bytes == 0 and not shared_trials(kernel, [report])


ROUNDED = (
    "unsigned bits = __float_as_uint(sum); %s "
    "sum = __uint_as_float((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);"
)


@pytest.mark.parametrize(
    "product", [PARTS["product"], PARTS["product"].replace("in[AT]", "__uint_as_float(__float_as_uint(in[AT]) & ~65535u)")]
)
def test_rounding_by_hand_must_keep_nan(product: str) -> None:
    """A GPU's arithmetic returns the NaN 0x7fffffff, and rounding up makes -0 of it."""
    header = "// precision: bf16"
    tested = spoilt(header=header, product=product, last=ROUNDED % "if (sum == sum)")
    assert convlab.check(tested, SMALL, setting="special").ok
    report = convlab.check(spoilt(header=header, product=product, last=ROUNDED % ""), SMALL, setting="special")
    assert not report.ok


def test_an_unsigned_number_of_an_output_that_wraps_is_found() -> None:
    kernel = spoilt(first="idx &= 0xffffffff;")
    checker = Checker.of(kernel, 0, False)
    problem = next(each for each in sparse_problems(kernel) if each.K == 2200)
    report = checker.attempt(partial(checker.run, setting=SPARSE), problem, SPARSE)
    assert isinstance(report, Report) and not report.ok
    assert report.findings[0].kind == "never written" and "unsigned" in report.findings[0].text


def test_a_reference_at_positions_copies_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of an x of over 2^31 elements in another layout would need all memory of a laptop."""
    problem = convlab.problem("N2 C3 H9 W8 K4 R3 S2 p1 s2x1")
    x, w, _ = reference.inputs(problem)
    whole = reference.truth(problem, x, w)
    where = torch.cartesian_prod(*map(torch.arange, whole.shape))
    x = x.to(memory_format=torch.channels_last)
    w = w.to(memory_format=torch.channels_last)

    def fails(*_: object) -> None:
        raise AssertionError("a copy")

    monkeypatch.setattr(torch.Tensor, "contiguous", fails)
    monkeypatch.setattr(torch.Tensor, "reshape", fails)
    at = reference.truth(problem, x, w, None, where)
    assert torch.allclose(at.view(whole.shape), whole)


ASKS = (
    "int all = 0; cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPer%s, 0); "
    "const int bytes = all / 1024 * 1024 - 1024; "
    "if (const char* refused = ask_for_shared_memory(conv_kernel, bytes)) return refused; "
    "if (total) conv_kernel<<<unsigned((total + 255) / 256), 256, bytes, stream>>>("
    "x, filt, bias, y, d, workspace); total = 0;"
)


@pytest.mark.parametrize("of, is_correct", [("BlockOptin", True), ("Multiprocessor", False)])
def test_a_block_may_not_have_the_shared_memory_of_an_sm(of: str, is_correct: bool) -> None:
    kernel = spoilt(host=ASKS % of)
    assert convlab.check(kernel, SMALL).ok
    trials = [setting.name for _, setting in trials_on_other_gpus(kernel)]
    assert (HALF_OF_AN_SM.name in trials) == (not is_correct)
    found = convlab.check(kernel, [SMALL], setting=HALF_OF_AN_SM.name, progress=False)
    assert found.ok == is_correct, found


def test_the_error_in_a_header_is_reported_and_not_a_missing_entry_point(tmp_path: Path) -> None:
    path = tmp_path / "gradient.cu"
    path.write_text("// computes: data gradient\n// tensors: dy NHWC, w KRSC, dx NHWC\n#include \"convlab.cuh\"\n")
    with pytest.raises(BuildError, match="gradient.cu:2: tensors: cannot read"):
        convlab.load(path, engine="sim").build()


def test_a_kernel_that_is_slow_on_one_problem_is_still_tried_in_all_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [convlab.problem(spec) for spec in ("N2 C6 H11 W12 K8 R3 S3 p1", "N3 C2 H5 W6 K2 R3 S3")]
    monkeypatch.setattr(checking, "named_problems", lambda name: problems if name == "awkward" else [])
    run = Checker.run

    def slow(self: Checker, problem: convlab.Problem, setting: Setting = checking.ORDINARY, *rest: object) -> Report:
        if problem.N == 3 and not setting.name:
            self.seconds_lost += 1000
            raise LaunchError("too slow", kind="out of time")
        return run(self, problem, setting, *rest)

    monkeypatch.setattr(Checker, "run", slow)
    found = convlab.check(spoilt(last="if (sum != sum) sum = 0;"), count=0, progress=False)
    assert not found.ok and "inf and NaN" in found.smallest.setting


FOR_GPUS = """#ifdef CONVLAB_SIMULATOR
// here
#else
// there

#if 1
// there too
#endif
#endif
CONDITION
// there
#else
// here
#endif
#ifdef OTHER
// here
#else
// here
#endif
#if OTHER || !CONVLAB_SIMULATOR
// perhaps
#endif
"""
CONDITIONS = (
    "#ifndef CONVLAB_SIMULATOR",
    "  # if ! defined ( CONVLAB_SIMULATOR )",
    "#if !defined CONVLAB_SIMULATOR",
    "#if !CONVLAB_SIMULATOR",
)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_lines_that_only_a_gpu_compiles_are_counted(condition: str) -> None:
    assert lines_for_gpus(FOR_GPUS.replace("CONDITION", condition)) == 3
    turned = condition.replace("ifndef", "ifdef").replace("!", "")
    assert lines_for_gpus(f"{turned}\n// here\n#else\n// there\n#endif") == 1


def test_a_check_says_how_many_lines_only_a_gpu_compiles() -> None:
    lines = FOR_GPUS.replace("CONDITION", CONDITIONS[0])
    found = convlab.check(spoilt(before=lines, last="sum += 1;"), count=0, progress=False)
    assert "not run: 3 lines that only a GPU compiles" in str(found)
