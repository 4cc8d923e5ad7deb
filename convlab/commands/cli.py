"""The words that ``python -m convlab`` and the notebook's ``%convlab`` know, and what they mean.

What is wrong with them is told before torch is imported, which takes seconds.
"""

import argparse
import functools
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..core.arguments import choice, hint, writable
from ..core.defaults import BASELINES, COUNT, ENDINGS, ENGINES, MODES, SECONDS, THRESHOLD
from ..core.errors import CatalogError, ProblemError
from ..core.kernel import catalog
from ..core.machine import toolchain
from ..core.problem.named import PROBLEM_SETS, members, problems
from ..core.problem.problem import EPILOGUE, Problem

# How many kernels a command takes, and what it says of them; another takes any number.
_KERNELS = {
    "ab": (2, 2, "two kernels, A and B"),
    "sweep": (1, 1, "one kernel, then NAME=8,16"),
    "diff": (1, 2, "a kernel, and perhaps another than its parent"),
}
# The problem of each command that takes one, unless told; `check` has its own.
PROBLEMS = {"check": None, **dict.fromkeys(("compare", "ab", "sweep", "inspect"), "square")}
STATUS = """exit status: 0: what ran is right (a kernel may decline the problem, by its header); 1: a
kernel is wrong, or does not build or run; doctor: something is missing; 2: a word, a file or a problem
is not what the command takes; 3: nothing ran, as no kernel does the problem; 130: interrupted"""
_NAMES = "|".join(field.name for field in fields(Problem))
_DIMENSION = re.compile(rf"({_NAMES}|[spdg])=?-?\d+(x\d+)?,?|{'|'.join(EPILOGUE)}", re.I)
_FIRST = re.compile(r"N=?\d+(?=[\s,]|$)", re.I)
_SPEC = '"N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1"'


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and names what is nearest to a word it does not know."""

    def __init__(self, **options: Any) -> None:
        self.commands: Mapping[str, Parser] = {}
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        """As argparse's, but kernels and problems may also stand after options."""
        args = _joined(sys.argv[1:] if args is None else args)
        for i, (word, after) in enumerate(zip(args, [*args[1:], ""])):
            named = after.partition(" ")[0] in problem_names()
            file = Path(after).suffix not in ("", ".cu") and not named
            if word == "--save" and not file:  # a kernel, or the problem
                args[i] = "--save="
        found, rest = self.parse_known_args(args, namespace)
        if "words" in found and not any(word.startswith("-") for word in rest):
            found.words = [*found.words, *rest]
            rest = []
        if rest:
            told = self.commands.get(getattr(found, "command", None), self)
            told.error(f"unrecognized arguments: {' '.join(rest)}")
        return found

    def hinted(self, message: str) -> str:
        """The message, with the word that is nearest to the unknown one that it names."""
        asked = re.search(r"(?:unrecognized arguments: (?=-)|invalid choice: ')([^\s=']*)", message)
        word = asked[1] if asked else ""
        choices = [each for action in self._actions for each in action.choices or ()]
        return message + hint(word, self._option_string_actions if word[:1] == "-" else choices)

    def error(self, message: str) -> None:
        """Print the usage and the message, and exit with status 2."""
        super().error(self.hinted(message))


