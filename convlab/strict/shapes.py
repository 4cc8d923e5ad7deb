"""Problems made up to be awkward; the smallest that still fails; what failing ones share.

Everything here is a function of its arguments: a seed gives the same problems on every machine.
hypothesis, which the tests use, draws others with each of its releases, shrinks only what it drew
itself, and stops at what fails only sometimes, as a race does.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from ..core.errors import ProblemError
from ..core.problem.problem import Problem

MAX_MACS = 600_000  # of a generated problem: some 20 ms of the simulator's
_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 37, 63, 64, 65, 97, 129)
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_UNEVEN = ((1, 2), (2, 1), (2, 2), (3, 2), (1, 4), (2, 3))
_SEAMS = [tiles + 2 + by for tiles in (4, 8, 12, 16, 16, 24, 32, 32) for by in (-1, 0, 1)]
_PADS = [*itertools.product(range(4), repeat=2)]
_STEPS = [*itertools.product((1, 2, 3), repeat=2)]
# The choices for each of a problem's numbers; those for C and K are of one group's.
_ANY: dict[str, Sequence[Any]] = {
    "N": (1, 2, 2, 3),
    "H": range(1, 41),
    "W": range(1, 41),
    "R": (1, 2, 3, 3, 3, 4, 5, 7),
    "S": (1, 2, 3, 3, 3, 4, 5, 7),
    "C": _CHANNELS,
    "K": _CHANNELS,
    "stride": [(1, 1)] * 18 + _STEPS,
    "padding": [(0, 0)] * 16 + _PADS,
    "dilation": [(1, 1)] * 27 + _STEPS,
    "groups": [1] * 17 + [2, 3, 5],
    "bias": (True, True, False, False, False),
}
# Other choices for some of them: what a kernel may have forgotten.
_FLAVOURS: tuple[dict[str, Sequence[Any]], ...] = (
    {},
    {
        "H": _SEAMS,
        "W": _SEAMS,
        "R": (2, 3, 3, 4),
        "S": (2, 3, 3, 4),
        "padding": [(0, 0)],
        "stride": [(1, 1)],
        "dilation": [(1, 1)],
    },  # outputs just short of whole tiles, or past them
    {"N": [1]},
    {"C": [1], "groups": [1]},
    {"K": [1], "groups": [1]},
    {"H": _PRIMES, "W": _PRIMES, "C": (2, 3, *_PRIMES[:6]), "K": (2, 3, *_PRIMES)},
    {"stride": _UNEVEN},
    {"dilation": _UNEVEN, "R": (2, 3, 4, 5), "S": (2, 3, 4, 5), "padding": _PADS},
    {"R": (1, 2, 3, 5), "S": (1, 2, 3, 5), "padding": [(5, 5), (5, 7), (8, 5), (6, 8)]},
    {"groups": (2, 3, 4, 6), "C": (1, 2, 3), "K": (1, 2, 3, 5)},
    {"groups": (2, 7, 16, 19, 33), "C": [1], "K": (1, 2)},  # depthwise
    {"R": [1], "S": [1], "dilation": [(1, 1)]},
    {"R": [5], "S": [9], "H": range(5, 30), "W": range(9, 34)},
    {"R": [9], "S": [5], "H": range(9, 34), "W": range(5, 30)},
    {"R": [11], "S": [11], "H": range(11, 36), "W": range(11, 36)},
    {"W": [1], "S": [1], "dilation": [(1, 1)]},
    {"H": [1], "R": [1], "dilation": [(1, 1)]},
    {"H": range(1, 5), "W": range(200, 1201), "R": [1]},
    {"W": range(1, 5), "H": range(200, 1201), "S": [1]},
    {"stride": _UNEVEN, "dilation": _UNEVEN, "H": range(8, 41), "W": range(8, 41)},
)


def generated(count: int, seed: int = 0) -> Iterator[Problem]:
    """Yield `count` small problems, no two alike, each with one of `_FLAVOURS` in turn.

    None has more than `MAX_MACS` multiply-adds. The first of a larger count are those of a
    smaller one.
    """
    rng = random.Random(seed)
    seen: set[Problem] = set()
    while len(seen) < count:
        choices = _ANY | _FLAVOURS[len(seen) % len(_FLAVOURS)]
        drawn = {name: rng.choice(some) for name, some in choices.items()}
        groups = drawn["groups"]
        try:  # with the fewest channels, to see how many there may be
            room = MAX_MACS // Problem(**drawn | {"C": groups, "K": groups}).macs
        except ProblemError:
            continue
        for name in rng.sample("CK", 2):
            few = [channels for channels in choices[name] if channels <= room] or [1]
            drawn[name] = rng.choice(few)
            room //= drawn[name]
        made = Problem(**drawn | {"C": drawn["C"] * groups, "K": drawn["K"] * groups})
        if made not in seen and made.macs <= MAX_MACS:
            seen.add(made)
            yield made


def pairs(problem: Problem) -> set[tuple[str, str]]:
    """Return the unusual options of a problem, each two that stand beside each other."""
    options = {
        "stride": problem.stride != (1, 1),
        "padding": problem.padding != (0, 0),
        "dilation": problem.dilation != (1, 1),
        "groups": problem.groups > 1,
        "bias": problem.bias,
        "relu": problem.relu,
        "images": problem.N > 1,
        "filter": (problem.R, problem.S) != (3, 3),
    }
    return {*itertools.combinations((name for name, there in options.items() if there), 2)}


# The smallest ---------------------------------------------------------------------------------


def shrink(problem: Problem, fails: Callable[[Problem], bool], tries: int = 150) -> Problem:
    """Return the smallest problem found that still fails.

    Greedy: option by option and dimension by dimension, the least value first, then halves, then
    one less, until no single step fails any more or `tries` were made. `fails` is never asked
    about the same problem twice, nor about one that is not valid.
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
    """Yield simpler problems, those with the most taken away first; perhaps itself, too."""
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
    # and the padding as a part of the image
    changes.append({"padding": (0, 0), "H": problem.H + 2 * high, "W": problem.W + 2 * wide})
    changes += [{"N": value} for value in _less(problem.N, 1)]
    changes += [{"C": value * groups} for value in _less(c, 1)]
    changes += [{"K": value * groups} for value in _less(k, 1)]
    for size, taps in ("HR", "WS"):
        now = getattr(problem, size)
        have = getattr(problem, taps)
        for value in _less(have, 1):  # as large an image, or as many outputs
            changes += [{taps: value}, {taps: value, size: now - (have - value)}]
        changes += [{size: value} for value in _less(now, 1)]
    for change in changes:
        try:
            yield dataclasses.replace(problem, **change, name="")
        except ProblemError:
            continue


