"""The command line: ``python -m convlab COMMAND``.

Exit status: 0 if all that was asked is right, 1 if a kernel is wrong or does not build or run,
2 for a usage error.
"""

import argparse
import contextlib
import difflib
import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import bench, catalog, doctor
from .ab import LIMIT_SECONDS, ab
from .check import COUNT, check, resolve
from .compare import compare
from .errors import (
    BuildError,
    CatalogError,
    ConvlabError,
    LaunchError,
    ProblemError,
    UnsupportedError,
)
from .explain import inspect
from .kernel import ENGINES, tunables
from .paired import MODES
from .problem import PROBLEM_SETS, problem, problems
from .ratio import THRESHOLD
from .report import Report
from .sweep import sweep

RIGHT, WRONG, USAGE = 0, 1, 2


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = _parser().parse_args(argv)
    with _only_json(arguments.json) as out:
        try:
            status, document, text = arguments.run(arguments)
        except (CatalogError, ProblemError) as error:
            status, document, text = USAGE, {"error": str(error)}, None
            print(f"convlab: {error}", file=sys.stderr)
        except OSError as error:  # a file that was named cannot be read or written
            status, document, text = USAGE, {"error": str(error)}, None
            print(f"convlab: {error}", file=sys.stderr)
        except ConvlabError as error:
            status, document, text = WRONG, {"error": str(error)}, None
            print(f"convlab: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print("convlab: interrupted", file=sys.stderr)
            return 130
        if arguments.json:
            print(json.dumps(document, indent=1), file=out)
        elif text:
            print(text, file=out)
    return status


@contextlib.contextmanager
def _only_json(wanted: bool) -> Iterator[object]:
    """Keep standard output for the document alone: whatever else writes there goes to stderr."""
    if not wanted:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)  # a kernel's printf writes to file descriptor 1
    try:
        with os.fdopen(os.dup(kept), "w") as out, contextlib.redirect_stdout(sys.stderr):
            yield out
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and names what is nearest to a word it does not know."""

    def __init__(self, words: list[str], **options: object) -> None:
        self.words = words
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: object) -> argparse.Action:
        """As argparse's; remembers the words that it brings."""
        self.words += [*names, *options.get("choices", ())]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> None:
        """Print the usage and the message, and exit with status 2."""
        asked = re.search(r"unrecognized arguments: (-[^\s=]*)|invalid choice: '([^']*)'", message)
        near = difflib.get_close_matches(asked[1] or asked[2], self.words, 1) if asked else []
        super().error(message + (f"; did you mean {near[0]}?" if near else ""))


