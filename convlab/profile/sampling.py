"""Count a kernel's work on the simulator. Only this module needs the room ``sim``.

For a large problem only some blocks of each launch run, and their counts are scaled. Sampled blocks
run on zeros, because zero pages take no memory until they are accessed. That does not change the
counts: the addresses of a convolution do not depend on its data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..core import rooms
from ..core.errors import LaunchError
from ..core.kernel import data
from ..core.kernel.kernel import Kernel
from ..core.problem.problem import Problem

# A problem with more multiply-adds than this is sampled. It takes the simulator about a second.
MACS = 25_000_000
NOT_INSTALLED = "the simulator room is not installed"
# A first run simulates this many blocks of each launch, to find the number of launches and blocks.
_PROBE = 2
# The least number of blocks of a sample, over all launches.
_LEAST = 8
# The time limit of the first run, in seconds. Blocks of a fixed grid (persistent blocks) exceed it.
_PROBE_SECONDS = 6.0


class Counts(Protocol):
    """The results of a simulated run that this room uses (a `Trace` of the room ``sim``).

    Attributes
    ----------
    counters : totals by name: "global_load_requests", "global_load_sectors", "block_sectors", ...
    launches : for each launch: kernel, grid, block, dynamic_bytes (shared memory that the launch
        requests, without the kernel's static arrays).
    lines : for each source line, space and kind: file, line, space, kind, array, requests, units
        (sectors of global memory, wavefronts of shared memory), ideal_units, lanes, bytes, partial
        (sectors of which a block stored only a part).
    executed : by file, how often threads executed each line.
    reaches : for each sampled block and array: launch, block, array, low, high (the range of bytes
        that the block accessed), sectors.
    accesses : for each request of a recorded warp: launch, file, line, space, kind, array, element,
        bytes, lanes. `complete` is False if there were more than the limit.
    sampling : None if all blocks ran; otherwise blocks, sampled, and the counters' errors.
    findings : errors and warnings of the simulator.
    flops : floating-point operations; None if they were not counted.
    """

    counters: Mapping[str, float]
    launches: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    executed: Mapping[str, Mapping[int, int]]
    reaches: Sequence[Mapping[str, Any]]
    accesses: Sequence[Mapping[str, Any]]
    complete: bool
    sampling: Mapping[str, Any] | None
    findings: Sequence[Any]
    flops: float | None


def installed() -> bool:
    """Return whether the room ``sim`` is installed."""
    return "sim" in rooms.rooms()


def count(kernel: Kernel, problem: Problem) -> Counts:
    """Count a kernel's work on a problem, with as many blocks as simulate in about a second.

    A problem of at most `MACS` multiply-adds runs completely, on random data.

    Raises
    ------
    LaunchError
        The kernel fails, a single block takes too long, or the room ``sim`` is not installed.
    """
    if problem.macs <= MACS:
        return simulate(kernel, problem, seed=0)
    time_limit = min(kernel.time_limit, _PROBE_SECONDS)
    probe = simulate(kernel, problem, sample=_PROBE, time_limit=time_limit)
    # This share of the smallest grid computes about `MACS` multiply-adds.
    launches = len(probe.launches)
    smallest_grid = min((math.prod(launch["grid"]) for launch in probe.launches), default=0)
    blocks = max(_LEAST // max(1, launches), MACS * smallest_grid // problem.macs)
    return simulate(kernel, problem, sample=blocks) if blocks > _PROBE else probe


def simulate(
    kernel: Kernel,
    problem: Problem,
    *,
    seed: int | None = None,
    sample: int | None = None,
    **options: Any,
) -> Counts:
    """Run a kernel once on the simulator.

    Parameters
    ----------
    kernel, problem : a kernel of the engine "sim", and the problem.
    seed : for random inputs; None for inputs of zeros.
    sample : how many blocks of each launch run; None for all.
    options : `record` and `time_limit` of `convlab.sim.simulation.simulate`. The default time limit
        is the kernel's.

    Raises
    ------
    LaunchError
        The kernel fails, a single block takes too long, or the room ``sim`` is not installed.
    """
    if not installed():
        raise LaunchError(NOT_INSTALLED)
    from ..sim.launch import simulated
    from ..sim.simulation import Arena

    shapes = {"x": problem.x_shape, "w": problem.w_shape}
    if problem.bias:
        shapes["bias"] = (problem.K,)
    inputs = list(shapes)
    shapes["y"] = problem.y_shape
    arena = Arena(shapes, list(shapes), kernel.format)
    if seed is not None:
        for name, tensor in zip(inputs, data.inputs(problem, seed, format=kernel.format)):
            arena.tensors[name].copy_(tensor)
    try:
        return simulated(kernel, problem, arena, sample=sample and (sample, 0), **options)
    except LaunchError as error:
        if sample is None or error.kind not in ("endless loop", "out of time"):
            raise
        raise LaunchError(
            f"a sample of {sample} blocks of each launch of {kernel.name} takes the simulator too "
            "long. Either a fixed grid shares all of the work (persistent blocks), or there are "
            f"many launches. Inspect a smaller problem: '{problem.scaled(MACS)}'"
        ) from error
