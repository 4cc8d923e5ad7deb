"""What checks found: the report of one problem, and the reports of a set of them."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..show import plot
from ..words.errors import ConvlabError
from ..words.problem import Problem
from .shapes import across

_LISTED = 6  # problems that get a line of their own


@dataclass(frozen=True, repr=False)
class Report:
    """What a check found on one problem. It pickles, and is small whatever the problem's size.

    Attributes
    ----------
    ok
        Whether nothing was wrong.
    problem, kernel, title, precision, engine
        What was checked.
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
    failures, patterns, notes
        Lines of text: what is wrong; what the wrong outputs have in common; what was left out and
        why.
    fault
        The kind of fault of a kernel that did not run to its end (`LaunchError.kind`), or None.
    pixels, channels
        Errors over what is allowed: the largest over (n, k) as (P, Q), and over (p, q) as (N, K),
        each pooled to at most 256 x 256.
    counters, host_seconds
        The simulator's counters and the wall time of the first run.
    """

    ok: bool
    problem: Problem
    kernel: str
    title: str
    precision: str
    engine: str
    error: float
    bound: float
    worst: float
    limit: float
    outputs: int
    wrong: int
    unwritten: int
    compared: str
    failures: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fault: str | None = None
    pixels: np.ndarray | None = field(default=None, repr=False, compare=False)
    channels: np.ndarray | None = field(default=None, repr=False, compare=False)
    counters: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    host_seconds: float = field(default=math.nan, repr=False, compare=False)

    @property
    def traffic_bytes(self) -> int | None:
        """What the first run moved of global memory: 32 bytes for each sector; None off the
        simulator. Calls of cuBLAS count with their model (tiles of 128x128), as in `Timing`.
        """
        counted = self.counters or {}
        if "global_load_bytes" not in counted:
            return None
        parts = ("global_load_bytes", "global_store_bytes", "library_bytes")
        return sum(int(counted.get(part, 0)) for part in parts)

    @property
    def frame(self) -> pd.DataFrame:
        """The report as one row."""
        row = {
            "kernel": self.kernel, "title": self.title, "class": self.precision,
            "engine": self.engine, "problem": self.problem.label, "right": self.ok,
            "error": self.error, "bound": self.bound, "worst": self.worst, "limit": self.limit,
            "outputs": self.outputs, "wrong": self.wrong, "unwritten": self.unwritten,
            "compared": self.compared,
        }  # fmt: skip
        return pd.DataFrame([row])

    @property
    def summary(self) -> str:
        """What is wrong in one line; empty if nothing is."""
        if self.ok:
            return ""
        first = self.failures[0].split("\n")[0].removesuffix(", the first of them:")
        return f"{first}; {self.patterns[0]}" if self.patterns else first

    def __str__(self) -> str:
        verdict = "right" if self.ok else "WRONG"
        lines = [f"{self.kernel} on {self.problem.label}: {verdict}"]
        if not math.isnan(self.error):
            lines.append(
                f"  error {self.error:.2g} of at most {self.bound:.2g} ({self.precision}), worst "
                f"output {self.worst:.2g} of at most {self.limit:.2g}; {self.compared}"
            )
        lines += [f"  {line}" for text in self.failures for line in text.split("\n")]
        lines += [f"  pattern: {line}" for line in self.patterns]
        return "\n".join(lines + [f"  {line}" for line in self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _framed(str(self), self.ok)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as what JSON can hold; a number that is not known is None."""
        (row,) = self.frame.to_dict("records")
        return {
            **{key: plain(value) for key, value in row.items()},
            "dimensions": str(self.problem),
            "failures": list(self.failures),
            "patterns": list(self.patterns),
            "notes": list(self.notes),
            "fault": self.fault,
        }

    def plot(self) -> plot.Chart:
        """Draw where the error is, over (p, q) and over (n, k).

        Raises ConvlabError if there is no output to draw.
        """
        if self.pixels is None or self.channels is None or not self.outputs:
            raise ConvlabError(f"{self.kernel} on {self.problem.label}: no outputs were compared")
        title = str(self).split("\n")[0]
        return plot.error_map(
            self.pixels, self.channels, self.problem.y_shape, title, self.patterns
        )


