"""The engine "sim": the same ``.cu`` file on the CPU, with counts and diagnostics."""

import re
from collections.abc import Mapping
from operator import eq, ge, gt, le, lt, ne

import torch
from torch import Tensor

from ..core.builds.build import define_flags
from ..core.builds.cache import Build
from ..core.builds.source import Source
from ..core.kernel.runnable import Allocate, Inputs, Runnable, empty
from ..core.machine.gpus import DEFAULT_GPU, Gpu
from ..core.problem.problem import Problem
from . import library, simulation
from .launch import SimLaunch

# Multiply-adds that two cores simulate in a second, for a simple kernel with all traffic counted.
MACS_IN_A_SECOND = 20_000_000
# Matches a test whether device code is compiled, and a comparison of the architecture with a number.
_DEFINED = re.compile(r"\bdefined\s*\(?\s*__CUDA_ARCH__|#\s*ifn?def\s+__CUDA_ARCH__\b")
_COMPARED = re.compile(r"\b__CUDA_ARCH__\s*(>=|<=|==|!=|<|>)\s*(\d+)\b")
_OPERATORS = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}


def _depends_on_sm(text: str, sm: int) -> bool:
    """Return whether a text is other code for a compute capability than for the simulator's default one.

    A comparison with the same result for both is the same code, which needs no build of its own.
    """
    rest = _DEFINED.sub("", text)
    compared = _COMPARED.findall(rest)
    if len(compared) < rest.count("__CUDA_ARCH__"):
        return sm != DEFAULT_GPU.sm
    return any(
        _OPERATORS[how](10 * sm, int(number)) != _OPERATORS[how](10 * DEFAULT_GPU.sm, int(number))
        for how, number in compared
    )


class Simulator:
    """The engine "sim": compiles the rewritten source with g++, and runs it in a child process."""

    name = "sim"
    counts = True
    time_limit = simulation.TIME_LIMIT
    at_once = simulation.AT_ONCE
    macs_in_a_second = MACS_IN_A_SECOND
    device = torch.device("cpu")

    def __init__(self, gpu: Gpu = DEFAULT_GPU) -> None:
        self.gpu = gpu
        self.target = (gpu.sm, gpu.limits.shared_optin_bytes)

    def like(self, gpu: Gpu) -> "Simulator":
        """Return a simulator that is another GPU."""
        return Simulator(gpu)

    def build(
        self, source: Source, defines: Mapping[str, object], trace: bool, counting: bool
    ) -> Build:
        """Compile for the simulator: with hooks that watch accesses, and count them; see `library.build`."""
        flags = define_flags(defines)
        texts = [source.text, *(text for path, (_, text) in source.headers().items())]
        if any(_depends_on_sm(text, self.gpu.sm) for text in texts):
            flags = [*flags, f"-D__CUDA_ARCH__={10 * self.gpu.sm}"]
        return library.build(source, flags, trace=trace, counting=counting)

    def prepare(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> SimLaunch:
        """Copy the tensors to shared memory of both processes, with guard zones around each."""
        return SimLaunch(kernel, problem, inputs, allocate)

    def compute(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Tensor:
        """Run a kernel once; y is a copy, so that the shared memory can be freed."""
        launch = self.prepare(kernel, problem, inputs, empty)
        launch()
        return launch.y.clone()

    def interrupt(self) -> None:
        """End all simulated launches; the threads that wait for them raise a LaunchError."""
        simulation.end_launches()


SIMULATOR = Simulator()
