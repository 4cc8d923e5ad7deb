"""The command ``adopt``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..commands.command import HOW, OUTPUT, WHAT, WRITE, Command, add_engine, group_of
from ..commands.text_result import TextResult
from ..core.arguments import end_of
from ..core.errors import ProblemError

_SECONDS = 120.0
_CONFINED = """
An answer is somebody's code. It runs in a process of its own, with limits of
time, memory (8 GiB) and processes (64). By Landlock it may write only to a
scratch folder and open no TCP connection; a note says so where that is missing.
Not confined: reading files, UDP, what a kernel does on a GPU. The comparison is
in the same process, so code that attacks the judge can deceive it."""


class AdoptCommand(Command):
    about = "Judge a Python file with a kernel in KernelBench's form."
    words = "ANSWER ..."
    example = "adopt answer.py --reference problem.py"
    group = WRITE
    verbose = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.description = f"{self.about}\n{_CONFINED}"
        what = group_of(parser, WHAT)
        what.add_argument(
            "answers",
            nargs="*",
            metavar="ANSWER",
            help="a .py file with ModelNew, or a .md or .txt file whose last Python block is one; "
            "several give a table",
        )
        what.add_argument(
            "--reference",
            metavar="FILE",
            type=Path,
            help="the file with Model, get_inputs and get_init_inputs; default: the answer itself",
        )
        add_engine(parser)
        how = group_of(parser, HOW)
        how.add_argument(
            "--no-simulate",
            dest="simulate",
            action="store_false",
            help="on a GPU: do not look for races and accesses out of bounds on the simulator",
        )
        how.add_argument(
            "--diagnose", action="store_true", help="only read the files: build and run nothing"
        )
        how.add_argument(
            "--as-asked", action="store_true", help="judge only the shapes of the task itself"
        )
        how.add_argument(
            "--time-limit",
            metavar="S",
            type=float,
            default=_SECONDS,
            help="the limit of an answer's process in seconds; default: %(default)g",
        )
        how.add_argument(
            "--again",
            action="store_true",
            help="of several answers, judge those again that were judged before",
        )
        group_of(parser, OUTPUT).add_argument(
            "--to",
            metavar="FILE.cu",
            type=Path,
            help="write a skeleton of a convlab kernel with the answer's CUDA code",
        )

    def validate(self, arguments: Namespace) -> None:
        """Raise ProblemError for options that exclude each other."""
        if not arguments.answers:
            raise ProblemError("adopt takes at least one file: adopt answer.py")
        if not arguments.time_limit > 0:
            raise ProblemError("--time-limit must be more than 0 seconds")
        if arguments.to is None:
            return
        if len(arguments.answers) > 1:
            raise ProblemError("--to takes one answer")
        if arguments.to.suffix != ".cu":
            raise ProblemError(f"--to writes a .cu file, not {end_of(arguments.to)}")
        if arguments.to.exists():
            raise ProblemError(f"{end_of(arguments.to)} exists; --to replaces no file")

    def run(self, arguments: Namespace) -> Iterator[Any]:
        for word in (*arguments.answers, *filter(None, [arguments.reference])):
            if not Path(word).is_file():
                raise ProblemError(f"there is no file {end_of(word)}")
            if Path(word).suffix not in (".py", ".md", ".txt"):
                raise ProblemError(f"{end_of(word)} is no .py, .md or .txt file")
        if arguments.to is not None:
            yield _skeleton(arguments)
            return
        if len(arguments.answers) == 1:
            from .table import judge_one

            # With progress, the verdict as asked is shown before the other shapes are tried.
            options = {**_options(arguments), "progress": lambda stage: None}
            yield judge_one(Path(arguments.answers[0]), arguments.reference, options)
            return
        from .table import judge_all

        paths = [Path(word) for word in arguments.answers]
        yield judge_all(paths, arguments.reference, _options(arguments), again=arguments.again)


def _options(arguments: Namespace) -> dict[str, Any]:
    return {
        "engine": arguments.engine,
        "simulate": arguments.simulate,
        "general": not arguments.as_asked,
        "time_limit": arguments.time_limit,
        "run": not arguments.diagnose,
    }


def _skeleton(arguments: Namespace) -> TextResult:
    from .answer import read
    from .skeleton import skeleton

    answer = read(Path(arguments.answers[0]))
    text, marked = skeleton(answer)
    arguments.to.write_text(text)
    lines = [f"wrote {end_of(arguments.to)}: a skeleton to complete"]
    lines += [f"{answer.path.name}:{line}: marked: {what}" for line, what in marked]
    document = {"file": str(arguments.to), "marked": [{"line": n, "text": w} for n, w in marked]}
    return TextResult("\n".join(lines), document)
