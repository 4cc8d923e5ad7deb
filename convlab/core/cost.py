"""A cost: what running a kernel once takes, measured or counted. One of the core's four seams.

`compare`, `ab` and `sweep` rank kernels by their costs and do not ask how a cost came about. A time on
a GPU and simulated traffic are two kinds; a room can add another, such as a predicted time.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .problem.problem import Problem


@dataclass(frozen=True)
class CostKind:
    """One way to say what a kernel costs.

    Attributes
    ----------
    column, floor_column : the columns of a frame that hold a cost, and the least possible cost.
    unit : of both.
    label : in words, with the unit: an axis's label.
    least : what the row that costs least is called in a sentence.
    mode : of the timing ("cold"), for a saved result; empty for what is counted.
    """

    column: str
    floor_column: str
    unit: str
    label: str
    least: str
    mode: str = ""


MEASURED = CostKind(
    "time_ms", "floor_ms", "ms", "time on the GPU (ms)", "fastest of them", mode="cold"
)
COUNTED = CostKind(
    "traffic_mb", "floor_mb", "MB", "simulated global memory traffic (MB)", "least traffic"
)
KINDS = {kind.column: kind for kind in (MEASURED, COUNTED)}


@dataclass(frozen=True)
class Cost:
    """What one kernel costs on one problem.

    Attributes
    ----------
    kind : how it was found.
    value, floor : the cost and the least possible cost, in the kind's unit; NaN if not known.
    samples : all measurements, in the same unit.
    more : other columns of the kernel's row: spread, clock, counters.
    """

    kind: CostKind
    value: float = math.nan
    floor: float = math.nan
    samples: Sequence[float] = ()
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def over_floor(self) -> float:
        """How many times the floor it is."""
        return self.value / self.floor

    @property
    def cells(self) -> dict[str, float]:
        """The columns of a frame's row."""
        return {
            self.kind.column: self.value,
            self.kind.floor_column: self.floor,
            "x_floor": self.over_floor,
            **self.more,
        }


def saved_cost(
    kernel: str,
    problem: Problem,
    value: float,
    source: Mapping[str, Any],
    mode: str = "",
    samples: Sequence[float] = (),
) -> dict[str, Any]:
    """Return a row of costs: ms of a kernel made of a source, in a mode; without one, MB."""
    low, high = np.quantile(samples, [0.25, 0.75]) if len(samples) else (value, value)
    return {
        "problem": problem.label,
        "mode": mode,
        "kernel": re.sub(r"#\w+| \([AB]\)$", "", kernel),
        "cost": value,
        "low": low,
        "high": high,
        "unit": "ms" if mode else "MB",
        "source": (source.get("digest") or "")[:6],
        "build": source.get("build"),
    }
