"""Find the values that a kernel declares for its tunables, for trials with each of them.

The contract has a form for tunables: a ``static_assert`` names the values that are allowed. They are read from
its condition (``kTile == 8 || kTile == 16``, ``kRows >= 1 && kRows <= 32``), from its text ("TILE: 8, 16 or
32"), and from the comment next to the default. Of a range, both ends are tried. A value that does not build is
none that the kernel allows. A tunable without a declared value is tried with its default only.
"""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product, zip_longest

from ..core.correctness.setting import Setting
from ..core.errors import BuildError, ProblemError
from ..core.kernel.runnable import Runnable
from ..core.kernel.tunables import tunables
from ..core.problem.computation import WEIGHT_GRADIENT
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem

# At most so many values are tried, because each is a build.
_MOST = 8
_AT_ONCE = 2
# Values beyond this are no sizes of a tile or a block.
_LARGEST = 4096
# Small problems of several tiles: a kernel runs the first that it supports of each line.
_PROBLEMS = (
    (
        "N2 C3 H35 W35 K17 R3 S3 bias",
        "N2 C3 H35 W35 K17 R3 S3",
        "N2 C16 H35 W35 K16 R3 S3 p1",
        "N2 C17 H35 W35 K17 R3 S3 p1 g17",
        "N1 C16 H35 W35 K24 R1 S1",
    ),
    (
        "N2 C6 H11 W12 K10 R3 S5 s2x1 p1x3 d2x3 g2 bias",
        "N2 C6 H11 W12 K8 R3 S3 p1 g2",
        "N2 C40 H6 W7 K72 R3 S3 p1",
        "N2 C40 H6 W8 K72 R1 S1",
    ),
    ("N1 C40 H10 W9 K72 R3 S3 p1", "N1 C40 H10 W9 K72 R1 S1", "N1 C66 H10 W70 K66 R3 S3 p1 g66"),
)
# A kernel may have a block for each weight, so of a weight gradient the last one has fewer of them.
_FEW_WEIGHTS = "N1 C40 H10 W9 K72 R1 S3 p0x1"
_ASSERT = re.compile(r"\bstatic_assert\s*\(((?:[^;\"]|\"[^\"]*\")*)\)\s*;")
_TEXT = re.compile(r"\"([^\"]*)\"")
_NUMBER = r"(?<![\w.])(\d{1,4})(?![\w.])"
# "8, 16 or 32"; a list that goes on ("32, 64, ... 1024") has its ends.
_LIST = re.compile(r"(?<![\w.*])\d{1,4}(?:\s*,\s*(?:\.\.\.\s*)?(?:or |and )?\d{1,4}|\s+or\s+\d{1,4})+(?![\w.])")
_RANGE = re.compile(rf"{_NUMBER}\s+to\s+{_NUMBER}")


def tunable_trials(kernel: Runnable) -> Iterator[tuple[Problem, Setting]]:
    """Yield small problems with each declared value of a tunable, the others at their defaults.

    A kernel whose tunables the caller has set is tried as it is.
    """
    source = kernel.source
    if not source or kernel.defines:
        return
    problems = []
    lines = _PROBLEMS
    if kernel.computes == WEIGHT_GRADIENT.name:
        lines = (*_PROBLEMS[:-1], (_FEW_WEIGHTS, *_PROBLEMS[-1]))
    for specs in lines:
        asked = (kernel.asked(named_problem(spec)) for spec in specs)
        problems += [each for each in asked if not kernel.unsupported(each)][:1]
    if not problems:
        return
    choices = [[(name, value) for value in values] for name, values in declared(source).items()]
    # The first of each tunable, then the second of each, and so on.
    values = [each for row in zip_longest(*choices) for each in row if each is not None][:_MOST]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        builds = pool.map(lambda each: _builds(kernel, *each), values)
        built = [each for each, is_built in zip(values, builds, strict=True) if is_built]
    settings = [with_tunables({name: value}) for name, value in built]
    yield from product(dict.fromkeys(problems), settings)


def with_tunables(values: dict[str, int]) -> Setting:
    """Return the setting with these values of tunables."""
    words = ", ".join(f"{name}={value}" for name, value in values.items())
    return Setting("tunables", f"with {words}", tunables=tuple(values.items()))


def _builds(kernel: Runnable, name: str, value: int) -> bool:
    """Return whether a kernel builds with a value of a tunable."""
    try:
        kernel.tuned({name: value}).build()
    except (BuildError, ProblemError):
        return False
    return True


def declared(source: str) -> dict[str, list[int]]:
    """Return the values that a source declares for each tunable, without the default."""
    found = {}
    for name, default in tunables(source).items():
        if not re.fullmatch(r"\d+", default):
            continue
        values = [*_in_asserts(source, name), *_in_comment(source, name)]
        values = [each for each in dict.fromkeys(values) if 0 < each <= _LARGEST]
        if values:
            found[name] = [each for each in values if each != int(default)]
    return found


def _in_asserts(source: str, name: str) -> Iterator[int]:
    """Yield the values of a tunable in the static_asserts on it alone."""
    bound = re.findall(rf"\b(\w+)\s*=\s*{name}\s*[,;]", source)
    words = rf"\b(?:{'|'.join((name, *bound))})\b"
    for text in _ASSERT.findall(source):
        condition = _TEXT.sub("", text)
        if not re.search(words, text):
            continue
        yield from _numbers(rf"{words}\s*==\s*{_NUMBER}", condition)
        most = [*_numbers(rf"{words}\s*<=\s*{_NUMBER}", condition)]
        most += [each - 1 for each in _numbers(rf"{words}\s*<\s*{_NUMBER}", condition)]
        least = [*_numbers(rf"{words}\s*>=\s*{_NUMBER}", condition)]
        least += [each + 1 for each in _numbers(rf"{words}\s*>\s*{_NUMBER}", condition)]
        yield from (*least, *most)
        message = " ".join(_TEXT.findall(text))
        if re.match(rf"{name}\s*:", message):
            yield from _listed(message)


def _in_comment(source: str, name: str) -> Iterator[int]:
    """Yield the values in the comment next to a tunable's default."""
    line = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+\S+[ \t]*//([^\n]*)", source, re.M)
    if line:
        yield from _listed(line[1])


def _listed(text: str) -> Iterator[int]:
    """Yield the numbers of lists and the ends of ranges in a text."""
    for each in _LIST.findall(text):
        yield from map(int, re.findall(r"\d+", each))
    for low, high in _RANGE.findall(text):
        yield from (int(low), int(high))


def _numbers(pattern: str, text: str) -> Iterable[int]:
    return map(int, re.findall(pattern, text))
