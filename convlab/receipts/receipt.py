"""Read a receipt, which is a saved result.

`Result.save` writes it: the values of `to_dict`, the text, all samples, and the versions and sources
that the result was made with.
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
    try:
        document = json.loads(text)
        version = document["convlab_receipt"]
    except (ValueError, LookupError, TypeError):
        raise ProblemError(
            f"{path} is not a receipt: write one with result.save(path) or --save"
        ) from None
    if version != RECEIPT:
        raise ProblemError(
            f"{path} has format {arguments.shown(version)} of another convlab, and this one reads "
            f"format {RECEIPT}: read it with the convlab that wrote it"
        )
    return Receipt(Path(path), document)
