"""A student's file: the kernel, and the answers in a comment block at its top.

/* lab
name: Ada Lovelace
lab: direct
prediction: 12800
choice: b
*/
"""

import hashlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..core import arguments
from ..core.errors import ProblemError

_BLOCK = re.compile(r"/\*[ \t]*lab[ \t]*\n(.*?)\*/", re.DOTALL)
_ENTRIES = ("name", "lab", "prediction", "choice")
_EXAMPLE = "/* lab\nname: Ada Lovelace\nlab: direct\nprediction: 12800\nchoice: b\n*/"
# The most characters of a file, and of an entry.
_LONGEST_FILE = 200_000
_LONGEST = 100


@dataclass(frozen=True)
class Submission:
    """A student's answers, and the text of the file.

    `prediction` and `choice` are None if the student gave none; `lab` is empty then.
    """

    path: Path
    source: str
    name: str
    lab: str
    prediction: float | None
    choice: str | None

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.source.encode()).hexdigest()


def read_submission(path: str | Path) -> Submission:
    """Return the answers in a ``.cu`` file.

    Raises
    ------
    ProblemError
        The file cannot be read, or its block is missing or has an invalid entry.
    """
    location = arguments.path(path, "the file")
    # os.path answers False where pathlib raises, as for a name that is too long.
    if os.path.isdir(location):
        name = arguments.end_of(location)
        raise ProblemError(f"{name} is a folder; give the files in it: {name}/*.cu")
    if location.suffix != ".cu":
        raise ProblemError(f"{arguments.end_of(location)} is no .cu file; name the student's file")
    if os.path.islink(location) or not os.path.isfile(location):
        raise ProblemError(
            f"{arguments.end_of(location)} is no plain file; name the student's file"
        )
    if location.stat().st_size > _LONGEST_FILE:
        raise ProblemError(
            f"{arguments.end_of(location)} has over {_LONGEST_FILE:,} bytes; a lab's file is shorter"
        )
    return parse(arguments.readable(location, "the file"), location)


def parse(source: str, path: Path) -> Submission:
    """Return the answers in the text of a file; raise ProblemError as `read_submission`."""
    where = path.name
    blocks = _BLOCK.findall(source)
    if len(blocks) != 1:
        count = "no comment block" if not blocks else f"{len(blocks)} comment blocks"
        raise ProblemError(f"{where} has {count} with answers; write one at the top:\n{_EXAMPLE}")
    entries = {}
    for line in blocks[0].splitlines():
        line = line.strip().lstrip("*").strip()
        if not line:
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if key not in _ENTRIES or not colon:
            raise ProblemError(
                f"{where}: cannot read {arguments.shown(line)} in the block of answers; write "
                f"ENTRY: VALUE, with one of {', '.join(_ENTRIES)}{arguments.hint(key, _ENTRIES)}"
            )
        if key in entries:
            raise ProblemError(f"{where}: {key} is given twice in the block of answers; remove one")
        if len(value) > _LONGEST or not value.isprintable():
            raise ProblemError(
                f"{where}: {key} must have at most {_LONGEST} printable characters, not "
                f"{arguments.shown(value)}"
            )
        entries[key] = value
    if not entries.get("name"):
        raise ProblemError(f"{where}: the block of answers lacks the name; add `name: YOUR NAME`")
    return Submission(
        path,
        source,
        entries["name"],
        entries.get("lab", ""),
        _number(entries.get("prediction", ""), where),
        entries.get("choice") or None,
    )


def _number(text: str, where: str) -> float | None:
    """Return a prediction: digits, perhaps with commas and a point; None for an empty text."""
    if not text:
        return None
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ProblemError(
            f"{where}: the prediction must be a number such as 12800, not {arguments.shown(text)}"
        )
    return number
