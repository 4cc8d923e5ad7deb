"""The notebook's magics: ``%load_ext convlab`` brings ``%%kernel`` and ``%convlab``.

``%%kernel [name] [-D NAME=VALUE ...] [--engine auto|cuda|sim]`` compiles its cell as a ``.cu``
file and binds the kernel to a variable. Messages count lines as the cell does: its first line is
the one with ``%%kernel``.

``%convlab check|ab|compare|inspect|sweep ...`` takes the command line's words, and variables where
it takes kernels and problems; its value is the result: ``report = %convlab check mine square``.
"""

from __future__ import annotations

import contextlib
import keyword
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core import completer
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import clear_output, display

from ..run.baselines import BASELINES
from ..run.kernel import ENGINES, Kernel, compile, tunables
from ..words import catalog
from ..words.errors import ConvlabError, brief
from ..words.problem import Problem
from . import grammar
from .answers import Failed, Told, answers, drawn
from .grammar import Parser

_OWN = re.compile(r"(?:^|\n|=)[ \t]*(%convlab|%%kernel)[ \t]+([^\n]*)$")
_KERNEL_OPTIONS = ("-D", "--engine")


def register(shell: InteractiveShell) -> None:
    """Add the magics, their completion and short errors to a shell; twice changes nothing."""
    found = shell.magics_manager.registry.get(ConvlabMagics.__name__)
    if found is None:
        shell.register_magics(ConvlabMagics)
        own = shell.magics_manager.registry[ConvlabMagics.__name__]
        if hasattr(completer, "context_matcher"):  # IPython 8.6; before that nothing is completed
            shell.Completer.custom_matchers.append(_matcher(own))
        shell.set_custom_exc((OSError, KeyboardInterrupt), _briefly)


class Results(tuple):
    """What one command found of several kernels."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "<br>".join(result._repr_html_() for result in self)


class _Shown(Exception):
    """The parser has shown help, and there is nothing else to do."""


class _CellParser(Parser):
    """Raises UsageError where the command line's parser ends the process."""

    def error(self, message: str) -> None:
        """Raise the message, with the nearest word and the usage."""
        raise UsageError(f"{self.hinted(message)}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> None:
        """Argparse calls it after help was shown."""
        raise _Shown


@magics_class
class ConvlabMagics(Magics):
    """``%%kernel`` and ``%convlab``."""

    @line_cell_magic("kernel")
    def kernel(self, line: str, cell: str | None = None) -> None:
        """Compile the cell as a .cu file, and bind it to a name.

        %%kernel [name] [-D NAME=VALUE ...] [--engine auto|cuda|sim]

        The name, "kernel" unless told, becomes a variable that holds a convlab.Kernel. -D sets a
        tunable. After a cell that does not compile nothing has that name, lest the kernel that
        was there before be taken for this one.
        """
        parser = _kernel_parser()
        if cell is None:
            raise UsageError(f"%%kernel stands on a cell's first line\n{parser.format_usage()}")
        with contextlib.suppress(_Shown):
            arguments = parser.parse_args(_split(line))
            name = arguments.name
            if not name.isidentifier() or keyword.iskeyword(name):
                near = re.sub(r"\W|^(?=\d)", "_", name)
                raise UsageError(
                    f"{name!r} cannot be the name of a Python variable; try `%%kernel {near}`"
                )
            self._compile(arguments, "\n" * self._lines_above(cell) + cell)

    def _compile(self, arguments: Namespace, source: str) -> None:
        self.shell.user_ns.pop(arguments.name, None)
        defines = dict(map(_define, arguments.defines))
        in_notebook = hasattr(self.shell, "kernel")
        note = None
        if in_notebook:
            note = display(Told(f"compiling {arguments.name} ...", {}), display_id=True)
        try:
            made = compile(source, name=arguments.name, engine=arguments.engine, defines=defines)
            made.header  # noqa: B018  (a header that cannot be read is an error of the cell's)
        except BaseException:
            if in_notebook:
                clear_output()
            raise
        self.shell.user_ns[arguments.name] = made
        seconds = made.build().seconds
        how = f"built in {seconds:.1f} s" if seconds else "built before"
        done = Told(f"{made.name}: {made.engine}, {how}", {})
        note.update(done) if note is not None else display(done)

    def _lines_above(self, cell: str) -> int:
        """Lines of the cell above its body: the magic's own, and blank ones before that."""
        history = self.shell.history_manager.input_hist_raw if self.shell.history_manager else []
        raw = history[-1] if history else ""
        if not raw.rstrip().endswith(cell.rstrip()):
            return 1
        head = raw[: len(raw) - len(raw.lstrip())]
        return 1 + head.count("\n")

    @line_magic("convlab")
    def convlab(self, line: str) -> Any:
        """Run one of convlab's commands, as python -m convlab does; return what it found.

        %convlab check|ab|compare|inspect|sweep|list|doctor ...

        Kernels and problems may be variables. `%convlab COMMAND --help` tells the options.
        """
        words = _split(line)
        parser = _parser()
        if not words:
            parser.print_help()
            return None
        if words[0] in grammar.parser().commands and words[0] not in parser.commands:
            raise UsageError(
                f"{words[0]} belongs to the command line: `!python -m convlab {line}`; "
                f"%convlab knows {', '.join(parser.commands)}"
            )
        with contextlib.suppress(_Shown):
            arguments = parser.parse_args(words)
            return _answered(grammar.understood(arguments, self.shell.user_ns))


def _answered(arguments: Namespace) -> Any:
    """What a command finds; of several kernels, those that fail are told, the others still run."""
    found, failed = [], []
    for answer in answers(arguments):
        if isinstance(answer, Failed):
            failed.append(answer)
            continue
        found.append(answer)
        if getattr(arguments, "listing", False):
            display(answer.listing())
    if failed and not found:
        raise failed[-1].error
    for answer in failed:
        print(answer, file=sys.stderr)
    for path in drawn(found, getattr(arguments, "plot", None)):
        print(f"plot: {path}")
    return found[0] if len(found) == 1 and not failed else Results(found)


def _briefly(shell: InteractiveShell, kind: type, error: BaseException, trace: object,
             tb_offset: int | None = None) -> list[str]:  # fmt: skip
    """Show an interrupt of convlab, or a file that it did not get, as shortly as its own errors."""
    shown = brief(error) or shell.InteractiveTB.structured_traceback(
        kind, error, trace, tb_offset=tb_offset
    )
    shell._showtraceback(kind, error, shown)
    return shown


def _parser() -> _CellParser:
    return grammar.parser(_CellParser, prog="%convlab")


def _kernel_parser() -> _CellParser:
    parser = _CellParser([], prog="%%kernel", description="Compile the cell as a .cu file.")
    parser.add_argument("name", nargs="?", default="kernel", help="the variable it is bound to")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME=VALUE",
                        help="set a tunable; repeatable")  # fmt: skip
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    return parser


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot read {line!r}: {error}") from None


