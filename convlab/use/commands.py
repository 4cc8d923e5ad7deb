"""What ``python -m convlab`` and the notebook's ``%convlab`` share: the grammar, and the calls."""

from __future__ import annotations

import argparse
import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..fast.ab import LIMIT_SECONDS, ab
from ..fast.compare import Comparison, compare
from ..fast.paired import MODES
from ..fast.ratio import THRESHOLD
from ..fast.sweep import Sweep, sweep
from ..fast.verdict import AB
from ..right.check import COUNT, check, resolve
from ..right.report import Report, Reports
from ..run.kernel import ENGINES, Kernel, load, tunables
from ..why import inspect
from ..why.inspection import Inspection
from ..words import catalog
from ..words.errors import CatalogError, ProblemError
from ..words.problem import PROBLEM_SETS, Problem, problems
from . import doctor


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and names what is nearest to a word it does not know."""

    def __init__(self, words: list[str], **options: Any) -> None:
        self.words = words
        self.commands: dict[str, Parser] = {}
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """As argparse's; remembers the words that it brings."""
        self.words += [*names, *options.get("choices", ())]
        return super().add_argument(*names, **options)

    def hinted(self, message: str) -> str:
        """The message, with the word that is nearest to the unknown one that it names."""
        asked = re.search(r"unrecognized arguments: (-[^\s=]*)|invalid choice: '([^']*)'", message)
        near = difflib.get_close_matches(asked[1] or asked[2], self.words, 1) if asked else []
        return message + (f"; did you mean {near[0]}?" if near else "")

    def error(self, message: str) -> None:
        """Print the usage and the message, and exit with status 2."""
        super().error(self.hinted(message))


def parser(kind: type[Parser] = Parser, *, notebook: bool = False) -> Parser:
    """The parser of all commands; what it returns has the command's name as ``command``.

    Parameters
    ----------
    kind : the class of it and of its commands' parsers.
    notebook : without the benchmarks and JSON, and no file is written unless asked for.
    """
    words: list[str] = []
    top = kind(
        words,
        prog="%convlab" if notebook else "python -m convlab",
        description="A microscope for CUDA convolution kernels.",
    )
    group = top.add_subparsers(
        required=True, metavar="COMMAND", parser_class=functools.partial(kind, words)
    )

    def add(name: str, text: str, *, kernels: bool = False, problem: str | None = None) -> Parser:
        words.append(name)
        command = top.commands[name] = group.add_parser(name, help=text, description=text)
        command.set_defaults(command=name)
        if not notebook:
            command.add_argument("--json", action="store_true", help="print one JSON document")
        if kernels:
            command.add_argument(
                "kernels",
                nargs="*",
                metavar="KERNEL",
                help="name or path; all "
                "kernels if none is given; NAME@TUNABLE=VALUE sets a tunable; "
                "the problem may stand among them",
            )
            command.add_argument(
                "--kernel",
                action="append",
                default=[],
                metavar="KERNEL",
                help="the same, repeatable",
            )
            command.add_argument("--engine", choices=ENGINES, default="auto")
        if problem is not None:
            command.add_argument("--problem", metavar="P", default=None, help=problem)
        return command  # fmt: skip

    def png(command: Parser, default: str | None = None, **options: Any) -> None:
        written = None if notebook or default is None else Path(default)
        command.add_argument("--plot", metavar="PNG", default=written, type=Path, **options)

    named = 'a name, a spec such as "N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1"; {}'
    sets = f"or one of the sets {', '.join(PROBLEM_SETS)}; default: {{}}"
    add("list", "The kernels and the named problems.")
    command = add("check", "Is it right?", kernels=True, problem=named.format(
        sets.format("awkward, and generated ones")))  # fmt: skip
    command.add_argument(
        "--count",
        metavar="N",
        type=int,
        default=COUNT,
        help="how many problems to generate, without --problem (%(default)s)",
    )
    command.add_argument("--seed", metavar="N", type=int, default=0,
                         help="of the data and of the generated problems (0)")  # fmt: skip
    png(command, help="where the error is, of the kernel last found wrong")
    command = add("compare", "Several kernels side by side: error, cost, floor.",
                  kernels=True, problem=named.format("default: square"))  # fmt: skip
    png(command, "convlab-compare.png")
    command = add("ab", "Is B faster than A, slower, or the same? First, are both right?",
                  problem=named.format("default: square"))  # fmt: skip
    command.add_argument("a", metavar="A", help="name, NAME@TUNABLE=VALUE, path, or a baseline "
                         "such as cudnn:tf32")  # fmt: skip
    command.add_argument("b", metavar="B")
    command.add_argument("on", metavar="P", nargs="?", help="the problem, as with --problem")
    command.add_argument("--engine", choices=ENGINES, default="auto")
    command.add_argument("--mode", choices=(*MODES, "both"), default="both",
                         help="L2 flushed before each launch, or not at all")  # fmt: skip
    command.add_argument("--threshold", type=float, default=100 * THRESHOLD, metavar="PERCENT",
                         help="called the same; default: %(default)g")  # fmt: skip
    command.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS",
                         help="time for the rounds of a mode; default: %(default)g")  # fmt: skip
    command.add_argument("--seed", type=int, default=0)
    png(command)
    command = add("sweep", "A kernel over a grid of tunables.",
                  problem=named.format(sets.format("square")))  # fmt: skip
    command.add_argument("kernel", metavar="KERNEL", help="name or path")
    command.add_argument("tunables", metavar="NAME=VALUE,VALUE", nargs="+",
                         help="the problem may stand among them")  # fmt: skip
    command.add_argument("--engine", choices=ENGINES, default="auto")
    png(command)
    command = add("inspect", "Why: registers, occupancy, cost by line, a model's time.",
                  kernels=True, problem=named.format("default: square"))  # fmt: skip
    command.add_argument("--gpu", help="T4, A100, L4, 4090, H100, H200; default: the one here")
    command.add_argument("--listing", action="store_true", help="the source, line by line")
    command.add_argument(
        "--sample",
        metavar="N",
        type=int,
        help="simulate N blocks of the problem itself, not a small one; scaled",
    )
    png(command, "convlab-inspect.png",
        help="of several kernels, each one's name is put before the ending")  # fmt: skip
    if not notebook:
        _add_benches(add, named.format(sets.format("headline")))
    add("doctor", "What this machine has, and what to do about what is missing.")
    return top


