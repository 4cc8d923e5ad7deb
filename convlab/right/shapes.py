"""Problems made up to be awkward; the smallest that still fails; what failing ones share.

Everything here is a function of its arguments: a seed gives the same problems on every machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..words.errors import ProblemError
from ..words.problem import Problem

MAX_MACS = 600_000  # of a generated problem: some 20 ms of the simulator's
_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 37, 63, 64, 65, 97, 129)
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_TILES = (4, 8, 16, 32)

_Draw = dict[str, Any]


def generated(count: int, seed: int = 0) -> Iterator[Problem]:
    """Yield `count` small problems, no two alike, each with one of `FLAVOURS` in turn.

    None has more than `MAX_MACS` multiply-adds. The first of a larger count are those of a
    smaller one.
    """
    rng = random.Random(seed)
    flavours, seen = list(FLAVOURS.values()), set()
    while len(seen) < count:
        made = _make(rng, flavours[len(seen) % len(flavours)])
        if made is not None and made not in seen:
            seen.add(made)
            yield made


def shrink(
    problem: Problem, fails: Callable[[Problem], bool], tries: int = 150
) -> tuple[Problem, int]:
    """Return the smallest problem found that still fails, and how many were tried.

    Greedy: option by option and dimension by dimension, the least value first, then halves, then
    one less, until no single step fails any more or `tries` were made. `fails` is never asked
    about the same problem twice, nor about one that is not valid.
    """
    left, seen = tries, {problem}
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _smaller(problem):
            if smaller in seen:
                continue
            if left == 0:
                break
            seen.add(smaller)
            left -= 1
            if fails(smaller):
                problem, progress = smaller, True
                break
    return problem, tries - left


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Yield simpler problems, those with the most taken away first."""
    for change in _changes(problem):
        try:
            yield dataclasses.replace(problem, **change, name="")
        except ProblemError:
            continue


