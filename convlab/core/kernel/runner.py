"""Where code runs that may crash or hang: the seam between the core and the room ``isolate``.

The core's own runner calls a function in this process. The room ``isolate`` provides one that calls
it in another process, so that a crash becomes a Python exception and this process lives on.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from .. import rooms
from ..builds.cache import Build
from ..problem.problem import Problem
from .runnable import Runnable

TIME_LIMIT = 20.0  # seconds that a call may take unless the caller gives another limit


class Runner(Protocol):
    """Calls functions with kernels among their arguments."""

    name: str

    def accepts(self, *values: object) -> bool:
        """Return whether these values can be the arguments of `call`."""

    def call(
        self, function: Callable[..., Any], /, *args: Any, time_limit: float | None, **kwargs: Any
    ) -> Any:
        """Return ``function(*args, **kwargs)``; raise LaunchError for a crash or a time-out."""

    def restart(self) -> None:
        """Let the next `call` find a fresh process, where there is another process."""

    def rehearse(self, kernel: Runnable, problem: Problem | None, *tensors: Tensor | None) -> None:
        """Run a kernel that is not known to be good elsewhere first, on other data.

        Without a problem, only load its library there. Raises what the kernel's failure means.
        """

    def mark_good(self, build: Build) -> None:
        """Note that a build passed the whole default check: it needs no rehearsal."""


class InProcess:
    """Calls functions in this process: a kernel that crashes takes it down."""

    name = "in process"

    def accepts(self, *values: object) -> bool:
        """Return True: nothing has to be sent anywhere."""
        return True

    def call(
        self, function: Callable[..., Any], /, *args: Any, time_limit: float | None, **kwargs: Any
    ) -> Any:
        """Return ``function(*args, **kwargs)``; the time limit cannot be enforced here."""
        return function(*args, **kwargs)

    def restart(self) -> None:
        """Do nothing: there is no other process."""

    def rehearse(self, kernel: Runnable, problem: Problem | None, *tensors: Tensor | None) -> None:
        """Do nothing: there is nowhere else to run."""

    def mark_good(self, build: Build) -> None:
        """Do nothing: nothing is rehearsed."""


IN_PROCESS = InProcess()


def runner() -> Runner:
    """Return what runs untrusted kernels: the worker process of ``isolate``, or this process."""
    return rooms.provided("runner", "worker") or IN_PROCESS
