"""Check kernels again and again: is the report the same each time?

    python -m tests.instruments.same_reports [--runs 30] [--load 6] [--only NAME] [--rows FILE] [--write PAGE]

Checks each of 20 kernels on three problems, alone and next to processes that keep the cores busy: rungs, planted
races, and correct kernels that store an output twice, use atomics or wait for other blocks. Prints how many different
reports there are. A report is its whole text without times: the verdict, the findings, and their source lines.

With --rows, each result is added to a JSON file, and a kernel that is in it does not run again. So the work can be
done in parts, with the same --runs and --load.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import convlab
from convlab.core.errors import LaunchError
from tests.instruments import pages, planted
from tests.strangers import PARTS, PLAIN, SOURCE
from tests.suites import FOLDER, parted

RUNGS = (
    "01_direct",
    "02_im2col_gemm",
    "03_smem_tile",
    "04_implicit_gemm",
    "05_async_gemm",
    "06_depthwise",
    "08_winograd",
    "10_mma_tf32",
    "11_wgmma_tf32",
    "13_wgmma_3xtf32",
)
PLANTED = (
    "01_added_without_atomics",
    "01_threads_share_output",
    "02_no_barrier_before",
    "02_no_barrier_after",
)
WAITING = {name: parts["first"] for name, (_, parts) in parted("strangers", "waiting").items()}
# Each thread adds half of its output to two outputs; the last block to arrive adds nothing more.
HALVES = {
    "header": "// atomics: yes",
    "host": "cudaMemsetAsync(y, 0, sizeof(float) * d.N * d.K * d.P * d.Q, stream);",
    "last": "atomicAdd(&out[idx], sum / 2); atomicAdd(&out[idx], sum / 2); return;",
}
# Threads of all blocks count outputs in two words, and read the count without an order.
COUNTED = {
    "first": "unsigned* flags = (unsigned*)ws; if (flags[0] < 1u + idx) atomicMax(flags, 1u + (unsigned)idx);",
    "workspace": "CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 4; }",
    "host": "cudaMemsetAsync(workspace, 0, 4, stream);",
}
PROBLEMS = ("awkward.everything", "awkward.primes")
_TIMES = re.compile(r"\b\d+(\.\d+)? ?(s|ms|µs|us)\b")


def stranger(name: str, **parts: str) -> Callable[[], convlab.Kernel]:
    """Return what builds the textbook kernel with some of its parts replaced."""
    return lambda: convlab.compile(SOURCE % (PARTS | parts), name=name, engine="sim")


def kernels() -> dict[str, Callable[[], convlab.Kernel]]:
    """Return what builds each kernel, by name."""
    found: dict[str, Callable[[], convlab.Kernel]] = {}
    for rung in RUNGS:
        found[rung] = lambda rung=rung: convlab.load(rung, engine="sim")
    mutants = {mutant.name: mutant for mutant in (*planted.DIRECT, *planted.GEMM)}
    for name in PLANTED:
        text = mutants[name].source
        found[name] = lambda text=text, name=name: convlab.compile(text, name=name, engine="sim")
    waits = {"workspace": COUNTED["workspace"], "host": COUNTED["host"]}
    for name, first in WAITING.items():
        found[name] = stranger(name, first=f"unsigned* flags = (unsigned*)ws; {first}", **waits)
    found["shifted"] = lambda: convlab.load(FOLDER / "shifted.cu", engine="sim")
    found["halves_by_atomics"] = stranger("halves_by_atomics", **HALVES)
    found["guarded_count"] = stranger("guarded_count", **COUNTED)
    return found


def report(kernel: convlab.Kernel) -> str:
    """Return the text of a check on three problems, without times."""
    texts = []
    for problem in (*PROBLEMS, PLAIN):
        if kernel.unsupported(convlab.problem(problem)):
            continue
        try:
            texts.append(str(convlab.check(kernel, problem)))
        except LaunchError as error:
            texts.append(f"incorrect: {error}")
    return _TIMES.sub("TIME", "\n".join(texts))


def _busy() -> None:
    while True:
        pass


def distinct(kernel: convlab.Kernel, runs: int, load: int) -> tuple[int, str]:
    """Return the number of different reports of some runs next to busy processes, and one report."""
    others = [multiprocessing.Process(target=_busy, daemon=True) for _ in range(load)]
    for other in others:
        other.start()
    try:
        reports = [report(kernel) for _ in range(runs)]
    finally:
        for other in others:
            other.kill()
            other.join()
    return len(set(reports)), reports[0]


def main() -> int:
    """Print the table, and write it to a page if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--load", type=int, default=6, help="busy processes (default: 6)")
    parser.add_argument("--only", default="", help="run only kernels with this text in their names")
    parser.add_argument("--write", type=Path, help="a page with <!-- reports: begin -->")
    parser.add_argument("--rows", type=Path, help="a JSON file of results, to work in parts")
    given = parser.parse_args()
    if given.write:
        # A page without markers fails now, not after the work.
        pages.between(given.write, "reports")
    setting = {"runs": given.runs, "load": given.load}
    done = {"setting": setting, "rows": {}}
    if given.rows and given.rows.exists():
        done = json.loads(given.rows.read_text())
        if done["setting"] != setting:
            raise SystemExit(f"{given.rows} has results of {done['setting']}, not of {setting}")
    for name, build in kernels().items():
        if given.only in name and name not in done["rows"]:
            done["rows"][name] = measured(build(), given.runs, given.load)
            print(name, done["rows"][name], flush=True)
            if given.rows:
                given.rows.write_text(json.dumps(done))
    text = table(done["rows"], given.runs, given.load)
    print(text)
    if given.write:
        pages.write_between(given.write, "reports", text)
    return 0 if all(row["same"] for row in done["rows"].values()) else 1


def measured(kernel: convlab.Kernel, runs: int, load: int) -> dict[str, Any]:
    """Return the verdict of a kernel, and the numbers of different reports, alone and under load."""
    alone, first = distinct(kernel, runs, 0)
    loaded, second = distinct(kernel, runs, load)
    return {
        "verdict": "incorrect" if "incorrect" in first else "correct",
        "alone": alone,
        "loaded": loaded,
        "same": alone == loaded == 1 and first == second,
    }


def table(rows: dict[str, dict[str, Any]], runs: int, load: int) -> str:
    """Return the table of all kernels."""
    lines = [
        "| kernel | verdict | different reports, alone | under load |",
        "|---|---|---:|---:|",
        *(
            f"| `{name}` | {row['verdict']} | {row['alone']} | {row['loaded']} |"
            for name, row in rows.items()
        ),
        "",
        f"{runs} runs of each alone, and {runs} next to {load} busy processes.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
