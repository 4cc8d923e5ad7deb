"""The base class of the commands of ``python -m convlab`` and ``%convlab``, and shared arguments.

A room adds a command with a subclass of `Command` and one line in its ``room.toml``::

    [command]
    sweep = "convlab.tuning.command:SweepCommand"

The module is imported to build the parser. It must not import torch, which takes seconds, so that a
mistyped word is reported at once. `Command.run` imports what it needs.
"""

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.defaults import ENDINGS, ENGINES
from ..core.errors import BuildError, LaunchError, ProblemError, UnsupportedError
from ..core.faults import INCORRECT, NOT_RUN, NOT_SIMULATED, OUT_OF_TIME, SHOWN
from ..core.kernel import catalog
from ..core.machine.gpus import GPUS
from ..core.problem.named import PROBLEM_SETS
from .exit_status import outcome_of
from .text_result import Failure

SPEC = '"N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1"'
# The groups of options in a command's help.
WHAT = "what to run"
HOW = "how to run it"
OUTPUT = "output"
# The groups of commands in the help, in order.
WRITE = "write and check a kernel"
MEASURE = "measure and explain"
KEEP = "this machine and saved results"


class Command:
    """One command: its arguments, and the results that it yields.

    Attributes
    ----------
    about : one sentence for the help.
    words : the positional arguments, for the usage line.
    example : the words of a typical call, without the program's name.
    group : the group of the help that lists it: `WRITE`, `MEASURE` or `KEEP`.
    verbose : whether the command has ``--verbose``.
    name : the word that the user types.
    program : what the user types before it: "python -m convlab", "convlab" or "%convlab".
    results_key : the name of the list of results in the JSON document, such as "reports", if there is
        one result for each kernel. Empty if there is one result, which is the document.
    """

    about = ""
    words = ""
    example = ""
    group = KEEP
    verbose = False
    results_key = ""

    def __init__(self, name: str, program: str) -> None:
        self.name = name
        self.program = program

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def validate(self, arguments: Namespace) -> None:
        """Raise ProblemError for arguments that contradict each other, before any work is done."""

    def run(self, arguments: Namespace) -> Iterator[Any]:
        """Yield results as soon as they are known: they have ``ok``, a text and ``to_dict``."""
        raise NotImplementedError

    def summary(self, results: Sequence[Any], verbose: bool) -> str:
        """Return the verdict on several results in a sentence; empty if none is needed."""
        return ""


class CommandForEachKernel(Command):
    """A command that runs for one kernel after the other; a failure does not stop the others.

    Attributes
    ----------
    good : the word for a kernel whose result is ok, for the summary.
    """

    good = "correct"

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

    def summary(self, results: Sequence[Any], verbose: bool) -> str:
        """Return how many kernels are good, which are not, and how many are unsupported."""
        count = len(results)
        if count < 2:
            return ""
        good = sum(result.ok for result in results)
        text = f"{good} of {count} kernels {self.good}"
        for each in (INCORRECT, NOT_RUN, OUT_OF_TIME, NOT_SIMULATED):
            names = [_kernel_name(result) for result in results if outcome_of(result) == each]
            if names:
                shown = f"not {self.good}" if each == INCORRECT else SHOWN[each]
                text += f"; {shown}: {', '.join(names)}"
        if unsupported := sum(result.nothing_ran for result in results):
            text += f"; {unsupported} of {count} kernels do not support this problem"
            text += "" if verbose else "; --verbose lists them"
        return text


def _kernel_name(result: Any) -> str:
    return result.document["kernel"] if isinstance(result, Failure) else result.kernel


def group_of(parser: ArgumentParser, title: str) -> _ArgumentGroup:
    """Return the parser's group of options with this title; add it if there is none."""
    for group in parser._action_groups:
        if group.title == title:
            return group
    return parser.add_argument_group(title)


def add_kernels(
    parser: ArgumentParser, number: str, *, nargs: int | str = "*", baselines: bool = False
) -> None:
    """Add the kernels, as positional arguments; `number` is the help's text on how many."""
    baseline = ", or a baseline (cudnn:tf32)" if baselines else ""
    group_of(parser, WHAT).add_argument(
        "kernels",
        nargs=nargs,
        metavar="KERNEL",
        help=f"{number}; a name or a path{baseline}; NAME@TUNABLE=VALUE sets a tunable",
    )


def require_kernels(arguments: Namespace, least: int, most: int, number: str) -> None:
    """Raise ProblemError unless there are `least` to `most` kernels."""
    words = arguments.kernels
    if not least <= len(words) <= most:
        what = " and ".join(map(str, words)) or "none"
        raise ProblemError(f"{arguments.command.name} takes {number}, not {what}")


# The number of sets of problems that a command's help names.
_SETS_SHOWN = 4


def add_problem(
    parser: ArgumentParser, default: str | None = "square", shown: str | None = None
) -> None:
    """Add ``--problem``; `shown` is the help's text for the default."""
    sets = f"{', '.join(PROBLEM_SETS[:_SETS_SHOWN])}, ...; `list` names all"
    group_of(parser, WHAT).add_argument(
        "--problem",
        metavar="P",
        default=default,
        help=f"a name, a set ({sets}), or dimensions: {SPEC}; default: {shown or default}",
    )


def add_predicted_gpu(parser: ArgumentParser) -> None:
    """Add the option for the GPU that times are predicted for."""
    group_of(parser, HOW).add_argument(
        "--gpu",
        help=f"without a GPU, predict times for this one: {', '.join(GPUS)}; default: H200",
    )


def add_engine(parser: ArgumentParser, auto: str = "the GPU if there is one") -> None:
    """Add ``--engine``; `auto` is the help's text for "auto"."""
    group_of(parser, HOW).add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help=f"cuda: the GPU, sim: the simulator, auto: {auto}; default: auto",
    )


def add_seed(parser: ArgumentParser, what: str = "the data") -> None:
    """Add ``--seed``."""
    group_of(parser, HOW).add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help=f"the random seed of {what}; default: %(default)s",
    )


def add_plot(parser: ArgumentParser, *, for_each_kernel: bool = False) -> None:
    """Add ``--plot``."""
    several = "; of several kernels, one file each, which ends with the kernel's name"
    group_of(parser, OUTPUT).add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help=f"draw the result ({', '.join(ENDINGS)}){several if for_each_kernel else ''}",
    )


def add_save(parser: ArgumentParser) -> None:
    """Add ``--save``."""
    group_of(parser, OUTPUT).add_argument(
        "--save",
        nargs="?",
        const="",
        metavar="FILE",
        help="save a receipt, with all samples and versions, in a .json file; without FILE, where "
        "`history` reads it",
    )


def add_verbose(parser: ArgumentParser) -> None:
    """Add ``--verbose``."""
    group_of(parser, OUTPUT).add_argument(
        "--verbose",
        action="store_true",
        help="show all columns and notes, and why a kernel does not support a problem",
    )


def add_listing(parser: ArgumentParser) -> None:
    """Add ``--listing``."""
    group_of(parser, OUTPUT).add_argument(
        "--listing", action="store_true", help="show the source with the cost of each line"
    )
