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
import hashlib
import itertools
import json
import math
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import convlab
from convlab.core.errors import ConvlabError, ProblemError
from convlab.core.kernel import catalog
from convlab.core.machine import device, toolchain
from convlab.core.timing.measure import measure
from convlab.core.timing.sides import build_all
from convlab.profile import ncu
from convlab.profile.forecast import ERRORS, counted, predicted, unknown
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
# Measured when the model's structure was final: all rungs on eight smaller problems, and two sweeps.
LATER = Path(__file__).parent / "measured_later_h200.json"
PACKAGE = Path(convlab.__file__).parent
ALL_ROWS = Path("PREDICTED.md")
KERNELS_PAGE = catalog.KERNEL_DIR / "README.md"
# Tables of that page with a kernel's time: the set of problems, and the GPU.
TABLES = {
    "kernelbench": ("kernelbench", "H200"),
    "kernelbench_bf16": ("kernelbench", "H200"),
    "resnet50": ("resnet50", "H100"),
    "resnet50_bf16": ("resnet50", "H100"),
}
# The times of rungs for gradients, on an H100.
GRADIENTS = Path(__file__).with_name("gradients_h100.json")
# Its sets that were measured when the model's structure was final.
LATER_GRADIENTS = ("resnet50", "depthwise")
RUNG_GRID = [
    (sustained / 100, overlap, pipeline)
    for sustained in range(72, 95, 2)
    for overlap in (1.8, 2.0, 2.5, 3.0, 4.0)
    for pipeline in (1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0)
]
# These rungs and later ones compute tiles of 32 channels or more of one group. On a depthwise problem the
# simulator takes minutes to count them, so their later rows on such problems are left out.
TILES_OF_A_GROUP = "08"
DEPTHWISE = "22"
# The goal for a sweep: the predicted winner's time within this factor of the fastest point's.
CLOSE = 1.1
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


def measured_rows() -> list[dict]:
    """Return all measured times of rungs in the repository: source, kernel, problem, ms, gpu."""
    rows = []

    def add(source: str, gpu: str, kernel: str, problem: str, ms: float) -> None:
        rows.append(
            {"source": source, "gpu": gpu, "kernel": kernel, "problem": problem, "measured_ms": ms}
        )

    for row in json.loads(MEASURED.read_text())["times"]:
        add(MEASURED.name, "H200", row["kernel"], row["problem"], row["measured_ms"])
    for row in json.loads(RUNGS.read_text())["rows"]:
        if ":" not in row["kernel"] and row["time_ms"]:
            add(RUNGS.name, "H200", row["kernel"], row["problem"], row["time_ms"])
    names = {path.stem for path in catalog.catalog()}
    text = KERNELS_PAGE.read_text()
    for table, (set_name, gpu) in TABLES.items():
        body = text.partition(f"<!-- {table}: begin -->")[2].partition("<!-- ")[0]
        for line in body.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) > 4 and cells[2] in names:
                add(table, gpu, cells[2], f"{set_name}.{cells[0]}", float(cells[3]))
    gradients = json.loads(GRADIENTS.read_text())["rows"]
    for of_class in gradients["backward"].values():
        for label, row in of_class.items():
            for kernel, ms in row["rungs"].items():
                add("gradients", "H100", kernel, label.partition(",")[0], ms)
    for name in LATER_GRADIENTS:
        for of_class in gradients[name].values():
            for row in of_class.values():
                spec = row["spec"].rpartition(" ")[0]
                for kernel, ms in row["rungs"].items():
                    if _is_counted(kernel, spec):
                        add("gradients, later", "H100", kernel, spec, ms)
    later = json.loads(LATER.read_text())
    for kind in ("times", "sweeps"):
        for row in later[kind]:
            if _is_counted(row["kernel"], row["problem"]):
                source = f"{LATER.name}, {kind}"
                add(source, "H200", row["kernel"], row["problem"], row["measured_ms"])
    unique = {(row["source"], row["kernel"], row["problem"]): row for row in rows}
    return list(unique.values())


def _is_counted(kernel: str, spec: str) -> bool:
    """Return whether the simulator counts a rung on a problem within a minute."""
    if convlab.problem(spec).groups == 1:
        return True
    return kernel < TILES_OF_A_GROUP or kernel.startswith(DEPTHWISE)


