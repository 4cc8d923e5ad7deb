"""The cost of one run of a kernel: a measured time, or counted memory traffic.

This is a seam of the core: `compare`, `ab` and `sweep` rank kernels by their costs, and work for
any kind. The core's kinds are the time on a GPU and the simulated traffic. A room can add another,
such as a predicted time.
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
    """A kind of cost, with its unit and its names in tables.

    Attributes
    ----------
    column, floor_column : the columns of a frame for the cost and for its theoretical minimum.
    unit : the unit of both.
    label : the name with the unit, for an axis.
    least : the phrase for the kernel with the lowest cost, in a sentence.
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
    """The cost of one kernel on one problem.

    Attributes
    ----------
    kind : the kind of cost.
    value, floor : the cost and the theoretical minimum, in the kind's unit; NaN if unknown.
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
        """The cost as a multiple of its theoretical minimum."""
        return self.value / self.floor

    @property
    def cells(self) -> dict[str, float]:
        """The kernel's row in a frame, as a dict of columns."""
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
    """Return the row of costs for a receipt (a saved result).

    `source` is the kernel's provenance. With a mode, the value and the samples are in ms; without
    one, they are in MB.
    """
    low = high = value
    if len(samples):
        low, high = np.quantile(samples, [0.25, 0.75])
    return {
        "problem": problem.label,
        "mode": mode,
        # Remove a pinned kernel's digest, and the "(A)" or "(B)" that separates two equal names.
        "kernel": re.sub(r"#\w+| \([AB]\)$", "", kernel),
        "cost": value,
        "low": low,
        "high": high,
        "unit": "ms" if mode else "MB",
        "source": (source.get("digest") or "")[:6],
        "build": source.get("build"),
    }
