"""Compare receipts of different days, edits or GPUs with one another."""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import arguments
from ..core.errors import ProblemError
from ..core.show import charts
from ..core.show.plot import Chart
from ..core.show.result import Result, receipts_folder
from ..core.show.table import Table, short
from .receipt import COLUMNS, Receipt, read_receipt

# What may explain a change of cost: columns of the costs, and their names in the text.
_FACTS = {
    "gpu": "GPU",
    "source": "source",
    "torch": "torch",
    "driver": "driver",
    "convlab": "convlab",
}


@dataclass(frozen=True, repr=False)
class History(Result):
    """Receipts, the oldest first.

    Attributes
    ----------
    receipts : the receipts.
    left_out : lines: the files of a folder that are not receipts, and why.
    frame : the costs of all: when, gpu, problem, mode, kernel, cost, low, high, unit, source, build,
        torch, driver, convlab.
    changes : lines: how a kernel's cost changed from one receipt to the next, and what else changed.
    """

    receipts: tuple[Receipt, ...]
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(receipt.ok for receipt in self.receipts)

    @property
    def notes(self) -> Sequence[str]:
        sources = [f"{receipt.made['when']}: {receipt.path}" for receipt in self.receipts]
        return (*sources, *self.left_out)

    @property
    def frame(self) -> pd.DataFrame:
        rows = [row for receipt in self.receipts for row in receipt.costs]
        return pd.DataFrame(rows, columns=COLUMNS)

    @property
    def sentence(self) -> str:
        """How many receipts there are, and of which days."""
        if not self.receipts:
            return f"no receipts in {receipts_folder()}: write one with --save, or name files"
        days = sorted({receipt.made["when"][:10] for receipt in self.receipts})
        kernels = self.frame["kernel"].nunique()
        span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        return f"receipts: {len(self.receipts)}, kernels: {kernels}, {span}"

    @property
    def tables(self) -> Sequence[Table]:
        columns = {
            "when": "when",
            "kernel": "kernel",
            "problem": "problem",
            "mode": "mode",
            "cost": ("cost", short),
            "unit": "unit",
            "source": "source",
            "gpu": "GPU",
        }
        return (Table(self.frame, columns, left=("kernel", "problem", "GPU")),)

    @property
    def changes(self) -> list[str]:
        return list(_changes(self.frame))

    @property
    def details(self) -> Sequence[str]:
        sentences = []
        for receipt in self.receipts:
            sentences.append(f"{receipt.made['when'][:16]} {receipt.kind}: {receipt.sentence}")
        return [f"  {line}" for line in (*sentences, *self.changes)]

    @property
    def about(self) -> dict[str, Any]:
        paths = [str(receipt.path) for receipt in self.receipts]
        return {"receipts": paths, "changes": self.changes}

    def figure(self) -> Chart:
        """Return a chart of each kernel's cost in each receipt."""
        return charts.history_chart(self.frame, self.sentence, self.changes)


def load_result(path: str | Path, *more: str | Path) -> Receipt | History:
    """Return a result that ``result.save(path)`` saved; for several files, return a history.

    >>> convlab.ab("03", "03@TILE=8", "wide").save("before.json")
    >>> convlab.load_result("before.json", "after.json").plot()

    Parameters
    ----------
    path, more : files.

    Returns
    -------
    Receipt, or History of several

    Raises
    ------
    ProblemError
        A file does not exist, cannot be read, is not a receipt, or has another convlab's format.
    """
    return history([path, *more]) if more else read_receipt(path)


def history(paths: Sequence[str | Path] = ()) -> History:
    """Return the receipts of files and folders, the oldest first.

    Parameters
    ----------
    paths : files and folders; none: the folder in which `Result.save` writes. In a folder, a file
        that is not a receipt is left out, with a note.

    Raises
    ------
    ProblemError
        A named file cannot be read, or is not a receipt.
    """
    receipts = []
    left_out = []
    for path in paths or [receipts_folder()]:
        path = arguments.path(path, "a receipt")
        if paths and not os.path.isdir(path):
            receipts.append(read_receipt(path))
            continue
        for file in sorted(path.glob("*.json")):
            try:
                receipts.append(read_receipt(file))
            except ProblemError as error:
                left_out.append(f"left out: {error}")
    receipts.sort(key=lambda receipt: (receipt.made["when"], str(receipt.path)))
    return History(tuple(receipts), tuple(left_out))


def _changes(costs: pd.DataFrame) -> Iterator[str]:
    """Yield how the cost of each kernel, problem and mode changed from one receipt to the next."""
    for (kernel, problem, mode), rows in costs.groupby(["kernel", "problem", "mode"], sort=False):
        place = f"{kernel} on {problem}, {mode}" if mode else f"{kernel} on {problem}"
        records = rows.to_dict("records")
        for old, new in itertools.pairwise(records):
            # The two sides of one A/B are not a change.
            if old["when"] != new["when"] or old["source"] != new["source"]:
                yield f"{place}: {_change(old, new)}"


def _change(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return how one cost became another, and what differs between the two receipts."""
    reasons = []
    for column, name in _FACTS.items():
        if old[column] != new[column]:
            reasons.append(f"{name} {old[column]} to {new[column]}")
    if not reasons and old["build"] != new["build"]:
        reasons = ["a different build (flags, compiler)"]
    cost = f"{short(old['cost'])} to {short(new['cost'])} {new['unit']}"
    factor = f"x{new['cost'] / old['cost']:.4g}" if old["cost"] else "from zero"
    return f"{cost}, {factor}; {', '.join(reasons) or 'same GPU, source and versions'}"
