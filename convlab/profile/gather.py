"""Why a kernel takes as long as it does: what nvcc made of it, what it asks of memory, and a model.

`inspect` gathers whatever this machine can tell: the simulator's counters by source line,
registers, occupancy and machine instructions from nvcc (no GPU needed), the hardware's counters
and a time where there is a GPU, and a rough prediction of the time. What is missing is a line.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import arguments
from ..core.builds import nvcc
from ..core.builds.compile import compile_error
from ..core.errors import ConvlabError, LaunchError, ProblemError, UnsupportedError
from ..core.kernel.kernel import ENGINES, Kernel, load
from ..core.kernel.runnable import Runnable
from ..core.kernel.shrink_to_fit import fit
from ..core.machine.device import Ceilings, Gpu, ceilings, describe, find_gpu, floor_seconds
from ..core.problem.named import members
from ..core.problem.problem import Problem
from ..core.timing.measure import measure
from ..core.timing.sides import reason
from . import ncu, sass
from .accesses import access_map, accesses, footprint
from .counting import count
from .flow import Call, calls
from .inspection import Inspection, Inspections
from .model import predict
from .table import quantities, sass_table, static_table

__all__ = ["access_map", "accesses", "footprint", "inspect"]


def inspect(
    kernel: Runnable | str | Path,
    problem: Problem | str | Iterable[Problem | str] = "square",
    *,
    gpu: Gpu | str | None = None,
    engine: str = "auto",
) -> Inspection | Inspections:
    """Gather why a kernel takes as long as it does, from whatever this machine can tell.

    Parameters
    ----------
    kernel : a `Kernel`, or its name or path. Of a large problem the simulator runs some blocks of
        each launch, which stand for all: as many as it does in a moment.
    problem : a Problem, the name or the spec of one, or several: the name of a set ("headline"),
        or a list.
    gpu : the GPU that occupancy and prediction are for, one of `machine.device.GPUS` by name; the
        one that is there unless told, without one the last of them.
    engine : "auto": simulated, and measured where there is a GPU; "sim" or "cuda": only that.

    Returns
    -------
    Inspection, or Inspections of several problems: those that the kernel can do.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel, problem or GPU.
    UnsupportedError
        The kernel cannot do the problem, or none of them.
    """
    arguments.choice(engine, "engine", ENGINES)
    gpu = find_gpu(gpu)
    kernel = _kernel(kernel, engine)
    chosen, of_set = members(problem)
    found = []
    refused = []
    for asked in chosen:
        reason = kernel.unsupported(asked)
        if reason is None:
            found.append(_inspect(kernel, asked, gpu, engine))
        else:
            refused.append(f"{kernel.name} cannot do {asked.label}: {reason}")
    if not found:
        raise UnsupportedError("; ".join(refused) or "no problems are given")
    return Inspections(tuple(found), tuple(refused)) if of_set else found[0]


def _inspect(kernel: Kernel, problem: Problem, gpu: Gpu, engine: str) -> Inspection:
    notes: list[str] = []
    simulates = engine in ("auto", "sim")
    measures = engine in ("auto", "cuda")
    here = measures and describe() is not None
    if here:
        problem, scaled = fit(problem, [kernel.on("cuda")])
        notes += [f"the GPU's memory is too small for more: {scaled}"] if scaled else []
    counted = None
    findings = ()
    functions = ()
    measured = None
    model = None
    if simulates:
        counted, findings = _simulated(kernel.on("sim"), problem, notes)
    try:
        functions = compiled(kernel, gpu)
    except ConvlabError as error:
        notes.append(f"no registers or instructions: {reason(error, kernel.name)}")
    if here and (counted or not simulates):  # never what failed on the simulator
        measured = _measured(kernel.on("cuda"), problem, notes)
    elif measures and not here:
        notes.append("not measured: no GPU here; all above is simulated, compiled or a model's")
    counts = counted.lines if counted else ()
    called = calls(functions, counts, counted.launches) if counted else []
    lines = pd.DataFrame(row | {"file": Path(row["file"]).name} for row in counts if row["line"])
    best, known = _ceilings(gpu)
    if called and len(lines):
        model = predict(problem, gpu, called, counted, best if known else None, kernel.format)
    lacks = "no prediction: it needs counts by source line, and machine code of what was launched"
    notes.append(model.dram.note if model else lacks)
    if len(lines):
        whole = lines.groupby("space")["units"].transform("sum")
        lines["share"] = lines["units"] / whole.where(whole > 0, 1)
    called = called or [Call(function) for function in functions]
    notes += [
        f"{f.name} keeps {f.stack} bytes of each thread in local memory, which is DRAM behind the "
        f"caches: arrays whose indices the compiler does not know (unroll the loop), or {f.spill_bytes} "
        "bytes for want of registers"
        for f in (call.function for call in called)
        if f.stack
    ]
    floor = floor_seconds(problem, kernel.precision, best, kernel.format)
    least = kernel.format.min_bytes(problem)
    file, text = kernel.file.code
    return Inspection(
        kernel.name,
        problem,
        gpu,
        measured=measured,
        predicted=model,
        frame=quantities(problem, least, counted, model, measured, floor),
        static=static_table(called, gpu),
        sass=sass_table(called, model),
        lines=lines,
        findings=tuple(findings),
        notes=tuple(notes),
        source=tuple(text.splitlines()),
        ceilings=best,
        file=file,
    )


def _kernel(thing: Runnable | str | Path, engine: str) -> Kernel:
    if isinstance(thing, Kernel):
        return thing
    name = thing.name if isinstance(thing, Runnable) else str(arguments.path(thing, "kernel"))
    if isinstance(thing, Runnable) or ":" in name:
        raise ProblemError(f"{name} is a library's, or a function: inspect looks into .cu files")
    return load(thing, engine=engine)


def _simulated(kernel: Kernel, problem: Problem, notes: list[str]):
    """What the simulator counted, or None, and what it found."""
    try:
        counted = count(kernel, problem)
    except ConvlabError as error:
        notes.append(f"not simulated: {reason(error, kernel.name)}")
        return None, error.findings if isinstance(error, LaunchError) else ()
    if sampling := counted.sampling:
        shown = {
            "load sectors": "global_load_sectors",
            "store sectors": "global_store_sectors",
            "wavefronts": "shared_wavefronts",
        }
        off = {what: sampling["errors"].get(name) for what, name in shown.items()}
        errors = ", ".join(f"{what} {error:.1%}" for what, error in off.items() if error)
        notes.append(
            f"{sampling['sampled']:,} of {sampling['blocks']:,} blocks simulated, at random, and "
            f"their counts scaled; standard errors: {errors or 'none'}"
        )
    if counted.flops is None and counted.lines:
        notes.append("operations are not counted: no objdump; install binutils")
    return counted, counted.findings


def compiled(kernel: Kernel, gpu: Gpu) -> tuple[sass.Function, ...]:
    """Return what nvcc makes of a kernel for a GPU. Raises BuildError without nvcc or nvdisasm."""
    source = kernel.file
    made = nvcc.compiled(source, gpu.arch, kernel.defines)
    if made.status:
        raise compile_error(source, made.log)
    return sass.functions(made.cubin, made.log, source.for_nvcc.label)


def _ceilings(gpu: Gpu) -> tuple[Ceilings, bool]:
    """What a GPU can do, and whether that was measured: nothing reaches a datasheet's rates."""
    here = describe()
    sheet = gpu.datasheet
    if here is not None and here.driver_name == gpu.driver_name:
        return ceilings(), True
    tf32 = sheet.tf32_tflops or sheet.fp32_tflops
    flops = [1e12 * rate for rate in (sheet.fp32_tflops, tf32, 2 * tf32)]  # bf16: twice TF32's
    return Ceilings(1e9 * sheet.memory_gb_per_s, *flops), False


def _measured(kernel: Kernel, problem: Problem, notes: list[str]):
    seen: dict[str, Any] = {}
    try:
        seen["ms"] = 1e3 * measure(kernel, problem).seconds
        (seen["functions"],) = ncu.profile_each([(kernel, problem)])
        if seen["functions"].empty:
            raise LaunchError("ncu counted nothing: no kernel was launched")
        seen["counters"] = ncu.totals(seen["functions"])
    except ConvlabError as error:
        lacks = "hardware counters are missing" if seen else "not measured"
        notes.append(f"{lacks}: {reason(error, kernel.name)}")
    return seen or None
