"""Rehearses a kernel: runs it in the worker process first, on other data, unless it is known as
good.

A crash there becomes an exception here, and this process keeps its GPU. A build is good once it has
passed the whole default check; the cache has a mark next to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
import warnings

import torch
from torch import Tensor

from ..core.builds.cache import Build
from ..core.errors import LaunchError
from ..core.kernel import data
from ..core.kernel.runnable import Runnable
from ..core.problem.problem import Problem
from .worker import call

# The file name of the mark.
_GOOD = "good"
# Successful rehearsals: (library, problem, workspace limit, alignments), or (library,) where it was
# only loaded.
_rehearsed: set[tuple[object, ...]] = set()


def mark_good(build: Build) -> None:
    """Note, for other processes too, that a build passed the whole default check."""
    with contextlib.suppress(OSError):
        (build.library.parent / _GOOD).touch()


def is_good(build: Build) -> bool:
    """Return whether a build passed the whole default check: it may run without a rehearsal."""
    return (build.library.parent / _GOOD).exists()


def rehearse_load(kernel: Runnable) -> None:
    """Load a kernel's library in the worker, which runs its static initialisers there."""
    trial = (kernel.build().library,)
    if _is_due(kernel, trial):
        call(_load, kernel, time_limit=kernel.time_limit)
        _rehearsed.add(trial)


def _load(kernel: Runnable) -> None:
    ctypes.CDLL(str(kernel.build().library))


def rehearse_run(kernel: Runnable, problem: Problem, *tensors: Tensor | None) -> None:
    """Run a kernel in the worker, on other data of the same shapes and alignments."""
    library = kernel.build().library
    # An access wider than a float, up to 32 bytes, depends on where a tensor starts.
    offsets = tuple(
        t.data_ptr() % 32 if t is not None and t.is_contiguous() else 0 for t in tensors
    )
    trial = (library, problem, kernel.workspace_limit, offsets)
    if problem.N == 0 or not _is_due(kernel, trial):
        return
    # The rehearsal works on other data: what the kernel prints there is shown only if it fails.
    printed = io.StringIO()
    try:
        with torch.cuda.device(tensors[0].device), contextlib.redirect_stdout(printed):
            call(run_once, kernel, problem, offsets, time_limit=kernel.time_limit)
    except LaunchError as error:
        sys.stdout.write(printed.getvalue())
        if error.kind != "out of memory":
            raise
        warnings.warn(
            f"{kernel.name} runs on {problem.label} without a rehearsal in the worker process: "
            "the GPU has no room for the problem twice. If the kernel fails, this process can "
            "lose the GPU",
            stacklevel=4,
        )
    _rehearsed.update([trial, (library,)])


def _is_due(kernel: Runnable, trial: tuple[object, ...]) -> bool:
    """Return whether a rehearsal is needed and possible."""
    if kernel.counts or not kernel.isolate or trial in _rehearsed:
        return False
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return False
    return not is_good(kernel.build())


def run_once(kernel: Runnable, problem: Problem, offsets: tuple[int, ...] = (0, 0, 0)) -> None:
    """Run a kernel on normal data, `offsets` bytes past aligned addresses, and wait for it."""
    inputs = data.inputs(problem, 0, kernel.device, format=kernel.format)
    kernel.prepare(problem, *map(_shifted, inputs, offsets))()
    if kernel.engine == "cuda":
        torch.cuda.synchronize()


def _shifted(tensor: Tensor | None, offset: int) -> Tensor | None:
    """Return a copy of a tensor that starts `offset` bytes past an aligned address."""
    if tensor is None or not offset:
        return tensor
    start = offset // tensor.element_size()
    room = torch.empty(tensor.numel() + start, dtype=tensor.dtype, device=tensor.device)
    return room[start:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)