def _less(value: int, least: int) -> list[int]:
    """The values to try below one: least, three quarters off, half, a quarter off, one less."""
    tried = {least, value // 4, value // 2, 3 * value // 4, value - 1}
    return sorted(v for v in tried if least <= v < value)


# What failing ones share ----------------------------------------------------------------------

_DOUBT = 0.05  # how likely chance alone may make a sentence


def across(
    outcomes: Sequence[tuple[Problem, bool]], tried: Sequence[tuple[Problem, bool]] = ()
) -> list[str]:
    """Say what sets the problems on which a kernel is wrong apart from those on which it is right.

    `outcomes` are problems, each with whether the kernel was right on it. First comes what holds
    wherever it is wrong and nowhere where it is right, with what else fits these problems as well;
    else the conditions without which it was never wrong, those that leave the fewest right ones
    over first. Nothing is said that so many wrong problems, drawn at random, would have in common
    with a chance above `_DOUBT`, as many explanations being tried. What was `tried` besides, as in
    search of the smallest, was not drawn at random: it gives no evidence, but all that is said
    holds for it, too; and it narrows a limit down.
    """
    wrong, more_wrong = ([p for p, good in some if not good] for some in (outcomes, tried))
    right, more_right = ([p for p, good in some if good] for some in (outcomes, tried))
    if not wrong or not right:
        return []
    failing = [*wrong, *more_wrong]
    passing = [*right, *more_right]
    sizes = pd.DataFrame([_numbers(problem) for problem in [*failing, *passing]])[_SIZES]
    bad = sizes[: len(failing)]
    good = sizes[len(failing) :]
    # the two bounds of each that could tell them apart
    least = bad.min()
    most = bad.max()
    below = good.where(good < least).max()
    above = good.where(good > most).min()
    lower = {n: _bound(n, low, below[n]) for n, low in least.items()}
    upper = {n: _limit(n, high, above[n]) for n, high in most.items()}
    bounds = (sizes >= least).rename(columns=lower).join((sizes <= most).rename(columns=upper))
    facts = pd.DataFrame([_facts(problem) for problem in [*failing, *passing]]).join(bounds)
    drawn = [*range(len(wrong)), *range(len(failing), len(failing) + len(right))]
    explanations = len(facts.iloc[drawn].T.drop_duplicates())
    needed: dict[frozenset[int], list[str]] = {}  # by the right ones where it holds: what does
    for text, holds in facts.loc[:, facts[: len(failing)].all()].items():
        others = frozenset(i for i, held in enumerate(holds[len(failing) :]) if held)
        needed.setdefault(others, []).append(text)

    def by_chance(others: int, ways: float) -> float:
        """How many of so many would hold for all wrong ones and no more right ones."""
        chosen, every = (math.comb(n, len(wrong)) for n in (len(wrong) + others, len(outcomes)))
        return ways * chosen / every

    fit = needed.get(frozenset(), []) if by_chance(0, explanations) <= _DOUBT else []
    if not fit and by_chance(0, explanations**2 / 2) <= _DOUBT:
        fit = [
            f"{needed[a][0]} and {needed[b][0]}"
            for a, b in itertools.combinations(needed, 2)
            if not a & b
        ]
    if fit:
        first, *rest = fit
        more = f", and {len(rest) - 3} more" if len(rest) > 3 else ""
        rest = f" (or {', or '.join(rest[:3])}{more}: these problems do not tell)" if rest else ""
        return [f"wrong wherever {first}, and only there{rest}"]
    ordinary = {others: sum(i < len(right) for i in others) for others in needed}
    return [
        f"wrong only where {needed[others][0]}: on {len(wrong)} of {len(wrong) + met} such ones"
        for others, met in sorted(ordinary.items(), key=lambda one: one[1])[:2]
        if 2 * met <= len(right) and by_chance(met, explanations) <= _DOUBT
    ]


def _bound(name: str, low: int, below: float) -> str:
    """A least value in words; where the largest right one is further off, both."""
    if low <= 2:
        return f"{name} > {low - 1}"
    known = "" if math.isnan(below) or below == low - 1 else f" (right up to {below:.0f})"
    return f"{name} >= {low}{known}"


def _limit(name: str, high: int, above: float) -> str:
    if high == 1:
        return f"{name} is 1"
    known = "" if math.isnan(above) or above == high + 1 else f" (right from {above:.0f} on)"
    return f"{name} <= {high}{known}"


_SIZES = [
    "N",
    "C/groups",
    "K/groups",
    "P",
    "Q",
    "R",
    "S",
    "R*S",
    "P*Q",
    "C/groups*R*S",
    "groups",
    "N*K*P*Q",
]
_PAIRS = ("stride_h stride_w", "dilation_h dilation_w", "pad_h pad_w", "R S", "H W", "P Q", "K C")


def _numbers(p: Problem) -> dict[str, int]:
    return p.variables() | {
        "C/groups": p.C // p.groups,
        "K/groups": p.K // p.groups,
        "R*S": p.R * p.S,
        "P*Q": p.P * p.Q,
        "N*P*Q": p.gemm_m,
        "C/groups*R*S": p.gemm_k,
        "N*K*P*Q": p.gemm_m * p.K,
    }


def _facts(p: Problem) -> dict[str, bool]:
    """What may be said of a problem, and whether it holds; what says more of it first."""
    numbers = _numbers(p)
    facts = {
        "the stride is not 1": p.stride != (1, 1),
        "the dilation is not 1": p.dilation != (1, 1),
        "there is padding": p.padding != (0, 0),
        "there is a bias": p.bias,
        "there is a ReLU": p.relu,
    }
    for name in ("stride_h", "stride_w", "dilation_h", "dilation_w"):
        facts[f"{name} is not 1"] = numbers[name] != 1
    for name in ("pad_h", "pad_w"):
        facts[f"{name} is not 0"] = numbers[name] != 0
    for one, other in map(str.split, _PAIRS):
        facts[f"{one} is not {other}"] = numbers[one] != numbers[other]
    facts["R is not 3 or S is not 3"] = (p.R, p.S) != (3, 3)
    for name in ("P", "Q", "K", "C", "P*Q", "N*P*Q", "C/groups*R*S"):
        for tile in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128):
            facts[f"{name} is not a multiple of {tile}"] = numbers[name] % tile != 0
            facts[f"{name} is a multiple of {tile}"] = numbers[name] % tile == 0
    return facts
