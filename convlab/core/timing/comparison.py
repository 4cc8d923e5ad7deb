"""What a comparison found, and how it is told: of one problem, and of a set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..correctness.report import Report
from ..cost import COUNTED, CostKind, saved_cost
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import Result, Several
from ..show.table import Table, short

COSTS = {  # a frame's columns: heading, format
    "time_ms": "time ms",
    "with_prepare_ms": "with prep. ms",
    "spread_pct": ("± %", "{:.1f}"),
    "tflops": ("TFLOP/s", short),
    "floor_ms": "floor ms",
    "traffic_mb": "traffic MB",
    "floor_mb": "floor MB",
    "x_floor": ("x floor", short),
    "shared_wavefronts": ("shared wavefronts", "{:,.0f}"),
    "host_seconds": ("host s", "{:.2f}"),
}
_SHOWN = {"kernel": "kernel", "class": "class", "shown": "result", "error": ("error", "{:.1e}")}


class Costly(Result):
    """What has a cost for each row: a time on a GPU, or simulated traffic."""

    kind: CostKind

    @property
    def cost(self) -> str:
        """The column of `frame` that is the cost here: "time_ms", or "traffic_mb" off a GPU."""
        return self.kind.column

    @property
    def cost_label(self) -> str:
        """What `cost` is, in words with its unit: an axis's label."""
        return self.kind.label


@dataclass(frozen=True, repr=False)
class Comparison(Costly):
    """What a comparison found.

    Attributes
    ----------
    problem : the problem that was run, scaled down if need be.
    frame : one row for each kernel: kernel, title, class, engine, right, error, bound; then on a
        GPU time_ms, spread_pct (interquartile range over median), samples, mhz, tflops, floor_ms,
        x_floor, and with_prepare_ms where a kernel lays out its filter: the time with that; on the
        simulator traffic_mb, floor_mb, x_floor, shared_wavefronts, host_seconds; then note.
        `right` is None for a kernel that did not run.
    ok : whether something is right, and nothing wrong. A kernel that declines the problem, by its
        header, is not wrong.
    notes : lines: engine, device, scaling, versions, date.
    failures : what is wrong, in full: reports of wrong kernels, messages of those that failed.
    reports : of those that ran.
    samples : every time that was taken: kernel, ms.
    made : when, on what, with which versions, of which sources and flags; see `save`.
    kind : what the cost is: measured time, or counted traffic.
    """

    problem: Problem
    frame: pd.DataFrame
    ok: bool
    notes: tuple[str, ...]
    failures: tuple[str, ...] = ()
    reports: tuple[Report, ...] = field(default=(), repr=False)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)
    made: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    kind: CostKind = COUNTED

    @property
    def costs(self) -> list[dict[str, Any]]:
        sources = {each["name"]: each for each in self.made.get("kernels", ())}
        mode = self.kind.mode
        taken = dict(iter(self.samples.groupby("kernel")["ms"])) if mode else {}
        known = self.frame.dropna(subset=self.cost) if self.cost in self.frame else self.frame[:0]
        return [
            saved_cost(name, self.problem, value, sources.get(name, {}), mode, taken.get(name, ()))
            for name, value in zip(known["kernel"], known[self.cost], strict=True)
        ]

    @property
    def engine(self) -> str:
        """Where it ran: "cuda" or "sim"; "torch" if nothing but baselines ran, on a CPU."""
        engines = set(self.frame["engine"])
        return next((engine for engine in ("cuda", "sim") if engine in engines), "torch")

    declined = property(lambda self: len(self.frame) > 0 and self.frame["right"].isna().all())

    note = property(lambda self: "\n".join(self.notes))

    @property
    def sentence(self) -> str:
        """How many are right, and which of those costs least."""
        rights = list(self.frame["right"])
        said = f"{self.problem.label}: {rights.count(True)} of {len(rights)} right"
        if None in rights:
            said += f", {rights.count(None)} declined"
        rows = self.frame[[right is True for right in rights]]
        if self.cost in rows and rows[self.cost].notna().any():
            least = rows.loc[rows[self.cost].idxmin()]
            said += f"; {self.kind.least}: {least.kernel}, {short(least.x_floor)}x the floor"
        return said

    @property
    def tables(self) -> Sequence[Table]:
        shown = self.frame["right"].map({True: "right", False: "WRONG", None: "declined"})
        failed = self.frame["note"].str.startswith(("failed", "does not build"))
        return (Table(self.frame.assign(shown=shown.mask(failed, "FAILED")), _SHOWN | COSTS),)

    @property
    def details(self) -> Sequence[str]:
        noted = [f"{row.kernel}: {row.note}" for row in self.frame.itertuples() if row.note]
        return [*(f"  {note}" for note in noted), *self.failures]

    about = property(lambda self: {"problem": self.problem, "failures": self.failures})

    def figure(self) -> Chart:
        return charts.error_and_cost(self.frame, self.problem.label, self.notes)


@dataclass(frozen=True, repr=False)
class Comparisons(Several):
    """Comparisons on the problems of a set: a row for each kernel, a column for each problem."""

    results: tuple[Comparison, ...]

    ok = property(lambda self: any(r.ok for r in self) and all(r.ok or r.declined for r in self))
    declined = property(lambda self: all(result.declined for result in self))

    @property
    def sentence(self) -> str:
        good = sum(result.ok for result in self.results)
        return f"{len(self)} problems, all right on {good}"

    tables = property(lambda self: (self.matrix("kernel"),))

    def matrix(self, name: str) -> Table:
        """Each cost with its multiple of the floor; rows by a kernel's "kernel" or "title"."""
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for result in self.results:
            unit = result.kind.unit
            for row in result.frame.to_dict("records"):
                over = row["x_floor"]
                over = f"{over:.2g}" if over < 100 else short(over)
                text = f"{short(row[result.cost])} {unit} ({over}x)"
                if not row["right"]:
                    text = "does not do it" if row["right"] is None else "wrong"
                cells = rows.setdefault((row[name], row["class"]), {})
                cells[_unscaled(result.problem.label)] = text
        labelled = [{"kernel": k, "class": c} | cells for (k, c), cells in rows.items()]
        return Table(pd.DataFrame(labelled).fillna(""))

    @property
    def details(self) -> Sequence[str]:
        return [line for r in self.results for line in (f"  {r.sentence}", *r.details)]

    def figure(self) -> Chart:
        """Draw the kernels of one problem under those of another."""
        titled = []
        for i, result in enumerate(self.results, 1):
            name = _unscaled(result.problem.name) or f"problem {i}"
            titled.append(result.frame.assign(title=f"{name}: " + result.frame["title"]))
        rows = pd.concat(titled, ignore_index=True)
        return charts.error_and_cost(rows, self.sentence, self.notes)


def _unscaled(label: str) -> str:
    return label.split(" (scaled")[0]
