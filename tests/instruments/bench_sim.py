"""Measure the simulator's speed, next to a plain compiled loop nest.

    python -m tests.instruments.bench_sim [PROBLEM] [--write convlab/sim/HOW_IT_WORKS.md]

Prints a Markdown table. For each rung it has the seconds without counters and checks (``trace=False``), the
seconds with them, how many times the loop nest's time that is, and the seconds of the build. The loop nest
runs on one core, compiled by g++ -O2.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import convlab
from convlab.core.correctness import reference
from convlab.sim import library
from tests.instruments import pages

# 18.9 million multiply-adds.
PROBLEM = "N=1,C=16,H=66,W=66,K=32,R=3,S=3"
RUNGS = ("01_direct", "02_im2col_gemm", "03_smem_tile")
REPEATS = 5
LOOPS = """
extern "C" void loops(const float* x, const float* w, float* y, int N, int C, int H, int W, int K,
                      int R, int S) {
    int P = H - R + 1, Q = W - S + 1;
    for (int n = 0; n < N; ++n)
        for (int k = 0; k < K; ++k)
            for (int p = 0; p < P; ++p)
                for (int q = 0; q < Q; ++q) {
                    float sum = 0;
                    for (int c = 0; c < C; ++c)
                        for (int r = 0; r < R; ++r)
                            for (int s = 0; s < S; ++s)
                                sum += x[((n * C + c) * H + p + r) * W + q + s] *
                                       w[((k * C + c) * R + r) * S + s];
                    y[((n * K + k) * P + p) * Q + q] = sum;
                }
}
"""


def best(run: Callable[[], object]) -> float:
    """Return the time of the fastest of several runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def loops(problem: convlab.Problem) -> float:
    """Return the loop nest's seconds; the problem has no padding, stride, dilation or groups."""
    x, w, *_ = reference.inputs(problem, 0, "cpu")
    y = x.new_empty(problem.y_shape)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "loops.cpp")
        library = Path(folder, "loops.so")
        source.write_text(LOOPS)
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
        entry = ctypes.CDLL(str(library)).loops
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, w, y)]
        sizes = [problem.N, problem.C, problem.H, problem.W, problem.K, problem.R, problem.S]
        return best(lambda: entry(*pointers, *sizes))


def simulated(rung: str, problem: convlab.Problem, trace: bool) -> tuple[float, float]:
    """Return the seconds of a run and of the build, 0 for a build from the cache."""
    kernel = convlab.load(rung, engine="sim", trace=trace)
    built = kernel.build().seconds
    launch = kernel.prepare(problem, *reference.inputs(problem, 0, "cpu")[:2])

    def run() -> None:
        # The first schedule of threads, each time.
        launch._runs = 0
        launch()

    run()
    return best(run), built


def main(arguments: list[str]) -> int:
    """Print the table, and write it to a page if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problem", nargs="?", default=PROBLEM, type=convlab.problem)
    parser.add_argument("--write", type=Path, help="a file with <!-- speed: begin -->")
    given = parser.parse_args(arguments)
    problem = convlab.problem(given.problem)
    if given.write:
        # A page without markers fails now, not after the work.
        pages.between(given.write, "speed")
    with tempfile.TemporaryDirectory() as cache:
        # An empty cache, so that builds are measured.
        os.environ["CONVLAB_CACHE"] = cache
        library.runtime()
        plain = loops(problem)
        rows = [
            "| rung | without counters, s | with counters, s | times plain loops | build, s |",
            "|---|---:|---:|---:|---:|",
        ]
        for rung in RUNGS:
            bare, _ = simulated(rung, problem, trace=False)
            full, built = simulated(rung, problem, trace=True)
            rows.append(f"| {rung} | {bare:.3f} | {full:.3f} | {full / plain:.1f} | {built:.2f} |")
    rows += [
        "",
        f"{problem.macs / 1e6:.1f} M multiply-adds ({problem}), {os.cpu_count()} cores "
        f"({_processor()}), best of {REPEATS}; plain loops on one core: {plain:.3f} s. "
        f"{datetime.date.today()}, by `python -m tests.instruments.bench_sim --write convlab/sim/HOW_IT_WORKS.md`.",
    ]
    print("\n".join(rows))
    if given.write:
        pages.write_between(given.write, "speed", "\n".join(rows))
    return 0


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
