"""A smaller problem that shows the same mistakes; see `Problem.scaled`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .problem import Problem


def scaled(problem: Problem, max_macs: int, max_bytes: int | None) -> Problem:
    """Return the problem shrunk until it costs at most that much; itself where it does not more."""

    def fits(small: Problem) -> bool:
        light = max_bytes is None or small.min_bytes <= max_bytes
        return light and small.macs <= max_macs

    if fits(problem):
        return problem
    few = min(problem.N, 2)
    deepest = max(problem.C, problem.K) // problem.groups
    telling, least = zip(*(_least_sizes(problem, i) for i in (0, 1)), strict=True)
    longest = max(problem.H, problem.W)
    one = {"C": 1, "K": 1, "groups": 1}

    def image(low: tuple[int, int], step: int, images: int, **channels: int) -> Problem:
        """Both sides as many steps above their lowest, of those that the longer side has."""
        room = problem.H - low[0], problem.W - low[1]
        steps = max(*room, 1)
        H, W = (low[i] + room[i] * min(step, steps) // steps for i in (0, 1))
        return replace(problem, N=images, H=H, W=W, **channels)

    def depth(step: int) -> Problem:
        each = {key: getattr(problem, key) // problem.groups * step // deepest for key in "CK"}
        return image(telling, 0, few, **{k: problem.groups * max(1, n) for k, n in each.items()})

    # Each: a range, and the problem that one of its numbers makes, dearer as it grows.
    stages: list[tuple[range, Callable[[int], Problem]]] = [
        (range(few, problem.N + 1), lambda n: replace(problem, N=n)),
        (range(longest + 1), lambda step: image(telling, step, few)),
        (range(1, deepest + 1), depth),
        (range(1, problem.groups + 1), lambda g: image(telling, 0, few, C=g, K=g, groups=g)),
        (range(longest + 1), lambda step: image(least, step, few, **one)),
        (range(longest + 1), lambda step: image(least, step, min(few, 1), **one)),
    ]
    small = image(least, 0, min(few, 1), **one)
    for numbers, make in stages:
        fitting = bisect_left(numbers, True, key=lambda number, make=make: not fits(make(number)))
        if fitting:
            small = make(numbers[fitting - 1])
            break
    changed = [key for key in one if getattr(small, key) != getattr(problem, key)]
    changes = [f"N={small.N}", f"{small.H}x{small.W}"]
    changes += [f"{key}={getattr(small, key)}" for key in changed]
    label = problem.label.split(" (scaled to ")[0]
    return replace(small, name=f"{label} (scaled to {', '.join(changes)})")


def _least_sizes(problem: Problem, i: int) -> tuple[int, int]:
    """One side (0: height) of the smallest telling image, and of the smallest one that is valid."""
    size = (problem.H, problem.W)[i]
    (padded, extent) = problem._side(i)
    valid = max(1, extent - (padded - size))
    telling = max(4 * extent, 17 * problem.stride[i] + extent - (padded - size))
    return min(size, telling), valid
