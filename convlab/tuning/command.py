"""The command ``sweep``. Importing this module must not import torch: see `commands.command`."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from ..commands.command import Command, add_engine, add_kernels, add_plot, add_problem
from ..core.errors import ProblemError


class SweepCommand(Command):
    about = "Measure a kernel for every combination of its tunables."
    example = "sweep 03_smem_tile TILE=8,16 K_TILE=16,32 --problem wide"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "one kernel", nargs=1)
        parser.add_argument(
            "tunables", nargs="*", metavar="NAME=8,16", help="the values to try of each tunable"
        )
        add_problem(parser)
        add_engine(parser)
        add_plot(parser)

    def validate(self, arguments: Namespace) -> None:
        """Replace the tunables' words by a grid."""
        arguments.tunables = parse_grid(arguments.tunables)

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from .sweep import sweep

        (kernel,) = arguments.kernels
        yield sweep(kernel, arguments.tunables, arguments.problem, engine=arguments.engine)


def parse_grid(words: Sequence[str]) -> dict[str, list[int]]:
    """Return the values of each tunable: of "TILE=8,16", {"TILE": [8, 16]}.

    Raises
    ------
    ProblemError
        A word is not of this form, or a tunable is given twice.
    """
    grid: dict[str, list[int]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if not re.fullmatch(r"-?\d{1,18}(,-?\d{1,18})*", values):
            raise ProblemError(f"cannot read the tunable {word!r}: write NAME=8,16, whole numbers")
        if name in grid:
            raise ProblemError(f"{name} is given twice; list its values once: {name}=8,16")
        grid[name] = [int(value) for value in values.split(",")]
    return grid
