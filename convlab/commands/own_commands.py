"""The commands of this room: list, check, compare, ab, diff, cache and doctor.

Each imports what it needs when it runs, and torch with it: see `command`.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ..core.defaults import COUNT, MODES, SECONDS, THRESHOLD
from ..core.errors import ProblemError
from .command import (
    Command,
    CommandForEachKernel,
    add_engine,
    add_kernels,
    add_plot,
    add_problem,
    add_save,
    add_seed,
    require_kernels,
)
from .text_result import TextResult


class List(Command):
    about = "List the kernels, their folders, and the named problems."
    example = "list"

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from .kernel_list import kernel_list

        yield kernel_list()


class Check(CommandForEachKernel):
    about = "Check whether kernels are correct, against float64."
    example = "check 03_smem_tile --problem wide"
    results_key = "reports"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "all kernels if none is given", baselines=True)
        add_problem(parser, None, "the sets awkward and limits, and generated problems")
        add_engine(parser)
        add_plot(parser, for_each_kernel=True)
        parser.add_argument(
            "--count",
            metavar="N",
            type=int,
            help=f"how many problems to generate, without --problem; default: {COUNT}",
        )
        add_seed(parser, "the data and the generated problems")
        parser.add_argument(
            "--setting",
            metavar="NAME",
            help="run the problem in one setting of the default check: zeros, huge, offset, ...; "
            "an unknown name lists them all",
        )

    def validate(self, arguments: Namespace) -> None:
        if arguments.problem is not None and arguments.count is not None:
            raise ProblemError(
                "--count is of generated problems, and --problem names one: leave out either"
            )

    def run_kernel(self, kernel: Any, word: Any, arguments: Namespace) -> Any:
        from .reproduce import checked

        return checked(kernel, word if isinstance(word, str) else kernel.name, arguments)


class Compare(Command):
    about = "Compare kernels side by side: error, cost, floor."
    example = "compare 01_direct 03_smem_tile --problem wide --plot wide.png"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "all kernels if none is given", baselines=True)
        add_problem(parser)
        add_engine(parser)
        add_plot(parser)
        add_save(parser)

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from ..core.timing.compare import compare

        yield compare(arguments.kernels or None, arguments.problem, engine=arguments.engine)


class AB(Command):
    about = "Check two kernels, then find out whether B is faster than A, slower, or the same."
    example = "ab 03_smem_tile 03_smem_tile@TILE=8 --problem wide"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "two kernels, A and B", baselines=True)
        add_problem(parser)
        add_engine(parser)
        add_plot(parser)
        parser.add_argument(
            "--mode",
            choices=(*MODES, "both"),
            default="both",
            help="cold flushes the L2 before each launch, hot does not; default: both",
        )
        parser.add_argument(
            "--threshold",
            type=float,
            default=100 * THRESHOLD,
            metavar="PERCENT",
            help="a difference below this is called the same; default: %(default)g",
        )
        parser.add_argument(
            "--limit",
            type=float,
            default=SECONDS,
            metavar="SECONDS",
            help="time for the rounds of one mode; default: %(default)g",
        )
        add_seed(parser)
        parser.add_argument(
            "--careful", action="store_true", help="time in fresh processes: about a minute"
        )
        add_save(parser)

    def validate(self, arguments: Namespace) -> None:
        require_kernels(arguments, 2, 2, "two kernels, A and B")

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from ..core.timing.ab import ab

        first, second = arguments.kernels
        yield ab(
            first,
            second,
            arguments.problem,
            engine=arguments.engine,
            seed=arguments.seed,
            mode=MODES if arguments.mode == "both" else arguments.mode,
            threshold=arguments.threshold / 100,
            limit_seconds=arguments.limit,
            careful=arguments.careful,
        )


class Diff(Command):
    about = "Show what a kernel changes of its parent, or of another kernel."
    example = "diff 03_smem_tile"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "a kernel, and perhaps another than its parent")

    def validate(self, arguments: Namespace) -> None:
        require_kernels(arguments, 1, 2, "a kernel, and perhaps another than its parent")

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from .difference import difference

        yield difference(*arguments.kernels)


class Cache(Command):
    about = "Show or clear the builds that are kept, and their size."
    example = "cache clear"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "action",
            nargs="?",
            choices=("show", "clear"),
            default="show",
            help="show the builds, or also remove them; default: %(default)s",
        )

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from ..core.builds import cache
        from ..core.machine import toolchain

        folder = toolchain.cache_dir()
        entries = cache.contents()
        size = sum(entry.bytes for entry in entries)
        text = f"{folder}, builds: {len(entries)}, {size / 1e6:.1f} MB"
        document = {"folder": str(folder), "builds": len(entries), "bytes": size}
        if arguments.action == "clear":
            document["removed"] = cache.clear()
            text += ", removed"
        yield TextResult(text, document)


class Doctor(Command):
    about = "Show what this machine has, and what to do about what is missing."
    example = "doctor"

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from . import doctor

        rows = doctor.examine()
        lines = []
        for row in rows:
            missing = "MISSING" if row["found"] == "none" else "INCORRECT"
            mark = {True: "ok", False: missing, None: "-"}[row["ok"]]
            lines.append(f"{row['what']:<13} {mark:<8} {row['found']}")
            lines += [f"{'':<22} {line}" for line in row["advice"].splitlines()]
        ok = all(row["ok"] is not False for row in rows)
        yield TextResult("\n".join(lines), {"ok": ok, "rows": rows}, ok)