def _parser() -> argparse.ArgumentParser:
    words: list[str] = []
    parser = _Parser(
        words, prog="python -m convlab", description="A microscope for CUDA convolution kernels."
    )
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=functools.partial(_Parser, words)
    )

    def add(name: str, run, text: str, *, kernels: bool = False, problem: str | None = None):
        words.append(name)
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print one JSON document")
        if kernels:
            command.add_argument("kernels", nargs="*", metavar="KERNEL", help="name or path; all "
                                 "kernels if none is given; NAME@TUNABLE=VALUE sets a tunable")
            command.add_argument("--kernel", action="append", default=[], metavar="KERNEL",
                                 help="the same, repeatable")
            command.add_argument("--engine", choices=ENGINES, default="auto")
        if problem is not None:
            command.add_argument("--problem", metavar="P", default=None, help=problem)
        return command  # fmt: skip

    named = 'a name, a spec such as "N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1"; {}'
    sets = f"or one of the sets {', '.join(PROBLEM_SETS)}; default: {{}}"
    add("list", _list, "The kernels and the named problems.")
    command = add("check", _check, "Is it right?", kernels=True, problem=named.format(
        sets.format("awkward, and generated ones")))  # fmt: skip
    command.add_argument("--count", metavar="N", type=int, default=COUNT,
                         help="how many problems to generate, without --problem (%(default)s)")
    command.add_argument("--seed", metavar="N", type=int, default=0,
                         help="of the data and of the generated problems (0)")
    command.add_argument("--plot", metavar="PNG", type=Path,
                         help="where the error is, of the kernel last found wrong")  # fmt: skip
    command = add("compare", _compare, "Several kernels side by side: error, cost, floor.",
                  kernels=True, problem=named.format("default: square"))  # fmt: skip
    command.add_argument("--plot", metavar="PNG", default="convlab-compare.png", type=Path)
    command = add("ab", _ab, "Is B faster than A, slower, or the same? First, are both right?",
                  problem=named.format("default: square"))  # fmt: skip
    command.add_argument("a", metavar="A", help="name, NAME@TUNABLE=VALUE, path, or a baseline "
                         "such as cudnn:tf32")  # fmt: skip
    command.add_argument("b", metavar="B")
    command.add_argument("--engine", choices=ENGINES, default="auto")
    command.add_argument("--mode", choices=(*MODES, "both"), default="both",
                         help="L2 flushed before each launch, or not at all")  # fmt: skip
    command.add_argument("--threshold", type=float, default=100 * THRESHOLD, metavar="PERCENT",
                         help="called the same; default: %(default)g")  # fmt: skip
    command.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS",
                         help="time for the rounds of a mode; default: %(default)g")  # fmt: skip
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--plot", metavar="PNG", type=Path)
    command = add("sweep", _sweep, "A kernel over a grid of tunables.",
                  problem=named.format(sets.format("square")))  # fmt: skip
    command.add_argument("kernel", metavar="KERNEL", help="name or path")
    command.add_argument("tunables", metavar="NAME=VALUE,VALUE", nargs="+")
    command.add_argument("--engine", choices=ENGINES, default="auto")
    command.add_argument("--plot", metavar="PNG", type=Path)
    command = add("inspect", _inspect, "Why: registers, occupancy, cost by line, a model's time.",
                  kernels=True, problem=named.format("default: square"))  # fmt: skip
    command.add_argument("--gpu", help="T4, A100, L4, 4090, H100, H200; default: the one here")
    command.add_argument("--listing", action="store_true", help="the source, line by line")
    command.add_argument("--plot", metavar="PNG", default="convlab-inspect.png", type=Path,
                         help="of several kernels, each one's name is put before the ending")
    command = add("bench", _bench, "Kernels over several problems, as README's table has it.",
                  kernels=True, problem=named.format(sets.format("headline")))  # fmt: skip
    command.add_argument("--write", metavar="FILE", type=Path,
                         help="write the tables between the markers of this file")  # fmt: skip
    command = add("bench-build", _bench_build, "How long a build takes, next to load_inline.")
    command.add_argument("--engine", choices=ENGINES, default="auto")
    command.add_argument("--write", metavar="FILE", type=Path,
                         help="write the table between the markers of this file")  # fmt: skip
    add("doctor", _doctor, "What this machine has, and what to do about what is missing.")
    return parser


def _chosen(arguments: argparse.Namespace) -> list[str] | None:
    return [*arguments.kernels, *arguments.kernel] or None


def _list(arguments: argparse.Namespace) -> tuple:
    rows, lines = [], []
    for path in catalog.catalog():
        source = path.read_text()
        header = catalog.parse_header(source, path)
        rows.append(
            {
                "kernel": path.stem,
                "path": str(path),
                "title": header.title,
                "idea": header.idea,
                "class": header.precision,
                "supports": list(header.supports),
                "tunables": tunables(source),
            }
        )
        settings = " ".join(f"{key}={value}" for key, value in tunables(source).items())
        lines.append(f"{path.stem:<26} {header.precision:<5} {header.title}")
        lines += [f"{'':<32} {text}" for text in (settings,) if text]
    sets = {name: [p.name for p in problems(name)] for name in PROBLEM_SETS}
    lines += ["", "problems:"]
    lines += [f"  {name}: {', '.join(members)}" for name, members in sets.items()]
    return RIGHT, {"kernels": rows, "problems": sets}, "\n".join(lines)


def _check(arguments: argparse.Namespace) -> tuple:
    names = _chosen(arguments) or [path.stem for path in catalog.catalog()]
    kernels = [resolve(name, arguments.engine) for name in names]
    found, failed = [], []
    for kernel in kernels:
        try:
            result = check(kernel, arguments.problem, count=arguments.count, seed=arguments.seed)
        except (BuildError, LaunchError, UnsupportedError) as error:  # the others are still asked
            failed.append({"kernel": kernel.name, "right": False, "failures": [str(error)]})
            print(f"convlab: {error}", file=sys.stderr)
            continue
        found.append(result)
        if not arguments.json:
            print(result, flush=True)  # each as soon as it is known
    ok = not failed and all(result.ok for result in found)
    document: dict = {"ok": ok, "reports": failed, "sets": []}
    for result in found:
        if isinstance(result, Report):
            document["reports"].append(result.to_dict())
        else:
            about = result.to_dict()
            document["reports"] += about.pop("reports")
            document["sets"].append(about)
    text = ""
    if arguments.plot is not None and found:
        drawn = [result for result in found if not result.ok] or found
        document["plot"] = str(drawn[-1].plot().save(arguments.plot).resolve())
        text = f"plot: {document['plot']}"
    return (RIGHT if ok else WRONG), document, text


