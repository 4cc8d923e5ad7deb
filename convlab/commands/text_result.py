"""Results that are only text: of commands that measure nothing, and of kernels that failed."""

from dataclasses import dataclass
from typing import Any, Self

from ..core.errors import UnsupportedError


@dataclass(frozen=True, repr=False)
class TextResult:
    """A text, and the same as a document that JSON can hold."""

    text: str
    document: dict[str, Any]
    ok: bool = True
    nothing_ran = False

    def __repr__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return the document."""
        return self.document


@dataclass(frozen=True, repr=False)
class Failure(TextResult):
    """One kernel of several, which does not build or run, or does not support the problem."""

    error: Exception | None = None

    @classmethod
    def of(cls, kernel_name: str, error: Exception) -> Self:
        """Return the failure of a kernel."""
        from ..core.correctness.report import unrun

        return cls(f"convlab: {error}", unrun(kernel_name, error), False, error)

    @property
    def nothing_ran(self) -> bool:
        """Whether the kernel does not support the problem, by its header."""
        return isinstance(self.error, UnsupportedError)
