"""A setting for offsets beyond 2^31: an x that no int counts, of which few elements are read.

Only the simulator can do it: what is never touched takes no memory there.
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

_SECONDS = 20.0  # of a run; a kernel that takes longer reads all of x, and nothing is said of it
_PLANES = ((3, 32800), (1, 46400))  # channels; height and width


@dataclass(frozen=True)
class Sparse(Setting):
    """Where few elements are read of an x that no int counts."""

    name: str = "sparse"
    words: str = "where few are read of an x that no int counts"
    fits_any: bool = True

    def examine(self, kernel: Runnable, problem: Problem, seed: int) -> Report:
        """Check a kernel on the simulator; y and the filter are written and read as a whole.

        Raises
        ------
        ProblemError
            The problem is not one of this setting.
        LaunchError
            What a run raises. Without a kind it is no mistake: the kernel reads all of x.
        """
        able = sparse_problems(kernel)
        if problem not in able:
            offer = " or ".join(map(str, able)) or "none that this kernel supports"
            raise ProblemError(f'setting="sparse" has problems of its own: {offer}')
        return _examine(self, kernel, problem, seed)


SPARSE = Sparse()


def sparse_problems(kernel: Runnable) -> list[Problem]:
    """Return the problems of `Sparse` that a kernel supports, of fp32 tensors in NCHW.

    In one an int can count two planes of x, in the other not even one.
    """
    if not kernel.counts or kernel.build() is None or kernel.format != FLOAT32:
        return []
    some = (
        [
            named_problem(f"N2 C{c} H{size} W{size} K60 R{taps} S{taps} s{size - taps} g{groups}")
            for taps, groups in ((3, 1), (1, 1), (3, c))
        ]
        for c, size in _PLANES
    )
    able = ([p for p in each if not kernel.unsupported(p)][:1] for each in some)
    return [problem for each in able for problem in each]


def _examine(setting: Setting, kernel: Runnable, problem: Problem, seed: int) -> Report:
    from ..sim.launch import simulated
    from ..sim.simulation import Arena

    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = Arena(shapes, ["x"])
    x, w, y = (arena.tensors[name] for name in shapes)
    random = torch.Generator().manual_seed(seed)
    # The rows and columns that are read; no such problem has padding or dilation.
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
        if error.kind in ("endless loop", "too little workspace"):
            error.kind = ""
        raise
    bound = reference.tolerance(kernel.precision, problem.gemm_k)
    right = Reference(problem, (x, w, None), seed)
    compared = OutputComparison(right, y, bound, poisoned=False)
    return compared_once(kernel, problem, setting, compared)
