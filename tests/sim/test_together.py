"""Operations by part of a warp or of a warpgroup, and deadlocks at an mbarrier."""

import re

import pytest

from convlab.core.errors import LaunchError
from tests.suites import Suite

TOGETHER = Suite("together")


@pytest.mark.parametrize("name", TOGETHER.cases)
def test_together(name: str) -> None:
    case = TOGETHER.cases[name]
    if "expect" in case:
        TOGETHER.check(name, 0, "sim")
        return
    with pytest.raises(LaunchError) as caught:
        TOGETHER.launch(name)
    texts = [f"{finding.kind}: {finding.text}" for finding in caught.value.findings]
    assert any(re.search(case["fault"], text) for text in texts), texts
    if "only" in case:
        assert {finding.kind for finding in caught.value.findings} == {case["only"]}
    assert all(finding.line for finding in caught.value.findings if finding.error)
