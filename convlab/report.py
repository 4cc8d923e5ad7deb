"""What an inspection found, as rows of one table: simulated, predicted, measured, least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from .predict import Prediction, Run
from .problem import Problem

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
    row("DRAM bandwidth", "GB/s", "whole", measured=moved and ms and moved / (ms * 1e6))

    for kind in ("load", "store"):
        requests, sectors = f"global_{kind}_requests", f"global_{kind}_sectors"
        least = _least(lines, "global", kind)
        row(f"global {kind}s", "requests", "small", simulated=sim.get(requests),
            measured=counted.get(requests))  # fmt: skip
        row(f"sectors per {kind}", "", "small", simulated=_over(sim, sectors, requests),
            measured=_over(counted, sectors, requests), least=least)  # fmt: skip
    least_mb = small.min_bytes / 1e6
    row("asked of L1, in sectors", "MB", "small", simulated=_traffic(sim),
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
    row("operations", "MFLOP", "small", simulated=flops and flops / 1e6,
        measured=counted.get("flops") and counted["flops"] / 1e6, least=small.flops / 1e6)
    lanes = sum(line["lanes"] for line in lines)
    requests = sum(line["requests"] for line in lines)
    row("active lanes per request", "of 32", "small", simulated=lanes / requests if requests else None)
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
