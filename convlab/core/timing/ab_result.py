"""Present the comparison of A and B: on one problem (`AB`) or on a set of problems (`ABs`)."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from .. import forecast
from ..correctness.report import Report, traffic_bytes
from ..cost import saved_cost
from ..forecast import Forecast
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import BAD, GOOD, Result, Several
from ..show.table import short
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
# A time below this share of the floor is reported. The floor itself is not more precise: it comes
# from measured bandwidth and peak rates.
BELOW = 0.98
BELOW_WORDS = (
    "below the theoretical minimum; possible causes: fewer products (Winograd), other units (fp32 on "
    "tensor cores), y still in the L2, or work left out"
)


@dataclass(frozen=True, repr=False)
class AB(Result):
    """The result of comparing kernels A and B on one problem.

    `verdict`, `ratio` and `interval` describe B in relation to A.

    Attributes
    ----------
    a, b : the two names; "(A)" and "(B)" follow if the names are equal.
    problem, engine, classes : the problem, the engine, and the precision classes of A and B.
    threshold : the verdict is "same" if the interval of the ratio is within 1 ± threshold.
    modes : on a GPU, the result of each mode; `verdict` and `ratio` belong to the first one.
    reports : the checks of A and B; empty if they were not checked.
    caught : what A and B did that makes their times invalid, or empty texts; see
        ``convlab/honest/cheats.md``.
    floors : the theoretical minimum in seconds in A's and in B's class; NaN without a GPU.
    notes : lines of text: the device, the clock, the scaling, what could not be done.
    predicted : on the simulator, a sentence about the predicted times of both at full size; empty if
        they were not predicted.
    predictions : the predicted times of A and B, each with `ms`; empty if they were not predicted.
    forecast_for : the name of the GPU that they are predicted for.
    whole, sampled : the problem at full size, and both counters on it, from sampled blocks; without
        them, counters are of `problem`.
    made : date, machine, versions, sources and flags; see `save`.

    Examples
    --------
    >>> result = convlab.ab("01_direct", "03_smem_tile", "wide")
    >>> result.ratio < 1
    True
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
    predicted: str = ""
    predictions: tuple[Forecast, ...] = ()
    forecast_for: str = ""
    whole: Problem | None = None
    sampled: tuple[Mapping[str, float], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether both kernels are correct, and neither was caught."""
        return all(report.ok for report in self.reports) and not any(self.caught)

    @property
    def counted(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """A's and B's counters on the simulator; empty if one is incorrect, or if they were timed."""
        if self.modes or not self.reports or not self.ok:
            return {}, {}
        if self.sampled:
            return self.sampled
        return self.reports[0].counters or {}, self.reports[-1].counters or {}

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each mode; empty if one is incorrect.

        On the simulator: "predicted", if times are predicted, and "counters".
        """
        if self.modes:
            return {mode.mode: mode.ratio.verdict(self.threshold) for mode in self.modes}
        found = {}
        if self.predictions:
            found["predicted"] = forecast.verdict(*self.predictions)
        traffic = self._traffic_ratio
        if not math.isnan(traffic):
            relation = "fewer" if traffic < 1 else "more"
            found["counters"] = "same bytes" if traffic == 1 else f"{relation} bytes"
        return found

    @property
    def verdict(self) -> str:
        """B in relation to A: "faster", "slower", "same", "undecided" or "incorrect".

        It belongs to the first mode. On the simulator it is "predicted faster", "predicted slower" or
        "too close to predict". Without predicted times it is "fewer bytes", "more bytes" or "same
        bytes": the memory traffic, which says nothing about speed.
        """
        without = "undecided" if self.ok else "incorrect"
        return next(iter(self.verdicts.values()), without)

    @property
    def ratio(self) -> float:
        """B's time over A's in the first mode, or predicted; without times B's traffic; or NaN."""
        if self.modes:
            return self.modes[0].ratio.value
        if self.predictions:
            a, b = self.predictions
            return b.ms / a.ms
        return self._traffic_ratio

    @property
    def _traffic_ratio(self) -> float:
        """B's traffic over A's on the simulator; NaN if it was not counted."""
        a, b = map(traffic_bytes, self.counted)
        return b / a if a and b else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of `ratio`, (low, high); None for counters, which are exact."""
        if not self.modes:
            return None
        ratio = self.modes[0].ratio
        return ratio.low, ratio.high

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each mode, times in ms; on the simulator a row for each counter."""
        return self._times() if self.modes else self._counters()

    def _counters(self) -> pd.DataFrame:
        """Return a row for each counter that is not 0 for both."""
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
        """A row for each round that was kept: mode, round, a_ms, b_ms, ratio."""
        rows = [
            (mode.mode, i, 1e3 * a, 1e3 * b, b / a)
            for mode in self.modes
            for i, (a, b) in enumerate(zip(mode.a_seconds, mode.b_seconds, strict=True))
        ]
        return pd.DataFrame(rows, columns=["mode", "round", "a_ms", "b_ms", "ratio"])

    @property
    def costs(self) -> list[dict[str, Any]]:
        """The rows for ``convlab history``."""
        rows = []
        sources = self.made.get("kernels", ({}, {}))
        sides = zip("ab", (self.a, self.b), sources, self.counted, strict=True)
        for side, name, source, counters in sides:
            for mode, times in self.samples.groupby("mode", sort=False)[f"{side}_ms"]:
                rows.append(saved_cost(name, self.problem, times.median(), source, mode, times))
            if traffic := traffic_bytes(counters):
                rows.append(saved_cost(name, self.whole or self.problem, traffic / 1e6, source))
        return rows

    @property
    def sentence(self) -> str:
        """The answer in one line, for each mode."""
        if not self.ok:
            answer = self._invalid()
        elif self.modes:
            answer = self._timed()
        else:
            answer = self._counted()
        return f"{self.problem.label}: {answer}"

    def _invalid(self) -> str:
        """Return which side is incorrect, or was caught."""
        sides = "AB"
        if len(self.reports) == 1:
            sides = ["A and B, which are the same,"]
        # There are no reports if the kernels were not checked. Then one was caught.
        incorrect = [s for s, report in zip(sides, self.reports, strict=False) if not report.ok]
        if incorrect:
            return f"{' and '.join(incorrect)} INCORRECT; nothing was compared"
        caught = [side for side, text in zip("AB", self.caught, strict=True) if text]
        return f"{' and '.join(caught)} CAUGHT; nothing was compared"

    def _counted(self) -> str:
        """Return how B's memory traffic compares with A's, on the simulator."""
        if "counters" not in self.verdicts:
            return self.predicted or "nothing to compare, because no traffic was counted"
        traffic = {
            "fewer bytes": "B moves fewer bytes than A",
            "more bytes": "B moves more bytes than A",
            "same bytes": "B moves as many bytes as A",
        }
        counted = f"{traffic[self.verdicts['counters']]} (simulated; says nothing about speed)"
        return f"{self.predicted}; {counted}" if self.predicted else counted

    def _timed(self) -> str:
        """Return the verdict of each mode, and which side is below the theoretical minimum."""
        answers = []
        below = []
        for row in self.frame.itertuples():
            if row.verdict == "same":
                text = f"A and B are the same within {100 * self.threshold:g}%"
            elif row.verdict == "undecided":
                text = "undecided, the interval is too wide"
            else:
                change = 100 * (row.ratio - 1)
                more = "more" if change > 0 else "less"
                text = f"B is {row.verdict}, {abs(change):.2g}% {more} time"
            answers.append(f"{text} ({row.mode})")
            # The floor assumes that x, w and bias come from memory: so they do in this mode only.
            if row.mode == "cold":
                sides = {"A": row.a_x_floor, "B": row.b_x_floor}
                below = [f"{side} is {BELOW_WORDS}" for side, x in sides.items() if x < BELOW]
        return "; ".join(answers + below)

    @property
    def details(self) -> Sequence[str]:
        """The names; a line for each counter, or a paragraph for each mode; failing reports."""
        lines = [f"  A  {self.a} ({self.classes[0]})", f"  B  {self.b} ({self.classes[1]})"]
        if any(self.caught):
            for side, text in zip("AB", self.caught, strict=True):
                lines.append(f"  {side} caught: {text or 'no'}")
        lines += self._time_lines() if self.modes else self._counter_lines()
        # If A and B are the same kernel, their reports are equal.
        failing = [str(report) for report in self.reports if not report.ok]
        return [*lines, *dict.fromkeys(failing)]

    def _counter_lines(self) -> list[str]:
        """Return a heading and a line for each counter; nothing without counters."""
        if not self.verdicts:
            return []
        lines = [f"  {'counter':<21} {'A':>16} {'B':>16}  B/A"]
        if self.predictions:
            label = f"predicted ms, {self.forecast_for}"
            a, b = (short(each.ms) for each in self.predictions)
            lines = [f"  {'':<21} {'A':>16} {'B':>16}  B/A"]
            lines.append(f"  {label:<21} {a:>16} {b:>16}  x{self.ratio:.4g}")
        for row in self.frame.itertuples():
            ratio = f"x{row.ratio:.4g}" if math.isfinite(row.ratio) else "-"
            lines.append(f"  {row.counter:<21} {row.a:>16,} {row.b:>16,}  {ratio}")
        return lines

    def _time_lines(self) -> list[str]:
        """Return a paragraph for each mode: the ratio, the times, the method, the clock, notes."""
        lines = []
        for row, mode in zip(self.frame.itertuples(), self.modes, strict=True):
            left_out = f", {row.discarded} rounds left out" if row.discarded else ""
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
            interval = (rest.rpartition(", ")[0] or rest).removeprefix("95% interval ")
            cells |= {"B/A": value, "95% interval": interval}
        else:
            cells["B/A"] = "-" if math.isnan(self.ratio) else f"{self.ratio:.4g}"
        return cells

    @property
    def about(self) -> dict[str, Any]:
        """The whole result for JSON, without the single rounds."""
        rows = self.frame.to_dict("records")
        # Rows of counters do not belong to a mode.
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
            "predicted",
            "predictions",
            "forecast_for",
            "whole",
        )
        return {"rows": rows} | {name: getattr(self, name) for name in names}

    @property
    def color(self) -> str:
        """The colour of the mark next to the result in a notebook."""
        colors = {"faster": GOOD, "slower": "#E69F00", "incorrect": BAD}
        colors |= {f"predicted {name}": colors[name] for name in ("faster", "slower")}
        return colors.get(self.verdict, "#777777")

    def figure(self) -> Chart:
        """Draw the ratio with its interval, and the ratio of each round."""
        title = f"B = {self.b}, A = {self.a}, on {self.problem.label}"
        return charts.ab_chart(self.frame, self.samples, self.threshold, title, self.notes)


@dataclass(frozen=True, repr=False)
class ABs(Several):
    """The result of comparing kernels A and B on a set of problems.

    `len`, an index and a loop give the `AB` of each problem.

    Examples
    --------
    >>> results = convlab.ab("01_direct", "03_smem_tile", ["wide", "square"])    # doctest: +SKIP
    >>> [result.verdict for result in results]                                   # doctest: +SKIP
    """

    results: tuple[AB, ...]

    @property
    def sentence(self) -> str:
        """The number of problems with each verdict."""
        counts = Counter(result.verdict for result in self.results)
        verdicts = ", ".join(f"{verdict} on {count}" for verdict, count in counts.most_common())
        first = self.results[0]
        return f"B = {first.b}, A = {first.a}, on {len(self)} problems: {verdicts}"

    def figure(self) -> Chart:
        """Draw each problem's ratio with its interval."""
        rows = self.frame
        first = self.results[0]
        if "mode" in rows:
            rows = rows.assign(mode=rows["problem"] + ", " + rows["mode"])
        elif "counter" in rows:
            rows = rows[rows["counter"] == "traffic_bytes"].assign(counter=rows["problem"])
        return charts.ab_chart(rows, first.samples, first.threshold, self.sentence, self.notes)
