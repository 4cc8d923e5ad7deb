"""The results of checks: the report of one problem, and the reports of a set of problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import rooms
from ..errors import BuildError, ConvlabError, LaunchError, UnsupportedError
from ..faults import fault
from ..finding import Finding
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import Result, plain
from ..show.table import Table, wrapped

# Kinds of findings about outputs, which name no line of the source.
COMPARED = ("wrong result", "never written")
# The most problems that get a line of their own.
_LISTED = 6
# The most problems of a set that is shown as a table.
_SHORT = 12
_COLUMNS = {
    "problem": "problem",
    "shown": "result",
    "error": ("error", "{:.1e}"),
    "bound": ("at most", "{:.1e}"),
    "wrong": "wrong",
    "outputs": "outputs",
}


def traffic_bytes(counters: Mapping[str, Any] | None) -> int | None:
    """Return a simulated run's traffic to global memory in bytes; None if it was not counted.

    The traffic is counted in 32-byte sectors. Nothing is cached between warp requests. Calls of
    cuBLAS count by a model with tiles of 128x128.
    """
    parts = ("global_load_bytes", "global_store_bytes", "library_bytes")
    total = sum(int((counters or {}).get(part, 0)) for part in parts)
    # A run that was not traced has counted 0.
    return total or None


def findings_of(error: ConvlabError) -> tuple[Finding, ...]:
    """Return the findings behind an error; at least one of them is a mistake."""
    kind = getattr(error, "kind", "") or "refused"
    places = getattr(error, "places", ())
    findings = [Finding(kind, text, file=file, line=line) for file, line, text in places]
    findings = findings or list(getattr(error, "findings", ()))
    if kind == "refused":
        # A kernel that returned an error does not write y.
        findings = [finding for finding in findings if finding.kind != "never written"]
    if not any(finding.error for finding in findings):
        # The error may be about a call that CUDA refused, which is a warning by itself.
        findings = [replace(f, error=f.kind == "refused launch") for f in findings]
    if any(finding.error for finding in findings):
        return tuple(findings)
    return Finding(kind, str(error.args[0])), *findings


def unrun(kernel: str, error: BuildError | LaunchError | UnsupportedError) -> dict[str, Any]:
    """Return the JSON in place of a kernel's report, where an error ended the check."""
    verdict = "failed" if isinstance(error, LaunchError) else error.kind
    return plain(_outcome(kernel, verdict, error.problem, [str(error)], findings_of(error)))


