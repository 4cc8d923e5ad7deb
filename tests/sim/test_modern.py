"""Launches by a call, clusters, grid barriers, textures, cuda::barrier, cuda::pipeline, wmma."""

import re

import pytest

from convlab.core.errors import LaunchError
from tests.suites import ENGINES, Suite

MODERN = Suite("modern")
CORRECT = [name for name, case in MODERN.cases.items() if "expect" in case]
INCORRECT = [name for name, case in MODERN.cases.items() if "fault" in case]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CORRECT)
def test_result(name: str, engine: str) -> None:
    MODERN.check(name, 0, engine)


@pytest.mark.parametrize("name", INCORRECT)
def test_finding(name: str) -> None:
    case = MODERN.cases[name]
    with pytest.raises(LaunchError) as caught:
        MODERN.launch(name)
    texts = [f"{finding.kind}: {finding.text}" for finding in caught.value.findings]
    assert any(re.search(case["fault"], text) for text in texts), texts
