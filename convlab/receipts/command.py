"""The command ``history``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..commands.command import WHAT, Command, add_plot, group_of


class HistoryCommand(Command):
    about = "Compare saved results over time."
    words = "[JSON ...]"
    example = "history before.json after.json --plot history.png"

    def add_arguments(self, parser: ArgumentParser) -> None:
        group_of(parser, WHAT).add_argument(
            "paths",
            nargs="*",
            metavar="JSON",
            help="files and folders; default: the receipts of --save",
        )
        add_plot(parser)

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from .history import history

        yield history([Path(path) for path in arguments.paths])
