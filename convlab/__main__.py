"""The command line: ``python -m convlab COMMAND``, or ``convlab COMMAND`` where it is installed."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

try:
    from .commands import cli
    from .commands.supervise import supervise
except ModuleNotFoundError as error:
    if error.name != "convlab.commands":
        raise
    sys.exit("convlab: the commands are in convlab/commands, which was deleted")
from .core.arguments import reason
from .core.errors import CatalogError, ConvlabError, ProblemError, UnsupportedError
from .core.machine.progress import Lines

# The exit statuses: `commands.cli.STATUS` explains them.
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
    words = sys.argv[1:] if argv is None else argv
    installed = Path(sys.argv[0]).name == "convlab"
    parser = cli.build_parser(program="convlab" if installed else "python -m convlab")
    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    arguments = parser.parse_args(words)
    results: list[Any] = []
    document: dict[str, Any] = {}
    status = RIGHT
    shown_words = " ".join(words)[:60]
    with warnings.catch_warnings(), _only_json(arguments.json) as out, Lines(desc=shown_words):
        # A warning is shown without its place in our sources.
        warnings.showwarning = lambda text, *_: print(f"convlab: {text}", file=sys.stderr)

        def show(text: object) -> None:
            if not arguments.json:
                print(text, file=out, flush=True)

        try:
            arguments = cli.look_up(arguments)
            command = arguments.command
            for result in command.run(arguments):
                results.append(result)
                if isinstance(result, cli.Failure):
                    print(result, file=sys.stderr, flush=True)
                    continue
                show(result)
                if getattr(arguments, "listing", False):
                    show(result.listing())
            document = results[0].to_dict()
            if command.results_key:
                documents = [result.to_dict() for result in results]
                document = {"ok": _status(results) == RIGHT, command.results_key: documents}
            status = _status(results)
            for kind, path in cli.write_files(results, arguments):
                document[kind] = str(path)
                show(f"{kind}: {path}")
        except BrokenPipeError:
            # Whoever read the output has enough: `convlab list | head`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return status
        except (ConvlabError, OSError) as error:
            status = _error_status(error)
            document["error"] = _error_text(error)
            print(f"convlab: {document['error']}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(document, indent=1), file=out)
    return status


def _status(results: list[Any]) -> int:
    """Return the exit status of what ran."""
    if any(not result.ok and not result.nothing_ran for result in results):
        return WRONG
    return RIGHT if any(result.ok for result in results) else DECLINED


def _error_status(error: ConvlabError | OSError) -> int:
    """Return the exit status of an error that ended a command; an OSError is of a named file."""
    if isinstance(error, UnsupportedError):
        return DECLINED
    usage = isinstance(error, (CatalogError, ProblemError, OSError))
    return USAGE if usage else WRONG


def _error_text(error: ConvlabError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {reason(error)}"
    return str(error)


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
