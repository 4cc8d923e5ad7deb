"""How often is A/B right, on this GPU? Run by hand: ``python -m tests.instruments.calibrate_ab OUT.json``.

Two things are tried, over kernels from a few microseconds to some ten milliseconds, in under four
minutes: A against A, which should be "same" at least 19 times in 20; and a planted slow-down of
0.5, 1, 2 and 5%, of which 2% and more should be seen at least as often. A slow-down is planted with
a spinning kernel (torch.cuda._sleep) after each launch on both sides, which spins longer in B: by
how much is known from the cycles and the clock, and not from what is being calibrated.

Prints a Markdown table and writes all of it as JSON. Exit status 1 if either falls short.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import convlab
from convlab.fast import paired
from convlab.fast.bench import write_between
from convlab.fast.paired import MODES, Until
from convlab.fast.ratio import THRESHOLD
from convlab.machine.clock import Clock
from convlab.run.kernel import resolve
from convlab.run.runnable import Allocate, Launch, Runnable, empty
from convlab.words.problem import Problem

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
SPIN = 2000  # cycles that both sides spin
LIMIT_SECONDS = 3.0  # for a mode
TARGET = THRESHOLD / 2


class Spun(Runnable):
    """A runnable, and a spin of so many cycles after each of its launches."""

    def __init__(self, runnable: Runnable, cycles: int) -> None:
        self.runnable, self.cycles = runnable, cycles
        self.name, self.title, self.engine = runnable.name, runnable.title, runnable.engine
        self.precision, self.device = runnable.precision, runnable.device
        self.format = runnable.format

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Prepare the runnable, and the spin with it."""
        return SpunLaunch(self, self.runnable.prepare(problem, x, w, bias, allocate))


class SpunLaunch(Launch):
    """A launch, and a spin after it."""

    runnable: Spun

    def __init__(self, runnable: Spun, launch: Launch) -> None:
        super().__init__(runnable, launch.problem, launch.inputs)
        self._launch = launch

    def __call__(self) -> None:
        self._launch()
        torch.cuda._sleep(self.runnable.cycles)


def a_against_a(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode of each run, going round the cases until time is up."""
    end, seed = time.monotonic() + seconds, 0
    while True:
        for kernel, problem in CASES:
            if time.monotonic() > end:
                return
            seed += 1
            result = convlab.ab(
                kernel, kernel, problem, seed=seed, limit_seconds=LIMIT_SECONDS, check=False
            )
            for mode in result.modes:
                yield row(kernel, problem, mode, 0.0)


def slowed(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each planted slow-down, going round the cases until time is up."""
    end, seed = time.monotonic() + seconds, 0
    alone: dict[tuple[str, str, str], float] = {}
    while True:
        for kernel, problem in CASES:
            base = Spun(resolve(kernel), SPIN)
            for mode in MODES:
                where = (kernel, problem, mode)
                if where not in alone:
                    found = compared(base, base, problem, mode, seed)
                    alone[where] = statistics.median(found.a_seconds)
                for planted in PLANTED:
                    if time.monotonic() > end:
                        return
                    seed += 1
                    extra = round(planted * alone[where] / seconds_per_cycle())
                    slow = Spun(base.runnable, SPIN + extra)
                    found = compared(base, slow, problem, mode, seed)
                    yield row(kernel, problem, found, planted)


def compared(a: Any, b: Any, problem: str, mode: str, seed: int) -> paired.Paired:
    """Time two in this process: a closure does not travel to a worker."""
    until = Until(TARGET, LIMIT_SECONDS, seed)
    (found,) = paired.measure_pair(a, b, convlab.problem(problem), [mode], until)
    return found


def seconds_per_cycle() -> float:
    """Measure how long a cycle of the spinning kernel is now: two long spins, their difference."""

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


def row(kernel: str, problem: str, found: paired.Paired, planted: float) -> dict[str, Any]:
    """What one run gave, for the JSON file."""
    ratio = found.ratio
    return {
        "kernel": kernel, "problem": problem, "mode": found.mode, "planted": planted,
        "verdict": ratio.verdict(), "ratio": ratio.value, "low": ratio.low, "high": ratio.high,
        "holds": ratio.low <= 1 + planted <= ratio.high, "rounds": ratio.rounds,
        "discarded": found.discarded, "seconds": statistics.median(found.a_seconds),
        "mhz": found.mhz, "method": found.method, "notes": list(found.notes),
    }  # fmt: skip


def tables(rows: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Return Markdown lines, and whether what is asked of A/B holds."""
    lines = [
        "| planted | runs | same | slower | faster | undecided | interval holds it | "
        "ratio, median (least to most) | rounds, median |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for planted in sorted({each["planted"] for each in rows}):
        some = [each for each in rows if each["planted"] == planted]
        shares = {
            name: sum(each["verdict"] == name for each in some) / len(some)
            for name in ("same", "slower", "faster", "undecided")
        }
        good &= planted != 0 or shares["same"] >= 0.95
        good &= planted < 0.02 or shares["slower"] >= 0.95
        ratios = [each["ratio"] for each in some]
        cells = [
            f"{planted:.1%}" if planted else "A against A", len(some),
            *(f"{share:.1%}" for share in shares.values()),
            f"{sum(each['holds'] for each in some) / len(some):.1%}",
            f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})",
            f"{statistics.median(each['rounds'] for each in some):.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| kernel | problem | mode | time, µs | A against A same | 2% seen | "
              "ratio at 2%, median |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for key in dict.fromkeys((r["kernel"], r["problem"], r["mode"]) for r in rows):
        mine = [r for r in rows if (r["kernel"], r["problem"], r["mode"]) == key]
        same = [r["verdict"] == "same" for r in mine if r["planted"] == 0]
        two = [r for r in mine if r["planted"] == 0.02]
        seconds = statistics.median(r["seconds"] for r in mine if r["planted"] == 0 or not same)
        seen = sum(r["verdict"] == "slower" for r in two)
        ratio = f"{statistics.median(r['ratio'] for r in two):.4f}" if two else "-"
        cells = [f"{1e6 * seconds:.4g}", f"{sum(same)} of {len(same)}", f"{seen} of {len(two)}"]
        lines.append(f"| {' | '.join([*key, *cells, ratio])} |")
    return lines, good and bool(rows)


def main() -> int:
    """Calibrate, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=Path, help="where to write all runs")
    parser.add_argument("--seconds", type=float, default=180, help="for both parts together")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the first table between "
                        "the markers of this file")  # fmt: skip
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: nothing to calibrate", file=sys.stderr)
        return 2
    facts = {
        "gpu": str(convlab.machine.device.describe()), "date": datetime.date.today().isoformat(),
        "python": sys.version.split()[0], "nvml": Clock(torch.device("cuda", 0)).missing or "yes",
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    for part in (a_against_a, slowed):
        for each in part(arguments.seconds / 2):
            rows.append(each)
            arguments.json.write_text(json.dumps({**facts, "runs": rows}, indent=1))
    lines, good = tables(rows)
    print(f"{facts['gpu']}; Python {facts['python']}; NVML: {facts['nvml']}; {facts['date']}\n")
    print("\n".join(lines))
    print(f"\n{'holds' if good else 'FALLS SHORT'}: A against A same, and 2% and 5% seen, "
          "each in at least 95% of the runs")  # fmt: skip
    if arguments.write is not None:
        where = f"{facts['gpu']}; {facts['date']}."
        first = lines[: lines.index("")] if "" in lines else lines
        write_between(arguments.write, "calibration", "\n".join([*first, "", where]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
