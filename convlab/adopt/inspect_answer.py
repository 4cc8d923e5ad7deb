"""Inspect the kernels of an answer: registers and occupancy by nvcc, memory traffic by the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import BuildError
from ..core.machine.device import Gpu
from ..core.show.plot import Chart, styled
from ..core.show.result import Result
from ..core.show.table import Table
from ..profile import roofline
from ..profile.annotated_source import Listing
from ..profile.disassembly import functions
from ..profile.launched_functions import LaunchedFunction, launched_functions
from ..profile.tables import static_table
from .adoption import adopt
from .adoption_report import Adoption

_FUNCTIONS = {
    "function": "kernel",
    "launches": "launches",
    "grid": "grid",
    "block": "block",
    "registers": "registers",
    "shared": "shared B",
    "spill_bytes": "spills B",
    "occupancy": ("occupancy", "{:.0%}"),
    "limited_by": "limited by",
}
_LINES = {
    "line": "line",
    "space": "memory",
    "kind": "access",
    "requests": "requests",
    "each": ("per request", "{:.3g}"),
    "least": ("least", "{:.3g}"),
    "share": ("share", "{:.0%}"),
    "source": "source",
}
_SHOWN_LINES = 8
# A line whose accesses take this many times the least number of sectors or wavefronts is named.
_WASTEFUL = 1.5


@dataclass(frozen=True, repr=False)
class AnswerInspection(Result):
    """The inspection of an answer's kernels, on its own task.

    Attributes
    ----------
    adoption : the judgement as asked, with the simulator's counts.
    gpu : the GPU that registers and occupancy are for.
    frame : one row for each kernel: function, launches, grid, block, registers, shared (bytes of a
        block), spill_bytes, occupancy, limited_by.
    lines : one row for each source line, memory and access: line, space, kind, requests, units
        (sectors or wavefronts), each and least (units per request), share, source.
    notes : what is missing, and how the inputs were scaled down.
    """

    adoption: Adoption
    gpu: Gpu
    frame: pd.DataFrame
    lines: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def kernel(self) -> str:
        """The answer's name."""
        return self.adoption.name

    @property
    def ok(self) -> bool:
        """Whether something of it could be inspected."""
        return bool(len(self.frame) or len(self.lines))

    @property
    def sentence(self) -> str:
        """What the answer launches, and the line that wastes most."""
        verdict = {True: "correct as asked", False: "INCORRECT as asked", None: "not judged"}
        count = len(self.frame)
        text = (
            f"{self.kernel} on its own task: {verdict[self.adoption.as_asked]}; "
            f"{count} kernel{'s' if count != 1 else ''}"
        )
        wasteful = self.lines[self.lines["each"] > _WASTEFUL * self.lines["least"]]
        if len(wasteful):
            worst = wasteful.loc[wasteful["units"].idxmax()]
            unit = "sectors" if worst["space"] == "global" else "wavefronts"
            text += (
                f"; line {worst['line']} takes {worst['each']:.3g} {unit} for each {worst['kind']}, "
                f"and {worst['least']:.3g} would do"
            )
        return text

    @property
    def tables(self) -> Sequence[Table]:
        """The kernels, and the lines that cost most."""
        title = "sectors of global memory and wavefronts of shared memory, by line; share of all"
        return (
            Table(self.frame.dropna(axis=1, how="all"), _FUNCTIONS, left=("limited by",)),
            Table(self.lines[:_SHOWN_LINES], _LINES, left=("source",), title=title),
        )

    @property
    def details(self) -> Sequence[str]:
        """The mistakes that were found, and the measured time."""
        name = self.adoption.answer.path.name
        found = [f"{name}:{m.line}: {m.text}" for m in self.adoption.mistakes if m.error]
        if times := self.adoption.times:
            faster = times["model"] / times["answer"]
            found.append(f"measured: {times['answer']:.3g} ms, {faster:.3g} times as fast as Model")
        return found

    @property
    def about(self) -> Mapping[str, Any]:
        """What the JSON document has besides the kernels."""
        return {
            "kernel": self.kernel,
            "gpu": self.gpu.name,
            "as_asked": self.adoption.as_asked,
            "lines": self.lines,
            "counters": self.adoption.counters,
            "times_ms": self.adoption.times,
        }

    def listing(self) -> Listing:
        """Return the file, line by line, with what each line cost."""
        answer = self.adoption.answer
        findings: dict[int, list[str]] = {}
        for each in self.adoption.mistakes:
            findings.setdefault(each.line or 1, []).append(f"{each.kind}: {each.text}")
        return Listing(
            self.kernel, answer.whole.splitlines(), self.lines.to_dict("records"), findings
        )

    @styled
    def figure(self) -> Chart:
        """Return a chart of the lines that cost most."""
        chart = Chart(8, 4.4)
        axes = chart.subplots(1, 1)
        names = [
            f"{row['line']} {row['kind']}  {row['source']}" for row in self.lines.to_dict("records")
        ]
        roofline.draw_line_costs(axes, self.lines.assign(name=names))
        return chart.headed(f"{self.kernel} on its own task", self.notes[:2])


