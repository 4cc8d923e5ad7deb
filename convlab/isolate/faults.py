"""What went wrong with a kernel on the GPU: its kind, what it means, and what finds the line.

``convlab/core/faults.py`` says what a kind means, and what to do next.
"""

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import ConvlabError, LaunchError
from ..core.faults import FAULTS
from ..core.finding import Finding
from ..core.kernel import data
from ..core.kernel.runnable import Runnable
from ..core.problem.problem import Problem

EXPLAIN_MACS = 2_000_000  # what a problem is scaled down to where a line is looked for
_SIMULATOR_SECONDS = 6.0
# The kinds on a GPU and how CUDA's error texts name each; of several in one text, the first counts.
KINDS: dict[str, tuple[str, ...]] = {
    "illegal address": ("illegal memory access", "illegal address"),
    "misaligned address": ("misaligned address",),
    "device assert": ("device-side assert",),
    "endless loop": ("launch timed out", "launchtimeout"),
    "launch configuration": (
        "invalid configuration argument",
        "too many resources requested",
        "too many blocks in cooperative launch",
        "invalid argument",
        "invalid device function",
        "no kernel image is available",
        "invalid device symbol",
    ),
    "out of memory": ("out of memory", "not enough gpu memory", "memory ran out"),
    "invalid worker state": (
        "busy or unavailable",
        "initialization error",
        "no cuda-capable device",
    ),
    "launch failure": (
        "unspecified launch failure",
        "illegal instruction",
        "hardware stack error",
        "invalid program counter",
        "operation not supported on global/shared address space",
        "invalid address space",
        "execution_failed",
        "cuda error",
    ),
    "host crash": (),
}
_WITHOUT_LINE = ("out of memory", "invalid worker state")  # no run of the kernel explains these


def classify(error: BaseException) -> tuple[str, str] | None:
    """Return the kind of an exception and the words of it that tell; None if it is no fault.

    Faults are CUDA's errors as torch raises them (by their text, which has stayed the same while
    the types have not: torch 2.11 to 2.13) or as a kernel's entry point returns them.
    """
    text = re.sub(r"Compile with `TORCH_USE_CUDA_DSA`.*", "", str(error))  # advice, not the fault
    ours = isinstance(error, ConvlabError)
    by_torch = isinstance(error, RuntimeError) and re.search("cuda|cublas|cudnn", text, re.I)
    if not (isinstance(error, LaunchError) and not error.kind or by_torch and not ours):
        return None
    for kind, phrases in KINDS.items():
        for phrase in phrases:
            for line in text.splitlines():
                if phrase in line.lower():
                    return kind, line.strip().partition(" (")[0]  # without advice for another case
    return None


def error(
    kind: str, text: str, function: Callable[..., Any], values: Sequence[Any], printed: str = ""
) -> LaunchError:
    """Return the exception for a fault in a call, with what can be found out about it.

    `text` is what was seen of it, `printed` what the process wrote to stderr.
    """
    kernels = [value for value in values if isinstance(value, Runnable)]
    problem = next((value for value in values if isinstance(value, Problem)), None)
    who = " or ".join(kernel.name for kernel in kernels)
    who = who or getattr(function, "__qualname__", repr(function))
    where = f" on {problem.label}" if problem is not None else ""
    lines = [f"{who}{where}: {kind}: {FAULTS[kind].meaning} ({text})"]
    assertion = re.search(r"^.*\bAssertion `.*$", printed, re.M)
    if assertion:
        lines.append(assertion[0].strip())
    elif kind == "invalid worker state":
        lines += printed.strip().splitlines()[-4:]
    findings: list[Finding] = []
    for kernel in kernels:
        if problem is not None and kernel.engine == "cuda" and kind not in _WITHOUT_LINE:
            said, found = explain(kernel, problem)
            lines += said.splitlines()
            findings += found
    return LaunchError("\n  ".join(lines), kind, findings)


def explain(kernel: Runnable, problem: Problem) -> tuple[str, list[Finding]]:
    """Say what the simulator finds on a small problem like it, or why the kernel cannot run there.

    Takes a few seconds; nothing is said of what has no source, such as a library's baseline.
    """
    if kernel.source is None:
        return "", []
    try:
        small = problem.scaled(EXPLAIN_MACS)
        twin = kernel.on("sim", time_limit=_SIMULATOR_SECONDS)
        with contextlib.redirect_stdout(io.StringIO()):
            twin.prepare(small, *data.inputs(small, 0, format=twin.format))()
    except LaunchError as error:
        return f"the simulator, on {small}: {error.args[0]}", error.findings
    except Exception as error:  # it cannot run there, and that is another matter
        said = str(error).splitlines() or [type(error).__name__]
        return f"the simulator could not run it: {said[0]}", []
    return f"the simulator found nothing on {small}", []
