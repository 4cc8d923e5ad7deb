"""Does the simulator count what the hardware counts? For every rung, on a GPU with ncu.

    python -m tests.instruments.ncu_agreement [--kernel NAME ...] [--no-times] [--json FILE] [--write FILE]

Prints two Markdown tables: simulated against ncu's counters on three small problems, each
difference marked "ok" up to 5% (wavefronts: 15%), and predicted against measured times. --write
puts the first into a file; the second is written by tests/instruments/calibrate_model.py, which reads
the --json (measured_h200.json) and shows the errors on what the model was not fitted to, too.

The simulator counts the source's accesses. Where nvcc joined some (a float4 for four floats, which
the widths in its machine code tell), the launch is counted once more with these joined; a
difference that is then within its limit is "explained", and the column "why" says by what.

"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from convlab import load, problem
from convlab import why as explain
from convlab.fast import measure
from convlab.fast.bench import write_between
from convlab.machine import device
from convlab.sim import Trace
from convlab.why import counting, flow, ncu
from convlab.words import catalog
from convlab.words.errors import ConvlabError
from tests.instruments import merging

SMALL = {
    "plain": "N=2,C=16,H=66,W=66,K=64,R=3,S=3",
    "padded, strided": "N=2,C=8,H=57,W=61,K=40,R=5,S=3,stride=2,padding=2x1,bias=1",
    "grouped, dilated": "N=1,C=32,H=48,W=80,K=64,R=3,S=3,dilation=2,padding=2,groups=4",
}
HEADLINE = ("square", "rect", "wide")
OTHERS = (
    "N=32,C=64,H=56,W=56,K=64,R=3,S=3,padding=1",
    "N=32,C=3,H=224,W=224,K=64,R=7,S=7,stride=2,padding=3",
    "N=8,C=64,H=128,W=128,K=64,R=3,S=3,dilation=2,padding=2",
    "N=32,C=128,H=56,W=56,K=128,R=3,S=3,stride=2,padding=1",
)
# What is compared, the difference that is allowed, and where it comes from.
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
    """The names of a source's ``__global__`` functions: a library's are not simulated."""
    blank = re.sub(r"//[^\n]*|__launch_bounds__\s*\([^)]*\)+", "", source)
    return re.findall(r"__global__\s+(?:static\s+)?\w+\s+(\w+)\s*\(", blank)


def only(counters: ncu.Counters, functions: Sequence[str]) -> ncu.Counters:
    """The counters of some functions alone: without a library's kernels."""
    own = counters.frame["function"].map(lambda name: name.partition("<")[0] in functions)
    return ncu.Counters(counters.frame[own].reset_index(drop=True))


def simulate(name: str, small) -> tuple[dict[str, float], dict[str, float], list[merging.Merge]]:
    """What the simulator counts: of the source, as nvcc joined its accesses, and what it joined."""
    kernel = load(name, engine="sim")
    first = second = counting.simulate(kernel, small, seed=0)
    pairs = flow.launched(explain.compiled(kernel, device.find_gpu()), first.lines, first.launches)
    joined = merging.merges([function for function, _ in pairs], first.lines)
    if joined:
        offsets = [(offset, m.made) for m in joined
                   for offset in first.offsets_of(m.line, m.space, m.kind)]  # fmt: skip
        second = counting.simulate(kernel, small, seed=0, joined=offsets)
    return counted(first), counted(second), joined


def counted(trace: Trace) -> dict[str, float]:
    """A run's counters, and the operations of its own kernels: ncu leaves a library's out."""
    if trace.flops is None:
        return dict(trace.counters)
    return trace.counters | {"flops": trace.flops - trace.counters["library_flops"]}


def agreement(names: list[str]) -> list[dict]:
    """A row for each rung, problem and quantity."""
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
                theirs = only(ncu.profile(cuda, small), own_functions(cuda.source))
            except ConvlabError as error:
                rows.append({"kernel": name, "problem": label, "quantity": str(error)})
                continue
            compared = compare(*ours, ncu.derived(theirs.totals))
            rows += [{"kernel": name, "problem": label} | row for row in compared]
    return rows


