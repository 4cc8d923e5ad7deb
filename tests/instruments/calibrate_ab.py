"""Measure how often A/B gives the correct verdict on this GPU.

    python -m tests.instruments.calibrate_ab OUT.json [--runs N] [--seconds S] [--write PAGE]

Two things are measured, on kernels from a few microseconds to about ten milliseconds:

- A against A. At least 97% of the verdicts must be "same".
- B slower than A by a known share: 0.5, 1, 2 or 5%. At least 95% of the verdicts must be "slower" for 2 and 5%.

Of 100 intervals, at least 93 must contain the known ratio. To slow B down, both sides run a spinning kernel
(torch.cuda._sleep) after each launch, and B's spins longer. The extra time follows from the cycles and the
clock, not from what is being calibrated.

Prints Markdown tables and writes all runs as JSON. If OUT.json exists and is of the same GPU, new runs with
new seeds are added to it, so you can split the work: ``--runs 40 --seconds 150``. On an H200, 100 intervals of
either part take about eight minutes. Without a GPU, the tables of OUT.json are printed again. The exit status
is 1 if a requirement is not met.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import convlab
from convlab.core.defaults import MODES, THRESHOLD
from convlab.core.kernel.kernel import resolve
from convlab.core.kernel.runnable import Allocate, Launch, Runnable, empty
from convlab.core.machine.clock import Clock
from convlab.core.problem.problem import Problem
from convlab.core.timing import ab_timing
from convlab.core.timing.ab import PLACES
from convlab.core.timing.ab_timing import RoundOptions
from tests.instruments.pages import laid, write_between

CASES = (
    ("01_direct", "N=1,C=32,H=14,W=14,K=32,R=1,S=1"),
    ("cudnn:tf32", "N=1,C=64,H=28,W=28,K=64,R=3,S=3,padding=1"),
    ("03_smem_tile", "N=8,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
    ("cudnn:fp32", "N=32,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
    ("02_im2col_gemm", "N=32,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
    ("cudnn:tf32", "square"),
    ("03_smem_tile", "N=2,C=64,H=512,W=1024,K=128,R=3,S=3"),
)
PLANTED = (0.005, 0.01, 0.02, 0.05)
# Cycles that both sides spin, about 20 microseconds. By then all work of the kernel should be over, such as
# writing y from the L2 to DRAM. With 2,000 cycles the ratios were off by up to 0.009.
SPIN = 40_000
# For one mode.
LIMIT_SECONDS = 3.0
TARGET = THRESHOLD / 2


class Spun(Runnable):
    """A runnable with a spin of `cycles` clock cycles after each launch."""

    def __init__(self, runnable: Runnable, cycles: int) -> None:
        self.runnable = runnable
        self.cycles = cycles
        self.name = runnable.name
        self.title = runnable.title
        self.engine = runnable.engine
        self.precision = runnable.precision
        self.device = runnable.device
        self.format = runnable.format

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Prepare the runnable with its spin."""
        return SpunLaunch(self, self.runnable.prepare(problem, x, w, bias, allocate))


class SpunLaunch(Launch):
    """A launch with a spin after it."""

    runnable: Spun
    y = property(lambda self: self._launch.y)
    plan = property(lambda self: self._launch.plan)

    def __init__(self, runnable: Spun, launch: Launch) -> None:
        super().__init__(runnable, launch.problem, launch.inputs)
        self._launch = launch

    def __call__(self) -> None:
        self._launch()
        torch.cuda._sleep(self.runnable.cycles)


def a_against_a(seconds: float, rows: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode of each run of A against A, until the time is over.

    `rows` is the number of rows from earlier runs; cases and seeds go on after them.
    """
    end = time.monotonic() + seconds
    before = rows // len(MODES)
    cases = itertools.islice(itertools.cycle(CASES), before, None)
    for seed, (kernel, problem) in enumerate(cases, before + 1):
        if time.monotonic() > end:
            return
        result = convlab.ab(
            kernel, kernel, problem, seed=seed, limit_seconds=LIMIT_SECONDS, check=False
        )
        for mode in result.modes:
            yield row(kernel, problem, mode, 0.0)


def slowed(seconds: float, rows: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a row for each run with a slower B; arguments as for `a_against_a`."""
    end = time.monotonic() + seconds
    alone: dict[tuple[str, str, str], float] = {}
    places = [(kernel, problem, mode) for kernel, problem in CASES for mode in MODES]
    cases = itertools.islice(itertools.cycle(itertools.product(places, PLANTED)), rows, None)
    for seed, (where, planted) in enumerate(cases, rows):
        if time.monotonic() > end:
            return
        kernel, problem, mode = where
        base = Spun(resolve(kernel), SPIN)
        if where not in alone:
            alone[where], _ = compared(base, base, problem, mode, seed).seconds
        extra = round(planted * alone[where] / seconds_per_cycle())
        found = compared(base, Spun(base.runnable, SPIN + extra), problem, mode, seed + 1)
        yield row(kernel, problem, found, planted)


def compared(a: Any, b: Any, problem: str, mode: str, seed: int) -> ab_timing.Paired:
    """Time two runnables in this process, as pickle cannot send a `Spun` to a worker."""
    options = RoundOptions(TARGET, LIMIT_SECONDS, seed, trusted=True, places=PLACES)
    (found,) = ab_timing.measure_pair(a, b, convlab.problem(problem), [mode], options)
    return found


def seconds_per_cycle() -> float:
    """Return the seconds per cycle of the spinning kernel, from the difference of two long spins."""

    def spun(cycles: int) -> float:
        taken = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) / 1e3)
        return statistics.median(taken)

    return (spun(3_000_000) - spun(1_000_000)) / 2_000_000