def _changes(problem: Problem) -> Iterator[_Draw]:
    groups = problem.groups
    c, k = problem.C // groups, problem.K // groups
    for fewer in sorted({1, 2, groups // 2, groups - 1} & set(range(1, groups))):
        yield {"groups": fewer, "C": c * fewer, "K": k * fewer}
        if fewer == 1:
            yield {"groups": 1}
    if problem.bias:
        yield {"bias": False}
    for option, least in (("dilation", 1), ("stride", 1), ("padding", 0)):
        pair = getattr(problem, option)
        yield from ({option: (least, least)} for _ in range(pair != (least, least)))
        for i in (0, 1):
            for value in _less(pair[i], least):
                yield {option: (value, pair[1]) if i == 0 else (pair[0], value)}
    for value in _less(problem.N, 1):
        yield {"N": value}
    for key, per_group in (("C", c), ("K", k)):
        for value in _less(per_group, 1):
            yield {key: value * groups}
    for size, taps in (("H", "R"), ("W", "S")):
        for value in _less(getattr(problem, taps), 1):
            yield {taps: value}
            less = getattr(problem, taps) - value  # and as many outputs as before
            if getattr(problem, size) > less:
                yield {taps: value, size: getattr(problem, size) - less}
        for value in _less(getattr(problem, size), 1):
            yield {size: value}


def _less(value: int, least: int) -> list[int]:
    """The values to try below one: least, three quarters off, half, a quarter off, one less."""
    tried = {least, value // 4, value // 2, 3 * value // 4, value - 1}
    return sorted(v for v in tried if least <= v < value)


def _make(rng: random.Random, flavour: Callable[[random.Random], _Draw]) -> Problem | None:
    """Return one problem, or None where what was drawn is no convolution or too large."""
    drawn: _Draw = {
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
    }
    drawn |= flavour(rng)
    fixed = {key: drawn.pop(key) for key in ("C", "K") if key in drawn}
    try:  # with the fewest channels, to see what they may cost
        least = Problem(**drawn, C=drawn["groups"], K=drawn["groups"])
    except ProblemError:
        return None
    room = MAX_MACS // max(least.macs, 1)  # for C/groups times K/groups
    for key in rng.sample("CK", 2):
        choices = [c for c in (fixed.get(key, _CHANNELS),) for c in _listed(c) if c <= room]
        if not choices:
            return None
        fixed[key] = rng.choice(choices)
        room //= fixed[key]
    groups = drawn["groups"]
    return Problem(**drawn, C=fixed["C"] * groups, K=fixed["K"] * groups)


def _listed(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


def _pair(rng: random.Random, low: int, high: int) -> tuple[int, int]:
    return rng.randint(low, high), rng.randint(low, high)


def _seams(rng: random.Random) -> _Draw:
    """Outputs one short of whole tiles, whole tiles, and one past them, in p and q; no options."""
    drawn: _Draw = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    for size, taps in ("HR", "WS"):
        tile = rng.choice(_TILES)
        outputs = tile * rng.randint(1, max(1, 40 // tile)) + rng.choice((-1, 0, 1))
        drawn[taps] = rng.choice((1, 2, 3, 5))
        drawn[size] = outputs + drawn[taps] - 1
    return drawn


def _past_filter(rng: random.Random) -> _Draw:
    R, S = rng.choice((1, 2, 3, 5)), rng.choice((1, 2, 3, 5))
    return {"R": R, "S": S, "padding": (R + rng.randint(0, 3), S + rng.randint(0, 3))}


def _large_filter(R: int, S: int) -> Callable[[random.Random], _Draw]:
    def flavour(rng: random.Random) -> _Draw:
        return {"R": R, "S": S, "H": rng.randint(R, R + 24), "W": rng.randint(S, S + 24)}

    return flavour


# What a kernel may have forgotten. C and K are those of one group.
FLAVOURS: dict[str, Callable[[random.Random], _Draw]] = {
    "anything": lambda rng: {},
    "off tile boundaries": _seams,
    "one image": lambda rng: {"N": 1},
    "one channel": lambda rng: {"C": 1, "groups": 1},
    "one filter": lambda rng: {"K": 1, "groups": 1},
    "primes": lambda rng: {key: rng.choice(_PRIMES[2:]) for key in "HW"} | {"C": _PRIMES[:8],
                                                                        "K": _PRIMES[:12]},
    "strides": lambda rng: {"stride": rng.choice(((1, 2), (2, 1), (2, 2), (3, 2), (1, 4)))},
    "dilations": lambda rng: {"dilation": rng.choice(((1, 2), (2, 1), (2, 2), (3, 2), (1, 4))),
                              "R": rng.randint(2, 5), "S": rng.randint(2, 5),
                              "padding": _pair(rng, 0, 4)},
    "padding past the filter": _past_filter,
    "groups": lambda rng: {"groups": rng.choice((2, 3, 4, 6)), "C": (1, 2, 3), "K": (1, 2, 3, 5)},
    "depthwise": lambda rng: {"groups": rng.choice((2, 7, 16, 19, 33)), "C": 1, "K": (1, 2)},
    "1x1": lambda rng: {"R": 1, "S": 1, "dilation": (1, 1)},
    "5x9": _large_filter(5, 9),
    "9x5": _large_filter(9, 5),
    "11x11": _large_filter(11, 11),
    "W of 1": lambda rng: {"W": 1, "S": 1, "dilation": (1, 1)},
    "H of 1": lambda rng: {"H": 1, "R": 1, "dilation": (1, 1)},
    "very wide": lambda rng: {"H": rng.randint(1, 4), "W": rng.randint(200, 1200), "R": 1},
    "very tall": lambda rng: {"W": rng.randint(1, 4), "H": rng.randint(200, 1200), "S": 1},
    "stride and dilation": lambda rng: {"stride": rng.choice(((2, 3), (3, 2), (2, 1), (1, 3))),
                                        "dilation": rng.choice(((2, 3), (3, 2), (1, 2), (2, 1))),
                                        "H": rng.randint(8, 40), "W": rng.randint(8, 40)},
}  # fmt: skip

_FEATURES: dict[str, Callable[[Problem], bool]] = {
    "the stride is not 1": lambda p: p.stride != (1, 1),
    "stride_h is not 1": lambda p: p.stride[0] != 1,
    "stride_w is not 1": lambda p: p.stride[1] != 1,
    "stride_h is not stride_w": lambda p: p.stride[0] != p.stride[1],
    "the dilation is not 1": lambda p: p.dilation != (1, 1),
    "dilation_h is not 1": lambda p: p.dilation[0] != 1,
    "dilation_w is not 1": lambda p: p.dilation[1] != 1,
    "dilation_h is not dilation_w": lambda p: p.dilation[0] != p.dilation[1],
    "there is padding": lambda p: p.padding != (0, 0),
    "pad_h is not 0": lambda p: p.padding[0] != 0,
    "pad_w is not 0": lambda p: p.padding[1] != 0,
    "pad_h is not pad_w": lambda p: p.padding[0] != p.padding[1],
    "there is a bias": lambda p: p.bias,
    "groups is not 1": lambda p: p.groups != 1,
    "R is not S": lambda p: p.R != p.S,
    "R is not 3 or S is not 3": lambda p: (p.R, p.S) != (3, 3),
    "H is not W": lambda p: p.H != p.W,
    "P is not Q": lambda p: p.P != p.Q,
    "N > 1": lambda p: p.N > 1,
    "C/groups > 1": lambda p: p.C > p.groups,
    "K/groups > 1": lambda p: p.K > p.groups,
    "K is not C": lambda p: p.K != p.C,
} | {
    f"{name} is not a multiple of {tile}": lambda p, size=size, tile=tile: bool(size(p) % tile)
    for name, size in {
        "P": lambda p: p.P, "Q": lambda p: p.Q, "K": lambda p: p.K, "C": lambda p: p.C,
        "P*Q": lambda p: p.P * p.Q, "N*P*Q": lambda p: p.gemm_m, "C/groups*R*S": lambda p: p.gemm_k,
    }.items()
    for tile in (2, 4, 8, 16, 32, 64, 128)
}  # fmt: skip
_SIZES: dict[str, Callable[[Problem], int]] = {
    "N": lambda p: p.N, "C/groups": lambda p: p.C // p.groups,
    "K/groups": lambda p: p.K // p.groups,
    "P": lambda p: p.P, "Q": lambda p: p.Q, "R": lambda p: p.R, "S": lambda p: p.S,
    "R*S": lambda p: p.R * p.S, "P*Q": lambda p: p.P * p.Q, "C/groups*R*S": lambda p: p.gemm_k,
    "groups": lambda p: p.groups,
}  # fmt: skip


def across(outcomes: Sequence[tuple[Problem, bool]]) -> list[str]:
    """Say what sets the problems on which a kernel is wrong apart from those on which it is right.

    Parameters
    ----------
    outcomes
        Problems, each with whether the kernel was right on it.

    Returns
    -------
    list of str
        First what holds wherever it is wrong and nowhere where it is right; else the conditions
        without which it was never wrong, those that leave the fewest right ones over first. Empty
        unless at least two problems are wrong and three right.
    """
    wrong = [problem for problem, right in outcomes if not right]
    right = [problem for problem, good in outcomes if good]
    if len(wrong) < 2 or len(right) < 3:
        return []
    features = dict(_FEATURES)
    for name, size in _SIZES.items():  # the one bound that could tell them apart
        least = min(map(size, wrong))
        if least > min(map(size, right)):
            features[f"{name} >= {least}"] = lambda p, size=size, least=least: size(p) >= least
    needed: dict[str, set[int]] = {}  # what holds for all wrong ones -> right ones where it does
    for text, holds in features.items():
        if all(map(holds, wrong)):
            others = {i for i, problem in enumerate(right) if holds(problem)}
            if others not in needed.values():  # else it says the same
                needed[text] = others
    exact = [text for text, others in needed.items() if not others]
    if exact:
        return [f"wrong wherever {exact[0]}, and only there"]
    pairs = [
        f"wrong wherever {a} and {b}, and only there"
        for a, b in itertools.combinations(needed, 2)
        if not needed[a] & needed[b]
    ]
    if pairs:
        return pairs[:1]
    telling = [t for t in sorted(needed, key=lambda t: len(needed[t])) if
               2 * len(needed[t]) <= len(right)]  # fmt: skip
    return [
        f"wrong only where {text}: on {len(wrong)} of {len(wrong) + len(needed[text])} such ones"
        for text in telling[:2]
    ]
