"""Present the results of a check: on one problem (`Report`) or on a set of problems (`Reports`)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import rooms
from ..errors import BuildError, ConvlabError, LaunchError, UnsupportedError
from ..faults import (
    CORRECT,
    INCORRECT,
    PATTERNS_SAY,
    SHOWN,
    UNSUPPORTED,
    fault,
    heaviest,
    outcome,
    reservations,
)
from ..finding import Finding
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import Result, plain
from ..show.table import Table

# The kinds of findings that come from comparing y with the reference. Their texts need no heading.
COMPARED = ("wrong result", "never written")
# What `compared` has if no reference was used.
NOTHING_COMPARED = "nothing compared"
# Kinds of findings that may differ from run to run, so that correct problems are so by chance.
_NOT_REPEATABLE = {"race", "not repeatable", "wrong stream"}
# At most this many failing or unsupported problems are listed; the others are counted.
_LISTED = 6
# A set of at most this many problems is shown as a table.
_SHORT = 12
# A line about several failing problems names at most this many.
_NAMED = 3
_COLUMNS = {
    "problem": "problem",
    "shown": "result",
    "error": ("error", "{:.1e}"),
    "bound": ("bound", "{:.1e}"),
    "wrong": "incorrect",
    "outputs": "outputs",
}


def traffic_bytes(counters: Mapping[str, Any] | None) -> int | None:
    """Return a simulated run's global memory traffic in bytes, or None if it was not counted.

    The unit of traffic is the 32-byte sector. No cache is simulated: each request of a warp counts.
    Calls of cuBLAS are counted by a model with tiles of 128x128.
    """
    parts = ("global_load_bytes", "global_store_bytes", "library_bytes")
    total = sum(int((counters or {}).get(part, 0)) for part in parts)
    # A run without tracing counts nothing.
    return total or None


def findings_of(error: ConvlabError) -> tuple[Finding, ...]:
    """Return the findings of an error; at least one of them is an error, not a warning."""
    kind = getattr(error, "kind", "") or "refused"
    places = getattr(error, "places", ())
    findings = [Finding(kind, text, file=file, line=line) for file, line, text in places]
    findings = findings or list(getattr(error, "findings", ()))
    if kind == "refused":
        # A kernel that returned an error did not write y. That is no second error.
        findings = [finding for finding in findings if finding.kind != "never written"]
    if not any(finding.error for finding in findings):
        # A call that CUDA refused is a warning, unless it is the reason for this error.
        findings = [replace(f, error=f.kind == "refused launch") for f in findings]
    if any(finding.error for finding in findings):
        return tuple(findings)
    return Finding(kind, str(error.args[0])), *findings


def unrun(kernel: str, error: BuildError | LaunchError | UnsupportedError) -> dict[str, Any]:
    """Return the JSON of a check that an error ended; it replaces the kernel's report."""
    verdict = outcome([error.kind])
    if verdict == INCORRECT:
        verdict = "failed" if isinstance(error, LaunchError) else error.kind
    return plain(_common(kernel, verdict, error.problem, [str(error)], findings_of(error)))


