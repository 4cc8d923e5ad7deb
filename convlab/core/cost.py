"""A cost: the time or traffic of running a kernel once, measured or counted. A seam of the core.

`compare`, `ab` and `sweep` rank kernels by their costs and do not ask how a cost was measured. A
time on a GPU and simulated traffic are two kinds; a room can add another, such as a predicted time.
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
    """One way to measure what a kernel costs.

    Attributes
    ----------
    column, floor_column : the columns of a frame that hold a cost, and the theoretical minimum.
    unit : the unit of both.
    label : the name with the unit, for an axis.
    least : how a sentence calls the kernel that costs least.
    mode : the mode of the timing ("cold"), for a saved result; empty for counted costs.
    """

    column: str
    floor_column: str
    unit: str
    label: str
    least: str
    mode: str = ""


MEASURED = CostKind(
    column="time_ms",
    floor_column="floor_ms",
    unit="ms",
    label="time on the GPU (ms)",
    least="fastest of them",
    mode="cold",
)
COUNTED = CostKind(
    column="traffic_mb",
    floor_column="floor_mb",
    unit="MB",
    label="simulated global memory traffic (MB)",
    least="least traffic",
)
KINDS = {kind.column: kind for kind in (MEASURED, COUNTED)}


@dataclass(frozen=True)
class Cost:
    """What one kernel costs on one problem.

    Attributes
    ----------
    kind : the kind of cost.
    value, floor : the cost and the theoretical minimum, in the kind's unit; NaN if not known.
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
        """The cost as a multiple of the floor."""
        return self.value / self.floor

    @property
    def cells(self) -> dict[str, float]:
        """The columns of the kernel's row in a frame."""
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
    """Return the row of costs that a receipt holds; `source` is the kernel's provenance.

    The value and the samples are in ms if there is a mode, and in MB without one.
    """
    low = high = value
    if len(samples):
        low, high = np.quantile(samples, [0.25, 0.75])
    return {
        "problem": problem.label,
        "mode": mode,
        # Without a pinned kernel's digest, and without the "(A)" of two with one name.
        "kernel": re.sub(r"#\w+| \([AB]\)$", "", kernel),
        "cost": value,
        "low": low,
        "high": high,
        "unit": "ms" if mode else "MB",
        "source": (source.get("digest") or "")[:6],
        "build": source.get("build"),
    }
