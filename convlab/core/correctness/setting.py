"""How a problem is run in a check: on which data, at which addresses, after which other calls.

The ordinary setting is normal data at aligned addresses. The room ``strict`` has others, each a
subclass that replaces what is unusual about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..finding import Finding
from ..kernel.runnable import Launch, Runnable
from ..problem.problem import Problem
from . import reference
from .output import OutputComparison
from .reference import Reference


@dataclass(frozen=True)
class Setting:
    """The ordinary setting, and the base of all others."""

    name: str = ""  # as `check` takes it; the ordinary setting has none
    words: str = ""  # for people, as the end of "correct on P, ..."
    offset: int = 0  # bytes past an aligned address at which x, w and bias begin
    y_offset: int = 0  # the same of y
    workspace: int = 0  # bytes of workspace that there are; 0: as many as the kernel may have
    twice: bool = False  # run again where that is possible, to see whether bits change
    normal: bool = True  # whether the data are normal: then the truth is kept for other kernels
    fits_any: bool = False  # whether its problems are its own, and never scaled down
    keeps_filter: bool = False  # whether w must stay as it is after the filter was laid out
    advice: str = ""  # a note beside wrong results: what a header may say

    def reference(self, kernel: Runnable, problem: Problem, seed: int) -> Reference:
        """Return the inputs of this setting, and the truth."""
        return reference.known(problem, seed, kernel.device, kernel.format)

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return the largest normwise error of a correct result; `allowed` is its class's.

        `rms` is the root mean square of the truth.
        """
        return allowed

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return lists of problems; before each run the kernel is called for one list."""
        return [[]]

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch, after calls for the problems of one history."""
        launch()

    def comparable(self, y: Tensor, correct: Reference, kernel: Runnable) -> Tensor:
        """Return y with the truth in each place where a correct kernel may differ from it."""
        return y

    def explain(self, compared: OutputComparison) -> list[Finding]:
        """Return what this setting knows about wrong outputs."""
        return []

    def examine(self, kernel: Runnable, problem: Problem, seed: int):
        """Return the report of a setting that needs its own way to run; None for all others."""
        return None


ORDINARY = Setting(twice=True)
ONCE = Setting()
