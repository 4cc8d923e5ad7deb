"""Predict a kernel's time at full size on a named GPU, for `compare` without a GPU.

The core asks for `forecast` by its kind and name in ``room.toml``, and shows it in its tables.
"""

from __future__ import annotations

from ..core.errors import LaunchError
from ..core.forecast import Forecast
from ..core.kernel.kernel import Kernel
from ..core.machine.gpus import VALIDATED, Gpu
from ..core.problem.problem import Problem
from . import disassembly, sampling
from .launched_functions import launched_functions
from .time_model import Prediction, predict

# A sample for a forecast: about this many multiply-adds, and at least so many blocks.
_MACS = 16_000_000
_LEAST = 4


def forecast(kernel: Kernel, problem: Problem, gpu: Gpu) -> Forecast:
    """Return the predicted time of a kernel on a problem of any size.

    Raises
    ------
    BuildError
        nvcc does not compile the kernel, or nvdisasm is missing.
    LaunchError
        The simulator cannot count its work, or the model lacks something.
    """
    prediction, doubt = prediction_of(kernel, problem, gpu)
    return Forecast(prediction.ms, doubt)


def prediction_of(kernel: Kernel, problem: Problem, gpu: Gpu) -> tuple[Prediction, str]:
    """Return a kernel's prediction, and why it may be far off; raise what `forecast` raises."""
    if gpu.datasheet is None:
        raise LaunchError(f"the datasheet of {gpu.driver_name} is not known: name a GPU with gpu=")
    functions = disassembly.compiled(kernel, gpu)
    counts = sampling.count(kernel.on("sim"), problem, _MACS, _LEAST)
    launched = launched_functions(functions, counts.lines, counts.launches)
    prediction = predict(problem, gpu, launched, counts, None, kernel.format)
    if prediction is None:
        raise LaunchError("no launched function was both compiled and counted")
    return prediction, _doubt(gpu)


def _doubt(gpu: Gpu) -> str:
    """Return why the model may be far off; MODEL.md has the measurements behind it."""
    return "" if gpu.name in VALIDATED else f"not validated on {gpu.name}"
