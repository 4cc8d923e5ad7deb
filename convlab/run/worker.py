"""Runs what may crash or hang in a process of its own, one for each GPU, kept between calls.

>>> worker.call(function, kernel, problem, seed)      # function(kernel, problem, seed), over there

What a kernel does to that process becomes a `LaunchError` here; the next call finds a fresh one.
Specifications, seeds and reports cross, pickled; tensors do not.
"""

from __future__ import annotations

import atexit
import codecs
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch

from ..right import reference
from ..words.errors import ConvlabError
from ..words.problem import Problem
from . import faults
from .faults import explain
from .kernel import Kernel
from .worker_process import RUNNING, SERVING, Pickler, dumps, kill_tree

__all__ = ["START_LIMIT", "TIME_LIMIT", "call", "can_cross", "explain", "run_once", "stop"]

TIME_LIMIT = 20.0  # seconds that a call may take unless told otherwise
START_LIMIT = 180.0  # seconds to start Python, import torch and open the GPU
_SHOWN_BYTES = 1 << 20  # of each stream that one call prints
_SCRIPT = Path(__file__).with_name("worker_process.py")


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
    for kernel in values:
        if isinstance(kernel, Kernel):
            kernel.build()
    payload = dumps((function, args, kwargs), _KernelPickler)
    index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    subject = faults.Subject.of(function, values)
    try:
        returned, value, printed = _worker(index).ask(payload, time_limit)
    except _Fault as fault:
        raise subject.error(fault.kind, fault.text, fault.printed) from None
    if returned:
        return value
    found = faults.classify(value)
    if found is None:
        if isinstance(value, ConvlabError):
            getattr(value, "__notes__", []).clear()  # its text says all
        raise value
    raise subject.error(*found, printed) from None


def can_cross(*values: object) -> bool:
    """Whether values can be arguments of `call`: they pickle, and are not of ``__main__``."""
    try:
        dumps(values, _KernelPickler)
    except Exception:  # what pickling raises is up to each type
        return False
    return True


def stop() -> None:
    """End this process's workers, and free the GPU memory they hold; the next call starts anew."""
    for (owner, _), worker in list(_workers.items()):
        if owner != os.getpid():
            continue
        while not worker.lock.acquire(timeout=0.1):  # another thread waits for an answer
            process = worker.process
            if process is not None and process.poll() is None:
                kill_tree(process.pid)
        try:
            worker.stop()
        finally:
            worker.lock.release()


def run_once(kernel: Kernel, problem: Problem, offsets: tuple[int, ...] = (0, 0, 0)) -> None:
    """Run a kernel once on normal data, and wait for it.

    Parameters
    ----------
    offsets : bytes by which the starts of x, w and bias miss an aligned address.
    """
    inputs = reference.inputs(problem, 0, kernel.device)
    placed = [t if t is None else _shifted(t, by) for t, by in zip(inputs, offsets, strict=True)]
    kernel.prepare(problem, *placed)()
    if kernel.engine == "cuda":
        torch.cuda.synchronize()


