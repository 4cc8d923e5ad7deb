"""What went wrong with a kernel on the GPU: its kind, what it means, and what finds the line.

The page for the reader is ``faults.md``; a test keeps the two in step.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..sim import Finding
from ..words.errors import ConvlabError, LaunchError
from ..words.problem import Problem
from . import data
from .runnable import Runnable

EXPLAIN_MACS = 2_000_000  # what a problem is scaled down to where a line is looked for
_SIMULATOR_SECONDS = 6.0


@dataclass(frozen=True)
class Kind:
    """A kind of fault: what it means, what to try, and how CUDA's error texts name it."""

    meaning: str
    advice: str
    phrases: tuple[str, ...] = ()


# Of several phrases in one text, the one that stands first here counts.
KINDS: dict[str, Kind] = {
    "illegal address": Kind(
        "a thread read or wrote memory that belongs to no buffer",
        "compare every index with the size of its array, at the borders and in 64 bits",
        ("illegal memory access", "illegal address"),
    ),
    "misaligned address": Kind(
        "an address is not a multiple of the size of the access",
        "use float4 and float2 only where the offset is known to be a multiple of 4 or 2 elements",
        ("misaligned address",),
    ),
    "device assert": Kind(
        "an assert() in the kernel failed",
        "look at the assertion: it is quoted above where the GPU said which it was",
        ("device-side assert",),
    ),
    "endless loop": Kind(
        "it did not end",
        "look for a loop that does not end and for a barrier that not every thread reaches; if it "
        "is only slow, allow more: time_limit=SECONDS",
        ("launch timed out", "launchtimeout"),
    ),
    "launch configuration": Kind(
        "the GPU refused the launch, and no thread ran",
        "at most 1024 threads a block and 65535 blocks in y and z; more than 48 KB of dynamic "
        "shared memory needs cudaFuncSetAttribute; too many registers need __launch_bounds__",
        (
            "invalid configuration argument",
            "too many resources requested",
            "too many blocks in cooperative launch",
            "invalid argument",
            "invalid device function",
            "no kernel image is available",
            "invalid device symbol",
        ),
    ),
    "out of memory": Kind(
        "the GPU's memory did not suffice",
        "take a smaller problem (Problem.scaled) or load(..., workspace_limit=BYTES), or end what "
        "else uses the GPU (nvidia-smi)",
        ("out of memory", "not enough gpu memory", "memory ran out"),
    ),
    "invalid worker state": Kind(
        "the worker process could not do its part",
        "call again: a fresh worker starts; if that fails too, read what it printed, and run "
        "without isolation (isolate=False) to see the error itself",
        ("busy or unavailable", "initialization error", "no cuda-capable device"),
    ),
    "launch failure": Kind(
        "the kernel was stopped by the GPU",
        "look for shared memory out of bounds, __trap() and a broken stack",
        (
            "unspecified launch failure",
            "illegal instruction",
            "hardware stack error",
            "invalid program counter",
            "operation not supported on global/shared address space",
            "invalid address space",
            "execution_failed",
            "cuda error",
        ),
    ),
    "host crash": Kind(
        "its host code ended the process",
        "look at the entry point: null and stale pointers, arrays on the stack, abort() and exit()",
    ),
}
_WITHOUT_LINE = ("out of memory", "invalid worker state")  # no run of the kernel explains these


def classify(error: BaseException) -> tuple[str, str] | None:
    """Return the kind of an exception and the words of it that tell; None if it is no fault.

    Faults are CUDA's errors as torch raises them (by their text, which has stayed the same while
    the types have not: torch 2.11 to 2.13) or as a kernel's entry point returns them.
    """
    if isinstance(error, LaunchError):
        if error.kind:
            return None
    elif isinstance(error, ConvlabError) or not isinstance(error, RuntimeError):
        return None
    text = re.sub(r"Compile with `TORCH_USE_CUDA_DSA`.*", "", str(error))  # advice, not the fault
    if not isinstance(error, LaunchError) and not re.search("cuda|cublas|cudnn", text, re.I):
        return None
    for name, kind in KINDS.items():
        for phrase in kind.phrases:
            if phrase in text.lower():
                line = next(line for line in text.splitlines() if phrase in line.lower())
                return name, line.strip().partition(" (")[0]  # without advice for another case
    return None


@dataclass(frozen=True)
class Subject:
    """What was being run: names of kernels and a problem, for messages."""

    function: str
    kernels: tuple[Runnable, ...]
    problem: Problem | None

    @classmethod
    def of(cls, function: Callable[..., Any], values: Iterable[Any]) -> Subject:
        """Find the kernels and the problem among a call's arguments."""
        values = list(values)
        kernels = tuple(value for value in values if isinstance(value, Runnable))
        problem = next((v for v in values if isinstance(v, Problem)), None)
        return cls(getattr(function, "__qualname__", repr(function)), kernels, problem)

    def __str__(self) -> str:
        who = " or ".join(kernel.name for kernel in self.kernels) or self.function
        return f"{who} on {self.problem.label}" if self.problem is not None else who

    def error(self, kind: str, text: str, printed: str = "") -> LaunchError:
        """Return the exception for a fault, with what can be found out about it.

        Parameters
        ----------
        text : what was seen of it, in words.
        printed : what the process wrote to stderr; an assertion is quoted from it.
        """
        lines = [f"{self}: {kind}: {KINDS[kind].meaning} ({text})"]
        assertion = re.search(r"^.*\bAssertion `.*$", printed, re.M)
        if assertion:
            lines.append(assertion[0].strip())
        elif kind == "invalid worker state":
            lines += printed.strip().splitlines()[-4:]
        findings: list[Finding] = []
        if self.problem is not None and kind not in _WITHOUT_LINE:
            for kernel in self.kernels:
                if kernel.engine == "cuda":
                    text, found = _explained(kernel, self.problem)
                    lines += text.splitlines()
                    findings += found
        lines.append(f"try: {KINDS[kind].advice}")
        return LaunchError("\n  ".join(lines), kind, findings)


def explain(kernel: Any, problem: Problem) -> str:
    """Look for the line at fault: run the kernel on the simulator.

    It runs the problem scaled down to about `EXPLAIN_MACS` multiply-adds. That takes a few
    seconds, and raises nothing.

    Returns
    -------
    str
        What it found, or why it could not run; empty for what has no source, such as a library's
        baseline.
    """
    return _explained(kernel, problem)[0]


def _explained(kernel: Any, problem: Problem) -> tuple[str, list[Finding]]:
    """What the simulator says of a kernel, in words and as data."""
    if not isinstance(kernel, Runnable) or kernel.source is None:
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
