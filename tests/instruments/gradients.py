"""Time the rungs for gradients next to cuDNN, and write their tables into kernels/README.md.

    python -m tests.instruments.gradients measure FILE.json                       on a GPU
    python -m tests.instruments.gradients measure FILE.json --set resnet50 --class tf32
    python -m tests.instruments.gradients counters FILE.json                      on a GPU with ncu
    python -m tests.instruments.gradients write kernels/README.md                 anywhere

"measure" checks and times every rung that supports a problem, except the two that are the formula as
loops, next to cuDNN with inputs in NCHW and in channels_last. It writes the file after each problem, and
skips what the file has: you can interrupt it and run it again. "counters" reads hardware counters of the
fastest rung of each headline gradient in the file, again only of those that have none. "write" makes the
tables from the file in the repository, ``tests/instruments/gradients_h100.json``: copy a file of one GPU
there.
"""

import argparse
import datetime
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from convlab.core.errors import ConvlabError
from convlab.core.kernel.catalog import catalog
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.machine.device import describe
from convlab.core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from convlab.core.problem.named import problem, problems
from convlab.core.problem.problem import Problem
from convlab.core.show.table import short
from convlab.core.timing.compare import compare
from convlab.nn.choice import CLASSES as CHOICES
from convlab.nn.choice import best
from tests.instruments import bars
from tests.instruments.pages import laid, write_between

MEASURED = Path(__file__).with_name("gradients_h100.json")
CLASSES = ("tf32", "fp32", "bf16")
# The formula as loops: a headline problem takes them up to a second, and others are faster.
SLOW = ("18_data_gradient", "19_weight_gradient")
# Of the convolutions, those that may be fastest on one dimension.
FORWARD = ("05_async_gemm", "11_wgmma_tf32", "12_wgmma_vector_reads", "13_wgmma_3xtf32")
# The depthwise layers of MobileNetV2 at 224x224, with 32 images: one for each size and stride.
MOBILENET = {
    "112": "N32 C32 H112 W112 K32 R3 S3 p1 g32",
    "112_s2": "N32 C96 H112 W112 K96 R3 S3 s2 p1 g96",
    "56": "N32 C144 H56 W56 K144 R3 S3 p1 g144",
    "56_s2": "N32 C144 H56 W56 K144 R3 S3 s2 p1 g144",
    "28": "N32 C192 H28 W28 K192 R3 S3 p1 g192",
    "14": "N32 C384 H14 W14 K384 R3 S3 p1 g384",
    "7": "N32 C960 H7 W7 K960 R3 S3 p1 g960",
}
# The sets, in the order of the page, and the classes that each is timed in.
SETS = {
    "backward": CLASSES,
    "transposed": ("tf32", "fp32"),
    "1d": ("tf32", "fp32"),
    "depthwise": ("fp32",),
    "resnet50": ("tf32", "bf16"),
}
_GRADIENTS = {"data": DATA_GRADIENT.name, "weight": WEIGHT_GRADIENT.name}
# Seconds that timing one kernel on one problem takes.
_SECONDS = 0.3


def problems_of(name: str) -> Iterator[tuple[str, Problem]]:
    """Yield the problems of one of `SETS`, each with its label in the table."""
    if name == "backward":
        for each in problems("backward"):
            yield _own(each).replace("_", ", "), each
    elif name == "transposed":
        for each in problems("kernelbench_transposed"):
            yield _own(each), each
    elif name == "1d":
        # Their forward pass is no gradient, but the suite's other convolutions of one dimension.
        for each in problems("kernelbench_1d"):
            yield _own(each), each
    else:
        for label, each in _layers(name):
            for gradient, computes in _GRADIENTS.items():
                yield f"{label}, {gradient}", each.computing(computes)


def _layers(name: str) -> Iterator[tuple[str, Problem]]:
    """Yield the convolutions whose two gradients a set has."""
    if name == "resnet50":
        for each in problems("resnet50"):
            yield _own(each), each
        return
    for each in problems("kernelbench"):
        if each.groups > 1:
            yield f"KernelBench {_own(each).partition('_')[0]}", each
    for label, spec in MOBILENET.items():
        yield f"MobileNetV2 {label}", problem(spec)


def _own(each: Problem) -> str:
    return each.name.partition(".")[2]


