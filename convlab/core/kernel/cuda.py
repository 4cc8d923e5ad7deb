"""The engine "cuda": build kernels with nvcc, and run them on an NVIDIA GPU."""

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..builds import build as builds
from ..builds.cache import Build
from ..builds.source import Source
from ..errors import LaunchError
from ..faults import MOST_WORKSPACE
from ..machine import interrupt
from ..problem.problem import Problem
from ..show.long_text import shortened
from . import abi
from .runnable import Allocate, Inputs, Launch, Runnable, empty
from .runner import TIME_LIMIT, runner

# The most bytes of a kernel's printf output that one call shows.
_PRINTED_BYTES = 1 << 20


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

    def build(self, source: Source, defines: Mapping[str, object], trace: bool) -> Build:
        """Compile for the current GPU; `trace` has no effect, because a GPU counts nothing."""
        return builds.build(source, defines)

    def prepare(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> Launch:
        """Load the library in the worker process first; then allocate y, workspace and plan."""
        with torch.cuda.device(inputs[0].device):
            runner().rehearse(kernel, None)
        return CudaLaunch(kernel, problem, inputs, allocate)

    def compute(self, kernel: Runnable, problem: Problem, inputs: Inputs) -> Tensor:
        """Run a kernel once, and pass its printf output to Python's output."""
        runner().rehearse(kernel, problem, *inputs)
        shows_output = _prints(kernel.source or "") and not _is_recorded()
        with _printed() if shows_output else contextlib.nullcontext():
            launch = self.prepare(kernel, problem, inputs, empty)
            launch()
        return launch.y

    def interrupt(self) -> None:
        """Do nothing: a launch on the GPU cannot be stopped."""


CUDA = Cuda()


class CudaLaunch(Launch):
    """A kernel's launch on a GPU: a call starts it on torch's current stream and does not wait."""

    def __init__(
        self, kernel: Runnable, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> None:
        # The base class keeps the tensors alive, and so the memory behind the pointers.
        super().__init__(kernel, problem, inputs)
        self._entry = abi.EntryPoints(
            str(kernel.build().library), abi.integers(problem.variables())
        )
        with torch.cuda.device(inputs[0].device):
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
        with torch.cuda.device(self.y.device):
            error = entry_point(*arguments, torch.cuda.current_stream().cuda_stream)
        if error:
            name = self.runnable.name
            raise LaunchError(f"{name} failed: {shortened(error, name)}")

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
