"""Run code in a child process that may crash, and leave no process behind.

`Child` runs a Python script that serves requests. It starts at the first request, and again after
it ended. `run` runs a program to its end. Each child has its own session, and inherits no
descriptors. It ends when this process ends, in whatever way, because the socket between them
closes. A second process (`child_process`) outlives the child and adopts its descendants, so that it
can end all of them, detached ones included.
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

# The time to start Python, import torch and open the GPU, in seconds.
START_LIMIT = 180.0
# The time from closing the socket to the child's end, even with an endless kernel, in seconds.
STOP_LIMIT = 5.0
# The most bytes of each output stream that one request shows.
_SHOWN_BYTES = 1 << 20
# The most bytes of a message.
_LONGEST = 1 << 28
_CHILD_SCRIPT = str(Path(__file__).with_name("child_process.py"))


class Died(Exception):
    """The child ended before it replied.

    Attributes
    ----------
    status : the exit status; negative for a signal, None if the child only closed its socket.
    begun : whether the child had begun to process the request.
    """

    def __init__(self, status: int | None, begun: bool) -> None:
        super().__init__(describe(status))
        self.status = status
        self.begun = begun


class TimedOut(Exception):
    """The child did not reply within the time limit, and was ended; `begun` is as in `Died`."""

    def __init__(self, seconds: float, begun: bool) -> None:
        super().__init__(f"stopped after {seconds:g} s")
        self.seconds = seconds
        self.begun = begun


def describe(status: int | None) -> str:
    """Return a text for the way in which a process ended: "exit status 3", "SIGSEGV"."""
    if status is None:
        return "it closed its connection"
    if status >= 0:
        return f"exit status {status}"
    name = next((s.name for s in signal.Signals if s == -status), f"signal {-status}")
    outside = ", sent from outside: perhaps the system ran out of memory"
    return name + (outside if status == -signal.SIGKILL else "")


class Child:
    """Run a Python file's ``serve(server, *arguments)`` (see `Server`) in its own process.

    `options` are options of the Python interpreter. The child serves one request at a time.
    """

    def __init__(self, script: Path, *arguments: str, options: Sequence[str] = ()) -> None:
        self._script = (str(script), *arguments)
        self._options = options
        self._forget()
        _children.add(self)

    def _forget(self) -> None:
        """Reset to a state without a process. After a fork, the process belongs to the parent."""
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._streams: list[_Stream] = []
        # The number of the last request.
        self._number = 0

    def ask(self, message: bytes, limit: float | None) -> bytes:
        """Send a request, show the child's output meanwhile, and return the reply.

        The time limit is in seconds. It starts when the script reports that it has begun; before
        that, `START_LIMIT` applies. Raises `TimedOut` after the limit, and `Died` if the child
        ends. After any error, Ctrl-C included, no process works on the request any more. Only one
        thread may call this at a time.
        """
        try:
            # Repeat once, because the child may have ended since the last request.
            for again in (True, False):
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

    def start(self) -> None:
        """Start the process if there is none, so that it is there when it is first asked."""
        with self.lock:
            if self._process is None:
                self._start()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        process = _started(self._options, theirs, "serve", *self._script, bufsize=0)
        self._process = process
        self._streams = [_Stream("stdout", process.stdout), _Stream("stderr", process.stderr)]

    def _answer(self, message: bytes, limit: float | None) -> bytes:
        """Send a request and wait for the reply; show the child's output meanwhile."""
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
            # At most 16 MiB, in case a process still prints.
            for _ in range(256):
                if not stream.relay():
                    break

    def interrupt(self) -> None:
        """End the process; a request in another thread then raises `Died`."""
        # The process may already be ending, or may not exist.
        with contextlib.suppress(OSError, AttributeError):
            _hang_up(self._connection)

    @property
    def printed(self) -> str:
        """The end of the last request's stderr output, also after the child ended."""
        return self._streams[1].tail if self._streams else ""

    def stop(self) -> None:
        """End the process and all of its descendants, and wait for their end."""
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
    """Run a program to its end, and leave none of its descendants.

    Raises `subprocess.TimeoutExpired` after `limit` seconds.
    """
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
    """Start `child_process` with options of Python's; `line` is its end of the socket."""
    with line:
        return subprocess.Popen(
            [sys.executable, *python, _CHILD_SCRIPT, str(line.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[line.fileno()],
            start_new_session=True,
            **options,
        )


def _hang_up(connection: Connection) -> None:
    """Close a connection, even if other processes have copies of this end."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _end(process: subprocess.Popen, connection: Connection) -> None:
    """Close the connection to a process and wait for its end; kill its session after the limit."""
    # The process notices this at once. It may then wait for a driver call that delays even SIGKILL.
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
    """Show what the child writes to one file descriptor, while it runs."""

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
        """Show and return up to 64 KiB of output: b"" at the end, None if there is none now."""
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
