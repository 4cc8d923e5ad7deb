"""Describe how a check runs a problem: the data, the addresses, the workspace, the calls before.

The ordinary setting has normally distributed data at aligned addresses. The room ``strict`` adds
unusual settings. Each is a `Setting` with other values, or a subclass that overrides some methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..finding import Finding
from ..machine.gpus import Gpu
from ..kernel.runnable import Launch, Runnable
from ..problem.problem import Problem
from . import reference
from .output import OutputComparison
from .reference import Reference


@dataclass(frozen=True)
class Offsets:
    """Say for each buffer how many bytes after an aligned address it begins.

    `workspace` is also that of the prepared filter.
    """

    x: int = 0
    w: int = 0
    bias: int = 0
    y: int = 0
    workspace: int = 0


@dataclass(frozen=True)
class Setting:
    """Describe the ordinary setting; it is also the base class of all others.

    Attributes
    ----------
    name : the name that `check` takes; empty for the ordinary setting.
    words : the setting in words, as the end of "correct on P, ...".
    offsets : how far each buffer begins after an aligned address.
    workspace : the limit of the workspace in bytes; 0 means the kernel's own limit.
    least_workspaces : if not 0, the limit is this many times the least workspace with which the
        kernel works.
    twice : whether the kernel runs twice, where possible, to compare the bits of y.
    normal : whether the data are normally distributed, so that other kernels can use the reference.
    fits_any : whether the setting has its own problems, which are never scaled down.
    keeps_filter : whether w must keep its values after `conv2d_prepare`.
    most_watched : in a launch with more accesses than this, the simulator watches a part of the
        blocks for races and uninitialised reads; 0 means all of them. Bounds are always watched.
    most_threads : a run that would start more threads than this on the simulator ends before that, with a
        TooManyThreads; 0 means no limit.
    forgives : whether a read of shared memory that nothing wrote is a warning on the simulator; if the outputs
        are correct, they do not depend on it.
    counted : whether the simulator counts the first run; without counts it is faster, finds the same
        errors, and also checks the indices of local arrays.
    gpu : the GPU that the simulator is; None means its default.
    tunables : names and values of tunables that the kernel is built with.
    advice : a note for a failing report: what the header may declare.
    """

    name: str = ""
    words: str = ""
    offsets: Offsets = Offsets()
    workspace: int = 0
    least_workspaces: float = 0
    twice: bool = False
    normal: bool = True
    fits_any: bool = False
    keeps_filter: bool = False
    most_watched: int = 0
    most_threads: int = 0
    forgives: bool = False
    counted: bool = True
    gpu: Gpu | None = None
    tunables: tuple[tuple[str, int], ...] = ()
    advice: str = ""

    @property
    def moves_inputs(self) -> bool:
        """Whether x, w or bias is moved: a kernel may return an error for its address."""
        return any((self.offsets.x, self.offsets.w, self.offsets.bias))

    def reference(self, kernel: Runnable, problem: Problem, seed: int) -> Reference:
        """Return the inputs of this setting with the float64 reference."""
        return reference.known(problem, seed, kernel.device, kernel.format)

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return the largest normwise relative error of a correct result in this setting.

        `allowed` is the bound of the precision class, `rms` the root mean square of the reference.
        """
        return allowed

    def in_part(self) -> str:
        """Return what a run did not watch, if a launch had too many accesses."""
        return "races were watched in only a part of the run"

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return lists of problems: the kernel runs once for each list, after calls for its problems."""
        return [[]]

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch after calls for the `earlier` problems."""
        launch()

    def comparable(self, y: Tensor, expected: Reference, kernel: Runnable) -> Tensor:
        """Return y, with the reference's value where a correct kernel may differ from it."""
        return y

    def explain(self, compared: OutputComparison) -> list[Finding]:
        """Return findings on incorrect outputs that are specific to this setting."""
        return []

    def examine(self, kernel: Runnable, problem: Problem, seed: int):
        """Return the report of a setting that runs the kernel by itself; None for all others."""
        return None


ORDINARY = Setting(twice=True)
ONCE = Setting()
