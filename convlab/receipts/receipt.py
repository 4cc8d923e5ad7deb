"""Read a receipt, which is a saved result.

`Result.save` writes it: the values of `to_dict`, the text, all samples, and the versions and sources
that the result was made with.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import arguments
from ..core.errors import ProblemError
from ..core.show import charts
from ..core.show.plot import Chart
from ..core.show.result import RECEIPT, Result

# The columns of a row of costs.
COLUMNS = [
    "when",
    "gpu",
    "problem",
    "mode",
    "kernel",
    "cost",
    "low",
    "high",
    "unit",
    "source",
    "build",
    "torch",
    "driver",
    "convlab",
]
_VERSIONS = ("torch", "driver", "convlab")
# The facts of a result without a date and a machine.
_UNDATED = {"when": "undated", "gpu": None, "versions": {}}


@dataclass(frozen=True, repr=False)
class Receipt(Result):
    """A saved result: its text is the saved text, and its plot shows its costs.

    Attributes
    ----------
    path, document : the file, and its content.
    kind : the result's class: "AB", "Comparison", ...
    made : the date, the GPU, the versions, the sources and the flags.
    costs : one row for each kernel and mode that was timed (ms) or simulated (MB of traffic): the
        median or the count, with the quartiles of the samples.
    """

    path: Path
    document: Mapping[str, Any] = field(repr=False)

    @property
    def kind(self) -> str:
        return self.document["kind"]

    @property
    def ok(self) -> bool:
        return self.document["ok"]

    @property
    def sentence(self) -> str:
        return self.document["sentence"]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self.document["notes"])

    @property
    def made(self) -> dict[str, Any]:
        return _UNDATED | self.document["made"]

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.document["rows"])

    @property
    def samples(self) -> pd.DataFrame:
        return pd.DataFrame(self.document["samples"])

    @property
    def costs(self) -> list[dict[str, Any]]:
        facts = {"when": self.made["when"][:16], "gpu": self.made["gpu"] or "simulator"}
        for name in _VERSIONS:
            facts[name] = self.made["versions"].get(name)
        return [facts | row for row in self.document["costs"]]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.document)

    def __str__(self) -> str:
        return self.document["text"]

    __repr__ = __str__

    def figure(self) -> Chart:
        costs = pd.DataFrame(self.costs, columns=COLUMNS)
        return charts.history_chart(costs, self.sentence, self.notes)


def read_receipt(path: str | Path) -> Receipt:
    """Return the receipt in a file.

    Raises
    ------
    ProblemError
        The file cannot be read, is not a receipt, or has the format of another convlab.
    """
    text = arguments.readable(path, "the receipt")
    name = arguments.end_of(path)
    try:
        document = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_once
        )
        version = document["convlab_receipt"]
    # RecursionError: thousands of nested lists.
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f" ({error})" if isinstance(error, _InvalidNumber | _Repeated) else ""
        raise ProblemError(
            f"{name} is not a receipt{reason}: write one with result.save(path) or --save"
        ) from None
    if version != RECEIPT or isinstance(version, bool):
        raise ProblemError(
            f"{name} has format {arguments.shown(version)} of another convlab, and this one reads "
            f"format {RECEIPT}: read it with the convlab that wrote it"
        )
    for problem in _invalid(document):
        raise ProblemError(
            f"{name} is a damaged receipt: {problem}; save the result again with result.save(path)"
        )
    return Receipt(Path(path), document)


class _InvalidNumber(ValueError):
    """A number in a receipt is not finite."""


class _Repeated(ValueError):
    """A key occurs twice."""


def _no_constant(word: str) -> None:
    raise _InvalidNumber(f"it contains {word}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _InvalidNumber(f"the number {arguments.shown(text)} is too large")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON as a dict; raise if a key occurs twice."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise _Repeated("a key occurs twice")
    return document


_NUMBER = (int, float)
_NONE = type(None)
# The types of a receipt's values, and of the values in `made` and in each row of `costs`.
_TYPES = {
    "kind": str,
    "text": str,
    "ok": bool,
    "sentence": str,
    "notes": list,
    "rows": list,
    "made": dict,
    "samples": list,
    "costs": list,
}
_MADE_TYPES = {"when": str, "gpu": (str, _NONE), "versions": dict}
_COST_TYPES = {
    "problem": str,
    "mode": (str, _NONE),
    "kernel": str,
    "cost": _NUMBER,
    "low": (*_NUMBER, _NONE),
    "high": (*_NUMBER, _NONE),
    "unit": str,
    "source": (str, _NONE),
    "build": (str, _NONE),
}
# The largest whole number: pandas cannot hold larger ones.
_LARGEST = 2**63


def _invalid(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is invalid in a receipt: a value of a wrong type, a missing key."""
    yield from _wrong_types(document, _TYPES, "")
    yield from _wrong_types(_UNDATED | document["made"], _MADE_TYPES, "made.")
    for i, note in enumerate(document["notes"]):
        if not isinstance(note, str):
            yield f"notes[{i}] is {arguments.shown(note)}, not a text"
    for key in ("rows", "samples", "costs"):
        for i, row in enumerate(document[key]):
            if not isinstance(row, dict):
                yield f"{key}[{i}] is {arguments.shown(row)}, not an object"
    for i, row in enumerate(document["costs"]):
        yield from _wrong_types(row, _COST_TYPES, f"costs[{i}].")
    yield from _unusable(document)


def _wrong_types(values: Mapping[str, Any], types: Mapping[str, Any], place: str) -> Iterator[str]:
    for key, kind in types.items():
        if key not in values:
            yield f"{place}{key} is missing"
            return
        value = values[key]
        # In Python, True is also an int.
        is_number = kind is not bool and isinstance(value, bool)
        if is_number or not isinstance(value, kind):
            yield f"{place}{key} is {arguments.shown(value)}, of a wrong type"


def _unusable(value: Any) -> Iterator[str]:
    """Yield what cannot be shown: a number beyond 64 bits, a text that is not valid Unicode."""
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                yield "it contains a text that is not valid Unicode"
        elif isinstance(value, int) and abs(value) >= _LARGEST:
            yield f"the number {arguments.shown(value)} is too large"
