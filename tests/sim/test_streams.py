"""Work on several streams is correct in every order that CUDA allows, or there is a finding."""

import re

import pytest

from convlab.core.errors import LaunchError
from tests.suites import Suite, line_of

STREAMS = Suite("streams")
CORRECT = [name for name, case in STREAMS.cases.items() if "expect" in case]
INCORRECT = [name for name, case in STREAMS.cases.items() if "finding" in case]
PRECISION = Suite("precision")


def findings_of(name: str) -> list:
    """Run a case; return its findings, whether it raised an error or not."""
    try:
        return STREAMS.launch(name).findings
    except LaunchError as error:
        return error.findings


@pytest.mark.parametrize("name", CORRECT)
def test_joined_work_has_no_finding(name: str) -> None:
    STREAMS.check(name, 0, "sim")
    # The cases store only the start of y.
    assert {finding.kind for finding in findings_of(name)} <= {"never written"}


@pytest.mark.parametrize("name", INCORRECT)
def test_unordered_work_is_reported(name: str) -> None:
    case = STREAMS.cases[name]
    found = [f for f in findings_of(name) if re.match(case["finding"], f"{f.kind}: {f.text}")]
    assert len(found) >= 1, findings_of(name)
    if "line" in case:
        assert found[0].line == line_of(STREAMS.source, f"// {case['line']}")


@pytest.mark.parametrize("name", PRECISION.cases)
def test_cublas_computes_in_the_precision_that_is_asked_for(name: str) -> None:
    PRECISION.check(name, 0, "sim")