def rungs_for(asked: Problem, precision: str) -> list[Kernel]:
    """Return the rungs that a problem may be computed with in a class, on NCHW."""
    found = []
    for path in catalog():
        kernel = load(path, engine="cuda")
        layouts = kernel.format.x.layout, kernel.format.y.layout
        if kernel.computes != asked.computes or kernel.precision != precision:
            continue
        left_out = kernel.name in SLOW
        if kernel.computes == "forward":
            left_out = kernel.name not in FORWARD
        if left_out or "NHWC" in layouts or kernel.unsupported(asked):
            continue
        found.append(kernel)
    return found


def measure_one(asked: Problem, precision: str) -> dict[str, Any]:
    """Check and time the rungs of a class and cuDNN on one problem; return a row of the file."""
    cudnn = f"cudnn:{precision}"
    row: dict[str, Any] = {"spec": str(asked), "rungs": {}, "failures": {}}
    rungs = rungs_for(asked, precision)
    if not rungs:
        rungs = [cudnn]
    result = compare(
        rungs,
        asked,
        engine="cuda",
        scale=None,
        baselines=[cudnn, f"{cudnn}:channels_last"],
        limit_seconds=_SECONDS,
        progress=False,
    )
    for each in result.frame.itertuples():
        if each.correct is not True:
            row["failures"][each.kernel] = each.note
        elif each.kernel == cudnn:
            row["cudnn_ms"] = each.time_ms
        elif each.kernel.startswith("cudnn:"):
            row["channels_last_ms"] = each.time_ms
        else:
            row["rungs"][each.kernel] = each.time_ms
    mhz = result.frame["mhz"]
    row["mhz"] = [float(mhz.min()), float(mhz.max())]
    return row


def measure(file: Path, sets: Sequence[str], classes: Sequence[str], seconds: float) -> None:
    """Measure what the file does not have, and write the file after each problem.

    Nothing is begun after so many seconds.
    """
    started = time.perf_counter()
    kept = json.loads(file.read_text()) if file.exists() else {}
    for name in sets:
        for precision in SETS[name]:
            if precision not in classes:
                continue
            rows = kept.setdefault("rows", {}).setdefault(name, {}).setdefault(precision, {})
            for label, asked in problems_of(name):
                if label in rows or time.perf_counter() - started > seconds:
                    continue
                try:
                    rows[label] = measure_one(asked, precision)
                except ConvlabError as error:
                    print(f"{name} {precision} {label}: {error}", file=sys.stderr)
                    continue
                finally:
                    torch.cuda.empty_cache()
                made = f"{describe()}; {datetime.date.today()}"
                kept.setdefault("made", {}).setdefault(name, {})[precision] = made
                file.write_text(json.dumps(kept, indent=1) + "\n")
                print(name, precision, label, _line(rows[label]), flush=True)


def count(file: Path, classes: Sequence[str]) -> None:
    """Count, under ncu, what the fastest rungs for the headline gradients do, and write it to the file."""
    kept = json.loads(file.read_text())
    posed = dict(problems_of("backward"))
    rows = [
        (precision, label, row)
        for precision in classes
        for label, row in kept["rows"].get("backward", {}).get(precision, {}).items()
        if row["rungs"] and "counters" not in row
    ]
    rungs = [fastest(row)[0] for _, _, row in rows]
    asked = [posed[label] for _, label, _ in rows]
    for (precision, label, row), counters in zip(rows, bars.counted(rungs, asked), strict=True):
        print(precision, label, fastest(row)[0], counters, flush=True)
        if "TB/s" not in counters:
            continue
        row["counters"] = counters
        file.write_text(json.dumps(kept, indent=1) + "\n")


def counter_table(kept: dict[str, Any]) -> str:
    """Return the table of hardware counters; "" if the file has none."""
    lines = [
        {"problem": label, "class": precision, "rung": fastest(row)[0]} | row["counters"]
        for precision, rows in kept["rows"]["backward"].items()
        for label, row in rows.items()
        if "counters" in row
    ]
    return laid(pd.DataFrame(lines)) if lines else ""


def _line(row: dict[str, Any]) -> str:
    best, time_ms = fastest(row)
    failed = f", {len(row['failures'])} failed" if row["failures"] else ""
    return f"cuDNN {short(row.get('cudnn_ms', math.nan))} ms, {best} {short(time_ms)} ms{failed}"


def fastest(row: dict[str, Any]) -> tuple[str, float]:
    """Return the name and the time of a row's fastest rung; "-" and NaN if there is none."""
    if not row["rungs"]:
        return "-", math.nan
    name = min(row["rungs"], key=row["rungs"].get)
    return name, row["rungs"][name]


