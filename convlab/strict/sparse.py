"""Define a setting for offsets over 2^31: an x with more elements than an int can count.

The problems read few elements of x. The setting works only on the simulator, where memory that is
never accessed takes no space.
"""

import math
from dataclasses import dataclass

import torch

from ..core.correctness import reference
from ..core.correctness.examine import compared_once
from ..core.correctness.output import OutputComparison
from ..core.correctness.reference import Reference
from ..core.correctness.report import Report
from ..core.correctness.setting import Setting
from ..core.errors import LaunchError, ProblemError
from ..core.kernel.runnable import Runnable
from ..core.problem.format import FLOAT32
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem

# The time limit of a run in seconds. A kernel that takes longer reads all of x: that is no error.
_SECONDS = 20.0
# For each problem the number of channels, and the height and width of the image.
_PLANES = ((3, 32800), (1, 46400))


@dataclass(frozen=True)
class Sparse(Setting):
    """Run a problem that reads few elements of an x with more elements than an int can count."""

    name: str = "sparse"
    words: str = "with an x of over 2^31 elements, reading few of them"
    fits_any: bool = True

    def examine(self, kernel: Runnable, problem: Problem, seed: int) -> Report:
        """Check a kernel on the simulator; it writes all of y and reads all of the filter.

        Raises
        ------
        ProblemError
            The setting does not have this problem.
        LaunchError
            The run failed. An error without a kind is not the kernel's fault: the kernel reads all
            of x, or needs more workspace.
        """
        supported = sparse_problems(kernel)
        if problem not in supported:
            offer = " or ".join(map(str, supported)) or "none that this kernel supports"
            raise ProblemError(
                f'setting="sparse" does not take this problem, it has its own problems: {offer}'
            )
        return _examine(self, kernel, problem, seed)


SPARSE = Sparse()


def sparse_problems(kernel: Runnable) -> list[Problem]:
    """Return the problems of `Sparse` that a kernel supports; none if its tensors are not fp32 NCHW.

    There is at most one for each entry of `_PLANES`. In the first an int can count the elements of
    one channel of x, but not those of two. In the second it cannot count those of one.
    """
    if not kernel.counts or kernel.build() is None or kernel.format != FLOAT32:
        return []
    problems = []
    for c, size in _PLANES:
        for taps, groups in ((3, 1), (1, 1), (3, c)):
            stride = size - taps
            spec = f"N2 C{c} H{size} W{size} K60 R{taps} S{taps} s{stride} g{groups}"
            problem = named_problem(spec)
            if not kernel.unsupported(problem):
                problems.append(problem)
                break
    return problems


def _examine(setting: Setting, kernel: Runnable, problem: Problem, seed: int) -> Report:
    """Return the report of a kernel on one of the problems."""
    from ..sim.launch import simulated
    from ..sim.simulation import Arena

    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = Arena(shapes, ["x"])
    x, w, y = (arena.tensors[name] for name in shapes)
    random = torch.Generator().manual_seed(seed)
    # Set only the rows and columns that are read. The problems have no padding and no dilation.
    rows, columns = (
        (torch.arange(outputs)[:, None] * stride + torch.arange(taps)).flatten()
        for outputs, stride, taps in zip(y.shape[2:], problem.stride, w.shape[2:], strict=True)
    )
    values = torch.randn(*x.shape[:2], len(rows), len(columns), generator=random)
    x[:, :, rows[:, None], columns] = values
    w.normal_(generator=random).div_(math.sqrt(problem.gemm_k))
    y.fill_(math.nan)
    try:
        simulated(kernel, problem, arena, time_limit=_SECONDS)
    except LaunchError as error:
        if error.kind in ("endless loop", "out of time", "too little workspace"):
            error.kind = ""
        raise
    bound = reference.tolerance(kernel.precision, problem.gemm_k)
    expected = Reference(problem, (x, w, None), seed)
    compared = OutputComparison(expected, y, bound, poisoned=False)
    return compared_once(kernel, problem, setting, compared)
