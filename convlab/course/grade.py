"""Grade a student's file, or those of a class: `convlab.grade`; and verify a receipt of one."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core import arguments, rooms
from ..core.errors import LaunchError, ProblemError
from ..core.machine import child
from ..core.machine.progress import bar
from .grade_result import Grade, Grades, Verified
from .grading import grade_of
from .lab import Lab, find_lab, names
from .submission import Submission, parse, read_submission

# The time limit of one file in seconds: compiling, checking and counting.
FILE_SECONDS = 600.0
_SCRIPT = Path(__file__).with_name("grading_process.py")
_grader = child.Child(_SCRIPT, options=["-P"])
_ENGINES = ("sim", "cuda")


def grade(
    file: str | Path | Sequence[str | Path],
    lab: str | Path | None = None,
    *,
    engine: str = "sim",
) -> Grade | Grades:
    """Grade a student's file for a lab: correct, predicted, counted, asked.

    The file is compiled and run on the simulator, in a process without files, network and other
    processes. It can run for at most 20 s in a launch, and 600 s in all. The same file gets the same
    grade, byte for byte, on every machine with the same versions.

    Parameters
    ----------
    file : a ``.cu`` file with a block of answers (see ``convlab/course/GRADING.md``), or several.
    lab : the name of a lab, or a lab's ``.toml`` file. Without it, the file's own line ``lab: NAME``
        says which. A teacher names the lab, so that a student cannot choose an easier one.
    engine : "sim"; or "cuda": the points for counts become points for the time on this GPU. The
        file is then also run there, where nothing confines it, if it is correct on the simulator.

    Returns
    -------
    Grade
        For one file: points, and the parts with their reasons.
    Grades
        For several files: one row for each. A file that cannot be graded has 0 points, and why.

    Raises
    ------
    ProblemError
        There is no such file or lab, or one of them is invalid.
    LaunchError
        The room ``sim`` is not installed.

    Examples
    --------
    >>> grade = convlab.grade("lab.cu", "direct")
    >>> grade.points, grade.of
    (87.5, 100)
    """
    arguments.choice(engine, "engine", _ENGINES)
    _require_simulator()
    if isinstance(file, (str, os.PathLike)):
        submission = read_submission(file)
        return _graded(submission, _lab_of(submission, lab), engine)
    given = None if lab is None else find_lab(lab)
    paths = [arguments.path(path, "the file") for path in arguments.several(file, "the files")]
    read = [_read(path, given) for path in paths]
    # This is known before a file is graded, and a class takes minutes.
    labs = [lab for _, lab, _ in read if lab]
    _require_one_lab(labs)
    # A file without answers counts like the others of its class.
    of_class = given or next(iter(labs), None)
    grades = []
    with bar(total=len(read), leave=False) as progress:
        for name, (submission, own_lab, reason) in zip(_distinct(paths), read, strict=True):
            progress.set_description_str(f"grading {name}")
            if submission and own_lab:
                result = _graded_or_not(submission, own_lab, engine)
                result = Grade({**result.facts, "file": name}, result.source)
            else:
                result = Grade(_ungraded(name, reason, of_class), "")
            grades.append(result)
            progress.update()
    return Grades(tuple(grades))


def _distinct(paths: Sequence[Path]) -> list[str]:
    """Return the names of files, with their folders if two files have one name."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.absolute().parent.name}/{path.name}" for path in paths]
    return names


def _read(path: Path, given: Lab | None) -> tuple[Submission | None, Lab | None, str]:
    """Return a file's submission and its lab, and why it cannot be graded, or ""."""
    try:
        submission = read_submission(path)
        return submission, given or _lab_of(submission, None), ""
    except ProblemError as error:
        return None, None, str(error)


def _graded_or_not(submission: Submission, lab: Lab, engine: str) -> Grade:
    """Return the grade of a file of a class; a file that the grader refuses has 0 points, and why."""
    try:
        return _graded(submission, lab, engine)
    except ProblemError as error:
        name = submission.path.name
        return Grade(_ungraded(name, str(error), lab, submission), submission.source)


