"""The command ``sweep``. Importing this module must not import torch: see `commands.command`."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from ..commands.command import (
    MEASURE,
    WHAT,
    Command,
    add_engine,
    add_kernels,
    add_plot,
    add_predicted_gpu,
    add_problem,
    add_save,
    group_of,
)
from ..core.errors import ProblemError


class SweepCommand(Command):
    about = "Measure a kernel for every combination of its tunables."
    words = "KERNEL NAME=8,16 ..."
    example = "sweep 03_smem_tile TILE=8,16 K_TILE=16,32 --problem wide"
    group = MEASURE
    verbose = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "one kernel", nargs=1)
        group_of(parser, WHAT).add_argument(
            "tunables", nargs="*", metavar="NAME=8,16", help="the values to try of each tunable"
        )
        add_problem(parser, None, "square; of a .py file its own task")
        add_engine(parser)
        add_predicted_gpu(parser)
        add_plot(parser)
        add_save(parser)

    def validate(self, arguments: Namespace) -> None:
        """Replace the words of the tunables by a grid."""
        arguments.tunables = parse_grid(arguments.tunables)

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from .sweep import sweep

        (kernel,) = arguments.kernels
        yield sweep(
            kernel,
            arguments.tunables,
            arguments.problem,
            engine=arguments.engine,
            gpu=arguments.gpu,
        )


def parse_grid(words: Sequence[str]) -> dict[str, list[int]]:
    """Return the values of each tunable: {"TILE": [8, 16]} for "TILE=8,16".

    Raises
    ------
    ProblemError
        A word does not have this form, or a tunable is given twice.
    """
    grid: dict[str, list[int]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if not re.fullmatch(r"-?\d{1,18}(,-?\d{1,18})*", values):
            raise ProblemError(
                f"cannot read the tunable {word[:80]!r}: write NAME=8,16, whole numbers"
            )
        if name in grid:
            raise ProblemError(f"{name} is given twice; list its values once: {name}=8,16")
        grid[name] = [int(value) for value in values.split(",")]
    return grid
