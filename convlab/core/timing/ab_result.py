"""The result of comparing A and B: on one problem, and on a set of problems."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..correctness.report import Report, traffic_bytes
from ..cost import saved_cost
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import BAD, GOOD, Result, Several
from .ab_timing import Paired

_COUNTERS = (
    "traffic_bytes",
    "global_load_bytes",
    "global_store_bytes",
    "library_bytes",
    "global_load_requests",
    "global_store_requests",
    "shared_requests",
    "shared_wavefronts",
    "barriers",
)
# A time below this share of the floor is noted: the ceilings behind the floor are no more precise.
BELOW = 0.98
BELOW_WORDS = (
    "below the floor: fewer products (Winograd), other units (fp32 on tensor cores), "
    "y left in the L2, or work left out"
)


@dataclass(frozen=True, repr=False)
class AB(Result):
    """The result of comparing A and B; `verdict`, `ratio` and `interval` are about B.

    Attributes
    ----------
    a, b : the two names; "(A)" and "(B)" follow where the names are equal.
    problem, engine, classes : what was run, where, and the precision classes of A and B.
    threshold : how far from 1 a ratio may be and still be called the same.
    modes : on a GPU, what each mode gave; the verdict is about the first one.
    reports : the checks of A and B; empty if they were not checked.
    caught : what A and B did instead of the work, or empty texts; see ``convlab/honest/cheats.md``.
    floors : the theoretical minimum in seconds in A's and B's class; NaN without a GPU.
    notes : lines: device, clock, scaling, what could not be done.
    made : date, machine, versions, sources and flags; see `save`.
    """

    a: str
    b: str
    problem: Problem
    engine: str
    threshold: float
    classes: tuple[str, str]
    modes: tuple[Paired, ...] = ()
    reports: tuple[Report, ...] = field(default=(), repr=False)
    caught: tuple[str, str] = ("", "")
    floors: tuple[float, float] = (math.nan, math.nan)
    notes: tuple[str, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether neither is wrong, and neither was caught."""
        return all(report.ok for report in self.reports) and not any(self.caught)

    @property
    def counted(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """A's and B's counters on the simulator; empty if one is wrong, or both were timed."""
        if self.modes or not self.reports or not self.ok:
            return {}, {}
        return self.reports[0].counters or {}, self.reports[-1].counters or {}

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each mode, "counters" on the simulator; empty if one is wrong."""
        if self.modes:
            return {mode.mode: mode.ratio.verdict(self.threshold) for mode in self.modes}
        if math.isnan(self.ratio):
            return {}
        if self.ratio == 1:
            return {"counters": "same bytes"}
        return {"counters": "fewer bytes" if self.ratio < 1 else "more bytes"}

    @property
    def verdict(self) -> str:
        """B against A in the first mode: "faster", "slower", "same", "undecided" or "incorrect".

        On the simulator "fewer bytes", "more bytes" or "same bytes". These say nothing about speed.
        """
        without = "undecided" if self.ok else "incorrect"
        return next(iter(self.verdicts.values()), without)

    @property
    def ratio(self) -> float:
        """B's time over A's in the first mode; on the simulator B's bytes over A's; or NaN."""
        if self.modes:
            return self.modes[0].ratio.value
        a, b = map(traffic_bytes, self.counted)
        return b / a if a and b else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of `ratio`; None for counters, which are exact."""
        if not self.modes:
            return None
        ratio = self.modes[0].ratio
        return ratio.low, ratio.high

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each mode, times in ms; on the simulator one row for each counter."""
        return self._times() if self.modes else self._counters()

    def _counters(self) -> pd.DataFrame:
        """Return a row for each counter that is not 0 on both sides."""
        columns = {
            side: {"traffic_bytes": traffic_bytes(counters), **counters}
            for side, counters in zip("ab", self.counted, strict=True)
        }
        rows = pd.DataFrame(columns, index=list(_COUNTERS)).dropna()
        rows = rows[(rows != 0).any(axis=1)].astype(int).rename_axis("counter").reset_index()
        return rows.assign(ratio=rows["b"] / rows["a"])

    def _times(self) -> pd.DataFrame:
        """Return a row for each mode."""
        rows = []
        for mode, verdict in zip(self.modes, self.verdicts.values(), strict=True):
            a, b = mode.seconds
            mhz, mhz_low, mhz_high = mode.mhz or (None, None, None)
            a_x_floor = a / self.floors[0]
            b_x_floor = b / self.floors[1]
            rows.append(
                {
                    "mode": mode.mode,
                    "verdict": verdict,
                    "ratio": mode.ratio.value,
                    "low": mode.ratio.low,
                    "high": mode.ratio.high,
                    "rounds": mode.ratio.rounds,
                    "discarded": mode.discarded,
                    "a_ms": 1e3 * a,
                    "b_ms": 1e3 * b,
                    "a_x_floor": a_x_floor,
                    "b_x_floor": b_x_floor,
                    "below_floor": min(a_x_floor, b_x_floor) < BELOW,
                    "mhz": mhz,
                    "mhz_low": mhz_low,
                    "mhz_high": mhz_high,
                    "method": mode.method,
                }
            )
        return pd.DataFrame(rows)

    @property
    def samples(self) -> pd.DataFrame:
        """One row for each round that counts: mode, round, a_ms, b_ms, ratio."""
        rows = [
            (mode.mode, i, 1e3 * a, 1e3 * b, b / a)
            for mode in self.modes
            for i, (a, b) in enumerate(zip(mode.a_seconds, mode.b_seconds, strict=True))
        ]
        return pd.DataFrame(rows, columns=["mode", "round", "a_ms", "b_ms", "ratio"])

    @property
    def costs(self) -> list[dict[str, Any]]:
        """The rows that ``convlab history`` shows."""
        rows = []
        sources = self.made.get("kernels", ({}, {}))
        sides = zip("ab", (self.a, self.b), sources, self.counted, strict=True)
        for side, name, source, counters in sides:
            for mode, times in self.samples.groupby("mode", sort=False)[f"{side}_ms"]:
                rows.append(saved_cost(name, self.problem, times.median(), source, mode, times))
            if moved := traffic_bytes(counters):
                rows.append(saved_cost(name, self.problem, moved / 1e6, source))
        return rows

    @property
    def sentence(self) -> str:
        """What B is against A, in each mode."""
        if not self.ok:
            answer = self._invalid()
        elif self.modes:
            answer = self._timed()
        else:
            answer = self._counted()
        return f"{self.problem.label}: {answer}"

    def _invalid(self) -> str:
        """Return which side is wrong, or was caught."""
        sides = "AB"
        if len(self.reports) == 1:
            sides = ["A and B, which are the same,"]
        # Without reports the two were not checked, and one was caught.
        wrong = [s for s, report in zip(sides, self.reports, strict=False) if not report.ok]
        if wrong:
            return f"{' and '.join(wrong)} INCORRECT; nothing was compared"
        caught = [side for side, text in zip("AB", self.caught, strict=True) if text]
        return f"{' and '.join(caught)} CAUGHT; nothing was compared"

    def _counted(self) -> str:
        """Return how much B moves against A, on the simulator."""
        if not self.verdicts:
            return "nothing to compare"
        moved = self.verdict.replace("same", "as many")
        return f"B moves {moved} (simulated; says nothing about speed)"

    def _timed(self) -> str:
        """Return what B is against A in each mode, and who is below the floor."""
        answers = []
        below = []
        for row in self.frame.itertuples():
            if row.verdict == "same":
                text = f"the same within {100 * self.threshold:g}%"
            elif row.verdict == "undecided":
                text = "undecided"
            else:
                change = 100 * (row.ratio - 1)
                more = "more" if change > 0 else "less"
                text = f"B is {row.verdict}, {abs(change):.2g}% {more} time"
            answers.append(f"{text} ({row.mode})")
            # The floor counts x, w and bias as read from memory, which they are in this mode.
            if row.mode == "cold":
                sides = {"A": row.a_x_floor, "B": row.b_x_floor}
                below = [f"{side} is {BELOW_WORDS}" for side, x in sides.items() if x < BELOW]
        return "; ".join(answers + below)

    @property
    def details(self) -> Sequence[str]:
        """The names; a line for each counter, or a paragraph for each mode; wrong reports."""
        lines = [f"  A  {self.a} ({self.classes[0]})", f"  B  {self.b} ({self.classes[1]})"]
        if any(self.caught):
            for side, text in zip("AB", self.caught, strict=True):
                lines.append(f"  {side} caught: {text or 'no'}")
        lines += self._time_lines() if self.modes else self._counter_lines()
        # Where A and B are the same, so are their reports.
        wrong = [str(report) for report in self.reports if not report.ok]
        return [*lines, *dict.fromkeys(wrong)]

    def _counter_lines(self) -> list[str]:
        """Return a line for each counter."""
        lines = []
        for row in self.frame.itertuples():
            ratio = f"x{row.ratio:.4g}" if math.isfinite(row.ratio) else "-"
            lines.append(f"  {row.counter:<21} {row.a:>16,} {row.b:>16,}  {ratio}")
        return lines

    def _time_lines(self) -> list[str]:
        """Return a paragraph for each mode: the ratio, the times, the method, the clock, notes."""
        lines = []
        for row, mode in zip(self.frame.itertuples(), self.modes, strict=True):
            left_out = f", {row.discarded} left out" if row.discarded else ""
            clock = "SM clock unknown"
            if mode.mhz:
                clock = "SM clock {} MHz ({} to {})".format(*mode.mhz)
            a = f"A {row.a_ms:.4g} ms ({row.a_x_floor:.3g}x floor)"
            b = f"B {row.b_ms:.4g} ms ({row.b_x_floor:.3g}x floor)"
            paragraph = [f"{a}, {b}", f"{row.method}; {clock}", *mode.notes]
            lines.append(f"  {row.mode:<5} {row.verdict:<9} B/A {mode.ratio}{left_out}")
            lines += [" " * 8 + text for text in paragraph]
        return lines

    @property
    def row(self) -> dict[str, str]:
        """The first mode's verdict, ratio and interval."""
        cells = {"problem": self.problem.label, "verdict": self.verdict}
        if self.modes:
            value, _, rest = str(self.modes[0].ratio).partition(", ")
            cells |= {"B/A": value, "interval": rest.rpartition(", ")[0] or rest}
        else:
            cells["B/A"] = "-" if math.isnan(self.ratio) else f"{self.ratio:.4g}"
        return cells

    @property
    def about(self) -> dict[str, Any]:
        """All of it, except the single rounds."""
        rows = self.frame.to_dict("records")
        # The rows of counters have no modes.
        for row, mode in zip(rows, self.modes, strict=False):
            row["notes"] = mode.notes
            row["runs"] = mode.runs
        names = (
            "a",
            "b",
            "classes",
            "engine",
            "problem",
            "verdict",
            "verdicts",
            "ratio",
            "interval",
            "threshold",
            "reports",
            "caught",
        )
        return {"rows": rows} | {name: getattr(self, name) for name in names}

    @property
    def color(self) -> str:
        colors = {"faster": GOOD, "slower": "#E69F00", "incorrect": BAD}
        return colors.get(self.verdict, "#777777")

    def figure(self) -> Chart:
        title = f"B = {self.b} against A = {self.a}, {self.problem.label}"
        return charts.ab_chart(self.frame, self.samples, self.threshold, title, self.notes)


@dataclass(frozen=True, repr=False)
class ABs(Several):
    """The results of comparing A and B on a set of problems."""

    results: tuple[AB, ...]

    @property
    def sentence(self) -> str:
        """How often each verdict was given."""
        counts = Counter(result.verdict for result in self.results)
        verdicts = ", ".join(f"{verdict} on {count}" for verdict, count in counts.most_common())
        first = self.results[0]
        return f"B = {first.b} against A = {first.a}, {len(self)} problems: {verdicts}"

    def figure(self) -> Chart:
        """Draw each problem's ratio with its interval."""
        rows = self.frame
        first = self.results[0]
        if "mode" in rows:
            rows = rows.assign(mode=rows["problem"] + ", " + rows["mode"])
        elif "counter" in rows:
            rows = rows[rows["counter"] == "traffic_bytes"].assign(counter=rows["problem"])
        return charts.ab_chart(rows, first.samples, first.threshold, self.sentence, self.notes)
