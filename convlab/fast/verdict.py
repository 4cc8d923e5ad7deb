"""What a comparison of A and B found, and how it is told."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..right.check import Report, plain
from ..show import plot
from ..words.problem import Problem
from .measure import Timing
from .paired import Paired

_COUNTERS = (
    "global_load_bytes", "global_store_bytes", "library_bytes", "global_load_requests",
    "global_store_requests", "shared_requests", "shared_wavefronts", "barriers",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class AB:
    """What a comparison of A and B found; `verdict`, `ratio` and `interval` are about B.

    Attributes
    ----------
    a, b
        The two by name; "(A)" and "(B)" follow where the names are alike.
    problem, engine, threshold
        What was run, where, and how far from 1 a ratio may be and still be called the same.
    classes
        The precision classes of A and B.
    modes
        On a GPU, what each mode gave; the first one is the verdict's.
    counted
        On the simulator, what A and B cost in counters. They are no times.
    reports
        The checks of A and B; empty if they were not wanted.
    floors
        Seconds that the problem takes A's and B's class at least; NaN without a GPU.
    notes
        Lines: device, clock, scaling, what could not be done.
    """

    a: str
    b: str
    problem: Problem
    engine: str
    threshold: float
    classes: tuple[str, str]
    modes: tuple[Paired, ...] = ()
    counted: tuple[Timing, Timing] | None = field(default=None, repr=False)
    reports: tuple[Report, ...] = field(default=(), repr=False)
    floors: tuple[float, float] = (math.nan, math.nan)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether neither was found wrong."""
        return all(report.ok for report in self.reports)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each mode, "counters" on the simulator; empty if one is wrong."""
        if not self.ok:
            return {}
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
        a, b = (timing.traffic_bytes for timing in self.counted or (Timing("", ""),) * 2)
        return b / a if a and b is not None else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of `ratio`; None for counters, which are exact."""
        return (self.modes[0].ratio.low, self.modes[0].ratio.high) if self.modes else None

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each mode, times in ms; on the simulator one row for each counter."""
        if self.counted and not self.modes:
            rows = []
            for name in ("traffic_bytes", *_COUNTERS):
                a, b = (_counter(timing, name) for timing in self.counted)
                if a is not None and b is not None and (a or b or name == "traffic_bytes"):
                    ratio = b / a if a else 1.0 if a == b else math.inf
                    rows.append({"counter": name, "a": a, "b": b, "ratio": ratio})
            return pd.DataFrame(rows, columns=["counter", "a", "b", "ratio"])
        rows = []
        for mode in self.modes:
            a, b = (_median(seconds) for seconds in (mode.a_seconds, mode.b_seconds))
            least, most = mode.mhz[1:] if mode.mhz else (None, None)
            rows.append({
                "mode": mode.mode, "verdict": self.verdicts.get(mode.mode, self.verdict),
                "ratio": mode.ratio.value, "low": mode.ratio.low, "high": mode.ratio.high,
                "rounds": mode.ratio.rounds, "discarded": mode.discarded,
                "a_ms": 1e3 * a, "b_ms": 1e3 * b,
                "a_x_floor": a / self.floors[0], "b_x_floor": b / self.floors[1],
                "a_overhead_us": 1e6 * mode.overheads[0], "b_overhead_us": 1e6 * mode.overheads[1],
                "mhz": mode.mhz[0] if mode.mhz else None, "mhz_low": least, "mhz_high": most,
                "method": mode.method,
            })  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def rounds(self) -> pd.DataFrame:
        """One row for each round that counts: mode, round, a_ms, b_ms, ratio."""
        rows = [
            {"mode": mode.mode, "round": i, "a_ms": 1e3 * a, "b_ms": 1e3 * b, "ratio": b / a}
            for mode in self.modes
            for i, (a, b) in enumerate(zip(mode.a_seconds, mode.b_seconds, strict=True))
        ]
        return pd.DataFrame(rows, columns=["mode", "round", "a_ms", "b_ms", "ratio"])

    def __str__(self) -> str:
        lines = [
            f"{self.problem.label}: {self._sentence()}",
            f"  A  {self.a} ({self.classes[0]})",
            f"  B  {self.b} ({self.classes[1]})",
        ]
        if self.counted and not self.modes:
            for row in self.frame.itertuples():
                ratio = f"x{row.ratio:.4g}" if math.isfinite(row.ratio) else "-"
                lines.append(f"  {row.counter:<21} {row.a:>16,} {row.b:>16,}  {ratio}")
        for mode, row in zip(self.modes, self.frame.to_dict("records"), strict=False):
            lines.append(
                f"  {mode.mode:<5} {row['verdict']:<9} B/A {row['ratio']:.4f}, 95% "
                f"{row['low']:.4f} to {row['high']:.4f}, {row['rounds']} rounds"
                + (f", {row['discarded']} left out" if row["discarded"] else "")
            )
            times = [f"{side.upper()} {row[f'{side}_ms']:.4g} ms" + (
                f" ({row[f'{side}_x_floor']:.3g}x floor)" if row[f"{side}_x_floor"] >= 0 else ""
            ) for side in "ab"]  # fmt: skip
            if row["a_overhead_us"] >= 0 and row["b_overhead_us"] >= 0:
                times.append(f"launch overhead apart: A {row['a_overhead_us']:.1f} µs, "
                             f"B {row['b_overhead_us']:.1f} µs")  # fmt: skip
            clock = "SM clock unknown"
            if mode.mhz:
                clock = f"SM clock {mode.mhz[0]} MHz ({mode.mhz[1]} to {mode.mhz[2]})"
            for text in (", ".join(times), f"{mode.method}; {clock}", *mode.notes):
                lines += textwrap.wrap(text, 100, initial_indent=" " * 8,
                                       subsequent_indent=" " * 8)  # fmt: skip
        for note in self.notes:
            lines += textwrap.wrap(note, 100, initial_indent="  ", subsequent_indent="  ")
        wrong = [str(report) for report in self.reports if not report.ok]
        return "\n".join([*lines, *dict.fromkeys(wrong)])

    __repr__ = __str__

    def _sentence(self) -> str:
        if not self.ok:
            sides = ["A", "B"] if len(self.reports) == 2 else ["A and B, which are the same,"]
            bad = [s for s, report in zip(sides, self.reports, strict=False) if not report.ok]
            return f"{' and '.join(bad)} WRONG; nothing was compared"
        if not self.verdicts:
            return "nothing to compare"
        if not self.modes:
            return f"B moves {self.verdict} (simulated; says nothing about speed)"
        said = []
        for mode in self.modes:
            change, verdict = 100 * (mode.ratio.value - 1), self.verdicts[mode.mode]
            if verdict == "same":
                text = f"the same within {100 * self.threshold:g}%"
            elif verdict == "undecided":
                text = "undecided"
            else:
                text = f"B is {verdict}, {abs(change):.2g}% {'more' if change > 0 else 'less'} time"
            said.append(f"{text} ({mode.mode})")
        return "; ".join(said)

    def _repr_html_(self) -> str:
        good = {"faster": "#009E73", "slower": "#E69F00", "wrong": "#D55E00"}
        head, *rest = str(self).split("\n")
        return (
            f'<div style="border-left:4px solid {good.get(self.verdict, "#777777")};'
            f'padding-left:8px"><b>{html.escape(head)}</b>'
            f"<pre>{html.escape(chr(10).join(rest))}</pre></div>"
        )

    def plot(self, path: str | Path | None = None) -> plot.Chart:
        """Draw the ratios with their intervals, and each round; write the figure if asked to."""
        title = f"B = {self.b} against A = {self.a}, {self.problem.label}"
        chart = plot.ab_chart(self.frame, self.rounds, self.threshold, title, self.notes)
        if path is not None:
            chart.save(path)
        return chart

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the single rounds as what JSON can hold; what is unknown is None."""
        rows = [
            {key: plain(value) for key, value in row.items()}
            for row in self.frame.to_dict("records")
        ]
        for row, mode in zip(rows, self.modes, strict=False):
            row["notes"] = list(mode.notes)
        return {
            "a": self.a, "b": self.b, "classes": list(self.classes), "engine": self.engine,
            "problem": {
                "name": self.problem.name, **self.problem.variables(), "bias": self.problem.bias
            },
            "verdict": self.verdict, "verdicts": self.verdicts, "ok": self.ok,
            "ratio": plain(self.ratio),
            "interval": [plain(edge) for edge in self.interval] if self.interval else None,
            "threshold": self.threshold, "rows": rows, "notes": list(self.notes),
            "reports": [report.to_dict() for report in self.reports],
        }  # fmt: skip


def _counter(timing: Timing, name: str) -> int | None:
    if name == "traffic_bytes":
        return timing.traffic_bytes
    value = (timing.counters or {}).get(name)
    return None if value is None else int(value)


def _median(values: Sequence[float]) -> float:
    return float(pd.Series(values, dtype=float).median())
