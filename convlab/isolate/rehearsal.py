"""Rehearse a kernel: run it in the worker process first, on other data.

A crash there becomes an exception here, and this process keeps its GPU. A build that has passed the
whole default check needs no rehearsal: a file in the cache marks it as good.
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

# The name of the file that marks a good build.
_GOOD = "good"
# Successful rehearsals: (library, problem, workspace limit, alignments), or (library,) for a library
# that was only loaded.
_rehearsed: set[tuple[object, ...]] = set()


def mark_good(build: Build) -> None:
    """Mark a build, for all processes, as one that passed the whole default check."""
    with contextlib.suppress(OSError):
        (build.library.parent / _GOOD).touch()


def is_good(build: Build) -> bool:
    """Return whether a build passed the whole default check, and so needs no rehearsal."""
    return (build.library.parent / _GOOD).exists()


def rehearse_load(kernel: Runnable, build: Build) -> None:
    """Load a kernel's library in the worker, so that its static initialisers run there first."""
    rehearsal = (build.library,)
    if _is_due(kernel, build, rehearsal):
        call(_load, kernel, time_limit=kernel.time_limit)
        _rehearsed.add(rehearsal)


def _load(kernel: Runnable) -> None:
    """Load a kernel's library in this process."""
    ctypes.CDLL(str(kernel.build().library))


def rehearse_run(kernel: Runnable, build: Build, problem: Problem, *tensors: Tensor | None) -> None:
    """Run a kernel in the worker, on other data of the same shapes and alignments."""
    library = build.library
    offsets = data.alignments(tensors)
    rehearsal = (library, problem, kernel.workspace_limit, offsets)
    if problem.N == 0:
        rehearse_load(kernel, build)
        return
    if not _is_due(kernel, build, rehearsal):
        return
    # A rehearsal uses other data, so show what the kernel prints only if it fails.
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
            "the GPU's memory cannot hold the problem twice. If the kernel crashes, this process can "
            "lose the GPU; then restart Python",
            stacklevel=4,
        )
    _rehearsed.update([rehearsal, (library,)])


def _is_due(kernel: Runnable, build: Build, rehearsal: tuple[object, ...]) -> bool:
    """Return whether a rehearsal is needed and possible."""
    if kernel.counts or not kernel.isolate or rehearsal in _rehearsed:
        return False
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return False
    return not is_good(build)


def run_once(kernel: Runnable, problem: Problem, offsets: tuple[int, ...] = (0, 0, 0)) -> None:
    """Run a kernel on random data, `offsets` bytes past aligned addresses, and wait for its end."""
    inputs = data.inputs(problem, 0, kernel.device, format=kernel.format)
    kernel.prepare(problem, *map(_shifted, inputs, offsets))()
    if kernel.engine == "cuda":
        torch.cuda.synchronize()


def _shifted(tensor: Tensor | None, offset: int) -> Tensor | None:
    """Return a copy of a tensor that starts `offset` bytes past an aligned address."""
    if tensor is None or not offset:
        return tensor
    start = offset // tensor.element_size()
    buffer = torch.empty(tensor.numel() + start, dtype=tensor.dtype, device=tensor.device)
    return buffer[start:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)
