"""Fit the time model's constants to measured times, and show its error on what it has not seen.

    python -m tests.instruments.calibrate_model [MEASURED.json] [--write convlab/why/README.md]

The times are made on a GPU by ``python -m tests.instruments.ncu_agreement --no-counters --json FILE``, with
``--kernel NAME`` for more (with a tunable: ``03_smem_tile@TILE=8``); prediction needs no GPU.
Held-out errors are of constants fitted without the rung, without the problem, or without both.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from convlab import load, problem
from convlab import why as explain
from convlab.fast.bench import write_between
from convlab.why.model import FITTED, Constants, Part

MEASURED = Path(__file__).parent / "measured_h200.json"
GRID = [
    Constants(sustained / 100, overlap)
    for sustained in range(60, 101, 2)
    for overlap in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0)
]
FACTOR = 1.5  # the aim: within this factor of the measured time


@dataclass(frozen=True)
class Point:
    """One measured time, and the parts that the model adds up for it."""

    kernel: str
    problem: str
    ms: float
    parts: tuple[Part, ...]

    @property
    def rung(self) -> str:
        """The kernel without its tunables."""
        return self.kernel.partition("@")[0]

    def predicted(self, constants: Constants) -> float:
        """Milliseconds."""
        return 1e3 * sum(part.time(constants) for part in self.parts)

    def error(self, constants: Constants) -> float:
        """The logarithm of predicted over measured."""
        return math.log(self.predicted(constants) / self.ms)


def points(document: dict) -> list[Point]:
    """Simulate what was measured; what the model cannot predict is named on stderr."""
    found = []
    for row in document["times"]:
        name = row["kernel"]
        kernel = load(name, engine="sim")
        seen = explain.inspect(kernel, problem(row["problem"]), gpu=document["gpu"], engine="sim")
        if seen.predicted is None:
            print(f"{name}, {row['problem']}: {'; '.join(seen.notes)}", file=sys.stderr)
            continue
        found.append(Point(name, row["problem"], row["measured_ms"], seen.predicted.parts))
    return found


def fit(chosen: Sequence[Point]) -> Constants:
    """Return the constants of the grid with the least mean squared error of the logarithm."""
    return min(GRID, key=lambda c: sum(p.error(c) ** 2 for p in chosen))


def held_out(all_points: Sequence[Point], same: Callable[[Point, Point], bool]) -> list[float]:
    """Return each point's error with constants fitted to those that are not the `same` as it."""
    errors, fits = [], {}
    for point in all_points:
        kept = tuple(n for n, other in enumerate(all_points) if not same(other, point))
        if kept not in fits:
            fits[kept] = fit([all_points[n] for n in kept])
        errors.append(point.error(fits[kept]))
    return errors


def orders(all_points: Sequence[Point], constants: Constants) -> list[tuple[str, int, int]]:
    """Return for each problem: pairs of kernels, and how many the model puts in their order.

    Pairs whose measured times differ by less than 5% have none.
    """
    rows = []
    for label in dict.fromkeys(p.problem for p in all_points):
        here = [p for p in all_points if p.problem == label]
        pairs = [(a, b) for i, a in enumerate(here) for b in here[i + 1 :]
                 if abs(math.log(a.ms / b.ms)) > math.log(1.05)]  # fmt: skip
        right = sum((a.ms < b.ms) == (a.predicted(constants) < b.predicted(constants))
                    for a, b in pairs)  # fmt: skip
        rows.append((label, len(pairs), right))
    return rows


def summary(name: str, errors: Sequence[float], constants: str) -> str:
    """A row of the table of errors."""
    size = [abs(e) for e in errors]
    typical = math.exp(math.sqrt(sum(e * e for e in errors) / len(errors)))
    inside = sum(e < math.log(FACTOR) for e in size)
    return (
        f"| {name} | {constants} | {typical:.2f} | {math.exp(max(size)):.2f} | "
        f"{inside} of {len(errors)} |"
    )


def table(all_points: Sequence[Point], document: dict, source: str) -> str:
    """The whole report, in Markdown."""
    best = fit(all_points)
    fitted = f"sustained {best.sustained:.2f}, overlap {best.overlap:g}"
    used = f"sustained {FITTED.sustained:.2f}, overlap {FITTED.overlap:g}"
    lines = ["| error of the model, as a factor | constants | typical | largest | within 1.5 |",
             "|---|---|---|---|---|"]  # fmt: skip
    lines += [
        summary("as it stands in model.py", [p.error(FITTED) for p in all_points], used),
        summary("fitted to all of these", [p.error(best) for p in all_points], fitted),
        summary("each rung by the others",
                held_out(all_points, lambda a, b: a.rung == b.rung), "refitted"),
        summary("each problem by the others",
                held_out(all_points, lambda a, b: a.problem == b.problem), "refitted"),
        summary("each by other rungs on other problems",
                held_out(all_points, lambda a, b: a.rung == b.rung or a.problem == b.problem),
                "refitted"),
    ]  # fmt: skip
    ranks = orders(all_points, FITTED)
    right, pairs = sum(r for *_, r in ranks), sum(n for _, n, _ in ranks)
    names = list(dict.fromkeys(p.kernel for p in all_points))
    lines += ["", f"Of {pairs} pairs of kernels whose times differ by over 5%, {right} are in the "
              "right order. Predicted over measured:", "",
              f"| problem | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]  # fmt: skip
    for label in dict.fromkeys(p.problem for p in all_points):
        cells = []
        for name in names:
            p = next((p for p in all_points if (p.kernel, p.problem) == (name, label)), None)
            text = "-"
            if p:
                off = math.exp(p.error(FITTED))
                text = f"{p.predicted(FITTED):.3g} / {p.ms:.3g} ms = {off:.2f}"
            cells.append(text)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    where = f"{document['device']}; {document['date']}"
    lines += ["", f"Measured on {where} (`{source}`); by "
              "`python -m tests.instruments.calibrate_model`."]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Print the report; with --write, put it between the markers of a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("measured", nargs="?", type=Path, default=MEASURED)
    parser.add_argument("--write", type=Path, metavar="FILE")
    given = parser.parse_args()
    document = json.loads(given.measured.read_text())
    text = table(points(document), document, f"tests/instruments/{given.measured.name}")
    print(text)
    if given.write:
        write_between(given.write, "times", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
