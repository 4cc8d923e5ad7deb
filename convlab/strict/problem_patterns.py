"""Describes what the problems on which a kernel is incorrect have in common, and the others do not."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ..core.problem.problem import Problem

# A sentence is left out if chance alone would make it true with a higher probability.
_CHANCE = 0.05

Outcomes = Sequence[tuple[Problem, bool]]


def describe(outcomes: Outcomes, tried: Outcomes = ()) -> list[str]:
    """Say what distinguishes the problems on which a kernel is incorrect from the others.

    The first choice is a condition that holds for all wrong problems and for no correct one, with
    the other conditions that fit as well. Else it is the conditions that hold for all wrong
    problems, and for the fewest correct ones. A sentence is left out if as many problems, drawn at
    random, would have it in common with a probability above `_CHANCE`, given the number of
    conditions tried.

    Parameters
    ----------
    outcomes : problems drawn at random, each with whether the kernel was correct on it.
    tried : other problems, as from the search for the smallest. They are no evidence, because they
        were not drawn at random. But every sentence holds for them too, and they narrow a limit.
    """
    wrong = [problem for problem, correct in outcomes if not correct]
    correct = [problem for problem, correct in outcomes if correct]
    if not wrong or not correct:
        return []
    failing = wrong + [problem for problem, correct in tried if not correct]
    passing = correct + [problem for problem, correct in tried if correct]
    facts = _facts_and_bounds(failing, passing)
    drawn = [*range(len(wrong)), *range(len(failing), len(failing) + len(correct))]
    evidence = _Evidence(
        wrong=len(wrong),
        drawn=len(outcomes),
        conditions=len(facts.iloc[drawn].T.drop_duplicates()),
    )
    needed = _conditions_by_exceptions(facts, len(failing))
    sentences = _describe_exact(needed, evidence)
    return sentences or _describe_necessary(needed, evidence, len(correct))


@dataclass(frozen=True)
class _Evidence:
    """How many of the drawn problems are wrong, and how many conditions were tried on them."""

    wrong: int
    drawn: int
    conditions: int

    def expected_by_chance(self, exceptions: int, conditions: float) -> float:
        """Return how many conditions would hold for all wrong problems by chance.

        `exceptions` is the largest number of correct problems for which they hold too.
        """
        chosen = math.comb(self.wrong + exceptions, self.wrong)
        return conditions * chosen / math.comb(self.drawn, self.wrong)


def _facts_and_bounds(failing: Sequence[Problem], passing: Sequence[Problem]) -> pd.DataFrame:
    """Return for each problem, failing ones first, which conditions hold; the columns name them."""
    problems = [*failing, *passing]
    sizes = pd.DataFrame([_numbers(problem) for problem in problems])[_SIZES]
    bad = sizes[: len(failing)]
    good = sizes[len(failing) :]
    # The bounds of each size that all failing problems obey, and the nearest passing values.
    least = bad.min()
    most = bad.max()
    below = good.where(good < least).max()
    above = good.where(good > most).min()
    lower = {name: _describe_lower(name, low, below[name]) for name, low in least.items()}
    upper = {name: _describe_upper(name, high, above[name]) for name, high in most.items()}
    bounds = (sizes >= least).rename(columns=lower).join((sizes <= most).rename(columns=upper))
    return pd.DataFrame([_facts(problem) for problem in problems]).join(bounds)


def _conditions_by_exceptions(facts: pd.DataFrame, failing: int) -> dict[frozenset[int], list[str]]:
    """Return the conditions that hold for all failing problems, by the passing ones with them."""
    needed: dict[frozenset[int], list[str]] = {}
    for text, holds in facts.loc[:, facts[:failing].all()].items():
        exceptions = frozenset(i for i, held in enumerate(holds[failing:]) if held)
        needed.setdefault(exceptions, []).append(text)
    return needed


def _describe_exact(needed: Mapping[frozenset[int], list[str]], evidence: _Evidence) -> list[str]:
    """Say which condition, or which two, hold for all wrong problems and for no correct one."""
    fitting: list[str] = []
    if evidence.expected_by_chance(0, evidence.conditions) <= _CHANCE:
        fitting = needed.get(frozenset(), [])
    if not fitting and evidence.expected_by_chance(0, evidence.conditions**2 / 2) <= _CHANCE:
        fitting = [
            f"{needed[one][0]} and {needed[other][0]}"
            for one, other in itertools.combinations(needed, 2)
            if not one & other
        ]
    if not fitting:
        return []
    first, *rest = fitting
    alternatives = ""
    if rest:
        more = f", and {len(rest) - 3} more" if len(rest) > 3 else ""
        alternatives = f" (or {', or '.join(rest[:3])}{more}: these problems cannot tell)"
    return [f"incorrect wherever {first}, and only there{alternatives}"]


def _describe_necessary(
    needed: Mapping[frozenset[int], list[str]], evidence: _Evidence, correct: int
) -> list[str]:
    """Say which conditions hold for all wrong problems, with the number of correct ones.

    `correct` is how many correct problems were drawn; they come before those that were only tried.
    """
    counts = {exceptions: sum(i < correct for i in exceptions) for exceptions in needed}
    sentences = []
    for exceptions, count in sorted(counts.items(), key=lambda item: item[1])[:2]:
        expected = evidence.expected_by_chance(count, evidence.conditions)
        if 2 * count <= correct and expected <= _CHANCE:
            wrong = evidence.wrong
            condition = needed[exceptions][0]
            sentences.append(
                f"incorrect only where {condition}: on {wrong} of {wrong + count} such problems"
            )
    return sentences


def _describe_lower(name: str, low: int, below: float) -> str:
    """Describe a least value, with the largest passing one where that is further away."""
    if low <= 2:
        return f"{name} > {low - 1}"
    known = "" if math.isnan(below) or below == low - 1 else f" (correct up to {below:.0f})"
    return f"{name} >= {low}{known}"


def _describe_upper(name: str, high: int, above: float) -> str:
    """Describe a largest value, with the least passing one where that is further away."""
    if high == 1:
        return f"{name} is 1"
    known = "" if math.isnan(above) or above == high + 1 else f" (correct from {above:.0f} on)"
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
    """Return all sizes of a problem, by name."""
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
    """Return the conditions on a problem, and whether each holds; the most telling first."""
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
