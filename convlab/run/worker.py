"""Runs what may crash or hang in a process of its own, one for each GPU, kept between calls.

>>> worker.call(function, kernel, problem, seed)      # function(kernel, problem, seed), over there

What a kernel does to that process becomes a `LaunchError` here; the next call finds a fresh one.
Specifications, seeds and reports cross, pickled; tensors do not.
"""

import contextlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..machine import child
from ..words.errors import ConvlabError
from ..words.problem import Problem
from . import data, faults
from .faults import explain
from .runnable import Runnable
from .worker_process import SERVING, Pickler, dumps

__all__ = ["TIME_LIMIT", "call", "can_cross", "explain", "run_once", "stop"]

TIME_LIMIT = 20.0  # seconds that a call may take unless told otherwise
_SCRIPT = Path(__file__).with_name("worker_process.py")
_workers: dict[int, child.Child] = {}  # by GPU


def call(
    function: Callable[..., Any], /, *args: Any, time_limit: float | None = TIME_LIMIT,
    **kwargs: Any,
) -> Any:  # fmt: skip
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
    payload = dumps((function, args, kwargs), _KernelPickler)
    request = pickle.dumps((_surroundings(), payload))
    worker = _worker(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    with worker.lock:
        try:
            returned, value, lost = pickle.loads(worker.ask(request, time_limit))
            fault = None if returned else faults.classify(value)
        except Exception as error:
            returned, lost, fault = False, True, _silence(error)
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
    state, text = "invalid worker state", str(error)
    match error:
        case child.Died():
            return ("host crash", text) if error.begun else (state, f"at its start: {text}")
        case child.TimedOut(begun=True):
            return "endless loop", text
        case child.TimedOut():
            return state, f"it did not begin within {error.seconds:g} s"
        case OSError():
            return state, f"it did not start: {text}"
    return state, f"its answer cannot be read: {type(error).__name__}: {text}"


def can_cross(*values: object) -> bool:
    """Whether values can be arguments of `call`: they pickle, and are not of ``__main__``."""
    try:
        dumps(values, _KernelPickler)
    except Exception:  # what pickling raises is up to each type
        return False
    return True


def stop() -> None:
    """End this process's workers, and free the GPU memory they hold; the next call starts anew."""
    for worker in list(_workers.values()):
        while not worker.lock.acquire(timeout=0.1):  # another thread waits for an answer
            worker.interrupt()
        try:
            worker.stop()
        finally:
            worker.lock.release()


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


class _KernelPickler(Pickler):
    """Pickles each kernel apart: the worker knows those it has met before."""

    def persistent_id(self, value: object) -> bytes | None:
        return dumps(value) if isinstance(value, Runnable) and not value.library else None


def _worker(device: int) -> child.Child:
    if device not in _workers:
        there = str(device if torch.cuda.is_available() else -1)
        _workers.setdefault(device, child.Child(_SCRIPT, there, options=["-P"]))
    return _workers[device]


def _surroundings() -> tuple[list[str], str | None, dict[str, str]]:
    directory = None
    with contextlib.suppress(FileNotFoundError):
        directory = os.getcwd()
    variables = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_")}
    return list(sys.path), directory, variables
