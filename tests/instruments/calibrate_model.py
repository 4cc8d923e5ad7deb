"""Compare the time model with measured times, and its DRAM bytes with ncu's.

    python -m tests.instruments.calibrate_model [MEASURED.json] [--write convlab/profile]
    python -m tests.instruments.calibrate_model MEASURED.json --measure [--kernel NAME ...]

The first command needs no GPU, and takes minutes. It fits the model's constants and prints the errors. A
held-out error is of constants that were fitted without the point's rung, without its problem, or without both.

``--measure`` needs a GPU that is otherwise idle. It measures times and counters, and only writes MEASURED.json.
By default it measures all rungs; ``--kernel`` names others, also with a tunable: ``03_smem_tile@TILE=8``.
The counters come from one process and may take ``--seconds``. Run it again for the rest: the oldest counters
go first. ``--only dram`` or ``--only times`` does one of the two.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import convlab
from convlab.core.errors import ConvlabError, ProblemError
from convlab.core.kernel import catalog
from convlab.core.machine import device
from convlab.core.timing.measure import measure
from convlab.core.timing.sides import build_all
from convlab.profile import ncu
from convlab.profile.forecast import prediction_of
from convlab.profile.time_model import OVERLAP, PIPELINE_OVERLAP, SUSTAINED
from tests.instruments.pages import write_between

MEASURED = Path(__file__).parent / "measured_h200.json"
PROBLEMS = (
    "square",
    "rect",
    "wide",
    "N=32,C=64,H=56,W=56,K=64,R=3,S=3,padding=1",
    "N=32,C=3,H=224,W=224,K=64,R=7,S=7,stride=2,padding=3",
    "N=8,C=64,H=128,W=128,K=64,R=3,S=3,dilation=2,padding=2",
    "N=32,C=128,H=56,W=56,K=128,R=3,S=3,stride=2,padding=1",
)
GRID = [
    (sustained / 100, overlap)
    for sustained in range(60, 101, 2)
    for overlap in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0)
]
# The goal: a prediction within this factor of the measured time.
FACTOR = 1.5
DRAM = {n: ncu.METRICS[n] for n in ("dram_read_bytes", "dram_write_bytes", "l2_bytes")}
# The page for each table, in the folder that --write names.
PAGES = {"times": "MODEL.md", "rungs": "MODEL.md", "dram": "DRAM.md"}
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# The table of rungs: all rungs measured on one day, on the headline problems.
RUNGS = NOTEBOOKS / "h200.json"
PIPELINE_GRID = (1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0)
# What is wanted of rows kept apart: within this factor, and the order of pairs that differ by more.
WANTED = 1.6
APART = 1.2


def measured(names: list[str], only: str | None, before: dict, seconds: float = 40.0) -> dict:
    """Measure kernels on the problems that they support, on this GPU; return the new document.

    `before` is the document so far: what is not measured again stays. Counters take `seconds`; the
    oldest ones go first.
    """
    found = device.find_gpu().name
    if before["gpu"] != found:
        raise ProblemError(
            f"this GPU is a {found}, and the file is of a {before['gpu']}: name another file"
        )
    calls = [
        (kernel, asked)
        for name, spec in itertools.product(names, PROBLEMS)
        if not (kernel := load(name, "cuda")).unsupported(asked := convlab.problem(spec))
    ]
    with build_all(list({kernel.name: kernel for kernel, _ in calls}.values())) as builds:
        for built in builds:
            if built.error is not None:
                raise built.error
    kept = {(row["kernel"], row["problem"]): row for row in before["counters"]}
    seen = {name: row.get("date", "then") for name, row in kept.items()}
    calls.sort(key=lambda call: seen.get((call[0].name, call[1].label), ""))
    times = []
    today = str(datetime.date.today())
    for kernel, asked in calls if only != "dram" else ():
        print(f"{kernel.name}, {asked.label}", file=sys.stderr)
        try:
            ms = 1e3 * measure(kernel, asked, limit_seconds=5.0).seconds
            times.append({"kernel": kernel.name, "problem": asked.label, "measured_ms": ms})
        except ConvlabError as error:
            print(f"  {error}", file=sys.stderr)
    frames = ncu.profile_each(calls, DRAM, time_limit=seconds) if only != "times" else []
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    counters = {
        (kernel.name, asked.label): {"kernel": kernel.name, "problem": asked.label}
        | {name: float(frame[name].sum()) for name in DRAM}
        | {"date": today, "commit": commit}
        for (kernel, asked), frame in zip(calls, frames, strict=False)
        if len(frame)
    }
    if only != "times":
        print(f"counted {len(counters)} of {len(calls)} calls", file=sys.stderr)
    here = {"gpu": found, "device": str(device.describe()), "date": today}
    return {
        **(here if times else before),
        "counters": [*(kept | counters).values()],
        "times": times or before["times"],
    }


def load(name: str, engine: str) -> convlab.Kernel:
    """Return a rung, or the kernel of a notebook's cell: "ab_your_kernel.ipynb:mine@KT=4"."""
    notebook, _, cell = name.rpartition(":")
    if not notebook:
        return convlab.load(name, engine=engine)
    own, _, tunables = cell.partition("@")
    cells = json.loads((NOTEBOOKS / notebook).read_text())["cells"]
    sources = ["".join(cell["source"]).partition("\n") for cell in cells]
    source = next(text for magic, _, text in sources if magic.split() == ["%%kernel", own])
    kernel = convlab.compile(source, name=own, engine=engine)
    return kernel.tuned(tunables) if tunables else kernel


