"""Complete the arguments of ``%convlab`` and ``%%kernel``, instead of Python's completion."""

import contextlib
import re
from argparse import Action
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core import completer
from IPython.core.interactiveshell import InteractiveShell

from ..commands.cli import Parser
from ..commands.lookup import problem_names
from ..core.correctness.stricter import settings
from ..core.defaults import BASELINES
from ..core.errors import ConvlabError
from ..core.kernel import catalog
from ..core.kernel.kernel import Kernel, load
from ..core.kernel.tunables import tunables
from ..core.problem.problem import Problem

# A magic at the beginning of a line, or after "name =", and its arguments.
_MAGIC = re.compile(r"(?:^|\n|=)[ \t]*(%convlab|%%kernel)[ \t]+([^\n]*)$")


def add_completion(
    shell: InteractiveShell,
    command_parser: Callable[[], Parser],
    kernel_parser: Callable[[], Parser],
) -> None:
    """Add completion for the arguments of both magics to a shell; the functions return the parsers.

    IPython before 8.6 has no matchers, so there is no completion there.
    """
    if not hasattr(completer, "context_matcher"):
        return

    @completer.context_matcher(identifier="convlab", priority=100)
    def match(context: completer.CompletionContext) -> completer.SimpleMatcherResult:
        lines = context.full_text.split("\n")[: context.cursor_line + 1]
        lines[-1] = lines[-1][: context.cursor_position]
        magic = _MAGIC.search("\n".join(lines))
        if magic is None:
            return completer.SimpleMatcherResult(completions=[], suppress=False)
        text, _, word = magic[2].rpartition(" ")
        known = text.split()
        if magic[1] == "%%kernel":
            candidates = _of_parser(kernel_parser(), known, word, shell.user_ns)
        else:
            candidates = _of_command(command_parser(), known, word, shell.user_ns)
        completions = [
            completer.SimpleCompletion(text=candidate, type="convlab")
            for candidate in candidates
            if candidate.startswith(word)
        ]
        return completer.SimpleMatcherResult(
            completions=completions, matched_fragment=word, suppress=True, ordered=True
        )

    shell.Completer.custom_matchers.append(match)


def _of_command(
    parser: Parser, known: list[str], word: str, variables: Mapping[str, Any]
) -> list[str]:
    """Return the possible next arguments after the known ones, the most likely first."""
    if not known:
        return list(parser.commands)
    command = parser.commands.get(known[0])
    return _of_parser(command, known, word, variables) if command else []


def _of_parser(
    parser: Parser, known: list[str], word: str, variables: Mapping[str, Any]
) -> list[str]:
    """Return the possible next arguments of one command."""
    options = {name: action for action in parser._actions for name in action.option_strings}
    option = options.get(known[-1]) if known else None
    if option is not None and option.nargs not in (0, "?"):
        return _values(option, variables)
    takes_kernels = any(action.dest == "kernels" for action in parser._actions)
    if word.startswith("-") or not takes_kernels:
        return list(options)
    name, at, _ = word.rpartition("@")
    if at:
        return [f"{name}@{tunable}=" for tunable in _tunables(name, variables)]
    names = _names_of(Kernel, variables)
    names += [path.stem for path in catalog.quiet_catalog()]
    names += BASELINES
    if known[0] == "sweep" and len(known) > 1:
        return [*(f"{tunable}=" for tunable in _tunables(known[1], variables)), *names]
    return names


def _values(option: Action, variables: Mapping[str, Any]) -> list[str]:
    """Return the possible values of an option."""
    if option.choices:
        return list(option.choices)
    if option.dest == "problem":
        return [*_names_of(Problem, variables), *problem_names()]
    if option.dest == "setting":
        return list(settings())
    return []


def _names_of(kind: type, variables: Mapping[str, Any]) -> list[str]:
    """Return the names of the user's variables that have a type."""
    return [
        name
        for name, value in variables.items()
        if isinstance(value, kind) and not name.startswith("_")
    ]


def _tunables(name: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the tunables of a kernel; an empty list if there is no such kernel."""
    kernel = variables.get(name)
    with contextlib.suppress(ConvlabError):
        if not isinstance(kernel, Kernel):
            kernel = load(name)
        return list(tunables(kernel.file.whole))
    return []
