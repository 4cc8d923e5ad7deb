"""The quantities that a lab grades: what they are, and how they are counted on the simulator."""

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..core import rooms
from ..core.errors import ConvlabError, LaunchError
from ..core.kernel.kernel import Kernel
from ..core.problem.problem import Problem

_SECTOR = 32


class Quantity(NamedTuple):
    """A quantity in words, and its value from the simulator's counts."""

    words: str
    value: Callable[..., float] | None


def _loaded(counts) -> float:
    """Return the sectors of loads; all traffic of cuBLAS counts as loads."""
    return counts.counters["global_load_sectors"] + _library_sectors(counts)


def _library_sectors(counts) -> int:
    return int(counts.counters["library_bytes"]) // _SECTOR


def _conflicts(counts) -> float:
    """Return the wavefronts that bank conflicts add."""
    rows = [row for row in counts.lines if row["space"] == "shared"]
    return sum(row["units"] - row["ideal_units"] for row in rows)


QUANTITIES = {
    "load_sectors": Quantity("sectors loaded from global memory", _loaded),
    "store_sectors": Quantity(
        "sectors stored to global memory", lambda counts: counts.counters["global_store_sectors"]
    ),
    "wavefronts": Quantity(
        "wavefronts of shared memory", lambda counts: counts.counters["shared_wavefronts"]
    ),
    "bank_conflicts": Quantity("wavefronts that bank conflicts add", _conflicts),
    "predicted_ms": Quantity("ms, by the time model", None),
}


def count(kernel: Kernel, problem: Problem, quantities: Collection[str]) -> dict[str, float]:
    """Return the values of some quantities for a kernel on a problem.

    ``predicted_ms`` is missing in the result if this machine cannot predict times: without the room
    ``profile``, or without nvcc.

    Raises
    ------
    LaunchError
        The kernel fails, or its counts are below the theoretical minimum: such a kernel does not
        compute y on the device.
    """
    if not rooms.provided("engine", "sim"):
        raise LaunchError(
            "nothing counts sectors and wavefronts here: the room sim is missing", kind="not run"
        )
    from ..profile import sampling

    counts = sampling.count(kernel, problem)
    least = math.prod(problem.output_shape) * kernel.format.y.itemsize // _SECTOR
    if counts.counters["global_store_sectors"] + _library_sectors(counts) < least:
        raise LaunchError(
            f"{kernel.name} stored fewer sectors than y has ({least:,}): its kernels do not compute y",
        )
    values = {}
    for name in quantities:
        value = QUANTITIES[name].value
        if value is not None:
            values[name] = value(counts)
    if "predicted_ms" in quantities and (time := _predicted_ms(kernel, problem)) is not None:
        values["predicted_ms"] = time
    return values


def _predicted_ms(kernel: Kernel, problem: Problem) -> float | None:
    """Return the predicted time on the default GPU, or None without a prediction."""
    inspect = rooms.provided("name", "inspect")
    if inspect is None:
        return None
    try:
        model = inspect(kernel, problem, engine="sim").predicted
    except ConvlabError:
        return None
    return None if model is None else float(f"{model.ms:.4g}")
