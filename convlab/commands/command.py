"""What a command of ``python -m convlab`` and ``%convlab`` is, and the arguments that several share.

A room adds a command with a subclass of `Command` and one line in its ``room.toml``::

    [command]
    sweep = "convlab.tuning.command:SweepCommand"

The module is imported to build the parser. It must not import torch, which takes seconds: a mistyped
word is reported before that. `Command.run` imports what it needs.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.defaults import ENDINGS, ENGINES
from ..core.errors import BuildError, LaunchError, ProblemError, UnsupportedError
from ..core.kernel import catalog
from ..core.problem.named import PROBLEM_SETS
from .text_result import Failure

SPEC = '"N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1"'


class Command:
    """One command: its arguments, and the results that it yields.

    Attributes
    ----------
    about : one sentence for the help.
    example : the words of a typical call, without the program's name.
    name : the word that the user types.
    program : what the user types before it: "python -m convlab", "convlab" or "%convlab".
    results_key : what the JSON document calls the list of results, where there is one for each
        kernel: "reports". Empty where there is one result, which is the document.
    """

    about = ""
    example = ""
    results_key = ""

    def __init__(self, name: str, program: str) -> None:
        self.name = name
        self.program = program

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def validate(self, arguments: Namespace) -> None:
        """Raise ProblemError for arguments that do not fit together, before any work is done."""

    def run(self, arguments: Namespace) -> Iterator[Any]:
        """Yield results, each as soon as it is known: they have ``ok``, a text and ``to_dict``."""
        raise NotImplementedError


class CommandForEachKernel(Command):
    """A command that runs for one kernel after the other: one that fails does not stop the others."""

    def run(self, arguments: Namespace) -> Iterator[Any]:
        """Yield a result for each kernel: a `Failure` if it does not build or run."""
        for word in arguments.kernels or [path.stem for path in catalog.catalog()]:
            name = str(word)
            try:
                kernel = self.load(word, arguments.engine)
                name = kernel.name
                yield self.run_kernel(kernel, word, arguments)
            except (BuildError, LaunchError, UnsupportedError) as error:
                yield Failure.of(name, error)

    def load(self, word: Any, engine: str) -> Any:
        """Return the runnable that a word means: a kernel's name or path, or a baseline's name."""
        from ..core.kernel.kernel import resolve

        return resolve(word, engine)

    def run_kernel(self, kernel: Any, word: Any, arguments: Namespace) -> Any:
        """Return the result of one kernel, which the user wrote as `word`."""
        raise NotImplementedError


def add_kernels(
    parser: ArgumentParser, number: str, *, nargs: int | str = "*", baselines: bool = False
) -> None:
    """Add the kernels, as positional arguments. `number` says in the help how many there may be."""
    baseline = " or a baseline such as cudnn:tf32" if baselines else ""
    parser.add_argument(
        "kernels",
        nargs=nargs,
        metavar="KERNEL",
        help=f"{number}; each is a name or a path{baseline}; NAME@TUNABLE=VALUE sets a tunable",
    )


def require_kernels(arguments: Namespace, least: int, most: int, number: str) -> None:
    """Raise ProblemError unless there are so many kernels."""
    words = arguments.kernels
    if not least <= len(words) <= most:
        what = " and ".join(map(str, words)) or "none"
        raise ProblemError(f"{arguments.command.name} takes {number}, not {what}")


def add_problem(
    parser: ArgumentParser, default: str | None = "square", shown: str | None = None
) -> None:
    """Add ``--problem``. `shown` is what the help calls the default."""
    sets = ", ".join(PROBLEM_SETS)
    parser.add_argument(
        "--problem",
        metavar="P",
        default=default,
        help=f"a name, a set ({sets}), or dimensions such as {SPEC}; default: {shown or default}",
    )


def add_engine(parser: ArgumentParser, auto: str = "the GPU where there is one") -> None:
    """Add ``--engine``. `auto` says in the help what "auto" means."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help=f"cuda is the GPU, sim the simulator, auto {auto}; default: auto",
    )


def add_seed(parser: ArgumentParser, what: str = "the data") -> None:
    """Add ``--seed``."""
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help=f"of {what}; default: %(default)s"
    )


def add_plot(parser: ArgumentParser, *, for_each_kernel: bool = False) -> None:
    """Add ``--plot``."""
    several = "; of several kernels, each file's name ends with the kernel's"
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help=f"draw the result: {', '.join(ENDINGS)}{several if for_each_kernel else ''}",
    )


def add_save(parser: ArgumentParser) -> None:
    """Add ``--save``."""
    parser.add_argument(
        "--save",
        nargs="?",
        const="",
        metavar="FILE",
        help="keep the result as a receipt, with all samples, versions and digests of the sources: "
        "in this .json file, or without FILE where `history` looks (then write --save last)",
    )
