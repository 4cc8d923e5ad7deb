"""Lay out rows as a table, for a terminal and for a notebook.

pandas lays out the HTML. Its `to_string` is not used for the text, for three reasons. It cannot align
columns of names to the left. It cuts a kernel's name. It ends the lines of a split table with
backslashes.
"""

from __future__ import annotations

import functools
import html
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

# The width of text in characters, if it does not go to a terminal of known width.
WIDTH = 100
# The fewest characters that a column of names is cut to.
_NARROWEST = 12
_GAP = "  "
Form = str | Callable[[Any], str]


@dataclass(frozen=True)
class Table:
    """A frame and how to show it; `number` turns values into text.

    Attributes
    ----------
    rows
        The frame.
    columns
        The columns to show: for each its heading, or (heading, format). A format is "{:.3g}" or a
        function. Empty: all columns.
    left
        Headings of columns that are aligned to the left, and cut if the table is too wide. The
        first column is always one of them.
    title
        A line above the table.
    """

    rows: pd.DataFrame
    columns: Mapping[str, tuple[str, Form] | str] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    title: str = ""

    @functools.cached_property
    def cells(self) -> dict[str, list[str]]:
        """Each column's heading, and its cells as text."""
        cells = {}
        for key, about in (self.columns or {name: str(name) for name in self.rows}).items():
            heading, form = (about, "") if isinstance(about, str) else about
            if key in self.rows:
                cells[heading] = [number(value, form) for value in self.rows[key]]
        return cells

    def lines(self) -> list[str]:
        """Return the table as lines of text.

        Columns beyond the width follow in a second block, which repeats the first column.
        """
        if not len(self.rows) or not self.cells:
            return []
        widths = self._widths(width())
        lines = [self.title] if self.title else []
        for block in _blocks(widths, width()):
            columns = [self._column(heading, widths[heading]) for heading in block]
            heading, *rows = [_GAP.join(cells).rstrip() for cells in zip(*columns, strict=True)]
            rule = "-" * max(map(len, [heading, *rows]))
            lines += [heading, rule, *rows]
        return lines

    def html(self) -> str:
        """Return the table as HTML.

        Each cell sets its alignment, because JupyterLab's style sets another one.
        """
        if not len(self.rows) or not self.cells:
            return ""
        columns = {}
        for heading, texts in self.cells.items():
            first, *cells = (self._html_cell(text, heading) for text in (heading, *texts))
            columns[first] = cells
        title = f"<div>{html.escape(self.title)}</div>" if self.title else ""
        return title + pd.DataFrame(columns).to_html(index=False, border=0, escape=False)

    def _html_cell(self, text: str, heading: str) -> str:
        side = "left" if self._is_left(heading) else "right"
        return f'<div style="text-align:{side};white-space:pre">{html.escape(text)}</div>'

    def _is_left(self, heading: str) -> bool:
        return heading == next(iter(self.cells)) or heading in self.left

    def _widths(self, room: int) -> dict[str, int]:
        """Return each column's width; cut the widest names while the table is too wide."""
        widths = {name: max(map(len, [name, *texts])) for name, texts in self.cells.items()}
        # A kernel's name is never cut, so that it can be copied.
        names = [name for name in widths if self._is_left(name) and name != "kernel"]
        while names and sum(widths.values()) + len(_GAP) * (len(widths) - 1) > room:
            widest = max(names, key=lambda name: widths[name])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
        return widths

    def _column(self, heading: str, width: int) -> list[str]:
        """Return the heading and the cells of a column, cut or padded to a width."""
        texts = [_cut(text, width) for text in (heading, *self.cells[heading])]
        if self._is_left(heading):
            return [text.ljust(width) for text in texts]
        return [text.rjust(width) for text in texts]


def _blocks(widths: Mapping[str, int], room: int) -> list[list[str]]:
    """Split the columns into blocks that fit; each begins with the first column."""
    first, *others = widths
    blocks = [[first]]
    for name in others:
        taken = sum(widths[other] + len(_GAP) for other in blocks[-1])
        if taken + widths[name] > room:
            blocks.append([first])
        blocks[-1].append(name)
    return blocks


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def short(value: float) -> str:
    """Return a number with three digits, or with all digits before the point: never 5.47e+04."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def number(value: Any, form: Form = "") -> str:
    """Return a cell as text: four digits, commas between thousands, "-" for an unknown value."""
    if isinstance(value, str):
        return value
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "-"
    if form:
        return form.format(value) if isinstance(form, str) else form(value)
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value):
        return str(value)
    if abs(value) >= 999.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def width() -> int:
    """Return the width of text in characters: the terminal's, if there is one."""
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDTH
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 40)


def wrapped(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    """Return a text's lines, indented; a line with a command to copy is not wrapped."""
    if text.startswith("reproduce: "):
        return [first + text]
    return textwrap.wrap(
        text,
        width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of texts, wrapped with their indentation; quoted source is not wrapped."""
    for line in (line for text in texts for line in text.split("\n")):
        if len(line) <= width() or re.match(r"\s*\d*\s*\|", line):
            yield line
        else:
            indent = line[: len(line) - len(line.lstrip())]
            yield from wrapped(line.strip(), indent, f"{indent}  ")
