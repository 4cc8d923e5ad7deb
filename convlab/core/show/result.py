"""The base class of all results: rows, a verdict, notes and a figure give text, HTML and JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import html
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..arguments import writable
from ..machine import toolchain
from ..problem.problem import Problem
from .table import Table, wrapped, wrapped_lines

if TYPE_CHECKING:
    from .plot import Chart

# The version of what `Result.save` writes.
RECEIPT = 2
GOOD = "#009E73"
BAD = "#D55E00"
# A text of more lines ends with its verdict again.
_LONG = 30


class Result:
    """The base of what `check`, `compare`, `ab`, `sweep` and `inspect` return.

    ``print(result)`` shows the verdict, a table and what changes its reading.
    ``print(result.text(verbose=True))`` shows all columns and all notes.

    A subclass is a frozen dataclass with ``repr=False``. It defines the first group of attributes,
    as fields or properties, and the method `figure`. It may replace the second group.
    """

    # ---- what each subclass defines
    frame: pd.DataFrame  # the rows
    sentence: str  # the verdict in one sentence
    ok: bool  # whether something is correct, and nothing is incorrect
    notes: Sequence[str]  # lines: the device, the scaling, what was left out and why
    problem: Problem  # missing in the result for a set of problems

    # ---- what a subclass may replace
    nothing_ran: bool = False  # whether nothing ran, because no kernel supports the problem
    tables: Sequence[Table] = ()  # the tables that the text shows
    details: Sequence[str] = ()  # lines below the tables: all that is incorrect
    about: Mapping[str, Any] = MappingProxyType({})  # more for JSON: any values that `plain` takes
    made: Mapping[str, Any] = MappingProxyType({})  # the date, the machine, the sources
    samples: Any = ()  # all single measurements, as a frame
    costs: Sequence[Mapping[str, Any]] = ()  # rows that `convlab history` shows

    def figure(self) -> Chart:
        """Return a chart of the result."""
        raise NotImplementedError

    @property
    def short_notes(self) -> Sequence[str]:
        """The notes that change how the tables are read; `text` shows all with ``verbose``."""
        return self.notes

    @property
    def all_tables(self) -> Sequence[Table]:
        """The tables with all columns, for ``verbose``."""
        return self.tables

    @property
    def all_details(self) -> Sequence[str]:
        """The details with every reason, for ``verbose``."""
        return self.details

    @property
    def row(self) -> dict[str, str]:
        """The row in the table of a set: heading to text."""
        label = self.problem.label
        return {"problem": label, "found": self.sentence.removeprefix(f"{label}: ")}

    @property
    def color(self) -> str:
        """The colour of the bar that a notebook draws next to the result."""
        return GOOD if self.ok else BAD

    def plot(self, path: str | Path | None = None) -> Chart:
        """Return a chart of the result, and write it to a file if a path is given."""
        chart = self.figure()
        if path is not None:
            chart.save(path)
        return chart

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values that JSON can hold; an unknown number is None."""
        own = {"ok": self.ok, "sentence": self.sentence, "rows": self.frame, "notes": self.notes}
        return plain({**own, **self.about})

    @property
    def receipt(self) -> dict[str, Any]:
        """What `save` writes: `to_dict`, the text, all samples, sources and versions."""
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
        """Write the result as JSON, which `convlab.load_result` reads; return the file's path.

        Without a path the file goes to the folder that ``convlab history`` reads, next to the
        builds. Raises ProblemError if the file cannot be written.
        """
        text = json.dumps(self.receipt, indent=1, allow_nan=False)
        if path is None:
            path = receipts_folder() / self._file_name(text)
            if not toolchain.lasting():
                text_of_warning = f"{path} is deleted when Python ends: {toolchain.MOVE}"
                warnings.warn(text_of_warning, stacklevel=2)
        path = writable(path, "the receipt")
        path.write_text(text)
        return path

    def _file_name(self, text: str) -> str:
        """Return the file name of a receipt that is saved without a path."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        when = re.sub(r"\D", "", str(self.made.get("when", "")))[:14] or "undated"
        return f"{when}-{type(self).__name__}-{digest}.json"

    def text(self, verbose: bool = False) -> str:
        """Return the result as text, with the verdict first.

        Parameters
        ----------
        verbose : show all columns, all notes, and why a kernel does not support a problem.
        """
        text = self._text(verbose)
        if text.count("\n") >= _LONG:
            # The first line has left the screen.
            text = "\n".join([text, *wrapped(self.sentence, "")])
        return text

    def _text(self, verbose: bool) -> str:
        tables = self.all_tables if verbose else self.tables
        details = self.all_details if verbose else self.details
        notes = self.notes if verbose else self.short_notes
        lines = wrapped(self.sentence, "")
        # An empty table has no lines, and needs no blank line before the next one.
        texts = ["\n".join(table.lines()) for table in tables]
        if shown := "\n\n".join(filter(None, texts)):
            lines.append(shown)
        lines += wrapped_lines(details)
        for note in notes:
            lines += wrapped(note)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    # A notebook keeps this as the cell's text.
    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<b>{html.escape(self.sentence)}</b>"]
        parts += [table.html() for table in self.tables]
        if details := "\n".join(wrapped_lines(self.details)):
            parts.append(f"<pre>{html.escape(details)}</pre>")
        parts.append(f"<small>{'<br>'.join(map(html.escape, self.notes))}</small>")
        style = f"border-left:4px solid {self.color};padding-left:8px"
        return f'<div style="{style}">{"".join(parts)}</div>'


def receipts_folder() -> Path:
    """Return the folder of results that are saved without a path."""
    return toolchain.cache_dir() / "receipts"


@dataclass(frozen=True, repr=False)
class Several(Result):
    """The results for a set of problems: a row for each problem, and a summary.

    Attributes
    ----------
    results : one for each problem, in order; you can also use an index or a loop.
    """

    results: tuple[Any, ...]

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    @property
    def sentence(self) -> str:
        good = sum(result.ok for result in self.results)
        return f"correct on {good} of {len(self.results)} problems"

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of all results; the first column is the problem's name."""
        frames = [result.frame.drop(columns="problem", errors="ignore") for result in self.results]
        for rows, result in zip(frames, self.results, strict=True):
            rows.insert(0, "problem", result.problem.label)
        return pd.concat(frames, ignore_index=True)

    @property
    def tables(self) -> Sequence[Table]:
        rows = pd.DataFrame([result.row for result in self.results])
        return (Table(rows, left=("problem", "found")),)

    @property
    def details(self) -> Sequence[str]:
        return [result._text(False) for result in self.results if not result.ok]

    @property
    def all_details(self) -> Sequence[str]:
        return [result._text(True) for result in self.results if not result.ok]

    @property
    def notes(self) -> Sequence[str]:
        """The notes of all results, each once."""
        return tuple(dict.fromkeys(note for result in self.results for note in result.notes))

    @property
    def about(self) -> Mapping[str, Any]:
        return {"results": self.results}

    @property
    def made(self) -> Mapping[str, Any]:
        return self.results[0].made if self.results else {}

    @property
    def costs(self) -> Sequence[Mapping[str, Any]]:
        return [row for result in self.results for row in result.costs]

    @property
    def receipt(self) -> dict[str, Any]:
        return {**super().receipt, "results": [result.receipt for result in self.results]}

    def figure(self) -> Chart:
        """Return the chart of the first result; a subclass may draw all."""
        return self.results[0].figure()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: without NaN, numpy types, tuples and classes."""
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
