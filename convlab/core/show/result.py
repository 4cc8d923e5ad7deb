"""What every answer is: rows, a sentence, notes, a figure; text, HTML and JSON follow from those.

One `Table` lays rows out, in a terminal and a notebook.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import html
import json
import math
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..arguments import writable
from ..machine import toolchain
from ..problem.problem import Problem

if TYPE_CHECKING:
    from .plot import Chart

RECEIPT = 2  # the version of what `Result.save` writes
WIDTH = 100  # columns of what is no terminal, or does not tell
GOOD = "#009E73"
BAD = "#D55E00"
_NARROWEST = 12  # what a column of names may be cut down to
Form = str | Callable[[Any], str]


class Result:
    """The base of what `check`, `compare`, `ab`, `sweep` and `inspect` return.

    A subclass is a frozen dataclass with ``repr=False``. It gives the first four, as fields or
    properties, and `figure`; the others have a default that it may replace.
    """

    frame: pd.DataFrame  # the rows
    sentence: str  # all of it in one line
    ok: bool  # whether something is right, and nothing wrong
    declined: bool = False  # whether nothing ran, as no kernel does what was asked
    notes: Sequence[str]  # lines: device, scaling, what was left out and why
    problem: Problem  # of those that a set is made of
    tables: Sequence[Table] = ()  # what is shown of the rows
    details: Sequence[str] = ()  # lines under the tables: what is wrong, in full
    about: Mapping[str, Any] = MappingProxyType({})  # for JSON: any values that `plain` takes
    made: Mapping[str, Any] = MappingProxyType({})  # when, on what, of which sources
    samples: Any = ()  # all of them, as a frame
    costs: Sequence[Mapping[str, Any]] = ()  # what `convlab history` shows of it: rows

    def figure(self) -> Chart:
        """Draw it."""
        raise NotImplementedError

    @property
    def row(self) -> dict[str, str]:
        """It as one row in the table of a set: heading to text."""
        label = self.problem.label
        return {"problem": label, "found": self.sentence.removeprefix(f"{label}: ")}

    @property
    def color(self) -> str:
        """Of the mark beside it in a notebook."""
        return GOOD if self.ok else BAD

    def plot(self, path: str | Path | None = None) -> Chart:
        """Draw it; write the figure if a path is given, and return it."""
        chart = self.figure()
        if path is not None:
            chart.save(path)
        return chart

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold; a number that is not known is None."""
        found = {"ok": self.ok, "sentence": self.sentence, "rows": self.frame, "notes": self.notes}
        return plain({**found, **self.about})

    @property
    def receipt(self) -> dict[str, Any]:
        """What `save` writes: `to_dict`, the text, what it was made with, all samples."""
        own = {
            "convlab_receipt": RECEIPT,
            "kind": type(self).__name__,
            "text": str(self),
            "ok": self.ok,
            "sentence": self.sentence,
            "rows": self.frame,
            "notes": self.notes,
            "made": self.made,
            "samples": self.samples,
            "costs": self.costs,
        }
        return {**plain(own), **self.to_dict()}

    def save(self, path: str | Path | None = None) -> Path:
        """Write all of it as JSON, for `convlab.load_result`; return where.

        Without a path it goes where ``convlab history`` looks: a folder beside the builds. Raises
        ProblemError if a file cannot be written there.
        """
        text = json.dumps(self.receipt, indent=1, allow_nan=False)
        if path is None:
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            when = re.sub(r"\D", "", str(self.made.get("when", "")))[:14] or "undated"
            path = receipts_folder() / f"{when}-{type(self).__name__}-{digest}.json"
            if not toolchain.lasting():
                warnings.warn(f"{path} goes when Python ends: {toolchain.MOVE}", stacklevel=2)
        path = writable(path, "the receipt")
        path.write_text(text)
        return path

    def __str__(self) -> str:
        shown = [laid for table in self.tables if (laid := table.lines())]
        tables = [line for laid in shown for line in ("", *laid)][1:]
        notes = [line for note in self.notes for line in wrapped(note)]
        return "\n".join([*wrapped(self.sentence, ""), *tables, *self._folded(), *notes])

    __repr__ = __str__  # what a notebook keeps as text

    def _folded(self) -> Iterator[str]:
        """The lines of the details; quoted source stays whole."""
        for line in "\n".join(self.details).split("\n") if self.details else ():
            if len(line) <= width() or re.match(r"\s*\d*\s*\|", line):
                yield line
            else:
                indent = line[: len(line) - len(line.lstrip())]
                yield from wrapped(line.strip(), indent, f"{indent}  ")

    def _repr_html_(self) -> str:
        details = html.escape("\n".join(self._folded()))
        return (
            f'<div style="border-left:4px solid {self.color};padding-left:8px">'
            f"<b>{html.escape(self.sentence)}</b>{''.join(table.html() for table in self.tables)}"
            f"{f'<pre>{details}</pre>' if details else ''}"
            f"<small>{'<br>'.join(map(html.escape, self.notes))}</small></div>"
        )


def receipts_folder() -> Path:
    """Where results are saved that are given no path."""
    return toolchain.cache_dir() / "receipts"


def width() -> int:
    """Columns that text may take: the terminal's, where it goes to one."""
    seen = sys.stdout is not None and sys.stdout.isatty()
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 40) if seen else WIDTH


