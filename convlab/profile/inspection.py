"""What `convlab.inspect` returns: tables, a figure, an annotated listing."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.machine.device import Ceilings, Gpu
from ..core.problem.problem import Problem
from ..core.show.plot import Chart, styled
from ..core.show.result import Result, Several
from ..core.show.table import Table, short
from . import figures
from .listing import Listing
from .model import Prediction

_COSTS = ["issued", "sectors", "wavefronts"]
_LESS = "less than DRAM's least: y's end stays in the L2 after a launch, or some of x is never read"
_MULTIPLY = ("HGMMA", "HMMA", "FFMA")  # instructions that products are made by, the widest first


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """What was found about one kernel on one problem.

    Attributes
    ----------
    kernel, problem, gpu : of what, on what, and the GPU that occupancy and prediction are for.
    frame : one row for each quantity: quantity, unit, simulated, predicted, measured, least. NaN
        where it is not known.
    static : one row for each ``__global__`` function: function, registers, static_shared,
        dynamic_shared, spill_bytes, stack, block, blocks_per_sm, occupancy, limited_by.
    sass : rows of function, where, kind, count, per_ffma. Instructions in the code ("all", "hot
        loop"), and those that warps execute on this problem ("executed", the model's count).
    lines : what the simulator counted by source line, as rows; see `Listing.rows`.
    measured : on a GPU: ms, ncu's totals as "counters", and "functions", a frame. Else None.
    predicted : a `model.Prediction`, or None.
    findings : what the simulator found wrong.
    notes : lines: what is missing and what to do about it; what was assumed.
    source, ceilings, file : the kernel's lines; what the roofline is drawn from; the name of the
        kernel's own file: functions may be a header's.
    """

    kernel: str
    problem: Problem
    gpu: Gpu
    frame: pd.DataFrame
    static: pd.DataFrame
    sass: pd.DataFrame
    lines: pd.DataFrame
    measured: dict[str, Any] | None
    predicted: Prediction | None
    findings: tuple[Any, ...]
    notes: tuple[str, ...]
    source: tuple[str, ...]
    ceilings: Ceilings
    file: str

    @property
    def peaks(self) -> tuple[float, dict[str, float]]:
        """Bytes a second, and flops a second of each unit."""
        best = self.ceilings
        units = {"fp32": best.fp32_flops}
        if best.tf32_flops > best.fp32_flops:  # it has tensor cores
            units["TF32"] = best.tf32_flops
        return best.copy_bytes_per_s, units

    @property
    def ok(self) -> bool:
        """Whether it ran, on the simulator or on a GPU."""
        return bool(self.frame[["simulated", "measured"]].notna().any(axis=None))

    ms = property(lambda self: (self.measured or {}).get("ms"))

    @property
    def dram_bytes(self) -> tuple[float, str] | None:
        """The bytes through DRAM, and whether they are "measured" or "predicted"."""
        moved = (self.measured or {}).get("counters", {}).get("dram_bytes")
        if moved:
            return moved, "measured"
        told = self.predicted.dram.bytes if self.predicted else None
        return (told, "predicted") if told else None

    @property
    def sentence(self) -> str:
        """What limits the kernel."""
        return f"{self.kernel} on {self.problem.label}, {self.gpu.name}: {self.verdict}"

    @property
    def verdict(self) -> str:
        """What limits the kernel, in a sentence: the model's word; without one, what is missing."""
        model = self.predicted
        if model is None:
            return "no verdict: see the notes"
        seen = f", measured: {short(self.ms)} ms" if self.ms else ""
        return f"the model's verdict: {model.verdict}; it predicts {short(model.ms)} ms{seen}"

    @property
    def row(self) -> dict[str, Any]:
        """It in the table of a set."""
        model = self.predicted
        return {
            "problem": self.problem.label,
            "floor, ms": self._least("time"),
            "model, ms": model.ms if model else None,
            "measured, ms": self.ms,
            "limited by": model.slowest.limited_by if model else "-",
        }

    def _least(self, quantity: str) -> float:
        return self.frame.set_index("quantity")["least"][quantity]

    def listing(self) -> Listing:
        """Return the source, line by line, with what each line cost."""
        found: dict[int, list[str]] = {}
        for finding in self.findings:
            found.setdefault(finding.line or 1, []).append(f"{finding.kind}: {finding.text}")
        rows = [row for row in self.lines.to_dict("records") if row["file"] == self.file]
        return Listing(self.kernel, self.source, rows, found, self.issued)

    @property
    def issued(self) -> dict[int, float]:
        """The share of all instructions that warps issue, by line of the kernel's own file."""
        issued = self.predicted.issued if self.predicted else {}
        return {line: share for (file, line), share in issued.items() if file == self.file}

    def costly(self, most: int = 5) -> pd.DataFrame:
        """Return the source lines that cost most: of instructions issued, sectors, wavefronts."""
        issued = self.predicted.issued if self.predicted else {}
        rows = [(*place, "issued", share) for place, share in issued.items()]
        rows += [
            (row["file"], row["line"], _COSTS[1 + (row["space"] == "shared")], row["share"])
            for row in self.lines.to_dict("records")
        ]
        long = pd.DataFrame(rows, columns=["file", "number", "cost", "share"])
        frame = long.pivot_table("share", ["file", "number"], "cost", "sum", fill_value=0.0)
        frame = frame.reindex(columns=_COSTS, fill_value=0.0)
        dearest = frame.max(axis=1).sort_values(ascending=False, kind="stable").index[:most]
        told = [self._told(*place) for place in dearest]
        frame = frame.loc[dearest].assign(source=[text for _, text in told])
        frame.insert(0, "line", [line for line, _ in told])
        return frame.reset_index(drop=True)

    def _told(self, file: str, line: int) -> tuple[str, str]:
        """A line's number, with the file if it is another, and its text."""
        if file != self.file:
            return f"{file}:{line}", ""
        return f"{line}", self.source[line - 1].strip() if 0 < line <= len(self.source) else ""

    @property
    def tables(self) -> Sequence[Table]:
        """The quantities of which anything is known, the functions, the lines that cost most."""
        numbers = ["simulated", "predicted", "measured"]
        known = self.frame.dropna(subset=numbers, how="all").dropna(axis=1, how="all")
        static = self.static.copy()
        costly = self.costly()
        static["shared"] = static["static_shared"] + static["dynamic_shared"].fillna(0)
        costly[_COSTS] = costly[_COSTS].replace(0.0, math.nan)
        functions = {
            "function": "function",
            "registers": "registers",
            "shared": "shared B",
            "spill_bytes": "spills B",
            "block": "block",
            "blocks_per_sm": "blocks/SM",
            "occupancy": ("occupancy", "{:.0%}"),
            "limited_by": "limited by",
        }
        lines = {"line": "line", **{name: (name, "{:.0%}") for name in _COSTS}, "source": "source"}
        title = (
            "what lines cost: instructions issued, sectors of global memory, wavefronts of shared"
        )
        return (
            Table(known, left=("unit",)),
            Table(static, functions, left=("limited by",)),
            Table(costly, lines, left=("source",), title=title),
        )

    @property
    def details(self) -> Sequence[str]:
        """Why memory moves less than the least; what warps execute; what was predicted and found."""
        moved = self.frame.set_index("quantity").loc["DRAM traffic"]
        lines = [_LESS] * any(moved[["predicted", "measured"]] < moved["least"])
        looped = {p.name: p.looped for p in self.predicted.parts} if self.predicted else {}
        for (name, where), rows in self.sass.groupby(["function", "where"], sort=False):
            mix = rows.set_index("kind")
            if where == "hot loop":
                share = f" ({looped[name]:.0%} of what it executes)" if name in looped else ""
                mix = ", ".join(f"{count:,.0f} {kind}" for kind, count in mix["count"].items())
                lines.append(f"the loop of {name} with the most multiply-adds{share}: {mix}")
            elif where == "executed" and (of := [k for k in _MULTIPLY if k in mix.index]):
                each = mix["count"].drop(of[0]) / mix["count"][of[0]]
                mix = ", ".join(f"{per:.2g} {kind}" for kind, per in each[each >= 0.005].items())
                lines.append(f"{name} executes with each {of[0]}: {mix}")
        lines += [f"predicted: {part}" for part in self.predicted.parts] if self.predicted else []
        lines += [f"line {f.line}: {f.kind}: {f.text}" for f in self.findings]
        return lines

    @styled
    def figure(self) -> Chart:
        """Draw the roofline and the lines that cost most."""
        chart = Chart(11, 4.4)
        left, right = chart.subplots(1, 2, width_ratios=(5, 4))
        left.set_title(f"roofline, {self.gpu.name}")
        figures.roofline(left, self._points(), *self.peaks)
        places = self.lines[["file", "line", "kind"]].values if len(self.lines) else ()
        told = [(*self._told(file, line), kind) for file, line, kind in places]
        names = [f"{line} {kind}  {text}" for line, text, kind in told]
        figures.line_costs(right, self.lines.assign(name=names))
        notes = [self.predicted.dram.note] if self.predicted else []
        return chart.headed(f"{self.kernel} on {self.problem.label}", notes)

    def _points(self) -> list[figures.Point]:
        """The problem's own intensity, the model's point, and the measured one."""
        flops = self.problem.flops
        least = 1e6 * self._least("DRAM traffic")
        points = [figures.Point("each byte once", flops / max(least, 1), 0, "floor")]
        model = self.predicted
        if model and (moved := model.dram.bytes):
            rate = flops / model.ms * 1e3
            points.append(figures.Point(self.kernel, flops / moved, rate, "predicted"))
        if self.ms and self.dram_bytes:
            moved, kind = self.dram_bytes
            kind = "measured" if kind == "measured" else "measured time, a model's bytes"
            points.append(figures.Point(self.kernel, flops / moved, flops / self.ms * 1e3, kind))
        return points

    @property
    def about(self) -> dict[str, Any]:
        """What JSON has beside the quantities."""
        return {
            "kernel": self.kernel,
            "problem": str(self.problem),
            "gpu": self.gpu.name,
            "functions": self.static,
            "sass": self.sass,
            "lines": self.lines,
            "issued": self.issued,
            "verdict": self.verdict,
            "measured": self.measured,
            "predicted": self.predicted and vars(self.predicted),
            "findings": self.findings,
        }


@dataclass(frozen=True, repr=False)
class Inspections(Several):
    """What was found about one kernel on several problems: a row for each, and each by itself.

    Attributes
    ----------
    results : an `Inspection` for each problem that the kernel can do; also by index, in a loop.
    refused : lines: the other problems, and why.
    """

    refused: tuple[str, ...] = ()
    kernel = property(lambda self: self.results[0].kernel)

    @property
    def sentence(self) -> str:
        """What limits the kernel, and on how many of the problems."""
        limits = Counter(result.row["limited by"] for result in self)
        text = ", ".join(f"{limit} on {count}" for limit, count in limits.most_common())
        gpu = self.results[0].gpu.name
        return f"{self.kernel} on {len(self)} problems, a model of {gpu}: {text}"

    @property
    def notes(self) -> Sequence[str]:
        """The notes that all share, once; those of some, with the problem; and what was refused."""
        shared = [note for note in self.results[0].notes if all(note in r.notes for r in self)]
        own = [f"{r.problem.label}: {note}" for r in self for note in r.notes if note not in shared]
        return (*shared, *own, *self.refused)
