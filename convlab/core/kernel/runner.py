"""Run code that may crash or hang: the seam between the core and the room ``isolate``.

The core's own runner calls a function in this process. The room ``isolate`` provides a runner that
calls it in another process. There a crash becomes a Python exception, and this process continues.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from .. import rooms
from ..builds.cache import Build
from ..problem.problem import Problem
from .runnable import Runnable

# The default time limit of a call, in seconds.
TIME_LIMIT = 20.0


class Runner(Protocol):
    """Call functions that run kernels."""

    name: str

    def accepts(self, *values: object) -> bool:
        """Return whether `call` can pass these values as arguments."""

    def call(
        self, function: Callable[..., Any], /, *args: Any, time_limit: float | None, **kwargs: Any
    ) -> Any:
        """Return ``function(*args, **kwargs)``. Raise LaunchError for a crash or a timeout.

        The time limit is in seconds.
        """

    def restart(self) -> None:
        """Start a new process at the next `call`."""

    def rehearse(
        self, kernel: Runnable, build: Build, problem: Problem | None, *tensors: Tensor | None
    ) -> None:
        """Run a build that is not known to be good in the other process first, on other data.

        Without a problem, only load its library there. Raises LaunchError if the kernel fails.
        """

    def mark_good(self, build: Build) -> None:
        """Record that a build passed the whole default check and needs no rehearsal."""


# Whether this process runs everything itself, because it was started to run untrusted kernels.
_stays = False


class InProcess:
    """Call functions in this process, which ends if a kernel crashes."""

    name = "in process"

    def accepts(self, *values: object) -> bool:
        """Return True, because no value has to be sent to another process."""
        return True

    def call(
        self, function: Callable[..., Any], /, *args: Any, time_limit: float | None, **kwargs: Any
    ) -> Any:
        """Return ``function(*args, **kwargs)``; there is no way to enforce the time limit here."""
        return function(*args, **kwargs)

    def restart(self) -> None:
        """Do nothing: there is no other process."""

    def rehearse(
        self, kernel: Runnable, build: Build, problem: Problem | None, *tensors: Tensor | None
    ) -> None:
        """Do nothing: there is no other process."""

    def mark_good(self, build: Build) -> None:
        """Do nothing: there are no rehearsals."""


IN_PROCESS = InProcess()


def runner(*kernels: Runnable) -> Runner:
    """Return the runner for kernels: one that a kernel brings, that of ``isolate``, or this process."""
    if _stays:
        return IN_PROCESS
    own = [kernel.own_runner for kernel in kernels if kernel.own_runner is not None]
    return own[0] if own else rooms.provided("runner", "worker") or IN_PROCESS


def stay_in_process() -> None:
    """Let this process run all kernels itself: it was started for that, and may die."""
    global _stays
    _stays = True
