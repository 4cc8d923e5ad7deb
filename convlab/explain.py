"""Why a kernel takes as long as it does: what nvcc made of it, what it asks of memory, and a model.

`inspect` gathers whatever this machine can tell: the simulator's counters by source line,
registers, occupancy and machine instructions from nvcc (no GPU needed), the hardware's counters
and a time where there is a GPU, and a rough prediction of the time. What is missing is a line.
"""

from __future__ import annotations

import html
import math
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from . import build as builds
from . import figures, ncu, predict, reference, sass
from .check import fit, plain
from .device import Ceilings, ceilings, describe, floor_seconds
from .errors import ConvlabError, ProblemError, UnsupportedError
from .executed import find_function
from .kernel import ENGINES, Kernel, compile, load
from .listing import Listing, with_shares
from .measure import measure
from .occupancy import Gpu, find_gpu, occupancy
from .plot import Chart
from .problem import Problem
from .problem import problem as named_problem
from .report import quantities

Dims = tuple[int, int, int]


@dataclass(frozen=True)
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
    predicted: predict.Prediction | None
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
        return Listing(self.kernel, self.source, rows, found, self.made)

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
        points = [figures.Point("each byte once", flops / max(self.problem.min_bytes, 1), 0, "floor")]
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
        out += ["", *_text(_shown(self.frame))]
        if len(self.static):
            out += ["", *_text(_static_shown(self.static))]
        out += [line for line in self._mixes()]
        if self.predicted is not None:
            out += ["", str(self.predicted)]
        out += [""] + [line for note in self.notes for line in textwrap.wrap(note, 100)]
        out += [f"line {f.line}: {f.kind}: {f.text}" for f in self.findings]
        return "\n".join(out).rstrip()

    def _mixes(self) -> list[str]:
        lines = []
        for name in dict.fromkeys(self.sass.get("function", ())):
            rows = self.sass[(self.sass.function == name) & (self.sass["where"] == "hot loop")]
            if len(rows):
                mix = ", ".join(f"{row.count} {row.kind}" for row in rows.itertuples(index=False))
                lines += textwrap.wrap(f"hot loop of {name}: {mix}", 100, subsequent_indent="  ")
        return lines

    def _repr_html_(self) -> str:
        parts = [f"<b>{html.escape(f'{self.kernel} on {self.problem.label}, {self.gpu.name}')}</b>"]
        for frame in (_shown(self.frame), _static_shown(self.static)):
            if len(frame):
                parts.append(frame.to_html(index=False, border=0))
        below = [*self._mixes(), *([str(self.predicted)] if self.predicted else [])]
        parts.append(f"<pre>{html.escape(chr(10).join(below))}</pre>")
        parts.append(f"<small>{'<br>'.join(map(html.escape, self.notes))}</small>")
        return "".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold; a number that is not known is None."""
        measured = None
        if self.measured is not None:
            measured = {k: v for k, v in self.measured.items() if k != "functions"}
        return {
            "kernel": self.kernel, "problem": str(self.problem), "small": str(self.small),
            "gpu": self.gpu.name, "quantities": _records(self.frame),
            "functions": _records(self.static), "sass": _records(self.sass),
            "lines": _records(self.lines), "measured": measured,
            "predicted": self.predicted.to_dict() if self.predicted else None,
            "findings": [{"line": f.line, "kind": f.kind, "text": f.text} for f in self.findings],
            "notes": list(self.notes),
        }  # fmt: skip


def inspect(
    kernel: Kernel | str | Path,
    problem: Problem | str = "square",
    *,
    gpu: Gpu | str | None = None,
    engine: str = "auto",
    block: Dims | None = None,
    shared: int = 0,
    seed: int = 0,
) -> Inspection:
    """Gather why a kernel takes as long as it does, from whatever this machine can tell.

    Parameters
    ----------
    kernel : a `Kernel`, or its name or path.
    problem : a Problem, or the name or the spec of one.
    gpu : the GPU that occupancy and prediction are for: "T4", "A100", "L4", "RTX 4090", "H100",
        "H200"; the one that is there unless told, without one an H200.
    engine : "auto": simulated, and measured where there is a GPU; "sim" or "cuda": only that.
    block, shared : threads of a block, and its dynamic shared memory in bytes; only used for a
        function whose launch the simulator does not tell.
    seed : of the data.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel, problem or GPU.
    UnsupportedError
        The kernel cannot do the problem.
    """
    if engine not in ENGINES:
        raise ProblemError(f"no engine {engine!r}: choose from {', '.join(ENGINES)}")
    problem, gpu = named_problem(problem), find_gpu(gpu)
    kernel = kernel if isinstance(kernel, Kernel) else _load(kernel, engine)
    reason = kernel.unsupported(problem)
    if reason is not None:
        raise UnsupportedError(f"{kernel.name} cannot do {problem.label}: {reason}")
    notes: list[str] = []
    runs, findings = [], ()
    if engine != "cuda":
        runs, findings, flops = _simulate(kernel, problem, seed, notes)
    functions = _compiled(kernel, gpu, notes)
    peaks, known = _peaks(gpu)
    small = runs[0].problem if runs else predict.stand_ins(problem)[0]
    measured = None
    if engine != "sim" and (runs or engine == "cuda"):  # never what failed on the simulator
        measured = _measure(kernel, problem, small, seed, notes)
    launches = runs[0].launches if runs else ()
    model = _predict(problem, gpu, functions, runs, known, block, notes)
    floor = floor_seconds(problem, kernel.precision, known) if known else math.nan
    lines = with_shares(runs[0].lines) if runs else []
    made: dict[int, int] = {}
    for instruction in (i for f in functions for i in f.instructions if i.line):
        made[instruction.line] = made.get(instruction.line, 0) + 1
    return Inspection(
        kernel.name, problem, small, gpu,
        frame=quantities(problem, small, runs, flops if runs else None, model, measured, floor),
        static=_static(functions, launches, gpu, block, shared),
        sass=_mix(functions), lines=pd.DataFrame(lines), measured=measured, predicted=model,
        findings=tuple(findings), notes=tuple(notes), source=tuple(kernel.source.splitlines()),
        made=made, peaks=peaks,
    )  # fmt: skip


def _load(name: str | Path, engine: str) -> Kernel:
    if ":" in str(name):
        raise ProblemError(f"{name} is a library's: inspect looks into .cu files")
    return load(name, engine=engine)


def _on(kernel: Kernel, engine: str) -> Kernel:
    """The same kernel on an engine."""
    if kernel.engine == engine:
        return kernel
    options = {"engine": engine, "defines": kernel.defines, "time_limit": kernel.time_limit}
    options["workspace_limit"] = kernel.workspace_limit
    if kernel.path is not None and kernel.path.read_text() == kernel.source:
        return load(kernel.path, **options)
    return compile(kernel.source, name=kernel.name.partition("@")[0], **options)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:2]).strip()


def _simulate(kernel: Kernel, problem: Problem, seed: int, notes: list[str]):
    """Runs on the stand-ins, the findings, and the operations counted (or None)."""
    runs, findings, flops = [], (), None
    try:
        twin = _on(kernel, "sim")
        for stand_in in predict.stand_ins(problem):
            launch = twin.prepare(stand_in, *reference.inputs(stand_in, seed))
            launch()
            lines = getattr(launch, "lines", None) or []
            launches = getattr(launch, "launches", None) or []
            runs.append(predict.Run(stand_in, launch.counters or {}, lines, launches))
            if len(runs) == 1:
                findings = getattr(launch, "findings", None) or ()
                flops = getattr(launch, "flops", None)
    except ConvlabError as error:
        notes.append(f"not simulated: {_first_line(error)}")
        return [], findings, flops
    return runs, findings, flops


def _compiled(kernel: Kernel, gpu: Gpu, notes: list[str]) -> list[sass.Function]:
    source = builds.Source(kernel.source, kernel.name.partition("@")[0], kernel.path)
    try:
        with tempfile.TemporaryDirectory(prefix="convlab-") as folder:
            arch = kernel.header.arch
            arch = arch.removeprefix("sm_") if arch and arch.startswith(f"sm_{gpu.sm}") else gpu.arch
            cubin, log = builds.cubin(source, arch, Path(folder), kernel.defines)
            functions = list(sass.resources(log).values())
            sass.disassemble(cubin, source.label, functions)
    except ConvlabError as error:
        notes.append(f"no registers or instructions: {_first_line(error)}")
        return locals().get("functions") or []
    return functions


def _peaks(gpu: Gpu) -> tuple[tuple[float, dict[str, float]] | None, Ceilings | None]:
    """What the roofline is drawn from, and measured ceilings if this GPU is the one that is there."""
    here = describe()
    if here is not None and here.name == gpu.driver_name:
        known = ceilings()
        units = {"fp32": known.fp32_flops, "TF32": known.tf32_flops}
        return (known.copy_bytes_per_s, units), known
    sheet = gpu.datasheet
    if sheet is None:
        return None, None
    units = {"fp32": sheet.fp32_tflops * 1e12}
    if sheet.tf32_tflops:
        units["TF32"] = sheet.tf32_tflops * 1e12
    return (sheet.memory_gb_per_s * 1e9, units), None


def _measure(kernel: Kernel, problem: Problem, small: Problem, seed: int, notes: list[str]):
    if describe() is None:
        notes.append("not measured: no GPU here; all above is simulated, compiled or a model's")
        return None
    seen: dict[str, Any] = {}
    try:
        twin = _on(kernel, "cuda")
        fitted, scaled = fit(problem, [twin])
        if scaled:
            notes.append(f"not measured at full size, the GPU's memory is too small: {scaled}")
        else:
            seen["ms"] = 1e3 * measure(twin, fitted, seed=seed).seconds
        counted = ncu.profile(twin, small, seed=seed)
        seen["counters"], seen["functions"] = ncu.derived(counted.totals), counted.frame
        if not scaled and small != problem:
            seen["whole"] = ncu.derived(ncu.profile(twin, problem, ncu.BRIEF, seed=seed).totals)
        elif not scaled:
            seen["whole"] = seen["counters"]
    except ConvlabError as error:
        notes.append(f"hardware counters are missing: {_first_line(error)}")
    return seen or None


def _predict(problem, gpu, functions, runs, known, block, notes) -> predict.Prediction | None:
    lacks = [
        text for text, there in (
            ("a simulated run", runs),
            ("counts by source line", not runs or runs[0].lines),
            ("machine instructions (nvcc and nvdisasm)", any(f.instructions for f in functions)),
            (f"the datasheet of {gpu.name}", gpu.datasheet or known),
        ) if not there
    ]  # fmt: skip
    if lacks:
        notes.append(f"no prediction: it needs {', '.join(lacks)}")
        return None
    return predict.predict(problem, gpu, functions, runs, known, block)


def _static(functions: Sequence[sass.Function], launches: Sequence[Mapping[str, Any]], gpu: Gpu,
            block: Dims | None, shared: int) -> pd.DataFrame:  # fmt: skip
    launched = {}
    for entry in launches:
        match = find_function(functions, entry["kernel"])
        if match is not None:
            launched.setdefault(match.symbol, entry)
    rows = []
    for f in functions:
        if launched and f.symbol not in launched:
            continue
        entry = launched.get(f.symbol, {"block": block, "shared_bytes": shared})
        shape, dynamic = entry["block"], entry["shared_bytes"]
        held = None
        if shape:
            held = occupancy(gpu, math.prod(shape), f.registers, f.static_shared + dynamic)
        rows.append(
            {
                "function": f.name, "registers": f.registers, "static_shared": f.static_shared,
                "dynamic_shared": dynamic if shape else math.nan,
                "spill_bytes": f.spill_stores + f.spill_loads, "stack": f.stack,
                "block": "x".join(map(str, shape)) if shape else "",
                "blocks_per_sm": held.blocks if held else math.nan,
                "occupancy": held.fraction if held else math.nan,
                "limited_by": held.limited_by if held else "",
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _mix(functions: Sequence[sass.Function]) -> pd.DataFrame:
    rows = []
    for f in functions:
        for where, loop in (("all", None), ("hot loop", f.hot_loop)):
            if where == "all" or loop is not None:
                mix = f.mix(loop)
                ffma = mix.get("FFMA", 0)
                rows += [
                    {"function": f.name, "where": where, "kind": kind, "count": count,
                     "per_ffma": count / ffma if ffma else math.nan}
                    for kind, count in mix.items()
                ]  # fmt: skip
    return pd.DataFrame(rows, columns=["function", "where", "kind", "count", "per_ffma"])


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{k: plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or pd.isna(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The quantities of which anything is known, as text."""
    numbers = ["simulated", "predicted", "measured", "least"]
    known = frame[frame[numbers[:3]].notna().any(axis=1)]
    known = known[["quantity", "unit", "problem", *(n for n in numbers if known[n].notna().any())]]
    return known.apply(lambda column: column.map(_cell))


def _static_shown(static: pd.DataFrame) -> pd.DataFrame:
    if not len(static):
        return static
    shown = static.copy()
    shown["occupancy"] = [("-" if pd.isna(v) else f"{v:.0%}") for v in shown["occupancy"]]
    names = {"static_shared": "static B", "dynamic_shared": "dynamic B", "spill_bytes": "spills B",
             "blocks_per_sm": "blocks/SM", "limited_by": "limited by"}  # fmt: skip
    return shown.apply(lambda column: column.map(_cell)).drop(columns="stack").rename(columns=names)


def _text(frame: pd.DataFrame) -> list[str]:
    return frame.to_string(index=False, justify="left").splitlines() if len(frame) else []
