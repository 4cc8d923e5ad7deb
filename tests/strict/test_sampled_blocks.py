"""A problem of 66,000 images runs in a sample of the blocks, and a kernel that is wrong only there still fails."""

from __future__ import annotations

import pytest

import convlab
from convlab.core.correctness import check as checking
from convlab.core.correctness.check import Checker
from convlab.core.correctness.report import Report
from convlab.core.correctness.setting import Setting
from convlab.core.errors import LaunchError, TooManyThreads
from convlab.strict import sampled_blocks
from convlab.strict.sampled_blocks import sampled
from tests.strangers import PARTS, SOURCE

IMAGES = convlab.problem("awkward.images_66000")
HEIGHT = convlab.problem("limits.height_65541")


def spoilt(**parts: str) -> convlab.Kernel:
    """Return the textbook's kernel with some parts replaced."""
    return convlab.compile(SOURCE % (PARTS | parts), name="spoilt", engine="sim")


@pytest.fixture
def all_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sample of the blocks run for each kernel."""
    monkeypatch.setattr(sampled_blocks, "_COSTLY", 0)


def checked(kernel: convlab.Kernel, problem: convlab.Problem = IMAGES) -> Report | str:
    """Return the report of a problem of the default check."""
    checker = Checker.of(kernel, 0, False)
    return checker.attempt(checker.run_briefly, problem)


def test_a_kernel_that_does_little_runs_whole() -> None:
    assert sampled(spoilt(), IMAGES, 0) is None


@pytest.mark.parametrize("problem", [IMAGES, HEIGHT], ids=lambda each: each.label)
def test_a_sample_runs_and_the_report_says_so(problem: convlab.Problem, all_take_long: None) -> None:
    report = checked(spoilt(), problem)
    assert report.ok and report.unwatched == "only a sample of blocks ran"
    assert "outputs of 12 blocks" in report.compared
    assert str(report).startswith(f"spoilt on {problem.label}: outputs correct")


def test_other_problems_run_whole(all_take_long: None) -> None:
    assert sampled(spoilt(), convlab.problem("N66000 C1 H1 W2 K1 R1 S2"), 0) is None


def test_outputs_past_16_bits_are_compared(all_take_long: None) -> None:
    report = checked(spoilt(last="if (img > 65535) sum += 1;"))
    assert not report.ok and report.findings[0].kind == "wrong result"


# A number of 16 bits wraps: the sample shows that nothing past it is accessed, and all blocks run.
@pytest.mark.parametrize(
    "parts, problem",
    [
        ({"first": "d.N &= 65535; total &= 65535;"}, IMAGES),
        ({"last": "idx = idx & 65535;"}, IMAGES),
        ({"product": "img &= 65535; if (ok) sum += in[AT] * filt[wi];"}, IMAGES),
        ({"product": "ih &= 65535; if (ok) sum += in[AT] * filt[wi];"}, HEIGHT),
    ],
    ids=["count", "store", "image", "row"],
)
def test_a_number_of_16_bits_is_found(
    parts: dict[str, str], problem: convlab.Problem, all_take_long: None
) -> None:
    kernel = spoilt(**parts)
    assert sampled(kernel, problem, 0) is None
    report = checked(kernel, problem)
    assert report.outcome == "incorrect", report


def test_a_grid_with_an_image_in_z_is_refused(all_take_long: None) -> None:
    host = "conv_kernel<<<dim3(1, 1, d.N), 256, 0, stream>>>(x, filt, bias, y, d, workspace); total = 0;"
    first = "idx = blockIdx.z * (total / d.N) + threadIdx.x; if (threadIdx.x >= total / d.N) return;"
    kernel = spoilt(host=host, first=first)
    assert checked(kernel, convlab.problem("N3 C1 H1 W2 K1 R1 S2")).ok
    report = checked(kernel)
    assert not report.ok
    assert any(finding.kind == "refused launch" for finding in report.findings), report


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of more than some hundred blocks be samples."""
    monkeypatch.setattr(checking, "_MANY_THREADS", 130_000)
    monkeypatch.setattr(checking, "_MOST_THREADS", 200_000)