def _joined(words: Sequence[str]) -> list[str]:
    """The words, but a problem's that stand apart, N1 C3 H8 ... or wide bias, as one."""
    found: list[str] = []
    for word in words:
        last = found[-1] if found else ""
        spelt = _FIRST.match(last) and _DIMENSION.fullmatch(word)
        if spelt or (word in EPILOGUE and last.split(" ")[0] in problem_names()):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def parser(kind: type[Parser] = Parser, *, prog: str = "python -m convlab") -> Parser:
    """The parser of all commands; what it returns has the command's name as ``command``.

    ``prog`` is what the user typed; for "%convlab" it is without JSON.
    """
    notebook = prog.startswith("%")
    about = "A microscope for CUDA convolution kernels."
    top = kind(prog=prog, description=about, epilog=None if notebook else STATUS)
    group = top.add_subparsers(required=True, metavar="COMMAND", parser_class=kind)
    top.commands = group.choices

    def add(name: str, text: str, *, plot: bool = True) -> Callable:
        about = {"help": text, "description": text, "epilog": top.epilog}
        command = group.add_parser(name, **about)
        command.set_defaults(command=name, prog=prog)
        option = command.add_argument
        if name in PROBLEMS or name in _KERNELS:
            *_, taken = _KERNELS.get(name, ("all kernels if none is given",))
            library = " or a baseline such as cudnn:tf32" * (name in ("check", "compare", "ab"))
            option(
                "words",
                nargs="*",
                metavar="KERNEL",
                help=f"{taken}; each is a name or a path"
                f"{library}; NAME@TUNABLE=VALUE sets a tunable",
            )
        if name in PROBLEMS:
            default = PROBLEMS[name] or "awkward, limits, generated"
            sets = ", ".join(PROBLEM_SETS)
            option(
                "--problem",
                metavar="P",
                help=f"a name, a set ({sets}), or a spec like {_SPEC}; "
                f"it may stand among the kernels; default: {default}",
            )
            option(
                "--engine",
                choices=ENGINES,
                default="auto",
                help="the GPU, or the simulator; "
                "auto: the GPU where there is one; of inspect, both",
            )
        if plot:
            several = "; of several kernels, each one's name is put before the ending"
            option(
                "--plot",
                metavar="FILE",
                type=Path,
                help=f"draw it: {', '.join(ENDINGS)}"
                f"{several if name in ('check', 'inspect') else ''}",
            )
        if not notebook:
            option("--json", action="store_true", help="print one JSON document")
        return option

    number = {"metavar": "N", "type": int}
    add("list", "The kernels, where they are, and the named problems.", plot=False)
    option = add("check", "Is it right?")
    option(
        "--count", **number, help=f"how many problems to generate, where none is given ({COUNT})"
    )
    option("--seed", **number, default=0, help="of the data and of the generated problems (0)")
    option(
        "--setting",
        metavar="NAME",
        help="run the problem in a setting of the default check: "
        "zeros, huge, offset, ...; any other word lists them all",
    )
    add("compare", "Several kernels side by side: error, cost, floor.")
    option = add("ab", "Is B faster than A, slower, or the same? First, are both right?")
    option(
        "--mode",
        choices=(*MODES, "both"),
        default="both",
        help="L2 flushed before each launch, or not at all; default: both",
    )
    option(
        "--threshold",
        type=float,
        default=100 * THRESHOLD,
        metavar="PERCENT",
        help="called the same; default: %(default)g",
    )
    option(
        "--limit",
        type=float,
        default=SECONDS,
        metavar="SECONDS",
        help="time for the rounds of a mode; default: %(default)g",
    )
    option("--seed", **number, default=0, help="of the data (0)")
    option("--careful", action="store_true", help="time it in fresh processes: about a minute")
    for name in ("compare", "ab"):
        top.commands[name].add_argument(
            "--save",
            nargs="?",
            const="",
            metavar="FILE",
            help="keep it as a receipt, with all samples,"
            " versions and the sources' digests, in this .json file or where `history` looks",
        )
    add("sweep", "A kernel over a grid of tunables.")
    option = add("inspect", "Why: registers, occupancy, cost by line, a model's time.")
    option("--gpu", help="T4, A100, L4, 'RTX 4090', H100 or H200; default: the one here, else H200")
    option("--listing", action="store_true", help="the source, line by line")
    option = add("history", "Results that were saved, beside one another.")
    option(
        "paths",
        nargs="*",
        type=Path,
        metavar="JSON",
        help="files and folders; default: what --save kept",
    )
    add("diff", "What a kernel changes of the one that it descends from.", plot=False)
    option = add("cache", "The builds that are kept, and their size.", plot=False)
    option(
        "action",
        nargs="?",
        choices=("show", "clear"),
        default="show",
        help="what is kept, or also remove it; default: %(default)s",
    )
    add("doctor", "What this machine has, and what to do about what is missing.", plot=False)
    return top


