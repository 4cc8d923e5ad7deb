"""Problems by name: the sets in ``problems.txt``, and the specification of a problem as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from ..arguments import choice, hint, several, shown, text
from ..errors import ProblemError
from .computation import COMPUTATIONS, FORWARD
from .problem import DIMENSIONS, EPILOGUE, Problem

PROBLEM_SETS = (
    "headline",
    "kernelbench",
    "kernelbench_transposed",
    "kernelbench_1d",
    "backward",
    "resnet50",
    "ece408",
    "gpumode_conv2d",
    "awkward",
    "limits",
)
_SPEC_KEYS = {"s": "stride", "p": "padding", "d": "dilation", "g": "groups"}


def problem(name_or_spec: str | Problem) -> Problem:
    """Return the problem with a name, or with a specification as text.

    Parameters
    ----------
    name_or_spec : str or Problem
        One of three forms; a Problem is returned as it is.

        - A name: "square", "resnet50.layer2.0.conv2". "wide bias relu" adds a bias and a ReLU.
        - The dimensions: "N=1,C=3,H=32,W=32,K=8,R=3,S=3,stride=2,padding=1x2,bias=1,relu=1".
        - The output of `str(problem)`: "N1 C3 H32 W32 K8 R3 S3 s2 p1x2 d1 g1 bias relu".
          "data_gradient" or "weight_gradient" at the end asks for a gradient.

    Returns
    -------
    Problem
        It has a name if you gave one.

    Raises
    ------
    ProblemError
        There is no such name (the message suggests similar ones), or the specification is invalid.

    Examples
    --------
    >>> print(convlab.problem("square"))
    N16 C16 H1024 W1024 K128 R3 S3 s1 p0 d1 g1
    >>> convlab.problem("N=1,C=3,H=32,W=32,K=8,R=3,S=3,padding=1").y_shape
    (1, 8, 32, 32)
    """
    if isinstance(name_or_spec, Problem):
        return name_or_spec
    spec = text(name_or_spec, "problem")
    named = {problem.name: problem for members in _sets().values() for problem in members}
    name, *added = spec.split() or [spec]
    if name in named and all(word in EPILOGUE for word in added):
        return _with_epilogue(named[name], added)
    if "=" in spec or re.match(r"\s*[Nn]\d", spec):
        return _parse(spec)
    # The text is the name of a set, not of a problem: suggest only problems.
    suggestions = hint(spec, named if spec in PROBLEM_SETS else [*named, *PROBLEM_SETS])
    headline = [problem.name for problem in problems("headline")]
    all_names = f"; there are {', '.join([*headline, *PROBLEM_SETS])}."
    raise ProblemError(
        f"no problem is named {shown(spec)}{suggestions or all_names} "
        "You can also give dimensions: N=1,C=3,H=32,W=32,K=8,R=3,S=3"
    )


def _with_epilogue(problem: Problem, words: list[str]) -> Problem:
    """Return the problem with the steps "bias" and "relu" that follow its name."""
    if not words:
        return problem
    name = " ".join([problem.name, *words])
    return replace(problem, name=name, **dict.fromkeys(words, True))


def problems(set_name: str) -> list[Problem]:
    """Return the problems of a named set.

    Parameters
    ----------
    set_name : str
        One of "headline" (3 large problems), "kernelbench", "kernelbench_transposed" and
        "kernelbench_1d" (more of that suite), "backward" (the gradients of the headline problems),
        "resnet50", "ece408" and "gpumode_conv2d" (two well-known assignments), "awkward" (small
        problems that reveal mistakes) and "limits" (problems with one very large size).

    Returns
    -------
    list of Problem
        In the order of the file ``problems.txt``.

    Raises
    ------
    ProblemError
        There is no set with this name.

    Examples
    --------
    >>> [conv.name for conv in convlab.problems("headline")]
    ['square', 'rect', 'wide']
    """
    return list(_sets()[choice(set_name, "set of problems", PROBLEM_SETS)])


def members(argument: Problem | str | Iterable[Problem | str]) -> tuple[list[Problem], bool]:
    """Return the problems of an argument, and whether the argument is a set.

    A set is an iterable, or the name of a set. "bias" and "relu" may follow the name, as they may
    follow a problem's.
    """
    if isinstance(argument, str):
        name, *added = argument.split() or [""]
        if name in PROBLEM_SETS:
            return [problem(" ".join([member.name, *added])) for member in problems(name)], True
    if isinstance(argument, (str, Problem)) or not isinstance(argument, Iterable):
        return [problem(argument)], False
    found = [problem(member) for member in several(argument, "problem")]
    if not found:
        raise ProblemError("the set of problems is empty: give at least one problem")
    return found, True


def _parse(spec: str, name: str = "") -> Problem:
    """Return the problem of a specification, "N=1,C=3,..." or "N1 C3 ..."."""
    known = [entry.name for entry in fields(Problem) if entry.name not in ("name", "computes")]
    values: dict[str, int | tuple[int, ...]] = {}
    computes = FORWARD.name
    for token in re.split(r"[,\s]+", spec):
        if not token:
            continue
        match = re.fullmatch(r"([A-Za-z]+)(?:=?(-?\d{1,18})(?:x(-?\d{1,18}))?)?", token)
        if token.replace("_", " ") in COMPUTATIONS:
            computes = token.replace("_", " ")
            continue
        key, *digits = filter(None, match.groups()) if match else [token]
        key = _SPEC_KEYS.get(key, key)
        if key not in known or not (digits or key in EPILOGUE):
            raise ProblemError(
                f"cannot read {shown(token)} in {shown(spec)}; write key=number with keys "
                f"{', '.join(known)}; stride, padding and dilation may be pairs, 2x3"
                f"{hint(key, known)}"
            )
        if key in values:
            raise ProblemError(f"{key} is given twice in {shown(spec)}; remove one")
        numbers = tuple(int(number) for number in digits) or (1,)
        values[key] = numbers if len(numbers) > 1 else numbers[0]
    missing = [key for key in DIMENSIONS if key not in values]
    flags = {key: values.pop(key, 0) for key in EPILOGUE}
    for key, value in flags.items():
        if value not in (0, 1):
            raise ProblemError(f"{key} is {value} in {shown(spec)}; it must be 0 or 1")
    if missing:
        raise ProblemError(
            f"{shown(spec)} lacks {', '.join(missing)}; give all of N, C, H, W, K, R and S"
        )
    bias, relu = map(bool, flags.values())
    return Problem(**values, bias=bias, relu=relu, name=name, computes=computes)  # type: ignore[arg-type]


@cache
def _sets() -> dict[str, tuple[Problem, ...]]:
    """Return the sets in ``problems.txt``, by name."""
    sets: dict[str, list[Problem]] = {}
    set_name = ""
    for line in Path(__file__).with_name("problems.txt").read_text().splitlines():
        entry = line.partition("#")[0].strip()
        if entry.startswith("["):
            set_name = entry.strip("[]")
            sets[set_name] = []
        elif entry:
            name, _, spec = entry.partition(" ")
            full_name = name if set_name == "headline" else f"{set_name}.{name}"
            sets[set_name].append(_parse(spec, full_name))
    return {name: tuple(members) for name, members in sets.items()}
