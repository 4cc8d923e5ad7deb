"""Shrink a failing problem: find a smaller one on which the kernel still fails."""

import dataclasses
from collections.abc import Callable, Iterator

from ..core.errors import ProblemError
from ..core.problem.problem import Problem

Changes = Iterator[dict[str, object]]


def shrink(problem: Problem, fails: Callable[[Problem], bool], tries: int = 150) -> Problem:
    """Return the smallest failing problem that a greedy search finds.

    The search changes one option or dimension at a time: to its minimum, or by a part of the distance
    to it. Where a dilation, a stride, a padding or a filter size shrinks, the image may shrink with it,
    so that the size of y stays the same. The search repeats all changes until the kernel is correct
    after each of them, or until it has tried `tries` problems. `fails` is called at most once for each
    problem, and only for valid ones.
    """
    tried = {problem}
    smallest = None
    while problem != smallest:
        smallest = problem
        for changes in _KINDS:
            problem = _shrink_by(problem, changes, fails, tried, tries)
    return problem


def _shrink_by(
    problem: Problem,
    changes: Callable[[Problem], Changes],
    fails: Callable[[Problem], bool],
    tried: set[Problem],
    tries: int,
) -> Problem:
    """Return the smallest failing problem that one kind of change finds."""
    candidates = _changed(problem, changes)
    while len(tried) <= tries and (smaller := next(candidates, None)):
        if smaller in tried:
            continue
        tried.add(smaller)
        if fails(smaller):
            problem = smaller
            candidates = _changed(smaller, changes)
    return problem


def _changed(problem: Problem, changes: Callable[[Problem], Changes]) -> Iterator[Problem]:
    """Yield the valid problems after each change; the problem itself may be among them."""
    for change in changes(problem):
        try:
            yield dataclasses.replace(problem, **change, name="")
        except ProblemError:
            continue


# The kinds of changes. Each yields changed parameters, the simplest problem first. ------------------


def _options(problem: Problem) -> Changes:
    yield {"bias": False, "relu": False}
    yield {"bias": False}
    yield {"relu": False}
    yield {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


def _groups(problem: Problem) -> Changes:
    c = problem.C // problem.groups
    k = problem.K // problem.groups
    for groups in _less(problem.groups, 1):
        yield {"groups": groups, "C": c * groups, "K": k * groups}
    yield {"groups": 1}


def _images(problem: Problem) -> Changes:
    for value in _less(problem.N, 1):
        yield {"N": value}


def _channels(problem: Problem) -> Changes:
    for value in _less(problem.C // problem.groups, 1):
        yield {"C": value * problem.groups}


def _filters(problem: Problem) -> Changes:
    for value in _less(problem.K // problem.groups, 1):
        yield {"K": value * problem.groups}


def _along(axis: int) -> tuple[Callable[[Problem], Changes], ...]:
    """Return the kinds of changes along the height (0) or the width (1)."""
    size_name = "HW"[axis]
    taps_name = "RS"[axis]

    def pair(problem: Problem, option: str, value: int) -> tuple[int, int]:
        changed = list(getattr(problem, option))
        changed[axis] = value
        return changed[0], changed[1]

    def numbers(problem: Problem) -> tuple[int, int, int]:
        """Return the size of the image, of the filter and of y."""
        return (
            getattr(problem, size_name),
            getattr(problem, taps_name),
            (problem.P, problem.Q)[axis],
        )

    def dilation(problem: Problem) -> Changes:
        size, taps, _ = numbers(problem)
        old = problem.dilation[axis]
        padding = problem.padding[axis]
        for value in _less(old, 1):
            change = {"dilation": pair(problem, "dilation", value)}
            less = (old - value) * (taps - 1)
            yield change | {size_name: size - less}
            yield change
            yield change | {"padding": pair(problem, "padding", padding - less // 2)}

    def stride(problem: Problem) -> Changes:
        size, _, outputs = numbers(problem)
        old = problem.stride[axis]
        for value in _less(old, 1):
            change = {"stride": pair(problem, "stride", value)}
            yield change | {size_name: size - (old - value) * (outputs - 1)}
            yield change

    def padding(problem: Problem) -> Changes:
        size, _, _ = numbers(problem)
        old = problem.padding[axis]
        for value in _less(old, 0):
            change = {"padding": pair(problem, "padding", value)}
            yield change
            # A larger image replaces the padding.
            yield change | {size_name: size + 2 * (old - value)}

    def taps(problem: Problem) -> Changes:
        size, old, _ = numbers(problem)
        padding = problem.padding[axis]
        for value in _less(old, 1):
            less = (old - value) * problem.dilation[axis]
            # A smaller filter changes the size of y, that of the image, or the padding.
            yield {taps_name: value, size_name: size - less}
            yield {taps_name: value}
            yield {taps_name: value, "padding": pair(problem, "padding", padding - less // 2)}

    def size(problem: Problem) -> Changes:
        old, _, outputs = numbers(problem)
        for value in _less(old, 1):
            yield {size_name: value}
        for value in _less(outputs, 1):
            yield {size_name: old - (outputs - value) * problem.stride[axis]}

    return dilation, stride, padding, taps, size


_KINDS = (_options, _groups, _images, _channels, _filters, *_along(0), *_along(1))


def _less(value: int, least: int) -> list[int]:
    """Return smaller values to try: the least, then half as far from the value each time."""
    tried = {least}
    step = value - least
    while (step := step // 2) > 0:
        tried.add(value - step)
    if value > least:
        tried.add(value - 1)
    return sorted(each for each in tried if least <= each < value)
