"""Measure the time of the default check, for each rung.

    python -m tests.instruments.check_times [RUNG...] [--cold]
    python -m tests.instruments.check_times [RUNG...] --engine cuda

Prints a Markdown table. On the simulator: the seconds that you wait, and the seconds that all processes of the check
compute (user and system time, on all cores). On a busy machine only the second column has a meaning; on two idle
cores the first one is about half of it. Builds are in the cache, unless you give --cold.

On a GPU: the seconds of three checks in one process. The first one starts the worker process, and has no simulator
beside it. The second one has, and the third one has again.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import convlab
from convlab.core.kernel import catalog
from convlab.strict import nvcc_report

# The limits of the first column on two idle cores, in seconds.
LIMIT = 30
LIMITS = {"13_wgmma_3xtf32": 45, "14b_stem_3xtf32": 45}


def computed() -> float:
    """Return the seconds that processes started here have computed, if they have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def build(rung: str) -> None:
    """Build a rung as a check does: for the simulator with and without counts, and by nvcc."""
    kernel = convlab.load(rung, engine="sim")
    kernel.build()
    kernel.uncounted().build()
    nvcc_report.nvcc_report(kernel)


def check(rung: str) -> tuple[float, float, str]:
    """Check a rung in a process of its own; return both times, and the result's first line."""
    command = [sys.executable, "-m", "convlab", "check", rung, "--engine", "sim"]
    before = computed()
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    waited = time.perf_counter() - started
    lines = (done.stdout + done.stderr).splitlines()
    return waited, computed() - before, lines[0] if lines else f"exit status {done.returncode}"


# What a process does on a GPU: three checks of one rung.
_ON_GPU = """
import sys, time, convlab
kernel = convlab.load(sys.argv[1])
times = []
for simulate in (False, True, True):
    started = time.perf_counter()
    result = convlab.check(kernel, progress=False, simulate=simulate)
    times.append(f"{time.perf_counter() - started:.1f}")
print(*times, sep=" | ", end=" | ")
print(result.sentence.splitlines()[0])
"""


def on_gpu(rungs: list[str]) -> None:
    """Print the table for a GPU."""
    print("| rung | first check | with the simulator | again | result |\n|---|---:|---:|---:|---|")
    for rung in rungs:
        convlab.load(rung).build()
        build(rung)
        command = [sys.executable, "-c", _ON_GPU, rung]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        line = (done.stdout or done.stderr).splitlines()
        print(f"| {rung} | {line[-1] if line else done.returncode} |", flush=True)


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rungs", nargs="*", help="names of kernels (default: all)")
    parser.add_argument("--cold", action="store_true", help="with an empty cache for each rung")
    parser.add_argument("--engine", choices=("sim", "cuda"), default="sim")
    given = parser.parse_args(arguments)
    if given.cold and given.engine == "cuda":
        parser.error("--cold is for the simulator: on a GPU the builds are in the cache")
    rungs = given.rungs or [path.stem for path in catalog.catalog()]
    if given.engine == "cuda":
        on_gpu(rungs)
        return 0
    print("| rung | seconds | computed seconds | limit | result |\n|---|---:|---:|---:|---|")
    for rung in rungs:
        if given.cold:
            with tempfile.TemporaryDirectory() as cache:
                os.environ["CONVLAB_CACHE"] = cache
                waited, worked, result = check(rung)
        else:
            build(rung)
            waited, worked, result = check(rung)
        limit = LIMITS.get(rung, LIMIT)
        print(f"| {rung} | {waited:.1f} | {worked:.1f} | {limit} | {result} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
