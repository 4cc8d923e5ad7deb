"""A cut of a kernel's source: numbered text in a terminal, highlighted code in a notebook."""

from __future__ import annotations

import difflib
import html
from collections.abc import Sequence
from dataclasses import dataclass

from ..words.arguments import whole
from ..words.errors import ProblemError

_CARD = (
    "margin:0;padding:6px 10px;overflow-x:auto;color:#222;background:#fff;"
    "font:13px/1.45 monospace;white-space:pre"
)
_NUMBER = "color:#6b6b6b;user-select:none"  # copying takes the code without the numbers


@dataclass(frozen=True, repr=False)
class Excerpt:
    """Some lines of a source.

    Attributes
    ----------
    label : where they are from: "kernels/01_direct.cu".
    first : the number of the first line; a file's first line is 1.
    lines : their text.
    """

    label: str
    first: int
    lines: Sequence[str]

    def __str__(self) -> str:
        """The lines, each behind its number."""
        width = len(str(self.first + len(self.lines) - 1))
        numbered = enumerate(self.lines, self.first)
        return "\n".join(f"{number:>{width}}  {text}".rstrip() for number, text in numbered)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return "\n".join(["```cpp", *self.lines, "```"])

    def _repr_html_(self) -> str:
        width = len(str(self.first + len(self.lines) - 1))
        rows = [
            f'<span style="{_NUMBER}">{number:>{width}}  </span>{text}'
            for number, text in enumerate(_highlighted(self.lines), self.first)
        ]
        label = f'<span style="{_NUMBER}">{html.escape(self.label)}</span>'
        return f'<pre style="{_CARD}">' + "\n".join([label, *rows]) + "</pre>"


def excerpt(
    text: str, label: str, first: str | int | None = None, last: str | int | None = None
) -> Excerpt:
    """Cut lines out of a source; `convlab.Kernel.show` says how they are found."""
    lines = text.splitlines()
    start = 0 if first is None else _find(lines, first, 0, label)
    if last is not None:
        stop = _find(lines, last, start, label)
    else:
        stop = len(lines) - 1 if first is None else start
    if stop < start:
        raise ProblemError(f"line {last} stands before line {start + 1}: give them in their order")
    return Excerpt(label, start + 1, tuple(lines[start : stop + 1]))


def _find(lines: list[str], wanted: str | int, start: int, label: str) -> int:
    """The index of the line that has a number, or of the next one from `start` that holds a text."""
    if not isinstance(wanted, str):
        wanted = whole(wanted, "a line of show()")
        if not 1 <= wanted <= len(lines):
            raise ProblemError(f"{label} has no line {wanted}: its lines are 1 to {len(lines)}")
        return wanted - 1
    for index in range(start, len(lines)):
        if wanted in lines[index]:
            return index
    after = f" from line {start + 1} on" if start else ""
    texts = {line.strip(): number for number, line in enumerate(lines, 1) if line.strip()}
    near = difflib.get_close_matches(wanted.strip(), texts, 3, 0.4)
    found = "\n".join(f"  {texts[text]}: {text}" for text in near)
    hint = f"; the nearest are\n{found}" if near else "; show() without arguments shows all of it"
    raise ProblemError(f"no line of {label}{after} holds {wanted!r}{hint}")


def _highlighted(lines: Sequence[str]) -> list[str]:
    """The lines as HTML, in colours where Pygments is there; it comes with Jupyter."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import CppLexer
    except ImportError:
        return [html.escape(line) for line in lines]
    # "default" is the style whose colours all keep their contrast on white
    formatter = HtmlFormatter(nowrap=True, noclasses=True, style="default")
    text = highlight("\n".join(lines), CppLexer(stripnl=False, ensurenl=False), formatter)
    found = text.split("\n")[: len(lines)]
    return found + [""] * (len(lines) - len(found))
