"""Inline PTX is interpreted, with the same findings as CUDA C++; what is unknown has its name."""

import re

import pytest

from convlab.core.errors import LaunchError
from tests.suites import ENGINES, Suite

PTX = Suite("ptx")
CORRECT = [name for name, case in PTX.cases.items() if "expect" in case]
INCORRECT = [name for name, case in PTX.cases.items() if "fault" in case]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CORRECT)
def test_result(name: str, engine: str) -> None:
    PTX.check(name, 0, engine)


@pytest.mark.parametrize("name", INCORRECT)
def test_finding(name: str) -> None:
    case = PTX.cases[name]
    with pytest.raises(LaunchError) as caught:
        PTX.launch(name)
    texts = [f"{finding.kind}: {finding.text}" for finding in caught.value.findings]
    assert any(re.search(case["fault"], text) for text in texts), texts
    assert caught.value.kind == case["fault"].partition(":")[0]
    marked = [line for line in case["code"].splitlines() if line.endswith("// here")]
    if marked:
        line = PTX.source.splitlines().index(marked[0]) + 1
        assert line in {finding.line for finding in caught.value.findings}
