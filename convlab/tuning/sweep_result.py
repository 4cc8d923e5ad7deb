"""The result of a sweep: the valid points, best first, and the dropped ones, with the reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..core.cost import COUNTED, CostKind, saved_cost
from ..core.problem.problem import Problem
from ..core.show import charts
from ..core.show.plot import Chart
from ..core.show.table import Table, short
from ..core.timing.comparison import COSTS, Costly

# The costs that a first look needs; ``verbose`` adds the others.
_FIRST_COSTS = (
    "predicted_ms",
    "predicted_within",
    "time_ms",
    "spread_pct",
    "traffic_mb",
    "x_floor",
    "shared_wavefronts",
)
# The longest reason that is shown for a dropped point.
_LONGEST = 160


@dataclass(frozen=True, repr=False)
class Sweep(Costly):
    """The result of a sweep. A point is one combination of tunables on one problem.

    Attributes
    ----------
    kernel, tunables : the kernel, and the values of each tunable.
    frame : one row for each valid point, best first within a problem: problem, one column for each
        tunable, kernel, then those of a `Comparison` that differ: error, costs, floor, note.
    dropped : one row for each invalid point: problem, the tunables, kernel, kind ("does not
        build", "unsupported", "failed", "incorrect", "caught"), reason.
    notes : lines: device, scaling.
    kind : the kind of cost: measured time, or counted traffic.
    problems : the problems that were run, scaled down if necessary.
    samples : all measured times: problem, kernel, ms.
    made : date, machine, versions, sources and flags; see `save`.
    """

    kernel: str
    tunables: dict[str, list[int]]
    frame: pd.DataFrame
    dropped: pd.DataFrame
    notes: tuple[str, ...] = ()
    kind: CostKind = COUNTED
    problems: tuple[Problem, ...] = ()
    samples: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)
    made: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def costs(self) -> list[dict[str, Any]]:
        """The rows that ``convlab history`` shows, one for each valid point."""
        sources = {source["name"]: source for source in self.made.get("kernels", ())}
        problems = {problem.label: problem for problem in self.problems}
        times: dict[tuple[str, str], list[float]] = {}
        for label, name, ms in self.samples.itertuples(index=False):
            times.setdefault((label, name), []).append(ms)
        rows = []
        for row in self.frame.to_dict("records"):
            value = row.get(self.cost)
            problem = problems.get(row["problem"])
            if problem is None or value is None or pd.isna(value):
                continue
            name = row["kernel"]
            own = times.get((row["problem"], name), ())
            rows.append(
                saved_cost(name, problem, value, sources.get(name, {}), self.kind.mode, own)
            )
        return rows

    @property
    def ok(self) -> bool:
        """Whether at least one point is valid, and none is incorrect."""
        return len(self.frame) > 0 and not {"incorrect", "caught"} & set(self.dropped["kind"])

    @property
    def nothing_ran(self) -> bool:
        """Whether nothing ran, because the kernel supports none of the problems."""
        return self.frame.empty and set(self.dropped["kind"]) == {"unsupported"}

    @property
    def best(self) -> dict[str, str]:
        """The best point of each problem, as a name that `load` takes.

        Noise favours one of many points: confirm the best one with `ab`.
        """
        return self.frame.groupby("problem", sort=False)["kernel"].first().to_dict()

    @property
    def sentence(self) -> str:
        points = len(self.frame) + len(self.dropped)
        text = f"{self.kernel}: {len(self.frame)} of {points} points valid"
        if len(self.best) == 1:
            ((problem, kernel),) = self.best.items()
            text += f"; best on {problem}: {kernel}{self._cost_of_best}"
        return text

    @property
    def _cost_of_best(self) -> str:
        """What the first point costs, and by what it is the best; empty if that is not known."""
        first = self.frame.iloc[0]
        if "predicted_ms" in first and not pd.isna(first["predicted_ms"]):
            return f", predicted {short(first['predicted_ms'])} ms"
        if pd.isna(first[self.cost]):
            return ""
        if self.kind is COUNTED:
            return f", {short(first[self.cost])} MB of traffic, which is not a time"
        return f", {short(first[self.cost])} ms"

    @property
    def tables(self) -> Sequence[Table]:
        """A row for each valid point, with the columns for a first look."""
        return (self._table(_FIRST_COSTS),)

    @property
    def all_tables(self) -> Sequence[Table]:
        return (self._table(COSTS),)

    def _table(self, costs: Iterable[str]) -> Table:
        """Return a table of the problems, the tunables and some of the costs."""
        columns = {name: name for name in ("problem", *self.tunables)}
        columns |= {name: COSTS[name] for name in costs} | {"samples": "samples"}
        return Table(self.frame.dropna(axis=1, how="all"), columns)

    @property
    def details(self) -> Sequence[str]:
        """The dropped points and why, the notes of single points, and the best points.

        Unsupported points are only counted, unless there is no other point.
        """
        return self._lines(unsupported=self.nothing_ran)

    @property
    def all_details(self) -> Sequence[str]:
        return self._lines(unsupported=True)

    def _lines(self, *, unsupported: bool) -> list[str]:
        lines = []
        counted = 0
        for row in self.dropped.itertuples():
            if row.kind == "unsupported" and not unsupported:
                counted += 1
                continue
            reason = row.reason
            if len(reason) > _LONGEST:
                reason = f"{reason[: _LONGEST - 1]}…"
            lines.append(f"  dropped {row.kernel} on {row.problem}: {row.kind}: {reason}")
        if counted:
            points = len(self.frame) + len(self.dropped)
            lines.append(f"  {counted} of {points} points are not supported; --verbose lists them")
        for row in self.frame.itertuples():
            if row.note:
                lines.append(f"  {row.kernel}: {row.note}")
        if len(self.best) > 1:
            for problem, kernel in self.best.items():
                lines.append(f"  best on {problem}: {kernel}")
        return lines

    @property
    def about(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "tunables": self.tunables,
            "dropped": self.dropped,
            "best": self.best,
        }

    def figure(self) -> Chart:
        return charts.sweep_chart(self.frame, self.kernel, self.notes)
