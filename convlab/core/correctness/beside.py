"""Run a GPU's kernel on the simulator at the same time, on a few small problems.

One GPU forgives races, missing fences and missing waits, because its threads run in nearly the same
order each time. The simulator reports them, with their source lines. It uses the CPU, which is idle
while the GPU works.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import replace

from ..errors import ConvlabError, LaunchError, UnsupportedError
from ..faults import CORRECT, INCORRECT
from ..kernel.runnable import Runnable
from ..problem.named import problem as named_problem
from ..problem.named import problems as named_problems
from ..problem.problem import Problem
from .examine import examine, failed, uncounted_first
from .report import Report, Reports
from .setting import ORDINARY, Setting

# The problems of a default check that run beside the GPU: the first ones that the kernel supports.
# Tiles end inside, at and after a border; there are several images, blocks, stages and groups.
_NAMES = (
    "primes",
    "tile_plus_one",
    "everything",
    "filters_129",
    "channels_257",
    "octets",
    "octets_strided",
    "octets_to_128",
    "octets_of_a_row",
    "pointwise",
    "depthwise",
    "depthwise_strided",
    "groups_3",
    "bias",
    "image_1",
)
_COUNT = 6
# No dimension of y is larger.
_LONG = 1200
# Given problems are scaled down to this many multiply-adds.
_MACS = 1_000_000
# The time limit of each simulated run, and of all of them from their start, in seconds.
_RUN_SECONDS = 20.0
_SECONDS = 30.0


def problems_beside(kernel: Runnable, given: Sequence[Problem] | None) -> list[Problem]:
    """Return the problems to simulate beside a GPU; `given` is None for a default check."""
    if given is None:
        candidates = [kernel.asked(named_problem(f"awkward.{name}")) for name in _NAMES]
        # A kernel for pointwise or depthwise convolutions supports few of these.
        others = map(kernel.asked, [*named_problems("awkward"), *named_problems("limits")])
        candidates += [
            each for each in others if each.macs <= _MACS and max(each.output_shape) <= _LONG
        ]
    else:
        candidates = [problem.scaled(_MACS) for problem in given]
    supported = [each for each in dict.fromkeys(candidates) if not kernel.unsupported(each)]
    return supported[:_COUNT]


class Beside:
    """Simulate a kernel in other threads while the GPU is checked.

    Parameters
    ----------
    kernel : the kernel on the GPU.
    given : the problems of the check; None for a default check.
    seed, setting : those of the check.
    """

    def __init__(
        self,
        kernel: Runnable,
        given: Sequence[Problem] | None,
        seed: int,
        setting: Setting = ORDINARY,
    ) -> None:
        self._runs: list[tuple[Problem, Future[Report | str]]] = []
        # The problems that were not simulated, by the reason.
        self._lacking: dict[str, list[str]] = {}
        self._end = time.monotonic() + _SECONDS
        self._pool: ThreadPoolExecutor | None = None
        twin = kernel.simulated(_RUN_SECONDS)
        if twin is None or setting.fits_any:
            return
        problems = problems_beside(twin, given)
        if not problems:
            self._lacking["the kernel supports none of the problems for it"] = []
            return
        self._pool = ThreadPoolExecutor(twin.runs_on.at_once)
        self._runs = [
            (problem, self._pool.submit(_examined, twin, problem, seed, setting))
            for problem in problems
        ]

    def cancel(self) -> None:
        """Start no more runs; those that run end at their time limit."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self, result: Report | Reports) -> Report | Reports:
        """Wait for the simulator; return the result with its reports, and notes on what it lacks.

        The order does not depend on which run ended first.
        """
        reports: list[Report] = []
        for problem, future in self._runs:
            try:
                outcome = future.result(max(0.0, self._end - time.monotonic()))
            except Late:
                outcome = f"it needed more than {_SECONDS:g} s"
            if isinstance(outcome, Report) and outcome.outcome not in (CORRECT, INCORRECT):
                outcome = outcome.first_failure
            if isinstance(outcome, Report):
                reports.append(outcome)
            else:
                self._lacking.setdefault(outcome, []).append(problem.label)
        self.cancel()
        notes = [_note(reason, labels, len(self._runs)) for reason, labels in self._lacking.items()]
        if isinstance(result, Reports):
            return _joined_set(result, reports, notes)
        return _joined_one(result, reports, notes)


def _examined(twin: Runnable, problem: Problem, seed: int, setting: Setting) -> Report | str:
    """Return the report of a simulated run, or in one line why there is none."""
    try:
        try:
            twin.uncounted().build()
            return uncounted_first(lambda each: examine(twin, problem, seed, setting=each), setting)
        except LaunchError as error:
            return failed(twin, problem, error, setting)
    except UnsupportedError as error:
        return str(error)
    except ConvlabError as error:
        # nvcc compiled it, so this is about the simulator: it lacks something, or its compiler does.
        return str(error).split("\n")[0]


def _joined_set(result: Reports, reports: Sequence[Report], notes: Sequence[str]) -> Reports:
    wrong = [report for report in reports if not report.ok]
    smallest = result.smallest
    if smallest is None and wrong:
        smallest = min(wrong, key=lambda report: (report.problem.macs, report.problem.min_bytes))
    return replace(
        result,
        reports=(*result.reports, *reports),
        smallest=smallest,
        notes=(*result.notes, *notes),
    )


def _joined_one(result: Report, reports: Sequence[Report], notes: Sequence[str]) -> Report:
    for report in reports:
        if not report.ok:
            where = f"on the simulator, on {report.problem.label}"
            findings = [replace(each, text=f"{each.text} ({where})") for each in report.findings]
            crashed = result.fault if report.fault is None else report.fault
            result = replace(result.joined(findings), fault=crashed)
        else:
            notes = [*notes, f"also correct on the simulator, on {report.problem.label}"]
    return replace(result, notes=(*result.notes, *notes))


def _note(reason: str, labels: Sequence[str], count: int) -> str:
    """Return a note on problems that were not simulated; `count` is the number of all problems."""
    where = "" if len(labels) in (0, count) else f" on {', '.join(labels)}"
    return f"not simulated beside the GPU{where}: {reason}"
