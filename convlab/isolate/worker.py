"""Runs what may crash or hang in a process of its own, one for each GPU, kept between calls.

>>> worker.call(function, kernel, problem, seed)      # function(kernel, problem, seed), over there

What a kernel does to that process becomes a `LaunchError` here; the next call finds a fresh one.
Specifications, seeds and reports cross, pickled. A kernel that is not yet known to be good is loaded
and run there before it is here (`load_first`, `run_first`).
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.builds import build as builds
from ..core.errors import ConvlabError, LaunchError
from ..core.kernel import data
from ..core.kernel.runnable import Runnable
from ..core.machine import child
from ..core.problem.problem import Problem
from . import faults
from .worker_process import SERVING, dumps

if TYPE_CHECKING:
    from ..core.kernel.kernel import Kernel

TIME_LIMIT = 20.0  # seconds that a call may take unless told otherwise
_SCRIPT = Path(__file__).with_name("worker_process.py")
_workers: dict[int, child.Child] = {}  # by GPU


def call(
    function: Callable[..., Any],
    /,
    *args: Any,
    time_limit: float | None = TIME_LIMIT,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args, **kwargs)``, computed in the worker of the current GPU.

    What it prints appears here, and so does what it raises. Kernels among the arguments are built
    here first, so that compiling does not count as running. Where it crashed, hung, lost the GPU or
    ran out of memory that is a LaunchError, with its `kind`; PicklingError where an argument cannot
    cross (see `can_cross`). Within the worker itself it is a plain call.
    """
    if SERVING in os.environ:
        return function(*args, **kwargs)
    values = [*args, *kwargs.values()]
    for kernel in (value for value in values if isinstance(value, Runnable)):
        kernel.build()
    payload = dumps((function, args, kwargs))
    ours = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_")}
    request = pickle.dumps(([*map(os.path.abspath, sys.path)], ours, payload))
    worker = _worker(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    with worker.lock:
        try:
            returned, value, lost = pickle.loads(worker.ask(request, time_limit))
            fault = None if returned else faults.classify(value)
        except Exception as error:
            returned = False
            lost = True
            fault = _silence(error)
        printed = worker.printed
        if lost:
            worker.stop()
    if returned:
        return value
    if fault is not None:
        raise faults.error(*fault, function, values, printed) from None
    if isinstance(value, ConvlabError):
        getattr(value, "__notes__", []).clear()  # its text says all
    raise value


def _silence(error: Exception) -> tuple[str, str]:
    """The kind of fault for which the worker's answer is missing, and what was seen of it."""
    text = f"its answer cannot be read: {type(error).__name__}: {error}"
    if isinstance(error, child.Died):
        if error.begun:
            return "host crash", str(error)
        text = f"at its start: {error}"
    elif isinstance(error, child.TimedOut):
        if error.begun:
            return "endless loop", str(error)
        text = f"it did not begin within {error.seconds:g} s"
    elif isinstance(error, OSError):
        text = f"it did not start: {error}"
    return "invalid worker state", text


def can_cross(*values: object) -> bool:
    """Whether values can be arguments of `call`: they pickle, and are not of ``__main__``."""
    try:
        dumps(values)
    except Exception:  # what pickling raises is up to each type
        return False
    return True


def stop() -> None:
    """End this process's workers, and free the GPU memory they hold; the next call starts anew."""
    for worker in list(_workers.values()):
        with worker.lock:
            worker.stop()


def run_once(kernel: Runnable, problem: Problem, offsets: tuple[int, ...] = (0, 0, 0)) -> None:
    """Run a kernel on normal data that misses aligned addresses by so many bytes; wait for it."""
    inputs = data.inputs(problem, 0, kernel.device, format=kernel.format)
    kernel.prepare(problem, *map(_shifted, inputs, offsets))()
    if kernel.engine == "cuda":
        torch.cuda.synchronize()


def _shifted(tensor: Tensor | None, offset: int) -> Tensor | None:
    if tensor is None or not offset:
        return tensor
    start = offset // tensor.element_size()
    room = torch.empty(tensor.numel() + start, dtype=tensor.dtype, device=tensor.device)
    return room[start:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def _worker(device: int) -> child.Child:
    if device not in _workers:
        there = str(device if torch.cuda.is_available() else -1)
        _workers.setdefault(device, child.Child(_SCRIPT, there, options=["-P"]))
    return _workers[device]


# ---- what is not known to be good, tried there first -------------------------------------------

# What ran to its end in the worker: (library, problem, workspace limit, alignments); and the
# libraries that were loaded there.
_tried: set[tuple[object, ...]] = set()


def load_first(kernel: Kernel) -> None:
    """Load a kernel's library in the worker, which runs its static initialisers there."""
    trial = (kernel.build().library,)
    if _is_due(kernel, trial):
        call(_load, kernel, time_limit=kernel.time_limit)
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
            call(run_once, kernel, problem, offsets, time_limit=kernel.time_limit)
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
    kept = os.dup(1)
    printed = os.memfd_create("printf")
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
