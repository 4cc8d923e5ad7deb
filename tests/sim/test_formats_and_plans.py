"""Kernels with formats, an architecture or a prepared filter in their header, on each engine."""

from __future__ import annotations

import pytest
import torch

import convlab
from convlab.core.correctness.examine import Guards
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.kernel import data
from convlab.core.kernel.kernel import Kernel
from convlab.core.kernel.runnable import empty
from convlab.core.problem.problem import Problem
from tests.suites import ENGINES, FOLDER

PROBLEM = Problem(2, 3, 5, 7, 3, 1, 1)

# Copies x to y, like a 1x1 filter with ones on the diagonal.
COPY = (FOLDER / "copy.cu").read_text()

# conv2d_prepare adds 1 to the filter; conv2d stores the sum of the plan, or of w without a plan.
PLANNED = (FOLDER / "planned.cu").read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_half_precision_with_channels_last(engine: str) -> None:
    kernel = convlab.compile(COPY, name="copy", engine=engine)
    x, w, _ = data.inputs(PROBLEM, 0, kernel.device, format=kernel.format)
    assert x.dtype == w.dtype == torch.float16
    assert x.is_contiguous(memory_format=torch.channels_last)
    for given in (x, x.contiguous()):
        y = kernel(given, w)
        assert y.dtype == torch.float16 and torch.equal(y, x)
        assert y.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(
        ProblemError, match=r"x is torch\.float32, but copy takes .*16: pass x\.half"
    ):
        kernel(x.float(), w)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_filter_is_prepared_before_the_call(engine: str) -> None:
    kernel = convlab.compile(PLANNED, name="planned", engine=engine)
    x, w, _ = data.inputs(PROBLEM, 0, kernel.device)
    launch = kernel.prepare(PROBLEM, x, w)
    launch()
    close = {"rtol": 0, "atol": 1e-5}
    if engine == "sim":
        assert [each["kernel"] for each in launch.launches] == ["plus_one", "sum"]
        assert launch.findings == []
    torch.testing.assert_close(kernel(x, w)[0, 0, 0, 0], (w + 1).sum(), **close)
    torch.testing.assert_close(kernel(x, w, stride=2)[0, 0, 0, 0], w.sum(), **close)  # no plan
    with pytest.raises(LaunchError, match="planned failed: too many"):
        kernel(torch.ones(1, 4, 3, 3).to(kernel.device), torch.ones(4, 4, 3, 3).to(kernel.device))


def test_only_the_entry_point_prepares() -> None:
    source = PLANNED.replace("const char* conv2d_prepare(", "const char* prepare(")
    kernel = convlab.compile(source, name="half", engine="sim")
    x, w, _ = data.inputs(PROBLEM)
    with pytest.raises(LaunchError, match="defines no conv2d_prepare, which conv2d_plan needs"):
        kernel(x, w)


def test_the_simulator_is_an_h200() -> None:
    for arch, runs in (("sm_90a", True), ("sm_100a", False)):
        kernel = convlab.compile(f"// arch: {arch}\n{PLANNED}", engine="sim")
        assert isinstance(kernel, Kernel) and (kernel.unsupported(PROBLEM) is None) == runs


@pytest.mark.parametrize("engine", ENGINES)
def test_workspace_and_plan_are_aligned_as_in_convlab_cuh(engine: str) -> None:
    wants = "CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 300; }\n"
    at = "CONVLAB_ENTRY const char* conv2d(const"
    asks = "".join(
        f'if (uintptr_t({what}) % 256) return "misplaced";' for what in ("workspace", "w")
    )
    before, after = PLANNED.split(at)
    kernel = convlab.compile(before + wants + at + after.replace("{", "{" + asks, 1), engine=engine)
    x, w, _ = data.inputs(PROBLEM, 0, kernel.device)
    for allocate in empty, Guards().allocate:
        kernel.prepare(PROBLEM, x, w, allocate=allocate)()
    with pytest.raises(LaunchError, match="misplaced"):
        kernel(x, torch.ones(16).to(x)[1:10].view(3, 3, 1, 1), stride=2)  # w itself: no plan
