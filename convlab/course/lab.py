"""A lab: what a teacher asks, and how many points each part gives; read from two TOML files.

``NAME.toml`` is for everybody: the text, the problems, the pars, the question. ``NAME.key.toml``
next to it is for the teacher: the hidden problems and the answer. Without the key a lab can still be
graded, but not on these two.
"""

import hashlib
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import arguments
from ..core.errors import ProblemError
from ..core.problem.named import members, problem
from ..core.problem.problem import Problem
from .counts import QUANTITIES

FOLDER = Path(__file__).with_name("labs")
# The parts of a grade, and how many points each gives unless the lab says otherwise.
POINTS = {"correct": 40, "prediction": 20, "pars": 30, "question": 10}
_KEYS = {
    "title",
    "precision",
    "problems",
    "student",
    "counters",
    "predict",
    "question",
    "points",
    "par",
    "gpu",
}
_REQUIRED = {"title", "problems", "student", "counters", "predict"}
_KEY_KEYS = {"answer", "hidden"}
# The sizes that a range may draw.
_SIZES = ("N", "C", "H", "W", "K", "R", "S", "stride", "padding", "dilation", "groups")
# Draws from ranges that are invalid together are repeated; after so many, the ranges are wrong.
_MOST_DRAWS = 1000


@dataclass(frozen=True)
class Milestone:
    """A count that one of our kernels reached, and the share of a par's points that it gives.

    `kernel` computes it, and `value` is its count, which ``convlab grade --pars`` writes.
    """

    kernel: str
    share: float
    value: float | None


@dataclass(frozen=True)
class Par:
    """A quantity to reach, in milestones with a growing share of the points."""

    quantity: str
    points: float
    milestones: tuple[Milestone, ...]


@dataclass(frozen=True)
class Bounds:
    """Two times on a GPU in ms: all points at `fast` or below, none at `slow` or above."""

    fast: float | None
    slow: float | None
    fast_kernel: str
    slow_kernel: str


@dataclass(frozen=True)
class Lab:
    """A lab; see the page ``convlab/course/GRADING.md`` for its file.

    Attributes
    ----------
    name, title : the file's name without its ending, and a sentence.
    precision : the precision class that the kernel may have.
    problems : those that the kernel must compute correctly, hidden ones last.
    hidden : how many of them are hidden.
    student : ranges of the sizes that each name has for itself.
    counters : the problem of the pars.
    predict : the quantity that a student predicts for the own sizes.
    text, choices, answer : the question; `answer` is None without a key.
    points : of each part.
    pars : what is counted.
    bounds : the times of a GPU, or None.
    digest : of both files.
    path : the file.
    """

    name: str
    title: str
    precision: str
    problems: tuple[Problem, ...]
    hidden: int
    student: Mapping[str, Any]
    counters: Problem
    predict: str
    text: str
    choices: Mapping[str, str]
    answer: str | None
    points: Mapping[str, int]
    pars: tuple[Par, ...]
    bounds: Bounds | None
    digest: str
    path: Path = field(repr=False)

    def problem_of(self, name: str) -> Problem:
        """Return the own problem of a student's name; upper case and spaces do not matter."""
        same = " ".join(name.casefold().split())
        digest = hashlib.sha256(f"{self.name}\n{same}".encode()).digest()
        return _draw(self.student, random.Random(digest), f"{self.path.name}: student")


def names() -> list[str]:
    """Return the names of the labs that convlab has."""
    paths = sorted(FOLDER.glob("*.toml"))
    return [path.stem for path in paths if not path.stem.endswith(".key")]


def find_lab(word: str | Path) -> Lab:
    """Return the lab with a name, or in a file.

    Raises
    ------
    ProblemError
        There is no such lab, or its file is invalid; the message names the entry.
    """
    location = arguments.path(word, "the lab")
    if location.suffix != ".toml":
        location = FOLDER / f"{arguments.choice(str(word), 'lab', names())}.toml"
    return _read(location)


def _read(path: Path) -> Lab:
    """Return the lab in a file, with its key if there is one next to it."""
    text = arguments.readable(path, "the lab")
    table = _parsed(text, path)
    _require_keys(table, _KEYS, path, _REQUIRED)
    key_path = path.with_suffix(".key.toml")
    key_text = arguments.readable(key_path, "the lab's key") if key_path.is_file() else ""
    key = _parsed(key_text, key_path)
    _require_keys(key, _KEY_KEYS, key_path)
    where = path.name
    known = list(members(_of_type(table["problems"], list, f"{where}: problems"))[0])
    hidden = _hidden_problems(key.get("hidden"), key_path.name)
    question = _of_type(table.get("question", {}), dict, f"{where}: question")
    choices = _of_type(question.get("choices", {}), dict, f"{where}: question.choices")
    answer = key.get("answer")
    if answer is not None:
        arguments.choice(answer, f"answer in {key_path.name}", choices)
    points = POINTS | _of_type(table.get("points", {}), dict, f"{where}: points")
    _require_keys(points, set(POINTS), path)
    for part, number in points.items():
        arguments.whole(number, f"{where}: points.{part}", 0)
    lab = Lab(
        name=path.stem,
        title=arguments.text(table["title"], f"{where}: title"),
        precision=arguments.choice(
            table.get("precision", "fp32"), f"precision in {where}", ("fp32", "tf32")
        ),
        problems=(*known, *hidden),
        hidden=len(hidden),
        student=_of_type(table["student"], dict, f"{where}: student"),
        counters=problem(table["counters"]),
        predict=arguments.choice(table["predict"], f"predict in {where}", QUANTITIES),
        text=arguments.text(question.get("text", ""), f"{where}: question.text"),
        choices=choices,
        answer=answer,
        points=points,
        pars=tuple(_par(entry, where) for entry in table.get("par", ())),
        bounds=_bounds(table.get("gpu"), where),
        digest=hashlib.sha256(f"{text}\0{key_text}".encode()).hexdigest(),
        path=path,
    )
    # Ranges without a valid problem are reported here, not for the first student.
    lab.problem_of("a student")
    total = sum(par.points for par in lab.pars)
    if lab.pars and total != points["pars"]:
        raise ProblemError(
            f"{where}: the pars have {total:g} points together, and points.pars is "
            f"{points['pars']}: make them equal"
        )
    return lab


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{path.name} is no valid TOML: {error}; correct that line") from None


