"""Compare the rungs on tensor cores with the goals that were set before they were written.

    python -m tests.instruments.bars [--write tests/instruments/bars.md]

A goal is a multiple of cuDNN's speed in the same precision class: on NCHW, and in bf16 on the faster of NCHW
and channels_last. The page shows the fastest correct rung for each goal, and its hardware counters. Needs a
Hopper GPU and ncu, and takes about three minutes.
"""

import argparse
import datetime
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from convlab.core.kernel.kernel import load
from convlab.core.machine.device import describe
from convlab.core.problem.named import problem
from convlab.core.problem.problem import Problem
from convlab.core.show.table import short
from convlab.core.timing.compare import compare
from convlab.profile import ncu
from tests.instruments import roles
from tests.instruments.pages import laid, write_between

# Seconds of measurement for a kernel on a problem.
_SECONDS = 0.5
_TF32 = ("11_wgmma_tf32", "11b_wgmma_rows", "12_wgmma_vector_reads")
_STEM = ("14_stem_tf32",)
_FP32 = ("13_wgmma_3xtf32",)
_BF16 = ("15_wgmma_bf16", "15c_wgmma_rows_bf16")
# A column's name, and ncu's metric: percent of the GPU's peak.
COUNTERS = {
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "of it wgmma": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}


@dataclass(frozen=True)
class Bar:
    """A goal: at least `least` times as fast as cuDNN on a problem, with one of the rungs."""

    label: str
    problem: str
    precision: str
    least: float
    rungs: tuple[str, ...]


BARS = (
    Bar("square", "square", "tf32", 2.0, _TF32),
    Bar("rect", "rect", "tf32", 1.9, _TF32),
    Bar("wide", "wide", "tf32", 2.0, _TF32),
    Bar("kernelbench 56", "kernelbench.56_asymmetric_input_asymmetric_filter", "tf32", 1.7, _TF32),
    Bar("kernelbench 80", "kernelbench.80_dilated_padded", "tf32", 1.9, _TF32),
    Bar("kernelbench 50", "kernelbench.50_alexnet", "tf32", 4.0, _STEM),
    Bar("3x3, 56²", "N=32,C=64,H=56,W=56,K=64,R=3,S=3,padding=1", "tf32", 1.5, _TF32),
    Bar("stem 7x7", "N=32,C=3,H=224,W=224,K=64,R=7,S=7,stride=2,padding=3", "tf32", 3.0, _STEM),
    Bar("square", "square", "fp32", 2.7, _FP32),
    Bar("rect", "rect", "fp32", 4.0, _FP32),
    Bar("wide", "wide", "fp32", 2.4, _FP32),
    Bar("square", "square", "bf16", 1.3, _BF16),
    Bar("rect", "rect", "bf16", 1.3, _BF16),
    Bar("wide", "wide", "bf16", 1.3, _BF16),
)


def measured() -> Iterator[dict[str, Any]]:
    """Yield a row for each goal: the fastest correct rung, and cuDNN in both layouts."""
    for bar in BARS:
        cudnn = f"cudnn:{bar.precision}"
        found = compare(
            bar.rungs,
            bar.problem,
            engine="cuda",
            scale=None,
            limit_seconds=_SECONDS,
            baselines=[cudnn, f"{cudnn}:channels_last"],
            progress=False,
        )
        rows = found.frame.set_index("kernel")
        own = rows.loc[[name for name in bar.rungs if rows["correct"][name]]].dropna(
            subset="time_ms"
        )
        rung = own["time_ms"].idxmin()
        ms = own["time_ms"].min()
        both = rows["time_ms"][cudnn], rows["time_ms"][f"{cudnn}:channels_last"]
        times = (min(both) if bar.precision == "bf16" else both[0]) / ms
        yield {
            "problem": bar.label,
            "class": bar.precision,
            "rung": rung,
            "ms": short(ms),
            "error": f"{rows['error'][rung]:.1e}",
            "cuDNN": short(both[0]),
            "channels_last": short(both[1]),
            "times": f"{times:.2f}",
            "goal": f"{bar.least:.1f}",
            "": "reached" if times >= bar.least else "missed",
        }


def counted(rungs: list[str], posed: list[Problem]) -> Iterator[dict[str, Any]]:
    """Yield the counters of each rung on its problem, for its longest launch."""
    calls = [(load(rung, engine="cuda"), each) for rung, each in zip(rungs, posed, strict=True)]
    known = ("dram_read_bytes", "dram_write_bytes", "nanoseconds")
    metrics = COUNTERS | {name: ncu.METRICS[name] for name in known}
    for frame in ncu.profile_each(calls, metrics):
        # It failed under ncu, and the reason was reported.
        if frame.empty:
            yield dict.fromkeys(f"{name} %" for name in COUNTERS)
            continue
        row = frame.loc[frame["nanoseconds"].idxmax()]
        moved = row["dram_read_bytes"] + row["dram_write_bytes"]
        yield {f"{name} %": f"{row[name]:.0f}" for name in COUNTERS} | {
            "DRAM, GB": short(moved / 1e9),
            "TB/s": f"{moved / row['nanoseconds'] / 1e3:.2f}",
        }


def printed(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Print each row and yield it, so that a later failure does not lose minutes of work."""
    for row in rows:
        print(row, file=sys.stderr, flush=True)
        yield row


def page() -> str:
    """Return the page's tables: the goals, the counters, and what the warps wait for."""
    bars = pd.DataFrame(printed(measured()))
    posed = [problem(bar.problem) for bar in BARS]
    named = bars[["problem", "class", "rung"]]
    counters = named.join(pd.DataFrame(counted(list(bars["rung"]), posed)))
    waits = [
        {"class": bar.precision} | roles.cycles(rung, bar.problem)
        for bar, rung in zip(BARS, bars["rung"], strict=True)
        if rung in roles.KERNELS and bar.problem in ("square", "wide")
    ]
    made = f"{describe()}; {datetime.date.today()}, by `python -m {__spec__.name}`."
    return "\n".join(
        [
            "Median times in ms with a cold L2. `times`: times as fast as cuDNN; `goal`: the least that was wanted.",
            "",
            laid(bars),
            "",
            "Hardware counters, in percent of the GPU's peak over the whole launch.",
            "",
            laid(counters),
            "",
            "Clock cycles per tile: of a consumer's warp, and, in the last column, of a loader's warp.",
            "",
            laid(pd.DataFrame(waits)),
            "",
            made,
        ]
    )


def main() -> None:
    """Measure, count, print, and write the page if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the tables between the markers of this page",
    )
    asked = parser.parse_args()
    text = page()
    print(text)
    if asked.write is not None:
        write_between(asked.write, "bars", text)


if __name__ == "__main__":
    main()
