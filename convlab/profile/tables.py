"""Build the tables of an inspection: quantities, functions, instructions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ..core.machine.device import Gpu
from ..core.problem.problem import Problem
from .launched_functions import SECTOR_BYTES, LaunchedFunction
from .sampling import Counts
from .time_model import Prediction


class _Quantity(NamedTuple):
    """A row of the table of quantities.

    Its value is `counter` / `divisor`, in `unit`; the divisor is a number or another counter. A row
    with `if_any` is omitted if all of its values are unknown or zero.
    """

    name: str
    unit: str
    counter: str
    divisor: float | str = 1
    if_any: bool = False


_QUANTITIES = (
    _Quantity("time", "ms", "ms"),
    _Quantity("rate", "TFLOP/s", "rate"),
    _Quantity("DRAM traffic", "MB", "dram_bytes", 1e6),
    _Quantity("global loads", "requests", "global_load_requests"),
    _Quantity("sectors per load", "", "global_load_sectors", "global_load_requests"),
    _Quantity("global stores", "requests", "global_store_requests"),
    _Quantity("sectors per store", "", "global_store_sectors", "global_store_requests"),
    _Quantity("global traffic, in sectors", "MB", "traffic", 1e6),
    _Quantity("reuse: operations per byte of that", "flop/B", "reuse"),
    _Quantity("cuBLAS's traffic, a model's", "MB", "library_bytes", 1e6, if_any=True),
    _Quantity("shared memory", "requests", "shared_requests", if_any=True),
    _Quantity("wavefronts per request", "", "shared_wavefronts", "shared_requests", if_any=True),
    _Quantity("bank conflicts", "wavefronts", "conflicts", if_any=True),
    _Quantity("operations", "GFLOP", "flops", 1e9),
    _Quantity("active lanes per request", "of 32", "lanes", "requests"),
    _Quantity("barriers", "of blocks", "barriers"),
)
_STATIC_COLUMNS = (
    "function",
    "registers",
    "static_shared",
    "dynamic_shared",
    "spill_bytes",
    "stack",
    "block",
    "blocks_per_sm",
    "occupancy",
    "limited_by",
)


def quantities(
    problem: Problem,
    least_bytes: int,
    counts: Counts | None,
    model: Prediction | None,
    measured: Mapping[str, Any] | None,
    floor_seconds: float,
) -> pd.DataFrame:
    """Return one row for each quantity, with NaN for unknown values.

    Parameters
    ----------
    problem : the problem.
    least_bytes : the theoretical minimum of the DRAM traffic, in the formats of the tensors.
    counts, model, measured : the sources of the columns "simulated", "predicted" and "measured". A
        column without its source is empty. `measured` has the form of `Inspection.measured`.
    floor_seconds : the theoretical minimum of the time.
    """
    measured = measured or {}
    simulated_counters = dict(counts.counters) if counts else {}
    if counts and counts.flops is not None:
        simulated_counters["flops"] = counts.flops
    predicted_counters = {"ms": model.ms, "dram_bytes": model.dram.bytes} if model else {}
    measured_counters = {"ms": measured.get("ms"), **measured.get("counters", {})}
    columns = {
        "simulated": simulated_counters,
        "predicted": predicted_counters,
        "measured": measured_counters,
    }
    for counters in columns.values():
        _derive(counters, problem)
    if simulated_counters.get("traffic"):
        simulated_counters["reuse"] = problem.flops / simulated_counters["traffic"]
    least = {
        "time": 1e3 * floor_seconds,
        "operations": problem.flops / 1e9,
        "DRAM traffic": least_bytes / 1e6,
        "global traffic, in sectors": least_bytes / 1e6,
        "reuse: operations per byte of that": problem.flops / max(least_bytes, 1),
    }
    if counts and len(counts.lines):
        counters_of_lines, least_of_lines = _from_lines(pd.DataFrame(counts.lines))
        simulated_counters |= counters_of_lines
        least |= least_of_lines
    rows = []
    for quantity in _QUANTITIES:
        values = {name: _value(quantity, counters) for name, counters in columns.items()}
        values["least"] = least.get(quantity.name)
        known = values["simulated"] or values["measured"] or values["least"] is not None
        if known or not quantity.if_any:
            rows.append({"quantity": quantity.name, "unit": quantity.unit, **values})
    numbers = [*columns, "least"]
    frame = pd.DataFrame(rows, columns=["quantity", "unit", *numbers])
    return frame.astype(dict.fromkeys(numbers, float))


def _derive(counters: dict[str, Any], problem: Problem) -> None:
    """Add the rate of the operations, and the traffic in bytes, to a column's counters."""
    if counters.get("ms"):
        counters["rate"] = problem.flops / (counters["ms"] * 1e9)
    if "global_load_sectors" in counters:
        sectors = counters["global_load_sectors"] + counters["global_store_sectors"]
        counters["traffic"] = SECTOR_BYTES * sectors


