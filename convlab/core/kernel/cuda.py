"""The engine "cuda": build kernels with nvcc, and run them on an NVIDIA GPU."""

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..builds import build as builds
from ..builds.cache import Build
from ..builds.source import Source
from ..errors import LaunchError
from ..faults import MOST_WORKSPACE
from ..machine import interrupt
from ..problem.format import FLOAT32
from ..problem.problem import Problem
from ..show.long_text import shortened
from . import abi
from .data import placed_as, resolved
from .runnable import Allocate, Inputs, Launch, Runnable, empty
from .runner import TIME_LIMIT, runner

# The most bytes of a kernel's printf output that one call shows.
_PRINTED_BYTES = 1 << 20
# The alignment of a plan, in bytes, as the contract says.
_ALIGNMENT = 256


class Cuda:
    """Build with nvcc, and launch on torch's current stream of the current GPU."""

    name = "cuda"
    counts = False
    time_limit = TIME_LIMIT
    at_once = 1
    macs_in_a_second = None

    @property
    def device(self) -> torch.device:
        """The current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def target(self) -> tuple[int, int]:
        """The current GPU's compute capability (90 for 9.0), and a block's shared bytes."""
        device = torch.cuda.get_device_properties(self.device)
        return 10 * device.major + device.minor, device.shared_memory_per_block_optin

    def build(
        self, source: Source, defines: Mapping[str, object], trace: bool, counting: bool
    ) -> Build:
        """Compile for the current GPU; `trace` and `counting` have no effect, because it counts nothing."""
        return builds.build(source, defines)

    def prepare(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> Launch:
        """Load the library in the worker process first; then allocate y, workspace and plan."""
        build = kernel.build()
        with torch.cuda.device(inputs[0].device):
            runner().rehearse(kernel, build, None)
        return CudaLaunch(kernel, build, problem, inputs, allocate)

    def compute(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Tensor:
        """Run a kernel once, and pass its printf output to Python's output."""
        # The build that was rehearsed is the one that runs, whatever is edited meanwhile.
        build = kernel.build()
        runner().rehearse(kernel, build, problem, *inputs)
        shows_output = _prints(kernel.source or "") and not _is_recorded()
        with _printed() if shows_output else contextlib.nullcontext():
            launch = CudaLaunch(kernel, build, problem, inputs, empty)
            launch()
        return launch.y

    def repeats(self, kernel: Runnable) -> bool:
        """Return whether a `RepeatedLaunch` can replace the next `compute` of the same problem.

        It cannot for a kernel that prints, or while a graph is captured, which skips the rehearsal.
        """
        return not _is_recorded() and not _prints(kernel.source or "")

    def interrupt(self) -> None:
        """Do nothing: a launch on the GPU cannot be stopped."""


CUDA = Cuda()


class CudaLaunch(Launch):
    """A kernel's launch on a GPU: a call starts it on torch's current stream and does not wait."""

    def __init__(
        self,
        kernel: Runnable,
        build: Build,
        problem: Problem,
        inputs: Inputs,
        allocate: Allocate,
    ) -> None:
        # The base class keeps the tensors alive, and so the memory behind the pointers.
        super().__init__(kernel, problem, inputs)
        self._entry = _entry_points(build.library, problem)
        with _on(inputs[0].device):
            self._allocate(allocate)
            self.prepare_filter()

    def __call__(self) -> None:
        if not self.y.numel():
            return
        x, w, bias = self.inputs
        tensors = (x, w if self.plan is None else self.plan, bias, self.y, self.workspace)
        size = 0 if self.workspace is None else self.workspace.numel()
        self._enter(self._entry.compute, *map(_address, tensors), size)

    def prepare_filter(self) -> None:
        if self.plan is not None:
            self._enter(self._entry.prepare, _address(self.inputs[1]), _address(self.plan))

    def _enter(self, entry_point, *arguments: int | None) -> None:
        with _on(self.y.device):
            error = entry_point(*arguments, torch.cuda.current_stream().cuda_stream)
        _require_launched(self.runnable.name, error)

    def _allocate(self, allocate: Allocate) -> None:
        """Allocate y, and the workspace and the plan that the kernel requests."""
        limit = self.runnable.workspace_limit
        device = self.inputs[0].device
        need = self._entry.workspace(limit)
        plan = self._entry.plan()
        if need > limit:
            kind = "too little workspace"
            if need >= MOST_WORKSPACE:
                kind = "invalid workspace"
            error = LaunchError(
                f"{self.runnable.name} needs {need:,} bytes of workspace for this problem, more "
                f"than the limit of {limit:,}: load(..., workspace_limit={need})",
                kind=kind,
            )
            error.needed = need
            raise error
        stored = self.runnable.format.y
        shape = self.problem.output_shape
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
            output = self.problem.computation.output
            raise LaunchError(
                f"not enough GPU memory: {output} needs {size / 2**30:.2f} GiB and "
                f"{self.runnable.name}'s workspace {(need + plan) / 2**30:.2f} GiB, "
                f"{free / 2**30:.2f} GiB are free; "
                "lower load(..., workspace_limit=BYTES), or shrink the problem with Problem.scaled",
                kind="out of memory",
            ) from error