def points(document: dict) -> pd.DataFrame:
    """Predict all measured times; print on stderr what the model cannot predict."""
    found = []
    for row in document["times"]:
        kernel = load(row["kernel"], "sim")
        seen = convlab.inspect(kernel, row["problem"], gpu=document["gpu"], engine="sim")
        if seen.predicted is None:
            print(f"{row['kernel']}, {row['problem']}: {'; '.join(seen.notes)}", file=sys.stderr)
            continue
        rung = row["kernel"].partition("@")[0]
        parts = seen.predicted.parts
        found.append(
            {**row, "rung": rung, "parts": parts, "ms": 1e3 * sum(p.seconds for p in parts)}
        )
    return pd.DataFrame(found)


def table(all_points: pd.DataFrame, document: dict, source: str) -> str:
    """Return the report on times, in Markdown."""
    # errors[constants, point]: the logarithm of predicted over measured time.
    errors = np.array(
        [
            [
                math.log(
                    1e3 * sum(part.time(*constants) for part in point.parts) / point.measured_ms
                )
                for point in all_points.itertuples()
            ]
            for constants in GRID
        ]
    )

    def best(kept: np.ndarray) -> int:
        """Return the constants with the smallest mean squared error."""
        return (errors[:, kept] ** 2).sum(axis=1).argmin()

    def held_out(*alike: str) -> np.ndarray:
        """Return each point's error with constants fitted to the points that are not alike."""
        same = [
            (all_points[list(alike)] == row[list(alike)]).any(axis=1).to_numpy()
            for _, row in all_points.iterrows()
        ]
        return np.array([errors[best(~like), n] for n, like in enumerate(same)])

    used = GRID.index((SUSTAINED, OVERLAP))
    fitted = best(np.ones(len(all_points), dtype=bool))
    named = [f"sustained {share:.2f}, overlap {overlap:g}" for share, overlap in GRID]
    lines = [
        "| error of the model, as a factor | constants | typical | largest | within 1.5 |",
        "|---|---|---|---|---|",
    ]
    for name, of, constants in (
        ("as in time_model.py", errors[used], named[used]),
        ("fitted to all of these", errors[fitted], named[fitted]),
        ("each rung by the others", held_out("rung"), "refitted"),
        ("each problem by the others", held_out("problem"), "refitted"),
        ("each by other rungs on other problems", held_out("rung", "problem"), "refitted"),
    ):
        typical = math.exp(math.sqrt((of**2).mean()))
        largest = math.exp(abs(of).max())
        inside = (abs(of) < math.log(FACTOR)).sum()
        lines.append(
            f"| {name} | {constants} | {typical:.2f} | {largest:.2f} | {inside} of {len(of)} |"
        )
    pairs = [
        (a, b)
        for _, here in all_points.groupby("problem")
        for a, b in itertools.combinations(here.itertuples(), 2)
        if abs(math.log(a.measured_ms / b.measured_ms)) > math.log(1.05)
    ]
    right = sum((a.measured_ms < b.measured_ms) == (a.ms < b.ms) for a, b in pairs)
    names = all_points["kernel"].unique()
    labels = all_points["problem"].unique()
    order = f"Of {len(pairs)} pairs of kernels whose times differ by over 5%, {right} are in the "
    lines += ["", f"{order}right order. Predicted over measured:", ""]
    lines += [f"| problem | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    cells = {
        (p.problem, p.kernel): f"{p.ms:.3g} / {p.measured_ms:.3g} ms = {p.ms / p.measured_ms:.2f}"
        for p in all_points.itertuples()
    }
    for label in labels:
        lines.append(f"| {label} | {' | '.join(cells.get((label, n), '-') for n in names)} |")
    where = f"Measured on {document['device']}; {document['date']} (`{source}`)"
    lines += ["", f"{where}; by `python -m tests.instruments.calibrate_model`."]
    return "\n".join(lines)


