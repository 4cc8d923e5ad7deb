"""Why a kernel takes as long as it does: what nvcc made of it, what it asks of memory, and a model.

`inspect` gathers whatever this machine can tell: the simulator's counters by source line,
registers, occupancy and machine instructions from nvcc (no GPU needed), the hardware's counters
and a time where there is a GPU, and a rough prediction of the time. What is missing is a line.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..fast.measure import measure
from ..machine.device import Ceilings, Datasheet, ceilings, describe, floor_seconds
from ..right import reference
from ..run.fit import fit
from ..run import build as builds
from ..run.kernel import ENGINES, Kernel, load
from ..words.errors import ConvlabError, ProblemError, UnsupportedError
from ..words.problem import Problem
from ..words.problem import problem as named_problem
from . import ncu, predict, sass
from .accesses import access_map, accesses, footprint
from .executed import find_function
from .inspection import Inspection
from .listing import with_shares
from .occupancy import Gpu, find_gpu
from .table import Dims, quantities, sass_table, static_table

__all__ = ["access_map", "accesses", "footprint", "inspect"]


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
    kernel : a `Kernel`, or its name or path. One that was loaded with ``sample=`` is simulated on
        the problem itself, that many blocks of each launch; others whole, on a small problem.
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
    counted = runs[0].lines if runs else ()
    launched = [find_function(functions, e["kernel"], counted, e["block"]) for e in launches]
    called = [f for f in functions if any(f is match for match in launched)]
    model = _predict(problem, gpu, functions, runs, known, block, notes)
    if functions and not launches and block is None:
        notes.append("no occupancy: the launch is not known; give block=(x, y, z) and shared=BYTES")
    floor = math.nan
    if known or gpu.datasheet:
        floor = floor_seconds(problem, kernel.precision, known or _stated(gpu.datasheet))
    lines = with_shares(runs[0].lines) if runs else []
    made: dict[int, int] = {}
    for instruction in (i for f in called or functions for i in f.instructions if i.line):
        made[instruction.line] = made.get(instruction.line, 0) + 1
    return Inspection(
        kernel.name, problem, small, gpu,
        frame=quantities(problem, small, runs, flops if runs else None, model, measured, floor),
        static=static_table(called or functions, launches, gpu, block, shared, counted),
        sass=sass_table(called or functions), lines=pd.DataFrame(lines), measured=measured,
        predicted=model,
        findings=tuple(findings), notes=tuple(notes), source=tuple(kernel.source.splitlines()),
        made=made, peaks=peaks,
    )  # fmt: skip


def _load(name: str | Path, engine: str) -> Kernel:
    if ":" in str(name):
        raise ProblemError(f"{name} is a library's: inspect looks into .cu files")
    return load(name, engine=engine)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:2]).strip()


def _simulate(kernel: Kernel, problem: Problem, seed: int, notes: list[str]):
    """Runs on the stand-ins, the findings, and the operations counted (or None).

    A kernel that was loaded with ``sample=`` runs some blocks of the problem itself.
    """
    runs, findings, flops = [], (), None
    try:
        twin = kernel.on("sim")
        for stand_in in [problem] if twin.sample else predict.stand_ins(problem):
            launch = twin.prepare(stand_in, *reference.inputs(stand_in, seed))
            launch()
            # a line is not known where binutils' addr2line is not there
            lines = [row for row in launch.lines if row["line"]]
            runs.append(
                predict.Run(
                    stand_in, launch.counters or {}, lines, launch.launches, launch.executed
                )
            )
            if launch.sampling:
                notes.append(_sampled(launch.sampling))
            if len(runs) == 1:
                findings, flops = launch.findings, launch.flops
                if flops is None and twin.trace:
                    notes.append("operations are not counted: no objdump; install binutils")
    except ConvlabError as error:
        notes.append(f"not simulated: {_first_line(error)}")
        return [], findings, flops
    return runs, findings, flops


def _sampled(sampling: Mapping[str, Any]) -> str:
    """In words: how many blocks stand for all, and how far off their counts may be."""
    shown = {"load sectors": "global_load_sectors", "store sectors": "global_store_sectors",
             "wavefronts": "shared_wavefronts"}  # fmt: skip
    errors = ", ".join(
        f"{what} {sampling['errors'][name]:.1%}"
        for what, name in shown.items() if sampling["errors"].get(name)
    )  # fmt: skip
    count = f"{sampling['sampled']:,} of {sampling['blocks']:,} blocks simulated, at random"
    return f"{count}, and their counts scaled; standard errors: {errors or 'none'}"


def _compiled(kernel: Kernel, gpu: Gpu, notes: list[str]) -> list[sass.Function]:
    source = builds.Source(kernel.source, kernel.name.partition("@")[0], kernel.path)
    functions: list[sass.Function] = []
    try:
        with tempfile.TemporaryDirectory(prefix="convlab-") as folder:
            cubin, log = builds.cubin(source, gpu.arch, Path(folder), kernel.defines)
            functions += sass.resources(log).values()
            sass.disassemble(cubin, source.label, functions)
    except ConvlabError as error:
        notes.append(f"no registers or instructions: {_first_line(error)}")
    return functions


def _peaks(gpu: Gpu) -> tuple[tuple[float, dict[str, float]] | None, Ceilings | None]:
    """What the roofline is drawn from, and measured ceilings if that GPU is the one here."""
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


def _stated(sheet: Datasheet) -> Ceilings:
    """The datasheet's rates as ceilings; nothing reaches them."""
    flops = sheet.fp32_tflops * 1e12
    tensor = 1e12 * (sheet.tf32_tflops or sheet.fp32_tflops)
    return Ceilings(sheet.memory_gb_per_s * 1e9, flops, tensor)


def _measure(kernel: Kernel, problem: Problem, small: Problem, seed: int, notes: list[str]):
    if describe() is None:
        notes.append("not measured: no GPU here; all above is simulated, compiled or a model's")
        return None
    seen: dict[str, Any] = {}
    try:
        twin = kernel.on("cuda")
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
            ("the launch, or block=(x, y, z)", not runs or runs[0].launches or block),
            ("machine instructions (nvcc and nvdisasm)", any(f.instructions for f in functions)),
            (f"the datasheet of {gpu.name}", gpu.datasheet or known),
        ) if not there
    ]  # fmt: skip
    if lacks:
        notes.append(f"no prediction: it needs {', '.join(lacks)}")
        return None
    return predict.predict(problem, gpu, functions, runs, known, block)
