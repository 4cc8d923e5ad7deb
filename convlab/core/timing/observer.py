"""Observe the timed launches: the seam between the stopwatch and the room ``honest``.

The stopwatch calls an observer before and after each launch. The room's observer changes some of the
data before a launch, and copies some of the outputs after it. So it catches code that does not do
the timed work. Without the room, launches are not observed.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from .. import rooms
from ..kernel.runnable import Launch, Runnable
from ..problem.problem import Problem


class Caught(Exception):
    """A kernel or callable was caught: its time or result is not valid. The text says why."""

    def __init__(self, runnable: Runnable, text: str) -> None:
        super().__init__(text)
        self.runnable = runnable


class Observer(Protocol):
    """Observe the launches of one runnable; a row is one set of values for its inputs.

    `before` and `after` put work on the current stream, and a CUDA graph can capture it. If
    `trusted` is true, outputs are not checked.
    """

    launch: Launch
    trusted: bool

    def renew(self, again: int = 0) -> None:
        """Draw new values for all rows, and discard the copied outputs.

        x as a whole is drawn again too, unless `again` is not 0.
        """

    def before(self, row: int) -> None:
        """Change some inputs before a launch. This is not timed."""

    def after(self, row: int) -> None:
        """Copy some outputs after a launch. This is not timed."""

    def finish(self, row: int) -> None:
        """Check the copied outputs of a row. Raises Caught."""

    def finish_any(self, rows: int) -> None:
        """Check one of the first `rows` rows, chosen at random. Raises Caught."""


class Nobody:
    """Observe no launches: the core without the room ``honest``."""

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
    """Return an observer for a launch that is timed with `rows` sets of values."""
    provided = rooms.provided("observer", "timing")
    if provided is None:
        return Nobody(launch)
    return provided(launch, rows, trusted)


class Audit(Protocol):
    """Watch a Python callable from before its check until after it."""

    def finish(self, runnable: Runnable, problem: Problem, correct: bool) -> Sequence[str]:
        """Return notes about the callable. Raises Caught.

        `correct` is whether it passed the check in the class of `runnable`.
        """


class NoAudit:
    """Watch nothing: the core without the room ``honest``."""

    def finish(self, runnable: Runnable, problem: Problem, correct: bool) -> Sequence[str]:
        """Return no notes."""
        return ()


def audit(runnable: Runnable) -> Audit:
    """Start and return the audit of a callable."""
    provided = rooms.provided("observer", "callable")
    return NoAudit() if provided is None else provided(runnable)


# This import makes the room store the original clock, events and comparisons, before it times any
# code of a user.
_put_back: Any = rooms.provided("observer", "tools")


def tools_put_back() -> list[str]:
    """Restore the functions for measuring that were replaced, and return their names.

    Raises ConvlabError if one had been replaced before convlab was imported.
    """
    if _put_back is None:
        return []
    return _put_back()
