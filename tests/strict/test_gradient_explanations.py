"""Each mistake that is planted into a gradient is explained by its sentence, and by no other before it.

``tests/cuda/explained_data.cu`` and ``explained_weight.cu`` have a textbook's kernel with one of many
mistakes. The workspace limit is the number of the mistake, so that all of a file are one build.
"""

from __future__ import annotations

import math
import re

import pytest
import torch

import convlab
from convlab.core.correctness.check import check
from convlab.core.correctness.output import OutputComparison
from convlab.core.correctness.reference import Reference, inputs
from tests.suites import FOLDER

SOURCES = {
    "data gradient": (FOLDER / "explained_data.cu").read_text(),
    "weight gradient": (FOLDER / "explained_weight.cu").read_text(),
}
_CASE = re.compile(
    r"// case (\w+): (N.*) \| (.*)\n(?:.*\n)??.*?(?:case|mistake [!=]=) (\d+)(?::|\b)"
)
# For each case the gradient, the number, the problem and the sentence.
CASES = {
    f"{computes.split()[0]}-{name}": (computes, int(number), problem, sentence)
    for computes, source in SOURCES.items()
    for name, problem, sentence, number in _CASE.findall(source)
}


def with_mistake(computes: str, number: int) -> convlab.Kernel:
    """Return the kernel with one mistake, or the correct one for 0."""
    return convlab.compile(
        SOURCES[computes], name="explained", engine="sim", workspace_limit=number
    )


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_explained(name: str) -> None:
    computes, number, spec, sentence = CASES[name]
    problem = convlab.problem(spec).computing(computes)
    report = check(with_mistake(computes, number), problem)
    assert not report.ok and not report.fault, report
    assert report.patterns[0].startswith(sentence), report.patterns
    if sentence != "never written":
        assert f": all {report.wrong:,} incorrect outputs" in report.patterns[0]


def test_unwritten_rows_of_the_output_padding_are_described() -> None:
    computes, number, spec, _ = CASES["data-unreached"]
    problem = convlab.problem(spec).computing(computes)
    assert problem.output_padding[0]
    report = check(with_mistake(computes, number), problem)
    assert any("where h is the last" in line or "h >= " in line for line in report.patterns)


def test_all_numbers_are_cases_and_without_a_mistake_the_kernel_is_correct() -> None:
    for computes in SOURCES:
        some = [case for case in CASES.values() if case[0] == computes]
        assert sorted(number for _, number, *_ in some) == list(range(1, len(some) + 1))
        assert len(some) >= 20
        for spec in {spec for _, _, spec, _ in some}:
            report = check(with_mistake(computes, 0), convlab.problem(spec).computing(computes))
            assert report.ok and not report.patterns


def test_errors_are_of_the_gradient() -> None:
    report = check(with_mistake("data gradient", 1), CASES["data-stride"][2] + " data_gradient")
    assert "the relative error of dx is" in str(report)
    report = check(
        with_mistake("weight gradient", 1), CASES["weight-stride"][2] + " weight_gradient"
    )
    assert "the relative error of dw is" in str(report)


def test_a_split_that_a_rung_leaves_out_is_explained() -> None:
    text = convlab.load("19b_weight_gradient_gemm", engine="sim").source
    spoilt = text.replace("range < ranges;", "range < ranges - 1;")
    assert spoilt != text
    kernel = convlab.compile(spoilt, name="spoilt", engine="sim")
    report = check(kernel, "N4 C3 H21 W21 K4 R3 S3 p1 weight_gradient")
    assert report.patterns[0].startswith("the last of 6 ranges of pixels is left out: all ")


@pytest.mark.pure
def test_nan_may_come_from_the_gradient_of_an_earlier_call() -> None:
    problem = convlab.problem("N2 C3 H9 W10 K4 R3 S3 weight_gradient")
    expected = Reference(problem, inputs(problem), 0)
    dw = torch.full(problem.output_shape, math.nan)
    compared = OutputComparison(expected, dw, 2e-6, poisoned=False)
    assert "guard zones and the dw before the call hold NaN" in compared.patterns("fp32")[0]
