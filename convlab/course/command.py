"""The command ``grade``. Importing this module must not import torch: see `commands.command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..commands.command import HOW, WHAT, WRITE, Command, add_save, group_of
from ..core.errors import ProblemError


class GradeCommand(Command):
    about = "Grade the files of a lab: correct, predicted, counted, asked."
    words = "[FILE.cu ...]"
    example = "grade class/*.cu --lab direct"
    group = WRITE

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = group_of(parser, WHAT)
        what.add_argument("files", nargs="*", metavar="FILE.cu", help="the students' files")
        what.add_argument(
            "--lab",
            metavar="LAB",
            help="a lab's name or its .toml file; default: the one that the file names",
        )
        what.add_argument(
            "--verify",
            metavar="JSON",
            type=Path,
            help="grade the text in a receipt of --save again, and compare the points",
        )
        what.add_argument(
            "--pars",
            metavar="TOML",
            type=Path,
            help="write the counts of our kernels into a lab's file; on a GPU, the times",
        )
        group_of(parser, HOW).add_argument(
            "--engine",
            choices=("sim", "cuda"),
            default="sim",
            help="sim: points for counts; cuda: points for the time on this GPU; default: sim",
        )
        add_save(parser)

    def validate(self, arguments: Namespace) -> None:
        given = [bool(arguments.files), arguments.verify is not None, arguments.pars is not None]
        if sum(given) != 1:
            raise ProblemError(
                "grade takes files, or --verify JSON, or --pars TOML: give one of them"
            )
        if arguments.pars and arguments.lab:
            raise ProblemError("--pars names the lab's file: leave out --lab")
        if arguments.verify and arguments.engine != "sim":
            raise ProblemError("--verify runs on the simulator: leave out --engine")
        if arguments.save is not None and len(arguments.files) != 1:
            raise ProblemError("--save writes the receipt of one file: give one file")

    def run(self, arguments: Namespace) -> Iterator[Any]:
        if arguments.pars is not None:
            from .pars import write_pars

            yield write_pars(arguments.pars, arguments.engine)
            return
        from .grade import grade, verify

        if arguments.verify is not None:
            yield verify(arguments.verify, arguments.lab)
            return
        files = arguments.files if len(arguments.files) > 1 else arguments.files[0]
        yield grade(files, arguments.lab, engine=arguments.engine)
