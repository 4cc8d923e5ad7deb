"""Infer the order in which the blocks of a launch compute y, from a sample of the blocks.

A block's number determines the part of y that it computes. The number consists of digits with
different bases. Each digit counts tiles along one axis, or along several axes flattened into one.
The first and last byte of y that each sampled block accessed give the axes, the tiles and the order
of the digits. An order is accepted only if it predicts the part of every sampled block. Kernels
that assign work in another way (persistent blocks, swizzled grids) have no such order.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.problem.format import Storage
from ..core.problem.problem import Problem

# The possible digits: each name is an axis of y, or several axes flattened into one. The axis of
# filters is split into the group g and the number k in the group.
_SPLITS = (("n", "g", "k", "p", "q"), ("n", "g", "k", "pq"), ("g", "k", "npq"), ("ngkpq",))


@dataclass(frozen=True)
class Axis:
    """One digit of a block's number: it counts tiles along an axis.

    Attributes
    ----------
    tile : the number of elements of a tile.
    size : the number of elements of the axis.
    stride : the difference between the block numbers of neighbouring tiles.
    """

    tile: int
    size: int
    stride: int = 1

    @property
    def tiles(self) -> int:
        """The number of tiles. The last tile may be smaller."""
        return -(-self.size // self.tile)


class BlockOrder(dict[str, Axis]):
    """The axes of a launch's blocks by name, the fastest first; axes of one tile come last."""

    def tiles(self, blocks: np.ndarray) -> dict[str, np.ndarray]:
        """Return each block's tile along each axis."""
        return {name: blocks // axis.stride % axis.tiles for name, axis in self.items()}

    def __str__(self) -> str:
        digits = [f"{axis.tile} {name}" for name, axis in self.items() if axis.tiles > 1]
        return ", then ".join(digits) or "one block"


def infer_order(
    reaches: Sequence[Mapping[str, Any]], problem: Problem, stored: Storage
) -> BlockOrder | None:
    """Return the order of sampled blocks; None if no order predicts the parts of all of them.

    Parameters
    ----------
    reaches : the ranges of y that the sampled blocks accessed (rows of `Counts.reaches`). They may
        be from several launches that differ only in their start along the slowest axis.
    problem : the problem.
    stored : the format of y.
    """
    if len(reaches) < 2:
        return None
    first_and_last = np.array([(row["low"], row["high"] - 1) for row in reaches])
    elements = first_and_last // stored.itemsize
    indices = np.unravel_index(elements, stored.in_memory(problem.y_shape))
    n, k, p, q = (indices[stored.order.index(axis)] for axis in range(4))
    filters = problem.K // problem.groups
    index_of = {"n": n, "g": k // filters, "k": k % filters, "p": p, "q": q}
    size_of = {"n": problem.N, "g": problem.groups, "k": filters, "p": problem.P, "q": problem.Q}
    blocks = np.array([row["block"] for row in reaches])
    _, launches = np.unique([row["launch"] for row in reaches], return_inverse=True)
    for names in _SPLITS:
        axes = {}
        starts = {}
        for name in names:
            sizes = [size_of[axis] for axis in name]
            size = np.prod(sizes).item()
            flat = np.ravel_multi_index([index_of[axis] for axis in name], sizes)
            starts[name] = flat[:, 0]
            # A last element before the first along an axis is of another tile.
            longest = max(1, int((flat[:, 1] - flat[:, 0]).max()) + 1)
            axes[name] = Axis(min(size, longest), size)
        order = _consistent_order(axes, starts, blocks, launches)
        if order is not None:
            return order
    return None


def _consistent_order(
    axes: Mapping[str, Axis],
    starts: Mapping[str, np.ndarray],
    blocks: np.ndarray,
    launches: np.ndarray,
) -> BlockOrder | None:
    """Return the axes in the order that gives the sampled block numbers; None if there is none.

    `starts` has the first element of each block's part along each axis.
    """
    single_tile = {name: axis for name, axis in axes.items() if axis.tiles == 1}
    if any(starts[name].any() for name in single_tile):
        return None
    tiled = [name for name in axes if name not in single_tile]
    if not tiled:
        return BlockOrder(single_tile) if not blocks.any() else None
    for *digits, slowest in itertools.permutations(tiled):
        stride = 1
        remaining = blocks
        ordered = {}
        for name in digits:
            axis = replace(axes[name], stride=stride)
            ordered[name] = axis
            aligned = starts[name] % axis.tile == 0
            predicted = remaining % axis.tiles == starts[name] // axis.tile
            if not (aligned & predicted).all():
                break
            remaining = remaining // axis.tiles
            stride = stride * axis.tiles
        else:
            # Launches may have different starts along the slowest axis. The first starts at 0.
            begins = starts[slowest] - remaining * axes[slowest].tile
            if begins[launches == 0].any():
                continue
            if all(np.ptp(begins[launches == number]) == 0 for number in set(launches)):
                ordered[slowest] = replace(axes[slowest], stride=stride)
                return BlockOrder({**ordered, **single_tile})
    return None