def table(rows: dict[str, Any]) -> pd.DataFrame:
    """Return a class's table of a set: the fastest rung of each problem next to cuDNN."""
    lines = []
    for label, row in rows.items():
        name, time_ms = fastest(row)
        cudnn = row.get("cudnn_ms", math.nan)
        beside = row.get("channels_last_ms", math.nan)
        lines.append(
            {
                "problem": label,
                "cuDNN": short(cudnn),
                "channels_last": short(beside),
                "rung": name,
                "ms": "-" if math.isnan(time_ms) else short(time_ms),
                "times cuDNN": _ratio(cudnn / time_ms),
                "times its better layout": _ratio(min(cudnn, beside) / time_ms),
            }
        )
    return pd.DataFrame(lines)


def _ratio(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}"


def summary(rows: dict[str, Any]) -> str:
    """Return the geometric mean of a class's ratios to cuDNN on NCHW, where cuDNN is taken if nothing
    is faster."""
    ratios = []
    for row in rows.values():
        ratio = row.get("cudnn_ms", math.nan) / fastest(row)[1]
        ratios.append(max(ratio, 1.0) if not math.isnan(ratio) else 1.0)
    faster = sum(ratio > 1 for ratio in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    means = f"The geometric mean is **{mean:.2f} times** cuDNN's speed on NCHW"
    if faster == len(rows):
        return f"a rung is faster than cuDNN on all {len(rows)} problems. {means}."
    return (
        f"a rung is faster than cuDNN on {faster} of {len(rows)} problems. {means}, "
        "if cuDNN is taken for the others."
    )


def by_rule(name: str, precision: str, rows: dict[str, Any]) -> str:
    """Return what `convlab.best` takes of a class's rows, as a sentence; "" if that is no rung.

    On the H200, which it knows by name, it takes the same as on the H100, which was measured.
    """
    if precision not in CHOICES:
        return ""
    ratios = []
    for label, asked in problems_of(name):
        chosen = best(asked, precision, gpu="H200").name
        if label in rows and chosen in rows[label]["rungs"]:
            ratios.append(rows[label]["cudnn_ms"] / rows[label]["rungs"][chosen])
    if not ratios:
        return ""
    mean = math.exp(sum(map(math.log, ratios)) / len(rows))
    return (
        f' `kernel="auto"` takes rungs on {len(ratios)} (the slowest at {min(ratios):.2f} times) and '
        f"cuDNN on the others: {mean:.2f} times."
    )


def markdown(kept: dict[str, Any], name: str) -> str:
    """Return the tables of a set, one for each class, and the conditions."""
    parts = []
    for precision in SETS[name]:
        measured = kept["rows"][name].get(precision, {})
        rows = {label: measured[label] for label, _ in problems_of(name) if label in measured}
        if rows:
            # The forward pass is chosen by other tables.
            rule = "" if name == "1d" else by_rule(name, precision, rows)
            parts += [f"In {precision}, {summary(rows)}{rule}", laid(table(rows))]
    clocks = [
        mhz for rows in kept["rows"][name].values() for row in rows.values() for mhz in row["mhz"]
    ]
    if name == "backward" and counter_table(kept):
        parts += [
            "Hardware counters in percent of the GPU's peak, of each rung's longest launch:",
            counter_table(kept),
        ]
    parts.append(
        "Median times in ms, with a cold L2 cache, inputs in NCHW, cuDNN in benchmark mode. "
        f"SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz; {conditions(kept['made'][name])}."
    )
    return "\n\n".join(parts)


def conditions(made: dict[str, str]) -> str:
    """Return the GPU, versions and day of a set's classes, once if they are the same."""
    if len(set(made.values())) == 1:
        return next(iter(made.values()))
    return "; ".join(f"in {precision}: {each}" for precision, each in made.items())


def write(page: Path) -> None:
    """Write the tables of all measured sets into a page."""
    kept = json.loads(MEASURED.read_text())
    for name in kept["rows"]:
        write_between(page, f"gradients_{name}", markdown(kept, name))


def main(words: Sequence[str]) -> None:
    """Measure, count, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("measure", "counters", "write"))
    parser.add_argument("file", type=Path, help="what to measure into, or the page to write")
    parser.add_argument("--set", dest="sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--class", dest="classes", nargs="+", choices=CLASSES, default=CLASSES)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after them")
    options = parser.parse_args(words)
    if options.action == "write":
        write(options.file)
        return
    if not torch.cuda.is_available():
        parser.error("times are measured on an NVIDIA GPU, and torch sees none")
    if options.action == "counters":
        count(options.file, options.classes)
        return
    measure(options.file, options.sets, options.classes, options.seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
