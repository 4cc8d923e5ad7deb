"""Define what makes a check stricter: the seam between the core and the room ``strict``.

The core checks a kernel on named or given problems with normally distributed data. The room adds
generated problems, unusual settings, a search for the smallest problem that fails, and nvcc's errors
and warnings for a simulated kernel. Without the room, `Plain` adds nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .. import rooms
from ..finding import Finding
from ..kernel.runnable import Runnable
from ..problem.problem import Problem
from .report import Report
from .setting import Setting

Trial = tuple[Problem, Setting]


class Stricter(Protocol):
    """Extend one check of one kernel; each check creates its own instance."""

    def problems(self, count: int, seed: int) -> list[Problem]:
        """Return generated problems for a default check."""

    def needed(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems without those that show nothing more about the kernel."""

    def sampled(
        self, problem: Problem, seed: int, takes_long: bool = False, few: bool = False
    ) -> Report | None:
        """Return the report of a sample of the blocks, where that is enough; None if all should run.

        `takes_long` says that a run of all blocks is known to take long, and `few` that each block does.
        """

    def trials(self, reports: Sequence[Report]) -> Iterator[Sequence[Trial]]:
        """Yield groups of trials in unusual settings; a group runs if the kernel is correct so far."""

    def shrink(self, problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
        """Return the smallest problem found that still fails."""

    def watch(self, report: Report) -> Report:
        """Return the report of one problem, perhaps with more findings."""

    def finish(self) -> tuple[Sequence[Finding], str]:
        """Return findings that do not depend on the problem, and a note or an empty text."""


class Plain:
    """Extend a check by nothing: the core without the room ``strict``."""

    def problems(self, count: int, seed: int) -> list[Problem]:
        """Return no problems."""
        return []

    def needed(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return all problems."""
        return list(problems)

    def sampled(
        self, problem: Problem, seed: int, takes_long: bool = False, few: bool = False
    ) -> Report | None:
        """Return None: all blocks run."""
        return None

    def trials(self, reports: Sequence[Report]) -> Iterator[Sequence[Trial]]:
        """Yield no trials."""
        return iter(())

    def shrink(self, problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
        """Return the problem unchanged."""
        return problem

    def watch(self, report: Report) -> Report:
        """Return the report unchanged."""
        return report

    def finish(self) -> tuple[Sequence[Finding], str]:
        """Return no findings and no note."""
        return (), ""


def stricter(kernel: Runnable) -> Stricter:
    """Return the extension of this kernel's check: the room's, or `Plain`."""
    room = rooms.provided("check", "strict")
    return Plain() if room is None else room(kernel)


def settings() -> dict[str, Setting]:
    """Return the unusual settings of the rooms, by name."""
    provided = rooms.provided("check", "settings") or ()
    return {setting.name: setting for setting in provided}
