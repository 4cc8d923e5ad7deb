"""Shrink a failing problem: find a smaller one on which the kernel still fails."""

import dataclasses
from collections.abc import Callable, Iterator

from ..core.errors import ProblemError
from ..core.problem.problem import Problem


def shrink(problem: Problem, fails: Callable[[Problem], bool], tries: int = 150) -> Problem:
    """Return the smallest failing problem that a greedy search finds.

    The search changes one option or dimension at a time: to its minimum, to a part of its value, or
    by one. It ends if the kernel is correct after every such change, or after `tries` problems.
    `fails` is called at most once for each problem, and only for valid ones.
    """
    tried = {problem}
    candidates = _smaller(problem)
    while len(tried) <= tries and (smaller := next(candidates, None)):
        if smaller in tried:
            continue
        tried.add(smaller)
        if fails(smaller):
            problem = smaller
            candidates = _smaller(smaller)
    return problem


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Yield simpler problems, for each option and dimension the simplest first.

    The problem itself may be among them.
    """
    for change in _changes(problem):
        try:
            yield dataclasses.replace(problem, **change, name="")
        except ProblemError:
            continue


def _changes(problem: Problem) -> list[dict]:
    """Return the changed parameters of each simpler problem."""
    groups = problem.groups
    c = problem.C // groups
    k = problem.K // groups
    changes: list[dict] = [{"groups": n, "C": c * n, "K": k * n} for n in _less(groups, 1)]
    changes += [{"groups": 1}, {"bias": False}, {"relu": False}]
    for option, least in (("dilation", 1), ("stride", 1), ("padding", 0)):
        high, wide = getattr(problem, option)
        changes.append({option: (least, least)})
        changes += [{option: (value, wide)} for value in _less(high, least)]
        changes += [{option: (high, value)} for value in _less(wide, least)]
    # A larger image replaces the padding.
    pad_h, pad_w = problem.padding
    changes.append({"padding": (0, 0), "H": problem.H + 2 * pad_h, "W": problem.W + 2 * pad_w})
    changes += [{"N": value} for value in _less(problem.N, 1)]
    changes += [{"C": value * groups} for value in _less(c, 1)]
    changes += [{"K": value * groups} for value in _less(k, 1)]
    for size_name, taps_name in ("HR", "WS"):
        size = getattr(problem, size_name)
        taps = getattr(problem, taps_name)
        for value in _less(taps, 1):
            # A smaller filter changes the size of y, or that of the image.
            changes.append({taps_name: value})
            changes.append({taps_name: value, size_name: size - (taps - value)})
        changes += [{size_name: value} for value in _less(size, 1)]
    return changes


def _less(value: int, least: int) -> list[int]:
    """Return smaller values to try: the least, a quarter, half, three quarters, one less."""
    tried = {least, value // 4, value // 2, 3 * value // 4, value - 1}
    return sorted(v for v in tried if least <= v < value)
