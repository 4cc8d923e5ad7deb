"""Problems by name: the sets of ``problems.txt``, and the text that spells a problem out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from ..arguments import choice, hint, several, shown, text
from ..errors import ProblemError
from .problem import DIMENSIONS, EPILOGUE, Problem

PROBLEM_SETS = ("headline", "kernelbench", "resnet50", "awkward", "limits")
_SPEC_KEYS = {"s": "stride", "p": "padding", "d": "dilation", "g": "groups"}


def problem(name_or_spec: str | Problem) -> Problem:
    """Return a named problem, or the one that a specification spells out.

    Parameters
    ----------
    name_or_spec
        A name out of the sets ("square", "resnet50.layer2.0.conv2"; "wide bias relu" adds both),
        or dimensions as in
        "N=1,C=3,H=32,W=32,K=8,R=3,S=3,stride=2,padding=1x2,bias=1,relu=1"; the form that
        `str(problem)` prints, "N1 C3 H32 ... s2 p1x2 d1 g1 bias relu", is read too.

    Raises
    ------
    ProblemError
        No such name (the message says which is nearest), or a malformed specification.
    """
    if isinstance(name_or_spec, Problem):
        return name_or_spec
    wanted = text(name_or_spec, "problem")
    named = {problem.name: problem for members in _sets().values() for problem in members}
    name, *added = wanted.split() or [wanted]
    if name in named and all(word in EPILOGUE for word in added):
        return _with_epilogue(named[name], added)
    if "=" in wanted or re.match(r"\s*[Nn]\d", wanted):
        return _parse(wanted)
    # The name of a set is known, but it is no problem: suggest problems only.
    suggestions = hint(wanted, named if wanted in PROBLEM_SETS else [*named, *PROBLEM_SETS])
    headline = [problem.name for problem in problems("headline")]
    all_names = f"; there are {', '.join([*headline, *PROBLEM_SETS])}."
    raise ProblemError(
        f"no problem is named {shown(wanted)}{suggestions or all_names} "
        "Or give the dimensions: N=1,C=3,H=32,W=32,K=8,R=3,S=3"
    )


def _with_epilogue(problem: Problem, words: list[str]) -> Problem:
    """Return the problem with "bias" and "relu" as they are added to its name."""
    if not words:
        return problem
    name = " ".join([problem.name, *words])
    return replace(problem, name=name, **dict.fromkeys(words, True))


def problems(set_name: str) -> list[Problem]:
    """Return a named set of problems; the names are in `PROBLEM_SETS`.

    Raises
    ------
    ProblemError
        There is no set of that name.
    """
    return list(_sets()[choice(set_name, "set of problems", PROBLEM_SETS)])


def members(asked: Problem | str | Iterable[Problem | str]) -> tuple[list[Problem], bool]:
    """Return the problems that are meant, and whether they are a set.

    A set is an iterable or the name of one. The name may end with `bias` and `relu`, as a
    problem's may.
    """
    if isinstance(asked, str):
        name, *added = asked.split() or [""]
        if name in PROBLEM_SETS:
            return [problem(" ".join([member.name, *added])) for member in problems(name)], True
    if isinstance(asked, (str, Problem)) or not isinstance(asked, Iterable):
        return [problem(asked)], False
    return [problem(member) for member in several(asked, "problem")], True


def _parse(spec: str, name: str = "") -> Problem:
    """Return the problem that "N=1,C=3,..." or "N1 C3 ..." spells."""
    known = [entry.name for entry in fields(Problem) if entry.name != "name"]
    values: dict[str, int | tuple[int, ...]] = {}
    for token in re.split(r"[,\s]+", spec):
        if not token:
            continue
        match = re.fullmatch(r"([A-Za-z]+)(?:=?(-?\d{1,18})(?:x(-?\d{1,18}))?)?", token)
        key, *digits = filter(None, match.groups()) if match else [token]
        key = _SPEC_KEYS.get(key, key)
        if key not in known or not (digits or key in EPILOGUE):
            raise ProblemError(
                f"cannot read {shown(token)} in {shown(spec)}; write key=number with keys "
                f"{', '.join(known)}; stride, padding and dilation also as 2x3{hint(key, known)}"
            )
        if key in values:
            raise ProblemError(f"{key} is given twice in {shown(spec)}")
        numbers = tuple(int(number) for number in digits) or (1,)
        values[key] = numbers if len(numbers) > 1 else numbers[0]
    missing = [key for key in DIMENSIONS if key not in values]
    flags = {key: values.pop(key, 0) for key in EPILOGUE}
    for key, value in flags.items():
        if value not in (0, 1):
            raise ProblemError(f"{key} is {value} in {shown(spec)}; it must be 0 or 1")
    if missing:
        raise ProblemError(
            f"{shown(spec)} lacks {', '.join(missing)}; all of N,C,H,W,K,R,S are needed"
        )
    bias, relu = map(bool, flags.values())
    return Problem(**values, bias=bias, relu=relu, name=name)  # type: ignore[arg-type]


@cache
def _sets() -> dict[str, tuple[Problem, ...]]:
    """Return the sets of ``problems.txt``."""
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