def understood(
    arguments: argparse.Namespace, values: Mapping[str, Any] | None = None
) -> argparse.Namespace:
    """Tell the problem from the kernels among a command's words, and words from variables.

    What the `parser` returned is changed and returned: ``kernels`` is a list of texts or runnables,
    ``problem`` a text, a Problem or None, ``tunables`` (of sweep) a dict of lists. `values` are
    variables that a word may name: kernels, baselines, callables (for ab), problems. CatalogError
    is also raised for a word that is only near to such a name.
    """
    values = values or {}
    asked = vars(arguments)
    command = arguments.command
    take = functools.partial(_kernel, values=values, engine=asked.get("engine", "auto"))
    least, most, taken = _KERNELS.get(command, (0, math.inf, ""))
    given = [asked["problem"]] if asked.get("problem") is not None else []
    kernels = []
    tunables = []
    for word in asked.pop("words", ()):
        if command == "sweep" and kernels and word.count("=") == 1 and word not in values:
            tunables.append(word)
        elif command in PROBLEMS and (
            _is_problem(word, values) or (len(kernels) == most and not word.endswith(".cu"))
        ):
            given.append(word)
        else:
            kernels.append(word)
    if not least <= len(kernels) <= most:
        raise ProblemError(f"{command} takes {taken}, not {' and '.join(kernels) or 'none'}")
    asked["kernels"] = [take(word) for word in kernels]
    asked["tunables"] = _grid(tunables)
    if len(given) > 1:
        more = "; a tunable is NAME=8,16" if command == "sweep" else ""
        raise ProblemError(f"one problem at a time, not {' and '.join(given)}{more}")
    if given:
        value = values.get(given[0])
        asked["problem"] = value if isinstance(value, Problem | str) else given[0]
    elif command in PROBLEMS:
        asked["problem"] = PROBLEMS[command]
    if asked.get("problem") is not None:
        members(asked["problem"])  # raises, before the work
        if asked.get("count") is not None:
            raise ProblemError("--count is of generated problems: leave it out, or the problem")
    for name, endings in (("plot", ENDINGS), ("save", (".json",))):  # before the work
        if asked.get(name):
            writable(asked[name], f"--{name}", endings)
    if asked.get("save") == "" and not toolchain.lasting():
        raise ProblemError(f"--save: receipts go when Python ends: {toolchain.MOVE}")
    return arguments


def problem_names() -> list[str]:
    """The names of all problems, and of their sets."""
    return [*PROBLEM_SETS, *(p.name for each in PROBLEM_SETS for p in problems(each))]


@functools.cache
def _kinds() -> tuple[type, type]:
    """Kernel and Runnable, which a variable may hold: with them comes torch, slow to import."""
    from ..core.kernel.kernel import Kernel
    from ..core.kernel.runnable import Runnable

    return Kernel, Runnable


def _is_problem(word: str, values: Mapping[str, Any]) -> bool:
    held = values.get(word)
    if values and isinstance(held, _kinds()[1]):
        return False
    if isinstance(held, Problem) or word.partition(" ")[0] in problem_names():
        return True
    word = held if isinstance(held, str) else word
    spelt = _FIRST.match(word) or re.match(r"\w+=\d+,", word)
    return "@" not in word and "/" not in word and bool(spelt)


def _kernel(word: str, values: Mapping[str, Any], engine: str) -> Any:
    """The kernel that a variable holds, for the engine if one is asked for; else the word."""
    name, _, tuned = word.partition("@")
    Kernel, Runnable = _kinds() if values else ((), ())
    value = values.get(name)
    if isinstance(value, Kernel):
        value = value.tuned(tuned) if tuned else value
        return value if engine in ("auto", value.engine) else value.on(engine)
    if isinstance(values.get(word), Runnable) or callable(values.get(word)):
        return values[word]
    if word in EPILOGUE:
        raise ProblemError(f"{word} stands after a problem, by name or dimensions: wide {word}")
    if re.match(r"[A-Za-z_]+=-?\d|n\d+[a-z]\d|\d+x\d", word, re.I) and not Path(word).exists():
        raise ProblemError(
            f"{word} is no kernel: kernels come first, a tunable as part of the name, KERNEL@{word}; then "
            f"a problem, by name or dimensions: {_SPEC}"
        )
    if ":" in name:
        return choice(name, "baseline", BASELINES)
    try:
        catalog.find(name)
    except CatalogError:
        if "/" in name or name.endswith(".cu") or hint(name, catalog.names()):
            raise
        own = [key for key, held in values.items() if isinstance(held, Kernel) and key[0] != "_"]
        known = [*own, *catalog.names(), *BASELINES, *problem_names(), *EPILOGUE]
        near = hint(name, known, catalog.SHOWN)
        raise CatalogError(f"no kernel and no problem is named {name!r}{near}") from None
    return word


def _grid(words: Sequence[str]) -> dict[str, list[int]]:
    """The tunables of a sweep, NAME=8,16 each."""
    grid = {}
    for text in words:
        name, _, values = text.partition("=")
        if not re.fullmatch(r"-?\d{1,18}(,-?\d{1,18})*", values):
            raise ProblemError(f"cannot read the tunable {text!r}: write NAME=8,16, whole numbers")
        if name in grid:
            raise ProblemError(f"{name} is given twice; list its values once: {name}=8,16")
        grid[name] = [int(value) for value in values.split(",")]
    return grid
