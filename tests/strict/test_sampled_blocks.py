"""A problem of 66,000 images runs in a sample of the blocks, and a kernel that is wrong only there still fails."""

from __future__ import annotations

import pytest

import convlab
from convlab.core.correctness.check import Checker
from convlab.core.correctness.report import Report
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