def _outcome(
    kernel: str,
    verdict: str,
    problem: Problem | None,
    failures: Sequence[str],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """Return the keys that the JSON of a report and of `unrun` share."""
    correct = verdict == "correct"
    mistakes = [finding.kind for finding in findings if finding.error]
    return {
        "kernel": kernel,
        "ok": correct,
        "correct": correct,
        "verdict": verdict,
        "fault": mistakes[0] if mistakes else None,
        "problem": problem and problem.label,
        "dimensions": problem and str(problem),
        "failures": failures,
        "findings": [plain(each) | {"try": fault(each.kind).advice} for each in findings],
    }


def worded(finding: Finding) -> str:
    """Return a finding in words: its kind, if it has a place or is a warning, and its text."""
    # The text of a comparison says by itself what is wrong.
    has_place = finding.file and finding.kind not in COMPARED
    text = finding.text
    if has_place:
        text = f"{text}, {Path(finding.file).name}:{finding.line}"
    if has_place or not finding.error:
        text = f"{finding.kind}: {text}"
    return text if finding.error else f"warning: {text}"


def _warnings(reports: Sequence[Report | Reports]) -> list[str]:
    """Return a line for each kind and place of the simulator's warnings, as last reported.

    Of a set of problems the line names the problem that the warning was last seen on.
    """
    last = {}
    for report in reports:
        seen_on = f", on {report.problem.label}" if isinstance(report, Report) else ""
        for finding in report.findings:
            if not finding.error:
                words = worded(finding) + (seen_on if len(reports) > 1 else "")
                last[finding.kind, finding.file, finding.line] = words
    return [f"  {words}" for words in last.values()]


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The result of a check on one problem. It pickles, and is small whatever the problem's size.

    Attributes
    ----------
    findings
        The mistakes, with places where they are known, and the simulator's warnings.
    error, bound
        The normwise relative error ||y - truth|| / ||truth||, and the most that the kernel's
        precision class allows on this problem.
    worst, limit
        The absolute error of the output that is nearest to its own limit, or farthest beyond it;
        and that limit.
    outputs, wrong, unwritten
        The numbers of all outputs, of wrong ones among those compared, and of unwritten ones.
    compared
        In words, what was compared with what.
    patterns, notes
        Lines: what the wrong outputs have in common; what was left out and why.
    setting
        In words, what was unusual about the run: the data, or what ran before it; empty if nothing.
    fault, ending
        The kind of fault of a kernel that did not run to its end (`LaunchError.kind`), or None;
        and the error's whole text, for people.
    pixels, channels
        Errors over what is allowed: the largest over (n, k) as (P, Q), and over (p, q) as (N, K),
        each pooled to at most 256 x 256.
    counters, host_seconds, threads
        The simulator's counters and the wall time of the first run; the most threads of a block,
        by kernel.
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
    compared: str = "nothing compared"
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

    def joined(self, findings: Sequence[Finding], note: str = "") -> Report:
        """Return this report with more findings: new mistakes first, new warnings last."""
        mistakes = [finding for finding in findings if finding.error]
        warnings = [finding for finding in findings if not finding.error]
        return replace(
            self,
            findings=(*mistakes, *self.findings, *warnings),
            notes=(*self.notes, note) if note else self.notes,
            fault=mistakes[0].kind if mistakes else self.fault,
        )

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not any(finding.error for finding in self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong, in lines."""
        texts = [self.ending]
        if not self.ending:
            texts = [worded(finding) for finding in self.findings if finding.error]
        return tuple(line for text in texts for line in text.split("\n"))

    @property
    def traffic_bytes(self) -> int | None:
        """The first run's traffic to global memory in bytes; None if it was not simulated."""
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
        }
        numbers = ("error", "bound", "worst", "limit", "outputs", "wrong", "unwritten", "compared")
        return row | {name: getattr(self, name) for name in numbers}

    @property
    def frame(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame([self.cells])

    @property
    def summary(self) -> str:
        """What is wrong in one line; empty if nothing is."""
        if self.ok:
            return ""
        first = self.failures[0].removesuffix(", the first of them:")
        if not self.patterns:
            return first
        return f"{first}; {self.patterns[0]}"

    @property
    def sentence(self) -> str:
        """Whether it is correct, and on which problem."""
        verdict = self.verdict
        if verdict not in ("correct", BuildError.kind):
            verdict = "INCORRECT"
        return f"{self.kernel} on {self.label}: {verdict}"

    @property
    def label(self) -> str:
        """The problem's label, and the setting."""
        return f"{self.problem.label}, {self.setting}" if self.setting else self.problem.label

    @property
    def details(self) -> Sequence[str]:
        """The error and its bound; what is wrong; what the wrong outputs have in common."""
        lines = []
        if not math.isnan(self.error):
            lines.append(
                f"  error {self.error:.2g} of at most {self.bound:.2g} ({self.precision}), "
                f"worst output {self.worst:.2g} of at most {self.limit:.2g}"
            )
            lines += wrapped(self.compared)
        lines += [f"  {line}" for line in self.failures]
        lines += [f"  pattern: {line}" for line in self.patterns]
        mistakes = [finding.kind for finding in self.findings if finding.error]
        has_advice = any(line.startswith("  try: ") for line in self.failures)
        if mistakes and not has_advice:
            lines.append(f"  try: {fault(mistakes[0]).advice}")
        return lines + _warnings([self])

    def __bool__(self) -> bool:
        # `assert convlab.check(...)` fails where the kernel is wrong.
        return self.ok

    @property
    def verdict(self) -> str:
        """ "correct", "incorrect", "failed", or that it does not build."""
        if self.ok:
            return "correct"
        if self.fault is None:
            return "incorrect"
        return self.fault if self.fault == BuildError.kind else "failed"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as ``report.schema.json`` describes it; an unknown number is None."""
        outcome = _outcome(self.kernel, self.verdict, self.problem, self.failures, self.findings)
        lines = {"sentence": self.sentence, "patterns": self.patterns, "notes": self.notes}
        return plain(self.cells | outcome | lines)

    def figure(self) -> Chart:
        """Draw where the error is, over (p, q) and over (n, k).

        Raises ConvlabError if there is no output to draw.
        """
        if self.pixels is None or self.channels is None or not self.outputs:
            raise ConvlabError(f"{self.kernel} on {self.problem.label}: no outputs were compared")
        return charts.error_map(
            self.pixels, self.channels, self.problem.y_shape, self.sentence, self.patterns
        )


@dataclass(frozen=True, repr=False)
class Reports(Result):
    """The reports of one kernel on a set of problems.

    Attributes
    ----------
    kernel : its name.
    reports : one for each problem that was checked, in order.
    skipped : the problems that the kernel does not support, and why.
    smallest : the report of the smallest problem found on which it is wrong.
    notes : what was checked, and what was left out.
    tried : the problems of the search for the smallest, and whether the kernel is correct on each.
    findings : about the kernel, whatever the problem: what nvcc reports.
    """

    kernel: str
    reports: tuple[Report, ...]
    skipped: tuple[tuple[Problem, str], ...] = ()
    smallest: Report | None = None
    notes: tuple[str, ...] = ()
    tried: tuple[tuple[Problem, bool], ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a problem was checked, the kernel is wrong on none, and nvcc compiles it."""
        return bool(self.reports) and not self.wrong and not self.errors

    @property
    def errors(self) -> list[Finding]:
        """The findings that say why it does not build."""
        return [finding for finding in self.findings if finding.error]

    def joined(self, findings: Sequence[Finding], note: str = "") -> Reports:
        """Return these reports with more findings about the kernel."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, findings=(*findings, *self.findings), notes=notes)

    @property
    def nothing_ran(self) -> bool:
        """Whether the kernel supports none of the problems."""
        return not self.reports

    @property
    def wrong(self) -> list[Report]:
        """The reports of the problems on which the kernel is wrong."""
        return [report for report in self.reports if not report.ok]

    @property
    def patterns(self) -> list[str]:
        """What distinguishes the problems on which it is wrong, and patterns that several share."""
        wrong = self.wrong
        counts = Counter(line.split(": ")[0] for report in wrong for line in report.patterns)
        shared = [
            f"on {count} of {len(wrong)} wrong problems: {pattern}"
            for pattern, count in counts.most_common(3)
            if 3 * count >= len(wrong) > 1
        ]
        across = rooms.provided("patterns", "of_problems")
        if across is None:
            return shared
        problems = [(report.problem, report.ok) for report in self.ordinary]
        return across(problems, self.tried) + shared

    @property
    def ordinary(self) -> list[Report]:
        """The reports of runs in no unusual setting."""
        return [report for report in self.reports if not report.setting]

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each report."""
        return pd.DataFrame([report.cells for report in self])

    @property
    def sentence(self) -> str:
        """On how many problems it is correct."""
        skipped = f", {len(self.skipped)} unsupported" if self.skipped else ""
        if not self.reports:
            return f"{self.kernel}: nothing was checked{skipped}"
        verdict = "INCORRECT, " if self.wrong else ""
        if self.errors:
            verdict += "does not build by nvcc; simulated: "
        ordinary = self.ordinary
        correct = sum(report.ok for report in ordinary)
        unusual = [report for report in self if report.setting]
        settings = ""
        if unusual:
            settings = f", in {sum(report.ok for report in unusual)} of {len(unusual)} settings"
        return (
            f"{self.kernel}: {verdict}correct on {correct} of {len(ordinary)} problems"
            f"{skipped}{settings}"
        )

    @property
    def tables(self) -> Sequence[Table]:
        """A row for each problem of a short set."""
        if not 1 < len(self) <= _SHORT:
            return ()
        shown = ["correct" if report.ok else "INCORRECT" for report in self]
        return (Table(self.frame.assign(shown=shown), _COLUMNS),)

    @property
    def details(self) -> Sequence[str]:
        """The error closest to its bound; warnings; patterns; the smallest wrong problem."""
        lines = [f"  {worded(finding)}" for finding in self.errors]
        if self.ok:
            closest = max(self.ordinary, key=lambda report: report.error / report.bound)
            lines.append(
                f"  closest to its bound: error {closest.error:.2g} of at most "
                f"{closest.bound:.2g} on {closest.problem.label}"
            )
        lines += _warnings([self, *self.reports])
        lines += [f"  pattern: {line}" for line in self.patterns]
        if self.smallest is not None:
            if not self.smallest.setting:
                lines.append(f'  smallest that fails: --problem "{self.smallest.problem}"')
            lines += [f"  {line}" for line in str(self.smallest).split("\n")]
        wrong = [f"incorrect on {report.label}: {report.summary}" for report in self.wrong]
        lines += _listed(wrong, "incorrect on {} more")
        skipped = [
            f"does not support {problem.label}: {why.split(': ', 1)[-1]}"
            for problem, why in self.skipped
        ]
        return lines + _listed(skipped, "does not support {} more")

    @property
    def about(self) -> dict[str, Any]:
        """The reports themselves, and what they have in common."""
        worst = self.smallest
        if worst is None and self.wrong:
            worst = self.wrong[0]
        failures = [] if worst is None else [*worst.failures]
        findings = [] if worst is None else [*worst.findings]
        if self.errors:
            verdict = BuildError.kind
            failures = [*map(worded, self.errors), *failures]
        elif worst is not None:
            verdict = worst.verdict
        elif self.ok:
            verdict = "correct"
        else:
            verdict = "unsupported"
            failures = [reason for _, reason in self.skipped] or ["no problem was asked for"]
            findings = [Finding(verdict, reason) for reason in failures]
        problem = None if worst is None else worst.problem
        warnings = [finding for finding in self.findings if not finding.error]
        findings = [*self.errors, *findings, *warnings]
        return {
            "reports": self.reports,
            "skipped": [{"problem": p.label, "reason": reason} for p, reason in self.skipped],
            "smallest": worst,
            "patterns": self.patterns,
            **_outcome(self.kernel, verdict, problem, failures, findings),
        }

    def figure(self) -> Chart:
        """Draw where the error is: on the smallest problem that fails, or else on the first.

        Raises ConvlabError if nothing was compared.
        """
        for report in (self.smallest, *self.wrong, *self.reports):
            if report is not None and report.pixels is not None and report.outputs:
                return report.figure()
        raise ConvlabError(f"{self.kernel}: no outputs were compared")

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def __bool__(self) -> bool:
        return self.ok


def _listed(lines: Sequence[str], rest: str) -> list[str]:
    """Return the first lines, indented, and how many more there are."""
    shown = [f"  {line}" for line in lines[:_LISTED]]
    if len(lines) > _LISTED:
        shown.append(f"  {rest.format(len(lines) - _LISTED)}")
    return shown
