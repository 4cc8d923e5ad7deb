"""Generate small, awkward problems from a seed: the same problems on every machine.

The tests use hypothesis, but this module does not. Each release of hypothesis draws other problems,
it shrinks only problems that it drew itself, and it rejects failures that do not repeat, such as
races.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.errors import ProblemError
from ..core.problem.problem import Problem

# A generated problem has at most this many multiply-adds: about 20 ms on the simulator.
MAX_MACS = 600_000
_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 37, 63, 64, 65, 97, 129)
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_UNEVEN = ((1, 2), (2, 1), (2, 2), (3, 2), (1, 4), (2, 3))
# Image sizes: with a 3x3 filter, y ends at a tile boundary, one before it, or one after it.
_SEAMS = [tiles + 2 + by for tiles in (4, 8, 12, 16, 16, 24, 32, 32) for by in (-1, 0, 1)]
_PADS = [*itertools.product(range(4), repeat=2)]
_STEPS = [*itertools.product((1, 2, 3), repeat=2)]
# The choices for each parameter of a problem; C and K are those of one group.
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
# Other choices for some parameters: cases that the author of a kernel may forget.
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
    },
    {"N": [1]},
    {"C": [1], "groups": [1]},
    {"K": [1], "groups": [1]},
    {"H": _PRIMES, "W": _PRIMES, "C": (2, 3, *_PRIMES[:6]), "K": (2, 3, *_PRIMES)},
    {"stride": _UNEVEN},
    {"dilation": _UNEVEN, "R": (2, 3, 4, 5), "S": (2, 3, 4, 5), "padding": _PADS},
    {"R": (1, 2, 3, 5), "S": (1, 2, 3, 5), "padding": [(5, 5), (5, 7), (8, 5), (6, 8)]},
    {"groups": (2, 3, 4, 6), "C": (1, 2, 3), "K": (1, 2, 3, 5)},
    # depthwise
    {"groups": (2, 7, 16, 19, 33), "C": [1], "K": (1, 2)},
    {"R": [1], "S": [1], "dilation": [(1, 1)]},
    {"R": [5], "S": [9], "H": range(5, 30), "W": range(9, 34)},
    {"R": [9], "S": [5], "H": range(9, 34), "W": range(5, 30)},
    {"R": [11], "S": [11], "H": range(11, 36), "W": range(11, 36)},
    {"W": [1], "S": [1], "dilation": [(1, 1)]},
    {"H": [1], "R": [1], "dilation": [(1, 1)]},
    {"H": range(1, 5), "W": range(200, 1201), "R": [1]},
    {"W": range(1, 5), "H": range(200, 1201), "S": [1]},
    {"stride": _UNEVEN, "dilation": _UNEVEN, "H": range(8, 41), "W": range(8, 41)},
    # One output more than a tile of 16 or 32, in both directions.
    {
        "H": (19, 35),
        "W": (19, 35),
        "R": [3],
        "S": [3],
        "padding": [(0, 0)],
        "stride": [(1, 1)],
        "dilation": [(1, 1)],
    },
    {"stride": ((5, 6), (6, 5), (6, 6), (7, 12)), "H": range(13, 41), "W": range(13, 41)},
    # Steps as large as the filter, but dilated windows overlap.
    {
        "R": [2],
        "S": [2],
        "stride": [(2, 2), (3, 2), (2, 3)],
        "dilation": [(2, 2), (4, 2), (2, 4)],
        "H": range(9, 41),
        "W": range(9, 41),
    },
)


def generate(count: int, seed: int = 0) -> Iterator[Problem]:
    """Yield `count` different problems with at most `MAX_MACS` multiply-adds each.

    The problems take turns among `_FLAVOURS`. A larger count begins with the same problems.
    """
    rng = random.Random(seed)
    seen: set[Problem] = set()
    while len(seen) < count:
        choices = _ANY | _FLAVOURS[len(seen) % len(_FLAVOURS)]
        problem = _draw(rng, choices)
        if problem is not None and problem not in seen and problem.macs <= MAX_MACS:
            seen.add(problem)
            yield problem


def _draw(rng: random.Random, choices: dict[str, Sequence[Any]]) -> Problem | None:
    """Return a problem with random choices; None if they do not form a valid problem."""
    drawn = {name: rng.choice(values) for name, values in choices.items()}
    groups = drawn["groups"]
    # The work of the problem with the fewest channels limits the number of channels.
    try:
        smallest = Problem(**drawn | {"C": groups, "K": groups})
    except ProblemError:
        return None
    room = MAX_MACS // smallest.macs
    for name in rng.sample("CK", 2):
        fitting = [channels for channels in choices[name] if channels <= room] or [1]
        drawn[name] = rng.choice(fitting)
        room //= drawn[name]
    return Problem(**drawn | {"C": drawn["C"] * groups, "K": drawn["K"] * groups})


def option_pairs(problem: Problem) -> set[tuple[str, str]]:
    """Return all pairs of unusual options of a problem, such as ("stride", "groups")."""
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
    unusual = [name for name, is_unusual in options.items() if is_unusual]
    return set(itertools.combinations(unusual, 2))
