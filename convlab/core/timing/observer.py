"""Who looks on while a kernel is timed: the seam between the stopwatch and the room ``honest``.

The stopwatch calls an observer before and after each launch. The room's observer changes some of the
data before a launch and keeps some of the outputs after it, so that code which does something else than
the work is caught. Without the room nobody looks on.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from .. import rooms
from ..kernel.runnable import Launch, Runnable
from ..problem.problem import Problem


class Caught(Exception):
    """What was timed was not the work that was asked for; the text says how that is known."""

    def __init__(self, runnable: Runnable, text: str) -> None:
        super().__init__(text)
        self.runnable = runnable


class Observer(Protocol):
    """Looks at the launches of one runnable, row by row; a row is one set of values.

    `before` and `after` are in order on the current stream and fit for a CUDA graph.
    """

    launch: Launch
    trusted: bool  # whether what the launch computes is not judged

    def renew(self, again: int = 0) -> None:
        """Draw new values for all rows; forget what was kept."""

    def before(self, row: int) -> None:
        """Prepare a launch, untimed."""

    def after(self, row: int) -> None:
        """Look at what a launch left, untimed."""

    def finish(self, row: int) -> None:
        """Judge what a row's launch computed. Raises Caught."""

    def finish_any(self, rows: int) -> None:
        """Judge one of so many rows that nobody can guess. Raises Caught."""


class Nobody:
    """Looks at nothing."""

    trusted = True

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def renew(self, again: int = 0) -> None:
        """Do nothing."""

    def before(self, row: int) -> None:
        """Do nothing."""

    def after(self, row: int) -> None:
        """Do nothing."""

    def finish(self, row: int) -> None:
        """Do nothing."""

    def finish_any(self, rows: int) -> None:
        """Do nothing."""


def observe(launch: Launch, rows: int, trusted: bool) -> Observer:
    """Return the observer of a launch that is timed with so many rows of values."""
    witness = rooms.provided("observer", "timing")
    return Nobody(launch) if witness is None else witness(launch, rows, trusted)


class Audit(Protocol):
    """Looks at a Python callable from before its check until it has passed it."""

    def finish(self, runnable: Runnable, problem: Problem, right: bool) -> Sequence[str]:
        """Return what a reader should know of the callable, in its class. Raises Caught."""


class NoAudit:
    """Looks at nothing."""

    def finish(self, runnable: Runnable, problem: Problem, right: bool) -> Sequence[str]:
        """Return nothing."""
        return ()


def audit(runnable: Runnable) -> Audit:
    """Return the audit of a callable, which begins now."""
    room = rooms.provided("observer", "callable")
    return NoAudit() if room is None else room(runnable)


# The room remembers what the clock, the events and the comparisons are when this module is imported,
# before any code of a user's is timed.
_look_at_tools: Any = rooms.provided("observer", "tools")


def tools_put_back() -> list[str]:
    """Put back the measuring tools that were replaced; return their names.

    Raises ConvlabError if they had been replaced before convlab was imported.
    """
    return _look_at_tools() if _look_at_tools is not None else []
