"""What can be asked to compute a problem: a kernel file, a library's convolution, a function.

Whoever checks, times or explains handles a `Runnable` and the `Launch` that it prepares, and
nothing else: what one of them has not is a default here, so that nobody has to ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConvlabError, LaunchError, UnsupportedError
from ..problem.format import FLOAT32, Format, Storage
from ..problem.problem import Problem

if TYPE_CHECKING:
    from ..builds.build import Build
    from ..builds.nvcc import Said

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
Inputs = tuple[Tensor, Tensor, Tensor | None]


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a tensor as torch does."""
    return torch.empty(shape, dtype=dtype, device=device)


class Launch:
    """A runnable bound to one problem's tensors; calling it computes y once more."""

    inputs: Inputs  # x, w and bias (or None) as the runnable sees them
    # (N, K, P, Q), allocated but not written before the first call; a library's is a new tensor
    y: Tensor | None  # after each call, and None while it runs
    workspace: Tensor | None = None  # of bytes
    plan: Tensor | None = None  # of bytes: the filter laid out, where the runnable does that
    counters: dict[str, float] | None = None  # what the simulator counted in the last call, and
    findings: Sequence[Any] = ()  # what it found (`convlab.sim.Finding`)
    # Of a simulated call: kernel, grid and block of each launch; memory traffic by line.
    launches: Sequence[Mapping[str, Any]] = ()
    lines: Sequence[Mapping[str, Any]] = ()
    stored: Sequence[tuple[int, str, int]] = ()

    def __init__(self, runnable: Runnable, problem: Problem, inputs: Inputs) -> None:
        self.runnable = runnable
        self.problem = problem
        self.inputs = inputs

    def __call__(self) -> None:
        """Compute y: on a GPU asynchronously, on torch's current stream."""
        raise NotImplementedError

    def call_after(self, earlier: Sequence[Problem]) -> None:
        """Call it in a process that has called the runnable for other problems, on other numbers.

        Those lie at the same addresses where they fit, and so do the last one's workspace and plan;
        for the same problem they are the same but for two of each tensor. Where there are streams,
        the largest but the last runs once more, on another, beside the last and this one: only the
        last comes between what it leaves behind and this one.
        """
        there = [(tensor, tensor.clone()) for tensor in self.inputs if tensor is not None]

        def call(problem: Problem, lent: Sequence[str] = ()) -> Launch:
            for tensor, before in there:
                tensor.copy_(before).neg_()
                if problem == self.problem:  # the ends, and the sum, stay
                    flat = tensor.neg_().as_strided((tensor.numel(),), (1,))
                    size = tensor.numel()
                    i = 3 * size // 7
                    j = 5 * size // 7
                    flat[i], flat[j] = flat[j].clone(), flat[i].clone()
            launch = self.runnable.prepare(problem, *self._fitted(problem))
            for name in lent:
                mine = getattr(self, name)
                its = getattr(launch, name)
                if mine is not None and its is not None and len(its) <= len(mine):
                    setattr(launch, name, mine[: len(its)])
            launch.prepare_filter()
            launch()
            return launch

        calls = [call(problem) for problem in earlier[:-1]]
        beside = None
        if self.runnable.device.type == "cuda" and calls:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                max(calls, key=lambda call: call.problem.macs)()
        for problem in earlier[-1:]:
            call(problem, ("workspace", "plan"))
        for tensor, before in there:
            tensor.copy_(before)
        self.prepare_filter()
        self()
        if beside is not None:
            torch.cuda.current_stream().wait_stream(beside)

    def _fitted(self, problem: Problem) -> Inputs:
        """Tensors of another problem, at the same addresses where they are not larger."""

        def fit(tensor: Tensor | None, stored: Storage, *shape: int) -> Tensor | None:
            if tensor is None:
                return None
            flat = tensor.as_strided((tensor.numel(),), (1,))
            size = math.prod(shape)
            flat = flat[:size] if size <= len(flat) else flat.new_zeros(size)
            return stored.logical(flat.view(stored.in_memory(shape)))

        (x, w, bias) = self.inputs
        lie = self.runnable.format
        return (
            fit(x, lie.x, *problem.x_shape),
            fit(w, lie.w, *problem.w_shape),
            fit(bias, lie.bias, problem.K),
        )

    def prepare_filter(self) -> None:
        """Lay the filter out once more, as `Runnable.prepare` did; nothing where `plan` is None."""


class Runnable:
    """What computes a problem: `Kernel`, `Baseline` and `Function` derive from it."""

    name: str  # for tables and messages; a library's has a colon: "cudnn:fp32"
    title: str  # for people
    precision: str  # the class that it is judged by: "fp32", "tf32", "bf16" or "fp16"
    engine: str  # "cuda", "sim", or "torch" for what runs on the CPU without the simulator
    device: torch.device  # where its tensors live
    format: Format = FLOAT32  # dtype and layout of its tensors
    path: Path | None = None  # a kernel's file, and
    source: str | None = None  # its text
    defines: Mapping[str, int] = MappingProxyType({})  # the tunables that were set
    texts: Mapping[str, str] = MappingProxyType({})  # that it is made of, by name: with headers
    mixes: str | None = None  # "2x2": outputs of such a tile are made of the same sums, as it says
    atomics: bool = False  # two runs may differ in bits, by its own word
    library: bool = False  # none of a learner's CUDA code runs: it is never isolated
    workspace_limit: int | None = None  # bytes that a call may take; None: cannot be limited
    time_limit: float = 20.0  # seconds that a problem may take in the worker process
    isolate: bool = True  # whether it runs there first, or where it is checked

    @property
    def simulated(self) -> bool:
        """Whether a launch counts what it does, instead of taking a time that means something."""
        return self.engine == "sim"

    def build(self) -> Build | None:
        """Compile what must be compiled; None where there is nothing."""
        return None

    def by_nvcc(self) -> Said | None:
        """Have it compiled by nvcc, too, where something else compiled what runs; else None."""
        return None

    def unsupported(self, problem: Problem) -> str | None:
        """Return why it cannot do a problem, or None."""
        return None

    def accept(self, problem: Problem) -> None:
        """Raise UnsupportedError where it cannot do a problem."""
        if reason := self.unsupported(problem):
            text = f"{self.name} cannot do {problem.label}: {reason}{self._instead(problem)}"
            raise UnsupportedError(text)

    def _instead(self, problem: Problem) -> str:
        """What to use for a problem that it cannot do, as the end of a sentence."""
        return ""

    def untraced(self) -> Runnable:
        """Itself, without what the simulator counts and looks for: several times as fast there."""
        return self

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Validate and allocate, and return what launches.

        x, w and bias are of the problem's shapes in `format`, on `device`. `allocate` makes y and
        the workspace from (shape, dtype, device), contiguous; a checker passes its own, with guard
        zones. What allocates for itself ignores it.
        """
        raise NotImplementedError


def run(launch: Launch) -> None:
    """Run a launch and wait for it. Raises LaunchError, also where the GPU fails only later."""
    with explained(launch.runnable.name):
        launch()
        if launch.runnable.device.type == "cuda":
            torch.cuda.synchronize(launch.runnable.device)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn torch's errors of memory and of the GPU into LaunchErrors that name the runnable."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        message = str(error).strip().split("\n")[0]
        if isinstance(error, torch.OutOfMemoryError):
            text = f": memory ran out; take a smaller problem. {message}"
        elif isinstance(error, ConvlabError) or "CUDA" not in message:
            raise
        else:
            text = (
                f" failed while it ran: {message} (after this the GPU is lost to this process: "
                "start Python anew)"
            )
        raise LaunchError(name + text) from error
