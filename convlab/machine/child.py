"""The one process that may die: Python code, or a program, that runs apart and leaves nothing.

`Child` is a script that serves requests, started when first asked, and again after its end; `run`
has a program run to its end. Each is in a session of its own, without this process's descriptors,
and ends with this process, however that ends: its socket closes. Whoever waits for it over there
(`child_process`) adopts what it leaves, so that not even what a second fork detached is left.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from .child_process import ID_BYTES

START_LIMIT = 180.0  # seconds to start Python, import torch and open the GPU
_SHOWN_BYTES = 1 << 20  # of each stream that one request prints
_LONGEST = 1 << 28  # bytes of a message
_THERE = str(Path(__file__).with_name("child_process.py"))


class Died(Exception):
    """The child ended before it answered.

    Attributes
    ----------
    status : its exit status, negative for a signal; None if it only closed its socket.
    begun : whether it had begun with the request.
    """

    def __init__(self, status: int | None, begun: bool) -> None:
        super().__init__(describe(status))
        self.status, self.begun = status, begun


class TimedOut(Exception):
    """The child did not answer in time, and was ended; `begun` as `Died`'s."""

    def __init__(self, seconds: float, begun: bool) -> None:
        super().__init__(f"stopped after {seconds:g} s")
        self.seconds, self.begun = seconds, begun


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
    """A script that serves one request at a time in a process of its own.

    Parameters
    ----------
    script : a Python file with ``serve(server, *arguments)``, see `Server`.
    arguments : strings.
    options : of the Python that runs it.
    kept : whether foreign code runs in the script's own process. Another then stands between, which
        outlives it. A script that needs none forks for each request, and waits by `outlive`.
    """

    def __init__(
        self, script: Path, *arguments: str, options: Sequence[str] = (), kept: bool = True
    ) -> None:
        self.script, self.arguments, self.options, self.kept = script, arguments, options, kept
        self._forget()
        _children.add(self)

    def _forget(self) -> None:
        self.lock = threading.Lock()
        self.starts = 0  # how often it was started
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._streams: list[_Stream] = []
        self._number = 0  # of the request

    def ask(self, message: bytes, limit: float | None) -> bytes:
        """Send a request, show what is printed meanwhile, and return the reply.

        Whatever happens here, Ctrl-C included, no process is left that works on a request nobody
        waits for. The caller holds `lock`.

        Parameters
        ----------
        limit : seconds from when the script says that it has begun; None for no limit.

        Raises
        ------
        Died, TimedOut
        """
        try:
            fresh = self._process is None or self._process.poll() is not None
            if fresh:
                self.stop()
                self._start()
            if self._began(message):
                return self._receive(limit, True)
            if fresh:
                raise self._died(False)
            self.stop()  # it had ended since the last request
            return self.ask(message, limit)
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        passed = [theirs.fileno()]
        reads, writes = zip(os.pipe(), os.pipe(), strict=True)
        self._streams = [_Stream(*pair) for pair in zip(("stdout", "stderr"), reads, strict=True)]
        command = [sys.executable, *self.options, _THERE, "serve", str(theirs.fileno()),
                   str(self.script), *self.arguments]  # fmt: skip
        if self.kept:
            passed.append(os.dup(passed[0]))
            command = _kept(command, passed[1])
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=writes[0], stderr=writes[1],
                pass_fds=passed, start_new_session=True,
            )  # fmt: skip
        finally:
            theirs.close()
            for descriptor in (*passed[1:], *writes):
                os.close(descriptor)
        self.starts += 1

    def _began(self, message: bytes) -> bool:
        """Hand over a request; whether the script has begun with it, or else has ended."""
        for stream in self._streams:
            stream.begin()
        self._number += 1
        try:
            self._connection.send_bytes(self._number.to_bytes(ID_BYTES, "little") + message)
            self._receive(START_LIMIT, False)
        except (OSError, Died):
            return False
        return True

    def _receive(self, limit: float | None, begun: bool) -> bytes:
        """The next message that answers this request, showing what is printed meanwhile."""
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
                try:
                    reply = self._connection.recv_bytes(_LONGEST)
                except (EOFError, OSError):
                    raise self._died(begun) from None
                if int.from_bytes(reply[:ID_BYTES], "little") == self._number:
                    self._show_the_rest()
                    return reply[ID_BYTES:]
            if end is not None and time.monotonic() >= end:
                raise TimedOut(limit, begun)

    def _show_the_rest(self) -> None:
        for stream in self._streams:
            for _ in range(256):  # 16 MiB; all of it is there, unless something still prints
                if stream.relay() <= 0:
                    break

    def _died(self, begun: bool) -> Died:
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            status = None
        self._show_the_rest()
        return Died(status, begun)

    @property
    def printed(self) -> str:
        """The end of what the last request wrote to stderr, also after it died."""
        return self._streams[1].tail if self._streams else ""

    def stop(self) -> None:
        """End the process and all that it started, and wait until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        self._connection.close()
        try:
            _wait(process)
        finally:
            for stream in self._streams:
                os.close(stream.descriptor)

    def interrupt(self) -> None:
        """End the process, from another thread than the one that holds `lock`."""
        with (
            contextlib.suppress(OSError, AttributeError),  # it has ended meanwhile
            socket.socket(fileno=os.dup(self._connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    def _forget_in_a_fork(self) -> None:
        """Close a forked process's copies: the child stays its parent's."""
        if self._process is not None:
            self._process.returncode = 0  # not waited for here
            with contextlib.suppress(OSError):
                self._connection.close()
                for stream in self._streams:
                    os.close(stream.descriptor)
        self._forget()


_children: weakref.WeakSet[Child] = weakref.WeakSet()
atexit.register(lambda: [child.stop() for child in list(_children)])
os.register_at_fork(after_in_child=lambda: [child._forget_in_a_fork() for child in list(_children)])


def run(
    command: Sequence[str], limit: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what it printed; nothing that it started is left.

    Raises
    ------
    subprocess.TimeoutExpired
        If it did not end within so many seconds; it has what was printed by then.
    """
    ours, theirs = Pipe()
    with ours:
        with theirs:
            process = subprocess.Popen(
                _kept(command, theirs.fileno()), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", env=env,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as error:
            ours.close()
            out, err = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(command, limit, out, err) from None
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _kept(command: Sequence[str], line: int) -> list[str]:
    return [sys.executable, "-I", "-S", _THERE, "keep", str(line), *command]


def _wait(process: subprocess.Popen) -> None:
    """Wait for a process whose socket was closed; an endless kernel ends when its process does."""
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=60)


class _Stream:
    """What the child writes to one file descriptor, shown here as it comes."""

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
