"""Build the parser of all commands, for ``python -m convlab`` and the notebook's ``%convlab``.

Nothing here imports torch, which takes seconds: a mistyped word is reported at once.
"""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core import rooms
from ..core.arguments import hint
from .lookup import look_up
from .outputs import write_files
from .text_result import Failure

__all__ = ["STATUS", "Failure", "Parser", "build_parser", "look_up", "write_files"]

STATUS = """exit status:
  0: what ran is correct (a kernel may not support the problem, by its header)
  1: a kernel is wrong, does not build or does not run; doctor: something is missing
  2: invalid arguments or files
  3: nothing ran, as no kernel supports the problem
  130: interrupted"""
# The rooms of the commands that are not this room's, to say what is missing if one was deleted.
_ROOMS = {"inspect": "profile", "sweep": "tuning", "history": "receipts"}


class Parser(argparse.ArgumentParser):
    """Accept no abbreviations, and suggest the nearest word for an unknown one.

    Attributes
    ----------
    commands : the commands' own parsers, by name.
    """

    def __init__(self, **options: Any) -> None:
        self.commands: Mapping[str, Parser] = {}
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=formatter, **options)

    def parse_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments as argparse does; kernels and the like may also follow options."""
        arguments, rest = self.parse_known_args(args, namespace)
        if not rest:
            return arguments
        parser = self.commands[arguments.command.name] if "command" in arguments else self
        repeated = parser._repeated()
        if repeated is None or any(word.startswith("-") for word in rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        setattr(arguments, repeated, [*getattr(arguments, repeated), *rest])
        return arguments

    def _repeated(self) -> str | None:
        """Return the name of the positional argument that takes any number of words, if any."""
        for action in self._actions:
            if not action.option_strings and action.nargs == "*":
                return action.dest
        return None

    def with_hint(self, message: str) -> str:
        """Return an error's message with the known word that is nearest to the unknown one."""
        unknown = re.search(
            r"(?:unrecognized arguments: (?=-)|invalid choice: ')([^\s=']*)", message
        )
        word = unknown[1] if unknown else ""
        if word in _ROOMS and word not in self.commands:
            return f"the command {word} is in convlab/{_ROOMS[word]}, which was deleted"
        known: Iterable[str] = self._option_string_actions
        if not word.startswith("-"):
            known = [choice for action in self._actions for choice in action.choices or ()]
        return message + hint(word, list(known))

    def error(self, message: str) -> None:
        """Print the usage and the message, and exit with status 2."""
        super().error(self.with_hint(message))


def build_parser(kind: type[Parser] = Parser, *, program: str = "python -m convlab") -> Parser:
    """Return the parser of all commands that the rooms provide.

    Parameters
    ----------
    kind : the class of the parser and of its commands' parsers.
    program : what the user types before the command; "%convlab" has no ``--json``.

    Returns
    -------
    Parser
        What its ``parse_args`` returns has the `Command` as ``command``; `lookup.look_up` comes next.

    >>> build_parser().parse_args(["compare", "01_direct", "--problem", "wide"]).command.name
    'compare'
    """
    in_notebook = program.startswith("%")
    status = "" if in_notebook else f"\n\n{STATUS}"
    parser = kind(
        prog=program,
        description="A microscope for CUDA convolution kernels.",
        epilog=f"example:\n  {program} compare 01_direct 03_smem_tile --problem wide{status}",
    )
    group = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=kind)
    parser.commands = group.choices
    for name in rooms.names("command"):
        command = rooms.provided("command", name)(name, program)
        subparser = group.add_parser(
            name,
            help=command.about,
            description=command.about,
            epilog=f"example:\n  {program} {command.example}{status}",
        )
        subparser.set_defaults(command=command)
        command.add_arguments(subparser)
        if not in_notebook:
            subparser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
