"""Each planted mistake is explained by its sentence, and by no other one before it.

``tests/cuda/explained.cu`` has a textbook's kernel with one of many mistakes. The workspace limit is the
number of the mistake, so that all of them are one build.
"""

from __future__ import annotations

import re

import pytest

import convlab
from convlab.core.correctness.check import check
from tests.suites import FOLDER

SOURCE = (FOLDER / "explained.cu").read_text()
# The name, the problem, the sentence and the number of each case.
CASES = {
    name: (int(number), problem, sentence)
    for name, problem, sentence, number in re.findall(
        r"// case (\w+): (N.*) \| (.*)\n +case (\d+):", SOURCE
    )
}


def with_mistake(number: int) -> convlab.Kernel:
    """Return the kernel with one mistake, or the correct one for 0."""
    return convlab.compile(SOURCE, name="explained", engine="sim", workspace_limit=number)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_explained(name: str) -> None:
    number, problem, sentence = CASES[name]
    report = check(with_mistake(number), problem)
    assert report.wrong and not report.fault, report
    assert report.patterns[0].startswith(sentence), report.patterns
    assert f": all {report.wrong:,} incorrect outputs" in report.patterns[0]


def test_all_numbers_are_cases_and_without_a_mistake_the_kernel_is_correct() -> None:
    assert [number for number, *_ in sorted(CASES.values())] == list(range(1, len(CASES) + 1))
    assert len(CASES) >= 50
    for problem in {problem for _, problem, _ in CASES.values()}:
        report = check(with_mistake(0), problem)
        assert report.ok and not report.patterns
