"""Results that were saved: read again as they were, and laid beside one another.

A receipt is what `Result.save` writes: the result as `to_dict` has it, its text, all samples, and
what it was made with. Two of them, of other days, edits or GPUs, are one history and one plot.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import arguments
from ..core.errors import ProblemError
from ..core.show import charts
from ..core.show.plot import Chart
from ..core.show.result import RECEIPT, Result, Table, receipts_folder, short

_COLUMNS = [
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
_UNDATED = {"when": "undated", "gpu": None, "versions": {}}  # of what was timed by nobody
_FACTS = {"gpu": "GPU", **{name: name for name in ("source", "torch", "driver", "convlab")}}


@dataclass(frozen=True, repr=False)
class Receipt(Result):
    """A result that was saved: it reads as it did then, and is drawn as its costs.

    Attributes
    ----------
    path, document : the file, and all that it holds.
    kind : what it was: "AB", "Comparison", ...
    made : when, on which GPU, with which versions, of which sources and flags.
    costs : one row for each kernel and mode that was timed (ms) or simulated (MB of traffic): the
        median or the count, with the quartiles of the samples.
    """

    path: Path
    document: Mapping[str, Any] = field(repr=False)

    kind = property(lambda self: self.document["kind"])
    ok = property(lambda self: self.document["ok"])
    sentence = property(lambda self: self.document["sentence"])
    notes = property(lambda self: tuple(self.document["notes"]))
    made = property(lambda self: _UNDATED | self.document["made"])
    frame = property(lambda self: pd.DataFrame(self.document["rows"]))
    samples = property(lambda self: pd.DataFrame(self.document["samples"]))

    @property
    def costs(self) -> list[dict[str, Any]]:
        versions = self.made["versions"]
        where = {"when": self.made["when"][:16], "gpu": self.made["gpu"] or "simulator"}
        where |= {name: versions.get(name) for name in ("torch", "driver", "convlab")}
        return [where | row for row in self.document["costs"]]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.document)

    def __str__(self) -> str:
        return self.document["text"]

    __repr__ = __str__

    def figure(self) -> Chart:
        return charts.history_chart(
            pd.DataFrame(self.costs, columns=_COLUMNS), self.sentence, self.notes
        )


@dataclass(frozen=True, repr=False)
class History(Result):
    """Receipts beside one another, the oldest first.

    Attributes
    ----------
    receipts : the receipts.
    frame : the costs of all: when, gpu, problem, mode, kernel, cost, low, high, unit, source, build,
        torch, driver, convlab.
    changes : lines: what a kernel's cost became from one receipt to the next, and what changed.
    """

    receipts: tuple[Receipt, ...]
    left_out: tuple[str, ...] = ()  # lines: of what is no receipt in a folder
    ok = property(lambda self: all(receipt.ok for receipt in self.receipts))

    @property
    def notes(self) -> Sequence[str]:
        return (*(f"{r.made['when']}: {r.path}" for r in self.receipts), *self.left_out)

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame([row for r in self.receipts for row in r.costs], columns=_COLUMNS)

    @property
    def sentence(self) -> str:
        """How many there are, from when to when."""
        if not self.receipts:
            return f"no receipts there: `save` puts them in {receipts_folder()}, or name files"
        days = sorted({receipt.made["when"][:10] for receipt in self.receipts})
        kernels = self.frame["kernel"].nunique()
        span = dict.fromkeys([days[0], days[-1]])
        return f"receipts: {len(self.receipts)}, kernels: {kernels}, {' to '.join(span)}"

    @property
    def tables(self) -> Sequence[Table]:
        shown = {
            "when": "when",
            "kernel": "kernel",
            "problem": "problem",
            "mode": "mode",
            "cost": ("cost", short),
            "unit": "unit",
            "source": "source",
            "gpu": "GPU",
        }
        return (Table(self.frame, shown, left=("kernel", "problem", "GPU")),)

    changes = property(lambda self: list(_changes(self.frame)))

    @property
    def details(self) -> Sequence[str]:
        told = [f"{r.made['when'][:16]} {r.kind}: {r.sentence}" for r in self.receipts]
        return [f"  {line}" for line in (*told, *self.changes)]

    @property
    def about(self) -> dict[str, Any]:
        paths = [str(receipt.path) for receipt in self.receipts]
        return {"receipts": paths, "changes": self.changes}

    def figure(self) -> Chart:
        """Draw each kernel's cost in each receipt."""
        return charts.history_chart(self.frame, self.sentence, self.changes)


def load_result(path: str | Path, *more: str | Path) -> Receipt | History:
    """Return a result that was saved with ``result.save(path)``, or several as a history.

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
        A file is not there, cannot be read, is no receipt, or one of another convlab.
    """
    return history([path, *more]) if more else _read(path)


def history(paths: Sequence[str | Path] = ()) -> History:
    """Return the receipts of files and folders, the oldest first; unless told, of `save`'s own."""
    found = []
    left_out = []
    for path in paths or [receipts_folder()]:
        path = arguments.path(path, "a receipt")
        for file in sorted(path.glob("*.json")) if path.is_dir() or not paths else [path]:
            try:
                found.append(_read(file))
            except ProblemError as error:
                if file is path:
                    raise
                left_out.append(f"left out: {error}")
    found.sort(key=lambda receipt: (receipt.made["when"], str(receipt.path)))
    return History(tuple(found), tuple(left_out))


def _read(path: str | Path) -> Receipt:
    text = arguments.readable(path, "the receipt")
    try:
        document = json.loads(text)
        version = document["convlab_receipt"]
    except (ValueError, LookupError, TypeError):
        told = "is no receipt: result.save(path) and --save write them"
        raise ProblemError(f"{path} {told}") from None
    if version != RECEIPT:
        raise ProblemError(
            f"{path} is a receipt of another convlab, of format {arguments.shown(version)}, not "
            f"{RECEIPT}: read it with that one"
        )
    return Receipt(Path(path), document)


def _changes(costs: pd.DataFrame) -> Iterator[str]:
    """What became of each kernel, problem and mode, from one receipt to the next."""
    for (kernel, problem, mode), rows in costs.groupby(["kernel", "problem", "mode"], sort=False):
        for (_, old), (_, new) in zip(rows.iterrows(), rows.iloc[1:].iterrows(), strict=False):
            if old["when"] == new["when"] and old["source"] == new["source"]:
                continue  # two sides of one A/B
            other = [
                f"{text} {old[name]} to {new[name]}"
                for name, text in _FACTS.items()
                if old[name] != new[name]
            ]
            if not other and old["build"] != new["build"]:
                other = ["another build (flags, compiler)"]
            place = f"{kernel} on {problem}" + (f", {mode}" if mode else "")
            cost = f"{short(old['cost'])} to {short(new['cost'])} {new['unit']}"
            times = f"x{new['cost'] / old['cost']:.4g}" if old["cost"] else "from nothing"
            yield f"{place}: {cost}, {times}; {', '.join(other) or 'no change known'}"
