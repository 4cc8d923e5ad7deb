"""Build the parser of all commands, for ``python -m convlab`` and the notebook's ``%convlab``.

Nothing here imports torch, which takes seconds, so that a mistyped word is reported at once.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..core import rooms
from ..core.arguments import cut, hint
from .command import KEEP, MEASURE, OUTPUT, WRITE, Command, add_verbose, group_of
from .exit_status import HELP
from .lookup import look_up
from .outputs import write_files
from .text_result import Failure, TextResult

__all__ = ["Failure", "Parser", "TextResult", "build_parser", "look_up", "write_files"]

# The folder of each command of another room: the message names it if the folder was deleted.
_ROOMS = {"inspect": "profile", "sweep": "tuning", "history": "receipts"}


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations; it suggests the nearest word for an unknown one.

    Attributes
    ----------
    commands : the commands' own parsers, by name.
    """

    def __init__(self, **options: Any) -> None:
        self.commands: Mapping[str, Parser] = {}
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=formatter, add_help=False, **options)

    def parse_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments as argparse does; positional ones may also follow options."""
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
        """Return an error's message, with the known word that is most like the unknown one."""
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
        super().error(cut(self.with_hint(message)))


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
    commands = {
        name: rooms.provided("command", name)(name, program) for name in rooms.names("command")
    }
    parser = kind(
        prog=program,
        usage="%(prog)s COMMAND [options]",
        description="\n".join(_overview(commands, program)),
        epilog="" if in_notebook else HELP,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    group = parser.add_subparsers(
        prog=program, required=True, metavar="COMMAND", parser_class=kind, help=argparse.SUPPRESS
    )
    parser.commands = group.choices
    for name, command in commands.items():
        subparser = group.add_parser(
            name,
            usage=" ".join(["%(prog)s", *([command.words] if command.words else []), "[options]"]),
            description=command.about,
            epilog=f"example:\n  {program} {command.example}",
        )
        subparser.set_defaults(command=command)
        command.add_arguments(subparser)
        output = group_of(subparser, OUTPUT)
        if not in_notebook:
            if command.verbose:
                add_verbose(subparser)
            output.add_argument("--json", action="store_true", help="print one JSON document")
        output.add_argument("-h", "--help", action="help", help="show this text")
    return parser


def _overview(commands: Mapping[str, Command], program: str) -> Iterator[str]:
    """Yield the lines of the help: what convlab is, its commands in groups, and one example."""
    yield "A microscope for CUDA convolution kernels."
    for title in (WRITE, MEASURE, KEEP):
        members = {name: each for name, each in commands.items() if each.group == title}
        if members:
            yield f"\n{title}:"
            yield from (f"  {name:<9} {each.about}" for name, each in members.items())
    yield f"\nexample:\n  {program} compare 01_direct 03_smem_tile --problem wide"
    yield f"\n`{program} COMMAND --help` lists the options of a command."