def compare(
    source: Mapping[str, float],
    joined: Mapping[str, float],
    merges: Sequence[merging.Merge],
    measured: Mapping[str, float],
) -> list[dict]:
    """A row for each quantity, of the source's counts, those as nvcc joined it, and ncu's."""
    rows = []
    for quantity, above, below, allowed in RATIOS:
        ours, ours_joined, theirs = (
            _quantity(side, quantity, above, below) for side in (source, joined, measured)
        )
        if not ours and not theirs:
            continue  # no shared memory, say
        off, off_joined = _off(ours, theirs), _off(ours_joined, theirs)
        ok = off is not None and abs(off) <= allowed
        changed = ours_joined != ours
        rows.append(
            {"quantity": quantity, "simulated": ours, "ncu": theirs, "difference": off, "ok": ok,
             "allowed": allowed, "joined": ours_joined if changed else None,
             "joined_difference": off_joined if changed else None,
             "explained": not ok and changed and off_joined is not None
             and abs(off_joined) <= allowed,
             "why": "; ".join(map(str, merges)) if changed else ""}
        )  # fmt: skip
    return rows


def _quantity(
    side: Mapping[str, float], quantity: str, above: str, below: str | None
) -> float | None:
    value = side.get(above)
    if below is not None:
        value = value / side[below] if value and side.get(below) else None
    return 32 * value if value and quantity.startswith("bytes") else value


def _off(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs - 1 if ours and theirs else None


def times(names: list[str]) -> list[dict]:
    """A row for each rung and problem: predicted and measured milliseconds."""
    rows = []
    for name in names:
        kernel = load(name, engine="cuda")
        for spec in (*HEADLINE, *OTHERS):
            asked = problem(spec)
            if kernel.unsupported(asked):
                continue
            print(f"{name}, {asked.label}", file=sys.stderr)
            try:
                # engine "sim": the prediction alone, for the GPU that is here
                model = explain.inspect(name, asked, engine="sim").predicted
                measured = 1e3 * measure.measure(kernel, asked, limit_seconds=5.0).seconds
            except ConvlabError as error:
                print(f"  {error}", file=sys.stderr)
                continue
            predicted = model.ms if model else None
            rows.append(
                {"kernel": name, "problem": asked.label,
                 "predicted_ms": predicted, "measured_ms": measured,
                 "ratio": predicted / measured if predicted else None,
                 "terms": model.to_dict()["parts"] if model else None}
            )  # fmt: skip
    return rows


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def agreement_table(rows: list[dict]) -> list[str]:
    """The counters' table, as lines of Markdown."""
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
    right, explained = (sum(row[key] for row in known) for key in ("ok", "explained"))
    return lines + [
        "",
        f"{right} of {len(known)} within their limit (5%; wavefronts 15%), {explained} more explained.",
    ]


def times_table(rows: list[dict]) -> list[str]:
    """The times' table as lines of Markdown, and whether each problem's order of rungs is right."""
    lines = [
        "| kernel | problem | predicted ms | measured ms | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['kernel']} | {row['problem']} | {_number(row['predicted_ms'])} | "
            f"{_number(row['measured_ms'])} | {_number(row['ratio'])} |"
        )
    for label in dict.fromkeys(row["problem"] for row in rows):
        known = [row for row in rows if row["problem"] == label and row["ratio"]]
        orders = [
            [row["kernel"] for row in sorted(known, key=lambda row: row[key])]
            for key in ("predicted_ms", "measured_ms")
        ]
        far = [row["kernel"] for row in known if not 1 / 1.5 < row["ratio"] < 1.5]
        lines += ["", (
            f"{label}: order {'right' if orders[0] == orders[1] else f'{orders[0]} predicted, '}"
            f"{'' if orders[0] == orders[1] else f'{orders[1]} measured'}; "
            f"{len(known) - len(far)} of {len(known)} within 1.5 {far or ''}"
        ).rstrip() + "."]  # fmt: skip
    return lines


def main() -> int:
    """Run what was asked for; the exit status is 1 if there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--no-counters", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the counters' table between "
                        "the markers `ncu` of this file")  # fmt: skip
    given = parser.parse_args()
    here = device.describe()
    if here is None:
        print("needs an NVIDIA GPU", file=sys.stderr)
        return 1
    names = given.kernel or [path.stem for path in catalog.catalog()]
    where = (
        f"{here}; torch {torch.__version__}; {datetime.date.today()}, by "
        "`python -m tests.instruments.ncu_agreement --write convlab/why/README.md`."
    )
    results = {"gpu": device.find_gpu().name, "date": str(datetime.date.today()),
               "device": f"{here}; torch {torch.__version__}", "counters": [], "times": []}  # fmt: skip
    for marker, kind, wanted, collect, table in (
        ("ncu", "counters", not given.no_counters, agreement, agreement_table),
        ("times", "times", not given.no_times, times, times_table),
    ):
        if not wanted:
            continue
        results[kind] = collect(names)
        text = "\n".join([*table(results[kind]), "", where])
        print(f"\n{text}")
        if given.write and marker == "ncu":
            write_between(given.write, marker, text)
        if given.json:  # at once: the other part takes minutes
            given.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