def _add_benches(add: Any, problem: str) -> None:
    command = add("bench", "Kernels over several problems, as README's table has it.",
                  kernels=True, problem=problem)  # fmt: skip
    command.add_argument("--write", metavar="FILE", type=Path,
                         help="write the tables between the markers of this file")  # fmt: skip
    command = add("bench-build", "How long a build takes, next to load_inline.")
    command.add_argument("--engine", choices=ENGINES, default="auto")
    command.add_argument("--write", metavar="FILE", type=Path,
                         help="write the table between the markers of this file")  # fmt: skip


def understood(
    arguments: argparse.Namespace, values: Mapping[str, Any] | None = None
) -> argparse.Namespace:
    """Tell the problem from the kernels among a command's words, and words from variables.

    Parameters
    ----------
    arguments : what the `parser` returned; the same object is returned, changed: ``kernels``,
        ``kernel``, ``a``, ``b`` are texts or runnables, ``problem`` a text, a Problem or None,
        ``tunables`` (of sweep) a dict of lists.
    values : variables that a word may name: kernels, baselines, callables (for ab), problems.

    Raises
    ------
    ProblemError
        Two problems, or a tunable that cannot be read.
    CatalogError
        A word that is none of these, but near to a problem's or a variable's name.
    """
    values = values or {}
    given = [arguments.problem] if getattr(arguments, "problem", None) is not None else []
    take = functools.partial(_kernel, values=values, engine=getattr(arguments, "engine", "auto"))
    if arguments.command == "sweep":
        words = arguments.tunables
        given += [word for word in words if word.count("=") != 1 or word in values]
        arguments.tunables = _grid([word for word in words if word not in given])
        arguments.kernel = take(arguments.kernel)
    elif arguments.command == "ab":
        given += [] if arguments.on is None else [arguments.on]
        arguments.a, arguments.b = take(arguments.a), take(arguments.b)
    elif hasattr(arguments, "kernels"):
        words = [*arguments.kernels, *arguments.kernel]
        given += [word for word in words if _is_problem(word, values)]
        arguments.kernels = [take(word) for word in words if not _is_problem(word, values)]
    if len(given) > 1:
        raise ProblemError(f"one problem at a time, not {' and '.join(given)}")
    if given:
        value = values.get(given[0])
        arguments.problem = value if isinstance(value, Problem) else given[0]
    return arguments


