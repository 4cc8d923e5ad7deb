"""An x of more elements than an int counts, of which a convolution with a large stride reads a few.

What lies between them is never touched, and so takes no memory: an index that overflows is seen on
any machine. Of y and the filter that can't be done, as all of them is written and read.
"""

import math

import torch

from .. import sim
from ..run.launch import integers
from ..run.runnable import Runnable
from ..words.errors import LaunchError
from ..words.format import FLOAT32
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from . import tally
from .examine import report_of
from .reference import Reference, tolerance
from .report import Report, worded
from .settings import Setting

_SECONDS = 5.0  # for who reads all of x
# Planes of which an int counts two, and one that it does not count; each for some kernels.
_PROBLEMS = tuple(
    tuple(f"N2 C{channels} H{size} W{size} K60 R{taps} S{taps} s{size - taps} g{groups}"
          for taps, groups in ((3, 1), (1, 1), (3, channels)))
    for channels, size in ((3, 32800), (1, 46400))
)  # fmt: skip


def problems(kernel: Runnable) -> list[Problem]:
    """Those that a simulated kernel of fp32 tensors in NCHW does."""
    if not kernel.simulated or kernel.build() is None or kernel.format != FLOAT32:
        return []
    some = ([*map(named_problem, specs)] for specs in _PROBLEMS)
    able = ([p for p in each if not kernel.unsupported(p)][:1] for each in some)
    return [problem for each in able for problem in each]


def examine(kernel: Runnable, problem: Problem, seed: int, setting: Setting) -> Report:
    """Check a simulated kernel on a problem of which little of x is read; raises what a run does."""
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = sim.Arena(shapes, ["x"])
    x, w, y = (arena.tensors[name] for name in shapes)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (
        (torch.arange(outputs)[:, None] * stride - pad + torch.arange(taps) * dilation).flatten()
        for outputs, stride, pad, taps, dilation in zip(
            (problem.P, problem.Q), problem.stride, problem.padding, (problem.R, problem.S),
            problem.dilation, strict=True,
        )
    )  # fmt: skip
    read = (problem.N, problem.C, len(rows), len(columns))
    x[:, :, rows[:, None], columns] = torch.randn(read, generator=generator)
    w.normal_(generator=generator).div_(math.sqrt(problem.gemm_k))
    y.fill_(math.nan)
    try:
        sim.simulate(
            kernel.build().library, sim.runtime(), integers(problem), arena, label=kernel.name,
            source=kernel.path or kernel.source, workspace_limit=kernel.workspace_limit,
            trace=kernel.trace, time_limit=_SECONDS,
        )  # fmt: skip
    except LaunchError as error:
        error.kind = "" if error.kind in ("endless loop", "too little workspace") else error.kind
        raise
    bound = tolerance(kernel.precision, problem.gemm_k)
    found = tally.Tally(Reference(problem, (x, w, None), 0, seed), y, bound, poisoned=False)
    failures = found.failures()
    return report_of(
        kernel, problem, ok=found.right, error=found.error, bound=bound, worst=found.worst,
        limit=found.limit, outputs=y.numel(), wrong=found.wrong, unwritten=0,
        compared=found.compared, findings=tuple(failures), setting=setting.words,
        failures=tuple(line for f in failures for line in worded(f).split("\n")),
    )  # fmt: skip
