"""What makes a check stricter than one problem on normal data: the seam to the room ``strict``.

The core checks a kernel on the problems it is given, on normal data. The room adds generated problems,
unusual settings, a search for the smallest problem that fails, and what nvcc says beside a simulated
run. Without the room, `Plain` adds nothing.
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
    """What is added to one check of one kernel; it is made anew for each check."""

    def problems(self, count: int, seed: int) -> list[Problem]:
        """Return generated problems for a check that was given none."""

    def trials(self, reports: Sequence[Report]) -> Iterator[Sequence[Trial]]:
        """Yield what to try in unusual settings, after these reports; each only if all is correct."""

    def shrink(self, problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
        """Return the smallest problem found that still fails."""

    def watch(self, report: Report) -> Report:
        """Return a report of one problem with what else is known about the run."""

    def finish(self) -> tuple[Sequence[Finding], str]:
        """Return findings about the kernel whatever the problem, and a note or an empty text."""


class Plain:
    """Adds nothing."""

    def problems(self, count: int, seed: int) -> list[Problem]:
        """Return no problems."""
        return []

    def trials(self, reports: Sequence[Report]) -> Iterator[Sequence[Trial]]:
        """Yield nothing."""
        return iter(())

    def shrink(self, problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
        """Return the problem as it is."""
        return problem

    def watch(self, report: Report) -> Report:
        """Return the report as it is."""
        return report

    def finish(self) -> tuple[Sequence[Finding], str]:
        """Return nothing."""
        return (), ""


def stricter(kernel: Runnable) -> Stricter:
    """Return what the room ``strict`` adds to a check of this kernel."""
    room = rooms.provided("check", "strict")
    return Plain() if room is None else room(kernel)


def settings() -> dict[str, Setting]:
    """Return the unusual settings that rooms provide, by name."""
    known = rooms.provided("check", "settings") or ()
    return {setting.name: setting for setting in known}
