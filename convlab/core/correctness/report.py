"""What checks found: the report of one problem, and the reports of a set of them."""

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
from ..faults import FAULTS
from ..finding import Finding
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import Result, plain
from ..show.table import Table, wrapped

COMPARED = ("wrong result", "never written")  # kinds that are of outputs, wherever they are stored
_LISTED = 6  # problems that get a line of their own
_SHORT = 12  # problems of a set that is shown as a table
_COLUMNS = {
    "problem": "problem",
    "shown": "result",
    "error": ("error", "{:.1e}"),
    "bound": ("at most", "{:.1e}"),
    "wrong": "wrong",
    "outputs": "outputs",
}


def traffic_bytes(counters: Mapping[str, Any] | None) -> int | None:
    """Return what a simulated run moved of global memory, in 32-byte sectors; None if not counted.

    Nothing is cached between warp requests; calls of cuBLAS count with their model (tiles of
    128x128).
    """
    parts = ("global_load_bytes", "global_store_bytes", "library_bytes")
    return sum(int((counters or {}).get(part, 0)) for part in parts) or None  # 0: not traced


def findings_of(error: ConvlabError) -> tuple[Finding, ...]:
    """Return what an error says of a kernel as data: one mistake at least."""
    kind = getattr(error, "kind", "") or "refused"
    places = getattr(error, "places", ())
    known = [Finding(kind, text, file=file, line=line) for file, line, text in places]
    known = known or getattr(error, "findings", ())
    if kind == "refused":  # then y is not written
        known = [finding for finding in known if finding.kind != "never written"]
    if not any(f.error for f in known):  # a call that was refused may be what the error is about
        known = [replace(f, error=f.kind == "refused launch") for f in known]
    own = () if any(f.error for f in known) else (Finding(kind, str(error.args[0])),)
    return *own, *known


def unrun(kernel: str, error: BuildError | LaunchError | UnsupportedError) -> dict[str, Any]:
    """Return, as JSON has it, what stands for a kernel's report where an error ended the check."""
    verdict = "failed" if isinstance(error, LaunchError) else error.kind
    return plain(_outcome(kernel, verdict, error.problem, [str(error)], findings_of(error)))


