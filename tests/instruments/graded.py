"""Grade twenty planted submissions twice: right, wrong, slow, cheating, hanging, hostile.

    python -m tests.instruments.graded [--write] [NAME ...]

Prints a table: each submission, its points, and whether both grades are as they must be, byte for
byte the same. ``--write`` writes it to ``convlab/course/GRADING.md``. All of them take about ten
minutes on two idle cores.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import convlab
from convlab.course.grade import grade
from tests.instruments.pages import write_between
from tests.submissions import PLANTED, deviations, right_predictions, write_lab, write_submission

PAGE = Path(convlab.__file__).parent / "course" / "GRADING.md"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--write", action="store_true", help="write the table to the page")
    arguments = parser.parse_args()
    if arguments.write and arguments.names:
        parser.error("--write is for the whole table: leave out the names")
    names = arguments.names or list(PLANTED)
    rows = []
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        lab = write_lab(Path(folder))
        right = right_predictions(lab)
        for name in names:
            path = write_submission(Path(folder), name, right)
            documents = [json.dumps(grade(path, lab.path).receipt) for _ in range(2)]
            facts = json.loads(documents[0])["grade"]
            lines = deviations(name, facts)
            if documents[0] != documents[1]:
                lines.append("the second grade differs from the first")
            bad += bool(lines)
            points = " | ".join(f"{part['points']:g}" for part in facts["parts"])
            verdict = "as expected, twice" if not lines else "; ".join(lines)
            rows.append(f"| {PLANTED[name].kind} | `{name}` | {points} | {verdict} |")
            print(rows[-1], flush=True)
    head = [
        "| kind | submission | correct | prediction | pars | question | |",
        "|---|---|---|---|---|---|---|",
    ]
    total = f"{len(names) - bad} of {len(names)} as expected, twice."
    print(total)
    if arguments.write:
        write_between(PAGE, "planted", "\n".join([*head, *rows, "", total]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
