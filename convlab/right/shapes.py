"""Problems made up to be awkward; the smallest that still fails; what failing ones share.

Everything here is a function of its arguments: a seed gives the same problems on every machine.
(hypothesis would give others with each of its releases, and takes a race that hides for a flaw.)
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from ..words.errors import ProblemError
from ..words.problem import Problem

MAX_MACS = 600_000  # of a generated problem: some 20 ms of the simulator's
_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 37, 63, 64, 65, 97, 129)
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_UNEVEN = ((1, 2), (2, 1), (2, 2), (3, 2), (1, 4))

_Draw = dict[str, Any]


def generated(count: int, seed: int = 0) -> Iterator[Problem]:
    """Yield `count` small problems, no two alike, each with one of `_FLAVOURS` in turn.

    None has more than `MAX_MACS` multiply-adds. The first of a larger count are those of a
    smaller one.
    """
    rng = random.Random(seed)
    seen: set[Problem] = set()
    while len(seen) < count:
        made = _make(rng, _FLAVOURS[len(seen) % len(_FLAVOURS)])
        if made is not None and made not in seen:
            seen.add(made)
            yield made


def _make(rng: random.Random, flavour: Callable[[random.Random], _Draw]) -> Problem | None:
    """Return one problem, or None where what was drawn is no convolution or too large."""
    drawn = {
        "N": rng.choice((1, 2, 2, 3)),
        "H": rng.randint(1, 40),
        "W": rng.randint(1, 40),
        "R": rng.choice((1, 2, 3, 3, 3, 4, 5, 7)),
        "S": rng.choice((1, 2, 3, 3, 3, 4, 5, 7)),
        "stride": _pair(rng, 1, 3) if rng.random() < 0.3 else (1, 1),
        "padding": _pair(rng, 0, 3) if rng.random() < 0.5 else (0, 0),
        "dilation": _pair(rng, 1, 3) if rng.random() < 0.25 else (1, 1),
        "groups": rng.choice((2, 3, 5)) if rng.random() < 0.15 else 1,
        "bias": rng.random() < 0.4,
        "C": _CHANNELS,
        "K": _CHANNELS,
    }
    drawn |= flavour(rng)
    groups = drawn["groups"]
    try:  # with the fewest channels, to see how many there may be
        room = MAX_MACS // max(Problem(**drawn | {"C": groups, "K": groups}).macs, 1)
    except ProblemError:
        return None
    for key in rng.sample("CK", 2):
        choices = [c for c in drawn[key] if c <= room]
        if not choices:
            return None
        drawn[key] = rng.choice(choices)
        room //= drawn[key]
    return Problem(**drawn | {"C": drawn["C"] * groups, "K": drawn["K"] * groups})


def _pair(rng: random.Random, low: int, high: int) -> tuple[int, int]:
    return rng.randint(low, high), rng.randint(low, high)


def _seams(rng: random.Random) -> _Draw:
    """Outputs one short of whole tiles, whole tiles, and one past them, in p and q; no options."""
    drawn: _Draw = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    for size, taps in ("HR", "WS"):
        tile = rng.choice((4, 8, 16, 32))
        outputs = tile * rng.randint(1, 40 // tile) + rng.choice((-1, 0, 1))
        drawn[taps] = rng.choice((1, 2, 3, 5))
        drawn[size] = outputs + drawn[taps] - 1
    return drawn


def _past_filter(rng: random.Random) -> _Draw:
    R, S = rng.choice((1, 2, 3, 5)), rng.choice((1, 2, 3, 5))
    return {"R": R, "S": S, "padding": (R + rng.randint(0, 3), S + rng.randint(0, 3))}


def _large_filter(R: int, S: int) -> Callable[[random.Random], _Draw]:
    return lambda rng: {"R": R, "S": S, "H": rng.randint(R, R + 24), "W": rng.randint(S, S + 24)}


# What a kernel may have forgotten. C and K are the choices for one group.
_FLAVOURS: tuple[Callable[[random.Random], _Draw], ...] = (
    lambda rng: {},
    _seams,
    lambda rng: {"N": 1},
    lambda rng: {"C": (1,), "groups": 1},
    lambda rng: {"K": (1,), "groups": 1},
    lambda rng: {"H": rng.choice(_PRIMES[2:]), "W": rng.choice(_PRIMES[2:]), "C": _PRIMES[:8],
                 "K": _PRIMES[:12]},
    lambda rng: {"stride": rng.choice(_UNEVEN)},
    lambda rng: {"dilation": rng.choice(_UNEVEN), "R": rng.randint(2, 5), "S": rng.randint(2, 5),
                 "padding": _pair(rng, 0, 4)},
    _past_filter,
    lambda rng: {"groups": rng.choice((2, 3, 4, 6)), "C": (1, 2, 3), "K": (1, 2, 3, 5)},
    lambda rng: {"groups": rng.choice((2, 7, 16, 19, 33)), "C": (1,), "K": (1, 2)},  # depthwise
    lambda rng: {"R": 1, "S": 1, "dilation": (1, 1)},
    _large_filter(5, 9),
    _large_filter(9, 5),
    _large_filter(11, 11),
    lambda rng: {"W": 1, "S": 1, "dilation": (1, 1)},
    lambda rng: {"H": 1, "R": 1, "dilation": (1, 1)},
    lambda rng: {"H": rng.randint(1, 4), "W": rng.randint(200, 1200), "R": 1},
    lambda rng: {"W": rng.randint(1, 4), "H": rng.randint(200, 1200), "S": 1},
    lambda rng: {"stride": rng.choice(((2, 3), (3, 2), (2, 1), (1, 3))),
                 "dilation": rng.choice(((2, 3), (3, 2), (1, 2), (2, 1))),
                 "H": rng.randint(8, 40), "W": rng.randint(8, 40)},
)  # fmt: skip


# The smallest ---------------------------------------------------------------------------------


def shrink(problem: Problem, fails: Callable[[Problem], bool], tries: int = 150) -> Problem:
    """Return the smallest problem found that still fails.

    Greedy: option by option and dimension by dimension, the least value first, then halves, then
    one less, until no single step fails any more or `tries` were made. `fails` is never asked
    about the same problem twice, nor about one that is not valid.
    """
    tried, candidates = {problem}, _smaller(problem)
    while len(tried) <= tries and (smaller := next(candidates, None)):
        if smaller in tried:
            continue
        tried.add(smaller)
        if fails(smaller):
            problem, candidates = smaller, _smaller(smaller)
    return problem


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Yield simpler problems, those with the most taken away first; perhaps itself, too."""
    groups = problem.groups
    c, k = problem.C // groups, problem.K // groups
    changes: list[_Draw] = [{"groups": n, "C": c * n, "K": k * n} for n in _less(groups, 1)]
    changes += [{"groups": 1}, {"bias": False}]
    for option, least in (("dilation", 1), ("stride", 1), ("padding", 0)):
        high, wide = getattr(problem, option)
        changes.append({option: (least, least)})
        changes += [{option: (value, wide)} for value in _less(high, least)]
        changes += [{option: (high, value)} for value in _less(wide, least)]
    changes += [{"N": value} for value in _less(problem.N, 1)]
    changes += [{"C": value * groups} for value in _less(c, 1)]
    changes += [{"K": value * groups} for value in _less(k, 1)]
    for size, taps in ("HR", "WS"):
        now, have = getattr(problem, size), getattr(problem, taps)
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


