"""Describe what the failing problems of a check have in common, and the passing ones do not."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ..core.problem.problem import Problem

# A sentence is left out if it would be true by chance with a higher probability.
_CHANCE = 0.05

Outcomes = Sequence[tuple[Problem, bool]]


def describe(outcomes: Outcomes, tried: Outcomes = ()) -> list[str]:
    """Return sentences on what distinguishes the failing problems from the passing ones.

    The best sentence names a condition that holds for all failing problems and for no passing one,
    and other conditions that fit as well. If there is none, sentences name conditions that hold for
    all failing problems and for few passing ones. A sentence is left out if it could be chance:
    if the same number of randomly drawn problems would satisfy one of the tested conditions with a
    probability above `_CHANCE`.

    Parameters
    ----------
    outcomes : randomly drawn problems, each with whether the kernel is correct on it.
    tried : more problems, such as those of the search for the smallest failure. They are not random,
        so they do not count as evidence. But each sentence must hold for them too, and they make
        the limits of sizes tighter.
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
    """Count the drawn problems, the failing ones among them, and the conditions tested on them."""

    wrong: int
    drawn: int
    conditions: int

    def expected_by_chance(self, exceptions: int, conditions: float) -> float:
        """Return how many conditions would hold for all failing problems by chance.

        Such a condition may also hold for `exceptions` passing problems.
        """
        chosen = math.comb(self.wrong + exceptions, self.wrong)
        return conditions * chosen / math.comb(self.drawn, self.wrong)


def _facts_and_bounds(failing: Sequence[Problem], passing: Sequence[Problem]) -> pd.DataFrame:
    """Return a row of booleans for each problem, failing ones first: which conditions hold.

    The columns are the conditions as text.
    """
    problems = [*failing, *passing]
    sizes = pd.DataFrame([_numbers(problem) for problem in problems])[_SIZES]
    bad = sizes[: len(failing)]
    good = sizes[len(failing) :]
    # The range of each size over the failing problems, and the nearest passing values outside it.
    least = bad.min()
    most = bad.max()
    below = good.where(good < least).max()
    above = good.where(good > most).min()
    lower = {name: _describe_lower(name, low, below[name]) for name, low in least.items()}
    upper = {name: _describe_upper(name, high, above[name]) for name, high in most.items()}
    bounds = (sizes >= least).rename(columns=lower).join((sizes <= most).rename(columns=upper))
    return pd.DataFrame([_facts(problem) for problem in problems]).join(bounds)


def _conditions_by_exceptions(facts: pd.DataFrame, failing: int) -> dict[frozenset[int], list[str]]:
    """Return the conditions that hold for all failing problems.

    The keys are the passing problems for which they hold too, by index.
    """
    needed: dict[frozenset[int], list[str]] = {}
    for text, holds in facts.loc[:, facts[:failing].all()].items():
        exceptions = frozenset(i for i, held in enumerate(holds[failing:]) if held)
        needed.setdefault(exceptions, []).append(text)
    return needed


def _describe_exact(needed: Mapping[frozenset[int], list[str]], evidence: _Evidence) -> list[str]:
    """Return a sentence on the condition, or two, that hold for exactly the failing problems."""
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
        alternatives = f" (or {', or '.join(rest[:3])}{more}: these problems do not show which)"
    return [f"incorrect wherever {first}, and only there{alternatives}"]


def _describe_necessary(
    needed: Mapping[frozenset[int], list[str]], evidence: _Evidence, correct: int
) -> list[str]:
    """Return sentences on conditions that hold for all failing problems and for few passing ones.

    `correct` is the number of passing problems that were drawn; the first indices are theirs.
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
    """Describe a lower limit, with the largest passing value below it if there is a gap."""
    if low <= 2:
        return f"{name} > {low - 1}"
    known = "" if math.isnan(below) or below == low - 1 else f" (correct up to {below:.0f})"
    return f"{name} >= {low}{known}"


def _describe_upper(name: str, high: int, above: float) -> str:
    """Describe an upper limit, with the smallest passing value above it if there is a gap."""
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
    """Return all sizes of a problem by name."""
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
    """Return conditions on a problem and whether each holds, the most specific first."""
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
    # Kernels divide by a stride with shifts and masks.
    facts["a stride is not a power of two"] = any(each & (each - 1) for each in p.stride)
    facts["R is not 3 or S is not 3"] = (p.R, p.S) != (3, 3)
    for name in ("P", "Q", "K", "C", "P*Q", "N*P*Q", "C/groups*R*S"):
        for tile in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128):
            facts[f"{name} is not a multiple of {tile}"] = numbers[name] % tile != 0
            facts[f"{name} is a multiple of {tile}"] = numbers[name] % tile == 0
    return facts
