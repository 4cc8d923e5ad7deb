"""Judge answers whose truth is known, and count how often `adopt` is right.

    python -m tests.instruments.adopted                    the strangers' answers, on this machine
    python -m tests.instruments.adopted --judged FILE      read a report of `adopt ... --json` instead
    python -m tests.instruments.adopted --write convlab/EVIDENCE.md

``tests/adopt/strangers`` has 26 answers, written by somebody who had not read convlab's code. In its INDEX.csv,
`verdict` is the truth, and `first` is what `adopt` said of them before anything was mended.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd

from tests.instruments.pages import laid, write_between

FOLDER = Path(__file__).parents[1] / "adopt" / "strangers"
_HEADINGS = ("answers", "number", "called correct", "called incorrect", "not judged")


def index() -> dict[str, dict[str, str]]:
    """Return the rows of INDEX.csv by the name of the answer."""
    with (FOLDER / "INDEX.csv").open(newline="") as file:
        return {Path(row["file"]).stem: row for row in csv.DictReader(file)}


def judged(file: Path | None) -> dict[str, str]:
    """Return the outcome of each answer, from a report or from the command ``adopt``."""
    if file is None:
        words = [sys.executable, "-m", "convlab", "adopt", str(FOLDER), "--json"]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        document = json.loads(done.stdout)
    else:
        document = json.loads(file.read_text())
    return {each["kernel"]: each["outcome"] for each in document["answers"]}


def table(rows: dict[str, dict[str, str]], outcomes: dict[str, str], engine: str) -> str:
    """Return how many right and wrong answers were called what, at first and now."""
    lines = []
    for verdict, name in (("correct", "right"), ("incorrect", "with a planted mistake")):
        names = [each for each, row in rows.items() if row["verdict"] == verdict]
        first = Counter(rows[each]["first"] for each in names)
        now = Counter(outcomes[each] for each in names)
        for counted, when in ((first, "before mending"), (now, f"now, on the {engine}")):
            known = counted["correct"] + counted["incorrect"]
            lines.append(
                (
                    f"{name}, {when}",
                    len(names),
                    counted["correct"],
                    counted["incorrect"],
                    len(names) - known,
                )
            )
    return laid(pd.DataFrame(lines, columns=[*_HEADINGS]))


def main() -> None:
    """Judge, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--judged", type=Path, help="a report of `adopt ... --json` on these answers"
    )
    parser.add_argument("--engine", default="simulator", help="where the report was made")
    parser.add_argument("--write", type=Path, help="the page that has the table between its marks")
    asked = parser.parse_args()
    rows = index()
    outcomes = judged(asked.judged)
    text = table(rows, outcomes, asked.engine)
    print(text)
    for name, row in rows.items():
        if outcomes[name] != row["verdict"]:
            print(
                f"{row['file']}: {row['verdict']}, and adopt says {outcomes[name]}: {row['kind']}"
            )
    if asked.write:
        write_between(asked.write, "adopted", text)


if __name__ == "__main__":
    main()
