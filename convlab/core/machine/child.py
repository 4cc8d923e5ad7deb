"""The one process that may die: Python code, or a program, that runs apart and leaves nothing.

`Child` is a script that serves requests, started when first asked, and again after its end; `run`
has a program run to its end. Each is in a session of its own, without this process's descriptors,
and ends with this process, however that ends: its socket hangs up. What outlives it over there
(`child_process`) adopts what it leaves, so that not even what a second fork detached is left.
"""

import atexit
import codecs
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from . import interrupt
from .child_process import ID_BYTES

START_LIMIT = 180.0  # seconds to start Python, import torch and open the GPU
STOP_LIMIT = 5.0  # seconds from the end of its socket to its own, an endless kernel's included
_SHOWN_BYTES = 1 << 20  # of each stream that one request prints
_LONGEST = 1 << 28  # bytes of a message
_THERE = str(Path(__file__).with_name("child_process.py"))


class Died(Exception):
    """The child ended before it answered.

    `status` is its exit status, negative for a signal, None if it only closed its socket; `begun`:
    whether it had begun with the request.
    """

    def __init__(self, status: int | None, begun: bool) -> None:
        super().__init__(describe(status))
        self.status = status
        self.begun = begun


class TimedOut(Exception):
    """The child did not answer in time, and was ended; `begun` as `Died`'s."""

    def __init__(self, seconds: float, begun: bool) -> None:
        super().__init__(f"stopped after {seconds:g} s")
        self.seconds = seconds
        self.begun = begun


def describe(status: int | None) -> str:
    """Say in words how a process ended: "exit status 3", "SIGSEGV"."""
    if status is None:
        return "it closed its connection"
    if status >= 0:
        return f"exit status {status}"
    name = next((s.name for s in signal.Signals if s == -status), f"signal {-status}")
    outside = ", sent from outside: by the system, where memory ran out?"
    return name + (outside if status == -signal.SIGKILL else "")


class Child:
    """A Python file's ``serve(server, *arguments)`` (see `Server`) in a process of its own.

    It runs under `options` of Python's, and serves one request at a time.
    """

    def __init__(self, script: Path, *arguments: str, options: Sequence[str] = ()) -> None:
        self._script = (str(script), *arguments)
        self._options = options
        self._forget()
        _children.add(self)

    def _forget(self) -> None:
        """Have no process: one that was started is the parent's, in a fork."""
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._streams: list[_Stream] = []
        self._number = 0  # of the request

    def ask(self, message: bytes, limit: float | None) -> bytes:
        """Send a request, show what is printed meanwhile, and return the reply, or raise `Died`.

        The limit, in seconds, counts from when the script says that it has begun; past it, or
        `START_LIMIT` before, `TimedOut` is raised. Whatever happens here, Ctrl-C included, no
        process is left that works on a request nobody waits for. One thread asks at a time.
        """
        try:
            for again in (True, False):  # it may have ended since the last request
                if self._process is None:
                    self._start()
                try:
                    with interrupt.at_work(self.interrupt):
                        return self._answer(message, limit)
                except Died as died:
                    if died.begun or not again:
                        raise
                    self.stop()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        process = _started(self._options, theirs, "serve", *self._script, bufsize=0)
        self._process = process
        self._streams = [_Stream("stdout", process.stdout), _Stream("stderr", process.stderr)]

    def _answer(self, message: bytes, limit: float | None) -> bytes:
        """Hand over a request and wait for the reply, showing what is printed meanwhile."""
        for stream in self._streams:
            stream.begin()
        self._number += 1
        number = self._number.to_bytes(ID_BYTES, "little")
        begun = False
        seconds = START_LIMIT
        end = time.monotonic() + seconds
        sources = [self._connection, *self._streams]
        try:
            self._connection.send_bytes(number + message)
        except OSError:
            raise self._died(False) from None
        while True:
            for source in wait(sources, None if end is None else max(0.0, end - time.monotonic())):
                if source is not self._connection:
                    if source.relay() == b"":
                        sources.remove(source)
                    continue
                try:
                    reply = self._connection.recv_bytes(_LONGEST)
                except (EOFError, OSError):
                    raise self._died(begun) from None
                if reply == number:
                    begun = True
                    seconds = limit
                    end = None if limit is None else time.monotonic() + limit
                elif reply.startswith(number):
                    self._show_the_rest()
                    return reply.removeprefix(number)
            if end is not None and time.monotonic() >= end:
                raise TimedOut(seconds, begun)

    def _died(self, begun: bool) -> Died:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_LIMIT)
        self._show_the_rest()
        return Died(self._process.returncode, begun)

    def _show_the_rest(self) -> None:
        for stream in self._streams:
            for _ in range(256):  # 16 MiB; all of it is there, unless something still prints
                if not stream.relay():
                    break

    def interrupt(self) -> None:
        """End the process, so that another thread's request ends, too: it has `Died`."""
        with contextlib.suppress(OSError, AttributeError):  # it may be ending, or not there
            _hang_up(self._connection)

    @property
    def printed(self) -> str:
        """The end of what the last request wrote to stderr, also after it died."""
        return self._streams[1].tail if self._streams else ""

    def stop(self) -> None:
        """End the process and all that it started, and wait until it is gone."""
        process = self._process
        self._process = None
        if process is not None:
            _end(process, self._connection)
            process.stdout.close()
            process.stderr.close()


