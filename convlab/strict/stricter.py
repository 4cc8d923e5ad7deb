"""Extend the default check: implement the seam `Stricter`."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product

from ..core.correctness.examine import may_vary
from ..core.correctness.report import Report
from ..core.correctness.stricter import Trial
from ..core.finding import Finding
from ..core.kernel.runnable import Runnable
from ..core.problem.computation import WEIGHT_GRADIENT
from ..core.problem.named import problem as named_problem
from ..core.problem.named import problems as named_problems
from ..core.problem.problem import Problem
from . import nvcc_report
from .generated_problems import generate, option_pairs
from .other_gpus import trials_on_other_gpus
from .repeated_limits import without_repeated
from .sampled_blocks import sampled
from .settings import (
    FEW_MACS,
    host_problems,
    is_large,
    settings_for,
    shared_trials,
    with_relu,
    workspace_trials,
)
from .smallest_failure import shrink
from .source_conditions import source_problems
from .sparse import SPARSE, sparse_problems
from .tunable_choices import tunable_trials

# Every third generated problem has a ReLU, if the kernel fuses one.
_RELU_STEP = 3
# For a kernel that supports few problems, at most `count` times this many are drawn.
_MOST_DRAWS = 30
# A kernel may apply its ReLU too early: to a part of a sum over many channels.
_WITH_RELU = ("N1 C300 H5 W6 K9 R3 S3 p1 bias", "N1 C1100 H3 W4 K5 R1 S1 bias")
# The sums of a weight gradient are over so many pixels that a kernel with atomics splits them in many parts, which
# are added in a changing order.
_MANY_PARTS = "N1 C2 H1100 W1000 K2 R1 S1"
# The sets of problems that a default check begins with.
SETS = ("awkward", "limits")


class Strict:
    """Extend a check by generated problems, unusual settings, shrinking, and nvcc's messages."""

    def __init__(self, kernel: Runnable) -> None:
        self.kernel = kernel
        self._nvcc: Future[nvcc_report.NvccReport | None] | None = None
        if kernel.counts:
            # nvcc compiles in another thread while the simulator runs.
            pool = ThreadPoolExecutor(1)
            self._nvcc = pool.submit(nvcc_report.nvcc_report, kernel)
            pool.shutdown(wait=False)

    def problems(self, count: int, seed: int) -> list[Problem]:
        """Return at least `count` generated problems.

        More are drawn until the kernel supports a quarter of `count`, and until each pair of
        unusual options that it supports (such as a stride and groups) occurs in one of them. Then
        come problems for the conditions in the source, each named after its condition.
        """
        drawn: list[Problem] = []
        supported = 0
        covered: set[tuple[str, str]] = set()
        for i, problem in enumerate(generate(_MOST_DRAWS * count, seed)):
            problem = self.kernel.asked(problem)
            if i % _RELU_STEP == 0:
                problem = with_relu(self.kernel, problem)
            is_supported = not self.kernel.unsupported(problem)
            new_pairs = option_pairs(problem) - covered if is_supported else set()
            too_few = is_supported and 4 * supported < count
            if len(drawn) < count or too_few or (new_pairs and supported < len(drawn)):
                drawn.append(problem)
                supported += is_supported
                covered |= new_pairs
        for spec in _WITH_RELU:
            drawn.append(with_relu(self.kernel, self.kernel.asked(named_problem(spec))))
        if self.kernel.counts and may_vary(self.kernel) and self.kernel.computes == WEIGHT_GRADIENT.name:
            drawn.append(self.kernel.asked(named_problem(_MANY_PARTS)))
        fixed = [self.kernel.asked(each) for name in SETS for each in named_problems(name)]
        known = [each for each in self.needed(fixed) + drawn if not self.kernel.unsupported(each)]
        return drawn + source_problems(self.kernel, known)

    def needed(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems without those that repeat another one; all of them on a GPU."""
        return without_repeated(self.kernel, problems) if self.kernel.counts else list(problems)

    def sampled(
        self, problem: Problem, seed: int, takes_long: bool = False, few: bool = False
    ) -> Report | None:
        """Return the report of a sample of the blocks of a long problem; None if all should run."""
        return sampled(self.kernel, problem, seed, takes_long, few)

    def trials(self, reports: Sequence[Report]) -> Iterator[Sequence[Trial]]:
        """Yield trials with little workspace, in each setting, on other GPUs, with other values of
        tunables, and on a tensor of over 2^31 elements.
        """
        hosts = []
        if self.kernel.source:
            hosts = host_problems(self.kernel, [report.problem for report in reports])
        # A problem that takes as long as many others has no more to show with little workspace.
        small = [host for host in hosts if host.macs <= FEW_MACS and not is_large(host)]
        yield workspace_trials(self.kernel, small)
        yield shared_trials(self.kernel, reports)
        if self.kernel.source:
            for host in hosts:
                yield list(product([host], settings_for(self.kernel, host)))
        if self.kernel.counts and self.kernel.source:
            yield list(trials_on_other_gpus(self.kernel))
            yield list(tunable_trials(self.kernel))
        yield list(product(sparse_problems(self.kernel), [SPARSE]))

    def shrink(self, problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
        """Return the smallest failing problem that a greedy search finds."""
        return shrink(problem, fails)

    def watch(self, report: Report) -> Report:
        """Return the report with the launches that a GPU would refuse, according to nvcc."""
        nvcc = self._nvcc.result() if self._nvcc else None
        if nvcc is None:
            return report
        return report.joined([*nvcc.refused_launches(report.threads)])

    def finish(self) -> tuple[Sequence[Finding], str]:
        """Return nvcc's errors and warnings, and a note if nvcc could not compile the kernel."""
        nvcc = self._nvcc.result() if self._nvcc else None
        if nvcc is None:
            return (), ""
        return nvcc.findings, nvcc.note
