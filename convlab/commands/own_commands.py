"""The commands of this room: list, check, compare, ab, diff, cache and doctor.

Each imports what it needs when it runs, because importing torch takes seconds: see `command`.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ..core.defaults import COUNT, MODES, SECONDS, THRESHOLD
from ..core.errors import ProblemError
from ..core.problem.computation import COMPUTATIONS
from .command import (
    HOW,
    MEASURE,
    WHAT,
    WRITE,
    Command,
    CommandForEachKernel,
    add_engine,
    add_kernels,
    add_plot,
    add_predicted_gpu,
    add_problem,
    add_save,
    add_seed,
    group_of,
    require_kernels,
)
from .text_result import TextResult

# Rows are shown as they come only if a comparison takes longer than this.
_PATIENCE_SECONDS = 3.0
NO_SIMULATE = (
    "--no-simulate is for a check on a GPU, but here the kernel runs on the simulator: leave it out, "
    "or use --engine cuda on a machine with a GPU"
)


class List(Command):
    about = "List the kernels, their folders, and the named problems."
    example = "list"
    group = WRITE

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from .kernel_list import kernel_list

        yield kernel_list()


class Check(CommandForEachKernel):
    about = "Check whether kernels are correct, against a float64 reference."
    words = "[KERNEL ...]"
    example = "check 03_smem_tile --problem wide"
    group = WRITE
    verbose = True
    results_key = "reports"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "all kernels if none is given", baselines=True)
        add_problem(parser, None, "the sets awkward and limits, and generated problems")
        add_engine(parser)
        add_plot(parser, for_each_kernel=True)
        group_of(parser, WHAT).add_argument(
            "--count",
            metavar="N",
            type=int,
            help=f"how many problems to generate, without --problem; default: {COUNT}",
        )
        add_seed(parser, "the data and the generated problems")
        group_of(parser, HOW).add_argument(
            "--setting",
            metavar="NAME",
            help="one setting of the default check: zeros, huge, offset, ...; an unknown name lists "
            "them all",
        )
        group_of(parser, HOW).add_argument(
            "--time-limit",
            metavar="SECONDS",
            type=float,
            help="the time limit of each problem; default: 120 on the simulator, 20 on a GPU",
        )
        group_of(parser, HOW).add_argument(
            "--no-simulate",
            action="store_true",
            help="on a GPU: do not run the kernel on the simulator at the same time",
        )

    def validate(self, arguments: Namespace) -> None:
        if arguments.problem is not None and arguments.count is not None:
            raise ProblemError(
                "--count is for generated problems, and --problem names one: leave out one of them"
            )
        if arguments.no_simulate and arguments.engine == "sim":
            raise ProblemError(NO_SIMULATE)

    def run_kernel(self, kernel: Any, word: Any, arguments: Namespace) -> Any:
        from .reproduce import checked

        if arguments.no_simulate and kernel.counts:
            raise ProblemError(NO_SIMULATE)
        if arguments.time_limit is not None:
            if kernel.library:
                raise ProblemError(
                    f"--time-limit is for kernels; {kernel.name} runs without a limit"
                )
            kernel = kernel.on(kernel.engine, arguments.time_limit)
        # Neither a JSON document nor a notebook's cell shows single rows.
        each = None if getattr(arguments, "json", True) else show_failure
        word = word if isinstance(word, str) else kernel.name
        return checked(kernel, word, arguments, each)


def show_failure(report: Any) -> None:
    """Print a line to stderr for a problem on which a kernel is not correct, as soon as it is known.

    So Ctrl-C loses none of them.
    """
    if not report.ok:
        print(
            f"{_line_start()}{report.sentence}: {report.first_failure}", file=sys.stderr, flush=True
        )


def _line_start() -> str:
    """Return what clears the line of the progress bar on a terminal; the bar is drawn again."""
    return "\r\x1b[K" if sys.stderr.isatty() else ""


class Compare(Command):
    about = "Compare kernels in one table: error, and time or traffic."
    words = "[KERNEL ...]"
    example = "compare 01_direct 03_smem_tile --problem wide"
    group = MEASURE
    verbose = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        first = "default: the first rungs, the best of each class, your own"
        add_kernels(parser, first, baselines=True)
        add_problem(parser)
        group_of(parser, WHAT).add_argument(
            "--all", action="store_true", help="compare all kernels, which takes longer"
        )
        group_of(parser, WHAT).add_argument(
            "--computes",
            choices=[name.replace(" ", "-") for name in COMPUTATIONS],
            help="compare the kernels for this gradient of the problem; default: what the kernels "
            "compute",
        )
        add_engine(parser)
        add_predicted_gpu(parser)
        add_plot(parser)
        add_save(parser)

    def validate(self, arguments: Namespace) -> None:
        if arguments.all and arguments.kernels:
            raise ProblemError("--all compares all kernels: leave out --all, or the kernels' names")

    def run(self, arguments: Namespace) -> Iterator[Any]:
        from ..core.timing.compare import compare

        kernels = "all" if arguments.all else arguments.kernels or None
        # Neither a JSON document nor a notebook's cell shows single rows.
        wants_rows = not getattr(arguments, "json", True)
        yield compare(
            kernels,
            arguments.problem,
            engine=arguments.engine,
            each=_RowsAsTheyCome() if wants_rows else None,
            gpu=arguments.gpu,
            computes=arguments.computes and arguments.computes.replace("-", " "),
        )


class _RowsAsTheyCome:
    """Print a line to stderr for each kernel of a comparison, as soon as its row is complete.

    A comparison of a few seconds prints none, because its table follows at once.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._waiting: list[str] = []

    def __call__(self, comparison: Any) -> None:
        (row,) = comparison.frame.to_dict("records")
        if row["correct"] is not None:
            self._waiting.append(_row_line(row, comparison))
        if time.monotonic() - self._started > _PATIENCE_SECONDS:
            for line in self._waiting:
                print(f"{_line_start()}{line}", file=sys.stderr, flush=True)
            self._waiting.clear()


