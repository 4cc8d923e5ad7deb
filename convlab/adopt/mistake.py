"""A mistake in an answer: what it is, its line in the file, and what to do."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .answer import Answer

# The kinds of mistakes that say that the answer does not do the work that it is asked for.
CHEATS = ("cheat",)


@dataclass(frozen=True)
class Mistake:
    """A mistake, or possible mistake, of an answer.

    Attributes
    ----------
    kind : "load_inline", "linkage", "name", "method", "arguments", "form", "flags", "syntax",
        "cheat", "build", "python", or a kind of finding of the simulator: "race", ...
    line : the line in the answer's file; 0 if unknown.
    text : what is wrong, in a sentence.
    todo : what to do.
    error : whether the answer cannot be correct because of it; if False, it is a warning.
    """

    kind: str
    line: int
    text: str
    todo: str
    error: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict."""
        return asdict(self)


def described(mistakes: Iterable[Mistake], answer: Answer) -> Iterator[str]:
    """Yield the lines of a text: each mistake with its line of the file, and what to do."""
    name = answer.path.name
    for mistake in mistakes:
        word = "" if mistake.error else "warning: "
        place = f"{name}:{mistake.line}: " if mistake.line else f"{name}: "
        yield f"{place}{word}{mistake.text}"
        if quoted := answer.quoted(mistake.line):
            yield f"    {quoted[:100]}"
        if mistake.todo:
            yield f"  do: {mistake.todo}"