def _outcome(
    kernel: str,
    verdict: str,
    problem: Problem | None,
    failures: Sequence[str],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """What a program wants to know first, of a report as of what stands for one."""
    right = verdict == "right"
    return {
        "kernel": kernel,
        "ok": right,
        "right": right,
        "verdict": verdict,
        "fault": next((finding.kind for finding in findings if finding.error), None),
        "problem": problem and problem.label,
        "dimensions": problem and str(problem),
        "failures": failures,
        "findings": [plain(found) | {"try": FAULTS[found.kind].advice} for found in findings],
    }


def worded(found: Finding) -> str:
    """Return a finding as people read it; a comparison's text needs no kind."""
    placed = found.file and found.kind not in COMPARED
    where = f", {Path(found.file).name}:{found.line}" if placed else ""
    kind = f"{found.kind}: " if where or not found.error else ""
    return f"{'' if found.error else 'warning: '}{kind}{found.text}{where}"


def _warnings(reports: Sequence[Report | Reports]) -> list[str]:
    """A line for each kind of the simulator's warnings and place of one, as it last said it."""
    found = (f for report in reports for f in report.findings if not f.error)
    return ["  " + worded(f) for f in {(f.kind, f.file, f.line): f for f in found}.values()]


@dataclass(frozen=True, repr=False)
class Report(Result):
    """What a check found on one problem. It pickles, and is small whatever the problem's size.

    Attributes
    ----------
    findings
        What is wrong, with places where they are known, and the simulator's warnings.
    error, bound
        The normwise relative error ||y - truth|| / ||truth||, and the most that the kernel's
        precision class allows on this problem.
    worst, limit
        The absolute error of the one output that is nearest to its own limit, or the farthest
        beyond it; and that limit.
    outputs, wrong, unwritten
        Numbers of outputs: in all, wrong among those compared, never written.
    compared
        In words, what was compared with what.
    patterns, notes
        Lines: what the wrong outputs have in common; what was left out and why.
    setting
        What was unusual of the run: the data, what came before it; in words, empty if nothing was.
    fault, ending
        The kind of fault of a kernel that did not run to its end (`LaunchError.kind`), or None;
        and all that the error said, for people.
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
        """This report and what else was found of the kernel: mistakes first, warnings last."""
        wrong = [f for f in findings if f.error]
        warned = [f for f in findings if not f.error]
        return replace(
            self,
            findings=(*wrong, *self.findings, *warned),
            notes=(*self.notes, note) if note else self.notes,
            fault=wrong[0].kind if wrong else self.fault,
        )

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not any(finding.error for finding in self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        """Lines: what is wrong."""
        wrong = [self.ending] if self.ending else [worded(f) for f in self.findings if f.error]
        return tuple(line for text in wrong for line in text.split("\n"))

    @property
    def traffic_bytes(self) -> int | None:
        """What the first run moved of global memory; None off the simulator."""
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
            "right": self.ok,
        }
        numbers = ("error", "bound", "worst", "limit", "outputs", "wrong", "unwritten", "compared")
        return row | {name: getattr(self, name) for name in numbers}

    frame = property(lambda self: pd.DataFrame([self.cells]))

    @property
    def summary(self) -> str:
        """What is wrong in one line; empty if nothing is."""
        if self.ok:
            return ""
        first = self.failures[0].removesuffix(", the first of them:")
        return f"{first}; {self.patterns[0]}" if self.patterns else first

    @property
    def sentence(self) -> str:
        """Right or wrong, and on what."""
        told = {"right": "right", BuildError.kind: BuildError.kind}.get(self.verdict, "WRONG")
        return f"{self.kernel} on {self.label}: {told}"

    @property
    def label(self) -> str:
        """The problem's label, and the setting."""
        return f"{self.problem.label}, {self.setting}" if self.setting else self.problem.label

    @property
    def details(self) -> Sequence[str]:
        """The error beside its bound; what is wrong; what the wrong outputs have in common."""
        lines = []
        if not math.isnan(self.error):
            lines.append(
                f"  error {self.error:.2g} of at most {self.bound:.2g} ({self.precision}), "
                f"worst output {self.worst:.2g} of at most {self.limit:.2g}"
            )
            lines += wrapped(self.compared)
        lines += [f"  {line}" for line in self.failures]
        lines += [f"  pattern: {line}" for line in self.patterns]
        fault = next((f.kind for f in self.findings if f.error), None)
        if fault and not any(line.startswith("  try: ") for line in self.failures):
            lines.append(f"  try: {FAULTS[fault].advice}")
        return lines + _warnings([self])

    def __bool__(self) -> bool:
        return self.ok  # so that `assert convlab.check(...)` means what it says

    @property
    def verdict(self) -> str:
        """In a word: how far it came."""
        if self.ok or self.fault is None:
            return "right" if self.ok else "wrong"
        return self.fault if self.fault == BuildError.kind else "failed"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as ``report.schema.json`` has it; a number not known is None."""
        found = {name: getattr(self, name) for name in ("sentence", "patterns", "notes")}
        known = self.kernel, self.verdict, self.problem, self.failures, self.findings
        return plain(self.cells | _outcome(*known) | found)

    def figure(self) -> Chart:
        """Draw where the error is, over (p, q) and over (n, k).

        Raises ConvlabError if there is no output to draw.
        """
        if self.pixels is None or self.channels is None or not self.outputs:
            raise ConvlabError(f"{self.kernel} on {self.problem.label}: no outputs were compared")
        about = self.problem.y_shape, self.sentence, self.patterns
        return charts.error_map(self.pixels, self.channels, *about)


@dataclass(frozen=True, repr=False)
class Reports(Result):
    """The reports of one kernel on a set of problems."""

    kernel: str
    reports: tuple[Report, ...]  # one for each problem that was checked, in order
    skipped: tuple[tuple[Problem, str], ...] = ()  # what the kernel declines, and why
    smallest: Report | None = None  # on the smallest problem found on which it is wrong
    notes: tuple[str, ...] = ()  # what was checked, and what was left out
    tried: tuple[tuple[Problem, bool], ...] = ()  # in search of the smallest: whether it was right
    findings: tuple[Finding, ...] = ()  # of the kernel, whatever the problem: what nvcc says of it

    @property
    def ok(self) -> bool:
        """Whether at least one problem was checked, none was wrong, and nvcc compiles it."""
        return bool(self.reports) and not self.wrong and not self.errors

    @property
    def errors(self) -> list[Finding]:
        """Why it does not build."""
        return [finding for finding in self.findings if finding.error]

    def joined(self, findings: Sequence[Finding], note: str = "") -> Reports:
        """These reports, and what else was found of the kernel."""
        notes = (*self.notes, *([note] * bool(note)))
        return replace(self, findings=(*findings, *self.findings), notes=notes)

    declined = property(lambda self: not self.reports)

    @property
    def wrong(self) -> list[Report]:
        """The reports of the problems on which the kernel is wrong."""
        return [report for report in self.reports if not report.ok]

    @property
    def patterns(self) -> list[str]:
        """What sets the problems on which it is wrong apart (`shapes.across`), and what recurs."""
        wrong = self.wrong
        told = Counter(line.split(": ")[0] for report in wrong for line in report.patterns)
        again = [
            f"on {many} of {len(wrong)} wrong problems: {text}"
            for text, many in told.most_common(3)
            if 3 * many >= len(wrong) > 1
        ]
        across = rooms.provided("patterns", "of_problems")
        if across is None:
            return again
        return across([(r.problem, r.ok) for r in self if not r.setting], self.tried) + again

    frame = property(lambda self: pd.DataFrame([report.cells for report in self]))

    @property
    def sentence(self) -> str:
        """On how many problems it is right."""
        declined = f", {len(self.skipped)} declined" if self.skipped else ""
        if not self.reports:
            return f"{self.kernel}: nothing was checked{declined}"
        plain = [report for report in self if not report.setting]
        right = sum(report.ok for report in plain)
        verdict = "WRONG, " if self.wrong else ""
        verdict += "does not build by nvcc; simulated: " if self.errors else ""
        special = [report for report in self if report.setting]
        others = f", in {sum(r.ok for r in special)} of {len(special)} settings" if special else ""
        return (
            f"{self.kernel}: {verdict}right on {right} of {len(plain)} problems{declined}{others}"
        )

    @property
    def tables(self) -> Sequence[Table]:
        """A row for each problem of a short set."""
        if not 1 < len(self) <= _SHORT:
            return ()
        shown = ["right" if report.ok else "WRONG" for report in self]
        return (Table(self.frame.assign(shown=shown), _COLUMNS),)

    @property
    def details(self) -> Sequence[str]:
        """How near it came to a bound; what failing problems share, the smallest, the first."""
        lines = [f"  {worded(finding)}" for finding in self.errors]
        if self.ok:
            plain = [report for report in self if not report.setting]
            nearest = max(plain, key=lambda report: report.error / report.bound)
            lines.append(
                f"  nearest to its bound: error {nearest.error:.2g} of at most "
                f"{nearest.bound:.2g} on {nearest.problem.label}"
            )
        lines += _warnings([self, *self.reports]) + [f"  pattern: {line}" for line in self.patterns]
        if self.smallest is not None:
            if not self.smallest.setting:
                lines.append(f'  smallest that fails: --problem "{self.smallest.problem}"')
            lines += [f"  {line}" for line in str(self.smallest).split("\n")]
        wrong = [f"wrong on {r.label}: {r.summary}" for r in self.wrong]
        declined = [f"declined {p.label}: {why.split(': ', 1)[-1]}" for p, why in self.skipped]
        for told, rest in ((wrong, "and on {} more"), (declined, "and {} more declined")):
            more = [rest.format(len(told) - _LISTED)] if len(told) > _LISTED else []
            lines += [f"  {line}" for line in told[:_LISTED] + more]
        return lines

    @property
    def about(self) -> dict[str, Any]:
        """The reports themselves, and what they have in common."""
        declined = [{"problem": p.label, "reason": reason} for p, reason in self.skipped]
        worst = self.wrong[:1] if self.smallest is None else [self.smallest]
        failures = [text for report in worst for text in report.failures]
        found = [finding for report in worst for finding in report.findings]
        if self.errors:
            verdict = BuildError.kind
            failures = [*map(worded, self.errors), *failures]
        elif worst or self.ok:
            verdict = worst[0].verdict if worst else "right"
        else:
            verdict = "declined"
            failures = [reason for _, reason in self.skipped] or ["no problem was asked for"]
            found = [Finding(verdict, reason) for reason in failures]
        problem, least = (worst[0].problem, worst[0]) if worst else (None, None)
        warned = [finding for finding in self.findings if not finding.error]
        return {
            "reports": self.reports,
            "skipped": declined,
            "smallest": least,
            "patterns": self.patterns,
            **_outcome(self.kernel, verdict, problem, failures, [*self.errors, *found, *warned]),
        }

    def figure(self) -> Chart:
        """Draw where the error is on the smallest problem that fails, or else on the one nearest.

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
