"""Run functions that may crash or hang in a worker process: one for each GPU, kept between calls.

>>> worker.call(function, kernel, problem, seed)      # function(kernel, problem, seed) in the worker

A crash of the worker becomes a `LaunchError` here, and the next call starts a new worker. Pickled
arguments and results are sent: problems, seeds and reports, but no tensors on a GPU. `rehearsal.py`
decides which kernels run in the worker before they run here.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ConvlabError
from ..core.kernel.runnable import Runnable
from ..core.kernel.runner import TIME_LIMIT
from ..core.machine import child, interrupt
from ..core.problem.problem import Problem
from . import cuda_faults
from .worker_process import SERVING, dumps

# Multiply-adds that the slowest kernels compute on a GPU in a second. The first rung computes over a
# thousand times as many.
_SLOWEST_MACS = 1_000_000_000
_SCRIPT = Path(__file__).with_name("worker_process.py")
# The worker of each GPU, by its number.
_workers: dict[int, child.Child] = {}


def call(
    function: Callable[..., Any],
    /,
    *args: Any,
    time_limit: float | None = TIME_LIMIT,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args, **kwargs)``, computed in the worker of the current GPU.

    What the function prints appears here, and its exceptions are raised here. Kernels among the
    arguments are built here first, so that the time limit in seconds does not include compiling. In
    the worker itself this is a plain call.

    Raises
    ------
    LaunchError
        The function crashed, hung, lost the GPU or ran out of memory; the error has a `kind`.
    PicklingError
        An argument cannot be sent (see `can_send`).
    """
    if SERVING in os.environ:
        return function(*args, **kwargs)
    values = [*args, *kwargs.values()]
    for value in values:
        if isinstance(value, Runnable):
            value.build()
    payload = dumps((function, args, kwargs))
    variables = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_")}
    request = pickle.dumps(([*map(os.path.abspath, sys.path)], variables, payload))
    worker = _worker(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    with interrupt.held(), worker.lock:
        try:
            returned, value, lost = pickle.loads(worker.ask(request, time_limit))
            fault = None if returned else cuda_faults.classify(value)
        except Exception as error:
            returned = False
            lost = True
            fault = _classify_missing_reply(error, values)
        printed = worker.printed
        if lost:
            worker.stop()
    if returned:
        return value
    if fault is not None:
        raise cuda_faults.make_error(*fault, function, values, printed) from None
    if isinstance(value, ConvlabError):
        # The text is enough: remove the note with the worker's traceback.
        getattr(value, "__notes__", []).clear()
    raise value


def _classify_missing_reply(error: Exception, values: Sequence[object]) -> tuple[str, str]:
    """Return the kind of fault and a text for a reply that is missing or unreadable.

    `values` are the arguments of the call. A GPU does not show how far a kernel got. So a run that
    takes longer than the slowest kernel needs for the problem does not end.
    """
    if isinstance(error, child.Died):
        if error.begun:
            return "host crash", str(error)
        text = f"it ended at its start: {error}"
    elif isinstance(error, child.TimedOut):
        if error.begun:
            macs = sum(value.macs for value in values if isinstance(value, Problem))
            is_slow = macs / _SLOWEST_MACS >= error.seconds
            return "out of time" if is_slow else "endless loop", str(error)
        text = f"it did not begin within {error.seconds:g} s"
    elif isinstance(error, OSError):
        text = f"it did not start: {error}"
    else:
        text = f"its reply cannot be read: {type(error).__name__}: {error}"
    return "invalid worker state", text


def can_send(*values: object) -> bool:
    """Return whether `call` can send the values: pickle can, and none is defined in ``__main__``."""
    # Pickling may raise any exception, depending on the type.
    try:
        dumps(values)
    except Exception:
        return False
    return True


def stop() -> None:
    """End this process's workers and free their GPU memory; the next call starts a new one."""
    for worker in list(_workers.values()):
        with worker.lock:
            worker.stop()


def _worker(device: int) -> child.Child:
    """Return the worker of a GPU, by the GPU's number."""
    if device not in _workers:
        number = str(device if torch.cuda.is_available() else -1)
        _workers.setdefault(device, child.Child(_SCRIPT, number, options=["-P"]))
    return _workers[device]
