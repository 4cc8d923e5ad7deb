"""What a sweep found: the valid points, best first, and those that were dropped, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.cost import COUNTED, CostKind
from ..core.show import charts
from ..core.show.plot import Chart
from ..core.show.table import Table
from ..core.timing.comparison import COSTS, Costly

# The longest reason that is shown for a dropped point.
_LONGEST = 160


@dataclass(frozen=True, repr=False)
class Sweep(Costly):
    """What a sweep found. A point is one combination of tunables on one problem.

    Attributes
    ----------
    kernel, tunables : what was swept.
    frame : one row for each valid point, best first within a problem: problem, one column for each
        tunable, kernel, then those of a `Comparison` that differ: error, costs, floor, note.
    dropped : one row for each invalid point: problem, the tunables, kernel, kind ("does not
        build", "unsupported", "failed", "incorrect", "caught"), reason.
    notes : lines: device, scaling.
    kind : what the cost is: measured time, or counted traffic.
    """

    kernel: str
    tunables: dict[str, list[int]]
    frame: pd.DataFrame
    dropped: pd.DataFrame
    notes: tuple[str, ...] = ()
    kind: CostKind = COUNTED

    @property
    def ok(self) -> bool:
        """Whether at least one point is valid and none gave a wrong result."""
        return len(self.frame) > 0 and not {"incorrect", "caught"} & set(self.dropped["kind"])

    @property
    def nothing_ran(self) -> bool:
        """Whether nothing ran, as the kernel supports none of the problems."""
        return self.frame.empty and set(self.dropped["kind"]) == {"unsupported"}

    @property
    def best(self) -> dict[str, str]:
        """The best point of each problem, as a name that `load` takes.

        The best of many is partly luck: confirm it with `ab`.
        """
        return self.frame.groupby("problem", sort=False)["kernel"].first().to_dict()

    @property
    def sentence(self) -> str:
        points = len(self.frame) + len(self.dropped)
        return f"{self.kernel}: {len(self.frame)} of {points} points valid"

    @property
    def tables(self) -> Sequence[Table]:
        columns = {name: name for name in ("problem", *self.tunables)}
        columns |= COSTS | {"samples": "samples"}
        return (Table(self.frame.dropna(axis=1, how="all"), columns),)

    @property
    def details(self) -> Sequence[str]:
        """What was dropped and why; the notes of single points; the best point."""
        lines = []
        for row in self.dropped.itertuples():
            reason = row.reason
            if len(reason) > _LONGEST:
                reason = f"{reason[: _LONGEST - 1]}…"
            lines.append(f"  dropped {row.kernel} on {row.problem}: {row.kind}: {reason}")
        for row in self.frame.itertuples():
            if row.note:
                lines.append(f"  {row.kernel}: {row.note}")
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
