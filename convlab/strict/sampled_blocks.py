"""Run a problem of many images, rows or groups in a sample of the blocks, for a kernel that takes long on it.

A problem of 66,000 images or rows shows the limits of grids and of 16-bit numbers; one of 4,099 groups shows arrays of
4,096 elements. If a kernel multiplies a tile for each image or group, a run of all blocks takes up to minutes on the
simulator. A sample is enough if one of its launches accesses elements past that limit in x and in y. Then the
outputs that the sample stored are compared, if they are no parts of sums. Otherwise all blocks run.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

from ..core.correctness import reference
from ..core.correctness.examine import most_threads
from ..core.correctness.report import Report
from ..core.correctness.setting import ONCE
from ..core.errors import LaunchError
from ..core.kernel.runnable import Runnable
from ..core.machine.gpus import DEFAULT_GPU, Gpu
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .sparse import (
    BLOCKS,
    BLOCKS_ACCESSES,
    MANY_BLOCKS,
    NOT_STORED,
    OF_THE_RUN,
    WIDE,
    arena_for,
    compared_blocks,
    reaches_end,
)


@dataclass(frozen=True)
class _Large:
    """Describe a problem of the fixed sets: the fields that are large, and what a sample has to reach.

    Attributes
    ----------
    fields : the large fields.
    dimension : the large dimension in x, dx, y and dy. All elements of these are accessed.
    limit : a launch of the sample has to access elements of this number in that dimension, or later ones.
    """

    fields: tuple[str, ...]
    dimension: int
    limit: int = 1 << 16


_IMAGES = _Large(("N",), 0)
_LARGE = {
    "awkward.images_66000": _IMAGES,
    "limits.images_3x3": _IMAGES,
    "limits.images_1x1": _IMAGES,
    "limits.height_65541": _Large(("H",), 2),
    "limits.depthwise_4099": _Large(("C", "K", "groups"), 1, 1 << 12),
}
# The simulator first counts what a kernel does for so many images, rows or groups. If that is more than `_COSTLY`, a
# sample runs. A request of a warp has 32 accesses, and takes as long as 1024 operations of a tensor core.
_FEW = 66
_COSTLY = 500_000
_OPERATIONS_OF_AN_ACCESS = 32
# The time limit of a sample, in seconds. After it, all blocks run. The second one is for blocks that take long.
_SECONDS = 20.0
_LONG_SECONDS = 60.0


def sampled(
    kernel: Runnable, problem: Problem, seed: int, takes_long: bool = False, few: bool = False
) -> Report | None:
    """Return the report of a sample of the blocks; None if all blocks should run.

    `takes_long` says that a run of all blocks is known to take long, and `few` that each block does. Raises
    LaunchError for an error in one of the blocks.
    """
    if problem.bias or problem.relu or (problem.name in _LARGE and not _is_nchw(kernel)):
        return None
    if not (takes_long or few or _takes_long(kernel, problem)):
        return None
    blocks = MANY_BLOCKS if takes_long else BLOCKS
    seconds = _LONG_SECONDS if few else _SECONDS
    arena, _ = arena_for(kernel, problem, torch.Generator().manual_seed(seed))
    arena.tensors["y"].fill_(NOT_STORED)
    trace = _run_sample(kernel, problem, arena, seed, DEFAULT_GPU, blocks, seconds)
    if trace is not None and not _reaches_limit(trace, problem, arena):
        # Some block has the last image or group. With more SMs than tiles it is the last block, which is in the sample.
        trace = _run_sample(kernel, problem, arena, seed, WIDE, blocks, seconds)
    if trace is None or not _reaches_limit(trace, problem, arena):
        return None
    report = compared_blocks(ONCE, kernel, problem, arena, trace, blocks)
    return dataclasses.replace(
        report,
        threads=most_threads(trace.launches),
        unwatched=report.unwatched or "only a sample of blocks ran",
    )


def _run_sample(
    kernel: Runnable, problem: Problem, arena: Any, seed: int, gpu: Gpu, blocks: int, seconds: float
) -> Any:
    """Return the trace of a sample of the blocks on a GPU; None if a sample cannot run, or takes too long.

    Raises LaunchError for an error in one of the blocks on the default GPU.
    """
    from ..sim.launch import simulated

    sample = blocks, seed
    limits = {"watch": BLOCKS_ACCESSES, "time_limit": seconds}
    options = {"sample": sample, "gpu": gpu, "forgives": True, **limits}
    try:
        return simulated(kernel, problem, arena, **options)
    except LaunchError as error:
        if error.kind in OF_THE_RUN or gpu != DEFAULT_GPU:
            return None
        raise


def _takes_long(kernel: Runnable, problem: Problem) -> bool:
    """Return whether a kernel does much for each image, row or group of one of the problems."""
    if problem.name not in _LARGE or problem != kernel.asked(named_problem(problem.name)):
        return False
    if not kernel.counts or not kernel.source or kernel.unsupported(problem):
        return False
    few = dataclasses.replace(problem, name="", **dict.fromkeys(_LARGE[problem.name].fields, _FEW))
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


def _is_nchw(kernel: Runnable) -> bool:
    """Return whether each tensor is in memory in torch's order of its dimensions."""
    orders = [storage.order for _, storage in kernel.format]
    return all(order == tuple(sorted(order)) for order in orders)


def _reaches_limit(trace: Any, problem: Problem, arena: Any) -> bool:
    """Return whether a sample accesses what only a large problem has: see `_LARGE`, or else the last output."""
    if problem.name in _LARGE:
        return _passes_limit(trace, problem, arena)
    return reaches_end(trace, problem.computation.names["y"], arena.tensors["y"])


def _passes_limit(trace: Any, problem: Problem, arena: Any) -> bool:
    """Return whether one launch accesses elements past the limit in x and y, or in their gradients."""
    large = _LARGE[problem.name]
    names = problem.computation.names
    past: dict[str, int] = {}
    for place, tensor in arena.tensors.items():
        if names[place] not in ("x", "dx", "y", "dy"):
            continue
        numbers = tensor.shape[large.dimension] - large.limit
        if numbers > 0:
            elements = tensor.numel() - numbers * tensor.stride(large.dimension)
            past[names[place]] = elements * tensor.itemsize
    accessed: dict[int, set[str]] = {}
    for row in trace.reaches:
        if row["high"] > past.get(row["array"], math.inf):
            accessed.setdefault(row["launch"], set()).add(row["array"])
    return any(len(arrays) == len(past) for arrays in accessed.values())
