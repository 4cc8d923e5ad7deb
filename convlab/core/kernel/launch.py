"""One kernel bound to one problem's tensors: `Kernel.prepare` makes it, and each call runs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import sim
from ..builds.cache import Build
from ..errors import LaunchError
from ..problem.problem import Problem
from . import abi
from .runnable import Allocate, Inputs, Launch, Runnable

if TYPE_CHECKING:
    from .kernel import Kernel


def integers(problem: Problem) -> list[int]:
    """Return the members of ConvProblem (``kernels/convlab.cuh``) in their order."""
    values = problem.variables()
    return [values[field] for field in abi.FIELDS]


def simulated(
    kernel: Runnable, problem: Problem, arena: sim.Arena, build: Build | None = None, **options: Any
) -> sim.Trace:
    """Run a kernel, or a build of it, on an arena's tensors; options are `sim.simulate`'s."""
    names = ("workspace_limit", "trace", "time_limit")
    options = {name: getattr(kernel, name) for name in names} | options
    library = (build or kernel.build()).library
    source = kernel.path or kernel.source
    return sim.simulate(
        library, integers(problem), arena, label=kernel.name, source=source, **options
    )


class CudaLaunch(Launch):
    """A kernel on a GPU: a call launches it on torch's current stream, and does not wait."""

    runnable: Kernel

    def __init__(
        self, kernel: Kernel, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> None:
        super().__init__(kernel, problem, inputs)  # which keeps the memory behind the pointers
        self._entry = abi.Entry(str(kernel.build().library), integers(problem))
        with torch.cuda.device(inputs[0].device):
            self._allocate(allocate)
            self.prepare_filter()

    def __call__(self) -> None:
        if self.problem.N == 0:
            return
        x, w, bias = self.inputs
        tensors = (x, w if self.plan is None else self.plan, bias, self.y, self.workspace)
        size = 0 if self.workspace is None else self.workspace.numel()
        self._enter(self._entry.conv2d, *map(_address, tensors), size)

    def prepare_filter(self) -> None:
        if self.plan is not None:
            self._enter(self._entry.prepare, _address(self.inputs[1]), _address(self.plan))

    def _enter(self, entry_point, *arguments: int | None) -> None:
        with torch.cuda.device(self.y.device):
            error = entry_point(*arguments, torch.cuda.current_stream().cuda_stream)
        if error:
            raise LaunchError(f"{self.runnable.name} failed: {error}")

    def _allocate(self, allocate: Allocate) -> None:
        """Make y, and the workspace and the plan that the kernel asks for."""
        limit = self.runnable.workspace_limit
        device = self.inputs[0].device
        need = self._entry.workspace(limit)
        plan = self._entry.plan()
        if need > limit:
            raise LaunchError(
                f"{self.runnable.name} needs {need:,} bytes of workspace for this problem, more "
                f"than the limit of {limit:,}: load(..., workspace_limit={need})",
                kind="too little workspace",
            )
        stored = self.runnable.format.y
        shape = self.problem.y_shape
        try:
            y = allocate(stored.in_memory(shape), stored.torch_dtype, device)
            self.y = stored.logical(y)
            if need:
                self.workspace = allocate((need,), torch.uint8, device)
            if plan:
                self.plan = allocate((plan,), torch.uint8, device)
        except torch.OutOfMemoryError as error:
            size = stored.itemsize * math.prod(shape)
            free = torch.cuda.mem_get_info(device)[0]
            raise LaunchError(
                f"not enough GPU memory: y needs {size / 2**30:.2f} GiB and {self.runnable.name}'s "
                f"workspace {(need + plan) / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free; try "
                "load(..., workspace_limit=...) with less, or Problem.scaled",
                kind="out of memory",
            ) from error


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class SimLaunch(Launch):
    """A kernel on the simulator: each call takes another order of threads and blocks.

    The first is the plain one; what changes from call to call is a race.

    Attributes
    ----------
    launches : list of dict
        ``kernel``, ``grid``, ``block``, ``shared_bytes`` of each launch of the last call.
    """

    def __init__(self, kernel: Kernel, problem: Problem, inputs: Inputs) -> None:
        self._build = kernel.build()
        self._trace = None
        self._runs = 0
        self._earlier: list[tuple[list[int], dict[str, int]]] = []
        self.launches: list[dict[str, object]] = []
        names = ("x", "w", "bias")
        given = {n: t for n, t in zip(names, inputs, strict=True) if t is not None}
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
        shapes["y"] = problem.y_shape
        # each misses 32 bytes' address as the tensor does that was given; y may by 16 bytes
        shifts = {name: tensor.data_ptr() % 32 // 4 * 4 for name, tensor in given.items()}
        shifts["y"] = 16 if 16 in shifts.values() else 0
        self._arena = sim.Arena(shapes, format=kernel.format, shifts=shifts)
        placed = self._arena.tensors
        for name, tensor in given.items():
            placed[name].copy_(tensor)
        super().__init__(kernel, problem, tuple(map(placed.get, names)))
        self.y = placed["y"]
        self.y.fill_(math.nan)

    def __call__(self) -> None:
        if self.problem.N == 0:
            return
        self.counters = self._trace = None
        self.launches = []
        kernel = self.runnable
        schedule = self._runs
        self._runs += 1
        try:
            trace = simulated(
                kernel,
                self.problem,
                self._arena,
                self._build,
                schedule=schedule,
                earlier=self._earlier,
            )
        except LaunchError as error:
            self.findings = error.findings
            raise
        self._trace = trace
        self.findings = trace.findings
        self.launches = trace.launches
        self.counters = trace.counters

    def call_after(self, earlier: Sequence[Problem]) -> None:
        stored = self.runnable.format
        self._earlier = [(integers(problem), stored.bytes(problem)) for problem in earlier]
        try:
            self()
        finally:
            self._earlier = []

    @property
    def lines(self) -> list[dict[str, object]]:
        """The memory traffic of the last call by source line, space and kind of access.

        Each has ``file``, ``line``, ``space`` ("global", "shared"), ``kind`` ("load", "store",
        "atomic"), ``array`` (its name, or "several"), ``requests`` (of warps), ``units`` (32-byte
        sectors, or wavefronts of shared memory), ``ideal_units`` (the least that the same bytes
        could have taken), ``lanes`` (active, summed over requests) and ``bytes`` (asked for by
        them). Empty before the first call.
        """
        return self._trace.lines if self._trace else []

    stored = property(lambda self: self._trace.stored if self._trace else [])  # see Trace

    @property
    def flops(self) -> float | None:
        """The floating-point operations that the last call executed, counted from its machine code.

        Additions, subtractions and products are one each, a fused multiply-add two; so are, with
        one, quotients and square roots, of which a GPU makes several. Comparisons, minima,
        conversions, atomics and the C library's functions (``expf``) are not counted. cuBLAS's
        products count as 2mnk, which is also ``counters["library_flops"]``. None with
        ``trace=False``, and where there is no ``objdump`` (of binutils).
        """
        return self._trace.flops if self._trace else None
