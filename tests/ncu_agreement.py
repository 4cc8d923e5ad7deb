"""Does the simulator count what the hardware counts? For every rung, on a GPU with ncu.

    python tests/ncu_agreement.py [--kernel NAME ...] [--no-times] [--json FILE]

Prints two Markdown tables: simulated against ncu's counters on three small problems, each
difference marked "ok" up to 5% (wavefronts: 15%), and predicted against measured times: on the
headline problems, to which the model's one constant was fitted, and on others, to which it was not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from convlab import catalog, device, explain, load, measure, problem, reference  # noqa: E402
from convlab.explain import ncu  # noqa: E402
from convlab.errors import ConvlabError  # noqa: E402

SMALL = {
    "plain": "N=2,C=16,H=66,W=66,K=64,R=3,S=3",
    "padded, strided": "N=2,C=8,H=57,W=61,K=40,R=5,S=3,stride=2,padding=2x1,bias=1",
    "grouped, dilated": "N=1,C=32,H=48,W=80,K=64,R=3,S=3,dilation=2,padding=2,groups=4",
}
HEADLINE = ("square", "rect", "wide")
HELD_OUT = (
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


def simulate(name: str, small) -> dict[str, float]:
    """What the simulator counts."""
    launch = load(name, engine="sim").prepare(small, *reference.inputs(small))
    launch()
    counters = dict(launch.counters)
    flops = getattr(launch, "flops", None)
    return counters | ({"flops": flops} if flops else {})


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
                counted = ncu.only(ncu.profile(cuda, small), own_functions(cuda.source))
            except ConvlabError as error:
                rows.append({"kernel": name, "problem": label, "quantity": str(error)})
                continue
            theirs = ncu.derived(counted.totals)
            for quantity, above, below, allowed in RATIOS:
                pair = []
                for side in (ours, theirs):
                    value = side.get(above)
                    if below is not None:
                        value = value / side[below] if value and side.get(below) else None
                    pair.append(32 * value if value and quantity.startswith("bytes") else value)
                simulated, measured = pair
                if not simulated and not measured:
                    continue  # no shared memory, say
                both = bool(simulated and measured)
                off = simulated / measured - 1 if both else None
                rows.append(
                    {"kernel": name, "problem": label, "quantity": quantity,
                     "simulated": simulated, "ncu": measured, "difference": off,
                     "ok": both and abs(off) <= allowed, "allowed": allowed}
                )  # fmt: skip
    return rows


def times(names: list[str]) -> list[dict]:
    """A row for each rung and problem: predicted and measured milliseconds."""
    rows = []
    for name in names:
        kernel = load(name, engine="cuda")
        for spec in (*HEADLINE, *HELD_OUT):
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
                {"kernel": name, "problem": asked.label, "fitted": spec in HEADLINE,
                 "predicted_ms": predicted, "measured_ms": measured,
                 "ratio": predicted / measured if predicted else None,
                 "terms": model.to_dict()["parts"] if model else None}
            )  # fmt: skip
    return rows


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show_agreement(rows: list[dict]) -> None:
    """Print the counters' table."""
    print("\n| kernel | problem | quantity | simulated | ncu | difference | |")
    print("|---|---|---|---:|---:|---:|---|")
    for row in rows:
        if "ok" not in row:
            print(f"| {row['kernel']} | {row['problem']} | {row['quantity']} | | | | - |")
            continue
        off = "-" if row["difference"] is None else f"{row['difference']:+.1%}"
        mark = "ok" if row["ok"] else ("not counted" if off == "-" else f"> {row['allowed']:.0%}")
        print(
            f"| {row['kernel']} | {row['problem']} | {row['quantity']} | "
            f"{_number(row['simulated'])} | {_number(row['ncu'])} | {off} | {mark} |"
        )
    compared = [row for row in rows if row.get("difference") is not None]
    print(f"\n{sum(row['ok'] for row in compared)} of {len(compared)} within their limit.")


def show_times(rows: list[dict]) -> None:
    """Print the times' table, and whether the order of the rungs is right on each problem."""
    print("\n| kernel | problem | predicted ms | measured ms | ratio | model fitted to it |")
    print("|---|---|---:|---:|---:|---|")
    for row in rows:
        print(
            f"| {row['kernel']} | {row['problem']} | {_number(row['predicted_ms'])} | "
            f"{_number(row['measured_ms'])} | {_number(row['ratio'])} | "
            f"{'yes' if row['fitted'] else 'no'} |"
        )
    for label in dict.fromkeys(row["problem"] for row in rows):
        known = [row for row in rows if row["problem"] == label and row["ratio"]]
        orders = [
            [row["kernel"] for row in sorted(known, key=lambda row: row[key])]
            for key in ("predicted_ms", "measured_ms")
        ]
        far = [row["kernel"] for row in known if not 1 / 1.5 < row["ratio"] < 1.5]
        print(
            f"\n{label}: order {'right' if orders[0] == orders[1] else f'{orders[0]} predicted, '}"
            f"{'' if orders[0] == orders[1] else f'{orders[1]} measured'}; "
            f"{len(known) - len(far)} of {len(known)} within 1.5 {far or ''}"
        )


def main() -> int:
    """Run what was asked for; the exit status is 1 if there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--no-counters", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    here = device.describe()
    if here is None:
        print("needs an NVIDIA GPU", file=sys.stderr)
        return 1
    names = given.kernel or [path.stem for path in catalog.catalog()]
    print(f"on {here}")
    counters = [] if given.no_counters else agreement(names)
    if counters:
        show_agreement(counters)
    clock = [] if given.no_times else times(names)
    if clock:
        show_times(clock)
    if given.json:
        given.json.write_text(json.dumps({"counters": counters, "times": clock}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
