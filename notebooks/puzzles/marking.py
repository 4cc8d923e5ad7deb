"""Mark a puzzle: fill its gap, run the kernel on the simulator, and compare its counts with par.

A puzzle is a file of this folder, a whole kernel whose gap is between ``// GAP begin`` and ``// GAP end``.
Its header has a task, a problem and a hint. Its par, in `puzzles.json`, has the counts of the reference
solution, which ``python -m tests.instruments.puzzles --write`` computes.
"""

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import convlab
from convlab.core.correctness.report import Report

FOLDER = Path(__file__).parent
PARS = FOLDER.parent / "puzzles.json"
_GAP = re.compile(r"^ *// GAP begin\n(.*?)^ *// GAP end\n", re.MULTILINE | re.DOTALL)
# The result of each puzzle that was marked, by name.
results: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class Puzzle:
    """A puzzle as it is on disk.

    Attributes
    ----------
    name, template : the file's name without its ending, and its text.
    gap : the lines between the two marks, without their indentation.
    task, problem, hint : from the header; `problem` is a specification for `convlab.problem`.
    """

    name: str
    template: str
    gap: str
    task: str
    problem: str
    hint: str

    def filled(self, gap: str) -> str:
        """Return the whole kernel with other lines in the gap."""
        return _GAP.sub(lambda _: gap.rstrip() + "\n", self.template)


def names() -> list[str]:
    """Return the names of all puzzles, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def puzzle(name: str) -> Puzzle:
    """Return a puzzle by its name, such as "01_guard"; raise ValueError if there is none."""
    if name not in names():
        raise ValueError(f"no puzzle is named {name!r}: choose from {', '.join(names())}")
    template = (FOLDER / f"{name}.cu").read_text()
    said = dict(re.findall(r"^// (Task|Problem|Hint): (.*)", template, re.MULTILINE))
    gap = textwrap.dedent(_GAP.search(template)[1]).rstrip()
    return Puzzle(name, template, gap, said["Task"], said["Problem"], said["Hint"])


def counts(report: Report) -> dict[str, int]:
    """Return what a par has: sectors of global memory, wavefronts of shared memory, bank conflicts.

    A bank conflict is a wavefront after the first one of a request. A request of more than 4 bytes for each
    lane needs several wavefronts anyway; these count here, too.
    """
    counted = report.counters
    return {
        "sectors": counted["global_load_sectors"] + counted["global_store_sectors"],
        "wavefronts": counted["shared_wavefronts"],
        "bank conflicts": counted["shared_wavefronts"] - counted["shared_requests"],
    }


def run(name: str, gap: str) -> Report:
    """Run a puzzle on the simulator with these lines in its gap; raise ConvlabError if it fails to run."""
    this = puzzle(name)
    kernel = convlab.compile(this.filled(gap), name=f"puzzle_{name}", engine="sim")
    return convlab.check(kernel, this.problem)


def verdict(name: str, gap: str) -> tuple[str, dict[str, int]]:
    """Return "Solved" or "Not yet" with the reason, and the counts, which are empty if nothing ran."""
    this = puzzle(name)
    hint = f"Hint: {this.hint}"
    if textwrap.dedent(gap).strip() == this.gap.strip():
        return f"Not yet: the gap is as it was. {hint}", {}
    try:
        report = run(name, gap)
    except convlab.errors.ConvlabError as error:
        lines = str(error).splitlines()
        place = [line.strip() for line in lines[1:] if f"puzzle_{name}.cu:" in line][:1]
        return "\n  ".join([f"Not yet: {lines[0]}", *place, hint]), {}
    found = counts(report)
    if not report.ok:
        return f"Not yet: {str(report).splitlines()[0]}\n  {hint}", found
    par = json.loads(PARS.read_text())[name]
    over = [f"{found[key]:,} {key}, par is {par[key]:,}" for key in par if found[key] > par[key]]
    if over:
        return f"Not yet: the result is correct, but {'; '.join(over)}\n  {hint}", found
    below = [f"{found[key]:,} {key}, par was {par[key]:,}" for key in par if found[key] < par[key]]
    better = f" Better than par: {'; '.join(below)}." if below else ""
    return f"Solved: correct, and at par ({par['sectors']:,} sectors).{better}", found


def mark(name: str, gap: str) -> None:
    """Mark a puzzle: print the verdict, and keep it for `table`."""
    text, found = verdict(name, gap)
    results[name] = {"result": text.split(":")[0], **found}
    print(text)


def table() -> pd.DataFrame:
    """Return a row for each puzzle: its result, its counts and its par."""
    pars = json.loads(PARS.read_text())
    rows = []
    for name in names():
        done = results.get(name, {"result": "not marked"})
        par = {f"par: {key}": value for key, value in pars[name].items()}
        rows.append({"puzzle": name, **done, **par})
    return pd.DataFrame(rows).set_index("puzzle").fillna("")
