"""The command ``inspect``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from typing import Any

from ..commands.command import (
    HOW,
    MEASURE,
    CommandForEachKernel,
    add_engine,
    add_kernels,
    add_listing,
    add_plot,
    add_problem,
    group_of,
)


class Inspect(CommandForEachKernel):
    about = "Explain a kernel's time: occupancy, cost by line, a time model."
    words = "[KERNEL ...]"
    example = "inspect 03_smem_tile --problem wide --listing"
    group = MEASURE
    good = "inspected"
    verbose = True
    results_key = "inspections"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "all kernels if none is given")
        add_problem(parser, None, "square; of a .py file its own task")
        add_engine(parser, "both, if there is a GPU")
        group_of(parser, HOW).add_argument(
            "--gpu",
            help="T4, A100, L4, 'RTX 4090', 'RTX 5090', H100 or H200; default: the one here, else H200",
        )
        add_plot(parser, for_each_kernel=True)
        add_listing(parser)

    def run_kernel(self, kernel: Any, word: Any, arguments: Namespace) -> Any:
        from .inspect_kernel import inspect

        return inspect(kernel, arguments.problem, gpu=arguments.gpu, engine=arguments.engine)