def inspect_answer(path: Path, gpu: Gpu, engine: str) -> AnswerInspection:
    """Judge an answer on its own task, and inspect the kernels that it launched."""
    adoption = adopt(path, engine=engine, general=False)
    notes = [*adoption.notes]
    compiled = []
    for extension in adoption.extensions:
        try:
            compiled += functions(*extension.machine_code(gpu.arch), str(path))
        except BuildError as error:
            text = str(error).split("\n")[0]
            notes.append(f"no registers or occupancy: {text}")
    launched = launched_functions(compiled, adoption.lines, adoption.kernels)
    if not adoption.kernels:
        notes.append("no launches and no traffic: the simulator did not run this answer")
        launched = [LaunchedFunction(function) for function in compiled]
    notes.append(f"registers and occupancy for {gpu.name}; no time is predicted for an answer")
    return AnswerInspection(
        adoption, gpu, _kernels(launched, gpu, adoption), _lines(adoption), tuple(notes)
    )


def _kernels(launched: Sequence[LaunchedFunction], gpu: Gpu, adoption: Adoption) -> pd.DataFrame:
    """Return a row for each kernel; without nvcc, from its launches only."""
    if not launched:
        rows: dict[str, dict[str, Any]] = {}
        for launch in adoption.kernels:
            row = rows.setdefault(
                launch["kernel"], {"function": launch["kernel"], "launches": 0, **_shape(launch)}
            )
            row["launches"] += 1
        return pd.DataFrame([*rows.values()], columns=[*_FUNCTIONS])
    frame = static_table(launched, gpu)
    frame["launches"] = [len(entry.launches) for entry in launched]
    frame["grid"] = [
        _shape(entry.launches[0])["grid"] if entry.launches else "" for entry in launched
    ]
    frame["shared"] = frame["static_shared"] + frame["dynamic_shared"].fillna(0)
    return frame[[*_FUNCTIONS]]


def _shape(launch: Mapping[str, Any]) -> dict[str, str]:
    return {key: "x".join(map(str, launch[key])) for key in ("grid", "block")}


def _lines(adoption: Adoption) -> pd.DataFrame:
    """Return the counts by line of the answer's own file, the costliest first."""
    columns = ["line", "space", "kind", "array", "requests", "units", "ideal_units"]
    columns += ["lanes", "bytes", "partial"]
    own = [
        {key: row[key] for key in columns}
        for row in adoption.lines
        if row["line"] and Path(row["file"]).name == adoption.answer.path.name
    ]
    frame = pd.DataFrame(own, columns=columns)
    keys = ["line", "space", "kind", "array"]
    frame = frame.groupby(keys, as_index=False, dropna=False).sum()
    totals = frame.groupby("space")["units"].transform("sum")
    frame["share"] = frame["units"] / totals.where(totals > 0, 1)
    requests = frame["requests"].where(frame["requests"] > 0, math.nan)
    frame["each"] = frame["units"] / requests
    frame["least"] = frame["ideal_units"] / requests
    frame["source"] = [adoption.answer.quoted(line) for line in frame["line"]]
    return frame.sort_values("share", ascending=False, kind="stable", ignore_index=True)
