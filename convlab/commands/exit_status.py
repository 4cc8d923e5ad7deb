"""The exit statuses of ``python -m convlab``, and the outcome that each belongs to."""

from collections.abc import Iterable
from typing import Any

from ..core.errors import CatalogError, ConvlabError, ProblemError
from ..core.faults import (
    CORRECT,
    INCORRECT,
    NOT_RUN,
    NOT_SIMULATED,
    OUT_OF_TIME,
    UNSUPPORTED,
    heaviest,
    outcome,
)

INVALID = 2
# The status of each outcome; `heaviest` decides about several.
STATUSES = {
    INCORRECT: 1,
    NOT_RUN: 6,
    OUT_OF_TIME: 5,
    NOT_SIMULATED: 4,
    CORRECT: 0,
    UNSUPPORTED: 3,
}
HELP = """exit status:
  0: all that ran is correct
  1: a kernel is incorrect, crashes, hangs or does not build
  2: invalid arguments or files
  3: nothing ran, because no kernel supports the problem
  4: the simulator does not support a kernel: check it on a GPU
  5: a kernel is out of time: it made progress, but too slowly
  6: this machine could not run a kernel: a process, memory, an open
     file or a compiler was missing
  130: interrupted
4, 5 and 6 say nothing about the kernel. Of several kernels, the first
status of 1, 6, 5, 4 that occurs is the command's."""


def outcome_of(result: Any) -> str:
    """Return the outcome of a command's result: its own, or by its ``ok`` and ``nothing_ran``."""
    own = getattr(result, "outcome", None)
    if own is not None:
        return own
    if result.ok:
        return CORRECT
    return UNSUPPORTED if result.nothing_ran else INCORRECT


def status_of(results: Iterable[Any]) -> int:
    """Return the exit status for the results of a command."""
    outcomes = {outcome_of(result) for result in results}
    if CORRECT in outcomes:
        # The kernels that do not support the problem are only counted.
        outcomes.discard(UNSUPPORTED)
    return STATUSES[heaviest(outcomes)] if outcomes else STATUSES[UNSUPPORTED]


def status_of_error(error: ConvlabError | OSError) -> int:
    """Return the exit status for an error that ended a command; an OSError is about a named file."""
    if isinstance(error, (CatalogError, ProblemError, OSError)):
        return INVALID
    return STATUSES[outcome([getattr(error, "kind", "")])]
