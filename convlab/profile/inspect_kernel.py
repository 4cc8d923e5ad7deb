"""Explain why a kernel takes as long as it does: `convlab.inspect`.

`inspect` uses all tools of this machine. The simulator counts memory traffic by source line. nvcc
gives registers, occupancy and machine instructions, without a GPU. A model predicts the time. A GPU
adds a measured time and hardware counters. A note names each missing part.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import arguments, rooms
from ..core.correctness.examine import examine, failed
from ..core.correctness.setting import ONCE
from ..core.errors import ConvlabError, LaunchError, ProblemError, UnsupportedError
from ..core.faults import INCORRECT
from ..core.kernel import catalog
from ..core.kernel.kernel import ENGINES, Kernel, load, resolve
from ..core.kernel.options import Options
from ..core.kernel.runnable import Runnable
from ..core.kernel.shrink_to_fit import fit
from ..core.kernel.tunables import parse_tunables
from ..core.machine.device import Ceilings, Gpu, ceilings, describe, find_gpu, floor_seconds
from ..core.problem.named import members
from ..core.problem.problem import Problem
from ..core.timing.measure import measure
from ..core.timing.sides import reason
from . import disassembly, ncu, sampling, whole_sectors
from .inspection import Inspection, Inspections
from .launched_functions import LaunchedFunction, launched_functions
from .sampling import Counts
from .sass import Function
from .tables import quantities, sass_table, static_table
from .time_model import predict

# An incorrect kernel is inspected too, but the result says so. One run on so few multiply-adds shows it.
_CHECKED_MACS = 1_000_000
_SAMPLED_COUNTERS = {
    "load sectors": "global_load_sectors",
    "store sectors": "global_store_sectors",
    "wavefronts": "shared_wavefronts",
}


def inspect(
    kernel: Runnable | str | Path,
    problem: Problem | str | Iterable[Problem | str] | None = None,
    *,
    gpu: Gpu | str | None = None,
    engine: str = "auto",
) -> Inspection | Inspections:
    """Explain why a kernel takes as long as it does, with all tools of this machine.

    Parameters
    ----------
    kernel : a `Kernel`, or its name or path. For a large problem the simulator runs a sample of the
        blocks of each launch, which takes a few seconds. A Python file in KernelBench's form is
        inspected on its own task, kernel by kernel, without a prediction.
    problem : a Problem, the name or the spec of one, or several: the name of a set ("headline"),
        or a list. The default is "square".
    gpu : the GPU for occupancy and prediction, by name (one of `machine.device.GPUS`). The default
        is the GPU of this machine; without one, the last of the list.
    engine : "auto" simulates, and measures if there is a GPU; "sim" or "cuda" does only that.

    Returns
    -------
    Inspection, or Inspections of several problems: those that the kernel supports. The kernel also runs
    once on a small problem of the same kind. If it is incorrect there, the result begins with that, and
    is false.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel, problem or GPU.
    UnsupportedError
        The kernel does not support the problem, or, of several, none.

    Examples
    --------
    >>> convlab.inspect("03_smem_tile", "wide", gpu="A100").verdict
    """
    arguments.choice(engine, "engine", ENGINES)
    gpu = find_gpu(gpu)
    if isinstance(kernel, (str, Path)) and Path(kernel).suffix in rooms.names("kernel_file"):
        kernel = resolve(kernel, engine)
    if isinstance(kernel, Runnable) and (inspection := _own(kernel, problem, gpu)) is not None:
        return inspection
    kernel = _kernel(kernel, engine)
    problems, is_set = members("square" if problem is None else problem)
    problems = [kernel.asked(each) for each in problems]
    inspections = []
    unsupported = []
    for member in problems:
        why = _unsupported(kernel, member, gpu)
        if why is None:
            inspections.append(_inspect(kernel, member, gpu, engine))
        else:
            unsupported.append(f"{kernel.name} does not support {member.label}: {why}")
    if not inspections:
        raise UnsupportedError("; ".join(unsupported) or "the list of problems is empty")
    return Inspections(tuple(inspections), tuple(unsupported)) if is_set else inspections[0]


def _own(kernel: Runnable, problem: Any, gpu: Gpu) -> Any:
    """Return the inspection of a runnable that has a task of its own; None of any other."""
    if kernel.own_task is None:
        return None
    if problem is not None:
        raise ProblemError(
            f"{kernel.name} is inspected on its own task: leave out the problem, or change get_inputs"
        )
    return kernel.own_task.inspection(gpu)


def _kernel(kernel: Runnable | str | Path, engine: str) -> Kernel:
    """Return the kernel to inspect; raise for a library or a function, which has no source."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, Runnable):
        raise ProblemError(_not_a_file(kernel.name))
    name = str(arguments.path(kernel, "kernel"))
    if ":" in name:
        raise ProblemError(_not_a_file(name))
    if _only_compiles():
        stem, _, tunables = name.partition("@")
        path = catalog.find(stem).resolve()
        return Kernel(path.stem, path, None, Options("cuda", parse_tunables(tunables)))
    return load(kernel, engine=engine)


