"""What ``python -m convlab`` and the notebook's ``%convlab`` share: the grammar, and the answers."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..fast import bench
from ..fast.ab import LIMIT_SECONDS, ab
from ..fast.compare import compare
from ..fast.paired import MODES
from ..fast.ratio import THRESHOLD
from ..fast.sweep import sweep
from ..right.check import COUNT, check
from ..run.kernel import ENGINES, Kernel, load, resolve, tunables
from ..run.runnable import Runnable
from ..why import inspect
from ..words import catalog
from ..words.errors import BuildError, CatalogError, LaunchError, ProblemError, UnsupportedError
from ..words.problem import PROBLEM_SETS, Problem, problem, problems
from . import doctor

PROBLEM = (
    'a name, a set ({sets}), or a spec such as "N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1"; '
    "default: {default}"
)
PLURAL = {"check": "reports", "inspect": "inspections"}  # of each kernel that was asked for


@dataclass(frozen=True, repr=False)
class Told:
    """An answer that is text: what `list`, `doctor`, `diff` and the benchmarks find.

    Attributes
    ----------
    text : what a reader sees.
    document : the same as what JSON can hold.
    ok : whether all of it is well.
    language : of the text, where a notebook can highlight it.
    """

    text: str
    document: dict[str, Any]
    ok: bool = True
    language: str = ""

    def __repr__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def _repr_markdown_(self) -> str | None:
        return f"```{self.language}\n{self.text}\n```" if self.language else None


@dataclass(frozen=True, repr=False)
class Failed(Told):
    """One kernel of several that does not build or run; the others are still asked."""

    error: Exception | None = None


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


def parser(kind: type[Parser] = Parser, *, prog: str = "python -m convlab") -> Parser:
    """The parser of all commands; what it returns has the command's name as ``command``.

    Parameters
    ----------
    kind : the class of it and of its commands' parsers.
    prog : what the user typed; for "%convlab" without the benchmarks and JSON.
    """
    words: list[str] = []
    top = kind(words, prog=prog, description="A microscope for CUDA convolution kernels.")
    group = top.add_subparsers(
        required=True, metavar="COMMAND", parser_class=functools.partial(kind, words)
    )
    notebook = prog.startswith("%")

    def add(name: str, text: str, *, kernels: str = "", default: str = "",
            engine: bool = True, plot: bool = True) -> Callable[..., argparse.Action]:  # fmt: skip
        words.append(name)
        command = top.commands[name] = group.add_parser(name, help=text, description=text)
        command.set_defaults(command=name)
        option = command.add_argument
        if kernels:
            option("kernels", nargs="*", metavar="KERNEL", help=kernels)
            option("--kernel", action="append", default=[], metavar="KERNEL", help="repeatable")
        if default:
            shown = PROBLEM.format(sets=", ".join(PROBLEM_SETS), default=default)
            option("--problem", metavar="P", help=shown)
        if engine:
            option("--engine", choices=ENGINES, default="auto")
        if plot:
            option("--plot", metavar="PNG", type=Path, help="draw it to this file; of several "
                   "kernels, each one's name is put before the ending")  # fmt: skip
        if not notebook:
            option("--json", action="store_true", help="print one JSON document")
        return option

    named = "a name, a path or a baseline such as cudnn:tf32; NAME@TUNABLE=VALUE sets a tunable"
    several = f"{named}; all kernels if none is given; the problem may stand among them"
    write = dict(metavar="FILE", type=Path, help="write the tables between this file's markers")
    telling = dict(engine=False, plot=False)

    add("list", "The kernels, where they are, and the named problems.", **telling)
    option = add("check", "Is it right?", kernels=several, default="awkward, and generated ones")
    option("--count", metavar="N", type=int, default=COUNT,
           help="how many problems to generate, without --problem (%(default)s)")  # fmt: skip
    option("--seed", metavar="N", type=int, default=0,
           help="of the data and of the generated problems (0)")  # fmt: skip
    add("compare", "Several kernels side by side: error, cost, floor.", kernels=several,
        default="square")  # fmt: skip
    option = add("ab", "Is B faster than A, slower, or the same? First, are both right?",
                 default="square")  # fmt: skip
    option("a", metavar="A", help=named)
    option("b", metavar="B", help=named)
    option("on", metavar="P", nargs="?", help="the problem, as with --problem")
    option("--mode", choices=(*MODES, "both"), default="both",
           help="L2 flushed before each launch, or not at all")  # fmt: skip
    option("--threshold", type=float, default=100 * THRESHOLD, metavar="PERCENT",
           help="called the same; default: %(default)g")  # fmt: skip
    option("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS",
           help="time for the rounds of a mode; default: %(default)g")  # fmt: skip
    option("--seed", type=int, default=0)
    option = add("sweep", "A kernel over a grid of tunables.", default="square")
    option("kernel", metavar="KERNEL", help="name or path")
    option("tunables", metavar="NAME=VALUE,VALUE", nargs="+",
           help="the problem may stand among them")  # fmt: skip
    option = add("inspect", "Why: registers, occupancy, cost by line, a model's time.",
                 kernels=several, default="square")  # fmt: skip
    option("--gpu", help="T4, A100, L4, 4090, H100, H200; default: the one here")
    option("--listing", action="store_true", help="the source, line by line")
    option("--sample", metavar="N", type=int,
           help="simulate N blocks of the problem itself, not a small one; scaled")  # fmt: skip
    option = add("diff", "What a kernel changes of the one that it descends from.", **telling)
    option("kernel", metavar="KERNEL", help="name or path")
    option("other", metavar="OTHER", nargs="?", help="another than its parent")
    if not notebook:
        option = add("bench", "Kernels over several problems, as README's table has it.",
                     kernels=several, default="headline", plot=False)  # fmt: skip
        option("--write", **write)
    add("doctor", "What this machine has, and what to do about what is missing.", **telling)
    return top


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
    OSError
        A file to be written at the end has no folder that can be written to.
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
    elif arguments.command == "diff":
        arguments.kernel = take(arguments.kernel)
        arguments.other = None if arguments.other is None else take(arguments.other)
    elif hasattr(arguments, "kernels"):
        words = [*arguments.kernels, *arguments.kernel]
        given += [word for word in words if _is_problem(word, values)]
        arguments.kernels = [take(word) for word in words if not _is_problem(word, values)]
    if len(given) > 1:
        raise ProblemError(f"one problem at a time, not {' and '.join(given)}")
    if given:
        value = values.get(given[0])
        arguments.problem = value if isinstance(value, Problem) else given[0]
    path = getattr(arguments, "plot", None)
    if path is not None and not os.access(path.parent, os.W_OK | os.X_OK):  # known before the work
        raise NotADirectoryError(f"--plot {path}: {path.parent} is no folder to write to")
    return arguments


def problem_names() -> list[str]:
    """The names of all problems, and of their sets."""
    return [*PROBLEM_SETS, *(p.name for each in PROBLEM_SETS for p in problems(each))]


def _is_problem(word: str, values: Mapping[str, Any]) -> bool:
    if isinstance(values.get(word), Runnable):
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
    if word in values and (isinstance(value, Runnable) or callable(value)):
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
        if not re.fullmatch(r"-?\d{1,18}(,-?\d{1,18})*", values):
            raise ProblemError(f"cannot read the tunable {text!r}: write NAME=8,16, whole numbers")
        grid[name] = [int(value) for value in values.split(",")]
    return grid


def answers(arguments: argparse.Namespace) -> Iterator[Any]:
    """What a command finds, each result as soon as it is known: one, or one for each kernel.

    A result has ``ok``, a text and ``to_dict``. Where several kernels are asked for one after the
    other, one that does not build or run is a `Failed`.
    """
    if arguments.command not in PLURAL:
        yield _ONE[arguments.command](arguments)
        return
    one = _checked if arguments.command == "check" else _inspected
    chosen = arguments.kernels or [path.stem for path in catalog.catalog()]
    for kernel in [resolve(kernel, arguments.engine) for kernel in chosen]:
        try:
            yield one(kernel, arguments)
        except (BuildError, LaunchError, UnsupportedError) as error:
            found = {"kernel": kernel.name, "right": False, "failures": [str(error)]}
            yield Failed(f"convlab: {error}", found, False, error=error)


def drawn(found: Sequence[Any], path: Path | None) -> Iterator[Path]:
    """Draw results to files, if a path is given, and tell where each one went."""
    results = [result for result in found if not isinstance(result, Told)]
    for result in results if path is not None else ():
        one = len(results) == 1
        where = path if one else path.with_stem(f"{path.stem}-{result.kernel}")
        yield result.plot().save(where).resolve()


def _checked(kernel: Runnable, arguments: argparse.Namespace) -> Any:
    return check(kernel, arguments.problem, count=arguments.count, seed=arguments.seed)


def _inspected(kernel: Kernel, arguments: argparse.Namespace) -> Any:
    if arguments.sample is not None:
        kernel = kernel.on("sim", sample=arguments.sample)
    where = arguments.problem or "square"
    return inspect(kernel, where, gpu=arguments.gpu, engine=arguments.engine)


def _compared(arguments: argparse.Namespace) -> Any:
    return compare(arguments.kernels or None, arguments.problem or "square", engine=arguments.engine)


def _judged(arguments: argparse.Namespace) -> Any:
    return ab(
        arguments.a, arguments.b, arguments.problem or "square", engine=arguments.engine,
        mode=MODES if arguments.mode == "both" else arguments.mode, seed=arguments.seed,
        threshold=arguments.threshold / 100, limit_seconds=arguments.limit,
    )  # fmt: skip


def _swept(arguments: argparse.Namespace) -> Any:
    where = arguments.problem or "square"
    return sweep(arguments.kernel, arguments.tunables, where, engine=arguments.engine)


def _listed(arguments: argparse.Namespace) -> Told:
    """The kernels by the folder that they are from, and the problems."""
    rows, lines = [], []
    for path in sorted(catalog.catalog(), key=lambda path: (path.parent, path.stem)):
        if not rows or rows[-1]["folder"] != str(path.parent):
            lines.append(f"kernels of {path.parent}:")
        kernel = load(path, engine="sim")
        header, settings = kernel.header, tunables(kernel.source)
        rows.append(
            {
                "kernel": path.stem, "folder": str(path.parent), "path": str(path),
                "title": header.title, "idea": header.idea, "class": header.precision,
                "supports": list(header.supports), "tunables": settings,
            }
        )  # fmt: skip
        lines.append(f"  {path.stem:<26} {header.precision:<5} {header.title}")
        lines += [f"{'':<34} {' '.join(map('='.join, settings.items()))}"] if settings else []
    sets = {name: [p.name for p in problems(name)] for name in PROBLEM_SETS}
    lines += ["", "problems:", *(f"  {name}: {', '.join(sets[name])}" for name in sets)]
    return Told("\n".join(lines), {"kernels": rows, "problems": sets})


def _differing(arguments: argparse.Namespace) -> Told:
    """The lines that a kernel changes, and the share of its own that they are."""
    kernel, other = arguments.kernel, arguments.other
    kernel = kernel if isinstance(kernel, Kernel) else load(kernel, engine="sim")
    if other is None and kernel.header.parent is None:
        raise CatalogError(
            f"{kernel.name} names no parent in its header: a line of descent begins with it; "
            "name the other kernel"
        )
    other = kernel.header.parent if other is None else other
    other = other if isinstance(other, Kernel) else load(other, engine="sim")
    new = kernel.source.splitlines()
    changes = list(
        difflib.unified_diff(other.source.splitlines(), new, other.name, kernel.name, lineterm="")
    )
    own = sum(line[0] == "+" and line[:3] != "+++" for line in changes)
    said = f"{own} of {len(new)} lines of {kernel.name} are not {other.name}'s"
    document = {"kernel": kernel.name, "parent": other.name, "lines": len(new), "own": own}
    return Told("\n".join([*changes, "", said]), document, language="diff")


def _benched(arguments: argparse.Namespace) -> Told:
    asked, path = arguments.problem or "headline", arguments.write
    chosen = problems(asked) if asked in PROBLEM_SETS else [problem(asked)]
    for marker in ("bench", "ladder") if path is not None else ():
        bench.between(path, marker)  # looked for before the work, not after it
    results = bench.bench(arguments.kernels or None, chosen, engine=arguments.engine)
    table = bench.markdown(results)
    if path is not None:
        bench.write_between(path, "bench", table)
        bench.write_between(path, "ladder", bench.ladder())
    ok = all(result.ok for result in results)
    document = {"ok": ok, "results": [result.to_dict() for result in results]}
    return Told("\n\n".join([*map(str, results), table]), document, ok)


def _examined(arguments: argparse.Namespace) -> Told:
    rows = doctor.examine()
    marks = {True: "ok", False: "MISSING", None: "-"}
    lines = []
    for row in rows:
        lines.append(f"{row['what']:<13} {marks[row['ok']]:<8} {row['found']}")
        lines += [f"{'':<22} {row['advice']}"] if row["advice"] else []
    ok = all(row["ok"] is not False for row in rows)
    return Told("\n".join(lines), {"ok": ok, "rows": rows}, ok)


_ONE: Mapping[str, Callable[[argparse.Namespace], Any]] = {
    "list": _listed,
    "compare": _compared,
    "ab": _judged,
    "sweep": _swept,
    "diff": _differing,
    "bench": _benched,
    "doctor": _examined,
}
