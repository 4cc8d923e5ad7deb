"""Run a problem of 66,000 images or rows in a sample of the blocks, for a kernel that takes long on it.

Such a problem shows the limits of grids and of 16-bit numbers. If a kernel multiplies a tile for each image, a run
of all blocks takes minutes on the simulator. A sample is enough if one of its launches accesses the last element of
each large tensor: a number of 16 bits never gets there. Then the outputs that the sample stored are compared, if
they are no parts of sums. Otherwise all blocks run.
"""

import dataclasses
from typing import Any

import torch

from ..core.correctness import reference
from ..core.correctness.examine import most_threads
from ..core.correctness.report import Report
from ..core.correctness.setting import ONCE
from ..core.errors import LaunchError
from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .sparse import BLOCKS, BLOCKS_ACCESSES, arena_for, compared_blocks

# The problems, each with the size that is large. All their inputs are read, and all outputs written.
_LARGE_SIZE = {
    "awkward.images_66000": "N",
    "limits.images_3x3": "N",
    "limits.images_1x1": "N",
    "limits.height_65541": "H",
}
# The simulator first counts what a kernel does for so many images or rows. If that is more than `_COSTLY`, a
# sample runs. A request of a warp has 32 accesses, and takes as long as 1024 operations of a tensor core.
_FEW = 66
_COSTLY = 500_000
_OPERATIONS_OF_AN_ACCESS = 32
# An output or input with so many elements grows with the large size.
_MANY_ELEMENTS = 60_000
# The time limit of a sample, in seconds. After it, all blocks run.
_SECONDS = 20.0
# What these errors say is about the sample, not about the kernel.
_OF_THE_SAMPLE = ("", "endless loop", "out of time", "not simulated", "too little workspace")


def sampled(kernel: Runnable, problem: Problem, seed: int) -> Report | None:
    """Return the report of a sample of the blocks; None if all blocks should run.

    Raises LaunchError for an error in one of the blocks.
    """
    if not _takes_long(kernel, problem):
        return None
    from ..sim.launch import simulated

    arena, _ = arena_for(kernel, problem, torch.Generator().manual_seed(seed))
    try:
        trace = simulated(
            kernel,
            problem,
            arena,
            sample=(BLOCKS, seed),
            watch=BLOCKS_ACCESSES,
            time_limit=_SECONDS,
        )
    except LaunchError as error:
        if error.kind in _OF_THE_SAMPLE:
            return None
        raise
    if not trace.reaches or not _reaches_ends(trace, problem, arena):
        return None
    report = compared_blocks(ONCE, kernel, problem, arena, trace)
    return dataclasses.replace(
        report,
        threads=most_threads(trace.launches),
        unwatched=report.unwatched or "only a sample of blocks ran",
    )


def _takes_long(kernel: Runnable, problem: Problem) -> bool:
    """Return whether a kernel does much for each image or row of one of the problems."""
    name = _LARGE_SIZE.get(problem.name)
    if name is None or problem != kernel.asked(named_problem(problem.name)):
        return False
    if not kernel.counts or not kernel.source or kernel.unsupported(problem):
        return False
    orders = [storage.order for _, storage in kernel.format]
    if any(order != tuple(sorted(order)) for order in orders):
        return False
    few = dataclasses.replace(problem, name="", **{name: _FEW})
    if kernel.unsupported(few):
        return False
    inputs = reference.known(few, 0, kernel.device, kernel.format).inputs
    launch = kernel.prepare(few, *inputs)
    try:
        launch()
    except LaunchError:
        return False
    counted = launch.counters
    kinds = "global_load_requests", "global_store_requests", "shared_requests"
    accesses = 32 * sum(counted[kind] for kind in kinds)
    return accesses + counted["tensor_flops"] / _OPERATIONS_OF_AN_ACCESS > _COSTLY


def _reaches_ends(trace: Any, problem: Problem, arena: Any) -> bool:
    """Return whether one launch of a sample accesses the last element of each large tensor."""
    names = problem.computation.names
    ends = {
        (names[place], tensor.numel() * tensor.itemsize)
        for place, tensor in arena.tensors.items()
        if tensor.numel() > _MANY_ELEMENTS
    }
    reached: dict[int, set[str]] = {}
    for row in trace.reaches:
        if any(row["array"] == name and row["high"] >= end for name, end in ends):
            reached.setdefault(row["launch"], set()).add(row["array"])
    return any(len(arrays) == len(ends) for arrays in reached.values())