def _only_compiles() -> bool:
    """Return whether this machine can run no kernel; nvcc may still compile it."""
    return not sampling.installed() and describe() is None


def _unsupported(kernel: Kernel, problem: Problem, gpu: Gpu) -> str | None:
    """Return why a kernel does not support a problem; None if it does."""
    if _only_compiles():
        return kernel.header.unsupported(problem, gpu.sm, gpu.limits.shared_optin_bytes)
    return kernel.unsupported(problem)


def _not_a_file(name: str) -> str:
    return f"{name} is a library or a function, and inspect needs a kernel's .cu file"


def _inspect(kernel: Kernel, problem: Problem, gpu: Gpu, engine: str) -> Inspection:
    """Return the inspection of one kernel on one problem."""
    notes: list[str] = []
    simulates = engine in ("auto", "sim")
    measures = engine in ("auto", "cuda")
    has_gpu = measures and describe() is not None
    if has_gpu:
        problem, scaled = fit(problem, [kernel.on("cuda")])
        if scaled:
            notes.append(f"the GPU's memory is too small for the whole problem: {scaled}")
    counts, findings = _simulate(kernel, problem, notes) if simulates else (None, ())
    incorrect = _incorrect(kernel, problem) if simulates else ""
    functions = _compile(kernel, gpu, notes)
    measured = None
    # A kernel that failed on the simulator is never run on a GPU.
    if has_gpu and (counts or not simulates):
        measured = _measure(kernel.on("cuda"), problem, notes)
    elif measures and not has_gpu:
        notes.append("not measured: this machine has no GPU")
    launched: list[LaunchedFunction] = []
    lines = pd.DataFrame()
    if counts:
        launched = launched_functions(
            functions, counts.lines_by_call, counts.launches, counts.reached
        )
        lines = _lines_frame(counts)
    best_rates, are_measured = _ceilings(gpu)
    model = None
    if launched and len(lines):
        measured_rates = best_rates if are_measured else None
        model = predict(problem, gpu, launched, counts, measured_rates, kernel.format)
    if model:
        notes.append(model.dram.note)
    else:
        notes.append(
            "no prediction: it needs the simulator's counts by source line, and the machine code of "
            "the launched functions"
        )
    launched = launched or [LaunchedFunction(function) for function in functions]
    notes += _local_memory_notes(launched)
    if counts:
        split_sectors = counts.counters.get("split_sectors", math.nan)
        notes += whole_sectors.notes(counts.lines, split_sectors, gpu, best_rates.copy_bytes_per_s)
    floor = floor_seconds(problem, kernel.precision, best_rates, kernel.format)
    least_bytes = kernel.format.min_bytes(problem)
    file, text = kernel.file.code
    return Inspection(
        kernel=kernel.name,
        problem=problem,
        gpu=gpu,
        measured=measured,
        predicted=model,
        frame=quantities(problem, least_bytes, counts, model, measured, floor),
        static=static_table(launched, gpu),
        sass=sass_table(launched, model),
        lines=lines,
        findings=tuple(findings),
        notes=tuple(notes),
        source=tuple(text.splitlines()),
        ceilings=best_rates,
        file=file,
        incorrect=incorrect,
    )


