"""A problem of "limits" that repeats another one runs only if the kernel may treat it differently."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import convlab
from convlab.core.correctness import check as checking
from convlab.core.correctness.check import check
from convlab.core.kernel.kernel import compile
from convlab.core.problem.named import problems
from convlab.strict.repeated_limits import _REPEATED, without_repeated

START = "    if (conv.N == 0) return nullptr;"


def mine(before: str = "") -> convlab.Kernel:
    """Return 01_direct with a line before the launch."""
    text = convlab.load("01_direct", engine="sim").source
    assert text.count(START) == 1
    return compile(text.replace(START, f"    {before}\n{START}"), name="mine", engine="sim")


def uncompiled(code: str, supports: str = "True") -> SimpleNamespace:
    """Return what `without_repeated` uses of a kernel."""
    texts = {"mine.cu": code, "convlab.cuh": "if (conv.R == 3 && conv.C % 8) {}"}
    unsupported = lambda problem: "" if eval(supports, problem.variables()) else "unsupported"
    return SimpleNamespace(source=code or " ", texts=texts, unsupported=unsupported)


def left_out(kernel: SimpleNamespace) -> set[str]:
    """Return the names of the problems of "limits" that a check leaves out."""
    limits = problems("limits")
    needed = without_repeated(kernel, limits)
    return {p.name.removeprefix("limits.") for p in limits if p not in needed}


@pytest.mark.pure
def test_each_repeats_a_problem_of_the_default_check() -> None:
    names = {problem.name for name in ("awkward", "limits") for problem in problems(name)}
    assert names >= {*_REPEATED, *(other for other, _ in _REPEATED.values())}
    assert not _REPEATED.keys() & {other for other, _ in _REPEATED.values()}


@pytest.mark.pure
@pytest.mark.parametrize(
    "code, run",
    [
        ("", ""),
        ("// if (conv.R == 3)", ""),
        ("int r = 9 / conv.S % conv.R;", ""),
        ("for (int r = 0; r < conv.R; ++r) {}", ""),
        ("if (conv.R == 3) {}", "3x3 1x1"),
        ("const int RS = conv.R * conv.S; if (RS == 9) {}", "3x3 1x1"),
        ("int taps = conv.R; if (taps < 4) {}", "3x3 1x1"),
        ("if (3 == conv.S) {}", "3x3 1x1"),
        ("switch (conv.R) {}", "3x3 1x1"),
        ("if (conv.C % 8) {}", "octets"),
        ("int C_group = conv.C; if (C_group % 4 == 0) {}", "octets"),
        ("if (conv.K & 7) {}", "octets"),
        ("if (conv.groups > 1) {}", "4099"),
    ],
)
def test_a_condition_on_the_filter_or_the_channels_keeps_them(code: str, run: str) -> None:
    everything = {name.removeprefix("limits.") for name in _REPEATED}
    kept = {name for name in everything if name.partition("_")[2] in run.split()}
    if run not in ("", "4099"):
        # It has another filter than the problem that it repeats, and other channels.
        kept.add("width_octets")
    if run == "octets":
        kept.add("depthwise_4099")
    if run in ("octets", "4099"):
        kept.add("empty_depthwise")
    assert left_out(uncompiled(code)) == everything - kept


@pytest.mark.pure
def test_a_kernel_that_does_not_support_the_other_one_runs_them() -> None:
    left = left_out(uncompiled("", "R == 3 and S == 3"))
    assert not {"images_3x3", "width_3x3"} & left and "channels_octets" in left


def test_the_report_says_how_many_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"awkward": ["awkward.primes"], "limits": ["limits.channels_1x1", "limits.stride_9x17"]}
    few = {name: [convlab.problem(each) for each in names] for name, names in few.items()}
    monkeypatch.setattr(checking, "named_problems", few.get)
    found = check(mine(), count=0, progress=False)
    assert "not run: 1 fixed problems that repeat others for this kernel" in str(found)
    assert "limits.channels_1x1" not in {report.problem.name for report in found}
    kept = check(mine("if (conv.R == 1) {}"), count=0, progress=False)
    assert "limits.channels_1x1" in {report.problem.name for report in kept}


def test_the_report_names_a_problem_whose_largest_tensor_is_an_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {"awkward": ["awkward.primes"], "limits": ["limits.outputs_17M"]}
    few = {name: [convlab.problem(each) for each in names] for name, names in few.items()}
    monkeypatch.setattr(checking, "named_problems", few.get)
    kernel = convlab.load("18_data_gradient", engine="sim")
    # Its dy has 17 million elements, its dx few.
    notes = check(kernel, count=0, progress=False).notes
    assert "not run: limits.outputs_17M, data gradient, too large for the simulator" in notes
