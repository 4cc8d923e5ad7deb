"""Provide the worker process to the core: implement the seam `Runner`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..core.builds.cache import Build
from ..core.kernel.runnable import Runnable
from ..core.problem.problem import Problem
from . import rehearsal, worker


class WorkerRunner:
    """Call functions in the worker process of the current GPU."""

    name = "worker process"

    def accepts(self, *values: object) -> bool:
        """Return whether the values can be sent: pickle can send them, and none is of ``__main__``."""
        return worker.can_send(*values)

    def call(
        self, function: Callable[..., Any], /, *args: Any, time_limit: float | None, **kwargs: Any
    ) -> Any:
        """Return ``function(*args, **kwargs)``, computed in the worker; see `worker.call`."""
        return worker.call(function, *args, time_limit=time_limit, **kwargs)

    def restart(self) -> None:
        """End the worker processes; the next call starts a fresh one."""
        worker.stop()

    def rehearse(
        self, kernel: Runnable, build: Build, problem: Problem | None, *tensors: Tensor | None
    ) -> None:
        """Run a kernel in the worker first, on other data; without a problem, only load its library."""
        if problem is None:
            rehearsal.rehearse_load(kernel, build)
        else:
            rehearsal.rehearse_run(kernel, build, problem, *tensors)

    def mark_good(self, build: Build) -> None:
        """Mark a build that passed the whole default check: it needs no rehearsal."""
        rehearsal.mark_good(build)


RUNNER = WorkerRunner()
