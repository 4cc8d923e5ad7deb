"""The command line: ``python -m convlab COMMAND``.

Exit status: 0 if all that was asked is right, 1 if a kernel is wrong or does not build or run,
2 for a usage error.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .fast import bench
from .right.report import Report
from .use import commands
from .words.errors import (
    BuildError,
    CatalogError,
    ConvlabError,
    LaunchError,
    ProblemError,
    UnsupportedError,
)
from .words.problem import PROBLEM_SETS, problem, problems

RIGHT, WRONG, USAGE = 0, 1, 2


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = commands.parser().parse_args(argv)
    with _only_json(arguments.json) as out:
        try:
            run = _COMMANDS[arguments.command]
            status, document, text = run(commands.understood(arguments))
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


def _list(arguments: argparse.Namespace) -> tuple:
    return RIGHT, *commands.listed()


def _check(arguments: argparse.Namespace) -> tuple:
    found, failed = [], []
    for kernel in commands.to_check(arguments):
        try:
            result = commands.checked(kernel, arguments)
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
    result = commands.compared(arguments)
    result.plot(arguments.plot)
    document = result.to_dict() | {"plot": str(arguments.plot.resolve())}
    text = f"{result}\nplot: {arguments.plot.resolve()}"
    return (RIGHT if result.ok else WRONG), document, text


def _ab(arguments: argparse.Namespace) -> tuple:
    result = commands.judged(arguments)
    document, text = _drawn(result, arguments.plot)
    return (RIGHT if result.ok else WRONG), document, text


def _sweep(arguments: argparse.Namespace) -> tuple:
    result = commands.swept(arguments)
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
    names = commands.chosen(arguments)
    documents, texts, path, ok = [], [], arguments.plot, True
    for name in names:
        found = commands.inspected(name, arguments)
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
    results = bench.bench(arguments.kernels or None, chosen, engine=arguments.engine)
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
    document, text = commands.examined()
    return (RIGHT if document["ok"] else WRONG), document, text


_COMMANDS = {
    "list": _list,
    "check": _check,
    "compare": _compare,
    "ab": _ab,
    "sweep": _sweep,
    "inspect": _inspect,
    "bench": _bench,
    "bench-build": _bench_build,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
