"""A receipt: a result that was saved, and is read again as it was.

`Result.save` writes it: the result as `to_dict` has it, its text, all samples, and what it was made
with.
"""

import json
from collections.abc import Mapping
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
# What stands for the facts of a result that was made with none.
_UNDATED = {"when": "undated", "gpu": None, "versions": {}}


@dataclass(frozen=True, repr=False)
class Receipt(Result):
    """A saved result: it reads as it did then, and its plot shows its costs.

    Attributes
    ----------
    path, document : the file, and all that it holds.
    kind : the result's class: "AB", "Comparison", ...
    made : when, on which GPU, with which versions, of which sources and flags.
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
        The file cannot be read, is no receipt, or was written by a convlab of another format.
    """
    text = arguments.readable(path, "the receipt")
    try:
        document = json.loads(text)
        version = document["convlab_receipt"]
    except (ValueError, LookupError, TypeError):
        raise ProblemError(
            f"{path} is no receipt: result.save(path) and --save write receipts"
        ) from None
    if version != RECEIPT:
        raise ProblemError(
            f"{path} is a receipt of another convlab, of format {arguments.shown(version)}, not "
            f"{RECEIPT}: read it with that convlab"
        )
    return Receipt(Path(path), document)
