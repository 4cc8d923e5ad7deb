"""Read the conditions on a problem's dimensions in a source, and give problems on both sides of each.

A condition such as ``conv.K < 2000`` or ``conv.Q % 4 == 0`` is where a kernel takes another path. The
problems of the default check may all be on one side of it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ..core.errors import ProblemError
from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem

# At most so many problems come from a source, each with at most so many multiply-adds and elements.
MOST = 24
_MAX_MACS = 3_000_000
_MAX_ELEMENTS = 1_000_000
# These headers belong to convlab: their conditions are no path of a kernel.
_OURS = re.compile(r"convlab\w*\.cuh")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FIELDS = "N|C|H|W|K|R|S|P|Q|groups|stride_h|stride_w|pad_h|pad_w|dilation_h|dilation_w"
# A field of the problem (conv.K, problem->K, or a local copy K), perhaps modulo a number, compared
# with a number or with a constant of the source.
_CONDITION = re.compile(
    rf"(?:\b\w+(?:\.|->)({_FIELDS})|(?<![\w.>])([NCHWKRSPQ]))\b\s*(?:%\s*(\w+)\s*)?"
    r"(<=|>=|==|!=|<(?!<)|>(?!>))\s*(\w+)\b(?!\s*[*/+.(-])"
)
_CONSTANT = re.compile(
    r"(?:\bconstexpr\s+(?:int|unsigned|size_t|int64_t)\s+|#\s*define\s+|,\s*)(\w+)\s*=?\s*(\d+)\b"
)
# Small problems, one of which a kernel may support with another value of one field.
_BASES = (
    "N1 C2 H6 W7 K3 R3 S3 p1",
    "N1 C2 H6 W7 K3 R1 S1",
    "N1 C8 H6 W8 K8 R3 S3 p1",
    "N1 C8 H6 W8 K8 R1 S1",
    "N1 C6 H6 W7 K6 R3 S3 p1 g6",
    "N1 C4 H6 W7 K6 R3 S3 p1 g2",
    "N1 C3 H21 W23 K8 R7 S7 s2 p3",
)


class Condition(NamedTuple):
    """A comparison in a source: a field of the problem, the values on both sides, and its text."""

    field: str
    values: tuple[int, ...]
    text: str


def conditions(texts: dict[str, str]) -> list[Condition]:
    """Return the conditions on a problem's dimensions in a kernel's texts, by file name."""
    found: dict[tuple[str, tuple[int, ...]], Condition] = {}
    for name, code in code_of(texts).items():
        constants = {key: int(value) for key, value in _CONSTANT.findall(code)}
        for match in _CONDITION.finditer(code):
            member, local, modulus, _, bound = match.groups()
            values = _sides(_number(modulus, constants), _number(bound, constants))
            if modulus and _number(modulus, constants) is None or not values:
                continue
            line = code[: match.start()].count("\n") + 1
            condition = " ".join(match[0].split())
            field = member or local
            condition = Condition(field, values, f"{condition}, {name}:{line}")
            found.setdefault((field, values), condition)
    return list(found.values())


def code_of(texts: dict[str, str]) -> dict[str, str]:
    """Return a kernel's own texts, by file name, without comments; each line keeps its number."""
    return {
        name: _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
        for name, text in texts.items()
        if not _OURS.fullmatch(name.rpartition("/")[2])
    }


def _number(word: str | None, constants: dict[str, int]) -> int | None:
    """Return the value of a number or of a constant of the source; None for any other word."""
    if word is None:
        return None
    return int(word) if word.isdecimal() else constants.get(word)


def _sides(modulus: int | None, bound: int | None) -> tuple[int, ...]:
    """Return values of a field on both sides of a condition."""
    if modulus is not None:
        # 3 is enough for a few tiles, and the values next to it have all remainders that matter.
        return (3 * modulus, 3 * modulus + 1) if modulus > 1 else ()
    if bound is None or bound < 1:
        return ()
    return (bound - 1, bound, bound + 1) if bound > 1 else (1, 2)


def source_problems(kernel: Runnable) -> Iterator[Problem]:
    """Yield at most `MOST` problems on both sides of the conditions in a kernel's source.

    A problem's name has the value and the condition.
    """
    seen: set[Problem] = set()
    for condition in conditions(dict(kernel.texts)):
        for value in condition.values:
            problem = _with_value(kernel, condition.field, value)
            if problem is None or problem in seen:
                continue
            seen.add(problem)
            yield replace(problem, name=f"{condition.field} = {value} ({condition.text})")
            if len(seen) == MOST:
                return


def _with_value(kernel: Runnable, field: str, value: int) -> Problem | None:
    """Return a small problem with a value of one field that the kernel supports, or None."""
    for spec in _BASES:
        base = named_problem(spec)
        try:
            problem = replace(base, **_changes(base, field, value))
        except ProblemError:
            continue
        if problem.variables()[field] != value or problem.macs > _MAX_MACS:
            continue
        sizes = (problem.x_shape, problem.w_shape, problem.y_shape)
        if max(_product(shape) for shape in sizes) > _MAX_ELEMENTS:
            continue
        if not kernel.unsupported(problem):
            return problem
    return None


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _changes(base: Problem, field: str, value: int) -> dict[str, object]:
    """Return the fields of `replace` that give a problem this value of a field."""
    if field in "CK" and base.groups == base.C > 1:
        # A depthwise problem stays one.
        return {"C": value, "K": value, "groups": value}
    if field == "groups":
        return {"C": 2 * value, "K": 2 * value, "groups": value}
    if field in "PQ":
        axis = "PQ".index(field)
        taps = (base.dilation[axis]) * ((base.R, base.S)[axis] - 1) + 1
        size = (value - 1) * base.stride[axis] + taps - 2 * base.padding[axis]
        return {"HW"[axis]: size}
    name, _, side = field.partition("_")
    if side:
        name = {"pad": "padding"}.get(name, name)
        pair = list(getattr(base, name))
        pair["hw".index(side)] = value
        return {name: tuple(pair)}
    if field in "RS":
        # The image is large enough for the filter.
        axis = "RS".index(field)
        size = max((base.H, base.W)[axis], value + 3)
        return {field: value, "HW"[axis]: size}
    return {field: value}
