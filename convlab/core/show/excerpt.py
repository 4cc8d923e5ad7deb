"""Show lines of a kernel's source: numbered in a terminal, highlighted in a notebook."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from ..arguments import nearest, whole
from ..errors import ProblemError

_CARD = (
    "margin:0;padding:6px 10px;overflow-x:auto;color:#222;background:#fff;"
    "font:13px/1.45 monospace;white-space:pre"
)
# user-select:none: copied text has no line numbers.
_NUMBER = '<span style="color:#6b6b6b;user-select:none">{}</span>'


@dataclass(frozen=True, repr=False)
class Excerpt:
    """Hold lines of a source; it prints as numbered text, and displays as highlighted code.

    Attributes
    ----------
    label : the source's name, such as "kernels/01_direct.cu".
    first : the number of the first line; a file's first line is 1.
    lines : the lines.
    """

    label: str
    first: int
    lines: Sequence[str]

    def _numbered(self, lines: Sequence[str], mark: str) -> list[str]:
        """Return the lines, each after its number, which `mark` formats."""
        width = len(str(self.first + len(self.lines) - 1))
        numbers = (f"{number:>{width}}  " for number in range(self.first, self.first + len(lines)))
        return [mark.format(number) + text for number, text in zip(numbers, lines, strict=True)]

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self._numbered(self.lines, "{}"))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self._numbered(_highlighted(self.lines), _NUMBER)
        label = _NUMBER.format(html.escape(self.label))
        return f'<pre style="{_CARD}">' + "\n".join([label, *rows]) + "</pre>"


def excerpt(
    text: str, label: str, first: str | int | None = None, last: str | int | None = None
) -> Excerpt:
    """Return lines of a source; `convlab.Kernel.show` describes `first` and `last`.

    Raises ProblemError if there is no such line.
    """
    lines = text.splitlines()
    start = 0 if first is None else _find(lines, first, 0, label)
    stop = len(lines) - 1 if first is None else start
    if last is not None:
        stop = _find(lines, last, start, label)
    if stop < start:
        raise ProblemError(
            f"the last line, {last}, is before the first line, {start + 1}: exchange the two"
        )
    return Excerpt(label, start + 1, tuple(lines[start : stop + 1]))


def _find(lines: list[str], wanted: str | int, start: int, label: str) -> int:
    """Return the index of the line with a number, or of the next line that contains a text.

    The search for a text begins at index `start`. Raises ProblemError if there is no such line.
    """
    if not isinstance(wanted, str):
        wanted = whole(wanted, "a line of show()")
        if not 1 <= wanted <= len(lines):
            raise ProblemError(
                f"{label} has no line {wanted}: choose a line from 1 to {len(lines)}"
            )
        return wanted - 1
    index = next((i for i in range(start, len(lines)) if wanted in lines[i]), None)
    if index is not None:
        return index
    after = f" from line {start + 1} on" if start else ""
    texts = {line.strip(): number for number, line in enumerate(lines, 1) if line.strip()}
    near = [f"\n  {texts[text]}: {text}" for text in nearest(wanted.strip(), texts)]
    hint = "similar lines are" if near else "show() without arguments shows all lines"
    text = repr(wanted if len(wanted) <= 80 else f"{wanted[:79]}…")
    raise ProblemError(f"no line of {label}{after} contains {text}; {hint}{''.join(near)}")


def _highlighted(lines: Sequence[str]) -> list[str]:
    """Return the lines as highlighted HTML, for a notebook."""
    # Pygments is installed with Jupyter.
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import CppLexer

    # All colours of the style "default" have enough contrast on white.
    formatter = HtmlFormatter(nowrap=True, noclasses=True, style="default")
    text = highlight("\n".join(lines), CppLexer(stripnl=False, ensurenl=False), formatter)
    return (text.split("\n") + [""] * len(lines))[: len(lines)]