def _incorrect(kernel: Kernel, problem: Problem) -> str:
    """Check a kernel once on a small problem of the same kind; return what is incorrect, or ""."""
    if not sampling.installed():
        return ""
    small = problem.scaled(_CHECKED_MACS)
    simulated = kernel.on("sim")
    # Headers may exclude the smaller sizes.
    if simulated.unsupported(small) is not None:
        return ""
    try:
        report = examine(simulated, small, seed=0, setting=ONCE)
    except LaunchError as error:
        report = failed(simulated, small, error)
    except ConvlabError:
        return ""
    if report.outcome != INCORRECT:
        return ""
    return f"INCORRECT on {small}; check it before you make it faster"


def _simulate(
    kernel: Kernel, problem: Problem, notes: list[str]
) -> tuple[Counts | None, Sequence[Any]]:
    """Return the simulator's counts, or None, and its findings; add notes."""
    if not sampling.installed():
        notes.append(f"not counted: {sampling.NOT_INSTALLED}")
        return None, ()
    simulated = kernel.on("sim")
    try:
        counts = sampling.count(simulated, problem)
    except ConvlabError as error:
        notes.append(f"not simulated: {reason(error, simulated.name)}")
        return None, error.findings if isinstance(error, LaunchError) else ()
    if counts.sampling:
        errors = []
        for label, counter in _SAMPLED_COUNTERS.items():
            error = counts.sampling["errors"].get(counter)
            if error:
                errors.append(f"{label} {error:.1%}")
        notes.append(
            f"{counts.sampling['sampled']:,} of {counts.sampling['blocks']:,} blocks simulated, "
            "chosen at random, and their counts scaled; standard errors: "
            f"{', '.join(errors) or 'none'}"
        )
    if counts.flops is None and counts.lines:
        notes.append("operations are not counted, because there is no objdump: install binutils")
    return counts, counts.findings


def _compile(kernel: Kernel, gpu: Gpu, notes: list[str]) -> tuple[Function, ...]:
    """Return the kernel's machine code, or nothing and a note."""
    try:
        return disassembly.compiled(kernel, gpu)
    except ConvlabError as error:
        notes.append(f"no registers or instructions: {reason(error, kernel.name)}")
        return ()


def _measure(kernel: Kernel, problem: Problem, notes: list[str]) -> dict[str, Any] | None:
    """Return the measured time and the hardware's counters, as `Inspection.measured`."""
    measured: dict[str, Any] = {}
    try:
        measured["ms"] = 1e3 * measure(kernel, problem).seconds
        (measured["functions"],) = ncu.profile_each([(kernel, problem)])
        if measured["functions"].empty:
            raise LaunchError("ncu counted nothing, because no kernel was launched")
        measured["counters"] = ncu.totals(measured["functions"])
    except ConvlabError as error:
        missing = "hardware counters are missing" if measured else "not measured"
        notes.append(f"{missing}: {reason(error, kernel.name)}")
    return measured or None


def _lines_frame(counts: Counts) -> pd.DataFrame:
    """Return the counts of known lines; `share` is the share of a memory space's units."""
    rows = [row | {"file": Path(row["file"]).name} for row in counts.lines if row["line"]]
    lines = pd.DataFrame(rows)
    if len(lines):
        totals = lines.groupby("space")["units"].transform("sum")
        lines["share"] = lines["units"] / totals.where(totals > 0, 1)
    return lines


def _local_memory_notes(launched: Sequence[LaunchedFunction]) -> list[str]:
    """Return a note for each function that stores data of its threads in local memory."""
    notes = []
    for entry in launched:
        function = entry.function
        if function.stack:
            notes.append(
                f"{function.name} keeps {function.stack} bytes per thread in local memory, which "
                "is DRAM behind the caches. Either the compiler does not know the indices of an "
                "array (unroll the loop), or there were too few registers and "
                f"{function.spill_bytes} bytes are spilled"
            )
    return notes


def _ceilings(gpu: Gpu) -> tuple[Ceilings, bool]:
    """Return a GPU's bandwidth and rates, and whether they were measured.

    If not, they come from the datasheet, and no kernel reaches them.
    """
    here = describe()
    if here is not None and here.driver_name == gpu.driver_name:
        return ceilings(), True
    sheet = gpu.datasheet
    tf32_tflops = sheet.tf32_tflops or sheet.fp32_tflops
    bf16_tflops = 2 * tf32_tflops
    flops = [1e12 * rate for rate in (sheet.fp32_tflops, tf32_tflops, bf16_tflops)]
    return Ceilings(1e9 * sheet.memory_gb_per_s, *flops), False
