"""CUDA cases in ``cuda/SUITE.cu``: what is launched, and what must come of it, beside each kernel.

    // case reverse: reverse<<<3, arg, 4 * arg, stream>>>(x, y);
    // args: 1, 32; x: 3 * arg
    // expect: x.reshape(3, arg).flip(1)
    __global__ void reverse(const float* x, float* y) {

A launch sees x, w, y, n, m, arg, workspace and stream. x has ``x`` floats (64 unless told), y has
``k`` (1) for each, n and m in all; ``arg`` is each of ``args`` (0). The values are Python. What
other keys mean, the tests say that use them. A longer line goes on in the next, indented by 4.

A suite is compiled as one file, whose entry point picks the case by a number that has no other
effect: the dilation of a 1x1 filter.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import convlab
from convlab.core.builds import build
from convlab.core.builds.compile_error import compile_error
from convlab.core.builds.source import Source
from convlab.core.kernel.runnable import Launch
from convlab.core.machine import toolchain
from convlab.core.problem.problem import Problem

FOLDER = Path(__file__).parent / "cuda"
ENGINES = ["sim", pytest.param("cuda", marks=pytest.mark.gpu)]
# CONVLAB_DEEP=1 has all run that is simulated; else of long tables a part, which CI has.
DEEP = bool(os.environ.get("CONVLAB_DEEP"))
needs_nvcc = pytest.mark.skipif(toolchain.cuda() is None, reason="needs nvcc")
needs_tools = pytest.mark.skipif(
    toolchain.cuda() is None or toolchain.find("nvdisasm") is None, reason="needs nvcc and nvdisasm"
)
ENTRY = """
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 256; }
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int n = problem->W, m = problem->K * problem->W, arg = problem->dilation_w - 1;
    (void)n, (void)m, (void)arg;
    switch (problem->dilation_h - 1) {
%s
    }
    return launch_error();
}
"""


def line_of(text: str, part: str) -> int:
    """The number of the first line that holds a part of it."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def inputs(n: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers as floats: sums of them are exact in any order."""
    return torch.randint(-50, 50, (n,), generator=torch.Generator().manual_seed(seed)).float()


def parted(name: str, kind: str) -> dict[str, tuple[str, dict[str, str]]]:
    """What is told of each case of a kind in ``cuda/NAME.cu``, and its texts for places in another.

    // ---- kind: in words
    // case host_reads: what is told of it
    // in host:
    float first = y[0];
    """
    found = {}
    text = (FOLDER / f"{name}.cu").read_text().split(f"\n// ---- {kind}: ")[1]
    for case in text.partition("\n// ---- ")[0].split("\n// case ")[1:]:
        head, *parts = case.rstrip("\n").split("\n// in ")
        title, _, told = head.partition(": ")
        found[title] = told.strip(), dict(part.split(":\n", 1) for part in parts)
    return found


def cubin(source: Source, arch: str, folder: Path) -> tuple[Path, str]:
    """Compile device code for "80" or "90a"; return its path, and what ``ptxas -v`` said of it."""
    done = build.device_code(source, arch, folder)
    if done.returncode:
        raise compile_error(source, done.stdout + done.stderr)
    return folder / "kernel.cubin", done.stderr


def on_engines(table: Mapping[str, object], of: int) -> list:
    """(case, engine) of all on a GPU, and on the simulator of one in so many."""
    return [
        pytest.param(case, engine, id=f"{name}-{engine}", marks=marks)
        for engine, marks in (("sim", ()), ("cuda", pytest.mark.gpu))
        for place, (name, case) in enumerate(table.items())
        if engine == "cuda" or DEEP or place % of == 0
    ]


class Suite:
    """The cases of a file, or of a text, by name: each a dict of its keys, "launch" and "code"."""

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        text = (FOLDER / f"{name}.cu").read_text() if text is None else text
        self.cases: dict[str, dict[str, str]] = {}
        for part in re.split(r"^// case ", text, flags=re.M)[1:]:
            comment = re.match(r".*\n(?://.*\n)*", part).group()
            case, _, first = comment.partition(":")
            launch, *rest = re.sub(r"\n//     +", "\n    ", first).split("\n// ")
            found = {"launch": launch, "code": part[len(comment) :]}
            pairs = "; ".join(" ".join(line.split()) for line in rest)
            for pair in re.split(r"; (?=\w+: )", pairs):
                key, _, found[key] = pair.partition(": ")
            self.cases[case] = found
        arms = [
            f"    case {i}: {{ {case['launch'].strip()} break; }}"
            for i, case in enumerate(self.cases.values())
        ]
        self.source = text + ENTRY % "\n".join(arms)

    @functools.cache  # noqa: B019  (there are few suites, and they stay)
    def compiled(self, engine: str) -> convlab.Kernel:
        """The kernel that runs its cases; "untraced" is the simulator without its hooks."""
        how = {"engine": "sim", "trace": False} if engine == "untraced" else {"engine": engine}
        return convlab.compile(self.source, name=self.name, **how)

    def value(self, name: str, key: str, default: str = "", **names: object) -> object:
        """What a key says, evaluated."""
        return eval(self.cases[name].get(key, default), {"np": np, "torch": torch} | names)

    def prepare(self, name: str, arg: int = 0, engine: str = "sim") -> Launch:
        """Prepare one case; return the Launch."""
        n = self.value(name, "x", "64", arg=arg)
        k = self.value(name, "k", "1")
        problem = Problem(1, 1, 1, n, k, 1, 1, dilation=(list(self.cases).index(name) + 1, arg + 1))
        kernel = self.compiled(engine)
        if "index out of bounds" in self.cases[name].get("fault", ""):
            kernel = kernel.untraced()  # see the flags in sim/library.py
        x = inputs(n).reshape(1, 1, 1, n)
        w = inputs(k, seed=1).reshape(k, 1, 1, 1)
        return kernel.prepare(problem, x.to(kernel.device), w.to(kernel.device))

    def launch(self, name: str, arg: int = 0, engine: str = "sim") -> Launch:
        """Run one case; return the Launch."""
        launch = self.prepare(name, arg, engine)
        launch()
        return launch

    def check(self, name: str, arg: int, engine: str, **names: object) -> None:
        """Run one case and compare what it wrote, seen as a ``view``, with what it should have."""
        launch = self.launch(name, arg, engine)
        view = getattr(torch, self.cases[name].get("view", "float32"))
        x = launch.inputs[0].cpu().flatten()
        expected = self.value(name, "expect", x=x, arg=arg, **names)
        expected = torch.as_tensor(np.asarray(expected)).flatten()
        actual = launch.y.cpu().flatten().view(view)[: expected.numel()]
        torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-6, atol=1e-6)

    def parameters(self) -> list:
        """(suite, case, argument) of all, with readable ids."""
        return [
            pytest.param(
                self,
                name,
                arg,
                id=f"{self.name}-{name}" + (f"-{arg}" if arg else ""),
                marks=pytest.mark.xdist_group(self.name),  # it is compiled by one process
            )
            for name in self.cases
            for arg in np.atleast_1d(self.value(name, "args", "0")).tolist()
        ]
