"""Predict a kernel's time at full size on a named GPU, for `compare` without a GPU.

The core asks for `forecast` by its kind and name in ``room.toml``, and shows it in its tables. A
prediction is kept in the cache of builds: the next one for the same kernel, problem and GPU is read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from pathlib import Path

from ..core.builds import cache
from ..core.builds.cache import BuildOutput, Key
from ..core.builds.key import key_of
from ..core.errors import LaunchError
from ..core.forecast import Forecast, missing
from ..core.kernel.kernel import Kernel
from ..core.machine import toolchain
from ..core.machine.gpus import VALIDATED, Gpu
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.problem import Problem
from . import disassembly, sampling
from .launched_functions import launched_functions
from .sampling import Counts, Multiplied
from .time_model import WGMMA, Prediction, predict

# A sample for a forecast: about this many multiply-adds, and at least so many blocks.
_MACS = 16_000_000
_LEAST = 4
# The model's errors on measured rows, by the units that do the work; `calibrate_model` writes it.
ERRORS = Path(__file__).parent / "known_errors.json"


def forecast(kernel: Kernel, problem: Problem, gpu: Gpu) -> Forecast:
    """Return the predicted time of a kernel on a problem of any size, and counts of its work.

    Without nvcc or nvdisasm there are counts, and no time.

    Raises
    ------
    BuildError
        nvcc does not compile the kernel.
    LaunchError
        The simulator cannot count its work.
    """

    def make(folder: Path) -> BuildOutput:
        counts = counted(kernel, problem, gpu)
        found = {
            "counters": {name: value for name, value in counts.counters.items() if value == value},
            "sampled": described(counts),
        }
        if not missing():
            prediction = predicted(kernel, problem, gpu, counts)
            found["unknown"] = unknown(kernel, problem, prediction)
            if not found["unknown"]:
                found |= {"ms": prediction.ms, "group": prediction.group}
        output = folder / "predicted.json"
        output.write_text(json.dumps(found))
        return BuildOutput(output)

    saved = cache.build(lambda: _key(kernel, problem, gpu), make)
    found = json.loads(saved.library.read_text())
    group = found.get("group", "")
    return Forecast(
        found.get("ms", math.nan),
        _doubt(gpu) if group else found.get("unknown", ""),
        group,
        known_errors().get(group),
        found["counters"],
        found["sampled"],
    )


def prepare(kernel: Kernel, problem: Problem, gpu: Gpu) -> None:
    """Compile a kernel for its forecast, in a thread; `forecast` then takes less time.

    Raises BuildError as `forecast` does.
    """
    if not missing() and not cache.has(_key(kernel, problem, gpu)):
        disassembly.compiled(kernel, gpu)


def counted(kernel: Kernel, problem: Problem, gpu: Gpu) -> Counts | Multiplied:
    """Return a kernel's counts from fewer blocks than `inspect` samples; raise LaunchError."""
    return sampling.count(kernel.on("sim").on_gpu(gpu), problem, _MACS, _LEAST)


def predicted(
    kernel: Kernel, problem: Problem, gpu: Gpu, counts: Counts | Multiplied
) -> Prediction:
    """Return a kernel's prediction from its counts; raise what `forecast` raises."""
    if gpu.datasheet is None:
        raise LaunchError(f"the datasheet of {gpu.driver_name} is not known: name a GPU with gpu=")
    functions = disassembly.compiled(kernel, gpu)
    launched = launched_functions(
        functions, counts.lines_by_call, counts.launches, counts.reached
    )
    prediction = predict(problem, gpu, launched, counts, None, kernel.format)
    if prediction is None:
        raise LaunchError("no launched function was both compiled and counted")
    return prediction


def unknown(kernel: Kernel, problem: Problem, prediction: Prediction) -> str:
    """Return why a prediction is not shown; empty if it is. MODEL.md has the errors and the cause."""
    if not prediction.group.startswith(WGMMA):
        return ""
    what = ""
    if problem.computation is WEIGHT_GRADIENT and kernel.format.x.torch_dtype.itemsize == 2:
        what = "weight gradients in 16 bits on wgmma"
    elif problem.computation is DATA_GRADIENT and problem.stride != (1, 1):
        what = "data gradients with a stride on wgmma"
    return f"the model does not know {what} (convlab/profile/MODEL.md)" if what else ""


def described(counts: Counts | Multiplied) -> str:
    """Return which blocks were simulated, and the standard error of their traffic."""
    sample = counts.sampling
    if sample is None:
        return "all blocks"
    text = f"{sample['sampled']:,} of {sample['blocks']:,} blocks"
    if isinstance(counts, Multiplied):
        # The blocks of a fixed grid: each computes a part of everything.
        return f"{text} of {counts.smaller}, multiplied"
    sizes = {name: counts.counters[name] for name in ("global_load_bytes", "global_store_bytes")}
    errors = [sample["errors"][name] * size for name, size in sizes.items()]
    share = math.hypot(*errors) / (sum(sizes.values()) or 1)
    return f"{text}, ±{100 * share:.0f}%"


@functools.cache
def known_errors() -> dict[str, float]:
    """Return, for each group of kernels, the factor that 9 of 10 measured rows are within."""
    if not ERRORS.exists():
        return {}
    return {group: row["nine_of_ten"] for group, row in json.loads(ERRORS.read_text()).items()}


def _key(kernel: Kernel, problem: Problem, gpu: Gpu) -> Key:
    """Return the key of a saved prediction: all that determines it."""
    parts = [
        str(sorted(kernel.defines.items())),
        f"{problem.variables()} {problem.computes} {kernel.workspace_limit}",
        repr(gpu),
        missing() or toolchain.identity(toolchain.require_cuda().nvcc),
        toolchain.identity(toolchain.require_host_compiler()),
        _code(),
    ]
    return key_of(kernel.file, f"predicted_{gpu.name.replace(' ', '_')}", parts)


@functools.cache
def _code() -> str:
    """Return a digest of the model's and the simulator's code."""
    rooms = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted([*rooms.glob("profile/*.py"), *rooms.glob("sim/**/*.[hcp]*")]):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _doubt(gpu: Gpu) -> str:
    """Return why the model may be far off; MODEL.md has the measurements behind it."""
    return "" if gpu.name in VALIDATED else f"not validated on {gpu.name}"