def _row_line(row: dict[str, Any], comparison: Any) -> str:
    """Return a row of a comparison as a line: the kernel, the verdict, the cost."""
    from ..core.show.table import short

    verdict = "correct" if row["correct"] else "INCORRECT"
    cost = row[comparison.cost]
    line = f"{row['kernel']}: {verdict}"
    if cost == cost:  # not NaN: it has a cost
        line += f", {short(cost)} {comparison.kind.unit}, {short(row['x_floor'])}x the floor"
    return line


class AB(Command):
    about = "Check A and B, then measure whether B is faster or slower."
    words = "A B"
    example = "ab 03_smem_tile 03_smem_tile@TILE=8 --problem wide"
    group = MEASURE

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "two kernels, A and B", baselines=True)
        add_problem(parser)
        add_engine(parser)
        add_predicted_gpu(parser)
        add_plot(parser)
        how = group_of(parser, HOW)
        how.add_argument(
            "--mode",
            choices=(*MODES, "both"),
            default="both",
            help="cold flushes the L2 before each launch, hot does not; default: both",
        )
        how.add_argument(
            "--threshold",
            type=float,
            default=100 * THRESHOLD,
            metavar="PERCENT",
            help="a smaller difference counts as the same; default: %(default)g",
        )
        how.add_argument(
            "--limit",
            type=float,
            default=SECONDS,
            metavar="SECONDS",
            help="the time for the rounds of one mode; default: %(default)g",
        )
        add_seed(parser)
        how.add_argument(
            "--careful", action="store_true", help="time in fresh processes, for about a minute"
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
            gpu=arguments.gpu,
        )


class Diff(Command):
    about = "Show the changes from a kernel's parent to it, or from A to B."
    words = "[A] B"
    example = "diff 02_im2col_gemm 03_smem_tile"
    group = WRITE

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_kernels(parser, "one kernel, compared with its parent, or two: A (---) and B (+++)")

    def validate(self, arguments: Namespace) -> None:
        require_kernels(arguments, 1, 2, "one kernel, or two: A and B")

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from .difference import difference

        yield difference(*arguments.kernels)


class Cache(Command):
    about = "Show the size of the saved builds, or remove them."
    words = "[show|clear]"
    example = "cache clear"

    def add_arguments(self, parser: ArgumentParser) -> None:
        group_of(parser, WHAT).add_argument(
            "action",
            nargs="?",
            choices=("show", "clear"),
            default="show",
            help="show the size of the builds, or also remove them; default: %(default)s",
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
    about = "Test this machine, and say how to install what is missing."
    example = "doctor"

    def run(self, arguments: Namespace) -> Iterator[TextResult]:
        from . import doctor

        rows = doctor.examine()
        bad = [row["what"] for row in rows if row["ok"] is False]
        verdict = (
            f"missing or incorrect: {', '.join(bad)}" if bad else "this machine can run convlab"
        )
        lines = [verdict]
        for row in rows:
            missing = "MISSING" if row["found"] == "none" else "INCORRECT"
            mark = {True: "ok", False: missing, None: "-"}[row["ok"]]
            lines.append(f"{row['what']:<13} {mark:<8} {row['found']}")
            lines += [f"{'':<22} {line}" for line in row["advice"].splitlines()]
        ok = not bad
        yield TextResult("\n".join(lines), {"ok": ok, "rows": rows}, ok)
