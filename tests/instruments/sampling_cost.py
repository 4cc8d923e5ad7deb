"""Compare what a sample of the whole problem costs, and counts, with a run of the scaled-down problem.

    python -m tests.instruments.sampling_cost [KERNEL ...] [--problem wide] [--write convlab/profile]

Without a GPU, `compare` checks a kernel on a scaled-down problem, and counts its work on sampled blocks of the
whole one. The table has the seconds of one run of each; both are built already. This needs no GPU, and times
mean something only on a machine without other work.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import convlab
from convlab.core.correctness.report import traffic_bytes
from convlab.core.errors import ConvlabError
from convlab.core.kernel import catalog
from convlab.core.machine.device import find_gpu
from convlab.profile import sampling
from convlab.profile.forecast import counted, described
from tests.instruments.pages import write_between

HEADINGS = "| kernel | scaled run | sample | sample / scaled | traffic, MB | counted on |"


def measured(name: str, problem: convlab.Problem) -> tuple[str, float] | None:
    """Return a line of the table, and the ratio of the times; None if the problem is not supported."""
    gpu = find_gpu("H200")
    kernel = convlab.load(name, engine="sim").on_gpu(gpu)
    asked = problem.computing(kernel.computes)
    if kernel.unsupported(asked):
        return None
    scaled = asked.scaled(kernel.runs_on.macs_in_a_second)
    if kernel.unsupported(scaled):
        return None
    # The first run builds the kernel.
    small = convlab.problem("N=1,C=16,H=12,W=12,K=16,R=3,S=3").computing(kernel.computes)
    sampling.simulate(kernel, small, seed=0)
    seconds = []
    for run in (lambda: sampling.simulate(kernel, scaled, seed=0), lambda: counted(kernel, asked, gpu)):
        started = time.perf_counter()
        counts = run()
        # Source lines are read when they are first asked for.
        _ = counts.lines, counts.executed
        seconds.append(time.perf_counter() - started)
    ratio = seconds[1] / seconds[0]
    traffic = (traffic_bytes(counts.counters) or 0) / 1e6
    line = (
        f"| {name} | {seconds[0]:.2f} s | {seconds[1]:.2f} s | {ratio:.2f} | {traffic:,.0f} | "
        f"{described(counts)} |"
    )
    return line, ratio


def main() -> None:
    """Print the table, and write it to MODEL.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kernels", nargs="*", help="names of rungs (default: all)")
    parser.add_argument("--problem", default="wide")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="the folder of MODEL.md")
    given = parser.parse_args()
    names = given.kernels or [path.stem for path in catalog.catalog()]
    problem = convlab.problem(given.problem)
    lines = [HEADINGS, "|---|---|---|---|---|---|"]
    ratios = []
    for name in names:
        try:
            found = measured(name, problem)
        except ConvlabError as error:
            lines.append(f"| {name} | {str(error).splitlines()[0]} | | | | |")
            continue
        if found is not None:
            lines.append(found[0])
            ratios.append(found[1])
            print(found[0], flush=True)
    cheaper = sum(ratio <= 1 for ratio in ratios)
    command = " ".join(["sampling_cost", *given.kernels])
    lines += [
        "",
        f"On {problem.label}: median ratio {statistics.median(ratios):.2f}, largest {max(ratios):.2f}; at most the "
        f"scaled run's time for {cheaper} of {len(ratios)} kernels. By `python -m tests.instruments.{command}`.",
    ]
    text = "\n".join(lines)
    print(text)
    if given.write:
        write_between(given.write / "MODEL.md", "sampling", text)


if __name__ == "__main__":
    main()
