"""A build for another compute capability is needed only if the code is another one."""

from __future__ import annotations

import pytest

from convlab.sim.engine import _depends_on_sm

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "text, sm, depends",
    [
        ("int x;", 80, False),
        ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800", 80, False),
        ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800", 75, True),
        ("#if __CUDA_ARCH__ >= 900", 89, True),
        ("#if __CUDA_ARCH__ >= 900", 120, False),
        ("#if __CUDA_ARCH__ == 900", 120, True),
        ("#ifdef __CUDA_ARCH__\n#ifndef __CUDA_ARCH__\n#if defined __CUDA_ARCH__", 80, False),
        ("#if 900 <= __CUDA_ARCH__", 120, True),
        ("#if 900 <= __CUDA_ARCH__", 90, False),
        ("return __CUDA_ARCH__;", 89, True),
        ("#if __CUDA_ARCH__ < 700 || __CUDA_ARCH__ > 1000", 120, True),
    ],
)
def test_code_depends_on_the_architecture(text: str, sm: int, depends: bool) -> None:
    assert _depends_on_sm(text, sm) is depends