def _from_lines(lines: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Return the counters, and the minima of some quantities, that follow from counts by line."""
    counters = {"lanes": lines["lanes"].sum(), "requests": lines["requests"].sum()}
    per_request = lines["kind"].map({"load": "sectors per load", "store": "sectors per store"})
    per_request = per_request.where(lines["space"] == "global", "wavefronts per request")
    sums = lines.groupby(per_request)[["units", "ideal_units", "requests"]].sum()
    least = (sums["ideal_units"] / sums["requests"]).to_dict()
    if "wavefronts per request" in sums.index:
        shared = sums.loc["wavefronts per request"]
        counters["conflicts"] = shared["units"] - shared["ideal_units"]
        least["bank conflicts"] = 0
    return counters, least


def _value(quantity: _Quantity, counters: Mapping[str, Any]) -> float | None:
    """Return a quantity from a column's counters; None if it is not known."""
    divisor = quantity.divisor
    if isinstance(divisor, str):
        divisor = counters.get(divisor)
    value = counters.get(quantity.counter)
    return value / divisor if value is not None and divisor else None


def static_table(launched: Sequence[LaunchedFunction], gpu: Gpu) -> pd.DataFrame:
    """Return one row for each function, with its first launch."""
    rows = []
    for entry in launched:
        function = entry.function
        row = {
            "function": function.name,
            "registers": function.registers,
            "static_shared": function.static_shared,
            "dynamic_shared": math.nan,
            "spill_bytes": function.spill_bytes,
            "stack": function.stack,
            "block": "",
            "blocks_per_sm": math.nan,
            "occupancy": math.nan,
            "limited_by": "",
        }
        if entry.launches:
            first = entry.launches[0]
            row["dynamic_shared"] = first["shared_bytes"]
            row["block"] = "x".join(map(str, first["block"]))
            occupancy = entry.occupancy(gpu)
            row["blocks_per_sm"] = occupancy.blocks
            row["occupancy"] = occupancy.fraction
            row["limited_by"] = occupancy.limited_by
        rows.append(row)
    return pd.DataFrame(rows, columns=list(_STATIC_COLUMNS))


def sass_table(launched: Sequence[LaunchedFunction], model: Prediction | None) -> pd.DataFrame:
    """Return how many instructions of each kind the functions have.

    There are counts of the whole code ("all") and of the hot loop ("hot loop"), and the model's
    counts of the instructions that warps execute ("executed").
    """
    executed = {part.name: part.mix for part in model.parts} if model else {}
    rows = []
    for entry in launched:
        function = entry.function
        mixes: dict[str, Mapping[str, float]] = {"all": function.mix()}
        if function.hot_loop:
            mixes["hot loop"] = function.mix(function.hot_loop)
        if function.name in executed:
            mixes["executed"] = executed[function.name]
        for where, mix in mixes.items():
            for kind, count in mix.items():
                per_ffma = count / mix["FFMA"] if mix.get("FFMA") else math.nan
                rows.append((function.name, where, kind, count, per_ffma))
    return pd.DataFrame(rows, columns=["function", "where", "kind", "count", "per_ffma"])
