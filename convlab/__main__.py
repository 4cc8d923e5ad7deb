"""The command line: ``python -m convlab COMMAND``, or ``convlab COMMAND`` where it is installed."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from .commands.cli import parser, understood
from .commands.supervise import supervise
from .core.arguments import reason
from .core.errors import CatalogError, ConvlabError, ProblemError, UnsupportedError
from .core.machine.progress import Lines

# as `grammar.STATUS` tells
RIGHT = 0
WRONG = 1
USAGE = 2
DECLINED = 3


def command() -> NoReturn:
    """What a shell starts: `main`, in a process that Ctrl-C ends with all that it started."""
    supervise()
    sys.exit(main())


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    prog = "convlab" if Path(sys.argv[0]).name == "convlab" else "python -m convlab"
    if not (sys.argv[1:] if argv is None else argv):
        parser(prog=prog).print_help(sys.stderr)
        return USAGE
    asked = parser(prog=prog).parse_args(argv)
    found: list[Any] = []
    document: dict[str, Any] = {}
    status = RIGHT
    said = " ".join(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings(), _only_json(asked.json) as out, Lines(desc=said[:60]):
        # without the place in our sources
        warnings.showwarning = lambda text, *_: print(f"convlab: {text}", file=sys.stderr)

        def show(text: object) -> None:
            if not asked.json:
                print(text, file=out, flush=True)

        try:
            asked = understood(asked)
            from .commands.answers import PLURAL, Told, answers, kept  # with torch

            for answer in answers(asked):
                found.append(answer)
                if isinstance(answer, Told) and answer.failure:
                    print(answer, file=sys.stderr, flush=True)
                    continue
                show(answer)
                if getattr(asked, "listing", False):
                    show(answer.listing())
            document = found[0].to_dict()
            if asked.command in PLURAL:
                each = [answer.to_dict() for answer in found]
                document = {"ok": _status(found) == RIGHT, PLURAL[asked.command]: each}
            status = _status(found)
            for what, path in kept(found, asked):
                document[what] = str(path)
                show(f"{what}: {path}")
        except BrokenPipeError:  # whoever read it has enough: `convlab list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return status
        except (ConvlabError, OSError) as error:  # OSError: a file that was named
            usage = isinstance(error, (CatalogError, ProblemError, OSError))
            declined = DECLINED if isinstance(error, UnsupportedError) else WRONG
            status = USAGE if usage else declined
            file = f"{error.filename or 'output'}: " if isinstance(error, OSError) else ""
            document["error"] = f"{file}{reason(error) if file else error}"
            print(f"convlab: {document['error']}", file=sys.stderr)
        if asked.json:
            print(json.dumps(document, indent=1), file=out)
    return status


def _status(found: list[Any]) -> int:
    if any(not answer.ok and not answer.declined for answer in found):
        return WRONG
    return RIGHT if any(answer.ok for answer in found) else DECLINED


@contextlib.contextmanager
def _only_json(wanted: bool) -> Iterator[TextIO]:
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


if __name__ == "__main__":
    command()
