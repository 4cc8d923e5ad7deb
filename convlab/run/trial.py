"""A kernel not yet known to be good, on a GPU: loaded and run in the worker process first."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..words.errors import LaunchError
from ..words.problem import Problem
from . import build as builds
from . import worker

if TYPE_CHECKING:
    from .kernel import Kernel

# What ran to its end in the worker: (library, problem, workspace limit, alignments); and the
# libraries that were loaded there.
_tried: set[tuple[object, ...]] = set()


def load_first(kernel: Kernel) -> None:
    """Load a kernel's library in the worker, which runs its static initialisers there."""
    trial = (kernel.build().library,)
    if _is_due(kernel, trial):
        worker.call(_load, kernel, time_limit=kernel.time_limit)
        _tried.add(trial)


def _load(kernel: Kernel) -> None:
    ctypes.CDLL(str(kernel.build().library))


def run_first(kernel: Kernel, problem: Problem, *tensors: Tensor | None) -> None:
    """Run a kernel in the worker, on other data of the same shapes and alignments."""
    library = kernel.build().library
    # An access wider than a float, up to 32 bytes, minds where a tensor starts.
    offsets = tuple(
        t.data_ptr() % 32 if t is not None and t.is_contiguous() else 0 for t in tensors
    )
    trial = (library, problem, kernel.workspace_limit, offsets)
    if problem.N == 0 or not _is_due(kernel, trial):
        return
    printed = io.StringIO()  # it works on other data: what it prints is of no interest
    try:
        with torch.cuda.device(tensors[0].device), contextlib.redirect_stdout(printed):
            worker.call(worker.run_once, kernel, problem, offsets, time_limit=kernel.time_limit)
    except LaunchError as error:
        sys.stdout.write(printed.getvalue())  # unless it failed
        if error.kind != "out of memory":
            raise
        warnings.warn(
            f"{kernel.name} runs on {problem.label} without a trial in the worker process: "
            "the GPU has no room for the problem twice; what it does wrong can end this "
            "process's use of the GPU",
            stacklevel=4,
        )
    _tried.update([trial, (library,)])


def _is_due(kernel: Kernel, trial: tuple[object, ...]) -> bool:
    """Whether a trial is wanted, possible, and was not made yet."""
    if kernel.simulated or not kernel.isolate or trial in _tried:
        return False
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return False
    return not builds.is_good(kernel.build())


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Wait for the GPU, and pass on what it printed to Python's output: a notebook's cell."""
    libc = ctypes.CDLL(None)  # to whose stdout CUDA writes it then
    sys.stdout.flush()
    libc.fflush(None)
    kept, printed = os.dup(1), os.memfd_create("printf")
    os.dup2(printed, 1)
    try:
        yield
        torch.cuda.synchronize()
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        sys.stdout.write(os.pread(printed, 1 << 20, 0).decode(errors="replace"))
        sys.stdout.flush()
        os.close(kept)
        os.close(printed)
