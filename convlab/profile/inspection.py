"""The result of `convlab.inspect`: tables, a figure, an annotated listing."""

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
from . import roofline, whole_sectors
from .annotated_source import Listing
from .time_model import Prediction

_COSTS = ["issued", "sectors", "wavefronts"]
_COST_OF_SPACE = {"global": "sectors", "shared": "wavefronts"}
# Instructions that multiply and add, the widest first.
_MULTIPLY = ("HGMMA", "HMMA", "FFMA")
# Kinds of instructions with fewer instructions per multiply-add are not shown.
_LEAST_PER_MULTIPLY = 0.005
_BELOW_MINIMUM = (
    "DRAM traffic is below the theoretical minimum: the end of y stays in the L2 after a launch, "
    "or part of x is never read"
)
_FUNCTION_COLUMNS = {
    "function": "function",
    "registers": "registers",
    "shared": "shared B",
    "spill_bytes": "spills B",
    "block": "block",
    "blocks_per_sm": "blocks/SM",
    "occupancy": ("occupancy", "{:.0%}"),
    "limited_by": "limited by",
}
_LINE_COLUMNS = {
    "line": "line",
    "issued": ("issued", "{:.0%}"),
    "sectors": ("sectors", "{:.0%}"),
    "wavefronts": ("wavefronts", "{:.0%}"),
    "in_parts": ("in parts", "{:.1%}"),
    "source": "source",
}


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """The result of `inspect` for one kernel on one problem.

    Attributes
    ----------
    kernel, problem : the kernel's name, and the problem.
    gpu : the GPU that occupancy and prediction are for.
    frame : one row for each quantity: quantity, unit, simulated, predicted, measured, least. Unknown
        values are NaN.
    static : one row for each ``__global__`` function: function, registers, static_shared and
        dynamic_shared (bytes of a block), spill_bytes, stack, block, blocks_per_sm, occupancy,
        limited_by.
    sass : rows of function, where, kind, count, per_ffma. Instructions in the code ("all", "hot
        loop"), and those that warps execute on this problem ("executed", by the model).
    lines : rows of the simulator's counts by source line; see `Listing.rows`.
    measured : on a GPU: ms, ncu's totals as "counters", and "functions", a frame. Else None.
    predicted : a `Prediction`, or None.
    findings : the simulator's findings: errors and warnings.
    notes : lines: what is missing and how to get it; what was assumed.
    source : the lines of the kernel's file.
    ceilings : the bandwidth and rates that the roofline uses.
    file : the name of the kernel's own file; a header may define some of its functions.
    incorrect : that the kernel is incorrect on a small problem, and how to check it; else empty.
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
    incorrect: str = ""

    @property
    def peaks(self) -> tuple[float, dict[str, float]]:
        """Bytes per second, and flops per second of each unit."""
        rates = {"fp32": self.ceilings.fp32_flops}
        # A GPU without tensor cores has no higher rate for TF32.
        if self.ceilings.tf32_flops > self.ceilings.fp32_flops:
            rates["TF32"] = self.ceilings.tf32_flops
        return self.ceilings.copy_bytes_per_s, rates

    @property
    def ok(self) -> bool:
        """Whether it ran, on the simulator or on a GPU, and is not incorrect on a small problem."""
        return self._ran and not self.incorrect

    @property
    def _ran(self) -> bool:
        return bool(self.frame[["simulated", "measured"]].notna().any(axis=None))

    @property
    def ms(self) -> float | None:
        """The measured time in milliseconds; None without a GPU."""
        return self.measured.get("ms") if self.measured else None

    @property
    def dram_bytes(self) -> tuple[float, str] | None:
        """The bytes through DRAM, and whether they are "measured" or "predicted"."""
        counters = (self.measured or {}).get("counters", {})
        if counters.get("dram_bytes"):
            return counters["dram_bytes"], "measured"
        if self.predicted and self.predicted.dram.bytes:
            return self.predicted.dram.bytes, "predicted"
        return None

    @property
    def sentence(self) -> str:
        """What limits the kernel on this problem and GPU; first that it is incorrect, if it is."""
        limit = f"{self.kernel} on {self.problem.label}: {self.verdict}"
        return f"{self.kernel}: {self.incorrect}; {limit}" if self.incorrect else limit

    @property
    def verdict(self) -> str:
        """Its time, and what limits the kernel by the time model, in a sentence."""
        model = self.predicted
        if model is None:
            return f"{'no verdict' if self._ran else 'it did not run'}: see the notes"
        time = f"predicted {short(model.ms)} ms on {self.gpu.name}"
        if self.ms:
            time = f"{short(self.ms)} ms measured on {self.gpu.name}, {short(model.ms)} ms predicted"
        return f"{time}, {model.verdict}"

    @property
    def row(self) -> dict[str, Any]:
        """Its row in the table of several inspections."""
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
        findings: dict[int, list[str]] = {}
        for finding in self.findings:
            findings.setdefault(finding.line or 1, []).append(f"{finding.kind}: {finding.text}")
        rows = [row for row in self.lines.to_dict("records") if row["file"] == self.file]
        for row in rows:
            note = whole_sectors.line_note(row) if row["space"] == "global" else None
            if note:
                findings.setdefault(row["line"], []).append(note)
        return Listing(self.kernel, self.source, rows, findings, self.issued)

    @property
    def _issued_by_place(self) -> dict[tuple[str, int], float]:
        return self.predicted.issued if self.predicted else {}

    @property
    def issued(self) -> dict[int, float]:
        """The share of all instructions that warps issue, by line of the kernel's own file."""
        shares = {}
        for (file, line), share in self._issued_by_place.items():
            if file == self.file:
                shares[line] = share
        return shares

    def costly(self, most: int = 5) -> pd.DataFrame:
        """Return the source lines that cost most.

        Rows of line, issued (the share of all instructions), sectors (of global memory),
        wavefronts (of shared memory), in_parts (of the sectors that the line stores, those of which
        a block stores only a part) and source.
        """
        rows = [(*place, "issued", share) for place, share in self._issued_by_place.items()]
        for row in self.lines.to_dict("records"):
            rows.append((row["file"], row["line"], _COST_OF_SPACE[row["space"]], row["share"]))
        long = pd.DataFrame(rows, columns=["file", "number", "cost", "share"])
        wide = long.pivot_table("share", ["file", "number"], "cost", "sum", fill_value=0.0)
        wide = wide.reindex(columns=_COSTS, fill_value=0.0)
        costliest = wide.max(axis=1).sort_values(ascending=False, kind="stable").index[:most]
        texts = [self._source_text(file, line) for file, line in costliest]
        in_parts = self._shares_in_parts()
        frame = wide.loc[costliest].assign(
            in_parts=[in_parts.get(place, 0.0) for place in costliest], source=texts
        )
        frame.insert(0, "line", [self._place(file, line) for file, line in costliest])
        return frame.reset_index(drop=True)

    def _shares_in_parts(self) -> dict[tuple[str, int], float]:
        """Return which share of each line's stored sectors blocks store in parts."""
        shares = {}
        for row in self.lines.to_dict("records"):
            if row["space"] == "global" and row["kind"] == "store":
                shares[row["file"], row["line"]] = whole_sectors.share_in_parts(row)
        return shares

    def _place(self, file: str, line: int) -> str:
        """Return a line's number, with the file's name if it is not the kernel's own file."""
        return f"{line}" if file == self.file else f"{file}:{line}"

    def _source_text(self, file: str, line: int) -> str:
        """Return a line's text if it is in the kernel's own file."""
        if file != self.file or not 0 < line <= len(self.source):
            return ""
        return self.source[line - 1].strip()

    @property
    def tables(self) -> Sequence[Table]:
        """The known quantities, the functions, and the lines that cost most."""
        numbers = ["simulated", "predicted", "measured"]
        known = self.frame.dropna(subset=numbers, how="all").dropna(axis=1, how="all")
        static = self.static.copy()
        static["shared"] = static["static_shared"] + static["dynamic_shared"].fillna(0)
        costly = self.costly()
        costly[_COSTS] = costly[_COSTS].replace(0.0, math.nan)
        title = (
            "share of each line: instructions issued, sectors of global memory, wavefronts of "
            "shared memory"
        )
        columns = dict(_LINE_COLUMNS)
        if costly["in_parts"].any():
            costly["in_parts"] = costly["in_parts"].replace(0.0, math.nan)
            title += (
                "; in parts: of the sectors that it stores, those of which a block stores a part"
            )
        else:
            del columns["in_parts"]
        return (
            Table(known, left=("unit",)),
            Table(static, _FUNCTION_COLUMNS, left=("limited by",)),
            Table(costly, columns, left=("source",), title=title),
        )

    @property
    def details(self) -> Sequence[str]:
        """Why traffic is below the theoretical minimum; executed instructions; prediction; findings."""
        lines = []
        moved = self.frame.set_index("quantity").loc["DRAM traffic"]
        if any(moved[["predicted", "measured"]] < moved["least"]):
            lines.append(_BELOW_MINIMUM)
        lines += self._instruction_mixes()
        if self.predicted:
            lines += [f"predicted: {part}" for part in self.predicted.parts]
        for finding in self.findings:
            lines.append(f"line {finding.line}: {finding.kind}: {finding.text}")
        return lines

    def _instruction_mixes(self) -> list[str]:
        """Return a line for each function's hot loop, and one for the instructions it executes."""
        looped = {part.name: part.looped for part in self.predicted.parts} if self.predicted else {}
        lines = []
        for (name, where), rows in self.sass.groupby(["function", "where"], sort=False):
            counts = rows.set_index("kind")["count"]
            if where == "hot loop":
                share = f" ({looped[name]:.0%} of what it executes)" if name in looped else ""
                mix = ", ".join(f"{count:,.0f} {kind}" for kind, count in counts.items())
                lines.append(f"the loop of {name} with the most multiply-adds{share}: {mix}")
            multiply = next((kind for kind in _MULTIPLY if kind in counts.index), None)
            if where == "executed" and multiply:
                per_multiply = counts.drop(multiply) / counts[multiply]
                shown = per_multiply[per_multiply >= _LEAST_PER_MULTIPLY]
                mix = ", ".join(f"{count:.2g} {kind}" for kind, count in shown.items())
                lines.append(f"{name} executes for each {multiply}: {mix}")
        return lines

    @styled
    def figure(self) -> Chart:
        """Return a chart: the roofline, and the lines that cost most."""
        chart = Chart(11, 4.4)
        left, right = chart.subplots(1, 2, width_ratios=(5, 4))
        left.set_title(f"roofline, {self.gpu.name}")
        roofline.draw_roofline(left, self._points(), *self.peaks)
        names = []
        for row in self.lines.to_dict("records"):
            file = row["file"]
            line = row["line"]
            names.append(
                f"{self._place(file, line)} {row['kind']}  {self._source_text(file, line)}"
            )
        roofline.draw_line_costs(right, self.lines.assign(name=names))
        notes = [self.predicted.dram.note] if self.predicted else []
        return chart.headed(f"{self.kernel} on {self.problem.label}", notes)

    def _points(self) -> list[roofline.Point]:
        """Return the points of the roofline: the theoretical minimum, predicted and measured."""
        flops = self.problem.flops
        least = 1e6 * self._least("DRAM traffic")
        points = [roofline.Point("each byte once", flops / max(least, 1), 0, "floor")]
        model = self.predicted
        if model and model.dram.bytes:
            rate = flops / model.ms * 1e3
            points.append(roofline.Point(self.kernel, flops / model.dram.bytes, rate, "predicted"))
        if self.ms and self.dram_bytes:
            moved, source = self.dram_bytes
            kind = "measured" if source == "measured" else "measured time, predicted bytes"
            rate = flops / self.ms * 1e3
            points.append(roofline.Point(self.kernel, flops / moved, rate, kind))
        return points

    @property
    def about(self) -> dict[str, Any]:
        """What the JSON document has besides the quantities."""
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
    """The result of `inspect` for one kernel on several problems.

    Attributes
    ----------
    results : an `Inspection` for each supported problem; you can also use an index or a loop.
    unsupported : a line for each unsupported problem, with the reason.
    """

    unsupported: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.results[0].kernel

    @property
    def sentence(self) -> str:
        """What limits the kernel, and on how many of the problems."""
        limits = Counter(result.row["limited by"] for result in self)
        text = ", ".join(f"{limit} on {count}" for limit, count in limits.most_common())
        gpu = self.results[0].gpu.name
        limit = f"{self.kernel} on {len(self)} problems, a model of {gpu}: {text}"
        incorrect = next((result.incorrect for result in self if result.incorrect), "")
        return f"{self.kernel}: {incorrect}; {limit}" if incorrect else limit

    @property
    def notes(self) -> Sequence[str]:
        """The notes that all results share, those of some with the problem, unsupported problems."""
        return (*self._notes_of_results, *self.unsupported)

    @property
    def short_notes(self) -> Sequence[str]:
        """The notes of the results; unsupported problems are only counted."""
        if not self.unsupported:
            return self._notes_of_results
        count = len(self.unsupported)
        of = count + len(self)
        text = f"{count} of {of} problems are not supported; --verbose lists them"
        return (*self._notes_of_results, text)

    @property
    def _notes_of_results(self) -> Sequence[str]:
        shared = []
        for note in self.results[0].notes:
            if all(note in result.notes for result in self):
                shared.append(note)
        own = []
        for result in self:
            for note in result.notes:
                if note not in shared:
                    own.append(f"{result.problem.label}: {note}")
        return (*shared, *own)
