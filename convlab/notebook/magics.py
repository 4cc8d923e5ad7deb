"""The notebook's magics: ``%load_ext convlab`` brings ``%%kernel`` and ``%convlab``.

Messages count lines as the cell does: its first line is the one with ``%%kernel``.
"""

import contextlib
import functools
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
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from ..commands import cli
from ..commands.answers import Told, answers, kept
from ..commands.cli import Parser
from ..core.correctness.stricter import settings
from ..core.errors import ConvlabError, brief
from ..core.kernel import catalog
from ..core.kernel.kernel import ENGINES, Kernel, compile, load, tunables
from ..core.kernel.libraries import BASELINES
from ..core.kernel.options import parse_tunables
from ..core.problem.problem import Problem

_OWN = re.compile(r"(?:^|\n|=)[ \t]*(%convlab|%%kernel)[ \t]+([^\n]*)$")


def register(shell: InteractiveShell) -> None:
    """Add the magics, their completion and short errors to a shell; twice changes nothing."""
    if ConvlabMagics.__name__ in shell.magics_manager.registry:
        return
    shell.register_magics(ConvlabMagics)
    if hasattr(completer, "context_matcher"):  # IPython 8.6; before that nothing is completed
        shell.Completer.custom_matchers.append(_matcher(shell))
    shell.set_custom_exc((OSError, KeyboardInterrupt), _briefly)


