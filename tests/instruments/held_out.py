"""Check kernels that somebody else wrote, and count how many verdicts are true.

    python -m tests.instruments.held_out FOLDER --results RESULTS [--minutes N] [--write PAGE]
    python -m tests.instruments.held_out FOLDER --results RESULTS --engine cuda --processes 8

FOLDER has ``.cu`` files and an INDEX.csv: for each file its name, whether it is correct or incorrect, and a class.
Or it has folders ``wrong`` and ``right``, and each file's first line is ``// expect: wrong: CLASS``. Then copies
without this line, with names that say nothing, and their index are written to RESULTS/kernels first.
Each file is checked in a process of its own, in an order that a seed determines: on the simulator, or with ``--engine
cuda`` on the GPU with the simulator beside it, as ``check`` does there by default. The index is read only afterwards. RESULTS gets a JSON file for each kernel; one that has it, for the same text, is not checked again. So the
work can be done in parts. The kernels stay outside of the repository.
"""

from __future__ import annotations

import argparse
import collections
import csv
import hashlib
import json
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.instruments import pages

SEED = 27
# The most seconds for one file; a longer check counts as out of time.
SECONDS = 900
# The outcome of each exit status; see EVIDENCE.md.
OUTCOMES = {
    0: "correct",
    1: "incorrect",
    3: "unsupported",
    4: "not simulated",
    5: "out of time",
    6: "not run",
}


def digest(path: Path) -> str:
    """Return what identifies the text of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def stripped(folder: Path, to: Path) -> Path:
    """Write copies of the files in ``wrong`` and ``right`` without their first lines, with an index."""
    to.mkdir(parents=True, exist_ok=True)
    paths = sorted([*folder.glob("wrong/*.cu"), *folder.glob("right/*.cu")])
    random.Random(SEED).shuffle(paths)
    rows = [("file", "truth", "class", "original")]
    for number, path in enumerate(paths):
        first, _, rest = path.read_text().partition("\n")
        what = first.partition("expect:")[2].partition(":")[2].strip()
        if not what:
            raise SystemExit(f"{path} does not begin with a line // expect: wrong: CLASS")
        name = f"h{number:03}.cu"
        (to / name).write_text(rest)
        truth = "incorrect" if path.parent.name == "wrong" else "correct"
        rows.append((name, truth, what, f"{path.parent.name}/{path.name}"))
    with (to / "INDEX.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return to


def checked(path: Path, engine: str) -> dict[str, Any]:
    """Check one file; return its exit status, the time in seconds, and the report."""
    command = [sys.executable, "-m", "convlab", "check", str(path), "--engine", engine, "--json"]
    started = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        status, report = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        status, report = 5, ""
    seconds = time.time() - started
    return {"digest": digest(path), "rc": status, "seconds": seconds, "stdout": report}


def check_all(
    folder: Path, results: Path, minutes: float, engine: str = "sim", processes: int = 1
) -> None:
    """Check the files that have no result yet, until the time is up."""
    results.mkdir(parents=True, exist_ok=True)
    paths = sorted(folder.glob("*.cu"))
    random.Random(SEED).shuffle(paths)
    ends = time.time() + 60 * minutes

    def check_one(path: Path) -> None:
        to = results / f"{path.stem}.json"
        if to.exists() and json.loads(to.read_text()).get("digest") == digest(path):
            return
        if time.time() > ends:
            return
        result = checked(path, engine)
        to.write_text(json.dumps(result))
        print(path.stem, result["rc"], f"{result['seconds']:.0f} s", flush=True)

    with ThreadPoolExecutor(processes) as pool:
        # A list, so that an error in one of them is raised here.
        list(pool.map(check_one, paths))


def table(folder: Path, results: Path) -> str:
    """Return the counts of verdicts, and a row for each that is not true."""
    with (folder / "INDEX.csv").open(newline="") as file:
        truths = {Path(row[0]).stem: row[1:] for row in list(csv.reader(file))[1:]}
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    others = []
    for name, (truth, kind, *_) in sorted(truths.items()):
        path = results / f"{name}.json"
        if not path.exists():
            continue
        status = json.loads(path.read_text())["rc"]
        outcome = OUTCOMES.get(status, f"exit status {status}")
        counts[truth, outcome] += 1
        if outcome != truth:
            others.append(f"| {name} | {truth} | {kind} | {outcome} |")
    lines = ["| kernels | judged | correct | incorrect | other |", "|---|---:|---:|---:|---:|"]
    for truth in ("correct", "incorrect"):
        judged = sum(n for (each, _), n in counts.items() if each == truth)
        right, wrong = counts[truth, "correct"], counts[truth, "incorrect"]
        lines.append(f"| {truth} | {judged} | {right} | {wrong} | {judged - right - wrong} |")
    lines += ["", f"Judged: {counts.total()} of {len(truths)}, in the order of seed {SEED}."]
    if others:
        lines += [
            "",
            "| not judged truly | it is | class | verdict |",
            "|---|---|---|---|",
            *others,
        ]
    return "\n".join(lines)


def main() -> None:
    """Check the kernels, and print the table or write it to a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="a folder for the results")
    parser.add_argument("--minutes", type=float, default=600, help="begin no check after this time")
    parser.add_argument("--engine", choices=("sim", "cuda"), default="sim")
    parser.add_argument("--processes", type=int, default=1, help="files at a time")
    parser.add_argument("--write", type=Path, help="a page with <!-- held-out: begin -->")
    given = parser.parse_args()
    if given.write:
        # A page without markers fails now, not after the work.
        pages.between(given.write, "held-out")
    folder = given.folder
    if (folder / "wrong").is_dir():
        folder = stripped(folder, given.results / "kernels")
    check_all(folder, given.results, given.minutes, given.engine, given.processes)
    text = table(folder, given.results)
    print(text)
    if given.write:
        pages.write_between(given.write, "held-out", text)


if __name__ == "__main__":
    main()