class RepeatedLaunch:
    """Compute a problem with a build that has computed it before, for tensors that need no validation.

    It asks the build only once for its workspace and its plan. So a call costs little of the CPU's time:
    a model makes one for each layer and gradient. The inputs have the dtypes of the kernel's format,
    and are on one GPU.
    """

    def __init__(self, kernel: Runnable, build: Build, problem: Problem, index: int) -> None:
        """`index` is that of the GPU."""
        self._kernel = kernel
        self._build = build
        self._problem = problem
        self._index = index
        self._device = torch.device("cuda", index)
        self._entry = _entry_points(build.library, problem)
        self._workspace = self._entry.workspace(kernel.workspace_limit)
        self._plan = self._entry.plan()
        # The workspace comes first in one buffer with the plan, which is aligned as it is.
        self._plan_at = -(-self._workspace // _ALIGNMENT) * _ALIGNMENT
        self._stored = kernel.format
        self._dtype = self._stored.y.torch_dtype
        self._shape = self._stored.y.in_memory(problem.output_shape)
        self._is_plain = self._stored == FLOAT32
        # Without output there is nothing to launch, and an error needs a message.
        self._is_usual = math.prod(self._shape) > 0 and self._workspace <= kernel.workspace_limit

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """Return y of x, w and bias, or a gradient of its two inputs and None."""
        if self._is_plain:
            x = resolved(x).contiguous()
            w = resolved(w).contiguous()
            bias = None if bias is None else resolved(bias).contiguous()
        else:
            x, w, bias = placed_as(self._stored, x, w, bias)
        if self._is_usual and self._index == torch.cuda.current_device():
            try:
                return self._run(x, w, bias)
            except torch.OutOfMemoryError:
                # The launch says what is missing.
                pass
        launch = CudaLaunch(self._kernel, self._build, self._problem, (x, w, bias), empty)
        launch()
        return launch.y

    def _run(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        y = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        filters = w.data_ptr()
        workspace = None
        if size := self._plan_at + self._plan:
            buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
            workspace = buffer.data_ptr()
        if self._plan:
            plan = workspace + self._plan_at
            _require_launched(self._kernel.name, self._entry.prepare(filters, plan, stream))
            filters = plan
        error = self._entry.compute(
            x.data_ptr(),
            filters,
            _address(bias),
            y.data_ptr(),
            workspace if self._workspace else None,
            self._workspace,
            stream,
        )
        _require_launched(self._kernel.name, error)
        return y if self._is_plain else self._stored.y.logical(y)


def _require_launched(name: str, error: str | None) -> None:
    """Raise LaunchError with the error text of an entry point, if there is one."""
    if error:
        raise LaunchError(f"{name} failed: {shortened(error, name)}")


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Make a GPU the current one; do nothing if it is, because torch's switch takes longer."""
    if device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


# A layer calls the same library for the same problem again and again.
@functools.lru_cache(1024)
def _entry_points(library: Path, problem: Problem) -> abi.EntryPoints:
    return abi.EntryPoints(str(library), abi.integers(problem.variables()))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _is_recorded() -> bool:
    """Return whether torch is tracing or capturing a CUDA graph; then the call must not wait."""
    return torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()


@functools.lru_cache(256)
def _prints(source: str) -> bool:
    return re.search(r"\bprintf\s*\(", source) is not None


@contextlib.contextmanager
def _printed() -> Iterator[None]:
    """Run a block, wait for the GPU, and write its printf output to Python's output."""
    # CUDA writes the output of kernels to the C library's stdout.
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    stdout = os.dup(1)
    printed = os.memfd_create("printf")
    try:
        os.dup2(printed, 1)
        yield
        torch.cuda.synchronize()
    finally:
        with interrupt.held():
            libc.fflush(None)
            os.dup2(stdout, 1)
            sys.stdout.write(os.pread(printed, _PRINTED_BYTES, 0).decode(errors="replace"))
            sys.stdout.flush()
            os.close(stdout)
            os.close(printed)
