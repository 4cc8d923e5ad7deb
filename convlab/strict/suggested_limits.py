"""Suggest a header's `supports:` line for a kernel that is correct on one kind of problem only.

A kernel may be limited on purpose, and its header may not say so. Then some conditions hold for all
problems on which it is correct, and each other problem does not meet one of them. The suggestion is
made only if that is clear, and it is verified: the line is parsed as a header's line, and must accept
no problem on which the kernel is incorrect.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..core.kernel.catalog import parse_header
from ..core.problem.problem import Problem

Outcomes = Sequence[tuple[Problem, bool]]

# At most this many conditions are suggested.
_MOST_CONDITIONS = 4
# Each condition must exclude at least this many failing problems that no other one excludes.
_FEWEST_EXCLUDED = 3
# The kernel must be correct on at least this many problems.
_FEWEST_CORRECT = 10
# The compute capability and the shared memory do not matter: no condition uses them.
_SM = 90
_SMEM = 227 << 10


@dataclass(frozen=True)
class _Condition:
    """A condition as a header has it, and whether it matters for a problem.

    A stride does not matter where there is only one output, nor a dilation where there is only one
    tap. There a kernel that ignores it is correct. A `text` with a comma is two comparisons.
    """

    text: str
    holds: Callable[[Problem], bool]
    matters: Callable[[Problem], bool] = lambda problem: True


def suggest(outcomes: Outcomes, supports: Sequence[str] = ()) -> list[str]:
    """Return a sentence with the suggested header line, or nothing.

    Parameters
    ----------
    outcomes : all problems that ran in the ordinary setting, each with whether the kernel is correct.
    supports : the conditions that the header has already.
    """
    correct = [problem for problem, ok in outcomes if ok]
    failing = [problem for problem, ok in outcomes if not ok]
    if len(correct) < _FEWEST_CORRECT or len(failing) < _FEWEST_EXCLUDED:
        return []
    fitting = [
        condition
        for condition in _conditions()
        if all(condition.holds(p) or not condition.matters(p) for p in correct)
    ]
    # The failing problems that each condition excludes, by index.
    excluded = {
        condition: frozenset(i for i, p in enumerate(failing) if not condition.holds(p))
        for condition in fitting
    }
    chosen = _smallest_cover(excluded, len(failing))
    if not chosen:
        return []
    conditions = ", ".join(condition.text for condition in chosen)
    line = "// supports: " + ", ".join([*supports, conditions])
    supported = _supported(line, correct)
    if _supported(line, failing) or len(supported) < _FEWEST_CORRECT:
        return []
    also = len(correct) - len(supported)
    more = f" and on {also} where that has no effect" if also else ""
    return [
        f"correct on all {len(supported)} problems with {conditions}{more}, incorrect on all "
        f"{len(failing)} others; if the kernel is limited on purpose, write into its header: {line}"
    ]


def _smallest_cover(
    excluded: dict[_Condition, frozenset[int]], failing: int
) -> tuple[_Condition, ...]:
    """Return the fewest conditions that exclude all failing problems; empty if there are none.

    Of several choices the first is taken: conditions are ordered from usual to unusual ones.
    """
    useful = [each for each, indices in excluded.items() if len(indices) >= _FEWEST_EXCLUDED]
    for count in range(1, _MOST_CONDITIONS + 1):
        for chosen in itertools.combinations(useful, count):
            sets = [excluded[each] for each in chosen]
            if len(frozenset().union(*sets)) == failing and _each_is_needed(sets):
                return chosen
    return ()


def _each_is_needed(sets: Sequence[frozenset[int]]) -> bool:
    """Return whether each set has enough elements of its own."""
    for i, own in enumerate(sets):
        others = frozenset().union(*sets[:i], *sets[i + 1 :])
        if len(own - others) < _FEWEST_EXCLUDED:
            return False
    return True


def _supported(line: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems that a header with this line, and any epilogue, supports."""
    header = parse_header(f"{line}\n// epilogue: bias, relu\n", "suggested.cu")
    return [problem for problem in problems if not header.unsupported(problem, _SM, _SMEM)]


