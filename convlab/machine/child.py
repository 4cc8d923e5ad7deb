"""The one process that may die: Python code, or a program, that runs apart and leaves nothing.

`Child` is a script that serves requests, started when first asked, and again after its end; `run`
has a program run to its end. Each is in a session of its own, without this process's descriptors,
and ends with this process, however that ends: its socket hangs up. Whoever waits for it over there
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
    """A Python file's ``serve(server, *arguments)`` (see `Server`) in a process of its own.

    It runs under `options` of Python's, and serves one request at a time. `kept`: foreign code runs
    in that very process, so another stands between, which outlives it. A script that needs none
    forks for each request, and waits by `outlive`.
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
        """Send a request, show what is printed meanwhile, and return the reply, or raise `Died`.

        The limit, in seconds, counts from when the script says that it has begun; past it, or
        `START_LIMIT` before, `TimedOut` is raised. Whatever happens here, Ctrl-C included, no
        process is left that works on a request nobody waits for. The caller holds `lock`.
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
        reads, writes = zip(os.pipe(), os.pipe(), strict=True)
        self._streams = [_Stream(*pair) for pair in zip(("stdout", "stderr"), reads, strict=True)]
        self._open = [self._connection, *self._streams]
        passed = [theirs.fileno()]
        command = [sys.executable, *self.options, _THERE, "serve", str(passed[0]),
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
        end = None if limit is None else time.monotonic() + limit
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = wait(self._open, left)
            for stream in self._streams:
                if stream in ready and stream.relay() == b"":
                    self._open.remove(stream)
            if self._connection in ready:
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
                if not stream.relay():
                    break

    def _died(self, begun: bool) -> Died:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_LIMIT)
        self._show_the_rest()
        return Died(self._process.returncode, begun)

    @property
    def printed(self) -> str:
        """The end of what the last request wrote to stderr, also after it died."""
        return self._streams[1].tail if self._streams else ""

    def stop(self) -> None:
        """End the process and all that it started, and wait until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            _end(process, self._connection)
        finally:
            for stream in self._streams:
                stream.pipe.close()

    def interrupt(self) -> None:
        """End the process, from another thread than the one that holds `lock`."""
        with contextlib.suppress(OSError, AttributeError):  # it has ended meanwhile
            _hang_up(self._connection)

    def _forget_in_a_fork(self) -> None:
        """Close a forked process's copies: the child stays its parent's."""
        if self._process is not None:
            self._process.returncode = 0  # not waited for here
        for end in (self._connection, *(stream.pipe for stream in self._streams)):
            if end is not None:
                end.close()
        self._forget()


_children: weakref.WeakSet[Child] = weakref.WeakSet()
atexit.register(lambda: [child.stop() for child in list(_children)])
os.register_at_fork(after_in_child=lambda: [child._forget_in_a_fork() for child in list(_children)])


def run(
    command: Sequence[str], limit: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, `subprocess.TimeoutExpired` past the limit; leave nothing of it."""
    ours, theirs = Pipe()
    with ours, theirs:
        process = subprocess.Popen(
            _kept(command, theirs.fileno()), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", env=env,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as error:
            _end(process, ours)
            if isinstance(error, subprocess.TimeoutExpired):
                error.cmd = command
                error.stdout, error.stderr = process.communicate(timeout=STOP_LIMIT)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def quit(seconds: float = 1.0) -> None:
    """Kill all that this process has started, until its other threads end, or that time is over."""
    until = time.monotonic() + seconds
    _kill_below(os.getpid())
    while len([t for t in threading.enumerate() if not t.daemon]) > 1 and time.monotonic() < until:
        time.sleep(0.02)
        _kill_below(os.getpid())


def _kill_below(process: int) -> None:
    with contextlib.suppress(OSError):  # ended meanwhile
        told = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
        for child in map(int, " ".join(told).split()):
            _kill_below(child)
            os.kill(child, signal.SIGKILL)


def _kept(command: Sequence[str], line: int) -> list[str]:
    return [sys.executable, "-I", "-S", _THERE, "keep", str(line), *command]


def _hang_up(connection: Connection) -> None:
    """Let the other side see the end of a socket, whoever else has a copy of this one."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _end(process: subprocess.Popen, connection: Connection) -> None:
    """Hang up on a process, wait for it, and kill its session where that does not end it in time."""
    # a script alone sees the end of its socket when it next looks there; one that keeps another
    # at once, but then it waits for what a driver's call may hold back even from SIGKILL
    if not connection.closed:
        with contextlib.suppress(OSError):  # hung up already
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

    def __init__(self, name: str, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.name, self.pipe = name, io.FileIO(descriptor)
        self.fileno = self.pipe.fileno
        self.begin()

    def begin(self) -> None:
        self.seen, self.tail = 0, ""
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
