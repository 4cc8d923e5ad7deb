"""Compare the simulator's counters with ncu's, for every rung.

    python -m tests.instruments.ncu_agreement [--kernel NAME ...] [--json FILE] [--write PAGE]

Prints a Markdown table of both on three small problems. A difference of up to 5% is "ok" (wavefronts: 15%). Needs
a GPU and ncu.

The simulator counts the source's accesses. nvcc may join some, as a float4 for four floats; the machine code
shows this. `merging` computes the counts after joining. If the difference is then within its limit, it is
"explained", and the column "why" names the instruction.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch

from convlab import load, problem
from convlab.core.errors import ConvlabError
from convlab.core.kernel import catalog
from convlab.core.machine import device
from convlab.profile import disassembly, ncu, sampling
from convlab.profile.launched_functions import launched_functions
from convlab.sim.trace import Trace
from tests.instruments import merging
from tests.instruments.pages import write_between

SMALL = {
    "plain": "N=2,C=16,H=66,W=66,K=64,R=3,S=3",
    "padded, strided": "N=2,C=8,H=57,W=61,K=40,R=5,S=3,stride=2,padding=2x1,bias=1",
    "grouped, dilated": "N=1,C=32,H=48,W=80,K=64,R=3,S=3,dilation=2,padding=2,groups=4",
}
# Quantity, counter, counter to divide by, and the allowed difference.
RATIOS = (
    ("sectors / load", "global_load_sectors", "global_load_requests", 0.05),
    ("sectors / store", "global_store_sectors", "global_store_requests", 0.05),
    ("bytes loaded", "global_load_sectors", None, 0.05),
    ("bytes stored", "global_store_sectors", None, 0.05),
    ("operations", "flops", None, 0.05),
    ("wavefronts", "shared_wavefronts", None, 0.15),
    ("wavefronts / request", "shared_wavefronts", "shared_requests", 0.15),
)


def own_functions(source: str) -> list[str]:
    """Return the names of a source's ``__global__`` functions; those of libraries are not simulated."""
    blank = re.sub(r"//[^\n]*|__launch_bounds__\s*\([^)]*\)+", "", source)
    return re.findall(r"__global__\s+(?:static\s+)?\w+\s+(\w+)\s*\(", blank)


def only(counters: pd.DataFrame, functions: Sequence[str]) -> pd.DataFrame:
    """Return the counters of some functions, without a library's kernels."""
    return counters[counters["function"].str.partition("<")[0].isin(functions)]


def simulate(name: str, small) -> tuple[dict[str, float], dict[str, float], list[merging.Merge]]:
    """Return the simulator's counters, the same after joining, and the joined accesses."""
    kernel = load(name, engine="sim")
    trace = sampling.simulate(kernel, small, seed=0)
    functions = disassembly.compiled(kernel, device.find_gpu())
    launched = launched_functions(functions, trace.lines, trace.launches)
    merges = merging.merges([entry.function for entry in launched], trace.lines)
    block = sampling.simulate(kernel, small, seed=0, record=merging.BLOCK) if merges else None
    source = counted(trace)
    return source, source | merging.joined(trace, block, merges), merges


def counted(trace: Trace) -> dict[str, float]:
    """Return a run's counters, with the operations of its own kernels only, as ncu's are."""
    if trace.flops is None:
        return dict(trace.counters)
    return trace.counters | {"flops": trace.flops - trace.counters["library_flops"]}


def agreement(names: list[str]) -> list[dict]:
    """Return a row for each rung, problem and quantity."""
    rows = []
    for name in names:
        cuda = load(name, engine="cuda")
        for label, spec in SMALL.items():
            small = problem(spec)
            if cuda.unsupported(small):
                continue
            print(f"{name}, {label}", file=sys.stderr)
            try:
                ours = simulate(name, small)
                (counted,) = ncu.profile_each([(cuda, small)])
                theirs = only(counted, own_functions(cuda.source))
            except ConvlabError as error:
                rows.append({"kernel": name, "problem": label, "quantity": str(error)})
                continue
            compared = compare(*ours, ncu.totals(theirs))
            rows += [{"kernel": name, "problem": label} | row for row in compared]
    return rows


