"""The answers for KernelBench: self-contained files with the rungs' kernels, and torch's weights."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import convlab
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.problem.problem import Problem
from tests.instruments import kernelbench

TASKS = ["50", "55", "56", "62", "63", "80", "82", "83", "84", "85", "86", "87"]
TRANSPOSED = ["57", "64", "65", "69", "71", "74", "75", "78", "79", "81"]
ONE_DIMENSIONAL = ["64", "67", "74", "76", "79"]
SMALL = Problem(1, 8, 9, 12, 8, 3, 3)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], tuple[types.ModuleType, list[dict]]]:
    """Run an answer without compiling; return its module, and the arguments of load_inline."""

    signature = inspect.signature(cpp_extension.load_inline)

    def ran(path: Path) -> tuple[types.ModuleType, list[dict]]:
        calls = []

        def load_inline(*given: object, **named: object) -> types.SimpleNamespace:
            calls.append(signature.bind(*given, **named).arguments)
            return types.SimpleNamespace()

        module = types.ModuleType("answer")
        with monkeypatch.context() as patched:
            patched.setattr(cpp_extension, "load_inline", load_inline)
            exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        return module, calls

    return ran


@pytest.mark.pure
@pytest.mark.parametrize("precision", kernelbench.PRECISIONS)
def test_answers_are_self_contained(
    precision: str, tmp_path: Path, run: Callable[[Path], tuple[types.ModuleType, list[dict]]]
) -> None:
    written = kernelbench.write(tmp_path, precision)
    assert [path.name for path in written] == [
        f"{task}_{precision}.py" for task in (*TASKS, *TRANSPOSED, "67", "76")
    ]
    for path, convolutions in zip(written, kernelbench.tasks(precision).values(), strict=True):
        module, calls = run(path)
        assert len(calls) == len(convolutions) == 1 + path.name.startswith("86")
        assert len({call["name"] for call in calls}) == len(calls)
        for call, convolution in zip(calls, convolutions, strict=True):
            cuda = str(call["cuda_sources"])
            assert not re.search(r'#include "', cuda), "a local header is left"
            assert len(re.findall(r"^struct ConvProblem \{", cuda, re.MULTILINE)) == 1
            assert "convlab" not in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.M)
            assert convolution.kernel.header.precision in ("fp32", precision)
            assert not re.search(r"\bpass\b|\btry\s*:", re.sub(r"//.*|#.*", "", path.read_text()))
        # The reference's weights, from the same seed.
        torch.manual_seed(42)
        answer = module.ModelNew()
        torch.manual_seed(42)
        for i, convolution in enumerate(convolutions):
            reference = _torchs(path.name[:2], convolution.problem)
            weight = getattr(answer, f"w_{i}")
            assert torch.equal(weight.view(reference.weight.shape), reference.weight)
            p = convolution.problem
            bias = getattr(answer, f"bias_{i}")
            assert torch.equal(bias, reference.bias) if p.bias else bias.numel() == 0


def _torchs(task: str, p: Problem) -> torch.nn.Module:
    """Return the layer of a task."""
    sizes = (p.S,) if task in ONE_DIMENSIONAL else (p.R, p.S)
    options = {"groups": p.groups, "bias": p.bias}
    if task not in TRANSPOSED:
        layer = torch.nn.Conv1d if task in ONE_DIMENSIONAL else torch.nn.Conv2d
        return layer(p.C, p.K, sizes, **options)
    layer = torch.nn.ConvTranspose1d if task in ONE_DIMENSIONAL else torch.nn.ConvTranspose2d
    return layer(p.K, p.C, sizes, **options)


@pytest.mark.pure
def test_forward_has_the_shapes_of_the_task(
    tmp_path: Path, run: Callable[[Path], tuple[types.ModuleType, list[dict]]]
) -> None:
    for path in kernelbench.write(tmp_path, "tf32"):
        module, calls = run(path)
        task = path.name[:2]
        (problem, *_) = [each.problem for each in kernelbench.tasks("tf32")[task]]
        taken = []

        def convolve(x: torch.Tensor, *_: torch.Tensor, taken: list = taken) -> torch.Tensor:
            taken.append(tuple(x.shape))
            return x

        for i in range(len(calls)):
            setattr(module, f"module_{i}", types.SimpleNamespace(convolve=convolve))
        shape = list(problem.first_shape)
        if task in ONE_DIMENSIONAL:
            del shape[2]
        y = module.ModelNew()(torch.empty(shape, device="meta"))
        assert taken[0] == problem.first_shape and y.dim() == len(shape)
        entry = problem.computation.entry
        assert str(calls[0]["cpp_sources"]).count(f"{entry}(") == 2


@pytest.mark.pure
def test_the_binding_has_the_fields_of_the_problem(tmp_path: Path) -> None:
    text = (KERNEL_DIR / "convlab.cuh").read_text()
    struct = re.search(r"struct ConvProblem \{(.*?)\};", text, re.DOTALL)
    assert struct is not None
    fields = re.findall(r"(\w+)\s*[,;]", re.sub(r"//.*", "", struct[1]))
    binding = re.compile(r"struct ConvProblem \{\n    int (.*);\n\};\nextern")
    for path in kernelbench.write(tmp_path, "tf32"):
        bound = binding.findall(path.read_text())
        assert bound
        assert all(names.split(", ") == fields for names in bound)


@pytest.mark.parametrize("task", ["63", "82", "57", "75"])
def test_an_answer_has_the_rung(
    task: str, tmp_path: Path, run: Callable[[Path], tuple[types.ModuleType, list[dict]]]
) -> None:
    (path,) = [path for path in kernelbench.write(tmp_path, "tf32") if path.name[:2] == task]
    _, (call,) = run(path)
    alone = tmp_path / "alone.cu"
    alone.write_text(str(call["cuda_sources"]))
    problem = SMALL if task != "82" else Problem(1, 8, 9, 12, 8, 3, 3, groups=8)
    kernel = convlab.load(alone, engine="sim")
    assert convlab.check(kernel, kernel.asked(problem)).ok
