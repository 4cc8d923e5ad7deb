"""The default check's set: fixed problems, generated ones, and what failing ones share."""

from __future__ import annotations

import pytest

from convlab.core.correctness import check as checking
from convlab.core.correctness.check import check
from convlab.core.errors import (
    LaunchError,
    WrongResult,
)
from convlab.core.problem.named import problems
from convlab.strict import settings
from tests.fakes import Fake, wrong_if_strided


@pytest.fixture
def few(monkeypatch):
    """Let a few problems stand for the set "awkward"."""
    chosen = problems("awkward")[::5]
    monkeypatch.setattr(checking, "named_problems", {"awkward": chosen, "limits": []}.get)
    return chosen


def test_without_a_problem_fixed_and_generated_ones_are_checked(few):
    first, again = (check(Fake(), count=25, progress=False) for _ in range(2))
    assert first.ok and first.smallest is None
    assert f"{len(few)} fixed and 25 generated problems, seed 0" in str(first)
    fixed = [problem for problem in few if problem.R != 1]
    assert [report.problem for report in first][: len(fixed)] == fixed
    assert len(first) + len(first.skipped) == len(few) + 25 + 2 * len(settings.SETTINGS) + 1
    assert {p.bias for p in (report.problem for report in first) if p.relu} == {True, False}
    told = [(report.problem, report.error) for report in first]
    assert told == [(report.problem, report.error) for report in again]
    other = check(Fake(), count=25, seed=1, progress=False)
    assert [report.problem for report in other] != [problem for problem, _ in told]


def test_a_kernel_of_few_problems_gets_more_generated_ones(monkeypatch):
    monkeypatch.setattr(checking, "named_problems", lambda name: [])
    monkeypatch.setattr(Fake, "unsupported", lambda self, p: None if p.R == p.S == 1 else "no")
    found = check(Fake(), count=16, progress=False)
    tried = {report.problem for report in found}
    assert found.ok and len(tried) == 12 + 1  # the one that the settings ride on
    assert found.notes[0] == "0 fixed and 27 generated problems, seed 0"


def test_failing_set_names_what_failing_problems_share_and_the_smallest(few):
    reports = check(Fake(wrong_if_strided), count=30, progress=False)
    assert reports.patterns[0] == "wrong wherever the stride is not 1, and only there"
    smallest = reports.smallest.problem
    assert (smallest.N, smallest.C, smallest.K, smallest.R) == (1, 1, 1, 2)  # it declines R = 1
    assert sorted(smallest.stride) == [1, 2]
    assert f'--problem "{smallest}"' in str(reports)
    assert reports.plot().axes
    with pytest.raises(WrongResult, match="wherever the stride is not 1"):
        check(Fake(wrong_if_strided), count=30, progress=False, raises=True)


def test_crash_in_a_set_counts_as_wrong_and_is_shrunk(few):
    def crashes(launch, y):
        launch.y.copy_(y)
        if launch.problem.bias:
            raise LaunchError("it fell over", "illegal address")

    reports = check(Fake(crashes), count=30, progress=False)
    assert reports.smallest.fault == "illegal address" and reports.smallest.problem.bias
    assert reports.patterns[0] == "wrong wherever there is a bias, and only there"
    assert reports.smallest.problem.macs <= 2