def rung_points(names: list[str] | None = None) -> pd.DataFrame:
    """Predict the measured rungs that the times of MEASURED.json, on which the model was built, lack."""
    built_on = {row["kernel"] for row in json.loads(MEASURED.read_text())["times"]}
    rows = json.loads(RUNGS.read_text())["rows"]
    found = []
    for row in rows:
        name = row["kernel"]
        if ":" in name or not row["time_ms"] or (names and name not in names):
            continue
        if name in built_on and not names:
            continue
        kernel = convlab.load(name, engine="sim")
        print(f"{name}, {row['problem']}", file=sys.stderr)
        try:
            prediction, doubt = prediction_of(
                kernel, convlab.problem(row["problem"]), device.find_gpu("H200")
            )
        except ConvlabError as error:
            print(f"  not predicted: {error}", file=sys.stderr)
            continue
        found.append(
            {
                "kernel": name,
                "problem": row["problem"],
                "measured_ms": row["time_ms"],
                "parts": prediction.parts,
                "doubt": doubt,
            }
        )
    return pd.DataFrame(found)


def rung_table(points: pd.DataFrame) -> str:
    """Return the report on all other rungs, in Markdown; each pipelined one by the others' constant."""

    def predicted_ms(point: object, exponent: float) -> float:
        return 1e3 * sum(p.time(SUSTAINED, OVERLAP, exponent) for p in point.parts)

    def squared(point: object, exponent: float) -> float:
        return math.log(predicted_ms(point, exponent) / point.measured_ms) ** 2

    rows = list(points.itertuples())
    pipelined = [row for row in rows if any(part.pipelined for part in row.parts)]
    lines = [
        "| kernel | problem | predicted / measured | ratio | constant | |",
        "|---|---|---|---|---|---|",
    ]
    kept_apart = []
    for row in rows:
        exponent = PIPELINE_OVERLAP
        constant = "none fitted to such kernels"
        if row in pipelined:
            others = [other for other in pipelined if other.kernel != row.kernel]
            exponent = min(PIPELINE_GRID, key=lambda p: sum(squared(other, p) for other in others))
            constant = f"{exponent:g}, by the other rungs"
        ms = predicted_ms(row, exponent)
        kept_apart.append((row, ms))
        mark = "" if 1 / WANTED < ms / row.measured_ms < WANTED else "**outside**"
        mark = "; ".join(text for text in (mark, row.doubt) if text)
        lines.append(
            f"| {row.kernel} | {row.problem} | {ms:.3g} / {row.measured_ms:.3g} ms | "
            f"{ms / row.measured_ms:.2f} | {constant} | {mark} |"
        )
    lines += ["", _summary("All rows", kept_apart)]
    for label, chosen in (
        ("Rows with mbarriers", [pair for pair in kept_apart if pair[0] in pipelined]),
        ("Rows without a doubt in the last column", [p for p in kept_apart if not p[0].doubt]),
    ):
        lines.append(_summary(label, chosen))
    where = f"Measured times: `notebooks/{RUNGS.name}`"
    lines += ["", f"{where}; by `python -m tests.instruments.calibrate_model --only rungs`."]
    return "\n".join(lines)


