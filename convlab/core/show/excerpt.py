"""A cut of a kernel's source: numbered text in a terminal, highlighted code in a notebook."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from ..arguments import nearest, whole
from ..errors import ProblemError

_CARD = (
    "margin:0;padding:6px 10px;overflow-x:auto;color:#222;background:#fff;"
    "font:13px/1.45 monospace;white-space:pre"
)
# copying takes the code without the numbers
_NUMBER = '<span style="color:#6b6b6b;user-select:none">{}</span>'


@dataclass(frozen=True, repr=False)
class Excerpt:
    """Some lines of a source."""

    label: str  # where they are from: "kernels/01_direct.cu"
    first: int  # the number of the first line; a file's first line is 1
    lines: Sequence[str]

    def _numbered(self, lines: Sequence[str], mark: str) -> list[str]:
        """Put each line behind its number, which `mark` formats."""
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
    """Cut lines out of a source; `convlab.Kernel.show` says how they are found."""
    lines = text.splitlines()
    start = 0 if first is None else _find(lines, first, 0, label)
    stop = len(lines) - 1 if first is None else start
    if last is not None:
        stop = _find(lines, last, start, label)
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
    found = next((i for i in range(start, len(lines)) if wanted in lines[i]), None)
    if found is not None:
        return found
    after = f" from line {start + 1} on" if start else ""
    texts = {line.strip(): number for number, line in enumerate(lines, 1) if line.strip()}
    near = [f"\n  {texts[text]}: {text}" for text in nearest(wanted.strip(), texts)]
    hint = "the nearest are" if near else "show() without arguments shows all of it"
    raise ProblemError(f"no line of {label}{after} holds {wanted!r}; {hint}{''.join(near)}")


def _highlighted(lines: Sequence[str]) -> list[str]:
    """The lines as HTML, in colours. Only a notebook asks, and Pygments comes with Jupyter."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import CppLexer

    # "default" is the style whose colours all keep their contrast on white
    formatter = HtmlFormatter(nowrap=True, noclasses=True, style="default")
    text = highlight("\n".join(lines), CppLexer(stripnl=False, ensurenl=False), formatter)
    return (text.split("\n") + [""] * len(lines))[: len(lines)]
