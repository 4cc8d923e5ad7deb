"""One kernel bound to one problem's tensors: `Kernel.prepare` makes it, and each call runs it."""

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import sim
from ..words.errors import LaunchError, ProblemError
from ..words.problem import Problem
from . import build as builds

# The integers of ConvProblem (kernels/convlab.cuh), in its order.
_FIELDS = "N C H W K R S P Q stride_h stride_w pad_h pad_w dilation_h dilation_w groups".split()
Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate a tensor as torch does."""
    return torch.empty(shape, dtype=dtype, device=device)


def integers(problem: Problem) -> list[int]:
    """Return the members of ConvProblem (``kernels/convlab.cuh``) in their order."""
    values = problem.variables()
    return [values[field] for field in _FIELDS]


class Launch:
    """One kernel bound to one problem's tensors; calling it runs the kernel again.

    On the simulator each call takes another order of threads and blocks, the first the plain one:
    what changes from call to call is a race.

    Attributes
    ----------
    y : tensor (N, K, P, Q), float32, contiguous: the output, allocated but not written before
        the first call.
    inputs : x, w and bias (or None) as the kernel sees them.
    workspace : uint8 tensor or None.
    counters : dict or None
        What the simulator counted in the last call (`convlab.sim.Trace`); None on a GPU.
    findings : list of `convlab.sim.Finding`
        What the simulator found in the last call: warnings, or what it failed by.
    launches : list of dict
        ``kernel``, ``grid``, ``block``, ``shared_bytes`` of each launch of the last call.
    sampling : dict or None
        Of a kernel loaded with ``sample=``: ``blocks`` of the last call's launches, how many of
        them were ``sampled``, and ``errors``: of each counter the relative standard error
        sqrt((1 - n/N) / n * (s^2 / m^2 + 1 / n)), for n of N blocks with the mean m and the
        variance s^2 between them (W. G. Cochran, Sampling Techniques, 1977, section 2.5); 1 / n
        stands for the blocks unlike all others that a sample can miss, as at a border. The
        operations in `flops` are scaled too; their error is not told.
    """

    def __init__(
        self,
        kernel: Any,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        allocate: Allocate,
    ) -> None:
        self.kernel, self.problem = kernel, problem
        self.workspace: torch.Tensor | None = None
        self.counters: dict[str, float] | None = None
        self.findings: list[sim.Finding] = []
        self.launches: list[dict[str, object]] = []
        self.sampling: dict[str, object] | None = None
        self._trace: sim.Trace | None = None
        self._joined: list[tuple[int, int]] = []
        self._build = kernel.build()
        self._runs = 0
        if kernel.engine == "sim":
            self._prepare_sim(x, w, bias)
        else:
            self._prepare_cuda(x, w, bias, allocate)

    def __call__(self) -> None:
        """Run the kernel: on a GPU asynchronously, on torch's current stream."""
        if self.problem.N == 0:
            return
        if self.kernel.engine == "sim":
            self._simulate()
            return
        with torch.cuda.device(self.y.device):
            stream = torch.cuda.current_stream().cuda_stream
            refused = self._entry(*self._arguments, stream)
            error = refused or self._last_error()
            if refused:
                self._last_error()  # else the next kernel would be blamed for it
        if error:
            raise LaunchError(f"{self.kernel.name} failed: {error.decode(errors='replace')}")

    @property
    def lines(self) -> list[dict[str, object]]:
        """The memory traffic of the last call by source line, space and kind of access.

        Each has ``file``, ``line``, ``space`` ("global", "shared"), ``kind`` ("load", "store",
        "atomic"), ``array`` (its name, or "several"), ``requests`` (of warps), ``units`` (32-byte
        sectors, or wavefronts of shared memory), ``ideal_units`` (the least that the same bytes
        could have taken), ``lanes`` (active, summed over requests) and ``bytes`` (asked for by
        them). Empty on a GPU.
        """
        return self._trace.lines if self._trace else []

    @property
    def flops(self) -> float | None:
        """The floating-point operations that the last call executed, counted from its machine code.

        Additions, subtractions and products are one each, a fused multiply-add two; so are, with
        one, quotients and square roots, of which a GPU makes several. Comparisons, minima,
        conversions, atomics and the C library's functions (``expf``) are not counted. cuBLAS's
        products count as 2mnk, which is also ``counters["library_flops"]``. None on a GPU, with
        ``trace=False``, and where there is no ``objdump`` (of binutils).
        """
        return self._trace.flops if self._trace else None

    def as_compiled(self, widths: Mapping[tuple[int, str, str], int]) -> None:
        """Run again in the plain order, with some accesses counted as nvcc joined them.

        Parameters
        ----------
        widths : bytes of one machine access by (line, space, kind), as in `lines`: successive
            accesses there to neighbouring addresses count as one of up to so many bytes. See
            `convlab.why.merging`.

        Raises
        ------
        ProblemError
            On a GPU, or before the first call: the instructions of a line are not known yet.
        """
        if self._trace is None:
            raise ProblemError("call this launch on the simulator first, then count as compiled")
        self._joined = [
            (offset, size)
            for place, size in widths.items()
            for offset in self._trace.offsets_of(*place)
        ]
        self._runs = 0
        self._simulate()

    @property
    def executed(self) -> dict[int, int]:
        """How often threads came to a line, for lines that begin a basic block; {} on a GPU."""
        return self._trace.executed if self._trace else {}

    def _simulate(self) -> None:
        self.counters = self._trace = self.sampling = None
        self.launches = []
        schedule, self._runs = self._runs, self._runs + 1  # each run takes another order
        try:
            self._trace = sim.simulate(
                self._build.library,
                builds.sim_runtime(),
                integers(self.problem),
                self._arena,
                label=self.kernel.name,
                source=self.kernel.path or self.kernel.source,
                workspace_limit=self.kernel.workspace_limit,
                trace=self.kernel.trace,
                time_limit=self.kernel.time_limit,
                schedule=schedule,
                joined=self._joined,
                sample=self.kernel.sample and (self.kernel.sample, 0),
            )
        except LaunchError as error:
            self.findings = error.findings
            raise
        self.findings, self.launches = self._trace.findings, self._trace.launches
        self.counters, self.sampling = self._trace.counters, self._trace.sampling

    def _prepare_sim(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> None:
        given = {"x": x, "w": w} | ({} if bias is None else {"bias": bias})
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
        sampled = self.kernel.sample is not None
        self._arena = sim.Arena(shapes | {"y": self.problem.y_shape}, ["y"] if sampled else [])
        for name, tensor in given.items():
            self._arena.tensors[name].copy_(tensor)
        self.inputs = tuple(self._arena.tensors.get(name) for name in ("x", "w", "bias"))
        self.y = self._arena.tensors["y"]
        if not sampled:  # else most of its pages are never touched, and it may exceed the memory
            self.y.fill_(math.nan)

    def _prepare_cuda(
        self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, allocate: Allocate
    ) -> None:
        library = ctypes.CDLL(str(self._build.library))
        dims = (ctypes.c_int * len(_FIELDS))(*integers(self.problem))
        limit, need = self.kernel.workspace_limit, 0
        with torch.cuda.device(x.device):
            if hasattr(library, "conv2d_workspace"):
                library.conv2d_workspace.restype = ctypes.c_size_t
                need = library.conv2d_workspace(dims, ctypes.c_size_t(limit))
        if need > limit:
            raise LaunchError(
                f"{self.kernel.name} needs {need:,} bytes of workspace for this problem, more "
                f"than the limit of {limit:,}: load(..., workspace_limit={need})"
            )
        try:
            self.y = allocate(self.problem.y_shape, torch.float32, x.device)
            if need:
                self.workspace = allocate((need,), torch.uint8, x.device)
        except torch.OutOfMemoryError as error:
            free = torch.cuda.mem_get_info(x.device)[0]
            raise LaunchError(
                f"not enough GPU memory: y needs {4 * math.prod(self.problem.y_shape) / 2**30:.2f} "
                f"GiB and {self.kernel.name}'s workspace {need / 2**30:.2f} GiB, "
                f"{free / 2**30:.2f} GiB are free; try load(..., workspace_limit=...) with less "
                f"than {limit / 2**30:.2f} GiB, or Problem.scaled",
                kind="out of memory",
            ) from error
        self.inputs = (x, w, bias)  # keeps the memory behind the pointers
        pointers = [ctypes.c_void_p(t.data_ptr() if t is not None else None)
                    for t in (x, w, bias, self.y, self.workspace)]  # fmt: skip
        self._arguments = (dims, *pointers, ctypes.c_size_t(need))
        self._entry = library.conv2d
        self._entry.restype = ctypes.c_char_p
        self._entry.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_size_t, ctypes.c_void_p]
        self._last_error = library.convlab_launch_error
        self._last_error.restype = ctypes.c_char_p