def _conditions() -> Iterator[_Condition]:
    """Yield the conditions that authors of kernels declare, the most usual ones first."""
    yield _Condition("groups == 1", lambda p: p.groups == 1)
    for name, least in (("stride", 1), ("dilation", 1), ("padding", 0)):
        short = {"padding": "pad"}.get(name, name)
        yield _Condition(
            f"{short}_h == {least}, {short}_w == {least}",
            lambda p, name=name, least=least: getattr(p, name) == (least, least),
            lambda p, name=name, least=least: bool(_effective(p, name) - {least}),
        )
        for axis, side in enumerate("hw"):
            yield _Condition(
                f"{short}_{side} == {least}",
                lambda p, name=name, axis=axis, least=least: getattr(p, name)[axis] == least,
                _effects(name, axis),
            )
    for taps in (3, 1, 5):
        yield _Condition(
            f"R == {taps}, S == {taps}", lambda p, taps=taps: (taps, taps) == (p.R, p.S)
        )
        yield _Condition(f"R == {taps}", lambda p, taps=taps: taps == p.R)
        yield _Condition(f"S == {taps}", lambda p, taps=taps: taps == p.S)
    yield _Condition("R == S", lambda p: p.R == p.S)
    yield _Condition("C == groups", lambda p: p.groups == p.C)
    yield _Condition("K == groups", lambda p: p.groups == p.K)
    for name in ("stride", "dilation", "padding"):
        short = {"padding": "pad"}.get(name, name)
        yield _Condition(
            f"{short}_h == {short}_w",
            lambda p, name=name: getattr(p, name)[0] == getattr(p, name)[1],
            _effects(name, None),
        )
    yield _Condition("relu == 0", lambda p: not p.relu)
    for name, of in _SIZES.items():
        for tile in (2, 4, 8, 16, 32, 64, 128):
            # A product of names needs parentheses before %.
            shown = f"({name})" if "*" in name or "/" in name else name
            yield _Condition(
                f"{shown} % {tile} == 0", lambda p, of=of, tile=tile: of(p) % tile == 0
            )
    for name, of in _SIZES.items():
        for power in range(17):
            yield _Condition(
                f"{name} <= {1 << power}", lambda p, of=of, power=power: of(p) <= 1 << power
            )


def _has_effect(problem: Problem, name: str, axis: int) -> bool:
    """Return whether a stride, dilation or padding has an effect along an axis."""
    if name == "stride":
        return (problem.P, problem.Q)[axis] > 1
    return name == "padding" or (problem.R, problem.S)[axis] > 1


def _effects(name: str, axis: int | None) -> Callable[[Problem], bool]:
    """Return the condition that a parameter has an effect along an axis, or along any (None)."""
    axes = (0, 1) if axis is None else (axis,)
    return lambda problem: any(_has_effect(problem, name, each) for each in axes)


def _effective(problem: Problem, name: str) -> set[int]:
    """Return the values of a parameter along the axes on which it has an effect."""
    values = getattr(problem, name)
    return {values[axis] for axis in (0, 1) if _has_effect(problem, name, axis)}


_SIZES: dict[str, Callable[[Problem], int]] = {
    "C // groups": lambda p: p.C // p.groups,
    "K // groups": lambda p: p.K // p.groups,
    "C": lambda p: p.C,
    "K": lambda p: p.K,
    "W": lambda p: p.W,
    "H": lambda p: p.H,
    "Q": lambda p: p.Q,
    "P": lambda p: p.P,
    "P * Q": lambda p: p.P * p.Q,
    "N": lambda p: p.N,
    "R * S": lambda p: p.R * p.S,
    "R": lambda p: p.R,
    "S": lambda p: p.S,
    "C // groups * R * S": lambda p: p.gemm_k,
}
