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

# For a plain kernel on two cores, with all traffic counted.
MACS_IN_A_SECOND = 20_000_000


class Simulator:
    """Compiles the rewritten source with g++, and runs it in a child process, which may crash."""

    name = "sim"
    counts = True
    time_limit = simulation.TIME_LIMIT
    at_once = simulation.AT_ONCE
    macs_in_a_second = MACS_IN_A_SECOND
    device = torch.device("cpu")
    target = (simulation.SM, simulation.SMEM)

    def build(self, source: Source, defines: Mapping[str, object], trace: bool) -> Build:
        """Compile for the simulator; without `trace` nothing is counted or checked."""
        return library.build(source, define_flags(defines), trace=trace)

    def prepare(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> SimLaunch:
        """Copy the tensors to memory that the simulator sees, with guard zones of its own."""
        return SimLaunch(kernel, problem, inputs)

    def compute(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Tensor:
        """Run a kernel once; y is a copy, so that the shared memory can be freed."""
        launch = self.prepare(kernel, problem, inputs, empty)
        launch()
        return launch.y.clone()

    def interrupt(self) -> None:
        """End all launches that other threads wait for; they raise a LaunchError."""
        simulation.end_launches()


SIMULATOR = Simulator()