@dataclass(frozen=True, repr=False)
class Reports:
    """The reports of one kernel on a set of problems.

    Attributes
    ----------
    kernel
        Its name.
    reports
        One for each problem that was checked, in order.
    skipped
        Problems that the kernel declines, each with the reason.
    smallest
        The report of the smallest problem found on which it is wrong, if it is on any.
    notes
        What was checked, and what was left out.
    """

    kernel: str
    reports: tuple[Report, ...]
    skipped: tuple[tuple[Problem, str], ...] = ()
    smallest: Report | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether at least one problem was checked and none was wrong."""
        return bool(self.reports) and not self.wrong

    @property
    def wrong(self) -> list[Report]:
        """The reports of the problems on which the kernel is wrong."""
        return [report for report in self.reports if not report.ok]

    @property
    def patterns(self) -> list[str]:
        """What sets the problems on which it is wrong apart (`shapes.across`), and what recurs."""
        wrong = self.wrong
        told = Counter(line.split(": ")[0] for report in wrong for line in report.patterns)
        again = [f"on {many} of {len(wrong)} wrong problems: {text}"
                 for text, many in told.most_common(3) if 3 * many >= len(wrong) > 1]  # fmt: skip
        return across([(report.problem, report.ok) for report in self.reports]) + again

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each report."""
        frames = [report.frame for report in self.reports]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def plot(self) -> plot.Chart:
        """Draw where the error is on the smallest problem that fails, or else on the one nearest.

        Raises ConvlabError if nothing was compared.
        """
        drawn = [r for r in (self.smallest, *self.wrong, *self.reports) if r is not None]
        drawn = [r for r in drawn if r.pixels is not None and r.outputs]
        if not drawn:
            raise ConvlabError(f"{self.kernel}: no outputs were compared")
        return drawn[0].plot()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold."""
        return {
            "kernel": self.kernel,
            "ok": self.ok,
            "reports": [report.to_dict() for report in self.reports],
            "skipped": [
                {"problem": problem.label, "reason": reason} for problem, reason in self.skipped
            ],
            "smallest": self.smallest and self.smallest.to_dict(),
            "patterns": self.patterns,
            "notes": list(self.notes),
        }

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def __str__(self) -> str:
        wrong = self.wrong
        declined = f", {len(self.skipped)} declined" if self.skipped else ""
        lines = [
            (
                f"{self.kernel}: {'' if self.ok else 'WRONG, '}right on "
                f"{len(self) - len(wrong)} of {len(self)} problems{declined}"
            )
        ]
        if not self.reports:
            lines[0] = f"{self.kernel}: nothing was checked{declined}"
        elif not wrong:
            closest = max(self.reports, key=lambda r: r.error / r.bound)
            lines.append(
                f"  nearest to its bound: error {closest.error:.2g} of at most "
                f"{closest.bound:.2g} on {closest.problem.label}"
            )
        lines += [f"  {line}" for line in self.notes]
        lines += [f"  pattern: {line}" for line in self.patterns]
        if self.smallest is not None:
            lines.append(f'  smallest that fails: --problem "{self.smallest.problem}"')
            lines += [f"  {line}" for line in str(self.smallest).split("\n")]
        lines += [f"  wrong on {r.problem.label}: {r.summary}" for r in wrong[:_LISTED]]
        if len(wrong) > _LISTED:
            lines.append(f"  and on {len(wrong) - _LISTED} more")
        lines += [f"  declined {problem.label}: {_reason(reason)}" for problem, reason in
                  self.skipped[:_LISTED]]  # fmt: skip
        if len(self.skipped) > _LISTED:
            lines.append(f"  and {len(self.skipped) - _LISTED} more declined")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _framed(str(self), self.ok)


def plain(value: Any) -> Any:
    """Return a frame's value as JSON has it: no NaN, no numpy."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if hasattr(value, "item") else value


def _reason(text: str) -> str:
    return text.split(": ", 1)[-1]


def _framed(text: str, ok: bool) -> str:
    color = "#009E73" if ok else "#D55E00"
    head, *rest = text.split("\n")
    return (
        f'<div style="border-left:4px solid {color};padding-left:8px">'
        f"<b>{html.escape(head)}</b><pre>{html.escape(chr(10).join(rest))}</pre></div>"
    )
