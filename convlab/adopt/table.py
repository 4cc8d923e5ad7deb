"""Judge several answers: a table, with progress, which goes on where it was interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConvlabError
from ..core.faults import CORRECT, INCORRECT, heaviest
from ..core.machine import toolchain
from ..core.machine.progress import bar
from .adoption import adopt
from .adoption_report import Adoption
from .answer import read
from .diagnose import diagnose

_FOLDER = "adopted"
_SHOWN = {True: "yes", False: "no", None: "?"}
_LONGEST = 90


@dataclass(frozen=True, repr=False)
class Adoptions:
    """The reports on several answers, as documents of `Adoption.to_dict`.

    Attributes
    ----------
    documents : one for each answer, in their order.
    earlier : how many of them were judged by an earlier call.
    """

    documents: tuple[Mapping[str, Any], ...]
    earlier: int = 0

    nothing_ran = False

    @property
    def ok(self) -> bool:
        """Whether all answers are correct as asked."""
        return all(each["ok"] for each in self.documents)

    @property
    def outcome(self) -> str:
        """The outcome that decides about all answers."""
        return heaviest([each["outcome"] for each in self.documents]) or CORRECT

    def __repr__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """Return the table; with `verbose`, reasons in full."""
        rows = [_row(each, verbose) for each in self.documents]
        widths = [max(len(row[i]) for row in [_HEADINGS, *rows]) for i in range(len(_HEADINGS))]
        lines = [self.sentence]
        for row in [_HEADINGS, *rows]:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        if self.earlier:
            lines.append(
                f"note: {self.earlier} of them were judged before; --again judges them again"
            )
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        count = len(self.documents)
        asked = sum(each["as_asked"] is True for each in self.documents)
        general = sum(each["in_general"] is True for each in self.documents)
        text = f"{asked} of {count} answers are correct as asked"
        if all(each["in_general"] is None for each in self.documents):
            # Other shapes were not asked for, or nothing ran.
            return text
        return f"{text}, {general} in general"

    def to_dict(self) -> dict[str, Any]:
        """Return the reports as a dict that JSON can write."""
        return {"ok": self.ok, "answers": [dict(each) for each in self.documents]}


_HEADINGS = ("answer", "builds", "as asked", "in general", "times as fast", "why not")


def _row(document: Mapping[str, Any], verbose: bool) -> tuple[str, ...]:
    times = document["times_ms"]
    faster = f"{times['model'] / times['answer']:.2f}" if times else "-"
    why = document["why"]
    if len(why) > _LONGEST and not verbose:
        why = f"{why[: _LONGEST - 1]}…"
    verdicts = [_SHOWN[document[key]] for key in ("builds", "as_asked", "in_general")]
    return (document["kernel"], *verdicts, faster, why)


def judge_one(path: Path, reference: Path | None, options: Mapping[str, Any]) -> Adoption:
    """Return the report on one answer.

    Parameters
    ----------
    path, reference : the files; see `adopt`.
    options : those of `adopt`, and ``run``: whether to build and run it, or only to diagnose it.
    """
    rest = {key: value for key, value in options.items() if key != "run"}
    if options["run"]:
        return adopt(path, reference, **rest)
    answer = read(path)
    mistakes = tuple(diagnose(answer, read(reference) if reference else None))
    failed = any(each.error and each.kind != "not run" for each in mistakes)
    note = "only diagnosed: nothing was built or run"
    return Adoption(answer, mistakes=mistakes, as_asked=False if failed else None, notes=(note,))


def judge_all(
    paths: Sequence[Path],
    reference: Path | None,
    options: Mapping[str, Any],
    *,
    again: bool = False,
) -> Adoptions:
    """Return the reports on several answers; those that an earlier call finished are read.

    Parameters
    ----------
    paths, reference, options : as for `judge_one`.
    again : whether to judge finished ones again.
    """
    documents = []
    earlier = 0
    for path in bar(paths, desc="answers"):
        kept = _place(path, reference, options)
        document = None if again else _read(kept)
        if document is None:
            document = _judged(path, reference, options)
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_suffix(".part")
            unfinished.write_text(json.dumps(document))
            unfinished.replace(kept)
        else:
            earlier += 1
        documents.append(document)
    return Adoptions(tuple(documents), earlier)


def _judged(path: Path, reference: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of one answer; an error that ends its judgement is the reason."""
    try:
        return judge_one(path, reference, options).to_dict()
    except ConvlabError as error:
        answer = None
        with contextlib.suppress(ConvlabError):
            answer = read(path)
        if answer is None:
            return {
                "ok": False,
                "kernel": path.stem,
                "file": str(path),
                "outcome": INCORRECT,
                "builds": None,
                "as_asked": None,
                "in_general": None,
                "times_ms": {},
                "why": str(error).split("\n")[0],
            }
        return Adoption(answer, notes=(str(error).split("\n")[0],)).to_dict()


def _place(path: Path, reference: Path | None, options: Mapping[str, Any]) -> Path:
    """Return the file that keeps the report: it depends on the files, the options and this room."""
    parts = [path.name, path.read_bytes(), repr(sorted(options.items()))]
    if reference is not None:
        parts.append(reference.read_bytes())
    own = sorted(each for each in Path(__file__).parent.rglob("*") if each.suffix in (".py", ".h"))
    parts += [each.read_bytes() for each in own]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return toolchain.cache_dir() / _FOLDER / f"{path.stem[:40]}-{digest.hexdigest()[:16]}.json"


def _read(kept: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(kept.read_text())
        return document if isinstance(document, dict) and "as_asked" in document else None
    return None
