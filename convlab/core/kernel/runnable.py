"""Runnables: all that can compute a problem. A kernel file, a library's convolution, a function.

The code that checks, times or explains uses only `Runnable` and the `Launch` that it prepares.
Every attribute has a default here, so that this code needs no test for the type of a runnable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from ..builds.cache import Build
from ..builds.source import Source
from ..cost import CostKind
from ..errors import ConvlabError, LaunchError, ProblemError, UnsupportedError
from ..machine.gpus import Gpu
from ..problem.computation import FORWARD
from ..problem.format import FLOAT32, Format
from ..problem.problem import Problem

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
Inputs = tuple[Tensor, Tensor, Tensor | None]


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a tensor with torch."""
    return torch.empty(shape, dtype=dtype, device=device)


class Launch:
    """A runnable bound to the tensors of one problem. Each call computes y once."""

    # x, w and bias (or None), in the runnable's format.
    inputs: Inputs
    # The output (N, K, P, Q). A kernel's y is allocated once, and not written before the first
    # call. A library's y is a new tensor after each call, and None during the call.
    y: Tensor | None
    # The workspace, as a tensor of bytes.
    workspace: Tensor | None = None
    # The prepared filter, as a tensor of bytes; None if the runnable does not prepare it.
    plan: Tensor | None = None
    # Whether each call runs in a new process, without state from earlier calls. Then
    # `call_after(problems)` first calls the kernel for other problems, in the same process,
    # `call_beside()` calls it twice, on two streams, and `call_again()` twice on one stream, directly
    # one after the other.
    own_process: bool = False
    # The simulator's counters for the last call, and its findings (`Finding`).
    counters: dict[str, float] | None = None
    findings: Sequence[Any] = ()
    # For a simulated call: kernel, grid and block of each launch; memory traffic by line; for a
    # small y, the line that stored each element last.
    launches: Sequence[Mapping[str, Any]] = ()
    # For the simulator: in a launch with more accesses than `most_watched` it watches only a part of
    # the blocks for races (0: it watches all). Did it do so in the last call?
    most_watched: int = 0
    watched_in_part: bool = False
    # For the simulator: a call that would start more threads than this raises TooManyThreads (0: no limit).
    most_threads: int = 0
    # For the simulator: whether a read of shared memory that nothing wrote is a warning, not an error.
    forgives: bool = False
    # For the simulator: whether a call counts. If not, it is faster, `counters` is None, and `lines` is
    # empty.
    counted: bool = True
    lines: Sequence[Mapping[str, Any]] = ()
    stored: Sequence[tuple[int, str, int]] = ()

    def __init__(self, runnable: Runnable, problem: Problem, inputs: Inputs) -> None:
        self.runnable = runnable
        self.problem = problem
        self.inputs = inputs

    def __call__(self) -> None:
        """Compute y; on a GPU asynchronously, on torch's current stream."""
        raise NotImplementedError

    def prepare_filter(self) -> None:
        """Prepare the filter again, as `Runnable.prepare` did; do nothing if `plan` is None."""


