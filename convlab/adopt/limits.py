"""Suggest a ``supports:`` line from the cases that an answer got right and wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MULTIPLES = (64, 32, 16, 8, 4, 2)


def supports(tried: Sequence[Any]) -> str:
    """Return conditions under which all cases were correct, as a header's ``supports:`` has them.

    Each case varies one size or argument. A name of which some value failed gets a condition.

    Parameters
    ----------
    tried : the cases (`adoption_report.Tried`).

    Returns
    -------
    str
        "everything", or conditions with commas: "stride == 1, height % 16 == 0".
    """
    good: dict[str, list[Any]] = {}
    bad: dict[str, list[Any]] = {}
    for case in tried:
        if case.result == "not simulated":
            continue
        for name, value in case.knobs.items():
            (good if case.result == "correct" else bad).setdefault(name, []).append(value)
    conditions = [_condition(name, good.get(name, []), values) for name, values in bad.items()]
    return ", ".join(conditions) or "everything"


def _condition(name: str, good: Sequence[Any], bad: Sequence[Any]) -> str:
    if name == "contiguous":
        return "contiguous inputs"
    if name == "numbers":
        return f"inputs that are not {' or '.join(bad)}"
    if all(isinstance(value, bool) for value in bad):
        return f"{name} == {not bad[0]}"
    if not all(isinstance(value, (int, float)) for value in (*good, *bad)):
        return f"{name} as in the task"
    if not good:
        return f"{name} as in the task"
    if all(isinstance(value, int) for value in (*good, *bad)):
        for number in _MULTIPLES:
            if all(value % number == 0 for value in good) and all(value % number for value in bad):
                return f"{name} % {number} == 0"
    if max(good) < min(bad):
        return f"{name} <= {max(good)}"
    if min(good) > max(bad):
        return f"{name} >= {min(good)}"
    return f"{name} not in ({', '.join(map(str, sorted(bad)))})"
