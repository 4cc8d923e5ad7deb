"""What a comparison of A and B found, and how it is told."""

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
BELOW = 0.98  # of the floor: what is measured as the floor is no sharper
BELOW_WORDS = (
    "below the floor: fewer products (Winograd), other units (fp32 on tensor cores), "
    "y left in the L2, or work left out"
)


@dataclass(frozen=True, repr=False)
class AB(Result):
    """What a comparison of A and B found; `verdict`, `ratio` and `interval` are about B.

    Attributes
    ----------
    a, b : the two by name; "(A)" and "(B)" follow where the names are alike.
    problem, engine, classes : what was run, where, and the precision classes of A and B.
    threshold : how far from 1 a ratio may be and still be called the same.
    modes : on a GPU, what each mode gave; the first one is the verdict's.
    reports : the checks of A and B; empty if they were not wanted.
    caught : what A and B did instead of the work, or empty texts; see ``convlab/honest/cheats.md``.
    floors : seconds that the problem takes A's and B's class at least; NaN without a GPU.
    notes : lines: device, clock, scaling, what could not be done.
    made : when, on what, with which versions, of which sources and flags; see `save`.
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
        """Whether neither was found wrong, nor caught."""
        return all(report.ok for report in self.reports) and not any(self.caught)

    @property
    def counted(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """On the simulator, A's and B's counters, which are no times; empty if one is wrong."""
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
        word = "same" if self.ratio == 1 else "fewer" if self.ratio < 1 else "more"
        return {"counters": f"{word} bytes"}

    @property
    def verdict(self) -> str:
        """B against A: "faster", "slower", "same" or "undecided" in the first mode; or "wrong".

        On the simulator "fewer bytes", "more bytes" or "same bytes": it knows nothing of speed.
        """
        return next(iter(self.verdicts.values()), "undecided" if self.ok else "wrong")

    @property
    def ratio(self) -> float:
        """B's time over A's in the first mode (on the simulator B's bytes over A's), or NaN."""
        if self.modes:
            return self.modes[0].ratio.value
        a, b = map(traffic_bytes, self.counted)
        return b / a if a and b else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of `ratio`; None for counters, which are exact."""
        return (self.modes[0].ratio.low, self.modes[0].ratio.high) if self.modes else None

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each mode, times in ms; on the simulator one row for each counter."""
        if not self.modes:
            counted = {
                side: {"traffic_bytes": traffic_bytes(counters), **counters}
                for side, counters in zip("ab", self.counted, strict=True)
            }
            rows = pd.DataFrame(counted, index=list(_COUNTERS)).dropna()
            rows = rows[(rows != 0).any(axis=1)].astype(int).rename_axis("counter").reset_index()
            return rows.assign(ratio=rows["b"] / rows["a"])
        rows = []
        for mode, verdict in zip(self.modes, self.verdicts.values(), strict=True):
            (a, b) = mode.seconds
            ratio = mode.ratio
            mhz = dict(zip(("mhz", "mhz_low", "mhz_high"), mode.mhz or [None] * 3, strict=True))
            rows.append(
                {
                    "mode": mode.mode,
                    "verdict": verdict,
                    "ratio": ratio.value,
                    "low": ratio.low,
                    "high": ratio.high,
                    "rounds": ratio.rounds,
                    "discarded": mode.discarded,
                    "a_ms": 1e3 * a,
                    "b_ms": 1e3 * b,
                    "a_x_floor": a / self.floors[0],
                    "b_x_floor": b / self.floors[1],
                    "below_floor": min(a / self.floors[0], b / self.floors[1]) < BELOW,
                    **mhz,
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
        rows = []
        sources = self.made.get("kernels", ({}, {}))
        sides = zip("ab", (self.a, self.b), sources, self.counted, strict=True)
        for side, name, source, counters in sides:
            for mode, taken in self.samples.groupby("mode", sort=False)[f"{side}_ms"]:
                rows.append(saved_cost(name, self.problem, taken.median(), source, mode, taken))
            if moved := traffic_bytes(counters):
                rows.append(saved_cost(name, self.problem, moved / 1e6, source))
        return rows

    @property
    def sentence(self) -> str:
        """What B is against A, in each mode."""
        return f"{self.problem.label}: {self._said()}"

    def _said(self) -> str:
        if not self.ok:
            sides = "AB" if len(self.reports) != 1 else ["A and B, which are the same,"]
            wrong = zip(sides, self.reports, strict=False)  # of none there are none
            bad = [side for side, report in wrong if not report.ok]
            caught = [side for side, text in zip("AB", self.caught, strict=True) if text]
            told = f"{' and '.join(bad or caught)} {'WRONG' if bad else 'CAUGHT'}"
            return f"{told}; nothing was compared"
        if not self.modes:
            many = self.verdict.replace("same", "as many")
            moved = f"B moves {many} (simulated; says nothing about speed)"
            return moved if self.verdicts else "nothing to compare"
        said = []
        below = []
        for row in self.frame.itertuples():
            change = 100 * (row.ratio - 1)
            text = {"same": f"the same within {100 * self.threshold:g}%", "undecided": "undecided"}
            moved = (
                f"B is {row.verdict}, {abs(change):.2g}% {'more' if change > 0 else 'less'} time"
            )
            said.append(f"{text.get(row.verdict, moved)} ({row.mode})")
            if row.mode == "cold":  # when what it reads comes from memory
                sides = {"A": row.a_x_floor, "B": row.b_x_floor}
                below = [f"{side} is {BELOW_WORDS}" for side, x in sides.items() if x < BELOW]
        return "; ".join(said + below)

    @property
    def details(self) -> Sequence[str]:
        """Who is A and who is B; a paragraph for each mode or a line for each counter; reports."""
        lines = [f"  A  {self.a} ({self.classes[0]})", f"  B  {self.b} ({self.classes[1]})"]
        for side, text in zip("AB", self.caught, strict=True) if any(self.caught) else ():
            lines.append(f"  {side} caught: {text or 'no'}")
        for row in self.frame.itertuples() if not self.modes else ():
            ratio = f"x{row.ratio:.4g}" if math.isfinite(row.ratio) else "-"
            lines.append(f"  {row.counter:<21} {row.a:>16,} {row.b:>16,}  {ratio}")
        for row, mode in zip(self.frame.itertuples(), self.modes, strict=False):  # or of counters
            left_out = f", {row.discarded} left out" if row.discarded else ""
            lines.append(f"  {row.mode:<5} {row.verdict:<9} B/A {mode.ratio}{left_out}")
            times = (
                f"A {row.a_ms:.4g} ms ({row.a_x_floor:.3g}x floor), "
                f"B {row.b_ms:.4g} ms ({row.b_x_floor:.3g}x floor)"
            )
            span = "SM clock {} MHz ({} to {})"
            clock = span.format(*mode.mhz) if mode.mhz else "SM clock unknown"
            told = (times, f"{row.method}; {clock}", *mode.notes)
            lines += [" " * 8 + text for text in told]
        return [*lines, *dict.fromkeys(str(report) for report in self.reports if not report.ok)]

    @property
    def row(self) -> dict[str, str]:
        """The first mode's verdict, ratio and interval."""
        found = {"problem": self.problem.label, "verdict": self.verdict}
        if self.modes:
            value, _, rest = str(self.modes[0].ratio).partition(", ")
            return found | {"B/A": value, "interval": rest.rpartition(", ")[0] or rest}
        return found | {"B/A": "-" if math.isnan(self.ratio) else f"{self.ratio:.4g}"}

    @property
    def about(self) -> dict[str, Any]:
        """All of it but the single rounds."""
        rows = self.frame.to_dict("records")
        for row, mode in zip(rows, self.modes, strict=False):  # of counters there are no modes
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
        return {"faster": GOOD, "slower": "#E69F00", "wrong": BAD}.get(self.verdict, "#777777")

    def figure(self) -> Chart:
        title = f"B = {self.b} against A = {self.a}, {self.problem.label}"
        return charts.ab_chart(self.frame, self.samples, self.threshold, title, self.notes)


@dataclass(frozen=True, repr=False)
class ABs(Several):
    """What comparisons of A and B on the problems of a set found."""

    results: tuple[AB, ...]

    @property
    def sentence(self) -> str:
        """How often B is what."""
        counts = Counter(result.verdict for result in self.results)
        said = ", ".join(f"{verdict} on {count}" for verdict, count in counts.most_common())
        first = self.results[0]
        return f"B = {first.b} against A = {first.a}, {len(self)} problems: {said}"

    def figure(self) -> Chart:
        """Draw each problem's ratio with its interval."""
        rows = self.frame
        first = self.results[0]
        if "mode" in rows:
            rows = rows.assign(mode=rows["problem"] + ", " + rows["mode"])
        elif "counter" in rows:
            rows = rows[rows["counter"] == "traffic_bytes"].assign(counter=rows["problem"])
        return charts.ab_chart(rows, first.samples, first.threshold, self.sentence, self.notes)
