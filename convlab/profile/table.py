"""What an inspection found, as frames: quantities, functions, instructions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..core.machine.device import Gpu
from ..core.problem.problem import Problem
from ..sim.trace import Trace
from .flow import Call
from .model import Prediction

# Each quantity, its unit, a counter of a side, and what that is over: a number, another counter.
_ROWS = (
    ("time", "ms", "ms", 1),
    ("rate", "TFLOP/s", "rate", 1),
    ("DRAM traffic", "MB", "dram_bytes", 1e6),
    ("global loads", "requests", "global_load_requests", 1),
    ("sectors per load", "", "global_load_sectors", "global_load_requests"),
    ("global stores", "requests", "global_store_requests", 1),
    ("sectors per store", "", "global_store_sectors", "global_store_requests"),
    ("global traffic, in sectors", "MB", "traffic", 1e6),
    ("reuse: operations per byte of that", "flop/B", "reuse", 1),
    ("cuBLAS's traffic, a model's", "MB", "library_bytes", 1e6),
    ("shared memory", "requests", "shared_requests", 1),
    ("wavefronts per request", "", "shared_wavefronts", "shared_requests"),
    ("bank conflicts", "wavefronts", "conflicts", 1),
    ("operations", "GFLOP", "flops", 1e9),
    ("active lanes per request", "of 32", "lanes", "requests"),
    ("barriers", "of blocks", "barriers", 1),
)
_IF_ANY = ("library_bytes", "shared_requests", "shared_wavefronts", "conflicts")


def quantities(
    problem: Problem,
    least_bytes: int,
    counted: Trace | None,
    model: Prediction | None,
    measured: Mapping[str, Any] | None,
    floor_seconds: float,
) -> pd.DataFrame:
    """Return one row for each quantity, NaN where it is not known.

    In its tensors' formats the problem has at least so many bytes; without a trace, a model, a
    measurement (as `Inspection.measured`) or a floor these columns are empty.
    """
    seen = measured or {}
    ours = dict(counted.counters) if counted else {}
    theirs = {"ms": seen.get("ms"), **seen.get("counters", {})}
    models = {"ms": model.ms, "dram_bytes": model.dram.bytes} if model else {}
    least = {
        "time": 1e3 * floor_seconds,
        "operations": problem.flops / 1e9,
        "DRAM traffic": least_bytes / 1e6,
        "global traffic, in sectors": least_bytes / 1e6,
        "reuse: operations per byte of that": problem.flops / max(least_bytes, 1),
    }
    if counted and counted.flops is not None:
        ours["flops"] = counted.flops
    for side in (ours, models, theirs):
        if side.get("ms"):
            side["rate"] = problem.flops / (side["ms"] * 1e9)
        if "global_load_sectors" in side:
            side["traffic"] = 32 * (side["global_load_sectors"] + side["global_store_sectors"])
    if ours.get("traffic"):
        ours["reuse"] = problem.flops / ours["traffic"]
    lines = pd.DataFrame(counted.lines if counted else ())
    if len(lines):
        ours |= {"lanes": lines["lanes"].sum(), "requests": lines["requests"].sum()}
        one = {"load": "sectors per load", "store": "sectors per store"}
        row = lines["kind"].map(one).where(lines["space"] == "global", "wavefronts per request")
        sums = lines.groupby(row)[["units", "ideal_units", "requests"]].sum()
        least |= (sums["ideal_units"] / sums["requests"]).to_dict()
        if "wavefronts per request" in sums.index:
            shared = sums.loc["wavefronts per request"]
            ours["conflicts"] = shared["units"] - shared["ideal_units"]
            least["bank conflicts"] = 0
    rows = []
    for quantity, unit, of, over in _ROWS:
        known = {"least": least.get(quantity)}
        for name, side in (("simulated", ours), ("predicted", models), ("measured", theirs)):
            below = side.get(over) if isinstance(over, str) else over
            known[name] = side[of] / below if side.get(of) is not None and below else None
        any_of_it = known["simulated"] or known["measured"] or known["least"] is not None
        if any_of_it or of not in _IF_ANY:
            rows.append({"quantity": quantity, "unit": unit, **known})
    numbers = ["simulated", "predicted", "measured", "least"]
    frame = pd.DataFrame(rows, columns=["quantity", "unit", *numbers])
    return frame.astype(dict.fromkeys(numbers, float))


def static_table(called: Sequence[Call], gpu: Gpu) -> pd.DataFrame:
    """Return one row for each function, with the launch that it had."""
    columns = [
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
    ]
    rows = []
    for call in called:
        f = call.function
        shape = ()
        dynamic = math.nan
        held = (math.nan, math.nan, "")
        if call.launches:
            shape, dynamic = (call.launches[0][key] for key in ("block", "shared_bytes"))
            held = call.occupancy(gpu)
        own = f.name, f.registers, f.static_shared, dynamic, f.spill_bytes, f.stack
        rows.append((*own, "x".join(map(str, shape)), *held))
    return pd.DataFrame(rows, columns=columns)


def sass_table(called: Sequence[Call], model: Prediction | None) -> pd.DataFrame:
    """Return how many instructions of each kind the functions and their hot loops have.

    And, where the model tells, how many of each kind warps execute ("executed").
    """
    rows = []
    executed = {part.name: part.mix for part in model.parts} if model else {}
    for f in [call.function for call in called]:
        mixes = {"all": f.mix()} | ({"hot loop": f.mix(f.hot_loop)} if f.hot_loop else {})
        mixes |= {"executed": executed[f.name]} if f.name in executed else {}
        rows += [
            (f.name, where, kind, count, count / mix["FFMA"] if mix.get("FFMA") else math.nan)
            for where, mix in mixes.items()
            for kind, count in mix.items()
        ]
    return pd.DataFrame(rows, columns=["function", "where", "kind", "count", "per_ffma"])
