"""The command ``play``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..commands.command import (
    HOW,
    MEASURE,
    OUTPUT,
    Command,
    add_kernels,
    add_problem,
    group_of,
    require_kernels,
)
from ..core.errors import ProblemError


class PlayCommand(Command):
    about = "Step through one block of a kernel, as a page with a slider."
    words = "KERNEL"
    example = "play 03_smem_tile --problem wide --block 1 --write page.html"
    group = MEASURE

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "one kernel")
        add_problem(parser)
        how = group_of(parser, HOW)
        how.add_argument(
            "--block", default="0", metavar="X[,Y,Z]", help="blockIdx of the block; default: 0,0,0"
        )
        how.add_argument("--warp", type=int, metavar="N", help="only this warp; default: all warps")
        how.add_argument(
            "--launch",
            type=int,
            metavar="N",
            help="number of the launch, from 0; default: the one with the most shared memory",
        )
        group_of(parser, OUTPUT).add_argument(
            "--write",
            type=Path,
            required=True,
            metavar="PAGE.html",
            help="the page to write, at most 2 MB",
        )

    def validate(self, arguments: Namespace) -> None:
        require_kernels(arguments, 1, 1, "one kernel")
        if not all(part.strip().isdecimal() for part in arguments.block.split(",")):
            raise ProblemError(
                f"--block {arguments.block[:40]} is not a block: give X, or X,Y,Z, such as 1,0,0"
            )

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from ..commands.text_result import TextResult
        from .play import play

        playback = play(
            arguments.kernels[0],
            arguments.problem,
            block=[int(part) for part in arguments.block.split(",")],
            warp=arguments.warp,
            launch=arguments.launch,
        )
        path = playback.save(arguments.write).resolve()
        size = path.stat().st_size
        document = {
            "kernel": playback.kernel.name,
            "problem": playback.problem.label,
            "block": list(playback.block),
            "steps": len(playback.steps),
            "page": str(path),
            "bytes": size,
        }
        text = f"{len(playback.steps):,} steps of block {playback.block}: {path} ({size / 1e3:,.0f} KB)"
        yield TextResult(text, document)