def row(kernel: str, problem: str, found: ab_timing.Paired, planted: float) -> dict[str, Any]:
    """Return the results of one run, for the JSON file."""
    ratio = found.ratio
    return {
        "kernel": kernel,
        "problem": problem,
        "mode": found.mode,
        "planted": planted,
        "verdict": ratio.verdict(),
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "holds": ratio.low <= 1 + planted <= ratio.high,
        "rounds": ratio.rounds,
        "discarded": found.discarded,
        "seconds": found.seconds[0],
        "mhz": found.mhz,
        "method": found.method,
        "notes": list(found.notes),
    }


def tables(rows: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Return the tables as lines of Markdown, and whether all requirements are met."""
    runs = pd.DataFrame(rows)
    good = len(runs) < 100 or runs.holds.mean() >= 0.93
    verdicts = ["same", "slower", "faster", "undecided"]
    shares = []
    lines = []
    for planted, some in runs.groupby("planted"):
        share = {word: (some.verdict == word).mean() for word in verdicts}
        good &= planted != 0 or share["same"] >= 0.97
        good &= len(some) < 100 or some.holds.mean() >= 0.93
        good &= planted < 0.02 or share["slower"] >= 0.95
        ratio = some.ratio
        shares.append(
            {
                "planted": f"{planted:.1%}" if planted else "A against A",
                "runs": str(len(some)),
                **{word: f"{part:.1%}" for word, part in share.items()},
                "interval contains it": f"{some.holds.mean():.1%}",
                "ratio, median (smallest to largest)": f"{ratio.median():.4f} ({ratio.min():.4f} to {ratio.max():.4f})",
                "rounds, median": f"{some.rounds.median():.0f}",
            }
        )
    for (kernel, problem, mode), mine in runs.groupby(["kernel", "problem", "mode"], sort=False):
        same = mine[mine.planted == 0]
        two = mine[mine.planted == 0.02]
        alone = same if len(same) else mine
        lines.append(
            {
                "kernel": kernel,
                "problem": problem,
                "mode": mode,
                "time, µs": f"{1e6 * alone.seconds.median():.4g}",
                "A against A same": f"{(same.verdict == 'same').sum()} of {len(same)}",
                "2% detected": f"{(two.verdict == 'slower').sum()} of {len(two)}",
                "ratio at 2%, median": f"{two.ratio.median():.4f}" if len(two) else "-",
            }
        )
    first, second = (laid(pd.DataFrame(each)) for each in (shares, lines))
    return [*first.split("\n"), "", *second.split("\n")], good


def main() -> int:
    """Calibrate, print, and write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=Path, help="the file with all runs")
    parser.add_argument(
        "--seconds", type=float, default=180, help="seconds for both parts together (default: 180)"
    )
    parser.add_argument("--runs", type=int, help="at most this many intervals of either part")
    parser.add_argument("--part", choices=("same", "planted"), help="only one of the two parts")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the first table between the markers of this page",
    )
    arguments = parser.parse_args()
    saved = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"runs": []}
    rows: list[dict[str, Any]] = saved.pop("runs")
    if torch.cuda.is_available():
        facts = {
            "gpu": str(convlab.core.machine.device.describe()),
            "date": datetime.date.today().isoformat(),
            "python": sys.version.split()[0],
            "nvml": Clock(torch.device("cuda", 0)).missing or "yes",
        }
        if saved and saved["gpu"] != facts["gpu"]:
            parser.error(
                f"{arguments.json} has runs of another GPU, {saved['gpu']}: name another file"
            )
    elif rows:
        # Only print the tables again.
        facts = saved
        arguments.runs = 0
    else:
        print("no GPU, and no runs in the file: run this on a GPU", file=sys.stderr)
        return 2
    same = sum(row["planted"] == 0 for row in rows)
    parts = {"same": (a_against_a, same), "planted": (slowed, len(rows) - same)}
    asked = [arguments.part] if arguments.part else list(parts)
    for part, before in map(parts.get, asked):
        for each in itertools.islice(part(arguments.seconds / len(asked), before), arguments.runs):
            rows.append(each)
            arguments.json.write_text(json.dumps({**facts, "runs": rows}, indent=1))
    if not rows:
        parser.error(f"no run ended within {arguments.seconds:g} s: give more --seconds")
    print(f"{sum(row['holds'] for row in rows)} of {len(rows)} intervals contain the known ratio")
    lines, good = tables(rows)
    print(f"{facts['gpu']}; Python {facts['python']}; NVML: {facts['nvml']}; {facts['date']}\n")
    print("\n".join(lines))
    print(
        f"\n{'met' if good else 'NOT MET'}: A against A is the same in 97% of the runs, 2% and 5% "
        "are detected in 95%, and 93% of the intervals contain the known ratio"
    )
    if arguments.write is not None:
        where = f"{facts['gpu']}; {facts['date']}."
        first = lines[: lines.index("")]
        write_between(arguments.write, "calibration", "\n".join([*first, "", where]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
