"""The problems of the default check: fixed and generated ones, and patterns of those that fail."""

from __future__ import annotations

import dataclasses
import re

import pytest
from torch.nn import functional as F

from convlab.core.correctness import check as checking
from convlab.core.correctness.check import check
from convlab.core.errors import (
    LaunchError,
    WrongResult,
)
from convlab.core.finding import Finding
from convlab.core.problem.problem import Problem
from convlab.strict import settings
from convlab.strict.other_gpus import trials_on_other_gpus
from tests.fakes import FULL, PLAIN, Fake, spoilt, wrong_if_strided

pytestmark = pytest.mark.pure


def test_without_a_problem_fixed_and_generated_ones_are_checked(few):
    first, again = (check(Fake(), count=25, progress=False) for _ in range(2))
    assert first.ok and first.smallest is None
    told = re.search(rf"{len(few)} fixed and (\d+) generated problems, seed 0", str(first))
    # Besides 25 drawn problems or more, two have a ReLU on sums over many channels.
    assert told and int(told[1]) >= 27, first
    fixed = [problem for problem in few if problem.R != 1]
    assert [report.problem for report in first][: len(fixed)] == fixed
    hosts = settings.host_problems(Fake(), fixed)
    trials = [trial for host in hosts for trial in settings.settings_for(Fake(), host)]
    assert len(trials) > 2 * 8, "several settings on two problems"
    on_other_gpus = list(trials_on_other_gpus(Fake()))
    assert len(on_other_gpus) == 1 + 2 * 3
    expected = len(few) + int(told[1]) + len(trials) + len(on_other_gpus)
    assert len(first) + len(first.skipped) == expected
    assert {p.bias for p in (report.problem for report in first) if p.relu} == {True, False}
    told = [(report.problem, report.error) for report in first]
    assert told == [(report.problem, report.error) for report in again]
    other = check(Fake(), count=25, seed=1, progress=False)
    assert [report.problem for report in other] != [problem for problem, _ in told]


def test_a_kernel_that_supports_few_problems_gets_more_generated_ones(monkeypatch):
    monkeypatch.setattr(checking, "named_problems", lambda name: [])
    monkeypatch.setattr(Fake, "unsupported", lambda self, p: None if p.R == p.S == 1 else "no")
    found = check(Fake(), count=16, progress=False)
    tried = {report.problem for report in found.ordinary}
    assert found.ok and len(tried) >= 16 // 4
    told = re.fullmatch(r"0 fixed and (\d+) generated problems, seed 0", found.notes[0])
    assert told and int(told[1]) > 16 + 2


def test_failing_set_names_the_common_condition_and_the_smallest_problem(few):
    reports = check(Fake(wrong_if_strided), count=30, progress=False)
    assert reports.patterns[0] == "incorrect wherever the stride is not 1, and only there"
    smallest = reports.smallest.problem
    assert (smallest.N, smallest.C, smallest.K, smallest.R) == (1, 1, 1, 2)  # R = 1 is unsupported
    assert sorted(smallest.stride) == [1, 2]
    assert f'--problem "{smallest}"' in str(reports)
    assert reports.plot().axes
    with pytest.raises(WrongResult, match="wherever the stride is not 1"):
        check(Fake(wrong_if_strided), count=30, progress=False, raises=True)


def test_crash_in_a_set_counts_as_incorrect_and_is_shrunk(few):
    def crashes(launch, y):
        launch.y.copy_(y)
        if launch.problem.bias:
            raise LaunchError("it fell over", "illegal address")

    reports = check(Fake(crashes), count=30, progress=False)
    assert reports.smallest.fault == "illegal address" and reports.smallest.problem.bias
    assert reports.patterns[0] == "incorrect wherever there is a bias, and only there"
    assert reports.smallest.problem.macs <= 2


def test_the_smallest_problem_fails_in_the_same_way():
    """A problem that fails in another way, such as a dead worker, is not the smallest."""

    def races(launch, y):
        launch.y.copy_(y)
        if launch.problem.C < 2:
            raise LaunchError("another process", "invalid worker state")
        raise LaunchError("two threads", "race")

    reports = check(Fake(races), [PLAIN], progress=False)
    assert reports.smallest.fault == "race" and reports.smallest.problem.C == 2


def test_smallest_may_have_a_fault_with_a_line_instead_of_a_wrong_result():
    def races_on_small_problems(launch, y):
        if launch.problem.H < 20:
            raise LaunchError("race", "race", [Finding("race", "two", file="a.cu", line=3)])
        launch.y.copy_(y + 1)

    large = Problem(N=1, C=1, H=40, W=7, K=1, R=3, S=3)
    found = check(Fake(races_on_small_problems), [large], progress=False)
    assert found.smallest.fault == "race" and found.smallest.problem.H < 20
    assert found.to_dict()["findings"][0]["line"] == 3


def unwritten_tail(launch, y):
    launch.y.view(-1)[:-5] = y.view(-1)[:-5]


def test_patterns_are_in_the_report():
    report = check(Fake(unwritten_tail), PLAIN)
    assert report.patterns[0] == "never written: all 5 incorrect outputs"
    assert report.patterns[0] in str(report) and report.patterns[0] in report.summary
    assert report.to_dict()["patterns"] == list(report.patterns)


@pytest.mark.parametrize("problem", [PLAIN, FULL], ids=lambda p: p.name)
def test_a_constant_is_named(problem):
    constant = Fake(spoilt(lambda launch: launch.y.fill_(0.25)))
    assert "every output is 0.25" in " ".join(str(check(constant, problem)).split())


def test_a_missing_relu_is_named():
    def without(launch, y):
        p = launch.problem
        launch.y.copy_(F.conv2d(*launch.inputs, p.stride, p.padding, p.dilation, p.groups))

    report = check(Fake(without), dataclasses.replace(FULL, relu=True))
    assert report.patterns[0].startswith("negative, as if the ReLU were missing")


def test_the_smallest_problem_is_smaller_than_all_of_the_set():
    reports = check(Fake(wrong_if_strided), [PLAIN, FULL], progress=False)
    assert str(reports.smallest.problem) not in (str(PLAIN), str(FULL))
