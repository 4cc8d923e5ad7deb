"""What every answer is: rows, a sentence, notes, a figure; text, HTML and JSON follow from those."""

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
from .table import Table, width, wrapped

if TYPE_CHECKING:
    from .plot import Chart

# The version of what `Result.save` writes.
RECEIPT = 2
GOOD = "#009E73"
BAD = "#D55E00"


class Result:
    """The base of what `check`, `compare`, `ab`, `sweep` and `inspect` return.

    A subclass is a frozen dataclass with ``repr=False``. It gives the first group of attributes, as
    fields or properties, and the method `figure`. It may replace the second group.
    """

    # ---- what each subclass gives
    frame: pd.DataFrame  # the rows
    sentence: str  # the answer in one line
    ok: bool  # whether something is correct, and nothing wrong
    notes: Sequence[str]  # lines: the device, the scaling, what was left out and why
    problem: Problem  # not of a set

    # ---- what a subclass may replace
    nothing_ran: bool = False  # whether nothing ran, as no kernel supports what was asked for
    tables: Sequence[Table] = ()  # what is shown of the rows
    details: Sequence[str] = ()  # lines below the tables: what is wrong, in full
    about: Mapping[str, Any] = MappingProxyType({})  # more for JSON: any values that `plain` takes
    made: Mapping[str, Any] = MappingProxyType({})  # when, on which machine, of which sources
    samples: Any = ()  # all single measurements, as a frame
    costs: Sequence[Mapping[str, Any]] = ()  # rows that `convlab history` shows

    def figure(self) -> Chart:
        """Draw it."""
        raise NotImplementedError

    @property
    def row(self) -> dict[str, str]:
        """Its row in the table of a set: heading to text."""
        label = self.problem.label
        return {"problem": label, "found": self.sentence.removeprefix(f"{label}: ")}

    @property
    def color(self) -> str:
        """The colour of the mark next to it in a notebook."""
        return GOOD if self.ok else BAD

    def plot(self, path: str | Path | None = None) -> Chart:
        """Draw it; write the figure if a path is given, and return it."""
        chart = self.figure()
        if path is not None:
            chart.save(path)
        return chart

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold; a number that is not known is None."""
        own = {"ok": self.ok, "sentence": self.sentence, "rows": self.frame, "notes": self.notes}
        return plain({**own, **self.about})

    @property
    def receipt(self) -> dict[str, Any]:
        """What `save` writes: `to_dict`, the text, how it was made, all samples."""
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

        Without a path it goes where ``convlab history`` looks: a folder next to the builds. Raises
        ProblemError if a file cannot be written there.
        """
        text = json.dumps(self.receipt, indent=1, allow_nan=False)
        if path is None:
            path = receipts_folder() / self._file_name(text)
            if not toolchain.lasting():
                warnings.warn(f"{path} goes when Python ends: {toolchain.MOVE}", stacklevel=2)
        path = writable(path, "the receipt")
        path.write_text(text)
        return path

    def _file_name(self, text: str) -> str:
        """Return the name of the file of a receipt that is given no path."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        when = re.sub(r"\D", "", str(self.made.get("when", "")))[:14] or "undated"
        return f"{when}-{type(self).__name__}-{digest}.json"

    def __str__(self) -> str:
        # An empty table has no lines, and needs no blank line before the next one.
        tables = "\n\n".join(filter(None, ("\n".join(table.lines()) for table in self.tables)))
        lines = wrapped(self.sentence, "")
        if tables:
            lines.append(tables)
        lines += self._wrapped_details()
        for note in self.notes:
            lines += wrapped(note)
        return "\n".join(lines)

    # A notebook keeps this as the cell's text.
    __repr__ = __str__

    def _wrapped_details(self) -> Iterator[str]:
        """Yield the lines of the details; quoted source stays whole."""
        for line in (line for detail in self.details for line in detail.split("\n")):
            if len(line) <= width() or re.match(r"\s*\d*\s*\|", line):
                yield line
            else:
                indent = line[: len(line) - len(line.lstrip())]
                yield from wrapped(line.strip(), indent, f"{indent}  ")

    def _repr_html_(self) -> str:
        parts = [f"<b>{html.escape(self.sentence)}</b>"]
        parts += [table.html() for table in self.tables]
        if details := "\n".join(self._wrapped_details()):
            parts.append(f"<pre>{html.escape(details)}</pre>")
        parts.append(f"<small>{'<br>'.join(map(html.escape, self.notes))}</small>")
        style = f"border-left:4px solid {self.color};padding-left:8px"
        return f'<div style="{style}">{"".join(parts)}</div>'


def receipts_folder() -> Path:
    """Return the folder of results that are saved without a path."""
    return toolchain.cache_dir() / "receipts"


@dataclass(frozen=True, repr=False)
class Several(Result):
    """The results for a set of problems: a row for each, and a summary."""

    results: tuple[Any, ...]  # one for each problem, in order; also by index and in a loop

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    @property
    def sentence(self) -> str:
        good = sum(result.ok for result in self.results)
        return f"correct on {good} of {len(self.results)} problems"

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

    @property
    def details(self) -> Sequence[str]:
        return [str(result) for result in self.results if not result.ok]

    @property
    def notes(self) -> Sequence[str]:
        """The notes of all, each once."""
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
        """Draw the first one, unless a subclass knows better."""
        return self.results[0].figure()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]


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
