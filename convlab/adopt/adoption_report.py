"""The report on one answer: its verdicts, mistakes and cases, as values and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.faults import CORRECT, INCORRECT, NOT_RUN, NOT_SIMULATED, OUT_OF_TIME, heaviest
from .answer import Answer
from .mistake import Mistake, described

# Kinds that say nothing about the answer.
NO_VERDICT = {
    "not simulated": NOT_SIMULATED,
    "not run": NOT_RUN,
    "memory": NOT_RUN,
    "out of time": OUT_OF_TIME,
}


@dataclass(frozen=True)
class Tried:
    """One case of the general judgement: what was varied, and how the answer did.

    Attributes
    ----------
    label : "height = 33", "stride = 2".
    knobs : the names and values that were varied.
    result : "correct", "refused" (a clear error), "incorrect", "crashed" or "not simulated".
    line, text : the line in the answer's file, and the reason.
    """

    label: str
    knobs: Mapping[str, Any]
    result: str
    line: int = 0
    text: str = ""


@dataclass(frozen=True, repr=False)
class Adoption:
    """The report on one answer.

    Attributes
    ----------
    answer : the file.
    engine : "sim" or "cuda"; "" if nothing was run.
    mistakes : what is wrong, in the order of lines; errors and warnings.
    builds, as_asked, in_general : the verdicts; None if one is not known.
    precision, error : the precision class of the output, and its error relative to its largest value.
    tried : the cases of the general judgement. `in_general` is true if none is incorrect or crashed.
    supports : the suggested ``supports:`` line; "everything" if no limit was found.
    shapes, whole_shapes : the shapes of the inputs in the run, and those of the task.
    counters : the simulator's counters of the first call.
    kernels : kernel, grid and block of each launch of the first call, on the simulator.
    lines : the memory traffic of the first call by source line, on the simulator.
    launches, operators : kernels launched by one call, and torch's operators that compute.
    notes : limits of this judgement.
    seconds : the time of the builds ("build") and of the whole ("total"); in the answer's process,
        the time until the file was "loaded", until the "first call", until the verdict "as asked"
        was known, and until the answer was "timed".
    extensions : what was built: an `Extension` for each ``load_inline``.
    times : median times in ms on a GPU: "answer" and "model"; empty without one.
    """

    answer: Answer
    engine: str = ""
    mistakes: tuple[Mistake, ...] = ()
    builds: bool | None = None
    as_asked: bool | None = None
    in_general: bool | None = None
    precision: str = ""
    error: float | None = None
    tried: tuple[Tried, ...] = ()
    supports: str = ""
    shapes: tuple[Any, ...] = ()
    whole_shapes: tuple[Any, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    kernels: tuple[Mapping[str, Any], ...] = ()
    lines: tuple[Mapping[str, Any], ...] = ()
    launches: int = 0
    operators: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    extensions: tuple[Any, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)

    nothing_ran = False

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.answer.name

    kernel = name

    @property
    def ok(self) -> bool:
        """Whether the answer builds and is correct for the task's own shapes."""
        return bool(self.as_asked)

    @property
    def outcome(self) -> str:
        """The outcome, as of a check: "correct", "incorrect", "not simulated", ..."""
        if self.ok:
            return CORRECT
        kinds = [each.kind for each in self.mistakes if each.error]
        if not kinds and self.as_asked is None:
            return NOT_RUN
        if kinds and all(kind in NO_VERDICT for kind in kinds):
            return heaviest([NO_VERDICT[kind] for kind in kinds])
        return INCORRECT

    @property
    def why(self) -> str:
        """The first reason against the answer; empty if there is none."""
        for mistake in self.mistakes:
            if mistake.error:
                place = f"line {mistake.line}: " if mistake.line else ""
                return f"{place}{mistake.text}"
        bad = [each for each in self.tried if each.result in ("incorrect", "crashed")]
        if bad:
            return f"{bad[0].result} with {bad[0].label}"
        return self.notes[0] if self.as_asked is None and self.notes else ""

    def __repr__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """Return the report as text; with `verbose`, all cases and notes."""
        return "\n".join(_text(self, verbose))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can write."""
        return {
            "ok": self.ok,
            "kernel": self.name,
            "file": str(self.answer.path),
            "outcome": self.outcome,
            "engine": self.engine,
            "builds": self.builds,
            "as_asked": self.as_asked,
            "in_general": self.in_general,
            "precision": self.precision,
            "error": self.error,
            "supports": self.supports,
            "why": self.why,
            "mistakes": [each.to_dict() for each in self.mistakes],
            "tried": [{**vars(each), "knobs": dict(each.knobs)} for each in self.tried],
            "shapes": list(self.shapes),
            "whole_shapes": list(self.whole_shapes),
            "launches": self.launches,
            "operators": list(self.operators),
            "counters": dict(self.counters),
            "times_ms": dict(self.times),
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


_WORDS = {True: "yes", False: "NO", None: "not known"}


def _text(adoption: Adoption, verbose: bool) -> list[str]:
    name = adoption.answer.path.name
    heading = {CORRECT: "correct as asked", INCORRECT: "INCORRECT"}.get(
        adoption.outcome, adoption.outcome
    )
    if adoption.outcome == NOT_RUN and not adoption.mistakes:
        heading = "the diagnosis found no mistake"
    lines = [f"{name}: {heading}"]
    klass = ""
    if adoption.precision and adoption.error is not None:
        klass = f" ({adoption.precision}, error {adoption.error:.1g} of the largest value)"
    lines.append(f"  builds      {_WORDS[adoption.builds]}{_built(adoption)}")
    lines.append(f"  as asked    {_WORDS[adoption.as_asked]}{klass if adoption.as_asked else ''}")
    lines.append(f"  in general  {_WORDS[adoption.in_general]}{_general(adoption)}")
    if adoption.supports and adoption.as_asked:
        lines.append(f"  suggested   supports: {adoption.supports}")
    if adoption.times:
        faster = adoption.times["model"] / adoption.times["answer"]
        lines.append(
            f"  time        {adoption.times['answer']:.3g} ms, {faster:.3g} times as fast as Model"
        )
    lines += described(adoption.mistakes, adoption.answer)
    bad = [each for each in adoption.tried if each.result != "correct"]
    for each in adoption.tried if verbose else bad[:4]:
        place = f"{name}:{each.line}: " if each.line else ""
        lines.append(
            f"{each.label}: {each.result}{': ' if each.text else ''}{place}{each.text}"[:300]
        )
    if not verbose and len(bad) > 4:
        lines.append(f"and {len(bad) - 4} more cases; --verbose lists them")
    lines += [f"note: {note}" for note in adoption.notes]
    return lines


def _built(adoption: Adoption) -> str:
    seconds = adoption.seconds.get("build", 0.0)
    return f" ({seconds:.1f} s)" if adoption.builds and seconds else ""


def _general(adoption: Adoption) -> str:
    if not adoption.tried:
        return ""
    ran = [each for each in adoption.tried if each.result != "not simulated"]
    good = sum(each.result == "correct" for each in ran)
    return f" ({good} of {len(ran)} cases with other shapes and arguments)"