class Engine(Protocol):
    """Build and run kernels: the seam between the core and the simulator.

    The core has the engine "cuda" (`cuda.py`). The room ``sim`` provides "sim".

    Attributes
    ----------
    name : "cuda" or "sim".
    counts : whether a launch counts memory traffic; if True, its time has no meaning.
    time_limit : the default time limit of one launch, in seconds.
    at_once : how many launches may run at the same time; 1 on a GPU, which they would share.
    macs_in_a_second : multiply-adds per second, about; None if problems need no scaling down.
    """

    name: str
    counts: bool
    time_limit: float
    at_once: int
    macs_in_a_second: int | None

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""

    @property
    def target(self) -> tuple[int, int]:
        """The compute capability (90 for 9.0), and a block's shared memory limit in bytes."""

    def build(
        self, source: Source, defines: Mapping[str, object], trace: bool, counting: bool
    ) -> Build:
        """Compile a kernel file, or return the cached build. Raises BuildError.

        `trace` and `counting` say whether the simulator watches accesses, and whether it can count them.
        """

    def prepare(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> Launch:
        """Return the launch of a kernel for validated tensors."""

    def compute(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Tensor:
        """Run a kernel once and return y."""

    def interrupt(self) -> None:
        """End the launches that other threads wait for."""


class OwnTask(Protocol):
    """A task that a runnable brings, such as that of a kernel in a Python file."""

    def report(self) -> Any:
        """Check the runnable on it: the default check."""

    def inspection(self, gpu: Gpu) -> Any:
        """Inspect the kernels that the runnable launches on it."""

    def cost(self) -> tuple[CostKind, float]:
        """Return what a call costs: a time in ms, or counted traffic in MB."""


class Runnable:
    """The base class of `Kernel`, `Baseline` and `Function`, which compute a problem."""

    # The name in tables and messages. A library's name has a colon: "cudnn:fp32".
    name: str
    # The name in titles and legends.
    title: str
    # The precision class that sets the error bound: "fp32", "tf32", "bf16" or "fp16".
    precision: str
    # "cuda", "sim", or "torch" for code that runs on the CPU without the simulator.
    engine: str
    # The device of its tensors.
    device: torch.device
    # The dtypes and layouts of its tensors.
    format: Format = FLOAT32
    # A kernel's file, and its text.
    path: Path | None = None
    source: str | None = None
    # The tunables that were set.
    defines: Mapping[str, int] = MappingProxyType({})
    # All source texts, by name: the file and its headers.
    texts: Mapping[str, str] = MappingProxyType({})
    # What it computes: "forward", "data gradient", "weight gradient"; None if it computes them all.
    computes: str | None = FORWARD.name
    # "2x2" if the outputs of each 2x2 tile come from common sums, according to the header.
    mixes: str | None = None
    # Whether two runs may differ in bits, according to the header.
    atomics: bool = False
    # Whether only a library's code runs; such code needs no isolation.
    library: bool = False
    # The most bytes of workspace for a call; None if there is no way to limit it.
    workspace_limit: int | None = None
    # The time limit for one problem in the worker process, in seconds.
    time_limit: float = 20.0
    # Whether checks, and first calls, run in the worker process.
    isolate: bool = True
    # The runner (`runner.Runner`) of what calls it, if only that may; None for the usual one.
    own_runner: Any = None
    # The task that it brings; None if there are only problems.
    own_task: OwnTask | None = None
    # The engine; None for a library's convolution or a callable, which run without one.
    runs_on: Engine | None = None

    @property
    def counts(self) -> bool:
        """Whether a launch counts memory traffic; if True, its time has no meaning."""
        return self.runs_on is not None and self.runs_on.counts

    @property
    def has_workspace(self) -> bool:
        """Whether its source has an entry point that requests a workspace."""
        return "conv2d_workspace" in (self.source or "")

    def build(self) -> Build | None:
        """Compile the kernel; return None if there is nothing to compile."""
        return None

    def asked(self, problem: Problem) -> Problem:
        """Return the problem of the same convolution for what this runnable computes.

        A problem that is already one of the gradients stays what it is.
        """
        if self.computes is None or not problem.computation.is_forward:
            return problem
        return problem.computing(self.computes)

    def unsupported(self, problem: Problem) -> str | None:
        """Return why the runnable does not support a problem, or None if it does."""
        return None

    def accept(self, problem: Problem) -> None:
        """Raise UnsupportedError if the runnable does not support a problem."""
        if reason := self.unsupported(problem):
            error = UnsupportedError(
                f"{self.name} does not support {problem.label}: {reason}{self._instead(problem)}"
            )
            error.problem = problem
            raise error

    def _instead(self, problem: Problem) -> str:
        """Return which kernels support a problem instead, as the end of a sentence."""
        return ""

    def coarser(self) -> Runnable | None:
        """Return this runnable in the class tf32, if its class was only assumed; else None."""
        return None

    def on_gpu(self, gpu: Gpu) -> Runnable:
        """Return this runnable on a simulator that is another GPU.

        Raises ProblemError for one that does not run on the simulator.
        """
        raise ProblemError(
            f"{self.name} runs with engine={self.engine!r}, but only the simulator can be another "
            f'GPU, such as {gpu.name}: use engine="sim"'
        )

    def untraced(self) -> Runnable:
        """Return this runnable without the simulator's counts and diagnostics: it runs faster."""
        return self

    def uncounted(self) -> Runnable:
        """Return this runnable without the simulator's counts, but with all diagnostics."""
        return self

    def tuned(self, tunables: Mapping[str, int]) -> Runnable:
        """Return this runnable with other values of tunables. Raises ProblemError if it has none."""
        raise ProblemError(f"{self.name} has no tunables: sweep takes a kernel")

    def simulated(self, time_limit: float) -> Runnable | None:
        """Return this runnable for an engine that counts and checks; None if there is none.

        `time_limit` is that of a call, in seconds.
        """
        return None

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Validate the tensors, allocate y, and return the launch.

        x, w and bias have the problem's shapes and the dtypes of `format`, and are on `device`.
        `allocate` returns a contiguous tensor for (shape, dtype, device). It allocates y and the
        workspace. The check passes a function that adds guard zones. Runnables that allocate y
        themselves ignore it.
        """
        raise NotImplementedError


def asked_of_all(runnables: Sequence[Runnable], problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems for what the runnables compute, all the same.

    Problems that are all gradients already stay what they are. Raises ProblemError if the runnables
    compute different things, which cannot be compared.
    """
    if not any(problem.computation.is_forward for problem in problems):
        return list(problems)
    by_what = {each.computes: each.name for each in runnables if each.computes is not None}
    if len(by_what) > 1:
        found = ", ".join(f"{name} ({what})" for what, name in by_what.items())
        raise ProblemError(
            f"these kernels compute different things, which cannot be compared: {found}; compare "
            "kernels with the same `computes:` in their headers"
        )
    for each in runnables:
        if each.computes is not None:
            return [each.asked(problem) for problem in problems]
    return list(problems)


def run(launch: Launch) -> None:
    """Run a launch and wait until it ends. Raises LaunchError."""
    with explained(launch.runnable.name):
        launch()
        if launch.runnable.device.type == "cuda":
            torch.cuda.synchronize(launch.runnable.device)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Convert torch's errors about memory and the GPU into LaunchErrors that name the runnable."""
    try:
        yield
    # torch.OutOfMemoryError is a RuntimeError.
    except RuntimeError as error:
        message = str(error).strip().split("\n")[0]
        if isinstance(error, torch.OutOfMemoryError):
            text = f": memory ran out; use a smaller problem. {message}"
        elif isinstance(error, ConvlabError) or "CUDA" not in message:
            raise
        else:
            text = (
                f" failed while it ran: {message} (this process can no longer use the GPU: restart "
                "Python)"
            )
        raise LaunchError(name + text) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that the GPU's memory ran out."""
    if isinstance(error, torch.OutOfMemoryError) or getattr(error, "kind", "") == "out of memory":
        return True
    text = str(error).lower()
    return any(
        words in text for words in ("out of memory", "not enough gpu memory", "memory ran out")
    )
