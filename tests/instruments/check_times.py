"""Measure the time of the default check on the simulator, for each rung.

    python -m tests.instruments.check_times [RUNG...] [--cold]

Prints a Markdown table: the seconds that you wait, and the seconds that all processes of the check compute
(user and system time, on all cores). On a busy machine only the second column has a meaning; on two idle cores
the first one is about half of it. Builds are in the cache, unless you give --cold.
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


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rungs", nargs="*", help="names of kernels (default: all)")
    parser.add_argument("--cold", action="store_true", help="with an empty cache for each rung")
    given = parser.parse_args(arguments)
    rungs = given.rungs or [path.stem for path in catalog.catalog()]
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
