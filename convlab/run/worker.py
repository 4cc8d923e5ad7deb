"""Runs what may crash or hang in a process of its own, one for each GPU, kept between calls.

>>> worker.call(function, kernel, problem, seed)      # function(kernel, problem, seed), over there

What a kernel does to that process becomes a `LaunchError` here; the next call finds a fresh one.
Specifications, seeds and reports cross, pickled; tensors do not.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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
    function: Callable[..., Any],
    /,
    *args: Any,
    time_limit: float | None = TIME_LIMIT,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args, **kwargs)``, computed in the worker of the current GPU.

    What it prints appears here. The first call starts the worker (seconds where there is a GPU);
    later ones cost well under a millisecond. Kernels among the arguments are built here first,
    so that compiling does not count as running. Within the worker itself it is a plain call.

    Parameters
    ----------
    function : of a module that can be imported, not of ``__main__``.
    args, kwargs : what pickles and is small; no tensors.
    time_limit : seconds that the function may take; None for no limit.

    Raises
    ------
    LaunchError
        If it crashed, hung, lost the GPU or ran out of memory: `kind` says which, in the words of
        ``convlab/run/faults.md``; the message names the kernels and the problem among the arguments.
    pickle.PicklingError
        If an argument cannot cross (`can_cross` tells before).
    Exception
        Whatever else the function raises, with its type and a note of where it was.
    """
    if SERVING in os.environ:
        return function(*args, **kwargs)
    values = [*args, *kwargs.values()]
    for value in values:
        if isinstance(value, Runnable):
            value.build()
    payload = dumps((function, args, kwargs), _KernelPickler)
    subject = faults.Subject.of(function, values)
    worker = _worker(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    with worker.lock:
        try:
            returned, value, lost = _answer(worker, payload, time_limit)
        except _Fault as fault:
            raise subject.error(fault.kind, str(fault), worker.printed) from None
        printed = worker.printed
        if lost:
            worker.stop()
    if returned:
        return value
    found = faults.classify(value)
    if found is None:
        if isinstance(value, ConvlabError):
            getattr(value, "__notes__", []).clear()  # its text says all
        raise value
    raise subject.error(*found, printed) from None


class _Fault(Exception):
    """The worker did not answer; `kind` says why."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _answer(worker: child.Child, payload: bytes, limit: float | None) -> tuple[bool, Any, bool]:
    """What the worker answers: whether the function returned, its value or exception, `lost`."""
    state = "invalid worker state"
    try:
        reply = worker.ask(pickle.dumps((_surroundings(), payload)), limit)
    except child.Died as died:
        if died.begun:
            raise _Fault("host crash", str(died)) from None
        raise _Fault(state, f"at its start: {died}") from None
    except child.TimedOut as late:
        if late.begun:
            raise _Fault("endless loop", str(late)) from None
        raise _Fault(state, f"it did not begin within {late.seconds:g} s") from None
    except OSError as error:
        raise _Fault(state, f"it did not start: {error}") from error
    try:
        return pickle.loads(reply)
    except Exception as error:
        worker.stop()
        text = f"its answer cannot be read: {type(error).__name__}: {error}"
        raise _Fault(state, text) from error


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
    """Run a kernel once on normal data, and wait for it.

    Parameters
    ----------
    offsets : bytes by which the starts of x, w and bias miss an aligned address.
    """
    inputs = data.inputs(problem, 0, kernel.device, format=kernel.format)
    placed = [t if t is None else _shifted(t, by) for t, by in zip(inputs, offsets, strict=True)]
    kernel.prepare(problem, *placed)()
    if kernel.engine == "cuda":
        torch.cuda.synchronize()


def _shifted(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    if not offset:
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
        made = child.Child(_SCRIPT, there, options=["-P"])
        _workers.setdefault(device, made)
    return _workers[device]


def _surroundings() -> tuple[list[str], str | None, dict[str, str]]:
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = None
    variables = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_")}
    return list(sys.path), directory, variables