def problem_names() -> list[str]:
    """The names of all problems, and of their sets."""
    return [*PROBLEM_SETS, *(p.name for each in PROBLEM_SETS for p in problems(each))]


def _is_problem(word: str, values: Mapping[str, Any]) -> bool:
    if word in values and hasattr(values[word], "prepare"):
        return False
    if isinstance(values.get(word), Problem) or word in problem_names():
        return True
    return "@" not in word and "/" not in word and bool(re.match(r"N=?\d|\w+=\d+,", word))


def _kernel(word: str, values: Mapping[str, Any], engine: str) -> Any:
    """The kernel that a variable holds, for the engine if one is asked for; else the word."""
    name, _, tuned = word.partition("@")
    value = values.get(name)
    if isinstance(value, Kernel):
        value = value.tuned(tuned) if tuned else value
        return value if engine in ("auto", value.engine) else value.on(engine)
    if word in values and (hasattr(value, "prepare") or callable(value)):
        return value
    try:
        if ":" not in name and "\n" not in name:
            catalog.find(name)
    except CatalogError:
        kernels = [path.stem for path in catalog.catalog()]
        own = [key for key, held in values.items() if isinstance(held, Kernel) and key[0] != "_"]
        others = difflib.get_close_matches(name, [*own, *problem_names()], 1)
        if others and "/" not in name and not difflib.get_close_matches(name, kernels, 1):
            raise CatalogError(
                f"no kernel and no problem is named {name!r}; did you mean {others[0]}?"
            ) from None
        raise
    return word


def _grid(words: Sequence[str]) -> dict[str, list[int]]:
    """The tunables of a sweep, NAME=8,16 each."""
    grid = {}
    for text in words:
        name, _, values = text.partition("=")
        try:
            grid[name] = [int(value) for value in values.split(",")]
        except ValueError:
            raise ProblemError(
                f"cannot read the tunable {text!r}: write NAME=8,16, whole numbers"
            ) from None
    return grid


def chosen(arguments: argparse.Namespace) -> list[Any]:
    """The kernels that were named, or else all of the catalog's."""
    return arguments.kernels or [path.stem for path in catalog.catalog()]


def to_check(arguments: argparse.Namespace) -> list[Any]:
    """The kernels of `check`, loaded."""
    return [resolve(name, arguments.engine) for name in chosen(arguments)]


def checked(kernel: Any, arguments: argparse.Namespace) -> Report | Reports:
    """What `check` finds of one kernel."""
    return check(kernel, arguments.problem, count=arguments.count, seed=arguments.seed)


def compared(arguments: argparse.Namespace) -> Comparison:
    """What `compare` finds."""
    problem = arguments.problem or "square"
    return compare(arguments.kernels or None, problem, engine=arguments.engine)


def judged(arguments: argparse.Namespace) -> AB:
    """What `ab` finds."""
    return ab(
        arguments.a, arguments.b, arguments.problem or "square", engine=arguments.engine,
        mode=MODES if arguments.mode == "both" else arguments.mode, seed=arguments.seed,
        threshold=arguments.threshold / 100, limit_seconds=arguments.limit,
    )  # fmt: skip


def swept(arguments: argparse.Namespace) -> Sweep:
    """What `sweep` finds."""
    problem = arguments.problem or "square"
    return sweep(arguments.kernel, arguments.tunables, problem, engine=arguments.engine)


def inspected(kernel: Any, arguments: argparse.Namespace) -> Inspection:
    """What `inspect` finds of one kernel."""
    if arguments.sample is not None:
        kernel = kernel if isinstance(kernel, Kernel) else load(kernel, engine="sim")
        kernel = kernel.on("sim", sample=arguments.sample)
    problem = arguments.problem or "square"
    return inspect(kernel, problem, gpu=arguments.gpu, engine=arguments.engine)


def listed() -> tuple[dict[str, Any], str]:
    """The kernels and the problems, as what JSON can hold and as text."""
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
    return {"kernels": rows, "problems": sets}, "\n".join(lines)


def examined() -> tuple[dict[str, Any], str]:
    """What `doctor` found, as what JSON can hold and as text."""
    rows = doctor.examine()
    marks = {True: "ok", False: "MISSING", None: "-"}
    lines = []
    for row in rows:
        lines.append(f"{row['what']:<13} {marks[row['ok']]:<8} {row['found']}")
        lines += [f"{'':<22} {row['advice']}"] if row["advice"] else []
    return {"ok": all(row["ok"] is not False for row in rows), "rows": rows}, "\n".join(lines)
