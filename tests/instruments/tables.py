"""Write the tables of kernels/README.md: the times of the kernels, and the list of rungs.

    python -m tests.instruments.tables kernels/README.md > notebooks/h200.json
    python -m tests.instruments.tables kernels/README.md --set kernelbench > kernelbench.json
    python -m tests.instruments.tables kernels/README.md --set kernelbench --class bf16 > bf16.json
    python -m tests.instruments.tables kernels/README.md README.md --headers

The first command times all kernels on the headline problems. The sets kernelbench and resnet50 are
timed in fp32 and TF32 with the kernel that `convlab.best` takes, or with ``--class bf16`` with the
fastest rung of that class, next to cuDNN. With ``--compiled FOLDER`` torch.compile is timed too,
which takes minutes for a problem; the folder keeps what was measured for another run. The rows are
printed as JSON. Without a GPU, the first command writes the simulated traffic.

``--headers`` measures nothing. It writes the parts that are made from the kernels' headers into each
file that has their markers: "ladder", the table of rungs, and "rungs", a line for each.
"""

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

import pandas as pd
import torch

from convlab.core.kernel import catalog
from convlab.core.machine.device import describe
from convlab.core.problem.named import problems
from convlab.core.timing.compare import compare
from convlab.core.timing.comparison import Comparisons
from convlab.nn.choice import CLASSES
from tests.instruments.pages import between, laid, write_between
from tests.instruments.versus import HALVES, Versus, apart, versus

# Seconds that timing one kernel on one headline problem takes: all rungs in about three minutes.
_SECONDS = 1.5
# The rows of the table next to cuDNN.
_CLASSES_AND_LAYOUTS = (
    *((precision, "NCHW") for precision in ("fp32", "tf32", "bf16", "fp16")),
    *((precision, "NHWC") for precision in ("bf16", "fp16")),
)


def markdown(results: Comparisons | Versus) -> str:
    """Return the results as a Markdown table, with their summary and conditions below."""
    if isinstance(results, Versus):
        (table,) = results.tables
        summary = "\n".join(f"- {line}" for line in results.summary)
        kernel = "the kernel that `convlab.best` takes"
        if set(results.classes) <= set(HALVES):
            kernel = "the fastest rung of the class on NCHW, or cuDNN if it is faster"
        note = (
            f"Median times in ms, with a cold L2 cache: of {kernel}, and of cuDNN in the same class, "
            "with inputs in NCHW and already in channels_last. The ratio is cuDNN's time on NCHW "
            "over the kernel's time; it is 1 by definition if the kernel is cuDNN."
        )
        made = f"{results.notes[-1]}; {_made(describe())}"
        return f"{laid(pd.DataFrame(table.cells))}\n\n{summary}\n\n{note} {made}"
    timed = "time_ms" in results[0].frame
    unit = "Median time" if timed else "Simulated global traffic"
    where = describe() if timed else "the simulator"
    table = laid(pd.DataFrame(results.matrix("title").cells))
    note = f"{unit}, and its multiple of the floor. {_made(where)}"
    if not timed:
        return f"{table}\n\n{note}"
    title = "The fastest rung of each class and layout: how many times as fast as cuDNN, and which rung."
    return f"{table}\n\n{title}\n\n{laid(beside_cudnn(results.frame))}\n\n{note}"