def across(outcomes: Sequence[tuple[Problem, bool]]) -> list[str]:
    """Say what sets the problems on which a kernel is wrong apart from those on which it is right.

    `outcomes` are problems, each with whether the kernel was right on it. First comes what holds
    wherever it is wrong and nowhere where it is right; else the conditions without which it was
    never wrong, those that leave the fewest right ones over first. Nothing is said unless at
    least two problems are wrong and three right.
    """
    wrong = [problem for problem, good in outcomes if not good]
    right = [problem for problem, good in outcomes if good]
    if len(wrong) < 2 or len(right) < 3:
        return []
    sizes = pd.DataFrame([_sizes(problem) for problem in [*wrong, *right]])
    least = sizes[: len(wrong)].min()  # the one bound of each that could tell them apart
    bounds = (sizes >= least).rename(columns=lambda name: f"{name} >= {least[name]}")
    facts = pd.DataFrame([_facts(problem) for problem in [*wrong, *right]]).join(bounds)
    needed: dict[str, set[int]] = {}  # what holds for all wrong ones -> right ones where it does
    for text, holds in facts.loc[:, facts[: len(wrong)].all()].items():
        others = {*holds.index[len(wrong) :][holds[len(wrong) :]]}
        if others not in needed.values() and len(others) < len(right):  # else it says nothing new
            needed[text] = others
    exact = [text for text, others in needed.items() if not others]
    exact += [f"{a} and {b}" for a, b in itertools.combinations(needed, 2)
              if not needed[a] & needed[b]]  # fmt: skip
    if exact:
        return [f"wrong wherever {exact[0]}, and only there"]
    telling = sorted(needed, key=lambda text: len(needed[text]))[:2]
    return [
        f"wrong only where {text}: on {len(wrong)} of {len(wrong) + len(needed[text])} such ones"
        for text in telling
        if 2 * len(needed[text]) <= len(right)
    ]


def _facts(p: Problem) -> dict[str, bool]:
    """What may be said of a problem, and whether it holds; what says more of it first."""
    facts, numbers = {}, p.variables()
    for option, any_of_it, least in (
        ("stride", "the stride is not 1", 1),
        ("dilation", "the dilation is not 1", 1),
        ("pad", "there is padding", 0),
    ):
        high, wide = numbers[f"{option}_h"], numbers[f"{option}_w"]
        facts |= {
            any_of_it: (high, wide) != (least, least),
            f"{option}_h is not {least}": high != least,
            f"{option}_w is not {least}": wide != least,
            f"{option}_h is not {option}_w": high != wide,
        }
    facts |= {
        "there is a bias": p.bias, "groups is not 1": p.groups != 1, "R is not S": p.R != p.S,
        "R is not 3 or S is not 3": (p.R, p.S) != (3, 3), "H is not W": p.H != p.W,
        "P is not Q": p.P != p.Q, "N > 1": p.N > 1, "C/groups > 1": p.C > p.groups,
        "K/groups > 1": p.K > p.groups, "K is not C": p.K != p.C,
    }  # fmt: skip
    tiled = {"P": p.P, "Q": p.Q, "K": p.K, "C": p.C, "P*Q": p.P * p.Q, "N*P*Q": p.gemm_m,
             "C/groups*R*S": p.gemm_k}  # fmt: skip
    for name, size in tiled.items():
        for tile in (2, 4, 8, 16, 32, 64, 128):
            facts[f"{name} is not a multiple of {tile}"] = size % tile != 0
    return facts


def _sizes(p: Problem) -> dict[str, int]:
    return {
        "N": p.N, "C/groups": p.C // p.groups, "K/groups": p.K // p.groups, "P": p.P, "Q": p.Q,
        "R": p.R, "S": p.S, "R*S": p.R * p.S, "P*Q": p.P * p.Q, "C/groups*R*S": p.gemm_k,
        "groups": p.groups,
    }  # fmt: skip
