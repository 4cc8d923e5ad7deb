"""Ask a room for a kernel's predicted time: the seam between `compare` and the room ``profile``.

A room provides ``[forecast] time``: a function of a kernel, a problem and a GPU that returns a
`Forecast`, or raises a ConvlabError that says why there is none. Without such a room nothing is
predicted. Where nvcc is missing, a forecast has counts of the whole problem, but no time.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import rooms
from .errors import ConvlabError, ProblemError
from .kernel.kernel import Kernel
from .kernel.runnable import Runnable
from .machine import toolchain
from .machine.gpus import DEFAULT_GPU, Gpu
from .problem.problem import Problem
from .show.table import short

# The assumed error of a prediction, as a factor, if it is not known for kernels of that kind.
ERROR = 1.6
TOO_CLOSE = "too close to predict"
# What to do for the times of a problem that the simulator runs whole.
OF_A_SMALL_PROBLEM = (
    f'for predicted times add --gpu {DEFAULT_GPU.name} (in Python: gpu="{DEFAULT_GPU.name}")'
)


@dataclass(frozen=True)
class Forecast:
    """A predicted time of one kernel on one problem, and counts of its work at full size.

    Attributes
    ----------
    ms : the predicted time in milliseconds; NaN if there is none.
    doubt : why the time may be far off, in a few words; empty for kernels like those that the model
        was compared with. Without a time, why there is none.
    group : the units that do most of the work, such as "wgmma".
    error : the factor that 9 of 10 measured times of kernels of this group are within; None if it is
        not known.
    counters : the simulator's counters of the whole problem, from a sample of its blocks.
    sampled : what was simulated for them: "8 of 65,536 blocks".
    """

    ms: float
    doubt: str = ""
    group: str = ""
    error: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    sampled: str = ""

    @property
    def warning(self) -> str:
        """What to know about its time, or why there is none; empty if nothing."""
        if not self.doubt:
            return ""
        if self.is_timed:
            return f"predicted time in doubt: {self.doubt}"
        what = "no costs at full size" if self.is_empty else "no predicted time"
        return f"{what}: {self.doubt}"

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a time nor counts."""
        return not self.is_timed and not self.counters

    @property
    def is_timed(self) -> bool:
        """Whether it has a time."""
        return not math.isnan(self.ms)


def verdict(a: Forecast, b: Forecast) -> str:
    """Return "predicted faster" or "predicted slower" for B, or "too close to predict".

    The two times must differ by more than the larger known error.
    """
    ratio = b.ms / a.ms
    error = _error(a, b)
    if 1 / error < ratio < error:
        return TOO_CLOSE
    return "predicted faster" if ratio < 1 else "predicted slower"


def comparison(a: Forecast, b: Forecast, gpu: str) -> str:
    """Return a sentence about B's predicted time in relation to A's."""
    times = f"A {short(a.ms)} ms, B {short(b.ms)} ms on {gpu} at full size"
    doubts = [each.doubt for each in (a, b) if each.doubt]
    times = "; ".join([times, *dict.fromkeys(doubts)])
    found = verdict(a, b)
    if found == TOO_CLOSE:
        return f"{found}: {times} (the model's error: a factor of {_error(a, b):.1f})"
    return f"B is {found}: {times}"


def _error(a: Forecast, b: Forecast) -> float:
    """Return the larger known error of two predictions; an unknown one is assumed to be `ERROR`."""
    errors = [each.error or ERROR for each in (a, b)]
    # On a GPU that was not validated, the known errors may be too small.
    if a.doubt or b.doubt:
        errors.append(ERROR)
    return max(errors)


def missing() -> str:
    """Return why no times are predicted here, and what to install; empty if nothing is missing."""
    if "time" not in rooms.names("forecast"):
        return "no predicted times: the room `profile` predicts them, and it is not installed"
    if toolchain.cuda() is None:
        return f"no predicted times, as they need the machine code: {toolchain.without_cuda()}"
    if toolchain.find("nvdisasm") is None:
        return f"no predicted times: there is no nvdisasm; `{toolchain.INSTALL}` installs it"
    return ""


def available() -> bool:
    """Return whether a room counts the work of whole problems; with nvcc, it predicts times, too."""
    return "time" in rooms.names("forecast")


def require() -> None:
    """Raise ProblemError if times cannot be predicted here."""
    if cause := missing():
        raise ProblemError(f"gpu= cannot be used here: {cause}")


def applies(kernel: Runnable) -> bool:
    """Return whether a runnable has machine code, from which a time can be predicted."""
    return isinstance(kernel, Kernel)


def forecast(kernel: Kernel, problem: Problem, gpu: Gpu) -> Forecast:
    """Return a kernel's predicted time and counts; if there are none, its doubt says why."""
    if cause := kernel.on("sim").on_gpu(gpu).unsupported(problem):
        return Forecast(math.nan, f"it does not support {problem.label}: {cause}")
    try:
        return rooms.provided("forecast", "time")(kernel, problem, gpu)
    except ConvlabError as error:
        return Forecast(math.nan, str(error).splitlines()[0])


def prepare(kernel: Runnable, problem: Problem, gpu: Gpu) -> None:
    """Do what a forecast needs, and what can be done in another thread meanwhile."""
    if not applies(kernel) or kernel.unsupported(problem):
        return
    # `forecast` reports an error.
    with contextlib.suppress(ConvlabError):
        # Without g++ the simulator builds nothing, and there is nothing to predict from.
        if toolchain.gcc_release(toolchain.require_host_compiler()) is None:
            return
        if work := rooms.provided("forecast", "prepare"):
            work(kernel, problem, gpu)
