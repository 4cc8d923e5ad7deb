"""Classify a kernel's fault on the GPU, explain it, and find its source line.

``convlab/core/faults.py`` has the meaning of each kind of fault, and what to try.
"""

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import ConvlabError, LaunchError
from ..core.faults import INCORRECT, fault, outcome
from ..core.finding import Finding
from ..core.kernel import data
from ..core.kernel.runnable import Runnable
from ..core.problem.problem import Problem

# The source line is searched on a problem with at most this many multiply-adds, for this many seconds.
EXPLAIN_MACS = 2_000_000
_EXPLAIN_SECONDS = 6.0
# Each kind of fault with the phrases of CUDA's error texts that mean it. The first match counts.
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
# The simulator's findings on a small problem that explain why a run on the GPU does not end.
_HANGS = ("endless loop", "deadlock", "divergent barrier")
# Another run of the kernel cannot explain these faults.
_WITHOUT_LINE = ("out of memory", "invalid worker state")


def classify(error: BaseException) -> tuple[str, str] | None:
    """Return an exception's kind of fault and the line of its text that shows it; None if it is none.

    A fault is a CUDA error, raised by torch or returned by a kernel's entry point. Its text decides,
    because the texts have not changed from torch 2.11 to 2.13, but the exception types have.
    """
    # Remove torch's advice, which contains phrases of other faults.
    text = re.sub(r"Compile with `TORCH_USE_CUDA_DSA`.*", "", str(error))
    if isinstance(error, ConvlabError):
        may_be_fault = isinstance(error, LaunchError) and not error.kind
    else:
        names_cuda = re.search("cuda|cublas|cudnn", text, re.IGNORECASE)
        may_be_fault = isinstance(error, RuntimeError) and names_cuda
    if not may_be_fault:
        return None
    for kind, phrases in KINDS.items():
        for phrase in phrases:
            for line in text.splitlines():
                if phrase in line.lower():
                    # The text in parentheses is advice on other causes.
                    return kind, line.strip().partition(" (")[0]
    return None


def make_error(
    kind: str, text: str, function: Callable[..., Any], values: Sequence[Any], printed: str = ""
) -> LaunchError:
    """Return the exception for a fault in ``function(*values)``, with the source line if it is found.

    `text` is CUDA's message, or how the process ended. `printed` is what the process printed.
    """
    kernels = [value for value in values if isinstance(value, Runnable)]
    problem = next((value for value in values if isinstance(value, Problem)), None)
    names = " or ".join(kernel.name for kernel in kernels)
    names = names or getattr(function, "__qualname__", repr(function))
    where = f" on {problem.label}" if problem is not None else ""
    lines = []
    assertion = re.search(r"^.*\bAssertion `.*$", printed, re.MULTILINE)
    if assertion:
        lines.append(assertion[0].strip())
    elif kind == "invalid worker state":
        lines += printed.strip().splitlines()[-4:]
    findings: list[Finding] = []
    if problem is not None and kind not in _WITHOUT_LINE:
        for kernel in kernels:
            if kernel.engine == "cuda":
                explanation, more_findings = explain(kernel, problem)
                lines += explanation.splitlines()
                findings += more_findings
    if kind == "out of time" and any(each.kind in _HANGS for each in findings):
        kind = "endless loop"
    lines.insert(0, f"{names}{where}: {kind}: {fault(kind).meaning} ({text})")
    return LaunchError("\n  ".join(lines), kind, findings)


def explain(kernel: Runnable, problem: Problem) -> tuple[str, list[Finding]]:
    """Run a kernel on the simulator, on a smaller problem, and return a text with the findings.

    This takes a few seconds. The text says what was found, or why the kernel cannot run there. It is
    empty for a kernel without source, such as a library's, and without the room ``sim``.
    """
    try:
        twin = kernel.simulated(_EXPLAIN_SECONDS)
        if twin is None:
            return "", []
        small = problem.scaled(EXPLAIN_MACS)
        with contextlib.redirect_stdout(io.StringIO()):
            twin.prepare(small, *data.inputs(small, 0, format=twin.format))()
    except LaunchError as error:
        # A simulation that was too slow, or that the machine could not run, explains nothing.
        findings = error.findings if outcome([error.kind]) == INCORRECT else []
        return f"the simulator, on {small}: {error.args[0]}", findings
    except Exception as error:
        # The simulator failed, not the kernel.
        lines = str(error).splitlines() or [type(error).__name__]
        return f"the simulator could not run it: {lines[0]}", []
    return f"the simulator found no error on {small}", []