def _summary(label: str, kept_apart: list[tuple]) -> str:
    """Return a line: the median error, rows within the wanted factor, pairs in the right order."""
    errors = [abs(math.log(ms / row.measured_ms)) for row, ms in kept_apart]
    inside = sum(error < math.log(WANTED) for error in errors)
    pairs = [
        ((a, a_ms), (b, b_ms))
        for (a, a_ms), (b, b_ms) in itertools.combinations(kept_apart, 2)
        if a.problem == b.problem and abs(math.log(a.measured_ms / b.measured_ms)) > math.log(APART)
    ]
    right = sum((a.measured_ms < b.measured_ms) == (x < y) for (a, x), (b, y) in pairs)
    return (
        f"- {label}: median error {math.exp(float(np.median(errors))):.2f}; {inside} of {len(errors)} "
        f"within {WANTED}; order right in {right} of {len(pairs)} pairs that differ by over 20%."
    )


def dram_rows(document: dict) -> list[dict]:
    """Return the counters with the predicted bytes of DRAM, None where there is no prediction."""
    rows = []
    for row in document["counters"]:
        seen = convlab.inspect(
            load(row["kernel"], "sim"), row["problem"], gpu=document["gpu"], engine="sim"
        )
        predicted = seen.predicted and seen.predicted.dram.bytes
        bytes = row.get("dram_bytes") or row["dram_read_bytes"] + row["dram_write_bytes"]
        why = seen.predicted.dram.note if seen.predicted else "; ".join(seen.notes)
        rows.append(row | {"dram_bytes": bytes, "predicted": predicted or None, "why": why})
    return rows


def dram_table(rows: list[dict], source: str) -> str:
    """Return the table of predicted and counted bytes, in Markdown."""

    def shown(value: float | None) -> str:
        digits = ",.0f" if value and value > 1e9 else ",.4g"
        return "-" if value is None else format(value / 1e6, digits)

    lines = [
        "| kernel | problem | predicted, MB | ncu, MB | predicted / ncu | read | written | from |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        off = "-" if row["predicted"] is None else f"{row['predicted'] / row['dram_bytes']:.2f}"
        parts = [shown(row.get(name)) for name in [*DRAM][:2]]
        lines.append(
            f"| {row['kernel']} | {row['problem']} | {shown(row['predicted'])} | "
            f"{shown(row['dram_bytes'])} | {off} | {' | '.join(parts)} | "
            f"{row['date']}, {row['commit']} |"
        )
    known = [row["predicted"] / row["dram_bytes"] for row in rows if row["predicted"] is not None]
    inside = sum(1 / FACTOR < ratio < FACTOR for ratio in known)
    share = f"{inside} of {len(known)} within a factor of {FACTOR}"
    silent = [row["why"] for row in rows if row["predicted"] is None]
    lines += ["", f"{share}; {len(silent)} not predicted. Counters: `{source}`."]
    return "\n".join([*lines, *(f"- {why}" for why in dict.fromkeys(silent))])


def main() -> None:
    """Measure, or print the reports and write them to MODEL.md and DRAM.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measured", nargs="?", type=Path, default=MEASURED)
    parser.add_argument(
        "--measure", action="store_true", help="measure on a GPU and write MEASURED.json"
    )
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="seconds for the counters (default: 40)"
    )
    parser.add_argument("--kernel", action="append", help="this kernel only (default: all rungs)")
    parser.add_argument("--only", choices=("times", "rungs", "dram"))
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="the folder of MODEL.md and DRAM.md"
    )
    given = parser.parse_args()
    if given.measure and given.write:
        parser.error("--measure writes no pages: run it first, then again with --write alone")
    document = {"gpu": device.find_gpu().name, "counters": [], "times": []}
    if given.measured.exists():
        document = json.loads(given.measured.read_text())
    if given.measure:
        names = given.kernel or [path.stem for path in catalog.catalog()]
        document = measured(names, given.only, document, given.seconds)
        given.measured.write_text(json.dumps(document, indent=1))
        return
    source = f"tests/instruments/{given.measured.name}"
    made = {
        "times": lambda: table(points(document), document, source),
        "rungs": lambda: rung_table(rung_points(given.kernel)),
        "dram": lambda: dram_table(dram_rows(document), source),
    }
    for name in (given.only,) if given.only else made:
        text = made[name]()
        print(text)
        if given.write:
            write_between(given.write / PAGES[name], name, text)


if __name__ == "__main__":
    main()
