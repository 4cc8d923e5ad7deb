"""What `convlab.inspect` returns: tables, a figure, an annotated listing."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..show.plot import Chart
from ..words.problem import Problem
from . import figures
from .listing import Listing
from .occupancy import Gpu
from .predict import Prediction
from .table import html_table, records, shown, static_shown, text


@dataclass(frozen=True, repr=False)
class Inspection:
    """What was found about one kernel on one problem.

    Attributes
    ----------
    kernel, problem, gpu
        Of what, on what, and the GPU that occupancy and prediction are for.
    small
        The problem that was simulated (and counted by ncu) in the place of a larger one.
    frame
        One row for each quantity: quantity, unit, problem ("whole" or "small"), simulated,
        predicted, measured, least. NaN where it is not known.
    static
        One row for each ``__global__`` function: function, registers, static_shared,
        dynamic_shared, spill_bytes, stack, block, blocks_per_sm, occupancy, limited_by.
    sass
        Rows of function, where ("all" or "hot loop"), kind, count, per_ffma.
    lines
        What the simulator counted by source line, as rows; see `Listing.rows`.
    measured
        On a GPU: ms, ncu's totals on the small problem as "counters", on the whole one as "whole",
        and "functions", a frame. Else None.
    predicted
        A `predict.Prediction`, or None.
    findings
        What the simulator warned of.
    notes
        Lines: what is missing and what to do about it; what was assumed.
    """

    kernel: str
    problem: Problem
    small: Problem
    gpu: Gpu
    frame: pd.DataFrame
    static: pd.DataFrame
    sass: pd.DataFrame
    lines: pd.DataFrame
    measured: dict[str, Any] | None
    predicted: Prediction | None
    findings: tuple[Any, ...]
    notes: tuple[str, ...]
    source: tuple[str, ...] = field(repr=False, default=())
    made: Mapping[int, int] = field(repr=False, default_factory=dict)  # instructions by line
    peaks: tuple[float, dict[str, float]] | None = field(repr=False, default=None)

    def listing(self) -> Listing:
        """Return the source, line by line, with what each line cost."""
        found: dict[int, list[str]] = {}
        for finding in self.findings:
            found.setdefault(finding.line or 1, []).append(f"{finding.kind}: {finding.text}")
        rows = self.lines.to_dict("records")
        return Listing(self.kernel, self.source, rows, found, self.made, self.issued)

    @property
    def issued(self) -> dict[int, float]:
        """The share of all instructions that warps issue, by source line (the model's counts)."""
        parts = self.predicted.parts if self.predicted else ()
        whole = sum(part.instructions for part in parts)
        shares: dict[int, float] = {}
        for part in parts:
            for line, count in part.issued.items():
                shares[line] = shares.get(line, 0.0) + count / whole
        return shares

    @property
    def verdict(self) -> str:
        """What limits the kernel, in a sentence: the model's word; without one, what is missing."""
        if self.predicted is None:
            return "no verdict: see the notes"
        seen = (self.measured or {}).get("ms")
        off = f"; it predicts {self.predicted.ms:.3g} ms, measured: {seen:.3g} ms" if seen else ""
        return f"the model's verdict: {self.predicted.verdict}{off}"

    def costly(self, most: int = 5) -> pd.DataFrame:
        """Return the source lines that cost most: of instructions issued, sectors, wavefronts."""
        issued, rows = self.issued, {}
        for line, share in issued.items():
            rows[line] = {"line": line, "issued": share, "sectors": 0.0, "wavefronts": 0.0}
        names = {"global": "sectors", "shared": "wavefronts"}
        for row in self.lines.to_dict("records"):
            at = rows.setdefault(row["line"], {"line": row["line"], "issued": 0.0, "sectors": 0.0,
                                               "wavefronts": 0.0})  # fmt: skip
            at[names[row["space"]]] += row["share"]
        frame = pd.DataFrame(
            [row | {"source": self._quoted(row["line"])} for row in rows.values()],
            columns=["line", "issued", "sectors", "wavefronts", "source"],
        )
        cost = frame[["issued", "sectors", "wavefronts"]].max(axis=1)
        return frame.loc[cost.sort_values(ascending=False, kind="stable").index[:most]]

    def _quoted(self, line: int) -> str:
        return self.source[line - 1].strip() if 0 < line <= len(self.source) else ""

    def _costly_text(self) -> pd.DataFrame:
        frame = self.costly()
        for name in ("issued", "sectors", "wavefronts"):
            frame[name] = [f"{share:.0%}" if share else "-" for share in frame[name]]
        frame["line"] = frame["line"].map(str)
        frame["source"] = [s if len(s) <= 70 else f"{s[:69]}…" for s in frame["source"]]
        return frame

    def plot(self, path: str | Path | None = None) -> Chart:
        """Draw the roofline and the dearest lines; write the figure if a path is given."""
        chart = Chart(11, 4.4)
        left, right = chart.subplots(1, 2, width_ratios=(5, 4))
        if self.peaks is None:
            left.text(0.5, 0.5, f"no ceilings are known for {self.gpu.name}", ha="center")
        else:
            bandwidth, units = self.peaks
            figures.roofline(self._points(), bandwidth, units, f"roofline, {self.gpu.name}", left)
        if len(self.lines):
            figures.line_costs(self.lines.to_dict("records"), self.source, right)
        else:
            right.text(0.5, 0.5, "no counts by line", ha="center")
        chart.suptitle(f"{self.kernel} on {self.problem.label}", fontsize=11)
        if path is not None:
            chart.save(path)
        return chart

    def _points(self) -> list[figures.Point]:
        flops = self.problem.flops
        least = flops / max(self.problem.min_bytes, 1)
        points = [figures.Point("each byte once", least, 0, "floor")]
        model = self.predicted
        if model is not None and model.dram_bytes:
            rate = flops / (model.ms / 1e3)
            points.append(figures.Point(self.kernel, flops / model.dram_bytes, rate, "predicted"))
        seen = self.measured or {}
        moved = seen.get("whole", {}).get("dram_bytes") or (model and model.dram_bytes)
        if seen.get("ms") and moved:
            points.append(figures.Point(self.kernel, flops / moved, flops / seen["ms"] * 1e3))
        return points

    def __str__(self) -> str:
        out = [f"{self.kernel} on {self.problem.label}, {self.gpu.name}"]
        if self.small != self.problem:
            out.append(f"  small: {self.small}")
        out += textwrap.wrap(self.verdict, 100, initial_indent="  ", subsequent_indent="    ")
        out += ["", *text(shown(self.frame))]
        if len(self.static):
            out += ["", *text(static_shown(self.static))]
        out += self._mixes()
        if len(self.costly()):
            out += ["", "the dearest lines, shares of all: instructions issued, sectors of global "
                    "memory, wavefronts of shared"]  # fmt: skip
            out += text(self._costly_text(), left=("line", "source"))
        if self.predicted is not None:
            out += ["", str(self.predicted)]
        out += [""] + [line for note in self.notes for line in textwrap.wrap(note, 100)]
        out += [f"line {f.line}: {f.kind}: {f.text}" for f in self.findings]
        return "\n".join(out).rstrip()

    __repr__ = __str__

    def _mixes(self) -> list[str]:
        lines = []
        for name in dict.fromkeys(self.sass.get("function", ())):
            rows = self.sass[(self.sass.function == name) & (self.sass["where"] == "hot loop")]
            if len(rows):
                mix = ", ".join(f"{row.count} {row.kind}" for row in rows.itertuples(index=False))
                lines += textwrap.wrap(f"hot loop of {name}: {mix}", 100, subsequent_indent="  ")
        return lines

    def _repr_html_(self) -> str:
        head = f"{self.kernel} on {self.problem.label}, {self.gpu.name}"
        small = f" (small: {self.small})" if self.small != self.problem else ""
        parts = [f"<b>{html.escape(head)}</b>{html.escape(small)}<br>{html.escape(self.verdict)}"]
        for frame in (shown(self.frame), static_shown(self.static), self._costly_text()):
            if len(frame):
                parts.append(html_table(frame, ("quantity", "unit", "function", "source")))
        found = [f"line {f.line}: {f.kind}: {f.text}" for f in self.findings]
        predicted = str(self.predicted).splitlines()[:1] if self.predicted else []
        below = [*self._mixes(), *predicted, *self.notes, *found]
        parts.append(f"<small>{'<br>'.join(map(html.escape, below))}</small>")
        return f'<div style="font-size:12px;line-height:1.3">{"".join(parts)}</div>'

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold; a number that is not known is None."""
        measured = None
        if self.measured is not None:
            measured = {k: v for k, v in self.measured.items() if k != "functions"}
        return {
            "kernel": self.kernel, "problem": str(self.problem), "small": str(self.small),
            "gpu": self.gpu.name, "quantities": records(self.frame),
            "functions": records(self.static), "sass": records(self.sass),
            "lines": records(self.lines), "issued": self.issued, "verdict": self.verdict,
            "measured": measured,
            "predicted": self.predicted.to_dict() if self.predicted else None,
            "findings": [{"line": f.line, "kind": f.kind, "text": f.text} for f in self.findings],
            "notes": list(self.notes),
        }  # fmt: skip
