"""The command ``adopt``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..commands.command import HOW, OUTPUT, WHAT, WRITE, Command, add_engine, group_of
from ..commands.text_result import TextResult
from ..core.arguments import end_of
from ..core.errors import ProblemError

_SECONDS = 120.0
_ENDINGS = (".py", ".md", ".txt")
_CONFINED = """
An answer is somebody's code. It runs in its own process, with limits of time,
memory (8 GiB) and processes (64), writes only to a scratch folder, and opens no
TCP connection (a note says where Linux lacks this). Compilers have limits, too.
Not confined: reading files, UDP, a kernel on a GPU. convlab/adopt/README.md has
the rest. The comparison is in the same process: hostile code can deceive it."""


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
            help="a .py file with ModelNew, a .md or .txt file with a Python block that has it (the last "
            "one), or a folder of these; several give a table",
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
        paths = _found(arguments.answers)
        if arguments.reference is not None:
            _found([arguments.reference])
        if arguments.to is not None:
            if len(paths) > 1:
                raise ProblemError("--to takes one answer")
            yield _skeleton(paths[0], arguments.to)
            return
        from .table import judge_all, judge_one

        if len(paths) == 1:
            # With progress, the verdict as asked is shown before the other shapes are tried.
            options = {**_options(arguments), "progress": lambda stage: None}
            yield judge_one(paths[0], arguments.reference, options)
            return
        yield judge_all(paths, arguments.reference, _options(arguments), again=arguments.again)


def _found(words: Sequence[str]) -> list[Path]:
    """Return the files that words name: files, and the .py, .md and .txt files of folders.

    Raises ProblemError for a word that is no such file or folder.
    """
    files = []
    for word in words:
        path = Path(word)
        if path.is_dir():
            inside = sorted(
                each for each in path.iterdir() if each.suffix in _ENDINGS and each.is_file()
            )
            if not inside:
                raise ProblemError(f"the folder {end_of(word)} has no .py, .md or .txt file")
            files += inside
        elif not path.is_file():
            raise ProblemError(f"there is no file {end_of(word)}")
        elif path.suffix not in _ENDINGS:
            raise ProblemError(f"{end_of(word)} is no .py, .md or .txt file")
        else:
            files.append(path)
    return files


def _options(arguments: Namespace) -> dict[str, Any]:
    return {
        "engine": arguments.engine,
        "simulate": arguments.simulate,
        "general": not arguments.as_asked,
        "time_limit": arguments.time_limit,
        "run": not arguments.diagnose,
    }


def _skeleton(path: Path, to: Path) -> TextResult:
    from .answer import read
    from .skeleton import skeleton
    from .stand_in import not_a_convolution

    answer = read(path)
    text, marked = skeleton(answer)
    to.write_text(text)
    lines = [f"wrote {end_of(to)}: a skeleton to complete"]
    other = not_a_convolution(answer) if "Model" in answer.classes else None
    if other is not None:
        lines.append(
            f"note: a .cu file of convlab computes a 2-D convolution, and this Model is none ({other})"
        )
    lines += [f"{answer.path.name}:{line}: marked: {what}" for line, what in marked]
    document = {"file": str(to), "marked": [{"line": n, "text": w} for n, w in marked]}
    return TextResult("\n".join(lines), document)
