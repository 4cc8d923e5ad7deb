"""What the simulator counts of a kernel on a problem of any size: some blocks stand for all.

Where only some blocks run, they run on zeros, which take no memory until they are touched: the
addresses of a convolution do not depend on its data.
"""

import math
from typing import Any

from ..core.errors import LaunchError
from ..core.kernel import data
from ..core.kernel.kernel import Kernel
from ..core.problem.problem import Problem
from ..sim.launch import simulated
from ..sim.simulation import Arena
from ..sim.trace import Trace

MACS = 25_000_000  # multiply-adds that are simulated in a moment
# blocks: of each launch, to see how many there are; of all, that are to run
_PROBE = 2
_LEAST = 8
_PROBE_SECONDS = 6.0  # that two blocks of a grid that shares its work out take at most


def count(kernel: Kernel, problem: Problem) -> Trace:
    """Return what the simulator counts, of as many blocks as it does in a moment.

    A problem of at most `MACS` runs whole, on data. Raises LaunchError, as when the kernel is called.
    """
    if problem.macs <= MACS:
        return simulate(kernel, problem, seed=0)
    limit = min(kernel.time_limit, _PROBE_SECONDS)
    probe = simulate(kernel, problem, sample=_PROBE, time_limit=limit)
    # of launches that are alike each does its share; those of many small blocks are cheap
    fewest = min((math.prod(launch["grid"]) for launch in probe.launches), default=0)
    blocks = max(_LEAST // max(1, len(probe.launches)), MACS * fewest // problem.macs)
    return simulate(kernel, problem, sample=blocks) if blocks > _PROBE else probe


def simulate(
    kernel: Kernel,
    problem: Problem,
    *,
    seed: int | None = None,
    sample: int | None = None,
    **options: Any,
) -> Trace:
    """Run a kernel once on the simulator: on data of a seed, or else on zeros.

    Of each launch `sample` blocks run, all of them unless told; `options` are those of
    `convlab.sim.simulate`: record, and the kernel's own time_limit unless told.
    """
    shapes = {"x": problem.x_shape, "w": problem.w_shape}
    shapes |= {"bias": (problem.K,)} if problem.bias else {}
    arena = Arena(shapes | {"y": problem.y_shape}, [*shapes, "y"], kernel.format)
    if seed is not None:
        for name, tensor in zip(shapes, data.inputs(problem, seed, format=kernel.format)):
            arena.tensors[name].copy_(tensor)
    try:
        return simulated(kernel, problem, arena, sample=sample and (sample, 0), **options)
    except LaunchError as error:
        if sample is None or error.kind != "endless loop":
            raise
        raise LaunchError(
            f"a block of {kernel.name} takes the simulator too long for some to stand for all, as "
            "where a fixed grid shares all of the work (persistent blocks), or launches are many: "
            f"give a smaller problem, of which all blocks run, as '{problem.scaled(MACS)}'"
        ) from error
