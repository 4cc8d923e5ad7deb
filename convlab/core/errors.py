"""The exceptions that convlab raises; each message says what to do next."""

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
    """Any error of convlab's own. In a notebook its message is shown; ``%tb`` shows all."""

    problem: Any = None  # on which `check` met it
    _shown = False

    def _render_traceback_(self) -> list[str]:
        # IPython calls this for a cell, and again for %tb.
        if self._shown:
            return traceback.format_exception(self)
        self._shown = True
        return brief(self) or traceback.format_exception(self)


def brief(error: BaseException) -> list[str]:
    """Return the lines that a cell shows of an error; none if it did not pass through convlab."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [i for i, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)]
    if not inside:
        return []
    # A path of this machine is of no use to a reader.
    text = re.sub(r"\nfull log: .*", "", str(error)) or "interrupted"
    lines = [f"{_RED}{type(error).__name__}{_PLAIN}: {text}"]
    caller = frames[max(inside[0] - 1, 0)]
    if caller.line and caller is not frames[inside[0]] and "/IPython/" not in caller.filename:
        lines.append(f"  at line {caller.lineno}: {caller.line}    (%tb shows more)")
    return lines


def named(name: str, error: Exception) -> str:
    """Return an error's text, with the kernel's name in front unless its first line has it."""
    first_line = str(error).split("\n")[0]
    file = f"{name.partition('@')[0]}.cu"
    if first_line.startswith(name) or file in first_line:
        return str(error)
    return f"{name}: {error}"


class ProblemError(ConvlabError, ValueError):
    """The arguments do not describe a convolution: shapes, strides, dtype, device."""


class UnsupportedError(ConvlabError, ValueError):
    """The kernel's header says that it does not support this problem."""

    kind = "unsupported"


class CatalogError(ConvlabError, LookupError):
    """No such kernel, two of one name, or a header comment that cannot be read."""


class BuildError(ConvlabError, RuntimeError):
    """A kernel did not compile, or there is no compiler; `places` has file, line and message."""

    kind = "does not build"

    def __init__(self, message: str, places: Sequence[tuple[str, int, str]] = ()) -> None:
        super().__init__(message)
        self.places = list(places)


class LaunchError(ConvlabError, RuntimeError):
    """A kernel refused a problem, crashed, hung, or did not get the memory it needs.

    Attributes
    ----------
    kind
        What happened: a kind of ``convlab/core/faults.py``. The text then ends with what to try,
        and the place on the page ``faults.md``. Empty if the kernel itself returned a text.
    findings
        The simulator's findings, with line, block and thread. For a fault on a GPU they are those
        of the same kernel on a small problem. Empty if it found nothing, or did not run.
    """

    def __init__(self, message: str, kind: str = "", findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.findings = list(findings)

    def __str__(self) -> str:
        if not self.kind:
            return super().__str__()
        page = f"see convlab/core/faults.md#{self.kind.replace(' ', '-')}"
        return "\n  ".join([super().__str__(), f"try: {fault(self.kind).advice}", page])


class WrongResult(ConvlabError, AssertionError):
    """A kernel's output is incorrect, and the caller asked for an exception."""