class Results(tuple):
    """What one command found of several kernels."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "<br>".join(result._repr_html_() for result in self)


class _CellParser(Parser):
    """Raises UsageError where the command line's parser ends the process."""

    def error(self, message: str) -> None:
        raise UsageError(f"{self.hinted(message)}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> None:  # after help was shown
        raise SystemExit


@magics_class
class ConvlabMagics(Magics):
    """``%%kernel`` and ``%convlab``."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._failed: dict[str, int] = {}  # the number of the cell that did not compile

    @cell_magic("kernel")
    def kernel(self, line: str, cell: str) -> None:
        """Compile the cell as a .cu file, and bind it to a name.

        %%kernel [NAME[@TUNABLE=VALUE,...]] [--engine auto|cuda|sim]

        The name, "kernel" unless told, becomes a variable that holds a convlab.Kernel. After a cell
        that does not compile nothing has that name, lest the kernel that was there before be taken
        for this one.
        """
        with contextlib.suppress(SystemExit):
            parser = _kernel_parser()
            asked, rest = parser.parse_known_args(_split(line))
            if rest:
                tunable = re.fullmatch(r"[A-Za-z_]\w*=.*", rest[0])
                hint = f"; write %%kernel {asked.name}@{rest[0]}" if tunable else ""
                parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
            name, _, tuned = asked.name.partition("@")
            if not name.isidentifier() or keyword.iskeyword(name):
                raise UsageError(f"{name!r} cannot be the name of a Python variable; give another")
            self.shell.user_ns.pop(name, None)
            self._failed[name] = self.shell.execution_count
            source = "\n" * self._lines_above(cell) + cell
            defines = parse_tunables(tuned)
            made = compile(source, name=name, engine=asked.engine, defines=defines)
            made.header  # noqa: B018  (a header that cannot be read is an error of the cell's)
            self.shell.user_ns[name] = made
            del self._failed[name]
            seconds = made.build().seconds
            how = f"built in {seconds:.1f} s" if seconds else "built before"
            display(Told(f"{made.name}: {made.engine}, {how}", {}))

    def _lines_above(self, cell: str) -> int:
        """Lines of the cell above its body: the magic's own, and blank ones before that."""
        history = self.shell.history_manager.input_hist_raw if self.shell.history_manager else []
        raw = history[-1] if history else ""
        blank = raw[: len(raw) - len(raw.lstrip())]
        return 1 + blank.count("\n") if raw.rstrip().endswith(cell.rstrip()) else 1

    @line_magic("convlab")
    def convlab(self, line: str) -> Any:
        """Run one of convlab's commands, as python -m convlab does; return what it found.

        %convlab check|ab|compare|inspect|sweep|list|doctor ...      (each with --help)

        Kernels and problems may be variables: report = %convlab check mine square
        """
        words = _split(line)
        parser = _parser()
        if not words:
            parser.print_help()
            return None
        with contextlib.suppress(SystemExit):
            asked = parser.parse_args(words)
            for name in [word.partition("@")[0] for word in words]:
                if name in self._failed and name not in self.shell.user_ns:
                    cell = f"in cell [{self._failed[name]}]"
                    raise UsageError(f"{name} did not build, {cell}: mend that, and run it again")
            return _answered(cli.understood(asked, self.shell.user_ns))


def _answered(asked: Namespace) -> Any:
    """What a command finds; of several kernels, those that fail are told, the others still run."""
    found = []
    failed = []
    for answer in answers(asked):
        if isinstance(answer, Told) and answer.failure:
            failed.append(answer)
            continue
        found.append(answer)
        if getattr(asked, "listing", False):
            display(answer.listing())
    if failed and not found:
        raise failed[-1].failure
    for answer in failed:
        print(answer, file=sys.stderr)
    for what, path in kept(found, asked):
        print(f"{what}: {path}")
    return found[0] if len(found) == 1 and not failed else Results(found)


def _briefly(
    shell: InteractiveShell,
    kind: type,
    error: BaseException,
    trace: object,
    tb_offset: int | None = None,
) -> list[str]:
    """Show an interrupt of convlab, or a file that it did not get, as shortly as its own errors."""
    shown = brief(error) or shell.InteractiveTB.structured_traceback(
        kind, error, trace, tb_offset=tb_offset
    )
    shell._showtraceback(kind, error, shown)
    return shown


_parser = functools.partial(cli.parser, _CellParser, prog="%convlab")


def _kernel_parser() -> _CellParser:
    parser = _CellParser(prog="%%kernel", description="Compile the cell as a .cu file.")
    parser.add_argument(
        "name",
        nargs="?",
        default="kernel",
        help="the variable it is bound to; NAME@TUNABLE=VALUE sets a tunable",
    )
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    return parser


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot read {line!r}: {error}") from None


def _matcher(shell: InteractiveShell) -> Callable:
    """Completes what stands behind %convlab and %%kernel, in place of Python's completion."""

    @completer.context_matcher(identifier="convlab", priority=100)
    def match(context: completer.CompletionContext) -> completer.SimpleMatcherResult:
        lines = context.full_text.split("\n")[: context.cursor_line + 1]
        lines[-1] = lines[-1][: context.cursor_position]
        own = _OWN.search("\n".join(lines))
        if own is None:
            return completer.SimpleMatcherResult(completions=[], suppress=False)
        before, _, word = own[2].rpartition(" ")
        candidates = _candidates(own[1], before.split(), word, shell.user_ns)
        found = [each for each in candidates if each.startswith(word)]
        return completer.SimpleMatcherResult(
            completions=[completer.SimpleCompletion(text=text, type="convlab") for text in found],
            matched_fragment=word,
            suppress=True,
            ordered=True,
        )

    return match


def _candidates(magic: str, known: list[str], word: str, values: Mapping[str, Any]) -> list[str]:
    """The words that may come after those that are known; the best guesses stand first."""
    commands = _parser().commands
    if magic == "%convlab" and not known:
        return list(commands)
    command = commands.get(known[0]) if magic == "%convlab" else _kernel_parser()
    actions = command._actions if command else []
    options = {name: action for action in actions for name in action.option_strings}
    option = options.get(known[-1]) if known else None
    takes = option is not None and option.nargs not in (0, "?")  # a value, which is to come
    if takes and (option.choices or option.dest == "setting"):
        return list(option.choices or settings())
    if not takes and (word.startswith("-") or all(each.dest != "words" for each in actions)):
        return list(options)
    name, at, _ = word.partition("@")
    if at:
        return [f"{name}@{tunable}=" for tunable in _tunables(name, values)]
    own = {
        kind: [key for key, value in values.items() if isinstance(value, kind) and key[0] != "_"]
        for kind in (Kernel, Problem)
    }
    problems = [*own[Problem], *cli.problem_names()]
    if takes:
        return problems if option.dest == "problem" else []
    swept = _tunables(known[1], values) if known[0] == "sweep" and len(known) > 1 else []
    kernels = [*own[Kernel], *(path.stem for path in catalog.catalog()), *BASELINES]
    return [*(f"{tunable}=" for tunable in swept), *kernels, *problems]


def _tunables(name: str, values: Mapping[str, Any]) -> list[str]:
    value = values.get(name)
    with contextlib.suppress(ConvlabError):
        kernel = value if isinstance(value, Kernel) else load(name, engine="sim")
        return list(tunables(kernel.file.whole))
    return []
