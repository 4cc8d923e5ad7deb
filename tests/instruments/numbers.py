"""Write README's numbers, each from the table that holds it.

    python -m tests.instruments.numbers            write them
    python -m tests.instruments.numbers --check    write nothing; exit status 1 if they are not current

Nothing is measured here. The sources are notebooks/h200.json, kernels/README.md, gradients_h100.json,
convlab/EVIDENCE.md, convlab/sim/sanitizer.md and foreign.md; each is written by a command of its own.
"""

import argparse
import json
import re
import sys

from tests.instruments.gradients import fastest
from tests.instruments.pages import between, write_between
from tests.instruments.picture import best_of_each_class
from tests.instruments.stored_outputs import ROOT

README = ROOT / "README.md"
COMMAND = "python -m tests.instruments.numbers"
_NAMES = {"fp32": "fp32", "tf32": "TF32", "bf16": "bf16", "fp16": "fp16"}


def class_ratios() -> dict[str, str]:
    """Return the range of the best rung's speed over cuDNN's, by precision class."""
    results = json.loads((ROOT / "notebooks" / "h200.json").read_text())["results"]
    best = [best_of_each_class(result) for result in results]
    ranges = {}
    for name, label in _NAMES.items():
        ratios = [pairs[name]["ratio"] for pairs in best]
        ranges[label] = f"{min(ratios):.1f} to {max(ratios):.1f}"
    return ranges


def gradient_ratios(precision: str) -> str:
    """Return the range of the best rung's speed over cuDNN's, in the gradients of the same layers."""
    text = (ROOT / "tests" / "instruments" / "gradients_h100.json").read_text()
    rows = json.loads(text)["rows"]["backward"][precision].values()
    ratios = [row["cudnn_ms"] / fastest(row)[1] for row in rows]
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def geometric_mean(precision: str) -> str:
    """Return the geometric mean over KernelBench's problems, as kernels/README.md has it."""
    text = (ROOT / "kernels" / "README.md").read_text()
    part = text[text.index("<!-- kernelbench: begin -->") : text.index("<!-- kernelbench: end -->")]
    (mean,) = re.findall(rf"- {precision}, geometric mean .*?: ([\d.]+) to cuDNN", part)
    return f"{float(mean):.1f}"


def edit_seconds(engine: str) -> str:
    """Return the seconds from an edit to the first result, as convlab/EVIDENCE.md has them."""
    text = (ROOT / "convlab" / "EVIDENCE.md").read_text()
    row = rf"^\| {engine}: edited \.cu to its first result \| ([\d.]+) \|"
    (seconds,) = re.findall(row, text, re.MULTILINE)
    return f"{float(seconds):.1f} s"


def found_bugs() -> tuple[int, int, int]:
    """Return the planted bugs: how many, how many the simulator finds, and compute-sanitizer."""
    text = (ROOT / "convlab" / "sim" / "sanitizer.md").read_text()
    rows = [line.split(" | ")[2:] for line in text.splitlines() if line.startswith("| `")]
    missed = ("-", "killed")
    cells = [[not cell.strip(" |").startswith(missed) for cell in row] for row in rows]
    return len(cells), sum(row[0] for row in cells), sum(any(row[1:]) for row in cells)


def foreign_files() -> tuple[str, str]:
    """Return how many public CUDA files were tried, and how many compile for the simulator."""
    text = (ROOT / "tests" / "instruments" / "foreign.md").read_text()
    ((tried, compiled),) = re.findall(r"^\| together \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    return tried, compiled


def table() -> str:
    """Return the numbers as a Markdown table."""
    ratios = class_ratios()
    bugs, here, sanitizer = found_bugs()
    tried, compiled = foreign_files()
    tables = "[tables](kernels/README.md)"
    evidence = "[evidence](convlab/EVIDENCE.md)"
    rows = [
        (
            f"**{ratios['fp32']} times** cuDNN's speed",
            f"in fp32 on three large layers in NCHW, on an H200; TF32 {ratios['TF32']}, "
            f"bf16 {ratios['bf16']}, fp16 {ratios['fp16']} ({tables})",
        ),
        (
            f"**{gradient_ratios('tf32')} times** cuDNN's speed",
            f"in the gradients of these layers in TF32, on an H100; fp32 {gradient_ratios('fp32')}",
        ),
        (
            f"**{geometric_mean('tf32')} times** cuDNN's speed",
            "on KernelBench's 13 two-dimensional convolutions in TF32, geometric mean; "
            f"fp32 {geometric_mean('fp32')}",
        ),
        (
            f"**{edit_seconds('cuda')}** from an edit to a result",
            f"on a GPU; {edit_seconds('sim')} on two cores without one ({evidence})",
        ),
        (
            f"**{here} of {bugs}** planted bugs",
            f"found without a GPU; NVIDIA's compute-sanitizer finds {sanitizer} on one",
        ),
        (
            f"**{compiled} of {tried}** public CUDA files",
            "compile for the simulator unchanged",
        ),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {number} | {what} |" for number, what in rows)])


def main(arguments: list[str] | None = None) -> int:
    """Write README's numbers, or check them; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    if given.check:
        return int(not is_current())
    write_between(README, "numbers", table())
    return 0


def is_current() -> bool:
    """Return whether README's numbers are those of the tables."""
    head, tail = between(README, "numbers")
    return README.read_text() == f"{head}\n{table()}\n{tail}"


if __name__ == "__main__":
    sys.exit(main())
