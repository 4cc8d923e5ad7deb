"""The command ``inspect``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from typing import Any

from ..commands.command import (
    CommandForEachKernel,
    add_engine,
    add_kernels,
    add_plot,
    add_problem,
)


class Inspect(CommandForEachKernel):
    about = "Explain a kernel's time: registers, occupancy, cost by line, a time model."
    example = "inspect 03_smem_tile --problem wide --listing"
    results_key = "inspections"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "all kernels if none is given")
        add_problem(parser)
        add_engine(parser, "both, where there is a GPU")
        add_plot(parser, for_each_kernel=True)
        parser.add_argument(
            "--gpu", help="T4, A100, L4, 'RTX 4090', H100 or H200; default: the one here, else H200"
        )
        parser.add_argument("--listing", action="store_true", help="show the source, line by line")

    def run_kernel(self, kernel: Any, word: Any, arguments: Namespace) -> Any:
        from .inspect_kernel import inspect

        return inspect(kernel, arguments.problem, gpu=arguments.gpu, engine=arguments.engine)