def _require_keys(
    table: Mapping[str, Any], known: set[str], path: Path, required: set[str] = frozenset()
) -> None:
    """Raise ProblemError for an unknown or a missing entry."""
    for key in table:
        if key not in known:
            raise ProblemError(
                f"{path.name}: unknown entry {arguments.shown(key)}; known are "
                f"{', '.join(sorted(known))}{arguments.hint(key, known)}"
            )
    if missing := sorted(required - set(table)):
        raise ProblemError(f"{path.name} lacks {', '.join(missing)}; add the entries")


def _of_type(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        words = {dict: "a table", list: "a list"}
        raise ProblemError(f"{place} must be {words[kind]}, not {arguments.shown(value)}")
    return value


def _hidden_problems(table: Any, where: str) -> list[Problem]:
    """Return the hidden problems: `count` draws from the ranges, by the seed."""
    if table is None:
        return []
    ranges = dict(_of_type(table, dict, f"{where}: hidden"))
    count = arguments.whole(ranges.pop("count", 4), f"{where}: hidden.count", 1, most=100)
    seed = arguments.whole(ranges.pop("seed", 0), f"{where}: hidden.seed", 0)
    numbers = random.Random(seed)
    return [_draw(ranges, numbers, f"{where}: hidden") for _ in range(count)]


def _draw(ranges: Mapping[str, Any], numbers: random.Random, where: str) -> Problem:
    """Return a problem with random sizes: a range is a number, [low, high] or [low, high, step]."""
    for name in ranges:
        if name not in _SIZES and name not in ("bias", "relu"):
            raise ProblemError(
                f"{where}: unknown size {arguments.shown(name)}; known are {', '.join(_SIZES)}, bias, "
                "relu"
            )
    for _ in range(_MOST_DRAWS):
        sizes = {name: _drawn(entry, numbers, f"{where}.{name}") for name, entry in ranges.items()}
        try:
            return Problem(**sizes)
        except (ProblemError, TypeError) as error:
            reason = error
    raise ProblemError(f"{where}: no valid problem in these ranges: {reason}; change the ranges")


def _drawn(entry: Any, numbers: random.Random, place: str) -> int | bool:
    if isinstance(entry, (bool, int)):
        return entry
    is_range = isinstance(entry, list) and len(entry) in (2, 3)
    if not is_range or not all(type(bound) is int for bound in entry):
        raise ProblemError(
            f"{place} is {arguments.shown(entry)}; write a number, [low, high] or [low, high, step]"
        )
    low, high, *step = entry
    if high < low or (step and step[0] < 1):
        raise ProblemError(f"{place} is an empty range: {arguments.shown(entry)}")
    return numbers.randrange(low, high + 1, *step)


def _par(entry: Any, where: str) -> Par:
    _of_type(entry, dict, f"{where}: par")
    quantity = arguments.choice(entry.get("quantity"), f"par.quantity in {where}", QUANTITIES)
    place = f"{where}: par {quantity}"
    milestones = []
    for each in _of_type(entry.get("milestones", []), list, f"{place}: milestones"):
        _of_type(each, dict, f"{place}: a milestone")
        value = each.get("value")
        milestones.append(
            Milestone(
                arguments.text(each.get("kernel"), f"{place}: kernel"),
                arguments.real(each.get("share"), f"{place}: share", 0, 1),
                value if value is None else arguments.real(value, f"{place}: value", -1),
            )
        )
    shares = [milestone.share for milestone in milestones]
    if not shares or shares != sorted(shares):
        raise ProblemError(f"{place}: give milestones in the order of growing shares")
    points = arguments.real(entry.get("points"), f"{place}: points", 0)
    return Par(quantity, points, tuple(milestones))


def _bounds(table: Any, where: str) -> Bounds | None:
    if table is None:
        return None
    _of_type(table, dict, f"{where}: gpu")
    kernels = []
    times = []
    for side in ("fast", "slow"):
        kernels.append(arguments.text(table.get(f"{side}_kernel"), f"{where}: gpu.{side}_kernel"))
        time = table.get(f"{side}_ms")
        times.append(time if time is None else arguments.real(time, f"{where}: gpu.{side}_ms", 0))
    if None not in times and times[0] >= times[1]:
        raise ProblemError(f"{where}: gpu.fast_ms must be below gpu.slow_ms")
    return Bounds(*times, *kernels)