def _define(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not re.fullmatch(r"-?\d+", value):
        raise UsageError(f"cannot read -D {text}: write -D NAME=INTEGER")
    return name, int(value)


def _matcher(magics: ConvlabMagics) -> Callable[[completer.CompletionContext], completer.SimpleMatcherResult]:
    """Completes what stands behind %convlab and %%kernel, in place of Python's completion."""

    @completer.context_matcher(identifier="convlab", priority=100)
    def match(context: completer.CompletionContext) -> completer.SimpleMatcherResult:
        own = _OWN.search(context.full_text[: _position(context)])
        if own is None:
            return completer.SimpleMatcherResult(completions=[], suppress=False)
        before, _, word = own[2].rpartition(" ")
        known = before.split()
        if own[1] == "%%kernel":
            candidates = ENGINES if known[-1:] == ["--engine"] else _KERNEL_OPTIONS
        else:
            candidates = _candidates(known, word, magics.shell.user_ns)
        found = [each for each in candidates if each.startswith(word)]
        return completer.SimpleMatcherResult(
            completions=[completer.SimpleCompletion(text=text, type="convlab") for text in found],
            matched_fragment=word,
            suppress=True,
            ordered=True,
        )

    return match


def _position(context: completer.CompletionContext) -> int:
    """How many characters of the whole text stand before the cursor."""
    lines = context.full_text.split("\n")
    return sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position


def _candidates(known: list[str], word: str, values: Mapping[str, Any]) -> list[str]:
    """The words that may come after those that are known; the best guesses stand first."""
    parser = _parser()
    if not known:
        return list(parser.commands)
    command = parser.commands.get(known[0])
    if command is None:
        return []
    options = {name: a for a in command._actions for name in a.option_strings}
    action = options.get(known[-1])
    held = {
        kind: [key for key, value in values.items() if isinstance(value, kind) and key[0] != "_"]
        for kind in (Kernel, Problem)
    }
    problems = [*held[Problem], *grammar.problem_names()]
    kernels = [*held[Kernel], *(path.stem for path in catalog.catalog())]
    if action is not None and action.nargs != 0:
        if action.dest == "problem":
            return problems
        return kernels if action.dest == "kernel" else list(action.choices or ())
    if word.startswith("-"):
        return list(options)
    name, at, _ = word.partition("@")
    if at:
        return [f"{name}@{tunable}=" for tunable in _tunables(name, values)]
    if known[0] == "sweep" and len(known) > 1:
        return [*(f"{tunable}=" for tunable in _tunables(known[1], values)), *problems]
    if known[0] == "ab":
        places = [[*kernels, *BASELINES]] * 2 + [problems]
        return places[len(known) - 1] if len(known) <= len(places) else list(options)
    if known[0] in ("list", "doctor"):
        return list(options)
    return kernels if known[0] in ("sweep", "diff") else [*kernels, *problems]


def _tunables(name: str, values: Mapping[str, Any]) -> list[str]:
    value = values.get(name)
    try:
        source = value.source if isinstance(value, Kernel) else catalog.find(name).read_text()
    except ConvlabError:
        return []
    return list(tunables(source))
