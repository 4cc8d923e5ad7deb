"""What an inspection found, as frames: quantities, functions, instructions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..machine.device import Gpu
from ..sim import Trace
from ..words.problem import Problem
from .model import Prediction
from .occupancy import occupancy
from .sass import Function

Dims = tuple[int, int, int]
COLUMNS = ("quantity", "unit", "simulated", "predicted", "measured", "least")


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
    ms, theirs = seen.get("ms"), seen.get("counters", {})
    ours = dict(counted.counters) if counted else {}
    lines = counted.lines if counted else ()
    if counted and counted.flops is not None:
        ours["flops"] = counted.flops
    rows: list[dict[str, Any]] = []

    def row(quantity: str, unit: str, **values: float | None) -> None:
        known = {k: math.nan if v is None else float(v) for k, v in values.items()}
        rows.append({"quantity": quantity, "unit": unit} | known)

    def both(of: str, over: float | str = 1) -> dict[str, float | None]:
        """A counter of the simulator's and the hardware's, over a number or another counter."""
        sides = {"simulated": ours, "measured": theirs}
        below = {name: side.get(over) if isinstance(over, str) else over
                 for name, side in sides.items()}  # fmt: skip
        return {name: side[of] / below[name] if side.get(of) is not None and below[name] else None
                for name, side in sides.items()}  # fmt: skip

    row("time", "ms", predicted=model and model.ms, measured=ms, least=1e3 * floor_seconds)
    row("rate", "TFLOP/s", predicted=model and problem.flops / (model.ms * 1e9),
        measured=ms and problem.flops / (ms * 1e9))  # fmt: skip
    moved = theirs.get("dram_bytes")
    row("DRAM traffic", "MB", predicted=model and model.dram_bytes / 1e6,
        measured=moved and moved / 1e6, least=least_bytes / 1e6)  # fmt: skip
    row("DRAM bandwidth", "GB/s", measured=moved and ms and moved / (ms * 1e6))
    for kind in ("load", "store"):
        requests, sectors = f"global_{kind}_requests", f"global_{kind}_sectors"
        row(f"global {kind}s", "requests", **both(requests))
        row(f"sectors per {kind}", "", **both(sectors, requests),
            least=_least(lines, "global", kind))  # fmt: skip
    for side in (ours, theirs):
        if "global_load_sectors" in side:
            side["traffic"] = 32 * (side["global_load_sectors"] + side["global_store_sectors"])
    row("global traffic, in sectors", "MB", **both("traffic", 1e6), least=least_bytes / 1e6)
    row("reuse: operations per byte of that", "flop/B",
        simulated=problem.flops / ours["traffic"] if ours.get("traffic") else None,
        least=problem.flops / max(least_bytes, 1))  # fmt: skip
    if ours.get("library_bytes"):
        row("cuBLAS's traffic, a model's", "MB", simulated=ours["library_bytes"] / 1e6)
    if any(side.get("shared_requests") for side in (ours, theirs)):
        row("shared memory", "requests", **both("shared_requests"))
        row("wavefronts per request", "", **both("shared_wavefronts", "shared_requests"),
            least=_least(lines, "shared", None))  # fmt: skip
    conflicts = [r["units"] - r["ideal_units"] for r in lines if r["space"] == "shared"]
    if conflicts:
        row("bank conflicts", "wavefronts", simulated=sum(conflicts), least=0)
    ffma = 64e-9 * sum(part.ffma for part in model.parts) if model else None
    row("operations", "GFLOP", **both("flops", 1e9), least=problem.flops / 1e9,
        predicted=None if ours.get("library_bytes") else ffma)  # fmt: skip
    lanes, requests = (sum(line[key] for line in lines) for key in ("lanes", "requests"))
    row("active lanes per request", "of 32", simulated=lanes / requests if requests else None)
    row("barriers", "of blocks", simulated=ours.get("barriers"))
    functions = seen.get("functions")
    if functions is not None and "active_warps_pct" in functions:
        row("achieved occupancy", "%", measured=functions["active_warps_pct"].mean())
    return pd.DataFrame(rows, columns=COLUMNS)


def _least(lines: Sequence[Mapping[str, Any]], space: str, kind: str | None) -> float | None:
    chosen = [r for r in lines if r["space"] == space and kind in (None, r["kind"])]
    requests = sum(row["requests"] for row in chosen)
    return sum(row["ideal_units"] for row in chosen) / requests if requests else None


def static_table(
    launched: Sequence[tuple[Function, Sequence[Mapping[str, Any]]]],
    gpu: Gpu,
    block: Dims | None,
    shared: int,
) -> pd.DataFrame:
    """Return one row for each function, with the launch that it had, or else may have."""
    rows = []
    for f, launches in launched:
        entry = launches[0] if launches else {"block": block, "shared_bytes": shared}
        shape, dynamic = entry["block"], entry["shared_bytes"]
        held = None
        if shape:
            held = occupancy(gpu, math.prod(shape), f.registers, f.static_shared + dynamic)
        rows.append(
            {
                "function": f.name, "registers": f.registers, "static_shared": f.static_shared,
                "dynamic_shared": dynamic if shape else math.nan,
                "spill_bytes": f.spill_stores + f.spill_loads, "stack": f.stack,
                "block": "x".join(map(str, shape)) if shape else "",
                "blocks_per_sm": held.blocks if held else math.nan,
                "occupancy": held.fraction if held else math.nan,
                "limited_by": held.limited_by if held else "",
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def sass_table(functions: Sequence[Function], model: Prediction | None) -> pd.DataFrame:
    """Return how many instructions of each kind the functions and their hot loops have.

    And, where the model tells, how many of each kind warps execute ("executed").
    """
    rows = []
    parts = {part.name: part for part in model.parts} if model else {}
    for f in functions:
        mixes = {"all": f.mix()} | ({"hot loop": f.mix(f.hot_loop)} if f.hot_loop else {})
        mixes |= {"executed": parts[f.name].mix} if f.name in parts else {}
        for where, mix in mixes.items():
            ffma = mix.get("FFMA", 0)
            rows += [
                {"function": f.name, "where": where, "kind": kind, "count": count,
                 "per_ffma": count / ffma if ffma else math.nan}
                for kind, count in mix.items()
            ]  # fmt: skip
    return pd.DataFrame(rows, columns=["function", "where", "kind", "count", "per_ffma"])
