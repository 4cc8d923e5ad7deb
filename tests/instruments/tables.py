"""The tables that README publishes of the kernels: their costs, and the ladder itself.

    python -m tests.instruments.tables README.md > notebooks/h200.json           # costs, and the ladder
    python -m tests.instruments.tables README.md --set kernelbench > rows.json   # beside cuDNN

The headline's are all kernels; the other sets', kernelbench and resnet50, what `convlab.best` takes,
beside cuDNN, and with ``--compiled FOLDER`` beside torch.compile, which takes minutes a problem: what is
measured is kept in the folder, for another sitting. The rows are printed as JSON. On a GPU; without
one, the headline's simulated traffic.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import pandas as pd
import torch

from convlab.core.kernel import catalog
from convlab.core.machine.device import describe
from convlab.core.problem.named import problems
from convlab.core.timing.compare import compare
from convlab.core.timing.comparison import Comparisons
from tests.instruments.pages import between, laid, write_between
from tests.instruments.versus import Versus, apart, versus

_SECONDS = 1.5  # measured of a kernel on a problem of the headline: all rungs in some three minutes


def markdown(results: Comparisons | Versus) -> str:
    """The results as a Markdown table, with what it says and where it was made below."""
    if isinstance(results, Versus):
        (table,) = results.tables
        said = "\n".join(f"- {line}" for line in results.summary)
        note = (
            "Median times in ms, the L2 cold: of the kernel that `convlab.best` takes, and of cuDNN in "
            "the same class, inputs NCHW and already channels_last. The ratio is cuDNN's time on NCHW "
            "to the kernel's, 1 by definition where that is cuDNN."
        )
        made = f"{results.notes[-1]}; {_made(describe())}"
        return f"{laid(pd.DataFrame(table.cells))}\n\n{said}\n\n{note} {made}"
    timed = "time_ms" in results[0].frame
    unit = "Median time" if timed else "Simulated global traffic"
    where = describe() if timed else "the simulator"
    table = laid(pd.DataFrame(results.matrix("title").cells))
    return f"{table}\n\n{unit}, and its multiple of the floor. {_made(where)}"


def _made(where: object) -> str:
    return f"{where}; torch {torch.__version__}; {datetime.date.today()}."


def ladder() -> str:
    """The catalog as a Markdown table: one row for each rung."""
    lines = ["| rung | idea | class |", "|---|---|---|"]
    for path in catalog.catalog():
        header = catalog.parse_header(path.read_text(), path)
        rung = f"[`{path.stem}`](kernels/{path.name})"
        lines.append(f"| {rung} | {header.idea} | {header.precision} |")
    return "\n".join(lines)


def publish(path: Path, name: str, results: Comparisons | Versus) -> None:
    """Write a set's table into a file, with the headline's the ladder, and print the rows."""
    for marker in _markers(name):
        write_between(path, marker, ladder() if marker == "ladder" else markdown(results))
    print(json.dumps(results.to_dict(), indent=1))


def _markers(name: str) -> list[str]:
    return ["bench", "ladder"] if name == "headline" else [name]


def main(words: list[str]) -> None:
    """Compare, write the tables into a file, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", type=Path, metavar="FILE", help="that has the markers")
    parser.add_argument(
        "--set", choices=("headline", "kernelbench", "resnet50"), default="headline"
    )
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="minutes a problem")
    asked = parser.parse_args(words)
    if asked.compiled and asked.set == "headline":
        parser.error("--compiled belongs to --set kernelbench and --set resnet50")
    for marker in _markers(asked.set):
        between(asked.path, marker)  # looked for before the work, not after it
    if asked.set == "headline":
        results = compare("all", "headline", limit_seconds=_SECONDS)
    elif asked.compiled:
        results = apart(problems(asked.set), asked.compiled)
    else:
        results = versus(problems(asked.set))
    publish(asked.path, asked.set, results)


if __name__ == "__main__":
    main(sys.argv[1:])
