"""Count a kernel's work on the simulator: the one module of this room that needs the room ``sim``.

Of a large problem only some blocks of each launch run, and their counts are scaled. Sampled blocks
run on zeros, which take no memory until they are touched: the addresses of a convolution do not
depend on its data.
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

# Multiply-adds that the simulator does in a moment: a larger problem is sampled.
MACS = 25_000_000
NOT_INSTALLED = "the simulator room is not installed"
# Blocks of each launch that a first run simulates, to learn how many launches and blocks there are.
_PROBE = 2
# Blocks that a sample has at least, over all launches.
_LEAST = 8
# Seconds that the first run may take. A block of a grid that shares out all of the work takes
# longer.
_PROBE_SECONDS = 6.0


class Counts(Protocol):
    """What this room reads of a simulated run (a `Trace` of the room ``sim``).

    Attributes
    ----------
    counters : totals by name: "global_load_requests", "global_load_sectors", "block_sectors", ...
    launches : of each launch kernel, grid, block, dynamic_bytes (shared memory that the launch asks
        for, without the kernel's static arrays).
    lines : of each source line, space and kind: file, line, space, kind, array, requests, units
        (sectors of global memory, wavefronts of shared memory), ideal_units, lanes, bytes.
    executed : by file, how often threads came to each line.
    reaches : of each sampled block and array: launch, block, array, low, high (the range of bytes
        that it touched), sectors.
    accesses : of a recorded warp each request: launch, file, line, space, kind, array, element,
        bytes, lanes. `complete` says whether all of them were kept.
    sampling : None if all blocks ran; else blocks, sampled, and the errors of the counters.
    findings : what the simulator reports.
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
    """Return whether the room ``sim`` is there."""
    return "sim" in rooms.rooms()


def count(kernel: Kernel, problem: Problem) -> Counts:
    """Count what a kernel does on a problem, with as many blocks as the simulator does in a moment.

    A problem of at most `MACS` multiply-adds runs whole, on data.

    Raises
    ------
    LaunchError
        As when the kernel is called; if a single block takes too long to sample some; or if the
        room ``sim`` is not installed.
    """
    if problem.macs <= MACS:
        return simulate(kernel, problem, seed=0)
    time_limit = min(kernel.time_limit, _PROBE_SECONDS)
    probe = simulate(kernel, problem, sample=_PROBE, time_limit=time_limit)
    # Launches of one function share the work. Many small blocks are cheap, so more of them run.
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
    kernel, problem : a kernel of the engine "sim", and what it computes.
    seed : of the random inputs; without one the inputs are zeros.
    sample : how many blocks of each launch run; all of them if it is None.
    options : of `convlab.sim.simulation.simulate`: record, time_limit (the kernel's own if not given).

    Raises
    ------
    LaunchError
        As when the kernel is called; if a single block takes too long to sample some; or if the
        room ``sim`` is not installed.
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
        if sample is None or error.kind != "endless loop":
            raise
        raise LaunchError(
            f"a single block of {kernel.name} takes the simulator too long to sample some. Either "
            "a fixed grid shares all of the work (persistent blocks), or there are many launches. "
            f"Inspect a smaller problem, of which all blocks run: '{problem.scaled(MACS)}'"
        ) from error