def _shifted(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    if not offset:
        return tensor
    start = offset // tensor.element_size()
    room = torch.empty(tensor.numel() + start, dtype=tensor.dtype, device=tensor.device)
    return room[start:].view(tensor.shape).copy_(tensor)


class _KernelPickler(Pickler):
    """Pickles each kernel apart: the worker knows those it has met before."""

    def persistent_id(self, value: object) -> bytes | None:
        return dumps(value) if isinstance(value, Kernel) else None


class _Fault(Exception):
    """The worker did not answer; `kind` and `text` say why, `printed` is the end of its stderr."""

    def __init__(self, kind: str, text: str, printed: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.printed = kind, text, printed


class _Closed(Exception):
    """The worker's end of the socket was closed: the process has ended, or is about to."""


class _Stream:
    """What the worker writes to one file descriptor, shown here as it comes."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        os.set_blocking(descriptor, False)
        self.begin()

    def begin(self) -> None:
        self.seen, self.tail = 0, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def relay(self) -> int:
        """Show what there is, up to 64 KiB; return its size: 0 at the end, -1 if nothing waits."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return -1
        text = self._decoder.decode(data)
        self.tail = (self.tail + text)[-8192:]
        out = getattr(sys, self.name)
        if self.seen < _SHOWN_BYTES and out is not None:
            out.write(text)
            if self.seen + len(data) >= _SHOWN_BYTES:
                out.write("\n[the rest of this call's output is not shown]\n")
            out.flush()
        self.seen += len(data)
        return len(data)


class _Worker:
    """The worker process of one GPU; the methods are for whoever holds `lock`, but `ask`."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._streams: list[_Stream] = []

    def ask(self, payload: bytes, time_limit: float | None) -> tuple[bool, Any, str]:
        """Send a request; return (True, value) or (False, exception), and the end of its stderr.

        Raises `_Fault` if there was no answer. Whatever happens here meanwhile, Ctrl-C included,
        no process is left that works on a request nobody waits for.
        """
        with self.lock:
            try:
                return self._ask(payload, time_limit)
            except BaseException:
                self.stop()
                raise

    def _ask(self, payload: bytes, time_limit: float | None) -> tuple[bool, Any, str]:
        fresh = self.process is None or self.process.poll() is not None
        try:
            reply = self._begin(payload, fresh)
        except _Closed:
            if fresh:
                raise self._crash("invalid worker state", "at its start: ") from None
            self.stop()  # it had ended since the last call
            return self._ask(payload, time_limit)
        if reply == RUNNING:
            try:
                reply = self._receive(time_limit)
            except _Closed:
                raise self._crash("host crash") from None
            if reply is None:
                text = f"stopped after {time_limit:g} s"
                raise _Fault("endless loop", text, self._printed)
        try:
            returned, value, lost = pickle.loads(reply)
        except Exception as error:
            text = f"its answer cannot be read: {type(error).__name__}: {error}"
            raise _Fault("invalid worker state", text) from error
        if lost:
            self.stop()
        return returned, value, self._printed

    def _begin(self, payload: bytes, fresh: bool) -> bytes:
        """Hand over a request, to a new process if need be; what the worker says first."""
        if fresh:
            self.stop()
            self._start()
        for stream in self._streams:
            stream.begin()
        surroundings = _surroundings()
        news = None if surroundings == self._surroundings else surroundings
        try:
            self._connection.send_bytes(pickle.dumps((news, payload)))
        except OSError:
            raise _Closed from None
        self._surroundings = surroundings
        reply = self._receive(START_LIMIT)
        if reply is None:
            text = f"it did not begin within {START_LIMIT:g} s"
            raise _Fault("invalid worker state", text, self._printed)
        return reply

    def _start(self) -> None:
        if not sys.executable:
            raise _Fault("invalid worker state", "sys.executable is empty: no Python to start")
        device = self.device if torch.cuda.is_available() else -1
        self._connection, theirs = Pipe()
        reads, writes = zip(os.pipe(), os.pipe(), strict=True)
        self._streams = [_Stream(*pair) for pair in zip(("stdout", "stderr"), reads, strict=True)]
        self._surroundings: object = None
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno()), str(os.getpid()),
                 str(device)],
                stdin=subprocess.DEVNULL, stdout=writes[0], stderr=writes[1],
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal does not reach it
            )  # fmt: skip
        finally:
            theirs.close()
            for write in writes:
                os.close(write)
        _end_at_exit()

    def _receive(self, limit: float | None) -> bytes | None:
        """The worker's next message, showing what it prints meanwhile; None past the limit."""
        poll = select.poll()
        streams = {stream.descriptor: stream for stream in self._streams}
        for descriptor in (self._connection.fileno(), *streams):
            poll.register(descriptor, select.POLLIN)
        end = None if limit is None else time.monotonic() + limit
        while True:
            left = None if end is None else max(0.0, 1000 * (end - time.monotonic()))
            ready = {descriptor for descriptor, _ in poll.poll(left)}
            for descriptor in ready & streams.keys():
                if streams[descriptor].relay() == 0:
                    poll.unregister(descriptor)
            if self._connection.fileno() in ready:
                return _received(self._connection, streams.values())
            if end is not None and time.monotonic() >= end:
                return None

    @property
    def _printed(self) -> str:
        return self._streams[1].tail

    def _crash(self, kind: str, text: str = "") -> _Fault:
        """What the end of the process amounts to."""
        try:
            status = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return _Fault(kind, f"{text}it closed its connection", self._printed)
        if status >= 0:
            text += f"exit status {status}"
        else:
            text += next((s.name for s in signal.Signals if s == -status), f"signal {-status}")
        if status == -signal.SIGKILL:
            text += ", sent from outside: by the system, where memory ran out?"
        return _Fault(kind, text, self._printed)

    def stop(self) -> None:
        """End the process and all that it started, and wait until it is gone."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            kill_tree(process.pid)
        try:
            process.wait(timeout=60)  # an endless kernel ends when its process does
        finally:
            self._connection.close()
            for stream in self._streams:
                os.close(stream.descriptor)


def _received(connection: Connection, streams) -> bytes:
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        raise _Closed from None
    finally:
        for stream in streams:
            for _ in range(256):  # 16 MiB; all of it is there, unless something still prints
                if stream.relay() <= 0:
                    break


def _surroundings() -> tuple[list[str], str | None, dict[str, str]]:
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = None
    variables = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_")}
    return list(sys.path), directory, variables


# By the process that started it, too: a forked child must not use its parent's worker.
_workers: dict[tuple[int, int], _Worker] = {}


def _worker(device: int) -> _Worker:
    return _workers.setdefault((os.getpid(), device), _Worker(device))


def _end_at_exit() -> None:
    atexit.unregister(stop)
    atexit.register(stop)
