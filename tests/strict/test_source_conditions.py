"""Conditions on dimensions in a source are places to put problems on both sides of."""

from __future__ import annotations

import pytest

import convlab
from convlab.core.correctness import check as checking
from convlab.core.correctness.check import check
from convlab.core.kernel.kernel import compile
from convlab.strict.source_conditions import MOST, conditions, source_problems


@pytest.mark.pure
@pytest.mark.parametrize(
    "code, expected",
    [
        ("if (conv.K < 2000) f();", ("K", (1999, 2000, 2001))),
        ("if (problem->C % 4 == 0) f();", ("C", (12, 13))),
        (
            "constexpr int kMost = 64;\nconst int Q = conv.Q; if (Q > kMost) f();",
            ("Q", (63, 64, 65)),
        ),
        ("conv.stride_h == 1 && x", ("stride_h", (1, 2))),
        ("conv . R", None),
        ("if (conv.N == 0) return nullptr;", None),
        ("// conv.K < 2000\n/* conv.K < 2000 */", None),
        ("for (int k = 0; k < conv.K; ++k)", None),
        ("x = conv.K << 4;", None),
    ],
)
def test_conditions_are_read(code: str, expected: tuple | None) -> None:
    found = conditions({"a.cu": code})
    assert [each[:2] for each in found] == ([expected] if expected else [])
    assert all("a.cu:" in each.text for each in found)
    assert not conditions({"convlab.cuh": code})


def mine(condition: str) -> convlab.Kernel:
    """Return 01_direct with an output that is incorrect under a condition."""
    text = convlab.load("01_direct", engine="sim").source
    wrong = f"g_y[i] = ({condition} ? 1.0f : 0.0f) + activated("
    return compile(text.replace("g_y[i] = activated(", wrong), name="mine", engine="sim")


def test_problems_are_on_both_sides_and_few() -> None:
    found = list(source_problems(mine("conv.K > 700 && conv.Q == 31 && conv.C % 24 == 0")))
    assert {problem.K for problem in found} >= {700, 701}
    assert {problem.Q for problem in found} >= {30, 31, 32}
    assert {problem.C for problem in found} >= {72, 73}
    assert "conv.K > 700, mine.cu:54" in found[0].name
    many = " || ".join(f"conv.K == {700 + 3 * i}" for i in range(40))
    assert len(list(source_problems(mine(many)))) == MOST


def test_a_path_that_no_other_problem_takes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "named_problems", lambda name: [])
    found = check(mine("conv.Q > 113 && conv.Q < 115"), count=0, progress=False)
    assert not found.ok and {report.problem.Q for report in found.wrong} == {114}
    assert "on both sides of conditions in the source" in found.notes[0]
    assert "conv.Q > 113" in str(found)