def beside_cudnn(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each class and layout: the fastest rung of each problem against cuDNN.

    `rows` has the columns problem, kernel, class, correct and time_ms, as a comparison's frame.
    """
    headers = {
        path.stem: catalog.parse_header(path.read_text(), path) for path in catalog.catalog()
    }
    timed = rows[rows["time_ms"].notna() & rows["correct"].eq(True)]
    ratios = []
    for precision, layout in _CLASSES_AND_LAYOUTS:
        cudnn = f"cudnn:{precision}" + (":channels_last" if layout == "NHWC" else "")
        wanted = (precision, layout)
        names = [name for name, h in headers.items() if (h.precision, h.tensors.x.layout) == wanted]
        row = {"class": precision, "layout": layout}
        for problem, each in timed.groupby("problem", sort=False):
            times = each.set_index("kernel")["time_ms"]
            own = times[times.index.isin(names)]
            row[problem] = "-"
            if len(own) and cudnn in times:
                number = own.idxmin().partition("_")[0]
                row[problem] = f"{times[cudnn] / own.min():.2f} ({number})"
        ratios.append(row)
    return pd.DataFrame(ratios)


def _made(where: object) -> str:
    return f"{where}; torch {torch.__version__}; {datetime.date.today()}."


def ladder(page: Path) -> str:
    """Return the catalog as a Markdown table: a row for each rung, with links from a page."""
    lines = ["| rung | idea | class |", "|---|---|---|"]
    for path in catalog.catalog():
        header = catalog.parse_header(path.read_text(), path)
        lines.append(f"| {_link(path, page)} | {header.idea} | {header.precision} |")
    return "\n".join(lines)


def rungs(page: Path) -> str:
    """Return the rungs as a Markdown list: name, title and class of the first of each number."""
    lines = []
    for path in catalog.catalog():
        if not path.stem.partition("_")[0].isdigit():
            # A variant, such as 01b: the ladder of kernels/README.md has it.
            continue
        header = catalog.parse_header(path.read_text(), path)
        lines.append(f"- {_link(path, page)}: {header.title} ({header.precision})")
    return "\n".join(lines)


def _link(path: Path, page: Path) -> str:
    return f"[`{path.stem}`]({os.path.relpath(path.resolve(), page.resolve().parent)})"


# The parts of pages that are made from the kernels' headers, by their markers.
HEADER_PARTS = {"ladder": ladder, "rungs": rungs}


def write_headers(pages: list[Path]) -> list[str]:
    """Write the parts made from headers into the pages that have their markers; return what it did.

    Raises ProblemError if a page cannot be read.
    """
    written = []
    for page in pages:
        for marker, part in HEADER_PARTS.items():
            if f"<!-- {marker}: begin -->" in page.read_text():
                write_between(page, marker, part(page))
                written.append(f"{page}: {marker}")
    return written


def publish(path: Path, name: str, results: Comparisons | Versus) -> None:
    """Write a set's table into a page, with the headline's also the rungs; print the rows."""
    write_between(path, name, markdown(results))
    if name == "bench":
        write_headers([path])
    print(json.dumps(results.to_dict(), indent=1))


def main(words: list[str]) -> None:
    """Measure, write the tables into a page, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE", help="has the markers")
    parser.add_argument(
        "--set", choices=("headline", "kernelbench", "resnet50"), default="headline"
    )
    parser.add_argument("--class", dest="half", choices=HALVES, help="instead of fp32 and tf32")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="minutes for a problem")
    parser.add_argument("--headers", action="store_true", help="measure nothing")
    options = parser.parse_args(words)
    if options.headers:
        print("\n".join(write_headers(options.paths)))
        return
    (path,) = options.paths if len(options.paths) == 1 else parser.error("one FILE is needed")
    if options.set == "headline" and (options.compiled or options.half):
        parser.error("--compiled and --class belong to --set kernelbench and --set resnet50")
    name = "bench" if options.set == "headline" else options.set
    if options.half:
        name = f"{name}_{options.half}"
    # A page without the markers is an error before the work, not after it.
    between(path, name)
    classes = (options.half,) if options.half else CLASSES
    if options.set == "headline":
        results = compare("all", "headline", limit_seconds=_SECONDS)
    elif options.compiled:
        results = apart(problems(options.set), options.compiled, classes=classes)
    else:
        results = versus(problems(options.set), classes=classes)
    publish(path, name, results)


if __name__ == "__main__":
    main(sys.argv[1:])