def _compare(arguments: argparse.Namespace) -> tuple:
    result = compare(_chosen(arguments), arguments.problem or "square", engine=arguments.engine)
    result.plot(arguments.plot)
    document = result.to_dict() | {"plot": str(arguments.plot.resolve())}
    text = f"{result}\nplot: {arguments.plot.resolve()}"
    return (RIGHT if result.ok else WRONG), document, text


def _ab(arguments: argparse.Namespace) -> tuple:
    result = ab(
        arguments.a, arguments.b, arguments.problem or "square", engine=arguments.engine,
        mode=MODES if arguments.mode == "both" else arguments.mode, seed=arguments.seed,
        threshold=arguments.threshold / 100, limit_seconds=arguments.limit,
    )  # fmt: skip
    document, text = _drawn(result, arguments.plot)
    return (RIGHT if result.ok else WRONG), document, text


def _sweep(arguments: argparse.Namespace) -> tuple:
    grid = {}
    for text in arguments.tunables:
        name, _, values = text.partition("=")
        try:
            grid[name] = [int(value) for value in values.split(",")]
        except ValueError:
            raise ProblemError(
                f"cannot read the tunable {text!r}: write NAME=8,16, whole numbers"
            ) from None
    result = sweep(
        arguments.kernel, grid, arguments.problem or "square", engine=arguments.engine
    )
    document, text = _drawn(result, arguments.plot)
    return (RIGHT if result.ok else WRONG), document, text


def _drawn(result: Any, path: Path | None) -> tuple[dict, str]:
    """The result as a document and as text, drawn to a file if there is a path."""
    document, text = result.to_dict(), str(result)
    if path is not None:
        result.plot(path)
        document["plot"] = str(path.resolve())
        text += f"\nplot: {path.resolve()}"
    return document, text
def _inspect(arguments: argparse.Namespace) -> tuple:
    names = _chosen(arguments) or [path.stem for path in catalog.catalog()]
    documents, texts, path, ok = [], [], arguments.plot, True
    for name in names:
        found = inspect(
            name, arguments.problem or "square", gpu=arguments.gpu, engine=arguments.engine
        )
        where = path if len(names) == 1 else path.with_stem(f"{path.stem}-{found.kernel}")
        found.plot(where)
        ok &= bool(found.frame[["simulated", "measured"]].notna().any(axis=None))  # it ran
        documents.append(found.to_dict() | {"plot": str(where.resolve())})
        texts.append(f"{found}\nplot: {where.resolve()}")
        texts += [str(found.listing())] if arguments.listing else []
    return (RIGHT if ok else WRONG), {"inspections": documents}, "\n\n".join(texts)


def _bench(arguments: argparse.Namespace) -> tuple:
    wanted = arguments.problem or "headline"
    chosen = problems(wanted) if wanted in PROBLEM_SETS else [problem(wanted)]
    if arguments.write is not None:
        for marker in ("bench", "ladder"):  # looked for before the work, not after it
            bench.between(arguments.write, marker)
    results = bench.bench(_chosen(arguments), chosen, engine=arguments.engine)
    table = bench.markdown(results)
    if arguments.write is not None:
        bench.write_between(arguments.write, "bench", table)
        bench.write_between(arguments.write, "ladder", bench.ladder())
    ok = all(result.ok for result in results)
    document = {"ok": ok, "results": [result.to_dict() for result in results]}
    text = "\n\n".join([*map(str, results), table])
    return (RIGHT if ok else WRONG), document, text


def _bench_build(arguments: argparse.Namespace) -> tuple:
    if arguments.write is not None:
        bench.between(arguments.write, "build")
    frame = bench.bench_build(arguments.engine)
    if arguments.write is not None:
        bench.write_between(arguments.write, "build", bench.build_markdown(frame))
    shown = frame.to_string(index=False, formatters={"seconds": "{:.3f}".format})
    return RIGHT, {"rows": frame.to_dict("records")}, shown


def _doctor(arguments: argparse.Namespace) -> tuple:
    rows = doctor.examine()
    marks = {True: "ok", False: "MISSING", None: "-"}
    lines = []
    for row in rows:
        lines.append(f"{row['what']:<13} {marks[row['ok']]:<8} {row['found']}")
        lines += [f"{'':<22} {row['advice']}"] if row["advice"] else []
    ok = all(row["ok"] is not False for row in rows)
    return (RIGHT if ok else WRONG), {"ok": ok, "rows": rows}, "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
