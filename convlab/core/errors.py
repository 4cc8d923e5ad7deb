"""The exceptions that convlab raises. Each message says what to do next."""

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .faults import fault

_PACKAGE = str(Path(__file__).parents[1])
_RED = "\x1b[31m"
_PLAIN = "\x1b[0m"


class ConvlabError(Exception):
    """The base class of convlab's errors.

    A notebook cell shows only the message, and your line that led to it. ``%tb`` shows the whole
    traceback.
    """

    # The problem that `check` ran when the error was raised.
    problem: Any = None
    _shown = False

    def _render_traceback_(self) -> list[str]:
        # IPython calls this once for the cell, and once more for %tb.
        if self._shown:
            return traceback.format_exception(self)
        self._shown = True
        return brief(self) or traceback.format_exception(self)


def brief(error: BaseException) -> list[str]:
    """Return the lines that a cell shows for an error; none if it was not raised in convlab."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [i for i, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)]
    if not inside:
        return []
    # The path of the log is specific to this machine, and a saved notebook keeps the output.
    text = re.sub(r"\nfull log: .*", "", str(error)) or "interrupted"
    lines = [f"{_RED}{type(error).__name__}{_PLAIN}: {text}"]
    caller = frames[max(inside[0] - 1, 0)]
    if caller.line and caller is not frames[inside[0]] and "/IPython/" not in caller.filename:
        lines.append(f"  at line {caller.lineno}: {caller.line}    (%tb shows more)")
    return lines


def named(name: str, error: Exception) -> str:
    """Return an error's text, preceded by the kernel's name unless the first line contains it."""
    first_line = str(error).split("\n")[0]
    file = f"{name.partition('@')[0]}.cu"
    if first_line.startswith(name) or file in first_line:
        return str(error)
    return f"{name}: {error}"


class ProblemError(ConvlabError, ValueError):
    """An argument is invalid: a shape, a stride, a dtype, a device, an option."""


class UnsupportedError(ConvlabError, ValueError):
    """The kernel does not support this problem, according to its header."""

    kind = "unsupported"


class CatalogError(ConvlabError, LookupError):
    """There is no such kernel, two kernels have one name, or a header comment is invalid."""


class BuildError(ConvlabError, RuntimeError):
    """A kernel did not compile, or there is no compiler.

    Attributes
    ----------
    places : list of (str, int, str)
        The file, the line and the message of each compiler error.
    kind : str
        "does not build"; or "not run" if a compiler is missing or could not run, which says nothing
        about the kernel.
    """

    kind = "does not build"

    def __init__(
        self, message: str, places: Sequence[tuple[str, int, str]] = (), kind: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind or self.kind
        self.places = list(places)


class NotSimulated(BuildError):
    """The kernel uses a part of CUDA that the simulator does not support: run it on a GPU.

    It says nothing about the kernel, which may be correct. A construct that is found only when the
    kernel runs raises a `LaunchError` with the same ``kind``.

    Attributes
    ----------
    names : list of str
        What the simulator lacks: a header, a function, a type, a PTX instruction.
    """

    kind = "not simulated"

    def __init__(
        self,
        message: str,
        places: Sequence[tuple[str, int, str]] = (),
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(message, places)
        self.names = list(names)


class LaunchError(ConvlabError, RuntimeError):
    """A kernel returned an error, crashed, hung, was too slow, or did not get what it needs to run.

    Attributes
    ----------
    kind : str
        The kind of fault, a key of ``convlab/core/faults.py``. The message then ends with what to
        try, and a link into ``faults.md``. Empty if the kernel itself returned an error text.
    findings : list of Finding
        The simulator's findings, each with line, block and thread. After a fault on a GPU they come
        from the same kernel on a small problem. Empty if the simulator reported nothing, or did not
        run.
    needed : int
        If the workspace limit is too low: the least workspace for this problem, in bytes; else 0.
    """

    def __init__(self, message: str, kind: str = "", findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.findings = list(findings)
        self.needed = 0

    def __str__(self) -> str:
        if not self.kind:
            return super().__str__()
        page = f"see convlab/core/faults.md#{self.kind.replace(' ', '-')}"
        return "\n  ".join([super().__str__(), f"try: {fault(self.kind).advice}", page])


class TooManyThreads(LaunchError):
    """A simulated run ended because it would start more threads than its limit, `Launch.most_threads`."""


class WrongResult(ConvlabError, AssertionError):
    """A kernel's output is incorrect: raised by ``check(..., raises=True)``."""
