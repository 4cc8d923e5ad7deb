"""What an inspection found, as tables: quantities, functions, instructions."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..show.result import plain
from ..words.problem import Problem
from .executed import find_function
from .occupancy import Gpu, occupancy
from .predict import Prediction, Run
from .sass import Function

Dims = tuple[int, int, int]

COLUMNS = ("quantity", "unit", "problem", "simulated", "predicted", "measured", "least")


def quantities(
    problem: Problem,
    small: Problem,
    runs: Sequence[Run],
    flops: float | None,
    model: Prediction | None,
    measured: Mapping[str, Any] | None,
    floor_seconds: float,
) -> pd.DataFrame:
    """Return one row for each quantity, NaN where it is not known.

    Parameters
    ----------
    problem, small : the one that was asked for, and the one that was simulated and counted.
    runs : the simulator's; the first one counts.
    flops : that the simulator counted, or None.
    model : a prediction, or None.
    measured : as in `Inspection.measured`, or None.
    floor_seconds : of the problem on this GPU, NaN if not known.
    """
    seen = measured or {}
    whole, counted = seen.get("whole", {}), seen.get("counters", {})
    sim = dict(runs[0].counters) if runs else {}
    lines = runs[0].lines if runs else ()
    rows: list[dict[str, Any]] = []

    def row(quantity: str, unit: str, which: str, **values: float | None) -> None:
        known = {k: math.nan if v is None else float(v) for k, v in values.items()}
        rows.append({"quantity": quantity, "unit": unit, "problem": which} | known)

    ms = seen.get("ms")
    row("time", "ms", "whole", predicted=model and model.ms, measured=ms,
        least=1e3 * floor_seconds)  # fmt: skip
    rate = model and problem.flops / (model.ms * 1e9)
    row("rate", "TFLOP/s", "whole", predicted=rate, measured=ms and problem.flops / (ms * 1e9))
    moved = whole.get("dram_bytes")
    row("DRAM traffic", "MB", "whole", predicted=model and model.dram_bytes / 1e6,
        measured=moved and moved / 1e6, least=problem.min_bytes / 1e6)  # fmt: skip
    modelled = 64e-9 * sum(part.ffma for part in model.parts) if model else None
    if modelled and not sim.get("library_bytes"):
        row("operations, from the SASS", "GFLOP", "whole", predicted=modelled,
            least=problem.flops / 1e9)  # fmt: skip
    row("DRAM bandwidth", "GB/s", "whole", measured=moved and ms and moved / (ms * 1e6))

    for kind in ("load", "store"):
        requests, sectors = f"global_{kind}_requests", f"global_{kind}_sectors"
        least = _least(lines, "global", kind)
        row(f"global {kind}s", "requests", "small", simulated=sim.get(requests),
            measured=counted.get(requests))  # fmt: skip
        row(f"sectors per {kind}", "", "small", simulated=_over(sim, sectors, requests),
            measured=_over(counted, sectors, requests), least=least)  # fmt: skip
    least_mb = small.min_bytes / 1e6
    row("global traffic, in sectors", "MB", "small", simulated=_traffic(sim),
        measured=_traffic(counted), least=least_mb)  # fmt: skip
    asked = _traffic(sim)
    row("reuse: operations per byte of that", "flop/B", "small",
        simulated=asked and small.flops / (asked * 1e6),
        least=small.flops / max(small.min_bytes, 1))  # fmt: skip
    if sim.get("library_bytes"):
        row("cuBLAS's traffic, a model's", "MB", "small", simulated=sim["library_bytes"] / 1e6)
    row("shared memory", "requests", "small", simulated=sim.get("shared_requests") or None,
        measured=counted.get("shared_requests") or None)  # fmt: skip
    row("wavefronts per request", "", "small",
        simulated=_over(sim, "shared_wavefronts", "shared_requests"),
        measured=_over(counted, "shared_wavefronts", "shared_requests"),
        least=_least(lines, "shared", None))  # fmt: skip
    more = [line["units"] - line["ideal_units"] for line in lines if line["space"] == "shared"]
    row("bank conflicts", "wavefronts", "small", simulated=sum(more) if more else None,
        least=0 if more else None)  # fmt: skip
    row(
        "operations",
        "MFLOP",
        "small",
        simulated=flops and flops / 1e6,
        measured=counted.get("flops") and counted["flops"] / 1e6,
        least=small.flops / 1e6,
    )
    lanes = sum(line["lanes"] for line in lines)
    requests = sum(line["requests"] for line in lines)
    active = lanes / requests if requests else None
    row("active lanes per request", "of 32", "small", simulated=active)
    row("barriers", "of blocks", "small", simulated=sim.get("barriers"))
    functions = seen.get("functions")
    if functions is not None and "active_warps_pct" in functions:
        row("achieved occupancy", "%", "small", measured=functions["active_warps_pct"].mean())
    return pd.DataFrame(rows, columns=COLUMNS)


def _over(counters: Mapping[str, float], a: str, b: str) -> float | None:
    return counters[a] / counters[b] if a in counters and counters.get(b) else None


def _traffic(counters: Mapping[str, float]) -> float | None:
    """Megabytes in 32-byte sectors, loads and stores."""
    parts = [counters.get(f"global_{kind}_sectors") for kind in ("load", "store")]
    return None if None in parts else 32 * sum(parts) / 1e6


def _least(lines: Sequence[Mapping[str, Any]], space: str, kind: str | None) -> float | None:
    chosen = [r for r in lines if r["space"] == space and kind in (None, r["kind"])]
    requests = sum(row["requests"] for row in chosen)
    return sum(row["ideal_units"] for row in chosen) / requests if requests else None


def static_table(functions: Sequence[Function], launches: Sequence[Mapping[str, Any]], gpu: Gpu,
                 block: Dims | None, shared: int,
                 lines: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:  # fmt: skip
    """Return one row for each function that was launched, for each if no launch is known."""
    launched = {}
    for entry in launches:
        match = find_function(functions, entry["kernel"], lines, entry["block"])
        if match is not None:
            launched.setdefault(match.symbol, entry)
    rows = []
    for f in functions:
        entry = launched.get(f.symbol, {"block": block, "shared_bytes": shared})
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


def sass_table(functions: Sequence[Function]) -> pd.DataFrame:
    """Return how many instructions of each kind the functions and their hot loops have."""
    rows = []
    for f in functions:
        for where, loop in (("all", None), ("hot loop", f.hot_loop)):
            if where == "all" or loop is not None:
                mix = f.mix(loop)
                ffma = mix.get("FFMA", 0)
                rows += [
                    {"function": f.name, "where": where, "kind": kind, "count": count,
                     "per_ffma": count / ffma if ffma else math.nan}
                    for kind, count in mix.items()
                ]  # fmt: skip
    return pd.DataFrame(rows, columns=["function", "where", "kind", "count", "per_ffma"])


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as what JSON can hold."""
    return [{k: plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or pd.isna(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The quantities of which anything is known, as text."""
    numbers = ["simulated", "predicted", "measured", "least"]
    known = frame[frame[numbers[:3]].notna().any(axis=1)]
    known = known[["quantity", "unit", "problem", *(n for n in numbers if known[n].notna().any())]]
    return known.apply(lambda column: column.map(_cell))


def static_shown(static: pd.DataFrame) -> pd.DataFrame:
    """The functions, as text."""
    if not len(static):
        return static
    table = static.copy()
    table["occupancy"] = [("-" if pd.isna(v) else f"{v:.0%}") for v in table["occupancy"]]
    names = {"static_shared": "static B", "dynamic_shared": "dynamic B", "spill_bytes": "spills B",
             "blocks_per_sm": "blocks/SM", "limited_by": "limited by"}  # fmt: skip
    return table.apply(lambda column: column.map(_cell)).drop(columns="stack").rename(columns=names)


def html_table(frame: pd.DataFrame, left: Sequence[str] = ()) -> str:
    """Return a frame of text as HTML: some columns to the left, with their blanks, others right.

    A page's own style for tables (JupyterLab's: all to the right, blanks as one) goes otherwise.
    """

    def cell(value: str, name: str) -> str:
        side = "left" if name in left else "right"
        return f'<div style="text-align:{side};white-space:pre">{html.escape(value)}</div>'

    cells = pd.DataFrame({cell(n, n): [cell(v, n) for v in frame[n]] for n in frame})
    return cells.to_html(index=False, border=0, escape=False)


def text(frame: pd.DataFrame, left: Sequence[str] = ()) -> list[str]:
    """Lay a frame of text out in columns, the first and those of `left` to the left."""
    columns = [[name, *frame[name]] for name in frame] if len(frame) else []
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if i and name not in left else cell.ljust(width)
            for i, (name, cell, width) in enumerate(zip(frame, cells, widths, strict=True))
        ).rstrip()
        for cells in zip(*columns, strict=True)
    ]
