"""Results that are only text: from commands that measure nothing, and for kernels that failed."""

from dataclasses import dataclass
from typing import Any, Self

from ..core.arguments import cut
from ..core.faults import UNSUPPORTED, outcome


@dataclass(frozen=True, repr=False)
class TextResult:
    """A text, and a document for JSON with the same content."""

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
    """The failure of one kernel: it does not build or run, or does not support the problem."""

    error: Exception | None = None

    @classmethod
    def of(cls, kernel_name: str, error: Exception) -> Self:
        """Return the failure of a kernel."""
        from ..core.correctness.report import unrun

        return cls(cut(f"convlab: {error}"), unrun(kernel_name, error), False, error)

    @property
    def outcome(self) -> str:
        """The outcome: "incorrect", "unsupported", "out of time", ..."""
        return outcome([getattr(self.error, "kind", "")])

    @property
    def nothing_ran(self) -> bool:
        """Whether the kernel's header says that it does not support the problem."""
        return self.outcome == UNSUPPORTED
