"""One row of a receipt's costs, which the core's results ask for."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.problem.problem import Problem


def cost(
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