# 640 blocks of 256 threads.
BLOCKS = convlab.problem("N2 C2 H40 W64 K32 R1 S1")
IN_PARTS = {
    "header": "// atomics: yes",
    "host": "cudaMemsetAsync(y, 0, sizeof(float) * total, stream); total *= 2;",
    "first": "total *= 2; long long half = idx >= total / 2; if (idx < total) idx -= half * (total / 2);",
    "last": "atomicAdd(&out[idx], sum / 2); return;",
}


def test_a_run_of_very_many_threads_is_a_sample(few_threads: None) -> None:
    report = checked(spoilt(), BLOCKS)
    assert report.ok and report.unwatched == "only a sample of blocks ran"
    assert "outputs of 512 blocks" in report.compared
    incorrect = checked(spoilt(last="if (idx % 7 == 6) sum += 1;"), BLOCKS)
    assert not incorrect.ok and "outputs that a sample of blocks stored" in incorrect.findings[0].text


def test_the_tensors_of_a_large_problem_must_be_nchw(
    all_take_long: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_blocks, "_run_sample", None)
    kernel = spoilt(header="// tensors: y f32 NHWC")
    assert not kernel.unsupported(HEIGHT)
    assert sampled(kernel, HEIGHT, 0, takes_long=True) is None


def test_a_sample_without_the_last_output_is_not_enough(few_threads: None) -> None:
    report = checked(spoilt(first="total -= 1000;"), BLOCKS)
    assert not report.ok and report.unwritten == 1000


def test_outputs_that_several_blocks_add_to_run_whole_or_are_not_compared(few_threads: None) -> None:
    few = convlab.problem("N2 C2 H20 W64 K28 R1 S1")
    whole = checked(spoilt(**IN_PARTS), few)
    assert whole.ok and not whole.unwatched
    bounds = checked(spoilt(**IN_PARTS), BLOCKS)
    assert bounds.ok and "only the bounds of a sample" in bounds.unwatched


def test_a_run_ends_before_it_starts_too_many_threads() -> None:
    kernel = spoilt()
    x, w, _ = convlab.core.correctness.reference.inputs(BLOCKS)
    launch = kernel.prepare(BLOCKS, x, w)
    launch.most_threads = 100_000
    with pytest.raises(TooManyThreads, match="starts 163,840 threads"):
        launch()
    launch.most_threads = 163_840
    launch()


WIDE_ROW = convlab.problem("limits.width_65540")
TALL = convlab.problem("limits.height_65541")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no run of all blocks end in time; return the labels of the problems for which one began."""
    runs: list[str] = []

    def late(self: Checker, problem: convlab.Problem, setting: Setting) -> Report:
        runs.append(problem.label)
        raise LaunchError("too slow", kind="out of time")

    monkeypatch.setattr(Checker, "_run_whole", late)
    return runs


def checker_of(**parts: str) -> Checker:
    kernel = convlab.compile(SOURCE % (PARTS | parts), name="slow", engine="sim")
    return Checker.of(kernel, 0, False)


def test_of_a_problem_that_is_out_of_time_a_few_blocks_run(slow: list[str]) -> None:
    checker = checker_of()
    for problem in (WIDE_ROW, TALL):
        report = checker.run_briefly(problem)
        assert report.ok and report.unwatched == "only a sample of blocks ran"
    assert slow == [WIDE_ROW.label]  # of the next one, no run of all blocks is tried


def test_an_error_in_these_blocks_is_found(slow: list[str]) -> None:
    report = checker_of(last="if (idx + 1 == total) sum += 1;").run_briefly(WIDE_ROW)
    assert not report.ok and "incorrect" in report.first_failure


def test_sums_that_several_blocks_add_to_stay_out_of_time(slow: list[str]) -> None:
    with pytest.raises(LaunchError, match="too slow"):
        checker_of(header="// atomics: yes", last="atomicAdd(&out[idx], sum); return;").run_briefly(WIDE_ROW)


def test_a_small_problem_stays_out_of_time(slow: list[str]) -> None:
    with pytest.raises(LaunchError, match="too slow"):
        checker_of().run_briefly(convlab.problem("awkward.primes"))
