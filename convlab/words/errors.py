"""The exceptions that convlab raises; each message says what to do next."""

from collections.abc import Sequence
from typing import Any


class ConvlabError(Exception):
    """Any error of convlab's own."""


class ProblemError(ConvlabError, ValueError):
    """The arguments do not describe a convolution: shapes, strides, dtype, device."""


class UnsupportedError(ConvlabError, ValueError):
    """The kernel's header says that it cannot do this problem."""


class CatalogError(ConvlabError, LookupError):
    """No such kernel, two of one name, or a header comment that cannot be read."""


class BuildError(ConvlabError, RuntimeError):
    """A kernel did not compile, or there is no compiler to compile it."""


class LaunchError(ConvlabError, RuntimeError):
    """A kernel refused a problem, crashed, hung, or did not get the memory it needs.

    `kind` says which, in the words of ``convlab/run/faults.md``; empty where the kernel itself
    returned a text. The text of one with a kind ends with its place on that page. `findings` are
    the simulator's (`convlab.sim.Finding`), with line, block and thread; of a fault on a GPU,
    those of the same kernel on a small problem. Empty where it found nothing or was not asked.
    """

    def __init__(self, message: str, kind: str = "", findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.findings = list(findings)

    def __str__(self) -> str:
        page = f"\n  see convlab/run/faults.md#{self.kind.replace(' ', '-')}" if self.kind else ""
        return super().__str__() + page


class WrongResult(ConvlabError, AssertionError):
    """A kernel's output is wrong, and the caller asked for that to raise."""
