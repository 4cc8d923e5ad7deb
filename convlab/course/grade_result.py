"""The results of grading: one grade, a class, a verified receipt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..core.errors import ConvlabError
from ..core.show.plot import Chart
from ..core.show.result import Result
from ..core.show.table import Table

_PARTS = ("correct", "prediction", "pars", "question")
# A table of the usual width shows so many characters of a part's result.
_LONG_RESULT = 70
_MORE = "a grade has no figure; draw the counts with convlab.inspect(...).plot()"


@dataclass(frozen=True, repr=False)
class Grade(Result):
    """The grade of one file.

    Attributes
    ----------
    facts : a dict: file, student, lab, points, of, parts, counts, pars (a line for each), failures,
        notes, own (the own problem of the student's name), and digests of the lab and the source.
    source : the text of the file.
    points, of : the points, and how many there are.
    frame : one row for each part: part, points, of, result.
    """

    facts: Mapping[str, Any]
    source: str = field(repr=False)

    @property
    def points(self) -> float:
        return self.facts["points"]

    @property
    def of(self) -> float:
        return self.facts["of"]

    @property
    def ok(self) -> bool:
        """Whether the kernel is correct on all problems of the lab."""
        first = next((part for part in self.facts["parts"] if part["part"] == "correct"), None)
        return first is not None and first["points"] == first["of"] and not self.nothing_ran

    @property
    def sentence(self) -> str:
        who = self.facts["student"] or self.facts["file"]
        lab = f", lab {self.facts['lab']}" if self.facts["lab"] else ""
        return f"{who}{lab}: {self.points:g} of {self.of:g} points"

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.facts["parts"], columns=["part", "points", "of", "result"])

    @property
    def tables(self) -> Sequence[Table]:
        return (Table(self.frame, left=("part", "result")),)

    @property
    def details(self) -> Sequence[str]:
        # The table cuts a long result.
        long = [part for part in self.facts["parts"] if len(part["result"]) > _LONG_RESULT]
        results = [f"  {part['part']}: {part['result']}" for part in long]
        lines = [*self.facts["pars"], *self.facts["failures"]]
        return [*results, *(f"  {line}" for line in lines)]

    @property
    def notes(self) -> Sequence[str]:
        own = self.facts["own"]
        return (*([f"own sizes: {own}"] if own else []), *self.facts["notes"])

    @property
    def about(self) -> Mapping[str, Any]:
        return {"grade": self.facts}

    @property
    def receipt(self) -> dict[str, Any]:
        """What `save` writes: the grade and the text of the file, without a date."""
        # The whole text depends on the width of the terminal.
        return {**super().receipt, "text": self.sentence, "source": self.source}

    def figure(self) -> Chart:
        raise ConvlabError(_MORE)


@dataclass(frozen=True, repr=False)
class Grades(Result):
    """The grades of a class.

    Attributes
    ----------
    grades : one for each file, in order; you can also use an index or a loop.
    frame : one row for each file: student, file, points, of, and the points of each part.
    """

    grades: tuple[Grade, ...]

    @property
    def ok(self) -> bool:
        return all(grade.ok for grade in self.grades)

    @property
    def sentence(self) -> str:
        count = len(self.grades)
        mean = sum(grade.points for grade in self.grades) / max(count, 1)
        correct = sum(grade.ok for grade in self.grades)
        return f"{count} files: {correct} correct, {mean:.1f} points on average"

    @property
    def frame(self) -> pd.DataFrame:
        rows = []
        for grade in self.grades:
            points = {part["part"]: part["points"] for part in grade.facts["parts"]}
            row = {name: grade.facts[name] for name in ("student", "file", "points", "of")}
            rows.append(row | {part: points.get(part) for part in _PARTS})
        return pd.DataFrame(rows, columns=["student", "file", "points", "of", *_PARTS])

    @property
    def tables(self) -> Sequence[Table]:
        return (Table(self.frame, left=("student", "file")),)

    @property
    def details(self) -> Sequence[str]:
        lines = []
        for grade in self.grades:
            for failure in grade.facts["failures"][:1]:
                # An example may follow the first line, after a colon.
                first = failure.partition("\n")[0].removesuffix(":")
                name = grade.facts["file"]
                lines.append(f"  {first}" if first.startswith(name) else f"  {name}: {first}")
        return lines

    @property
    def notes(self) -> Sequence[str]:
        notes = [note for grade in self.grades for note in grade.facts["notes"]]
        return tuple(dict.fromkeys(notes))

    @property
    def about(self) -> Mapping[str, Any]:
        return {"grades": [grade.facts for grade in self.grades]}

    def figure(self) -> Chart:
        raise ConvlabError(_MORE)

    def __iter__(self) -> Iterator[Grade]:
        return iter(self.grades)

    def __len__(self) -> int:
        return len(self.grades)

    def __getitem__(self, index: int) -> Grade:
        return self.grades[index]


@dataclass(frozen=True, repr=False)
class Verified(Result):
    """A receipt next to a second grading of the same text.

    Attributes
    ----------
    claimed : the facts in the receipt.
    parts : the points in the receipt, by part: (points, of).
    again : the grade of the second run.
    frame : one row for each part: part, receipt, again.
    """

    claimed: Mapping[str, Any]
    parts: Mapping[str, tuple[float, float]]
    again: Grade

    @property
    def differences(self) -> list[str]:
        """What differs, as lines; a part that only one of the two graded does not count."""
        lines = []
        for part in self.again.facts["parts"]:
            told = self.parts.get(part["part"])
            if told is not None and told != (part["points"], part["of"]):
                lines.append(
                    f"{part['part']}: the receipt says {told[0]} of {told[1]}, and this run "
                    f"{part['points']:g} of {part['of']:g}"
                )
        again = {name: self.again.facts[name] for name in ("student", "source_digest", "own")}
        for name, value in again.items():
            if self.claimed.get(name) != value:
                lines.append(f"{name}: not that of the text in the receipt")
        if self.claimed.get("points") != sum(points for points, _ in self.parts.values()):
            lines.append("points: not the sum of the receipt's parts")
        return lines

    @property
    def ok(self) -> bool:
        return not self.differences

    @property
    def sentence(self) -> str:
        verdict = "the receipt is right" if self.ok else "THE RECEIPT IS NOT RIGHT"
        return f"{verdict}; {self.again.sentence}"

    @property
    def frame(self) -> pd.DataFrame:
        rows = []
        for part in self.again.facts["parts"]:
            told = self.parts.get(part["part"], (None, None))[0]
            rows.append({"part": part["part"], "receipt": told, "again": part["points"]})
        return pd.DataFrame(rows, columns=["part", "receipt", "again"])

    @property
    def tables(self) -> Sequence[Table]:
        return (Table(self.frame, left=("part",)),)

    @property
    def details(self) -> Sequence[str]:
        return [f"  {line}" for line in self.differences]

    @property
    def notes(self) -> Sequence[str]:
        if self.claimed.get("lab_digest") != self.again.facts["lab_digest"]:
            return (
                "the receipt is of another text of this lab: with or without its key, for example",
            )
        return ()

    @property
    def about(self) -> Mapping[str, Any]:
        return {"differences": self.differences, "again": self.again.facts}

    def figure(self) -> Chart:
        raise ConvlabError(_MORE)
