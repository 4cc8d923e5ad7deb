"""What can be asked to compute a problem: a kernel file, a library's convolution, a function.

Whoever checks, times or explains handles a `Runnable` and the `Launch` that it prepares, and
nothing else: what one of them has not is a default here, so that nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from ..words.errors import ConvlabError, LaunchError
from ..words.format import FLOAT32, Format
from ..words.problem import Problem

if TYPE_CHECKING:
    from .build import Build

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate a tensor as torch does."""
    return torch.empty(shape, dtype=dtype, device=device)


class Launch:
    """A runnable bound to one problem's tensors; calling it computes y once more.

    Attributes
    ----------
    runnable, problem
        What is run, and on what.
    y : tensor (N, K, P, Q)
        The output: allocated, but not written before the first call. A library's is a new tensor
        after each call, and None while it runs.
    inputs
        x, w and bias (or None) as the runnable sees them.
    workspace : uint8 tensor or None
    plan : uint8 tensor or None
        The filter as `prepare_filter` laid it out, where the runnable does that.
    counters : dict or None
        What the simulator counted in the last call; None where nothing is simulated.
    findings
        What the simulator found in the last call (`convlab.sim.Finding`).
    sampling : dict or None
        Of a simulated call that ran only some blocks, how many, and the standard errors.
    """

    y: torch.Tensor | None
    workspace: torch.Tensor | None = None
    plan: torch.Tensor | None = None
    counters: dict[str, float] | None = None
    findings: Sequence[Any] = ()
    sampling: dict[str, object] | None = None

    def __init__(self, runnable: Runnable, problem: Problem, inputs: Inputs) -> None:
        self.runnable, self.problem, self.inputs = runnable, problem, inputs

    def __call__(self) -> None:
        """Compute y: on a GPU asynchronously, on torch's current stream."""
        raise NotImplementedError

    def prepare_filter(self) -> None:
        """Lay the filter out once more, as `Runnable.prepare` did; nothing where `plan` is None."""


class Runnable:
    """What computes a problem: `Kernel`, `Baseline` and `Function` derive from it.

    Attributes
    ----------
    name, title
        For tables and messages, and for people. A library's name has a colon: "cudnn:fp32".
    precision
        The class that it is judged by: "fp32" or "tf32".
    engine
        "cuda", "sim", or "torch" for what runs on the CPU without the simulator.
    device
        Where its tensors live.
    format
        Dtype and layout of its tensors.
    path, source
        The file and its text, of a kernel; else None.
    defines
        The tunables that were set.
    atomics
        Whether two runs may differ in bits, by its own word.
    library
        Whether none of a learner's CUDA code runs: such a runnable is never isolated.
    workspace_limit
        Bytes of workspace that a call may take; None where that cannot be limited.
    """

    name: str
    title: str
    precision: str
    engine: str
    device: torch.device
    format: Format = FLOAT32
    path: Path | None = None
    source: str | None = None
    defines: Mapping[str, int] = MappingProxyType({})
    atomics: bool = False
    library: bool = False
    workspace_limit: int | None = None

    @property
    def simulated(self) -> bool:
        """Whether a launch counts what it does, instead of taking a time that means something."""
        return self.engine == "sim"

    def build(self) -> Build | None:
        """Compile what must be compiled; None where there is nothing."""
        return None

    def unsupported(self, problem: Problem) -> str | None:
        """Return why it cannot do a problem, or None."""
        return None

    def must_run_whole(self) -> None:
        """Raise ProblemError if its y would be no result, as only some of the blocks run."""

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Validate and allocate, and return what launches.

        Parameters
        ----------
        problem
            The problem that the tensors belong to.
        x, w, bias
            Tensors of the problem's shapes in `format`, on `device`.
        allocate
            Makes y and the workspace from (shape, dtype, device), contiguous; a checker passes its
            own, with guard zones. What allocates for itself ignores it.
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
    except torch.OutOfMemoryError as error:
        message = str(error).strip().split("\n")[0]
        raise LaunchError(f"{name}: memory ran out; take a smaller problem. {message}") from error
    except RuntimeError as error:
        message = str(error).strip().split("\n")[0]
        if isinstance(error, ConvlabError) or "CUDA" not in message:
            raise
        raise LaunchError(
            f"{name} failed while it ran: {message} (after this the GPU is lost to this process: "
            "start Python anew)"
        ) from error