def wrapped(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    """A text's lines, behind their indents; what is to be copied stays whole: a command, a path."""
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


@dataclass(frozen=True, repr=False)
class Several(Result):
    """What one question found over a set of problems: a row for each, and a summary."""

    results: tuple[Any, ...]  # one for each problem, in order; also by index and in a loop

    ok = property(lambda self: all(result.ok for result in self.results))

    @property
    def sentence(self) -> str:
        good = sum(result.ok for result in self.results)
        return f"right on {good} of {len(self.results)} problems"

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of all, with the problem's name in front."""
        frames = [result.frame.drop(columns="problem", errors="ignore") for result in self.results]
        for rows, result in zip(frames, self.results, strict=True):
            rows.insert(0, "problem", result.problem.label)
        return pd.concat(frames, ignore_index=True)

    @property
    def tables(self) -> Sequence[Table]:
        rows = pd.DataFrame([result.row for result in self.results])
        return (Table(rows, left=("problem", "found")),)

    details = property(lambda self: [str(result) for result in self.results if not result.ok])

    @property
    def notes(self) -> Sequence[str]:
        """The notes of all, each once."""
        return tuple(dict.fromkeys(note for result in self.results for note in result.notes))

    about = property(lambda self: {"results": self.results})

    made = property(lambda self: self.results[0].made if self.results else {})
    costs = property(lambda self: [row for result in self.results for row in result.costs])

    @property
    def receipt(self) -> dict[str, Any]:
        return {**super().receipt, "results": [result.receipt for result in self.results]}

    def figure(self) -> Chart:
        """Draw the first one, unless a subclass knows better."""
        return self.results[0].figure()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]


@dataclass(frozen=True)
class Table:
    """A frame as it is shown: cells that are no text yet become it (`number`)."""

    rows: pd.DataFrame
    # each column that is shown with its heading, and perhaps a format: "{:.3g}", or a function; all
    # columns, if it is empty
    columns: Mapping[str, tuple[str, Form] | str] = dataclasses.field(default_factory=dict)
    # headings of columns that lie to the left and are cut where room is short, as the first one
    left: tuple[str, ...] = ()
    title: str = ""

    @functools.cached_property
    def cells(self) -> dict[str, list[str]]:
        """Each column's heading, and its cells as text."""
        shown = {}
        for key, about in (self.columns or {name: str(name) for name in self.rows}).items():
            heading, form = (about, "") if isinstance(about, str) else about
            if key in self.rows:
                shown[heading] = [number(value, form) for value in self.rows[key]]
        return shown

    def _side(self, heading: str) -> str:
        return "left" if heading in (next(iter(self.cells)), *self.left) else "right"

    def lines(self) -> list[str]:
        """Lay it out as text; columns beyond the width go below, after the first one again."""
        cells = self.cells
        room = width()
        if not len(self.rows) or not cells:
            return []
        widths = {name: max(map(len, [name, *cells[name]])) for name in cells}
        # a kernel's name is whole, so that it can be copied
        names = [n for n in cells if self._side(n) == "left" and n != "kernel"]
        while names and sum(widths.values()) + 2 * (len(widths) - 1) > room:
            widest = max(names, key=lambda name: widths[name])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
        first, *others = cells
        blocks = [[first]]
        for name in others:
            if sum(widths[other] + 2 for other in blocks[-1]) + widths[name] > room:
                blocks.append([first])
            blocks[-1].append(name)
        lines = [self.title] if self.title else []
        for block in blocks:
            columns = []
            for name in block:
                texts = [_cut(text, widths[name]) for text in (name, *cells[name])]
                side = "<" if self._side(name) == "left" else ">"
                columns.append([f"{text:{side}{widths[name]}}" for text in texts])
            laid = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
            lines += [laid[0], "-" * max(map(len, laid)), *laid[1:]]
        return lines

    def html(self) -> str:
        """Lay it out as HTML: a page's own style for tables (JupyterLab's) goes otherwise."""
        cells = self.cells
        if not len(self.rows) or not cells:
            return ""

        def cell(text: str, name: str) -> str:
            style = f"text-align:{self._side(name)};white-space:pre"
            return f'<div style="{style}">{html.escape(text)}</div>'

        shown = {cell(name, name): [cell(t, name) for t in cells[name]] for name in cells}
        title = f"<div>{html.escape(self.title)}</div>" if self.title else ""
        return title + pd.DataFrame(shown).to_html(index=False, border=0, escape=False)


def short(value: float) -> str:
    """Return three digits of a number, or all before the point: never 5.47e+04."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def number(value: Any, form: Form = "") -> str:
    """Return a cell as text: four digits, thousands apart, "-" for what is not known."""
    if isinstance(value, str):
        return value
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "-"
    if form:
        return form.format(value) if isinstance(form, str) else form(value)
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 999.95 or value == int(value) else f"{value:.4g}"


def plain(value: Any) -> Any:
    """Return a value as JSON has it: no NaN, no numpy, no tuples, no classes."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Problem):
        return {"name": value.name, **value.variables(), "bias": value.bias, "relu": value.relu}
    if isinstance(value, pd.DataFrame):
        return plain(value.to_dict("records"))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [plain(entry) for entry in value] if isinstance(value, Iterable) else str(value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