def _common(
    kernel: str,
    verdict: str,
    problem: Problem | None,
    failures: Sequence[str],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """Return the keys that the JSON of a report and of `unrun` have in common."""
    correct = verdict == "correct"
    errors = [finding.kind for finding in findings if finding.error]
    return {
        "kernel": kernel,
        "ok": correct,
        "correct": correct,
        "verdict": verdict,
        "fault": errors[0] if errors else None,
        "problem": problem and problem.label,
        "dimensions": problem and str(problem),
        "failures": failures,
        "findings": [plain(each) | {"try": fault(each.kind).advice} for each in findings],
    }


def finding_text(finding: Finding) -> str:
    """Return a finding as text: its kind, its text, and its source line if it is known.

    The kind is left out of an error that has no source line.
    """
    # A comparison's text already contains its kind.
    has_place = finding.file and finding.kind not in COMPARED
    text = finding.text
    if has_place:
        text = f"{text}, {Path(finding.file).name}:{finding.line}"
    if has_place or not finding.error:
        text = f"{finding.kind}: {text}"
    return text if finding.error else f"warning: {text}"


def _warnings(reports: Sequence[Report | Reports]) -> list[str]:
    """Return one line for each kind and source line of the simulator's warnings.

    With several reports, the line names the last problem with this warning.
    """
    last = {}
    for report in reports:
        ending = report.ending if isinstance(report, Report) else ""
        seen_on = f", on {report.problem.label}" if isinstance(report, Report) else ""
        for finding in report.findings:
            # The text of a crash already contains the findings before it.
            if not finding.error and (len(reports) > 1 or finding.text not in ending):
                words = finding_text(finding) + (seen_on if len(reports) > 1 else "")
                last[finding.kind, finding.file, finding.line] = words
    return [f"  {words}" for words in last.values()]


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The result of a check on one problem: whether the kernel is correct, and what is not.

    A report is true if the kernel is correct. It can be pickled, and its size does not depend on
    the problem's size.

    Attributes
    ----------
    problem, kernel, title, precision, engine
        What was checked: the Problem; the kernel's name, title and precision class; where it ran.
    findings
        The errors and warnings, each with its source line if it is known.
    error, bound
        The normwise relative error ||y - reference|| / ||reference||, and its limit for the
        kernel's precision class on this problem. Both have no unit.
    worst, limit
        The absolute error and the limit of the worst output: the one with the largest quotient of
        the two.
    outputs, wrong, unwritten
        The number of all outputs, of incorrect ones among those compared, and of those that were
        never written.
    compared
        How many outputs were compared, and with what.
    patterns, notes
        Lines of text: what the incorrect outputs have in common; what was left out and why.
    setting
        What was unusual about the run, such as its data; empty for an ordinary run.
    fault, ending
        The kind of fault if the kernel crashed or hung (`LaunchError.kind`), or if nvcc reports an
        error; else None. And the text of the crash, or an empty text.
    unwatched
        What the run did not watch, and why; empty if everything was watched.
    pixels, channels
        Error divided by limit, as float arrays: the largest over (n, k) with shape (P, Q), and the
        largest over (p, q) with shape (N, K). Maps with more than 256 rows or columns are pooled.
    counters, host_seconds, threads, requested_bytes
        Of the run that was compared: the simulator's counters and the wall time in seconds; for each kernel
        the number of threads of its largest block; and the most dynamic shared memory of a launch.

    Examples
    --------
    >>> report = convlab.check("01_direct", "wide")
    >>> report.verdict, report.wrong
    ('correct', 0)
    """

    problem: Problem
    kernel: str
    title: str
    precision: str
    engine: str
    findings: tuple[Finding, ...]
    bound: float
    outputs: int
    error: float = math.nan
    worst: float = math.nan
    limit: float = math.nan
    wrong: int = 0
    unwritten: int = 0
    compared: str = NOTHING_COMPARED
    patterns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    setting: str = ""
    fault: str | None = None
    ending: str = ""
    pixels: np.ndarray | None = field(default=None, compare=False)
    channels: np.ndarray | None = field(default=None, compare=False)
    counters: dict[str, Any] | None = field(default=None, compare=False)
    host_seconds: float = field(default=math.nan, compare=False)
    threads: Mapping[str, int] = field(default_factory=dict, compare=False)
    requested_bytes: int = field(default=0, compare=False)
    unwatched: str = ""

    def joined(self, findings: Sequence[Finding], note: str = "") -> Report:
        """Return this report with more findings: new errors first, new warnings last."""
        errors = [finding for finding in findings if finding.error]
        warnings = [finding for finding in findings if not finding.error]
        return replace(
            self,
            findings=(*errors, *self.findings, *warnings),
            notes=(*self.notes, note) if note else self.notes,
            fault=errors[0].kind if errors else self.fault,
        )

    @property
    def ok(self) -> bool:
        """Whether the kernel is correct: no finding is an error."""
        return self.outcome == CORRECT

    @property
    def outcome(self) -> str:
        """ "correct", "incorrect", "out of time", "not simulated" or "not run"."""
        return outcome(finding.kind for finding in self.findings if finding.error)

    @property
    def failures(self) -> tuple[str, ...]:
        """The errors as lines of text; empty if the kernel is correct."""
        texts = [self.ending]
        if not self.ending:
            texts = [finding_text(finding) for finding in self.findings if finding.error]
        return tuple(line for text in texts for line in text.split("\n"))

    @property
    def first_failure(self) -> str:
        """The first error in one line; empty if the kernel is correct."""
        if self.ok:
            return ""
        # A list of incorrect outputs may follow this line.
        return re.sub(r"(; the first \d+)?:$", "", self.failures[0])

    @property
    def traffic_bytes(self) -> int | None:
        """The global memory traffic of the compared run in bytes; None if it was not counted."""
        return traffic_bytes(self.counters)

    @property
    def cells(self) -> dict[str, Any]:
        """The row of `frame`."""
        row = {
            "kernel": self.kernel,
            "title": self.title,
            "class": self.precision,
            "engine": self.engine,
            "problem": self.problem.label,
            "setting": self.setting,
            "correct": self.ok,
            "outcome": self.outcome,
            "unwatched": self.unwatched,
        }
        numbers = ("error", "bound", "worst", "limit", "outputs", "wrong", "unwritten", "compared")
        return row | {name: getattr(self, name) for name in numbers}

    @property
    def frame(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame([self.cells])

    @property
    def summary(self) -> str:
        """The first error and the first pattern in one line; empty if the kernel is correct."""
        return "; ".join([self.first_failure, *self.patterns[:1]])

    @property
    def sentence(self) -> str:
        """The kernel, the problem and the verdict."""
        verdict = self.verdict
        if verdict != BuildError.kind:
            verdict = SHOWN[self.outcome]
        if not self.ok:
            return f"{self.kernel} on {self.label}: {verdict}"
        but = reservations(self._warned)
        part = f"; {self.unwatched}" if self.unwatched else ""
        return f"{self.kernel} on {self.label}: {_correct(self.unwatched)}{but}{part}"

    @property
    def _warned(self) -> list[str]:
        """The kinds of the warnings."""
        return [finding.kind for finding in self.findings if not finding.error]

    @property
    def label(self) -> str:
        """The problem's label, followed by the setting if it is unusual."""
        return f"{self.problem.label}, {self.setting}" if self.setting else self.problem.label

    @property
    def details(self) -> Sequence[str]:
        """The relative error, the errors with the next step, patterns, and warnings."""
        lines = []
        if not math.isnan(self.error):
            lines.append(
                f"  relative error {self.error:.2g}, bound {self.bound:.2g} ({self.precision}); "
                f"worst output: error {self.worst:.2g}, limit {self.limit:.2g}"
            )
            lines.append(f"  compared: {self.compared}")
        lines += [f"  {line}" for line in self.failures]
        lines += [f"  pattern: {line}" for line in self.patterns]
        errors = [finding.kind for finding in self.findings if finding.error]
        has_advice = any(line.startswith("  try: ") for line in self.failures)
        if errors and not has_advice:
            advice = fault(errors[0]).advice
            # Random data can give an error that no pattern explains.
            if not self.patterns:
                advice = advice.removesuffix(PATTERNS_SAY)
            lines.append(f"  try: {advice}")
        return lines + _warnings([self])

    def __bool__(self) -> bool:
        # `assert convlab.check(...)` fails if the kernel is incorrect.
        return self.ok

    @property
    def verdict(self) -> str:
        """The outcome; instead of "incorrect" perhaps "failed" (it crashed) or "does not build"."""
        if self.outcome != INCORRECT:
            return self.outcome
        if self.fault is None:
            return "incorrect"
        return self.fault if self.fault == BuildError.kind else "failed"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can hold; an unknown number is None.

        ``convlab/core/correctness/report.schema.json`` describes the keys.
        """
        common = _common(self.kernel, self.verdict, self.problem, self.failures, self.findings)
        lines = {"sentence": self.sentence, "patterns": self.patterns, "notes": self.notes}
        return plain(self.cells | common | lines)

    def figure(self) -> Chart:
        """Draw two maps of the error divided by its limit: over (p, q) and over (n, k).

        Raises ConvlabError if no outputs were compared.
        """
        if self.pixels is None or self.channels is None or not self.outputs:
            raise ConvlabError(
                f"{self.kernel} on {self.problem.label}: there is no error to draw, because no "
                "outputs were compared"
            )
        return charts.error_map(
            self.pixels, self.channels, self.problem.output_shape, self.sentence, self.patterns
        )


@dataclass(frozen=True, repr=False)
class Reports(Result):
    """The result of a check on a set of problems, or of a default check.

    It is true if the kernel is correct on all problems that it supports. A loop over it yields the
    `Report` of each problem.

    Attributes
    ----------
    kernel : the kernel's name.
    reports : the report of each problem that ran, in order.
    skipped : each problem that the kernel does not support, with the reason.
    smallest : the report of the smallest problem found that fails; None if none fails.
    notes : lines of text: what was checked, and what was left out and why.
    tried : the problems of the search for the smallest, each with whether the kernel is correct.
    findings : errors and warnings that do not depend on the problem: nvcc's.
    supports : the conditions of the kernel's header that a problem must meet.
    left_out : how many problems and runs were left out, because faults took too long.

    Examples
    --------
    >>> reports = convlab.check("01_direct", ["wide", "N=1,C=3,H=8,W=8,K=4,R=3,S=3"])
    >>> reports.ok, len(reports)
    (True, 2)
    """

    kernel: str
    reports: tuple[Report, ...]
    skipped: tuple[tuple[Problem, str], ...] = ()
    smallest: Report | None = None
    notes: tuple[str, ...] = ()
    tried: tuple[tuple[Problem, bool], ...] = ()
    findings: tuple[Finding, ...] = ()
    supports: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def ok(self) -> bool:
        """Whether a problem ran, all that ran are correct, and nvcc reported no error."""
        return self.outcome == CORRECT

    @property
    def outcome(self) -> str:
        """The outcome that decides: "incorrect" if the kernel is incorrect on one problem."""
        if not self.reports:
            return UNSUPPORTED
        own = outcome(finding.kind for finding in self.errors)
        return heaviest([own, *(report.outcome for report in self.reports)])

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors: why the kernel does not build."""
        return [finding for finding in self.findings if finding.error]

    def joined(self, findings: Sequence[Finding], note: str = "") -> Reports:
        """Return these reports with more findings about the kernel, and perhaps a note."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, findings=(*findings, *self.findings), notes=notes)

    @property
    def nothing_ran(self) -> bool:
        """Whether the kernel supports none of the problems."""
        return not self.reports

    @property
    def wrong(self) -> list[Report]:
        """The reports of the problems on which the kernel is incorrect."""
        return [report for report in self.reports if report.outcome == INCORRECT]

    @property
    def undecided(self) -> list[Report]:
        """The reports that do not say whether the kernel is correct: out of time, for example."""
        decided = (CORRECT, INCORRECT)
        return [report for report in self.reports if report.outcome not in decided]

    @property
    def patterns(self) -> list[str]:
        """What the failing problems have in common, and patterns that several of them share."""
        failing = self.wrong
        counts = self._shared_patterns
        # Patterns that all failing problems share say more than others.
        most = max(counts.values(), default=0)
        least = len(failing) if most == len(failing) else len(failing) / 3
        shared = [
            f"on {count} of {len(failing)} failing problems: {pattern}"
            for pattern, count in counts.most_common(3)
            if count >= least
        ]
        describe = rooms.provided("patterns", "of_problems")
        if describe is None:
            return shared
        return describe(self._decided, self.tried) + shared + self._suggestions()

    @property
    def _decided(self) -> list[tuple[Problem, bool]]:
        """The problems of ordinary runs, each with whether the kernel is correct."""
        return [
            (report.problem, report.ok)
            for report in self.ordinary
            # A run that was not watched, or was too slow, does not show that the kernel is correct.
            if report.outcome == INCORRECT or (report.ok and not report.unwatched)
        ]

    def _suggestions(self) -> list[str]:
        """Return a suggested `supports:` line if the kernel is correct on one kind of problem only.

        There is none if the failures may differ from run to run.
        """
        suggest = rooms.provided("patterns", "of_limits")
        kinds = {finding.kind for report in self.wrong for finding in report.findings}
        if suggest is None or kinds & _NOT_REPEATABLE:
            return []
        return suggest(self._decided, self.tried, self.supports)

    @property
    def _shared_patterns(self) -> Counter[str]:
        """Count the failing problems with each pattern that several of them have."""
        # Each report counts once. Equal counts keep the order of the reports.
        heads = [dict.fromkeys(map(_head, report.patterns)) for report in self.wrong]
        counts = Counter(head for each in heads for head in each)
        return Counter({head: count for head, count in counts.items() if count > 1})

    @property
    def ordinary(self) -> list[Report]:
        """The reports of ordinary runs: no unusual data and no unusual setting."""
        return [report for report in self.reports if not report.setting]

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each report."""
        return pd.DataFrame([report.cells for report in self])

    @property
    def sentence(self) -> str:
        """In how many runs the kernel is correct, and how many of them were watched only in part."""
        skipped = f", {len(self.skipped)} unsupported" if self.skipped else ""
        if not self.reports:
            return f"{self.kernel}: nothing was checked{skipped}"
        heading = "does not build with nvcc; simulated: " if self.errors else ""
        left_out = f", {self.left_out} left out" if self.left_out else ""
        if self.wrong:
            # Neither a warning nor what was not watched is news about an incorrect kernel.
            return f"{self.kernel}: {heading}{self._counts}{skipped}{left_out}"
        but = reservations(kind for report in self.reports for kind in report._warned)
        return f"{self.kernel}: {heading}{self._counts}{but}{skipped}{left_out}{self._in_part}"

    @property
    def _counts(self) -> str:
        """How many runs had each outcome, and where: "correct on 5 of 5 problems"."""
        groups = self._groups
        if len(groups) > 1 and all(report.ok for report in self.reports):
            return f"{_correct(self._watched_in_part)} in all {len(self)} runs"
        shown = SHOWN | {CORRECT: _correct(self._watched_in_part and not self.wrong)}
        places: dict[str, list[str]] = {text: [] for text in shown.values()}
        for reports, _, where in groups:
            counts = Counter(report.outcome for report in reports)
            if INCORRECT in counts:
                # On how many it is correct is no news then.
                del counts[CORRECT]
            for each, count in counts.items():
                places[shown[each]].append(where.format(f"{count} of {len(reports)}"))
        parts = [f"{text} {' and '.join(group)}" for text, group in places.items() if group]
        return ", ".join(parts)

    @property
    def _groups(self) -> list[tuple[list[Report], str, str]]:
        """The reports in groups, each with what it is, alone ("problems") and in a sentence."""
        engine = self.reports[0].engine
        own = [report for report in self.ordinary if report.engine == engine]
        # The simulator runs a few problems beside a GPU.
        beside = [report for report in self.ordinary if report.engine != engine]
        unusual = [report for report in self if report.setting]
        groups = [
            (own, "problems", "on {} problems"),
            (unusual, "in unusual settings", "in {} runs in unusual settings"),
            (beside, "on the simulator", "on {} problems on the simulator"),
        ]
        return [group for group in groups if group[0]]

    @property
    def _watched_in_part(self) -> list[Report]:
        """The reports of correct outputs of which not all was watched."""
        return [report for report in self.reports if report.ok and report.unwatched]

    @property
    def _in_part(self) -> str:
        """How many runs were watched only in part, as the end of the sentence; or an empty text."""
        count = len(self._watched_in_part)
        if not count:
            return ""
        runs = "run was" if count == 1 else "runs were"
        them = "it" if count == 1 else "them"
        return f"; {count} {runs} watched only in part (--verbose lists {them})"

    @property
    def tables(self) -> Sequence[Table]:
        """A table with a row for each problem; empty for a long set."""
        if not 1 < len(self) <= _SHORT:
            return ()
        shown = [SHOWN[report.outcome] for report in self]
        return (Table(self.frame.assign(shown=shown), _COLUMNS),)

    @property
    def details(self) -> Sequence[str]:
        """The error closest to its bound, warnings, patterns, and the problems that fail."""
        lines = [f"  {finding_text(finding)}" for finding in self.errors]
        if self.ok:
            if len(self._groups) > 1:
                kinds = [f"{len(reports)} {what}" for reports, what, _ in self._groups]
                lines.append(f"  runs: {', '.join(kinds)}")
            closest = max(self.ordinary, key=lambda report: report.error / report.bound)
            lines.append(
                f"  closest to its bound: relative error {closest.error:.2g}, bound "
                f"{closest.bound:.2g}, on {closest.problem.label}"
            )
        lines += _warnings([self, *self.reports])
        lines += [f"  pattern: {line}" for line in self.patterns]
        if self.smallest is not None:
            if not self.smallest.setting:
                lines.append(f'  smallest that fails: --problem "{self.smallest.problem}"')
            notes = [f"  {note}" for note in self.smallest.notes]
            nested = [self.smallest.sentence, *self.smallest.details, *notes]
            lines += [f"  {line}" for text in nested for line in text.split("\n")]
        lines += _listed(self._failing(), "incorrect in {} more ways")
        for shown, reports in _grouped(self.undecided, lambda report: SHOWN[report.outcome]):
            first = reports[0]
            lines.append(f"  {shown} on {_labels(reports)}: {first.first_failure}")
            kind = next(finding.kind for finding in first.findings if finding.error)
            lines.append(f"  try: {fault(kind).advice}")
        if not self.reports:
            return lines + _listed(self._unsupported, "does not support {} more")
        if self.skipped:
            count = len(self.skipped)
            of = count + len({str(report.problem) for report in self.reports})
            lines.append(f"  {count} of {of} problems are not supported; --verbose lists them")
        return lines

    def _failing(self) -> list[str]:
        """Return a line for each mistake, with the problems that have it.

        The line has the pattern of a single problem. A pattern of several has a line of its own.
        """
        lines = []
        shared = self._shared_patterns
        for _, reports in _grouped(self.wrong, _mistake):
            first = reports[0]
            own = [line for line in first.patterns if _head(line) not in shared]
            text = "; ".join([first.first_failure, *own[:1]])
            lines.append(f"incorrect on {_labels(reports)}: {text}")
        return lines

    @property
    def all_details(self) -> Sequence[str]:
        """The details, what was watched only in part, and why problems are not supported."""
        if not self.reports:
            return self.details
        counted = [line for line in self.details if not line.endswith("--verbose lists them")]
        in_part = _grouped(self._watched_in_part, lambda report: report.unwatched)
        lines = [
            f"{what}: {'; '.join(report.label for report in reports)}" for what, reports in in_part
        ]
        return [*counted, *(f"  {line}" for line in (*lines, *self._unsupported))]

    @property
    def _unsupported(self) -> list[str]:
        return [
            f"does not support {problem.label}: {why.split(': ', 1)[-1]}"
            for problem, why in self.skipped
        ]

    @property
    def about(self) -> dict[str, Any]:
        """The reports and their patterns, for JSON."""
        deciding = [report for report in self.reports if report.outcome == self.outcome]
        failing = self.smallest
        if failing is None and not self.ok:
            failing = next(iter(deciding), None)
        failures = [] if failing is None else [*failing.failures]
        findings = [] if failing is None else [*failing.findings]
        if self.errors:
            verdict = BuildError.kind
            failures = [*map(finding_text, self.errors), *failures]
        elif failing is not None:
            verdict = failing.verdict
        elif self.ok:
            verdict = "correct"
        else:
            verdict = "unsupported"
            failures = [reason for _, reason in self.skipped] or ["the set has no problems"]
            findings = [Finding(verdict, reason) for reason in failures]
        problem = None if failing is None else failing.problem
        warnings = [finding for finding in self.findings if not finding.error]
        findings = [*self.errors, *findings, *warnings]
        return {
            "reports": self.reports,
            "skipped": [{"problem": p.label, "reason": reason} for p, reason in self.skipped],
            "left_out": self.left_out,
            "smallest": failing if self.outcome == INCORRECT else None,
            "patterns": self.patterns,
            **_common(self.kernel, verdict, problem, failures, findings),
        }

    def figure(self) -> Chart:
        """Draw the error maps of the smallest problem that fails, or of the first problem.

        Raises ConvlabError if no outputs were compared.
        """
        for report in (self.smallest, *self.wrong, *self.reports):
            if report is not None and report.pixels is not None and report.outputs:
                return report.figure()
        raise ConvlabError(
            f"{self.kernel}: there is no error to draw, because no outputs were compared"
        )

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def __bool__(self) -> bool:
        return self.ok


def _correct(unwatched: object) -> str:
    """Return the word for correct outputs; it is another one if not all of the runs was watched."""
    return "outputs correct" if unwatched else SHOWN[CORRECT]


def _head(pattern: str) -> str:
    """Return the part of a pattern that does not depend on the problem."""
    return pattern.split(": ")[0]


def _mistake(report: Report) -> tuple[str, str | None, int | None]:
    """Return what makes two failing reports alike: the kind and the line of their first error."""
    first = next(finding for finding in report.findings if finding.error)
    return first.kind, first.file, first.line


def _grouped(
    reports: Iterable[Report], key: Callable[[Report], Any]
) -> list[tuple[Any, list[Report]]]:
    """Return the reports in groups of one key; groups and members keep their order."""
    groups: dict[Any, list[Report]] = {}
    for report in reports:
        groups.setdefault(key(report), []).append(report)
    return [*groups.items()]


def _labels(reports: Sequence[Report]) -> str:
    """Return the labels of a few reports, and how many more there are."""
    names = ", ".join(report.label for report in reports[:_NAMED])
    more = len(reports) - _NAMED
    return f"{names} and {more} more" if more > 0 else names


def _listed(lines: Sequence[str], rest: str) -> list[str]:
    """Return the first lines, indented, and a line with the number of the others."""
    shown = [f"  {line}" for line in lines[:_LISTED]]
    if len(lines) > _LISTED:
        shown.append(f"  {rest.format(len(lines) - _LISTED)}")
    return shown
