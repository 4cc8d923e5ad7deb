"""Runs what may crash or hang in a process of its own, one for each GPU, kept between calls.

>>> worker.call(function, kernel, problem, seed)      # function(kernel, problem, seed), over there

What a kernel does to that process becomes a `LaunchError` here; the next call finds a fresh one.
Specifications, seeds and reports cross, pickled. `rehearsal.py` says which kernels run there before
they run here.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ConvlabError
from ..core.kernel.runnable import Runnable
from ..core.kernel.runner import TIME_LIMIT
from ..core.machine import child, interrupt
from . import faults
from .worker_process import SERVING, dumps

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
    with interrupt.held(), worker.lock:
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


def _worker(device: int) -> child.Child:
    if device not in _workers:
        there = str(device if torch.cuda.is_available() else -1)
        _workers.setdefault(device, child.Child(_SCRIPT, there, options=["-P"]))
    return _workers[device]
