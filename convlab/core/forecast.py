"""Ask a room for a kernel's predicted time: the seam between `compare` and the room ``profile``.

A room provides ``[forecast] time``: a function of a kernel, a problem and a GPU that returns a
`Forecast`, or raises a ConvlabError that says why there is none. Without such a room, and where nvcc
is missing, no time is predicted.
"""

from dataclasses import dataclass

from . import rooms
from .errors import ConvlabError, ProblemError
from .kernel.kernel import Kernel
from .kernel.runnable import Runnable
from .machine import toolchain
from .machine.gpus import Gpu
from .problem.problem import Problem
from .show.table import short

# A kernel is predicted to be faster only if the two times differ by more than this factor. In
# profile/MODEL.md the order of such pairs is right in nearly all cases, and the errors of nearly all
# rows are smaller.
ERROR = 1.6


@dataclass(frozen=True)
class Forecast:
    """A predicted time of one kernel on one problem.

    Attributes
    ----------
    ms : the predicted time in milliseconds.
    doubt : why the time may be far off, in a few words; empty for kernels like those that the model
        was compared with.
    """

    ms: float
    doubt: str = ""


def comparison(a: Forecast | str, b: Forecast | str, gpu: str) -> str:
    """Return a sentence about B's predicted time in relation to A's; empty without both times."""
    if isinstance(a, str) or isinstance(b, str):
        return ""
    times = f"A {short(a.ms)} ms, B {short(b.ms)} ms on {gpu} at full size"
    doubts = " and ".join(dict.fromkeys(each.doubt for each in (a, b) if each.doubt))
    if doubts:
        return f"in doubt: {times} ({doubts})"
    ratio = b.ms / a.ms
    if 1 / ERROR < ratio < ERROR:
        return f"too close to predict: {times} (the model's error: a factor of {ERROR})"
    return f"B is predicted {'faster' if ratio < 1 else 'slower'}: {times}"


def _missing() -> str:
    """Return what times cannot be predicted without, and what to do; empty if nothing is missing."""
    if "time" not in rooms.names("forecast"):
        return "gpu= needs the room `profile`, which predicts times: leave it out"
    if toolchain.cuda() is None:
        return (
            "gpu= predicts a time from the machine code, and there is no nvcc: leave it out, or "
            "install nvcc (`python -m convlab doctor` says how)"
        )
    return ""


def available() -> bool:
    """Return whether times can be predicted here: by a room, and with nvcc."""
    return not _missing()


def require() -> None:
    """Raise ProblemError if times cannot be predicted here."""
    if missing := _missing():
        raise ProblemError(missing)


def applies(kernel: Runnable) -> bool:
    """Return whether a runnable has machine code, from which a time can be predicted."""
    return isinstance(kernel, Kernel)


def forecast(kernel: Kernel, problem: Problem, gpu: Gpu) -> Forecast | str:
    """Return a kernel's predicted time, or why there is none."""
    if cause := kernel.unsupported(problem):
        return f"it does not support {problem.label}: {cause}"
    try:
        return rooms.provided("forecast", "time")(kernel, problem, gpu)
    except ConvlabError as error:
        return str(error).splitlines()[0]