def verify(receipt: str | Path, lab: str | Path | None = None) -> Verified:
    """Grade the text in a receipt again, and compare the two grades.

    Parameters
    ----------
    receipt : a file that ``grade(...).save(path)`` or ``convlab grade --save`` wrote.
    lab : as in `grade`; without it, the receipt's.

    Raises
    ------
    ProblemError
        The file is no receipt of a grade.
    LaunchError
        The room ``sim`` is not installed.
    """
    _require_simulator()
    text = arguments.readable(receipt, "the receipt")
    name = arguments.end_of(receipt)
    try:
        document = json.loads(text)
        claimed = document["grade"]
        submission = parse(document["source"], Path(claimed["file"]))
        parts = {part["part"]: (part["points"], part["of"]) for part in claimed["parts"]}
        word = lab or claimed["lab"]
    except ProblemError:
        raise
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ProblemError(
            f"{name} is no receipt of one grade: write one with `convlab grade FILE --save {name}`"
        ) from None
    again = _graded(submission, find_lab(word), "sim")
    return Verified(claimed, parts, again)


def _require_simulator() -> None:
    """Raise LaunchError if the room ``sim`` is not installed: each file is checked and counted there."""
    if rooms.provided("engine", "sim") is None:
        raise LaunchError(
            "a file is graded on the simulator, but the folder convlab/sim is not there: install "
            "convlab with it, or copy the folder from the repository"
        )


def _lab_of(submission: Submission, word: str | Path | None) -> Lab:
    """Return the lab that the teacher names, or the one that the file names."""
    if word is not None:
        return find_lab(word)
    if not submission.lab:
        raise ProblemError(
            f"{submission.path.name} names no lab: give one with --lab, or add `lab: NAME` to the "
            f"block of answers; there are {', '.join(names())}"
        )
    if submission.lab not in names():
        near = arguments.hint(submission.lab, names())
        raise ProblemError(
            f"{submission.path.name} is for the lab {arguments.shown(submission.lab)}, which convlab "
            f"does not have: give the lab's file, --lab NAME.toml, or one of {', '.join(names())}"
            f"{near}"
        )
    return find_lab(submission.lab)


def _graded(submission: Submission, lab: Lab, engine: str) -> Grade:
    """Return the grade of a file, computed in the grader's process."""
    request = {
        "path": [os.path.abspath(path) for path in sys.path],
        "source": submission.source,
        "name": submission.path.name,
        "lab": str(lab.path.resolve()),
        "engine": engine,
    }
    try:
        reply = json.loads(_grader.ask(json.dumps(request).encode(), FILE_SECONDS))
    except child.TimedOut as late:
        reply = {"failed": f"not graded: it took longer than {late.seconds:g} s in all"}
    except child.Died as died:
        reply = {"failed": f"not graded: the grader's process ended ({died})"}
    if "refused" in reply:
        raise ProblemError(reply["refused"])
    facts = reply.get("grade") or _ungraded(submission.path.name, reply["failed"], lab, submission)
    return Grade(facts, submission.source)


def _ungraded(
    name: str, reason: str, lab: Lab | None, submission: Submission | None = None
) -> dict[str, Any]:
    """Return the facts of a file that could not be graded: 0 points, and why."""
    parts = []
    for part, of in (lab.points if lab else {}).items():
        parts.append({"part": part, "points": 0.0, "of": of, "result": "not graded"})
    if lab and submission:
        facts = grade_of(submission, lab, parts)
    else:
        facts = {
            "file": name,
            "student": "",
            "lab": lab.name if lab else "",
            "lab_digest": lab.digest if lab else "",
            "source_digest": "",
            "points": 0.0,
            "of": sum(part["of"] for part in parts),
            "parts": parts,
        }
    return facts | {"own": "", "counts": [], "pars": [], "failures": [reason], "notes": []}


def _require_one_lab(labs: Sequence[Lab]) -> None:
    """Raise ProblemError if files of one table name several labs."""
    several = sorted({lab.name for lab in labs})
    if len(several) > 1:
        raise ProblemError(
            f"the files name several labs: {', '.join(several)}; give one with --lab, or grade the "
            "files of each lab in a call of their own"
        )
