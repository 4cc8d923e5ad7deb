"""What the default check adds to problems on normal data: the seam `Stricter`."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from ..core.correctness.report import Report
from ..core.correctness.stricter import Trial
from ..core.finding import Finding
from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from . import nvcc_report, shapes
from .settings import IN_CHUNKS, host_problems, settings_for, with_relu
from .sparse import SPARSE, sparse_problems

_RELU = 3  # one of so many generated problems gets a ReLU, where the kernel fuses that
_DRAWS = 30  # times as many are drawn, for kernels that support few problems
_IN_CHUNKS = ("awkward.primes", "awkward.tile_plus_one", "awkward.groups_3", "awkward.everything")


class Strict:
    """Generated problems, unusual settings, the smallest failure, and nvcc beside the simulator."""

    def __init__(self, kernel: Runnable) -> None:
        self.kernel = kernel
        self._nvcc = None
        if kernel.counts:
            # nvcc compiles in a thread while the simulator runs.
            pool = ThreadPoolExecutor(1)
            self._nvcc = pool.submit(nvcc_report.nvcc_report, kernel)
            pool.shutdown(wait=False)

    def problems(self, count: int, seed: int) -> list[Problem]:
        """Return at least `count` generated problems.

        Where the kernel does not support some of them there are more: until it supports a quarter of
        `count`, and until each two unusual options that it supports together (a stride and groups,
        ...) are in one of them.
        """
        drawn: list[Problem] = []
        supported = 0
        covered: set[tuple[str, str]] = set()
        for i, problem in enumerate(shapes.generated(_DRAWS * count, seed)):
            if i % _RELU == 0:
                problem = with_relu(self.kernel, problem)
            able = not self.kernel.unsupported(problem)
            new = shapes.pairs(problem) - covered if able else set()
            few = able and 4 * supported < count
            if len(drawn) < count or few or (new and supported < len(drawn)):
                drawn.append(problem)
                supported += able
                covered |= new
        return drawn

    def trials(self, reports: Sequence[Report]) -> Iterator[Sequence[Trial]]:
        """Yield trials in little workspace, in each setting, and on an x beyond 2^31."""
        source = self.kernel.source or ""
        if "conv2d_workspace" in source:
            chunked = [named_problem(name) for name in _IN_CHUNKS]
            able = [problem for problem in chunked if not self.kernel.unsupported(problem)]
            yield list(product(able, IN_CHUNKS))
        if source:
            for host in host_problems(self.kernel, [report.problem for report in reports]):
                yield list(product([host], settings_for(host)))
        yield list(product(sparse_problems(self.kernel), [SPARSE]))

    def shrink(self, problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
        """Return the smallest problem found that still fails."""
        return shapes.shrink(problem, fails)

    def watch(self, report: Report) -> Report:
        """Add the launches of this problem that a GPU would refuse, by what nvcc says."""
        nvcc = self._nvcc.result() if self._nvcc else None
        return report.joined([*nvcc.too_large(report.threads)]) if nvcc else report

    def finish(self) -> tuple[Sequence[Finding], str]:
        """Return nvcc's errors and warnings, or a note why it could not compile the kernel."""
        nvcc = self._nvcc.result() if self._nvcc else None
        return (nvcc.findings, nvcc.note) if nvcc else ((), "")
