"""A kernel bound to one problem's tensors on the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core.builds.cache import Build
from ..core.errors import LaunchError
from ..core.kernel.abi import integers
from ..core.kernel.runnable import Inputs, Launch, Runnable
from ..core.problem.problem import Problem
from .simulation import Arena, simulate
from .trace import Trace


def simulated(
    kernel: Runnable, problem: Problem, arena: Arena, build: Build | None = None, **options: Any
) -> Trace:
    """Run a kernel, or a build of it, on an arena's tensors; options are `simulate`'s."""
    names = ("workspace_limit", "trace", "time_limit")
    options = {name: getattr(kernel, name) for name in names} | options
    library = (build or kernel.build()).library
    source = kernel.path or kernel.source
    return simulate(
        library,
        integers(problem.variables()),
        arena,
        label=kernel.name,
        source=source,
        **options,
    )


class SimLaunch(Launch):
    """A kernel on the simulator: each call takes another order of threads and blocks.

    The first is the plain one; what changes from call to call is a race.

    Attributes
    ----------
    launches : list of dict
        ``kernel``, ``grid``, ``block``, ``shared_bytes`` of each launch of the last call.
    """

    own_process = True

    def __init__(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> None:
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
        self._arena = Arena(shapes, format=kernel.format, shifts=shifts)
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
        self._earlier = [
            (integers(problem.variables()), stored.bytes(problem)) for problem in earlier
        ]
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
