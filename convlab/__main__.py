"""The command line: ``python -m convlab COMMAND``, or ``convlab COMMAND`` if it is installed."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO


def _missing(package: str | None) -> str:
    """Return the message for a package that is not installed."""
    root = (package or "a package").partition(".")[0]
    return (
        f"convlab: the package {root} is not installed for this Python: run "
        f"`{sys.executable} -m pip install -r requirements.txt`"
    )


try:
    from .commands import cli
    from .commands.exit_status import INVALID, STATUSES, status_of, status_of_error
    from .commands.supervise import supervise
    from .core.arguments import cut, reason
    from .core.errors import ConvlabError
    from .core.faults import CORRECT, NOT_RUN
    from .core.machine.progress import Lines
except ModuleNotFoundError as error:
    if error.name == "convlab.commands":
        sys.exit("convlab: the commands are in convlab/commands, which was deleted")
    if (error.name or "").partition(".")[0] == "convlab":
        raise
    print(_missing(error.name), file=sys.stderr)
    # As in exit_status.py, which could not be imported: this machine lacks something.
    sys.exit(6)


def command() -> NoReturn:
    """Run `main` in a process that Ctrl-C ends, with all that it started; exit with its status."""
    supervise()
    sys.exit(main())


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    installed = Path(sys.argv[0]).name == "convlab"
    parser = cli.build_parser(program="convlab" if installed else "python -m convlab")
    if not words:
        parser.print_help(sys.stderr)
        return INVALID
    arguments = parser.parse_args(words)
    results: list[Any] = []
    document: dict[str, Any] = {}
    status = STATUSES[CORRECT]
    line = " ".join(words)
    shown_words = line if len(line) <= 60 else line[:57] + "..."
    with warnings.catch_warnings(), _only_json(arguments.json) as out, Lines(desc=shown_words):
        # A warning is shown without its place in our sources.
        warnings.showwarning = lambda text, *_: print(f"convlab: {text}", file=sys.stderr)

        def show(text: object) -> None:
            if text and not arguments.json:
                print(text, file=out, flush=True)

        try:
            arguments = cli.look_up(arguments)
            command = arguments.command
            verbose = getattr(arguments, "verbose", False)
            for result in command.run(arguments):
                results.append(result)
                if isinstance(result, cli.Failure):
                    if not _is_only_counted(result, arguments):
                        _complain(str(result))
                    continue
                show(result if isinstance(result, cli.TextResult) else result.text(verbose))
                if getattr(arguments, "listing", False):
                    show(result.listing())
            show(command.summary(results, verbose))
            document = results[0].to_dict()
            if command.results_key:
                documents = [result.to_dict() for result in results]
                is_ok = status_of(results) == STATUSES[CORRECT]
                document = {"ok": is_ok, command.results_key: documents}
            status = status_of(results)
            for kind, path in cli.write_files(results, arguments):
                document[kind] = str(path)
                show(f"{kind}: {path}")
        except BrokenPipeError:
            # The reader has enough, as in `convlab list | head`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return status
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "convlab":
                raise
            status = STATUSES[NOT_RUN]
            document["error"] = _missing(error.name).removeprefix("convlab: ")
            print(f"convlab: {document['error']}", file=sys.stderr)
        except (ConvlabError, OSError) as error:
            status = status_of_error(error)
            document["error"] = _error_text(error)
            _complain(f"convlab: {document['error']}")
        if arguments.json:
            print(json.dumps(document, indent=1), file=out)
    return status


def _complain(text: str) -> None:
    """Print an error to stderr; on a terminal, a text of several lines is wrapped as results are."""
    if "\n" in text and sys.stderr.isatty():
        from .core.show.table import wrapped_lines

        text = "\n".join(wrapped_lines([text]))
    print(text, file=sys.stderr, flush=True)


def _is_only_counted(failure: Any, arguments: Any) -> bool:
    """Return whether a failure is one of several unsupported kernels, which are only counted."""
    several = len(arguments.kernels) != 1
    return failure.nothing_ran and several and not getattr(arguments, "verbose", False)


def _error_text(error: ConvlabError | OSError) -> str:
    if isinstance(error, OSError):
        return cut(f"{error.filename or 'output'}: {reason(error)}")
    return cut(str(error))


@contextlib.contextmanager
def _only_json(wanted: bool) -> Iterator[TextIO]:
    """Keep standard output for the JSON document; all other output goes to stderr."""
    if not wanted:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    # A kernel's printf writes to file descriptor 1.
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w") as out, contextlib.redirect_stdout(sys.stderr):
            yield out
    finally:
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    command()