_children: weakref.WeakSet[Child] = weakref.WeakSet()
atexit.register(lambda: [child.stop() for child in list(_children)])
os.register_at_fork(after_in_child=lambda: [child._forget() for child in list(_children)])


def run(
    command: Sequence[str | Path],
    limit: float | None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, `subprocess.TimeoutExpired` past the limit; leave nothing of it."""
    ours, theirs = Pipe()
    options = {"text": True, "errors": "replace", "env": env, "cwd": folder}
    process = _started(["-I", "-S"], theirs, "run", *map(str, command), **options)
    try:
        with interrupt.at_work(lambda: _hang_up(ours)):
            out, err = process.communicate(timeout=limit)
    except BaseException as error:
        _end(process, ours)
        if isinstance(error, subprocess.TimeoutExpired):
            error.stdout, error.stderr = process.communicate(timeout=STOP_LIMIT)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _started(
    python: Sequence[str], line: Connection, *words: str, **options: Any
) -> subprocess.Popen:
    """Start `child_process`, whose end of the socket is `line`, under options of Python's."""
    with line:
        return subprocess.Popen(
            [sys.executable, *python, _THERE, str(line.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[line.fileno()],
            start_new_session=True,
            **options,
        )


def _hang_up(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)  # whoever else has a copy of this end


def _end(process: subprocess.Popen, connection: Connection) -> None:
    """Hang up on a process, wait for it, and kill its session where that does not end it in time."""
    # it sees that at once, but then waits for what a driver's call may hold back even from SIGKILL
    with contextlib.suppress(OSError):
        _hang_up(connection)
    connection.close()
    try:
        process.wait(timeout=STOP_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_LIMIT)


class _Stream:
    """What the child writes to one file descriptor, shown here as it comes."""

    def __init__(self, name: str, pipe: io.FileIO) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.name = name
        self.pipe = pipe
        self.fileno = pipe.fileno
        self.begin()

    def begin(self) -> None:
        self.seen = 0
        self.tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def relay(self) -> bytes | None:
        """Show and return what there is, up to 64 KiB: b"" at the end, None if nothing waits."""
        data = self.pipe.read(1 << 16)
        if not data:
            return data
        text = self._decoder.decode(data)
        self.tail = (self.tail + text)[-8192:]
        out = getattr(sys, self.name)
        if self.seen < _SHOWN_BYTES and out is not None:
            out.write(text)
            if self.seen + len(data) >= _SHOWN_BYTES:
                out.write("\n[the rest of this call's output is not shown]\n")
            out.flush()
        self.seen += len(data)
        return data
