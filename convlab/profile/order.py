"""In which order the blocks of a launch go through y, learnt from what some of them wrote.

A block computes a part of y, and its number says which: digits of mixed radices, of which each
counts tiles along one axis, or along several end to end. From the first and the last byte that
each of a sample of blocks touched of y, the axes, the tiles and the order of the digits follow. An
order counts only if it has the place of every block of the sample right; kernels whose blocks take
work in another way (persistent ones, swizzled grids) have none.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.problem.format import Storage
from ..core.problem.problem import Problem

# How y's axes may be divided: each alone, or those of one word end to end; g is the group of a k.
_WAYS = (("n", "g", "k", "p", "q"), ("n", "g", "k", "pq"), ("g", "k", "npq"), ("ngkpq",))


@dataclass(frozen=True)
class Axis:
    """One digit of a block's number: it counts tiles of so many of `size`, end to end."""

    tile: int
    size: int
    stride: int = 1  # how many blocks further its next tile is

    tiles = property(lambda self: -(-self.size // self.tile))


class Order(dict[str, Axis]):
    """The axes of a launch's blocks by name, the fastest first; those of one tile have no digit."""

    def tiles(self, blocks: np.ndarray) -> dict[str, np.ndarray]:
        """Return each block's tile along each axis."""
        return {name: blocks // axis.stride % axis.tiles for name, axis in self.items()}

    def __str__(self) -> str:
        digits = [f"{axis.tile} {name}" for name, axis in self.items() if axis.tiles > 1]
        return ", then ".join(digits) or "one block"


def learn(reaches: Sequence[Mapping[str, Any]], problem: Problem, stored: Storage) -> Order | None:
    """Return the order that a sample's blocks have, by what they touched of y; None if none fits.

    `reaches` are those of y (`Trace.reaches`) of launches that are alike but for where the slowest
    axis begins.
    """
    if len(reaches) < 2:
        return None
    ends = np.array([(row["low"], row["high"] - 1) for row in reaches]) // stored.itemsize
    places = np.unravel_index(ends, stored.in_memory(problem.y_shape))
    n, k, p, q = (places[stored.order.index(axis)] for axis in range(4))
    of_group = problem.K // problem.groups
    at = {"n": n, "g": k // of_group, "k": k % of_group, "p": p, "q": q}
    sizes = {"n": problem.N, "g": problem.groups, "k": of_group, "p": problem.P, "q": problem.Q}
    blocks = np.array([row["block"] for row in reaches])
    _, launches = np.unique([row["launch"] for row in reaches], return_inverse=True)
    for way in _WAYS:
        axes = {}
        starts = {}
        for name in way:
            size = np.prod([sizes[axis] for axis in name]).item()
            both = np.ravel_multi_index([at[axis] for axis in name], [sizes[a] for a in name])
            starts[name] = both[:, 0]
            tile = min(size, int((both[:, 1] - both[:, 0]).max()) + 1)
            axes[name] = Axis(tile, size)
        if (order := _sorted(axes, starts, blocks, launches)) is not None:
            return order
    return None


def _sorted(
    axes: Mapping[str, Axis],
    starts: Mapping[str, np.ndarray],
    blocks: np.ndarray,
    launches: np.ndarray,
) -> Order | None:
    """The axes in the one order in which the blocks' numbers are their tiles', or None."""
    whole = {name: axis for name, axis in axes.items() if axis.tiles == 1}
    if any(starts[name].any() for name in whole):
        return None
    if len(whole) == len(axes):
        return Order(whole) if not blocks.any() else None
    for *digits, last in itertools.permutations(name for name in axes if name not in whole):
        stride = 1
        left = blocks
        found = {}
        for name in digits:
            axis = found[name] = replace(axes[name], stride=stride)
            aligned = starts[name] % axis.tile == 0
            if not (aligned & (left % axis.tiles == starts[name] // axis.tile)).all():
                break
            left = left // axis.tiles
            stride = stride * axis.tiles
        else:
            begins = starts[last] - left * axes[last].tile  # where the launch does
            first = begins[launches == 0]
            if not first.any() and all(np.ptp(begins[launches == i]) == 0 for i in set(launches)):
                return Order({**found, last: replace(axes[last], stride=stride), **whole})
    return None
