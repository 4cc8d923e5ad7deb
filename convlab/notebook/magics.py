"""The notebook's magics: ``%load_ext convlab`` adds ``%%kernel`` and ``%convlab``.

Messages give the line numbers of the cell; line 1 is the line with ``%%kernel``.
"""

import contextlib
import keyword
import re
import shlex
import sys
from argparse import Namespace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from ..commands.cli import Parser, build_parser
from ..commands.lookup import look_up
from ..commands.outputs import write_files
from ..commands.text_result import Failure, TextResult
from ..core.arguments import shown
from ..core.defaults import ENGINES
from ..core.errors import brief
from ..core.kernel.kernel import compile
from ..core.kernel.tunables import parse_tunables
from .completion import add_completion


def register(shell: InteractiveShell) -> None:
    """Add the magics, their completion and short errors to a shell; a second call has no effect."""
    if ConvlabMagics.__name__ in shell.magics_manager.registry:
        return
    shell.register_magics(ConvlabMagics)
    add_completion(shell, _command_parser, _kernel_parser)
    shell.set_custom_exc((OSError, KeyboardInterrupt), _show_briefly)


class Results(tuple):
    """The results of one command, one per kernel."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "<br>".join(result._repr_html_() for result in self)


class _CellParser(Parser):
    """A parser that raises UsageError instead of ending the process."""

    def error(self, message: str) -> None:
        raise UsageError(f"{self.with_hint(message)}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> None:
        """End the magic after the help text."""
        raise SystemExit


@magics_class
class ConvlabMagics(Magics):
    """``%%kernel`` and ``%convlab``."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        # For each kernel that did not compile, the number of its cell.
        self._failed_cells: dict[str, int] = {}

    @cell_magic("kernel")
    def kernel(self, line: str, cell: str) -> None:
        """Compile the cell as a .cu file, and assign the kernel to a variable.

        %%kernel [NAME[@TUNABLE=VALUE,...]] [--engine auto|cuda|sim]

        The variable NAME (by default "kernel") then contains a convlab.Kernel. If the cell does not
        compile, the variable is deleted, so that you do not use an earlier kernel by mistake.
        """
        with contextlib.suppress(SystemExit):
            arguments = self._parse_kernel_line(line)
            name, _, tunables = arguments.name.partition("@")
            if not name.isidentifier() or keyword.iskeyword(name):
                raise UsageError(
                    f"{shown(name)} cannot be the name of a Python variable; use another name"
                )
            self.shell.user_ns.pop(name, None)
            self._failed_cells[name] = self.shell.execution_count
            kernel = compile(
                "\n" * self._lines_above(cell) + cell,
                name=name,
                engine=arguments.engine,
                defines=parse_tunables(tunables),
            )
            # An invalid header must raise its error in this cell.
            kernel.header  # noqa: B018
            self.shell.user_ns[name] = kernel
            del self._failed_cells[name]
            seconds = kernel.build().seconds
            built = f"built in {seconds:.1f} s" if seconds else "built before"
            display(TextResult(f"{kernel.name}: {kernel.engine}, {built}", {}))

    def _parse_kernel_line(self, line: str) -> Namespace:
        parser = _kernel_parser()
        arguments, rest = parser.parse_known_args(_split(line))
        if rest:
            is_tunable = re.fullmatch(r"[A-Za-z_]\w*=.*", rest[0])
            hint = f"; write %%kernel {arguments.name}@{rest[0]}" if is_tunable else ""
            parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return arguments

    def _lines_above(self, cell: str) -> int:
        """Return the number of lines above the cell's body: blank lines and the magic."""
        history = self.shell.history_manager.input_hist_raw if self.shell.history_manager else []
        raw = history[-1] if history else ""
        blank = raw[: len(raw) - len(raw.lstrip())]
        return 1 + blank.count("\n") if raw.rstrip().endswith(cell.rstrip()) else 1

    @line_magic("convlab")
    def convlab(self, line: str) -> Any:
        """Run a command of convlab, as python -m convlab does, and return its result.

        %convlab check|ab|compare|inspect|sweep|list|doctor ...      (each with --help)

        Kernels and problems may be variables: report = %convlab check mine --problem square
        """
        words = _split(line)
        parser = _command_parser()
        if not words:
            parser.print_help()
            return None
        with contextlib.suppress(SystemExit):
            arguments = parser.parse_args(words)
            self._refuse_failed_kernels(words)
            return _run(look_up(arguments, self.shell.user_ns))

    def _refuse_failed_kernels(self, words: list[str]) -> None:
        """Raise UsageError for a kernel whose cell did not compile."""
        for word in words:
            name = word.partition("@")[0]
            if name in self._failed_cells and name not in self.shell.user_ns:
                cell = f"in cell [{self._failed_cells[name]}]"
                raise UsageError(f"{name} did not build, {cell}; correct it and run it again")


def _run(arguments: Namespace) -> Any:
    """Run a command and return its result.

    If one of several kernels fails, the error is printed, and the others still run. If all of them
    fail, the last error is raised.
    """
    results = []
    failures = []
    for result in arguments.command.run(arguments):
        if isinstance(result, Failure):
            failures.append(result)
            continue
        results.append(result)
        if getattr(arguments, "listing", False):
            display(result.listing())
    if failures and not results:
        raise failures[-1].error
    for failure in failures:
        print(failure, file=sys.stderr)
    for kind, path in write_files(results, arguments):
        print(f"{kind}: {path}")
    return results[0] if len(results) == 1 and not failures else Results(results)


def _show_briefly(
    shell: InteractiveShell,
    kind: type,
    error: BaseException,
    trace: object,
    tb_offset: int | None = None,
) -> list[str]:
    """Show KeyboardInterrupt and OSError in convlab as briefly as convlab's own errors."""
    lines = brief(error) or shell.InteractiveTB.structured_traceback(
        kind, error, trace, tb_offset=tb_offset
    )
    shell._showtraceback(kind, error, lines)
    return lines


def _command_parser() -> _CellParser:
    return build_parser(_CellParser, program="%convlab")


def _kernel_parser() -> _CellParser:
    parser = _CellParser(
        prog="%%kernel",
        description="Compile the cell as a .cu file.",
        epilog="example:\n  %%kernel mine@TILE=8 --engine sim",
    )
    parser.add_argument(
        "name",
        nargs="?",
        default="kernel",
        help="the variable for the kernel; NAME@TUNABLE=VALUE sets a tunable",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="cuda: the GPU; sim: the simulator; auto: the GPU if there is one (default)",
    )
    return parser


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot read {shown(line)}: {error}") from None