def compare(
    source: Mapping[str, float],
    joined: Mapping[str, float],
    merges: Sequence[merging.Merge],
    measured: Mapping[str, float],
) -> list[dict]:
    """Return a row for each quantity: the source's counts, the same after joining, and ncu's."""
    rows = []
    for quantity, above, below, allowed in RATIOS:
        ours, ours_joined, theirs = (
            _quantity(side, quantity, above, below) for side in (source, joined, measured)
        )
        if not ours and not theirs:
            # As for a kernel without shared memory.
            continue
        off, off_joined = (
            value / theirs - 1 if value and theirs else None for value in (ours, ours_joined)
        )
        ok, ok_joined = (value is not None and abs(value) <= allowed for value in (off, off_joined))
        row = {
            "quantity": quantity,
            "simulated": ours,
            "ncu": theirs,
            "difference": off,
            "ok": ok,
            "allowed": allowed,
            "joined": None,
            "joined_difference": None,
            "explained": False,
            "why": "",
        }
        if ours_joined != ours:
            row |= {
                "joined": ours_joined,
                "joined_difference": off_joined,
                "explained": not ok and ok_joined,
                "why": "; ".join(map(str, merges)),
            }
        rows.append(row)
    return rows


def _quantity(
    side: Mapping[str, float], quantity: str, above: str, below: str | None
) -> float | None:
    value = side.get(above)
    if below is not None:
        value = value / side[below] if value and side.get(below) else None
    return 32 * value if value and quantity.startswith("bytes") else value


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def agreement_table(rows: list[dict]) -> list[str]:
    """Return the table as lines of Markdown."""
    lines = [
        "| kernel | problem | quantity | simulated | ncu | difference | | as nvcc joined it | why |",
        "|---|---|---|---:|---:|---:|---|---:|---|",
    ]
    for row in rows:
        if "ok" not in row:
            lines.append(
                f"| {row['kernel']} | {row['problem']} | {row['quantity']} | | | | - | | |"
            )
            continue
        off = "-" if row["difference"] is None else f"{row['difference']:+.1%}"
        mark = f"> {row['allowed']:.0%}" if off != "-" else "not counted"
        mark = "ok" if row["ok"] else "explained" if row["explained"] else mark
        joined = ""
        if row["joined"] is not None and row["joined_difference"] is not None:
            joined = f"{_number(row['joined'])} ({row['joined_difference']:+.1%})"
        lines.append(
            f"| {row['kernel']} | {row['problem']} | {row['quantity']} | "
            f"{_number(row['simulated'])} | {_number(row['ncu'])} | {off} | {mark} | {joined} | "
            f"{row['why']} |"
        )
    known = [row for row in rows if row.get("difference") is not None]
    ok, explained = (sum(row[key] for row in known) for key in ("ok", "explained"))
    limits = f"{ok} of {len(known)} within their limit (5%; wavefronts 15%)"
    return [*lines, "", f"{limits}, {explained} more explained."]


def main() -> int:
    """Compare, print and write; return the exit status, 1 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the table between this page's markers `ncu`",
    )
    given = parser.parse_args()
    here = device.describe()
    if here is None:
        print("no GPU: run this on a machine with an NVIDIA GPU and ncu", file=sys.stderr)
        return 1
    rows = agreement(given.kernel or [path.stem for path in catalog.catalog()])
    where = (
        f"{here}; torch {torch.__version__}; {datetime.date.today()}, by "
        "`python -m tests.instruments.ncu_agreement --write convlab/profile/COUNTERS.md`."
    )
    text = "\n".join([*agreement_table(rows), "", where])
    print(text)
    if given.write:
        write_between(given.write, "ncu", text)
    if given.json:
        given.json.write_text(json.dumps({"device": str(here), "counters": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
