"""What can be asked to compute a problem: a kernel file, a library's convolution, a function.

Whoever checks, times or explains handles a `Runnable` and the `Launch` that it prepares, and
nothing else: what one of them has not is a default here, so that nobody has to ask.
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
from ..errors import ConvlabError, LaunchError, UnsupportedError
from ..problem.format import FLOAT32, Format
from ..problem.problem import Problem

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
    # Whether each call runs in a process of its own, where earlier calls leave nothing behind; then
    # `call_after(problems)` calls the kernel for other problems first, in the same process.
    own_process: bool = False
    counters: dict[str, float] | None = None  # what the simulator counted in the last call, and
    findings: Sequence[Any] = ()  # what it found (`Finding`)
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

    def prepare_filter(self) -> None:
        """Lay the filter out once more, as `Runnable.prepare` did; nothing where `plan` is None."""


class Engine(Protocol):
    """Where kernels are built and run: the seam between the core and the simulator.

    The core has the engine "cuda" (`cuda.py`); the room ``sim`` provides "sim".

    Attributes
    ----------
    name : "cuda", "sim".
    counts : whether a launch counts its memory traffic, instead of taking a meaningful time.
    time_limit : seconds that one launch may take unless the user gives another limit.
    at_once : how many launches may run at a time; 1 on a GPU, where they would share it.
    macs_in_a_second : multiply-adds that it does in about a second; None: no need to scale down.
    """

    name: str
    counts: bool
    time_limit: float
    at_once: int
    macs_in_a_second: int | None

    @property
    def device(self) -> torch.device:
        """Where the tensors of its kernels live."""

    @property
    def target(self) -> tuple[int, int]:
        """The compute capability (90 for 9.0), and the shared memory that a block may opt into."""

    def build(self, source: Source, defines: Mapping[str, object], trace: bool) -> Build:
        """Compile a kernel file, or find what was built before. Raises BuildError."""

    def prepare(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> Launch:
        """Bind a kernel to tensors that were validated; return what launches."""

    def compute(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Tensor:
        """Run a kernel once, for a plain call; return y."""

    def interrupt(self) -> None:
        """End all launches that other threads wait for."""


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
    runs_on: Engine | None = None  # None for a library's or a callable's: they run by themselves

    @property
    def counts(self) -> bool:
        """Whether a launch counts what it does, instead of taking a meaningful time."""
        return self.runs_on is not None and self.runs_on.counts

    def build(self) -> Build | None:
        """Compile what must be compiled; None where there is nothing."""
        return None

    def unsupported(self, problem: Problem) -> str | None:
        """Return why it cannot do a problem, or None."""
        return None

    def accept(self, problem: Problem) -> None:
        """Raise UnsupportedError where it cannot do a problem."""
        if reason := self.unsupported(problem):
            text = f"{self.name} does not support {problem.label}: {reason}{self._instead(problem)}"
            raise UnsupportedError(text)

    def _instead(self, problem: Problem) -> str:
        """Return what to use for an unsupported problem, as the end of a sentence."""
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


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that the GPU's memory ran out."""
    if isinstance(error, torch.OutOfMemoryError) or getattr(error, "kind", "") == "out of memory":
        return True
    text = str(error).lower()
    return any(
        words in text for words in ("out of memory", "not enough gpu memory", "memory ran out")
    )
