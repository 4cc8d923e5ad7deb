"""Conditions and sizes in a source: the check has problems on each path, and finds what is wrong there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import convlab
from convlab.core.correctness import check as checking
from convlab.core.correctness.check import check
from convlab.core.kernel.catalog import parse_header
from convlab.core.kernel.kernel import compile
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from convlab.strict.generated_problems import generate
from convlab.strict.source_conditions import MOST, source_problems, source_targets, targets
from convlab.strict.source_reader import read
from tests.strangers import PARTS, SOURCE
from tests.suites import DEEP, parted

KINDS = ("conditions", "sizes", "wide")
PATHS = {name: case for kind in KINDS for name, case in parted("paths", kind).items()}
CORRECT = parted("paths", "correct")
USUAL = tuple(p for name in ("awkward", "limits") for p in problems(name)) + tuple(generate(40))
# These run on the simulator; with CONVLAB_DEEP=1 all of them do.
RUN = PATHS if DEEP else ("a_host_path_by_locals", "taps_past_a_shared_array", "a_wide_row")
RUN_CORRECT = CORRECT if DEEP else ("a_fast_layer", "unrolled_by_a_switch")


def found(code: str, **defines: int) -> list[str]:
    """Return the tests of the conditions in a function's body."""
    sites, _ = read({"a.cu": f"void f(const ConvProblem& conv) {{ {code} }}"}, defines)
    return [target.test for target in targets(sites, (), ()) if "together" not in target.words]


@pytest.mark.pure
@pytest.mark.parametrize(
    "code, test",
    [
        ("if (conv.K < 2000) f();", "K < 2000"),
        ("if (problem->C % 4 == 0) f();", "(C % 4) == 0"),
        ("constexpr int kMost = 4 * 16; const int Q = conv.Q; if (Q > kMost) f();", "Q > 64"),
        ("if (conv.C == 64 && conv.K == 64) f();", "(C == 64) and (K == 64)"),
        ("if (conv.C != 64) return; if (conv.K > 7) f();", "(C == 64) and (K > 7)"),
        ("if (conv.C > 5) { if (conv.K > 7) f(); }", "(C > 5) and (K > 7)"),
        ("if (conv.C > 5) f(); else if (conv.K > 7) f();", "(C <= 5) and (K > 7)"),
        ("const int n = conv.R; switch (n * conv.S) { case 9: f(); }", "(R * S) == 9"),
        ("int t = 8; if (conv.Q > 90) t = 64; if (t == 64) f();", "(64 if Q > 90 else 8) == 64"),
        ("if (!(conv.C & 31)) f();", "(C & 31) == 0"),
        ("x = conv.Q >> 4 == 3 ? 1 : 2;", "(Q >> 4) == 3"),
        ("if ((short)conv.K != conv.K) f();", "wrap(K, 16, False) != K"),
        ("if (std::min(conv.C, conv.K) >= int64_t(80)) f();", "min(C, K) >= 80"),
        ("if (g_bias != nullptr && conv.relu) f();", "(bias != 0) and (relu != 0)"),
        ("if (some[3] && conv.P == 14) f();", "P == 14"),
        ("auto one = [](int a) { return a / 2; }; if (one(conv.H) == 28) f();", "(H // 2) == 28"),
        ("if (conv.C % TILE == 0) f();", "(C % 24) == 0"),
    ],
)
def test_conditions_are_read(code: str, test: str) -> None:
    tests = found(code, TILE=24)
    assert test in tests or f"({test})" in tests, tests


@pytest.mark.pure
@pytest.mark.parametrize(
    "code",
    [
        "conv . R;",
        "// nothing",
        "for (int k = 0; k < conv.K; ++k) f();",
        "x = conv.K << 4;",
        "if (threadIdx.x == 0) f();",
        "int n = conv.K; while (n) n = n / 2;",
        "if (",
        "} } if (conv.",
        "template <typename T> x = a<b>(c;",
    ],
)
def test_what_is_no_condition_on_a_problem(code: str) -> None:
    assert not found(code)


