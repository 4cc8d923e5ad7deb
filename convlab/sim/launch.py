"""Bind a kernel to one problem's tensors on the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..core.builds.cache import Build
from ..core.errors import LaunchError
from ..core.kernel.abi import integers
from ..core.kernel.runnable import Allocate, Inputs, Launch, Runnable, empty
from ..core.problem.problem import Problem
from .simulation import Arena, simulate
from .trace import Trace


def simulated(
    kernel: Runnable, problem: Problem, arena: Arena, build: Build | None = None, **options: Any
) -> Trace:
    """Run a kernel, or a build of it, on an arena's tensors; `options` are those of `simulate`."""
    names = ("workspace_limit", "trace", "time_limit")
    options = {name: getattr(kernel, name) for name in names} | options
    options.setdefault("gpu", kernel.runs_on.gpu)
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
    """A kernel on the simulator. Each call runs threads and blocks in another order.

    The first call uses schedule 0. If the output changes from call to call, the kernel has a race.

    Attributes
    ----------
    launches : list of dict
        ``kernel``, ``grid``, ``block``, ``shared_bytes`` and ``dynamic_bytes`` (see `Trace`) of each
        launch of the last call.
    """

    own_process = True

    def __init__(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate = empty
    ) -> None:
        self._build = kernel.build()
        self._uncounted_build: Build | None = None
        self._trace = None
        self._runs = 0
        # The options of `simulate` for calls before this one: earlier, beside or again.
        self._other_calls: dict[str, Any] = {}
        self.launches: list[dict[str, object]] = []
        names = ("x", "w", "bias")
        tensors = {n: t for n, t in zip(names, inputs, strict=True) if t is not None}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        shapes["y"] = problem.output_shape
        # A copy has its original's offset from a 32-byte boundary. y and the workspace have that of
        # tensors from `allocate`.
        shifts = {name: tensor.data_ptr() % 32 for name, tensor in tensors.items()}
        shifts["y"] = _offset(allocate, kernel.format.y.torch_dtype, 32)
        self._workspace_shift = _offset(allocate, torch.uint8, 512)
        self._arena = Arena(
            shapes, format=kernel.format, shifts=shifts, computes=problem.computation
        )
        copies = self._arena.tensors
        for name, tensor in tensors.items():
            copies[name].copy_(tensor)
        super().__init__(kernel, problem, tuple(map(copies.get, names)))
        self.y = copies["y"]
        self.y.fill_(math.nan)

    def __call__(self) -> None:
        self.counters = None
        self._trace = None
        self.launches = []
        schedule = self._runs
        self._runs += 1
        try:
            trace = simulated(
                self.runnable,
                self.problem,
                self._arena,
                self._build_for(schedule),
                schedule=schedule,
                watch=self.most_watched,
                most_threads=self.most_threads,
                counts=self.counted,
                workspace_shift=self._workspace_shift,
                forgives=self.forgives,
                **self._other_calls,
            )
        except LaunchError as error:
            self.findings = error.findings
            raise
        self._trace = trace
        self.findings = trace.findings
        self.launches = trace.launches
        self.watched_in_part = trace.watched_in_part
        # What a part of the blocks did is no count of the whole launch.
        incomplete = trace.watched_in_part or not self.counted
        self.counters = None if incomplete else trace.counters

    def _build_for(self, schedule: int) -> Build:
        """Return the build for a run: without counts, another one finds the same errors faster.

        With a limit of watched accesses, the simulator has to count them, unless schedule 0 does.
        """
        if self.counted or (self.most_watched and schedule):
            return self._build
        if self._uncounted_build is None:
            self._uncounted_build = self.runnable.uncounted().build()
        return self._uncounted_build

    def call_after(self, earlier: Sequence[Problem]) -> None:
        """Call the kernel for other problems first, and then for this one, in one process."""
        format = self.runnable.format
        calls = []
        for problem in earlier:
            names = problem.computation.names
            sizes = {names[place]: size for place, size in format.bytes(problem).items()}
            calls.append((integers(problem.variables()), sizes))
        self._call_with(earlier=calls)

    def call_beside(self) -> None:
        """Call the kernel while another call for the same inputs runs on another stream."""
        self._call_with(beside=True)

    def call_again(self) -> None:
        """Call the kernel twice on one stream, one call directly after the other."""
        self._call_with(again=True)

    def _call_with(self, **other_calls: Any) -> None:
        """Call the kernel in a process that also makes other calls."""
        self._other_calls = other_calls
        try:
            self()
        finally:
            self._other_calls = {}

    @property
    def workspace_bytes(self) -> int:
        """Return the bytes of workspace that the last call requested; 0 before the first call."""
        return self._trace.workspace if self._trace else 0

    @property
    def lines(self) -> list[dict[str, object]]:
        """Return the memory traffic of the last call by source line, space and kind of access.

        Each dict has ``file``, ``line``, ``space`` ("global" or "shared"), ``kind`` ("load",
        "store" or "atomic"), ``array`` (its name, or "several"), ``requests`` (of warps),
        ``units`` (32-byte sectors of global memory, or wavefronts of shared memory),
        ``ideal_units`` (the minimum for the same data), ``lanes`` (active lanes, summed over the
        requests), ``bytes`` (the bytes that these lanes requested) and ``partial`` (the 32-byte
        sectors of which a block stored only a part, summed over the blocks; a sector belongs to the
        line that stored to it first). Empty before the first call.
        """
        return self._trace.lines if self._trace else []

    @property
    def stored(self) -> list[tuple[int, str, int]]:
        """Return which source line stored each word of a small y last; see `Trace.stored`."""
        return self._trace.stored if self._trace else []

    @property
    def flops(self) -> float | None:
        """Return the floating-point operations of the last call, counted in its machine code.

        An addition, subtraction or product counts as one operation, and a fused multiply-add as
        two. A quotient or square root counts as one, although a GPU executes several instructions
        for it. Comparisons, minima, conversions, atomics and functions of the C library (``expf``)
        do not count. A product of cuBLAS counts as 2mnk, as in ``counters["library_flops"]``. None
        with ``trace=False``, or without ``objdump`` (of binutils).
        """
        return self._trace.flops if self._trace else None


def _offset(allocate: Allocate, dtype: torch.dtype, boundary: int) -> int:
    """Return how many bytes after a multiple of `boundary` an allocated tensor begins.

    It is 0 if the caller places no tensors itself.
    """
    if allocate is empty:
        return 0
    return allocate((1,), dtype, torch.device("cpu")).data_ptr() % boundary
