"""A setting for offsets over 2^31: x has more elements than an int counts, and few are read.

It works only on the simulator, where memory that is never accessed takes no space.
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

# The time limit of a run. A kernel that takes longer reads all of x, which is no error.
_SECONDS = 20.0
# Channels, and the image's height and width.
_PLANES = ((3, 32800), (1, 46400))


@dataclass(frozen=True)
class Sparse(Setting):
    """Reads few elements of an x with more elements than an int counts."""

    name: str = "sparse"
    words: str = "with an x of over 2^31 elements, few of which are read"
    fits_any: bool = True

    def examine(self, kernel: Runnable, problem: Problem, seed: int) -> Report:
        """Check a kernel on the simulator; all of y is written, and all of the filter read.

        Raises
        ------
        ProblemError
            If the problem is not one of this setting's.
        LaunchError
            If the run fails. Without a kind it is no error of the kernel's: it reads all of x.
        """
        supported = sparse_problems(kernel)
        if problem not in supported:
            offer = " or ".join(map(str, supported)) or "none that this kernel supports"
            raise ProblemError(f'setting="sparse" has its own problems: {offer}')
        return _examine(self, kernel, problem, seed)


SPARSE = Sparse()


def sparse_problems(kernel: Runnable) -> list[Problem]:
    """Return the problems of `Sparse` that a kernel supports, with fp32 tensors in NCHW.

    There is at most one for each entry of `_PLANES`: an int can count two planes of x in the first,
    and not even one in the second.
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
    from ..sim.launch import simulated
    from ..sim.simulation import Arena

    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = Arena(shapes, ["x"])
    x, w, y = (arena.tensors[name] for name in shapes)
    random = torch.Generator().manual_seed(seed)
    # These rows and columns are read: the problems have no padding and no dilation.
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
    correct = Reference(problem, (x, w, None), seed)
    compared = OutputComparison(correct, y, bound, poisoned=False)
    return compared_once(kernel, problem, setting, compared)