@pytest.mark.pure
def test_sizes_of_arrays_are_read() -> None:
    code = "__global__ void f() { constexpr int n = 8; __shared__ float s[2 * n][5]; int r[n]; r[3] = 1; }"
    assert read({"a.cu": code}, {})[1] == [5, 8, 16, 80]


def stand_in(text: str) -> SimpleNamespace:
    """Return what `source_problems` needs of a kernel, without building one."""
    header = parse_header(text, "mine.cu")
    return SimpleNamespace(
        texts={"mine.cu": text, "convlab.cuh": "if (conv.K < 77) f();"},
        defines={},
        header=header,
        unsupported=lambda problem: header.unsupported(problem, 90, 232448),
    )


def problems_of(text: str) -> tuple[list[Problem], list[Problem]]:
    """Return the usual problems that a kernel supports, and those for its source."""
    kernel = stand_in(text)
    known = [problem for problem in USUAL if not kernel.unsupported(problem)]
    return known, source_problems(kernel, known)


@pytest.mark.pure
@pytest.mark.parametrize(("told", "parts"), PATHS.values(), ids=PATHS)
def test_a_problem_takes_each_path(told: str, parts: dict[str, str]) -> None:
    known, more = problems_of(SOURCE % (PARTS | parts))
    assert len(more) <= MOST and all(problem.name for problem in more)
    variables = [each.variables() | {"bias": each.bias} for each in known + more]
    assert any(eval(told, {}, values) for values in variables)


@pytest.mark.pure
def test_problems_are_few_and_on_both_sides() -> None:
    text = "void f(const ConvProblem& conv) { if (conv.K > 700 && conv.Q == 31) f(); }"
    _, more = problems_of(text)
    assert {(each.K > 700, each.Q) for each in more} >= {(True, 30), (True, 31), (True, 32)}
    assert {each.K for each in more if each.Q == 31} >= {700, 701}
    assert any("conv.K > 700 && conv.Q == 31, mine.cu:1" in each.name for each in more)
    many = " ".join(f"if (conv.K == {700 + 3 * i}) f();" for i in range(40))
    _, more = problems_of(f"void f(const ConvProblem& conv) {{ {many} }}")
    assert len(more) == MOST
    assert not any("77" in target.test for target in source_targets(stand_in(text)))


def mine(condition: str) -> convlab.Kernel:
    """Return 01_direct with an output that is incorrect under a condition."""
    text = convlab.load("01_direct", engine="sim").source
    wrong = f"g_y[i] = ({condition} ? 1.0f : 0.0f) + activated("
    return compile(text.replace("g_y[i] = activated(", wrong), name="mine", engine="sim")


def test_a_path_that_no_other_problem_takes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "named_problems", lambda name: [])
    report = check(mine("conv.Q > 113 && conv.Q < 115"), count=0, progress=False)
    assert not report.ok and {each.problem.Q for each in report.wrong} == {114}
    assert "for conditions and sizes in the source" in report.notes[0]
    assert "conv.Q > 113" in str(report)


@pytest.mark.parametrize("name", RUN)
def test_the_mistake_on_a_path_is_found(name: str) -> None:
    told, parts = PATHS[name]
    known, more = problems_of(SOURCE % (PARTS | parts))
    hit = [p for p in known + more if eval(told, {}, p.variables() | {"bias": p.bias})]
    kernel = compile(SOURCE % (PARTS | parts), name=name, engine="sim")
    assert not check(kernel, hit[:3], progress=False).ok


@pytest.mark.parametrize("name", RUN_CORRECT)
def test_a_correct_fast_path_is_correct(name: str) -> None:
    _, parts = CORRECT[name]
    _, more = problems_of(SOURCE % (PARTS | parts))
    kernel = compile(SOURCE % (PARTS | parts), name=name, engine="sim")
    assert more
    found = check(kernel, more, progress=False)
    assert found.ok, found