def rung_points(
    names: list[str] | None = None, seconds_left: float = math.inf
) -> tuple[pd.DataFrame, int]:
    """Predict all measured times of rungs; return the rows, and how many there was no time for.

    Counts of the same code are read from the cache: the simulator takes most of the time.
    """
    rows = [row for row in measured_rows() if not names or row["kernel"] in names]
    root = toolchain.cache_dir() / "counted"
    root.mkdir(exist_ok=True)
    code = hashlib.sha256()
    counting = [*PACKAGE.glob("sim/**/*.*"), PACKAGE / "profile" / "sampling.py"]
    for path in sorted([*counting, *catalog.KERNEL_DIR.glob("*.cuh")]):
        if path.suffix != ".pyc":
            code.update(path.read_bytes())
    ends = time.monotonic() + seconds_left
    calls = []
    left = 0
    for row in rows:
        kernel = convlab.load(row["kernel"], engine="sim")
        asked = convlab.problem(row["problem"]).computing(kernel.computes)
        digest = code.copy()
        for text in (kernel.source, str(kernel.defines), str(asked), asked.computes):
            digest.update(text.encode())
        name = f"{kernel.name.partition('@')[0]}-{digest.hexdigest()[:20]}"
        gpu = device.find_gpu(row["gpu"])
        calls.append((row, kernel, asked, gpu, root / f"{name}.pickle"))
        if calls[-1][-1].exists():
            continue
        if time.monotonic() > ends:
            left += 1
            continue
        _save_counts(*calls[-1][1:])
    found = []
    for row, kernel, asked, gpu, saved in [] if left else calls:
        counts = pickle.loads(saved.read_bytes())
        try:
            if isinstance(counts, str):
                raise ProblemError(counts)
            prediction = predicted(kernel, asked, gpu, SavedCounts(**counts))
        except ConvlabError as error:
            print(f"{kernel.name}, {asked.label}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        # The family: 01 for 01b_register_channels. Its rungs share code.
        family = row["kernel"][:2]
        more = {"label": asked.label, "family": family, "parts": prediction.parts}
        more |= {"group": prediction.group, "unknown": unknown(kernel, asked, prediction)}
        found.append({**row, **more})
    return pd.DataFrame(found), left


@dataclass(frozen=True)
class SavedCounts:
    """The counts of a run that a prediction reads; see `convlab.profile.sampling.Counts`."""

    counters: dict
    launches: list
    lines: list
    executed: dict
    reaches: list
    sampling: dict | None
    flops: float | None
    lines_by_call: list
    reached: set
    accesses: tuple = ()
    findings: tuple = ()
    complete: bool = True


def _save_counts(
    kernel: convlab.Kernel, asked: convlab.Problem, gpu: device.Gpu, saved: Path
) -> None:
    """Count a kernel's work, and write the counts to a file, or why there are none."""
    started = time.perf_counter()
    try:
        of = counted(kernel, asked, gpu)
        counts = SavedCounts(
            dict(of.counters),
            list(of.launches),
            list(of.lines),
            {file: dict(lines) for file, lines in of.executed.items()},
            list(of.reaches),
            of.sampling,
            of.flops,
            list(of.lines_by_call),
            set(of.reached),
        )
        saved.write_bytes(pickle.dumps(vars(counts)))
    except ConvlabError as error:
        saved.write_bytes(pickle.dumps(str(error).splitlines()[0]))
    seconds = time.perf_counter() - started
    print(f"{kernel.name}, {asked.label}: {seconds:.1f} s", file=sys.stderr)


def rung_table(points: pd.DataFrame, page: Path | None = None) -> str:
    """Return the report on all measured times, in Markdown; write all rows to a page."""
    # What the model does not know is not predicted for users, and not part of its errors.
    unknown_rows = list(points[points["unknown"] != ""].itertuples())
    rows = list(points[points["unknown"] == ""].itertuples())
    # errors[constants][row]: the logarithm of predicted over measured time.
    errors = np.array([[_error(row, constants) for row in rows] for constants in RUNG_GRID])
    now = RUNG_GRID.index((SUSTAINED, OVERLAP, PIPELINE_OVERLAP))
    is_later = np.array([row.source.startswith(LATER.name) for row in rows])
    is_gradient = np.array([row.source == "gradients" for row in rows])
    is_later_gradient = np.array([row.source == "gradients, later" for row in rows])
    earlier = ~is_later & ~is_gradient & ~is_later_gradient
    fitted = _best(errors[:, earlier])
    families = np.array([row.family for row in rows])
    apart = np.zeros(len(rows))
    constants_of = {}
    for family in sorted(set(families)):
        of_it = families == family
        constants = _best(errors[:, ~of_it])
        constants_of[family] = RUNG_GRID[constants]
        apart[of_it] = errors[constants, of_it]
    lines = [
        "| rows | constants | rows | median error | largest | within 1.25 | within 1.6 | pairs in order |",
        "|---|---|---|---|---|---|---|---|",
    ]
    everything = np.ones(len(rows), dtype=bool)
    lines += [
        _line("all", "as in time_model.py", rows, errors[now], everything),
        _line("all", "each family of rungs by the others", rows, apart, everything),
        _line("measured earlier", "as in time_model.py", rows, errors[now], earlier),
        _line("measured later", "as in time_model.py", rows, errors[now], is_later),
        _line("measured later", "fitted to the earlier rows", rows, errors[fitted], is_later),
        _line("gradients, on an H100", "as in time_model.py", rows, errors[now], is_gradient),
        _line(
            "gradients, measured later", "as in time_model.py", rows, errors[now], is_later_gradient
        ),
        _line(
            "gradients, measured later",
            "fitted to the earlier rows",
            rows,
            errors[fitted],
            is_later_gradient,
        ),
    ]
    groups = _known_errors([row.group for row in rows], apart)
    lines += [
        "",
        "By the units that do most of the work, each family by the others:",
        "",
        "| units | rows | median error | 9 of 10 within | largest |",
        "|---|---|---|---|---|",
    ]
    for group, known in groups.items():
        cells = (f"{known[name]:.2f}" for name in ("median", "nine_of_ten", "largest"))
        lines.append(f"| {group} | {known['rows']} | {' | '.join(cells)} |")
    lines += [
        "",
        "Each family by the others, and its largest error:",
        "",
        "| family | constants of the others: sustained, overlap, pipeline | rows | median error | largest | at |",
        "|---|---|---|---|---|---|",
    ]
    for family, constants in constants_of.items():
        numbers = np.flatnonzero(families == family)
        worst = max(numbers, key=lambda number: abs(apart[number]))
        median = math.exp(float(np.median(abs(apart[numbers]))))
        lines.append(
            f"| {family} | {', '.join(f'{value:g}' for value in constants)} | {len(numbers)} | "
            f"{median:.2f} | {math.exp(abs(apart[worst])):.2f} | "
            f"{rows[worst].kernel}, {rows[worst].label} |"
        )
    missed = [
        f"| {row.kernel} | {row.label} | {row.measured_ms * math.exp(error):.3g} | "
        f"{row.measured_ms:.3g} ms | {math.exp(error):.2f} |"
        for row, error in zip(rows, apart, strict=True)
        if abs(error) > math.log(WANTED)
    ]
    if missed:
        lines += [
            "",
            f"Kept apart and not within a factor of {WANTED}:",
            "",
            "| kernel | problem | predicted | measured | ratio |",
            "|---|---|---|---|---|",
            *missed,
        ]
    if unknown_rows:
        lines += [
            "",
            "Not shown to users, and not counted above: the model does not know these kernels.",
            "",
            "| kernel | problem | predicted | measured | ratio |",
            "|---|---|---|---|---|",
        ]
    for row in unknown_rows:
        ratio = math.exp(_error(row, RUNG_GRID[now]))
        lines.append(
            f"| {row.kernel} | {row.label} | {row.measured_ms * ratio:.3g} | {row.measured_ms:.3g} ms | "
            f"{ratio:.2f} |"
        )
    lines += ["", _far_apart(rows, errors[now], groups), "", *_winners(rows, errors[now])]
    if page:
        ERRORS.write_text(json.dumps(groups, indent=1) + "\n")
        write_between(
            page, "predicted", _all_rows(rows, errors[now], apart, is_later | is_later_gradient)
        )
    lines += ["", f"All rows: [{ALL_ROWS.name}]({ALL_ROWS.name}). By "]
    lines[-1] += (
        "`python -m tests.instruments.calibrate_model --only rungs --write convlab/profile`."
    )
    return "\n".join(lines)


def _known_errors(groups: list[str], errors: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the number of rows and the errors, as factors, of each group of kernels."""
    known = {}
    for group in sorted(set(groups)):
        of = abs(errors[[each == group for each in groups]])
        known[group] = {
            "rows": len(of),
            "median": round(math.exp(float(np.median(of))), 2),
            "nine_of_ten": round(math.exp(float(np.quantile(of, 0.9))), 2),
            "largest": round(math.exp(float(of.max())), 2),
        }
    return known


def _error(row: object, constants: tuple[float, float, float]) -> float:
    """Return the logarithm of predicted over measured time."""
    return math.log(1e3 * sum(part.time(*constants) for part in row.parts) / row.measured_ms)


def _best(errors: np.ndarray) -> int:
    """Return the number of the constants with the smallest mean squared error."""
    return int((errors**2).mean(axis=1).argmin())


def _line(name: str, constants: str, rows: list, errors: np.ndarray, chosen: np.ndarray) -> str:
    """Return a row of the summary: errors, and pairs of kernels in the right order."""
    of = abs(errors[chosen])
    right = 0
    pairs = 0
    for a, b in _pairs(rows, np.flatnonzero(chosen)):
        truth = math.log(rows[a].measured_ms / rows[b].measured_ms)
        if abs(truth) > math.log(APART):
            pairs += 1
            right += (truth + errors[a] - errors[b] > 0) == (truth > 0)
    within = [f"{(of < math.log(factor)).sum()}" for factor in (1.25, WANTED)]
    return (
        f"| {name} | {constants} | {len(of)} | {math.exp(float(np.median(of))):.2f} | "
        f"{math.exp(of.max()):.2f} | {' | '.join(within)} | {right} of {pairs} = {right / max(pairs, 1):.1%} |"
    )


def _pairs(rows: list, numbers: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs of rows that were measured together on one problem."""
    groups: dict[tuple, list[int]] = {}
    for number in numbers:
        groups.setdefault((rows[number].source, rows[number].label), []).append(number)
    return [pair for group in groups.values() for pair in itertools.combinations(group, 2)]


def _far_apart(rows: list, errors: np.ndarray, groups: dict[str, dict[str, float]]) -> str:
    """Return a line: how often the order is right where `ab` predicts which kernel is faster."""
    right = 0
    pairs = 0
    for a, b in _pairs(rows, np.arange(len(rows))):
        truth = math.log(rows[a].measured_ms / rows[b].measured_ms)
        predicted = truth + errors[a] - errors[b]
        known = max(groups[rows[each].group]["nine_of_ten"] for each in (a, b))
        if abs(predicted) > math.log(known):
            pairs += 1
            right += (predicted > 0) == (truth > 0)
    return (
        "`ab` says which kernel is predicted faster if the times differ by more than the larger error of the "
        f"two kinds (9 of 10 within): the order is right in {right} of {pairs} such pairs."
    )


def _winners(rows: list, errors: np.ndarray) -> list[str]:
    """Return a table of the sweeps: the point that is predicted fastest, next to the fastest one."""
    sweeps: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        if row.source == f"{LATER.name}, sweeps":
            sweeps.setdefault((row.kernel.partition("@")[0], row.label), []).append(number)
    lines = [
        "| sweep | problem | points | predicted winner | its time | fastest | its time | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    close = 0
    for (kernel, label), numbers in sweeps.items():
        chosen = min(numbers, key=lambda n: rows[n].measured_ms * math.exp(errors[n]))
        fastest = min(numbers, key=lambda n: rows[n].measured_ms)
        ratio = rows[chosen].measured_ms / rows[fastest].measured_ms
        close += ratio < CLOSE
        cells = []
        for number in (chosen, fastest):
            tunables = rows[number].kernel.partition("@")[2]
            cells += [f"`{tunables}`", f"{rows[number].measured_ms:.3g} ms"]
        lines.append(f"| {kernel} | {label} | {len(numbers)} | {' | '.join(cells)} | {ratio:.2f} |")
    share = f"In {close} of {len(sweeps)} sweeps the predicted winner is within 10% of the fastest."
    return [share, "", *lines]


def _all_rows(rows: list, errors: np.ndarray, apart: np.ndarray, is_later: np.ndarray) -> str:
    """Return a table of all rows, in Markdown."""
    lines = [
        "| kernel | problem | GPU | measured | predicted | ratio | kept apart | from |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, error, other, later in zip(rows, errors, apart, is_later, strict=True):
        mark = f"{math.exp(other):.2f}{', later' if later else ''}"
        lines.append(
            f"| {row.kernel} | {row.label} | {row.gpu} | {row.measured_ms:.4g} ms | "
            f"{row.measured_ms * math.exp(error):.4g} ms | {math.exp(error):.2f} | {mark} | {row.source} |"
        )
    return "\n".join(lines)


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
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="with --only rungs: count no further rows after this long, and keep the counts",
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

    def rungs() -> str:
        found, left = rung_points(given.kernel, 60 * given.minutes)
        if left:
            sys.exit(f"{left} rows are not counted yet: run the same command again")
        return rung_table(found, given.write and given.write / ALL_ROWS.name)

    made = {
        "times": lambda: table(points(document), document, source),
        "rungs": rungs,
        "dram": lambda: dram_table(dram_rows(document), source),
    }
    for name in (given.only,) if given.only else made:
        text = made[name]()
        print(text)
        if given.write:
            write_between(given.write / PAGES[name], name, text)


if __name__ == "__main__":
    main()
