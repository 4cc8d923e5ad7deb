"""The engine "sim": the same ``.cu`` file on the CPU, with counts and diagnostics."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.builds.build import define_flags
from ..core.builds.cache import Build
from ..core.builds.source import Source
from ..core.kernel.runnable import Allocate, Inputs, Runnable, empty
from ..core.problem.problem import Problem
from . import library, simulation
from .launch import SimLaunch

# Multiply-adds that two cores simulate in a second, for a simple kernel with all traffic counted.
MACS_IN_A_SECOND = 20_000_000


class Simulator:
    """The engine "sim": compiles the rewritten source with g++, and runs it in a child process."""

    name = "sim"
    counts = True
    time_limit = simulation.TIME_LIMIT
    at_once = simulation.AT_ONCE
    macs_in_a_second = MACS_IN_A_SECOND
    device = torch.device("cpu")
    target = (simulation.SM, simulation.SMEM)

    def build(self, source: Source, defines: Mapping[str, object], trace: bool) -> Build:
        """Compile for the simulator. Without `trace` a kernel runs without counts and checks."""
        return library.build(source, define_flags(defines), trace=trace)

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
