"""Observe a kernel while it is timed: the seam between the stopwatch and the room ``honest``.

The stopwatch calls an observer before and after each launch. The room's observer changes some of
the data before a launch and keeps some of the outputs after it. So it catches code that does
something else than the work. Without the room nobody observes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from .. import rooms
from ..kernel.runnable import Launch, Runnable
from ..problem.problem import Problem


class Caught(Exception):
    """A kernel did not do the work that was timed; the text says how that is known."""

    def __init__(self, runnable: Runnable, text: str) -> None:
        super().__init__(text)
        self.runnable = runnable


class Observer(Protocol):
    """Observe the launches of one runnable, row by row; a row is one set of values.

    `before` and `after` put work on the current stream, which a CUDA graph can capture. Where
    `trusted` is true, the launch's outputs are not judged.
    """

    launch: Launch
    trusted: bool

    def renew(self, again: int = 0) -> None:
        """Draw new values for all rows; forget the outputs that were kept."""

    def before(self, row: int) -> None:
        """Change data before a launch, untimed."""

    def after(self, row: int) -> None:
        """Keep outputs of a launch, untimed."""

    def finish(self, row: int) -> None:
        """Judge what a row's launch computed. Raises Caught."""

    def finish_any(self, rows: int) -> None:
        """Judge one of so many rows, chosen at random. Raises Caught."""


class Nobody:
    """Observe nothing."""

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
    """Return the observer of a launch that is timed with `rows` sets of values."""
    provided = rooms.provided("observer", "timing")
    if provided is None:
        return Nobody(launch)
    return provided(launch, rows, trusted)


class Audit(Protocol):
    """Observe a Python callable from before its check until after it."""

    def finish(self, runnable: Runnable, problem: Problem, correct: bool) -> Sequence[str]:
        """Return what a reader should know of the callable, in its class. Raises Caught."""


class NoAudit:
    """Observe nothing."""

    def finish(self, runnable: Runnable, problem: Problem, correct: bool) -> Sequence[str]:
        """Return nothing."""
        return ()


def audit(runnable: Runnable) -> Audit:
    """Start and return the audit of a callable."""
    provided = rooms.provided("observer", "callable")
    return NoAudit() if provided is None else provided(runnable)


# When this module is imported, the room remembers the clock, the events and the comparisons: before
# any code of a user's is timed.
_put_back: Any = rooms.provided("observer", "tools")


def tools_put_back() -> list[str]:
    """Put back the measuring tools that were replaced; return their names.

    Raises ConvlabError if they had been replaced before convlab was imported.
    """
    if _put_back is None:
        return []
    return _put_back()
